"""Sets a part of the training rows aside for validation, stratified by label: `--validation_split_percentage`."""

import heapq
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from .labels import Labels


def check_percentage(percentage: int) -> None:
    """Raises a UserError if `validation_split_percentage` isn't 1 to 99."""
    if not 1 <= percentage <= 99:
        raise UserError(f"--validation_split_percentage {percentage} is out of range. Give 1 to 99.")


def hold_out(groups: Sequence[Hashable], percentage: int) -> tuple[list[int], list[int]]:
    """Splits rows into training and validation rows, the same for every seed.

    Stratified by group (label). One row of each group stays to train on. As far as the
    validation rows suffice, each group has one of them; at least two groups do, if two have more than one row.

    Args:
        groups: of each row.
        percentage: of the rows to validate on.

    Returns:
        The numbers of the rows to train on and of those to validate on.

    Raises:
        UserError: the percentage isn't 1 to 99, or no row can be spared.
    """
    check_percentage(percentage)
    rows = np.random.default_rng(0).permutation(len(groups)).tolist()
    members: dict[Hashable, list[int]] = {}
    for row in rows:
        members.setdefault(groups[row], []).append(row)
    spare = [group for group in members.values() if len(group) > 1]
    if not spare:
        what = "one training example" if len(groups) == 1 else f"one training example of each of {len(groups)} labels"
        raise UserError(
            f"There is {what} and no validation data. Give --validation_file, train without one (--do_eval false), "
            "or, where labels are numbers to be predicted, give --task regression."
        )
    least = min(2, len(spare)) if len(members) > 1 else min(2, len(groups) // 4)
    wanted = min(max(-(-len(groups) * percentage // 100), least, 1), sum(len(group) - 1 for group in spare))
    taken = Counter(itertools.islice(in_shares([len(group) - 1 for group in spare]), wanted))
    held = {row for number, group in enumerate(spare) for row in group[: taken[number]]}
    return [row for row in rows if row not in held], [row for row in rows if row in held]


def in_shares(sizes: Sequence[int]) -> Iterator[int]:
    """Yields groups in proportion to their sizes: each once, largest first, then the one furthest behind its share.

    Sainte-Lague's method: the shares are near after any number of turns.
    """
    turns: list[tuple[int, float, int]] = [(0, -size, number) for number, size in enumerate(sizes) if size]
    heapq.heapify(turns)
    taken = [0] * len(sizes)
    while turns:
        number = heapq.heappop(turns)[2]
        yield number
        taken[number] += 1
        if taken[number] < sizes[number]:
            heapq.heappush(turns, (1, -sizes[number] / (2 * taken[number] + 1), number))


def groups_of(labels: Labels | None, numbers: Sequence[Any] | None, rows: Sequence[int]) -> list[Hashable]:
    """The group of each row to stratify by: its label, or the rarest of several."""
    if labels is None or numbers is None or labels.problem_type == "regression":
        return [None] * len(rows)
    if labels.problem_type == "single_label_classification":
        return [numbers[row] for row in rows]
    counts = np.sum([numbers[row] for row in rows], axis=0)
    by_count = sorted(range(len(labels.names)), key=lambda number: (counts[number], labels.names[number]))
    return [next((number for number in by_count if numbers[row][number]), None) for row in rows]
