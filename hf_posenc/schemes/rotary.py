"""Rotations outside a PosEnc model: on the queries and keys of an encoder of your own."""

import torch
from torch import Tensor

from ..model.position_rope import RotaryPosition
from ..model.scheme_base import PositionScheme, tokens_at


def apply_rotary(
    x: Tensor,
    positions: Tensor | None = None,
    *,
    start: int = 0,
    rope_theta: float = 10000.0,
    interleaved: bool = False,
    scheme: PositionScheme | None = None,
) -> Tensor:
    """Rotates a tensor by its positions: the whole of RoPE for those who have their own attention.

    Pair i of x is turned by the angle p / rope_theta^(2i/d).

    Args:
        x: queries or keys (S, d), (H, S, d) or (B, H, S, d).
        positions: (S,), or (B, S) for a batched x. None: start, start + 1, ...
        start: first position, when `positions` isn't given.
        rope_theta: base of the wavelengths.
        interleaved: see `RotaryPosition`.
        scheme: one that rotates, built for heads of d entries, in place of these two.

    Returns:
        The shape and dtype of x; computed in float32.

    Raises:
        ValueError: d is odd, positions don't fit x, or the scheme rotates nothing or changes the width of heads.
    """
    if scheme is None:
        theta = {"rope_theta": rope_theta}
        scheme = RotaryPosition(head_dim=x.shape[-1], rope_parameters=theta, interleaved=interleaved)
    elif not scheme.uses("rotate"):
        raise ValueError(f"{type(scheme).__name__} rotates nothing. Call one that adds to embeddings, scheme(x).")
    elif getattr(scheme, "head_dim", x.shape[-1]) != x.shape[-1]:
        raise ValueError(
            f"x has heads of {x.shape[-1]} entries, this scheme has head_dim={scheme.head_dim}. Build it with the "
            "head_dim of your attention."
        )
    if positions is None:
        positions = torch.arange(start, start + x.shape[-2], device=x.device)
    batched = x if x.dim() == 4 else x.view((1,) * (4 - x.dim()) + x.shape)
    tokens = tokens_at(scheme, (batched.shape[0], batched.shape[2]), positions, x.device)
    by_token = batched.transpose(1, 2)
    turned, _ = scheme.rotate(by_token, by_token, scheme.rotary(tokens), 0)
    if turned.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{scheme.name!r} makes {turned.shape[-1]} entries of x's {x.shape[-1]}, others of queries than of keys. "
            "Use its `rotate`, which takes both."
        )
    return turned.transpose(1, 2).view(x.shape)
