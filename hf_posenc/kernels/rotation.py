"""Rotation of queries and keys with few passes over memory on a CPU, and few launches on a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..model.scheme_math import have_fixed_shapes
from .switch import is_enabled


def rotate(
    plain: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """`plain(q, k, cos, sin, interleaved)`: q and k (..., H, d) turned by cos and sin, float32 (..., 1, r).

    `plain` runs where the angles need a gradient, in a graph and in a function transform.
    """
    if not is_enabled() or have_fixed_shapes(q, k, sin) or cos.requires_grad or sin.requires_grad:
        return plain(q, k, cos, sin, interleaved)
    if q.is_cuda and q.dtype == k.dtype:  # half as many launches
        turned_q, turned_k = _rotate_one(torch.stack((q, k)), cos, sin, interleaved).unbind()
        return turned_q, turned_k
    return _rotate_one(q, cos, sin, interleaved), _rotate_one(k, cos, sin, interleaved)  # each while it is in the cache


def _rotate_one(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = cos.shape[-1]
    if width == x.shape[-1]:
        return _Rotation.apply(x, cos, sin, interleaved, 1)
    return torch.cat((_Rotation.apply(x[..., :width], cos, sin, interleaved, 1), x[..., width:]), -1)


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    """The first and the second entry of each pair: (..., r) -> two views (..., r/2)."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, -1)


class _Rotation(torch.autograd.Function):
    """(a, b) -> (a cos - sign b sin, b cos + sign a sin) of each pair; its gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: int) -> Tensor:
        ctx.arguments = cos, sin, interleaved, sign
        turned = x * cos
        (a, b), (turned_a, turned_b), (sin, _) = (_pairs(t, interleaved) for t in (x, turned, sin))
        turned_a.addcmul_(b, sin, value=-sign)
        turned_b.addcmul_(a, sin, value=sign)
        return turned if turned.dtype == x.dtype else turned.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *angles, sign = ctx.arguments
        return _Rotation.apply(gradients[0], *angles, -sign), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """The rotation of the tangent: it is linear in x."""
        return _Rotation.apply(tangents[0], *ctx.arguments)
