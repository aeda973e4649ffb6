"""The interface of training data: `Source`, implemented in memory and as a stream."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import UserError
from .cells import is_csv_data, row_number
from .columns import Columns, require_columns
from .encoding import encode
from .labels import Labels, number_labels
from .options import DataArguments
from .rows import choose_rows, scores_test

if TYPE_CHECKING:
    from ..training.arguments import RunArguments


logger = logging.get_logger(__name__)


class Source(ABC):
    """The data of a run. Validation and test rows are always in memory.

    Call `number_labels` first, if there are labels, then `choose_rows`, then the rest.

    Args:
        splits: those that the run uses, in memory; of a stream `train` is its first rows.
        columns: where text and labels are.
        data: the options.
        training: the options.
    """

    seen_batches: int | None = None
    """How many of the last batches the `train_...` metrics cover. None: all."""

    def __init__(self, splits: DatasetDict, columns: Columns, data: DataArguments, training: "RunArguments") -> None:
        self.splits = splits
        self.columns = columns
        self.data = data
        self.training = training
        self.labels: Labels | None = None
        self.numbers: dict[str, list[Any] | None] = {}
        """The labels of each split's rows in the model's form; None for a split without labels."""
        self.rows: dict[str, list[int]] = {}
        """Indices of the splits' rows in the data."""

    # ---- what differs -----------------------------------------------------------------------------------------------

    @abstractmethod
    def number_labels(self, trained: Sequence[str] | None, problem_type: str | None) -> Labels:
        """Decides the task and numbers the labels; see `labels.number_labels`.

        Args:
            trained: the label names of a trained model.
            problem_type: its task.
        """

    @abstractmethod
    def choose_rows(self) -> None:
        """Selects the rows to use, and sets validation rows aside if there are none."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """The training texts, for a tokenizer to be trained on."""

    @abstractmethod
    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Mapping[str, Any]:
        """The splits as token ids and, where there are labels, `labels`; a stream's training split has no end."""

    @abstractmethod
    def training_examples(self, most: int) -> tuple[list[list[str]], list[Any]]:
        """Texts (see `texts_of`) and labels of the training rows, of a stream at most `most`."""

    # ---- what is the same -------------------------------------------------------------------------------------------

    def examples(self, split: str) -> tuple[list[list[str]], list[Any]]:
        """Texts (see `texts_of`) and labels of a split that has labels."""
        numbers = self.numbers[split]
        assert numbers is not None
        return self.texts_of(self.splits[split]), numbers

    def rows_in_file(self, split: str) -> list[int]:
        """The number of each row of a split in its file, where the header of a csv is row 1."""
        return [row_number(row, is_csv_data(self.splits[split])) for row in self.rows[split]]

    def texts_of(self, rows: Dataset) -> list[list[str]]:
        """The texts of rows; for pairs the first texts and the second texts."""
        first, second = self.columns.texts(cast(dict[str, list[Any]], rows[:]))
        return [first] if second is None else [first, second]

    def _number(
        self,
        splits: Mapping[str, Dataset],
        given: Sequence[str] | None,
        problem_type: str | None,
        sampled: bool = False,
    ) -> Labels:
        self.labels, self.numbers = number_labels(
            splits,
            self.columns,
            task=self.data.task,
            delimiter=self.columns.label_delimiter,
            given=given,
            given_problem_type=problem_type,
            skip_missing=self.data.skip_missing,
            sampled=sampled,
        )
        if scores_test(self.training) and "test" in splits:
            self._score_test()
        return self.labels

    def _score_test(self) -> None:
        """Scores the test split if it has labels."""
        labelled = self.numbers["test"] is not None
        if set(self.splits) == {"test"} and not labelled:
            require_columns(self.splits["test"], [self.columns.label], "--label_column_name", "test")
            raise UserError(
                f"The test data has no labels in column {self.columns.label!r}. Name it with --label_column_name."
            )
        if not labelled and not self.training.do_predict:
            del self.splits["test"]
            logger.warning("The test split has no labels, so it isn't scored. --do_predict true predicts them.")
        self.training.do_predict = self.training.do_predict or labelled

    def _choose(self, splits: Mapping[str, Dataset], set_aside: bool = False) -> None:
        """Selects the rows to use of these splits; rows set aside come from the training split."""
        self.rows = choose_rows(splits, self.columns, self.data, self.labels, self.numbers, set_aside=set_aside)
        kept: dict[str, Dataset] = {}
        numbers: dict[str, list[Any] | None] = {}
        for split, rows in self.rows.items():
            source = split if split in splits else "train"
            given = self.numbers.get(source)
            kept[split] = splits[source].select(rows)
            numbers[split] = None if given is None else [given[row] for row in rows]
        self.splits.update(kept)
        self.numbers.update(numbers)

    def _encode(self, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
        return encode(
            self.splits[split],
            self.numbers.get(split),
            tokenizer,
            self.columns,
            max_length,
            "" if self.labels is None else self.labels.problem_type,
            split=split,
            num_proc=self.data.preprocessing_num_workers,
            overwrite_cache=self.data.overwrite_cache,
        )
