"""What a first pass over a stream finds: its labels, and rows to validate on."""

import heapq
import itertools
import zlib
from typing import Any

from ..errors import UserError
from .cells import is_missing, row_name
from .columns import Columns
from .label_values import read_values
from .options import DataArguments
from .validation_split import in_shares

MOST_LABELS = 10_000


class DistinctLabels:
    """The labels of a column, each once.

    Args:
        data: the options.
        column: its name.
        feature: its type.
        is_csv: whether its cells are strings that may mean numbers.
    """

    def __init__(self, data: DataArguments, column: str, feature: Any, is_csv: bool) -> None:
        self.data = data
        self.column = column
        self.feature = feature
        self.is_csv = is_csv
        self._single: dict[Any, None] = {}
        self._listed: dict[Any, None] = {}
        self._numbers = False

    def add(self, cells: list[Any], first_row: int) -> None:
        """Adds the labels of the next rows.

        Raises:
            UserError: a label is missing, or there are too many.
        """
        delimiter = self.data.label_delimiter
        for row, cell in enumerate(cells, start=first_row):
            if delimiter is not None and (cell is None or isinstance(cell, str)):
                self._listed.update(
                    dict.fromkeys(part.strip() for part in (cell or "").split(delimiter) if part.strip())
                )
            elif is_missing(cell):
                raise UserError(
                    f"Missing label in the train data: {row_name(row, self.is_csv)} has none in column "
                    f"{self.column!r}. Fill it in, or leave such rows out with --skip_missing."
                )
            elif isinstance(cell, list | tuple):
                self._listed.update(dict.fromkeys(cell))
            elif not self._numbers:
                self._single[cell] = None
        if len(self._single) + len(self._listed) > MOST_LABELS and not self._numbers:
            self._numbers = self._are_numbers()
            if not self._numbers:
                raise UserError(
                    f"Column {self.column!r} has more than {MOST_LABELS} different labels. Name the right column with "
                    "--label_column_name, or predict a number with --task regression."
                )

    def _are_numbers(self) -> bool:
        if self._listed or self.data.task == "classification":
            return False
        found = read_values(list(self._single), self.feature, self.is_csv, self.column, "train", None, None)
        return found.kind == "number"

    def values(self) -> list[Any]:
        """Cells of the column that hold each label once."""
        listed = list(self._listed) if self.data.label_delimiter is not None else [[e] for e in self._listed]
        return [*self._single, *listed]


class HeldOut:
    """Chooses the rows of a stream that are set aside for validation.

    The choice depends on the text alone: a repeated text is set aside with all its rows, and
    validated on once.

    Args:
        columns: where text and label are.
        most: how many texts.
    """

    def __init__(self, columns: Columns, most: int) -> None:
        self.columns = columns
        self.most = most
        self.taken = 0
        """Rows that have been set aside."""
        self._chosen: set[int] = set()
        self._least: list[tuple[int, int, dict[str, Any]]] = []
        """A heap of the texts with the smallest hashes: -hash, row, cells."""
        self._repeats: dict[int, int] = {}
        """In how many rows each of these texts is."""

    def add(self, batch: dict[str, list[Any]], first_row: int) -> None:
        """Adds the next rows."""
        for row, mark in enumerate(self._marks(batch)):
            if mark in self._repeats:
                self._repeats[mark] += 1
            elif len(self._least) < self.most or mark < -self._least[0][0]:
                if len(self._least) == self.most:
                    del self._repeats[-heapq.heappop(self._least)[0]]
                cells = {name: values[row] for name, values in batch.items()}
                heapq.heappush(self._least, (-mark, first_row + row, cells))
                self._repeats[mark] = 1

    def choose(self, count: int, percentage: int) -> list[dict[str, Any]]:
        """Sets texts aside, stratified by label, and returns a row of each.

        Args:
            count: of all rows.
            percentage: of them to set aside.

        Raises:
            UserError: none can be set aside.
        """
        if count < 2:
            raise UserError("There is one training example and no validation data. Give --validation_file.")
        texts = sorted(((-mark, row, cells) for mark, row, cells in self._least), key=lambda entry: entry[:2])
        groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for mark, _, cells in texts:
            groups.setdefault(str(cells[self.columns.label]), []).append((mark, cells))
        if 2 * len(groups) > len(texts):  # numbers
            groups = {"": [(mark, cells) for mark, _, cells in texts]}
        wanted = max(1, min(2, len(groups)), count * percentage // 100)
        # If these are all texts of the stream, each label keeps one to train on.
        keep = int(sum(self._repeats.values()) == count)
        left = [len(group) for group in groups.values()]
        waiting = [iter(group) for group in groups.values()]
        chosen = []
        for number in in_shares(tuple(left)):
            mark, cells = next(waiting[number])
            if self.taken + self._repeats[mark] <= wanted and left[number] > keep:
                self.taken += self._repeats[mark]
                left[number] -= 1
                self._chosen.add(mark)
                chosen.append(cells)
        if not chosen:
            raise UserError(
                f"None of the texts of the {count} training examples can be set aside for validation: each stands in "
                "too many of them, or is the only one of its label. Give --validation_file, or a greater "
                "--validation_split_percentage."
            )
        return chosen

    def left(self, batch: dict[str, list[Any]]) -> list[bool]:
        """Which rows of a batch remain to train on."""
        return [mark not in self._chosen for mark in self._marks(batch)]

    def _marks(self, batch: dict[str, list[Any]]) -> list[int]:
        """A hash of the text of each row."""
        first, second = self.columns.texts(batch)
        pairs = zip(first, second or itertools.repeat(""), strict=False)
        return [zlib.crc32(f"{one}\x1f{other}".encode(errors="surrogatepass")) for one, other in pairs]
