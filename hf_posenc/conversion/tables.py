"""Keeps the scheme: copies its weights, and gives a table of positions another length."""

from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.position_base import PositionScheme

EXTENSIONS = ("tile", "interpolate")


def extended_table(table: Tensor, length: int, how: str) -> Tensor:
    """A table of positions for another number of them: (P, D) -> (length, D).

    Fewer: the first ones. More, by `how`: `tile` repeats the rows from 1 on (row 0 is [CLS]'s alone), so that texts of
    up to P tokens keep their outputs; `interpolate` stretches the rows, so that every row but the first changes.
    """
    old = len(table)
    if length <= old:
        return table[:length].clone()
    places = torch.arange(length)
    if how == "tile":
        return table[torch.where(places < old, places, 1 + (places - 1) % max(old - 1, 1))]
    at = places.double() * (old - 1) / (length - 1)
    low = at.floor().long().clamp(max=old - 2)
    share = (at - low).to(table.dtype).unsqueeze(-1)
    return table[low] * (1 - share) + table[low + 1] * share


def has_table(part: PositionScheme) -> bool:
    """Whether some weight has a row for each position."""
    return part.max_length is not None and any(
        value.shape[:1] == (part.max_length,) for value in part.state_dict().values()
    )


def copy_part(name: str, old: PositionScheme, new: PositionScheme, extension: str) -> list[dict[str, Any]]:
    """Copies the weights of the scheme, tables with another number of positions."""
    state, carried = {}, []
    before, after, expected = old.max_length or 0, new.max_length or 0, new.state_dict()
    for key, value in old.state_dict().items():
        sizes = (len(value), len(expected[key])) if value.dim() and key in expected else None
        if key in expected and expected[key].shape == value.shape:
            state[key] = value
        elif before and sizes == (before, after):
            state[key] = extended_table(value, after, extension)
            how = extension if after > before else "the first ones"
            carried.append({"scheme": name, "what": f"{before} positions -> {after}", "how": how})
        elif before and sizes == (2 * before - 1, 2 * after - 1):
            # A vector for each distance: farther ones get the farthest.
            state[key] = value[torch.arange(-(after - 1), after).clamp(-(before - 1), before - 1) + before - 1]
            carried.append({"scheme": name, "what": f"{key}: distances past {before - 1} are as {before - 1}"})
        else:
            raise UserError(
                f"The source's {name!r} has {key!r} of shape {tuple(value.shape)}, which the new arguments don't fit. "
                "Keep its position_embedding_kwargs."
            )
    new.load_state_dict(state)
    return carried
