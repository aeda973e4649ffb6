"""Which rows are validated on, equal texts on one side; repeated texts, and texts that two splits share."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ..errors import UserError


def mark_of(*texts: str) -> int:
    """A number of 64 bits for a text, or for a pair of texts; equal texts have equal marks."""
    joined = "\x1f".join(text.strip() for text in texts)
    return int.from_bytes(blake2b(joined.encode(errors="surrogatepass"), digest_size=8).digest())


def marks_of(first: Iterable[str], second: Iterable[str] | None = None) -> list[int]:
    """The mark of each text, or of each pair."""
    return [mark_of(text) for text in first] if second is None else list(map(mark_of, first, second))


def repeated(marks: Sequence[int], labels: Sequence[Any] | None) -> tuple[int, int]:
    """How many rows repeat an earlier text with its label, and how many texts stand there with different labels."""
    first: dict[int, int] = {}
    others: dict[int, set[str]] = {}  # of the few texts that come again
    copies = 0
    for row, mark in enumerate(marks):
        if (before := first.setdefault(mark, row)) == row or labels is None:
            copies += before != row
            continue
        kinds = others.setdefault(mark, {str(labels[before])})
        copies += str(labels[row]) in kinds
        kinds.add(str(labels[row]))
    return copies, sum(len(kinds) > 1 for kinds in others.values())


def check_percentage(percentage: int) -> None:
    """Raises a UserError if `validation_split_percentage` isn't 1 to 99."""
    if not 1 <= percentage <= 99:
        raise UserError(f"--validation-split-percentage {percentage} is out of range. Give 1 to 99.")


def groups_of(labels: Sequence[Any] | None, problem_type: str) -> Callable[[int], Hashable]:
    """The group of a row by its index, for `HoldOut.choose`: its label, or the numbers of all that it has."""
    if labels is None or problem_type == "regression":
        return lambda row: None
    if problem_type == "multi_label_classification":
        return lambda row: tuple(number for number, on in enumerate(labels[row]) if on)
    return lambda row: labels[row]


class HoldOut:
    """Chooses the texts to validate on, by the text alone: all rows of a text fall on one side, in every run.

    Args:
        most: how many rows are kept in memory at most. None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.count = 0
        """All rows."""
        self._texts: dict[int, list[Any]] = {}
        """The payloads of the rows of each text with a small mark."""
        self._marks: list[int] = []
        """A heap of these marks, the largest first, negative."""
        self._bound = 2**64
        """Texts from this mark on aren't kept."""
        self._kept = 0

    def add(self, mark: int, row: Any) -> None:
        """Adds the next row.

        Args:
            mark: of its text.
            row: what `choose` returns of it.
        """
        self.count += 1
        if mark >= self._bound:
            return
        if mark in self._texts:
            self._texts[mark].append(row)
        else:
            self._texts[mark] = [row]
            if self.most is not None:
                heapq.heappush(self._marks, -mark)
        self._kept += 1
        while self.most is not None and self._kept > self.most and len(self._marks) > 1:
            self._bound = -heapq.heappop(self._marks)
            self._kept -= len(self._texts.pop(self._bound))

    def rows(self) -> Iterator[Any]:
        """All rows that are kept."""
        return (row for rows in self._texts.values() for row in rows)

    def choose(self, percentage: int, group_of: Callable[[Any], Hashable] = lambda _: None) -> dict[int, list[Any]]:
        """The chosen texts by their marks, with their rows, each group in its share.

        Of each label one text stays to train on. As far as the rows suffice, each label has one to validate on; at
        least two labels do, if two have more than one text.

        Args:
            percentage: of all rows.
            group_of: the label of a row; a tuple of several counts as the rarest of them.

        Raises:
            UserError: the percentage isn't 1 to 99, or no text can be spared.
        """
        check_percentage(percentage)
        groups: dict[Hashable, list[int]] = defaultdict(list)
        labels = _strata({mark: group_of(self._texts[mark][0]) for mark in sorted(self._texts)})
        for mark, label in labels.items():
            groups[label].append(mark)
        # A label of which not all texts are here has others to train on.
        keep = 1 if self._kept == self.count else 0
        spare = [marks[: len(marks) - keep] for marks in groups.values() if len(marks) > keep]
        if not spare:
            what = (
                "one training text" if len(self._texts) == 1 else f"one training text of each of {len(groups)} labels"
            )
            of_rows = f" (in {self.count:,} rows)" if self.count > len(self._texts) else ""
            raise UserError(
                f"There is {what}{of_rows} and no validation data. Give --validation-file, train without one "
                "(--do-eval false), or, where labels are numbers to be predicted, give --task regression."
            )
        least = min(2, len(spare)) if len(groups) > 1 else min(2, self.count // 4)
        wanted = max(-(-self.count * percentage // 100), least, 1)
        chosen: dict[int, list[Any]] = {}
        waiting, rows = [iter(marks) for marks in spare], 0
        for number in in_shares([len(marks) for marks in spare]):
            if rows >= wanted:
                break
            mark = next(waiting[number])
            size = len(self._texts[mark])
            if rows + size <= wanted or (not chosen and size < self.count):
                chosen[mark] = self._texts[mark]
                rows += size
        return chosen


def _strata(labels: Mapping[int, Any]) -> dict[int, Hashable]:
    """The group of each text: its label, of several the rarest."""
    counts = Counter(item for label in labels.values() if isinstance(label, tuple) for item in label)
    return {
        mark: min(label, key=lambda item: (counts[item], item), default=None) if isinstance(label, tuple) else label
        for mark, label in labels.items()
    }


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
