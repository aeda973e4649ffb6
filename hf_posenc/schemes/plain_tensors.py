"""Schemes outside a PosEnc model: on the embeddings, or the queries and keys, of an encoder of your own."""

import torch
from torch import Tensor

from hf_posenc.model.position_base import PositionScheme, check_length
from hf_posenc.model.position_math import positive, require, whole
from hf_posenc.model.position_rope import RotaryPosition
from hf_posenc.model.position_vectors import sinusoid
from hf_posenc.model.unpadding import Tokens


def add_positions(
    scheme: PositionScheme, x: Tensor, positions: Tensor | None = None, *, start: int = 0, batch_first: bool = True
) -> Tensor:
    """What a scheme makes of embeddings: x_i + e(p_i) for those that add a vector.

    Args:
        scheme: e.g. `SinusoidalPosition(hidden_size=512)`; its dropout acts in training mode.
        x: embeddings (B, S, D) or (S, D).
        positions: int64, (S,) or the shape of x without D. None: start, start + 1, ...
        start: first position, when `positions` isn't given.
        batch_first: False: a batch is (S, B, D), and its positions (S, B).

    Returns:
        The shape and dtype of x.

    Raises:
        ValueError: positions don't fit x, or one is past the scheme's `max_length`, or negative.
    """
    sequence_first = x.dim() == 3 and not batch_first
    if sequence_first:
        x = x.transpose(0, 1)
        positions = positions.transpose(0, 1) if positions is not None and positions.dim() == 2 else positions
    tokens = _tokens(scheme, x.shape[:-1], positions, start, x)
    added = scheme.embed(x, tokens)
    return added.transpose(0, 1) if sequence_first else added


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
        ValueError: d is odd, positions don't fit x, or the scheme changes the width of heads.
    """
    if scheme is None:
        theta = {"rope_theta": rope_theta}
        scheme = RotaryPosition(head_dim=x.shape[-1], rope_parameters=theta, interleaved=interleaved)
    elif getattr(scheme, "head_dim", x.shape[-1]) != x.shape[-1]:
        raise ValueError(
            f"x has heads of {x.shape[-1]} entries, this scheme has head_dim={scheme.head_dim}. Build it with the "
            "head_dim of your attention."
        )
    batched = x if x.dim() == 4 else x.view((1,) * (4 - x.dim()) + x.shape)
    shape = (x.shape[0], x.shape[-2]) if x.dim() == 4 else x.shape[-2:-1]
    tokens = _tokens(scheme, shape, positions, start, x)
    if tokens.positions.dim() == 1:
        tokens = Tokens.from_positions(tokens.positions.unsqueeze(0))
    by_token = batched.transpose(1, 2)
    turned, _ = scheme.rotate(by_token, by_token, scheme.rotary(tokens), 0)
    if turned.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{scheme.name!r} makes {turned.shape[-1]} entries of x's {x.shape[-1]}, others of queries than of keys. "
            "Use its `rotate`, which takes both."
        )
    return turned.transpose(1, 2).view(x.shape)


def _tokens(scheme: PositionScheme, shape: tuple[int, ...], positions: Tensor | None, start: int, x: Tensor) -> Tokens:
    """Tokens at the given positions, or at start, start + 1, ..., of this shape: (S,) or (B, S)."""
    if positions is None:
        positions = torch.arange(start, start + shape[-1], device=x.device)
    fitting = {tuple(shape), tuple(shape[-1:])} | ({(1, shape[-1])} if len(shape) > 1 else set())
    if tuple(positions.shape) not in fitting:
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} don't fit x of shape {tuple(x.shape)}. Give ({shape[-1]},)"
            + (f" or {tuple(shape)}." if len(shape) > 1 else ".")
        )
    if positions.numel():
        check_length(scheme, *(int(value) for value in positions.aminmax()))
    return Tokens.from_positions(positions.expand(shape))


def sinusoidal_table(positions: Tensor, dim: int, base: float = 10000.0) -> Tensor:
    """The sinusoid of Vaswani et al. 2017 at any positions: (...) -> float32 (..., dim).

    PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(p / base^(2i/dim)); an odd `dim` ends on a sine.

    Raises:
        ValueError: `dim` or `base` isn't positive.
    """
    require("dim", dim, whole())
    return sinusoid(positions, dim, require("base", base, positive("; 10000 is usual")))
