"""`RotatedPosition`: the base of schemes that rotate queries and keys by angles of the position."""

from typing import Any

import torch
from torch import Tensor

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype, have_fixed_shapes
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
        angles = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), -1)
        return torch.cat((angles.cos(), angles.sin()), -1) * self.attention_factor

    def rotary(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """cos and sin, with an axis for the heads: two float32 (..., 1, r)."""
        return tokens.map_positions(self.cos_sin).unsqueeze(-2).chunk(2, -1)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, ...], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated in float32, in their own dtype."""
        cos, sin = state
        if cos.shape[-1] > q.shape[-1]:
            raise ValueError(f"{type(self).__name__}.angles turns {cos.shape[-1]} of a head's {q.shape[-1]} entries.")
        return rotate_one(q, cos, sin, self.interleaved), rotate_one(k, cos, sin, self.interleaved)


def rotate_one(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first r entries of x (..., d) rotated by cos and sin (..., r), in x's dtype."""
    pairs, others = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    if not have_fixed_shapes(x, sin) and not (cos.requires_grad or sin.requires_grad):
        pairs = _Rotation.apply(pairs, cos, sin, interleaved, 1)
    else:  # what can be traced and transformed, and trains the angles
        precise = pairs.to(accumulation_dtype(pairs))
        pairs = (precise * cos + rotate_half(precise, interleaved) * sin).to(x.dtype)
    return torch.cat((pairs, others), -1) if others.shape[-1] else pairs


def rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """Each pair (a, b) turned by 90 degrees, (-b, a): (..., r) -> a new (..., r)."""
    if interleaved:
        return torch.stack((x[..., 1::2] * -1.0, x[..., ::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((x[..., half:] * -1.0, x[..., :half]), -1)  # written so, OpenVINO runs it in one operation


class _Rotation(torch.autograd.Function):
    """x cos + sign rotate_half(x) sin, with a pass over memory for each operation; its gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: int) -> Tensor:
        ctx.arguments = cos, sin, interleaved, sign
        half = x.shape[-1] // 2
        a, b = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
        turned = x * cos
        turned[..., a].addcmul_(x[..., b], sin[..., a], value=-sign)
        turned[..., b].addcmul_(x[..., a], sin[..., b], value=sign)
        return turned.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *angles, sign = ctx.arguments
        return _Rotation.apply(gradients[0], *angles, -sign), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Rotation.apply(tangents[0], *ctx.arguments)
