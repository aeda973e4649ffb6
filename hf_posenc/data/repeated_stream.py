"""A stream as the Trainer takes it."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..errors import UserError


class RepeatedStream(torch.utils.data.IterableDataset):
    """Repeats a stream without an end, shuffled anew each pass. Runs end after `max_steps`, and resume exactly.

    Args:
        rows: called for each pass, gives its encoded rows in order.
        count: how many these are, if that's known.
        buffer: how many rows are drawn from; 1 keeps the order.
    """

    seed = 0
    """Of the order."""
    ended = False
    """The run is resumed after its last step: yield nothing, or the Trainer would take one more."""

    def __init__(self, rows: Callable[[], Iterator[dict[str, Any]]], count: int | None, buffer: int) -> None:
        self.rows, self.count, self.buffer = rows, count, buffer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.ended:
            return
        for number in itertools.count():
            empty = True
            for example in _shuffled(self.rows(), self.buffer, f"{self.seed} {number}"):
                empty = False
                yield example
            if empty:
                raise UserError("The train data has no rows to train on. Give more, or a --validation-file.")


def _shuffled(rows: Iterable[Any], size: int, seed: str) -> Iterator[Any]:
    """Draws from a buffer of so many rows; size 1 keeps the order."""
    if size <= 1:
        yield from rows
        return
    draw = random.Random(seed)
    waiting: list[Any] = []
    for row in rows:
        if len(waiting) < size:
            waiting.append(row)
            continue
        chosen = draw.randrange(size)
        yield waiting[chosen]
        waiting[chosen] = row
    draw.shuffle(waiting)
    yield from waiting
