"""`RotatedPosition`: the base of schemes that rotate queries and keys by angles of the position."""

from typing import Any

import torch
from torch import Tensor

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype
from .seam import kernels
from .unpadding import Tokens


class RotatedPosition(PositionScheme):
    """A scheme that rotates queries and keys by `angles(positions)`: q'_m = R(m) q_m, k'_n = R(n) k_n.

    R(p) turns pair i of a head's first r entries by a_i(p), (a, b) -> (a cos - b sin, a sin + b cos); what is behind
    them stays. Where angles are linear in p, q'_m . k'_n depends on n - m alone: declare `shift_invariant = True`.

    Attributes:
        interleaved: pairs are (x_{2i}, x_{2i+1}), as in RoFormer, not (x_i, x_{i+r/2}), as in GPT-NeoX and Llama.
        attention_factor: a factor on cos and sin, as in YaRN.
    """

    interleaved: bool = False
    attention_factor: float = 1.0

    def angles(self, positions: Tensor) -> Tensor:
        """Returns the angle of each pair at each position, in radians: int64 (...) -> float32 (..., r/2)."""
        raise NotImplementedError

    def cos_sin(self, *positions: Tensor) -> Tensor:
        """cos and sin of each entry's angle: what `angles` takes, (...) -> float32 (..., 2 r), r cos and r sin."""
        angles = self.angles(*positions)
        if not isinstance(angles, Tensor) or angles.dim() != positions[0].dim() + 1:
            raise ValueError(f"{type(self).__name__}.angles must return (..., r/2) for positions (...).")
        parts = angles.cos(), angles.sin()
        if self.interleaved:
            both = torch.cat([part.repeat_interleave(2, -1) for part in parts], -1)
        else:
            both = torch.cat([part for part in parts for _ in range(2)], -1)
        return both if self.attention_factor == 1.0 else both * self.attention_factor

    def rotary(self, tokens: Tokens) -> tuple[Any, ...]:
        """cos and sin, with an axis for the heads: float32 (..., 1, r) each."""
        return tokens.map_positions(self.cos_sin).unsqueeze(-2).chunk(2, -1)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Any, ...], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated in float32, in their own dtype."""
        cos, sin = state
        if cos.shape[-1] > q.shape[-1]:
            raise ValueError(f"{type(self).__name__}.angles turns {cos.shape[-1]} of a head's {q.shape[-1]} entries.")
        return kernels.rotate(rotate_pairs, q, k, cos, sin, self.interleaved)


def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The first r entries of q and k (..., H, d) rotated by cos and sin (..., 1, r), in float32."""
    turned = []
    for x in (q, k):
        pairs, others = x.to(accumulation_dtype(x)).split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), -1)
        pairs = pairs * cos + rotate_half(pairs, interleaved) * sin
        turned.append(torch.cat((pairs, others), -1).to(x.dtype) if others.shape[-1] else pairs.to(x.dtype))
    return turned[0], turned[1]


def rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """Each pair (a, b) turned by 90 degrees, (-b, a): (..., r) -> a new (..., r)."""
    if interleaved:
        return torch.stack((x[..., 1::2] * -1.0, x[..., ::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((x[..., half:] * -1.0, x[..., :half]), -1)  # written so, OpenVINO runs it in one operation
