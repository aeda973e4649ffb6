"""Calls a scheme's hooks outside an encoder: for one text, at positions 0, 1, 2, ..."""

import torch
from torch import Tensor

from ..model.scheme_base import PositionScheme
from ..model.unpadding import Tokens


def one_text(length: int, hidden_states: Tensor | None = None) -> Tokens:
    """A text of `length` equal tokens; `hidden_states` (n, S, D) of n such texts, which have positions (1, S)."""
    positions = torch.arange(length).unsqueeze(0)
    return Tokens.from_positions(positions, torch.zeros_like(positions), hidden_states)


def rotated_units(scheme: PositionScheme, heads: int, head_dim: int, length: int, layer: int) -> Tensor:
    """The rotated unit vectors, R_h(p) e_a: (H, S, d, d), a row for each a; H is 1 where all heads are turned alike.

    Without what a scheme appends to every query and key.
    """
    state = scheme.rotary(one_text(length))
    zero = torch.zeros(1, length, heads, head_dim)
    nothing = scheme.rotate(zero, zero, state, layer)[0][0].float()
    rows = []
    for unit in torch.eye(head_dim):
        q = unit.expand(1, length, heads, head_dim)
        rows.append(scheme.rotate(q, q, state, layer)[0][0].float() - nothing)
    turned = torch.stack(rows, 2).transpose(0, 1)
    if not turned[..., head_dim:].any():
        turned = turned[..., :head_dim]
    return turned[:1] if bool(torch.isclose(turned, turned[:1], rtol=1e-5, atol=1e-7).all()) else turned
