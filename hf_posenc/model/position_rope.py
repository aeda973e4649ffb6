"""`rope`: rotary position embedding, queries and keys turned by an angle that grows with the position."""

from typing import Any

import torch
from torch import Tensor

from .position_base import (
    PositionScheme,
    inverse_frequencies,
    per_distinct_position,
    plain_positions,
    require_positive,
    wide,
)

ROPE_TYPES = ("default",)


def complete_rope_parameters(given: dict[str, Any] | None, rope_theta: float = 10000.0) -> dict[str, Any]:
    """`rope_parameters` with its defaults filled in, checked.

    Raises:
        ValueError: an unknown key or `rope_type`, or a number out of range.
    """
    parameters = {"rope_type": "default", "rope_theta": rope_theta, **(given or {})}
    known = ("rope_type", "rope_theta", "partial_rotary_factor")
    for key in parameters:
        if key not in known:
            raise ValueError(f"rope_parameters has no {key!r}. It takes {', '.join(known)}.")
    if parameters["rope_type"] not in ROPE_TYPES:
        raise ValueError(
            f"rope_parameters: rope_type={parameters['rope_type']!r} is unknown. Choose one of {', '.join(ROPE_TYPES)}."
        )
    require_positive("rope_parameters: rope_theta", parameters["rope_theta"], "; 10000 is usual")
    factor = parameters.get("partial_rotary_factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 1:
        raise ValueError(f"rope_parameters: partial_rotary_factor={factor!r} is out of range. It lies in (0, 1].")
    return parameters


def apply_rotary(
    x: Tensor,
    positions: Tensor | None = None,
    *,
    start: int = 0,
    rope_theta: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """Rotates a tensor by its positions: the whole of RoPE for those who have their own attention.

    Pair i of x is turned by the angle p / rope_theta^(2i/d).

    Args:
        x: queries or keys (S, d), (H, S, d) or (B, H, S, d).
        positions: (S,), or (B, S) for a batched x. None: start, start + 1, ...
        start: first position, when `positions` isn't given.
        rope_theta: base of the wavelengths.
        interleaved: see `RotaryPosition`.

    Returns:
        The shape and dtype of x; computed in float32.

    Raises:
        ValueError: d is odd, or positions don't fit x.
    """
    scheme = RotaryPosition(head_dim=x.shape[-1], rope_theta=rope_theta, interleaved=interleaved)
    positions = plain_positions(scheme, x.shape[-2], positions, start, x.device)
    rows_fit = positions.dim() == 1 or (x.dim() == 4 and positions.dim() == 2 and positions.shape[0] in (1, x.shape[0]))
    if not rows_fit or positions.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} don't fit x of shape {tuple(x.shape)}. Give (S,) = "
            f"({x.shape[-2]},), or (B, S) for x of shape (B, H, S, d)."
        )
    if positions.dim() == 2 and x.dim() == 4:
        positions = positions[:, None]
    cos, sin = scheme.angles(positions)
    return scheme.turn(x, cos, sin)


class RotaryPosition(PositionScheme):
    """Rotary position embedding: q'_m = R(m) q_m, k'_n = R(n) k_n, so that q'_m . k'_n depends on n - m alone.

    R(p) turns pair i of a head's d entries by p theta^(-2i/d):
    (a, b) -> (a cos - b sin, a sin + b cos). Su et al. 2021 (RoFormer), arXiv 2104.09864.

    Pairs are (x_i, x_{i+d/2}) (*half-split*: GPT-NeoX, Llama, ModernBERT), or with `interleaved=True`
    (x_{2i}, x_{2i+1}) (RoFormer). The two aren't interchangeable between checkpoints.

    Costs two multiply-adds per entry of q and k in each layer; no weights; any length, though quality past the trained
    length falls. Angles, their sines and the rotation are float32 whatever the model's dtype.

    Args:
        head_dim (int): d.
        rope_parameters (dict, optional): as in transformers v5: `rope_type` ('default'), `rope_theta`,
            `partial_rotary_factor` (the share of each head that is turned). Filled from `config.rope_parameters`.
        rope_theta (float): theta, when `rope_parameters` doesn't say.
        interleaved (bool): which entries form a pair.

    Raises:
        ValueError: an argument is out of range, or an odd number of entries would be turned: leaving the last one
            unpaired would break the relative property.
    """

    name = "rope"
    shift_invariant = True
    complete_rope_parameters = staticmethod(complete_rope_parameters)

    def __init__(
        self,
        *,
        head_dim: int,
        rope_parameters: dict[str, Any] | None = None,
        rope_theta: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.rope_parameters = complete_rope_parameters(rope_parameters, rope_theta)
        self.rope_theta = float(self.rope_parameters["rope_theta"])
        factor = self.rope_parameters.get("partial_rotary_factor", 1.0)
        self.rotary_dim = int(head_dim * factor)
        if self.rotary_dim % 2 or self.rotary_dim < 2:
            raise ValueError(
                f"RoPE turns pairs, but {self.rotary_dim} of head_dim={head_dim} entries would be turned "
                f"(partial_rotary_factor={factor}), which is not a positive even number. Change hidden_size or "
                "num_attention_heads, or the factor."
            )
        self.head_dim = head_dim
        self.interleaved = interleaved

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each pair's angle: positions (...) -> two float32 (..., rotary_dim)."""

        def cos_sin(p: Tensor) -> Tensor:
            frequencies = inverse_frequencies(self.rotary_dim, self.rope_theta, p.device)
            angle = p.to(torch.float32).unsqueeze(-1) * frequencies
            angle = angle.repeat_interleave(2, -1) if self.interleaved else torch.cat((angle, angle), -1)
            return torch.cat((angle.cos(), angle.sin()), -1)

        cos, sin = per_distinct_position(cos_sin, positions).chunk(2, -1)
        return cos, sin

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates x (..., d) by angles that broadcast against it, in float32, and gives x's dtype back."""
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        precise = turned.to(wide(turned))
        if self.interleaved:
            partner = torch.stack((-precise[..., 1::2], precise[..., ::2]), -1).flatten(-2)
        else:
            first, second = precise.chunk(2, -1)
            partner = torch.cat((-second, first), -1)
        turned = (precise * cos + partner * sin).to(x.dtype)
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, with an axis for the heads: (...) -> two float32 (..., 1, rotary_dim)."""
        cos, sin = self.angles(positions)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated."""
        cos, sin = state
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def forward(
        self, q: Tensor, k: Tensor, positions: Tensor | None = None, *, start: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates plain queries and keys (S, d), (H, S, d) or (B, H, S, d): see `apply_rotary`.

        Raises:
            ValueError: the heads aren't `head_dim` wide, or positions don't fit.
        """
        if {q.shape[-1], k.shape[-1]} != {self.head_dim}:
            raise ValueError(
                f"q and k have heads of {q.shape[-1]} and {k.shape[-1]} entries, this scheme has "
                f"head_dim={self.head_dim}. Build it with the head_dim of your attention."
            )
        arguments: dict[str, Any] = {
            "positions": positions,
            "start": start,
            "rope_theta": self.rope_theta,
            "interleaved": self.interleaved,
        }
        if self.rotary_dim == self.head_dim:
            return apply_rotary(q, **arguments), apply_rotary(k, **arguments)
        size = self.rotary_dim
        return (
            torch.cat((apply_rotary(q[..., :size], **arguments), q[..., size:]), -1),
            torch.cat((apply_rotary(k[..., :size], **arguments), k[..., size:]), -1),
        )
