"""Calls a scheme's hooks outside an encoder: for one text, at positions 0, 1, 2, ..."""

from collections.abc import Callable

import torch
from torch import Tensor

from hf_posenc.model.position_base import PositionScheme


def grid_of(length: int) -> tuple[Tensor, Tensor]:
    """Positions of one text, (1, S), and which of its tokens is the first."""
    positions = torch.arange(length).unsqueeze(0)
    return positions, positions == 0


def one_text(positions: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The extras that hooks may name, for positions (1, S): one text of equal tokens."""
    return {
        "input_ids": lambda: torch.zeros_like(positions),
        "sequence": lambda: torch.zeros_like(positions),
        "lengths": lambda: torch.full_like(positions, positions.shape[-1]),
    }


def rotated_units(scheme: PositionScheme, heads: int, head_dim: int, length: int, layer: int) -> Tensor:
    """The rotated unit vectors, R_h(p) e_a: (H, S, d, d), a row for each a; H is 1 where all heads are turned alike."""
    positions = torch.arange(length).unsqueeze(0)
    state = scheme.ask("rotary", positions, **one_text(positions))
    rows = []
    for unit in torch.eye(head_dim):
        q = unit.expand(1, length, heads, head_dim)
        rows.append((scheme.rotate(q, q, state, layer) or (q, q))[0][0].float())
    turned = torch.stack(rows, 2).transpose(0, 1)
    return turned[:1] if bool(torch.isclose(turned, turned[:1], rtol=1e-5, atol=1e-7).all()) else turned
