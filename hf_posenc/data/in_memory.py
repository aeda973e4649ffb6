"""The source whose training rows are in memory, or memory-mapped."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from .columns import Columns, find_columns
from .encoding import texts
from .labels import Labels
from .options import DataArguments
from .rows import wanted_splits
from .source import Source

if TYPE_CHECKING:
    from ..training.arguments import RunArguments


class InMemory(Source):
    """The splits of a run, all in memory.

    Args:
        found: the splits of the data.
        data: the options.
        training: the options.
        find: finds the columns of a split.

    Raises:
        UserError: a split or a column is missing.
    """

    def __init__(
        self,
        found: DatasetDict,
        data: DataArguments,
        training: "RunArguments",
        find: Callable[[Dataset, DataArguments], Columns] = find_columns,
    ) -> None:
        splits = wanted_splits(found, data, training)
        super().__init__(splits, find(next(iter(splits.values())), data), data, training)
        self._set_aside = training.do_eval and "validation" not in found

    def number_labels(self, trained: Sequence[str] | None, problem_type: str | None) -> Labels:
        """Numbers the labels of all training rows."""
        return self._number(self.splits, trained, problem_type)

    def choose_rows(self) -> None:
        """Selects rows of all splits; rows set aside are stratified by label."""
        self._choose(self.splits, self._set_aside)

    def texts(self) -> Iterator[str]:
        """All training texts."""
        yield from texts(self.splits["train"], self.columns)

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, Dataset]:
        """Tokenizes all splits."""
        return {split: self._encode(split, tokenizer, max_length) for split in self.splits}

    def training_examples(self, most: int) -> tuple[list[list[str]], list[Any]]:
        """All training rows."""
        return self.examples("train")
