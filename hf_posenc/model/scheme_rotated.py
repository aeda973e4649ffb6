"""`RotatedPosition`: the base of schemes that rotate queries and keys by angles of the position."""

from typing import Any

import torch
from torch import Tensor

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype, have_fixed_shapes, tracing
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

    def table(self, *positions: Tensor) -> Tensor:
        """The result of `cos_sin`, and in no graph sin with the signs of `rotate_half` too: float32 (..., 2 or 3 r)."""
        both = self.cos_sin(*positions)
        if tracing():
            return both
        sin = both.chunk(2, -1)[1]
        return torch.cat((both, sin * rotate_half(torch.ones_like(sin), self.interleaved)), -1)

    def rotary(self, tokens: Tokens) -> tuple[Any, ...]:
        """cos, sin and in no graph signed sin, with an axis for the heads: float32 (..., 1, r) each."""
        return split_table(tokens.map_positions(self.table))

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Any, ...], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated in float32, in their own dtype."""
        cos, sin, signed = (*state, None)[:3]
        if cos.shape[-1] > q.shape[-1]:
            raise ValueError(f"{type(self).__name__}.angles turns {cos.shape[-1]} of a head's {q.shape[-1]} entries.")
        if have_fixed_shapes(q, k, sin) or cos.requires_grad or sin.requires_grad:
            signed = None
        shared = cos, sin, signed, self.interleaved
        if q.is_cuda and q.dtype == k.dtype and signed is not None:  # half as many launches
            return tuple(rotate_one(torch.stack((q, k)), *shared).unbind())  # type: ignore[return-value]
        return rotate_one(q, *shared), rotate_one(k, *shared)  # on a CPU, each while it is in the cache


def split_table(table: Tensor) -> tuple[Tensor, ...]:
    """`RotatedPosition.table` -> the state of `rotate`, with an axis for the heads."""
    return table.unsqueeze(-2).chunk(2 if tracing() else 3, -1)


def rotate_one(x: Tensor, cos: Tensor, sin: Tensor, signed: Tensor | None, interleaved: bool) -> Tensor:
    """The first r entries of x (..., d) rotated by cos and sin (..., r), in x's dtype."""
    width = cos.shape[-1]
    pairs = x if width == x.shape[-1] else x[..., :width]
    if signed is not None:
        pairs = _Rotation.apply(pairs, cos, signed, interleaved, 1)
    else:  # what can be traced and transformed, and trains the angles
        precise = pairs.to(accumulation_dtype(pairs))
        pairs = (precise * cos + rotate_half(precise, interleaved) * sin).to(x.dtype)
    return pairs if width == x.shape[-1] else torch.cat((pairs, x[..., width:]), -1)


def rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """Each pair (a, b) turned by 90 degrees, (-b, a): (..., r) -> a new (..., r)."""
    if interleaved:
        return torch.stack((x[..., 1::2] * -1.0, x[..., ::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((x[..., half:] * -1.0, x[..., :half]), -1)  # written so, OpenVINO runs it in one operation


class _Rotation(torch.autograd.Function):
    """x cos + sign swapped(x) signed, with a pass over memory for each operation; its gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, signed: Tensor, interleaved: bool, sign: int) -> Tensor:
        ctx.arguments = cos, signed, interleaved, sign
        turned = x * cos
        if x.is_cuda:  # whose time is that of the host, with short texts
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else x.roll(x.shape[-1] // 2, -1)
            turned.addcmul_(swapped, signed, value=sign)
        else:
            half = x.shape[-1] // 2
            a, b = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
            turned[..., a].addcmul_(x[..., b], signed[..., a], value=sign)
            turned[..., b].addcmul_(x[..., a], signed[..., b], value=sign)
        return turned if turned.dtype == x.dtype else turned.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *angles, sign = ctx.arguments
        return _Rotation.apply(gradients[0], *angles, -sign), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Rotation.apply(tangents[0], *ctx.arguments)
