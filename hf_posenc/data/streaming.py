"""Training data that is read while training, `--streaming`: for data that doesn't fit into memory or on the disk.

What is held in memory doesn't grow with the training data: `shuffle_buffer_size` rows to draw from; a block of the
reader (10 MB of a .jsonl, 10,000 rows of a .csv, a row group of a .parquet); `SAMPLE` rows to look at; the distinct
labels, at most `MOST_LABELS`; the distinct words of `TOKENIZER_ROWS` rows where a tokenizer is trained; and the
validation and test examples, which `max_eval_samples` and `max_predict_samples` limit, at most `HELD_OUT` where they
are set aside from the training data.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, List
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import UserError
from .cells import is_csv_data, is_missing
from .columns import find_columns, require_columns
from .encoding import encode, texts, tokenize_texts
from .first_reading import DistinctLabels, HeldOut
from .label_values import read_values
from .labels import Labels, apply_labels
from .options import DataArguments
from .reading import files_of, read_rows, reading
from .rows import check_splits
from .source import Source
from .validation_split import check_percentage

if TYPE_CHECKING:
    from ..training.arguments import ClassificationTrainingArguments

logger = logging.get_logger(__name__)

SHUFFLE_BUFFER = 10_000
"""Default of `shuffle_buffer_size`."""
SAMPLE = 1000
"""How many first rows are kept to find columns and to warn of truncation."""
HELD_OUT = 10_000
"""Most rows to set aside for validation, unless `max_eval_samples` says so."""
TOKENIZER_ROWS = 100_000
"""How many first rows a tokenizer is trained on."""
_BATCH = 256
_WHAT, _WAY_OUT = "The training data", "Mend the data, or leave these rows out."


class Stream(Source):
    """The source whose training rows are read while training.

    If labels have to be found or validation rows set aside, it is read once before training.

    Args:
        found: the splits of the data.
        data: the options.
        training: the options.

    Raises:
        UserError: a split, a column or a label is missing, the data can't be read, or there are too many labels.
    """

    seen_batches = 1000

    def __init__(
        self, found: Mapping[str, IterableDataset], data: DataArguments, training: "ClassificationTrainingArguments"
    ) -> None:
        check_splits(found, training)
        rows = found["train"] if data.max_train_samples is None else found["train"].take(data.max_train_samples)
        sample = read_rows(rows, SAMPLE, "train")
        super().__init__(DatasetDict(train=sample), find_columns(sample, data), data, training)
        require_columns(sample, [self.columns.label], "--label_column_name")
        if data.skip_missing:
            logger.warning("Rows of the training data that have no label or no text are left out (--skip_missing).")
            rows = rows.filter(self._is_whole)
            self.splits["train"] = sample = read_rows(rows, SAMPLE, "train")
        self._rows = rows
        self._feature = sample.features[self.columns.label]
        self._is_csv = is_csv_data(sample)
        self._count: int | None = None
        """Rows to train on, if they have been counted."""
        self._distinct: list[Any] | None = None
        """Each label, once or twice, if they have been looked for."""
        self._held_out = HeldOut(self.columns, data.max_eval_samples or HELD_OUT)
        self._read_once(hold_out=training.do_eval and "validation" not in found)
        if training.do_eval and "validation" in found:
            self.splits["validation"] = read_rows(found["validation"], data.max_eval_samples, "validation")
        if "test" in found and (training.do_predict or training.score_test):
            self.splits["test"] = read_rows(found["test"], data.max_predict_samples, "test")

    def _is_whole(self, row: dict[str, Any]) -> bool:
        """Whether a row has a label and a text."""
        label = self.data.label_delimiter is not None or not is_missing(row[self.columns.label])
        return label and any(not is_missing(row[name]) for name in self.columns.text)

    def _read_once(self, hold_out: bool) -> None:
        wants_labels = self._given_labels() is None
        if not (wants_labels or hold_out):
            return
        check_percentage(self.data.validation_split_percentage)
        logger.warning(
            "Reading the training data once before training, to "
            + " and ".join(
                [*["find its labels (--class_names)"] * wants_labels, *["set validation data aside"] * hold_out]
            )
            + "."
        )
        labels = DistinctLabels(self.data, self.columns.label, self._feature, self._is_csv)
        names = [self.columns.label, *(self.columns.text if hold_out else ())]
        count = 0
        with reading(_WHAT, _WAY_OUT, files_of(self._rows)):
            for batch in self._rows.select_columns(names).iter(SAMPLE):
                labels.add(batch[self.columns.label], count)
                if hold_out:
                    self._held_out.add(batch, count)
                count += len(batch[self.columns.label])
        if wants_labels:
            # Twice each, for number_labels takes numbers as labels if each has several texts.
            distinct = labels.values()
            self._distinct = distinct * (2 if count >= 2 * len(distinct) else 1)
        if hold_out:
            features = self._rows.features and Features({name: self._rows.features[name] for name in names})
            chosen = self._held_out.choose(count, self.data.validation_split_percentage)
            held = Dataset.from_list(chosen, features=features)
            held.info.builder_name = self._rows.info.builder_name
            self.splits["validation"] = held
            logger.warning(
                f"There is no validation data: {len(held)} training examples were set aside for it "
                "(--validation_split_percentage, --max_eval_samples)."
            )
        self._count = count - self._held_out.taken

    def _training_rows(self) -> IterableDataset:
        """All rows except those set aside."""
        if not self._held_out.taken:
            return self._rows
        return self._rows.filter(self._held_out.left, batched=True, batch_size=_BATCH)

    def _given_labels(self) -> list[Any] | None:
        """The labels as cells of their column, if they are known without reading all data."""
        names = self._given_names()
        several = isinstance(self._feature, List)
        inner = self._feature.feature if isinstance(self._feature, List) else self._feature
        if names and (isinstance(inner, ClassLabel) or self.data.task == "regression"):
            why = "is a regression" if self.data.task == "regression" else f"has the labels {', '.join(inner.names)}"
            raise UserError(f"--class_names {self.data.class_names}: the data {why}. Leave it out.")
        if names:
            return [[name] for name in names] if several else names
        if isinstance(inner, ClassLabel) or self.data.task == "regression":
            return list(self.splits["train"][self.columns.label])
        return None

    def _given_names(self) -> list[str] | None:
        """`--class_names`, if they are given.

        Raises:
            UserError: there is none among them, or one twice.
        """
        if self.data.class_names is None:
            return None
        names = [name.strip() for name in self.data.class_names.split(",") if name.strip()]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"--class_names {self.data.class_names!r} names {'a label twice' if names else 'no label'}. Give each "
                "label of the data once: no,yes."
            )
        return names

    def number_labels(self, trained: Sequence[str] | None, problem_type: str | None) -> Labels:
        """Keeps the order of a trained model or of `--class_names`, if the labels are the same."""
        names = self._given_names()
        given = trained if trained and (not names or set(trained) == set(names)) else names or None
        return self._number({**self.splits, "train": self._labelled()}, given, problem_type, sampled=True)

    def _labelled(self) -> Dataset:
        """A data set with each of the labels."""
        cells = self._given_labels()
        feature = None if self.data.class_names else self._feature  # names, whatever type the data's labels are of
        features = None if feature is None else Features({self.columns.label: feature})
        found = Dataset.from_dict({self.columns.label: self._distinct if cells is None else cells}, features=features)
        if self._is_csv:
            found.info.builder_name = "csv"
        return found

    def choose_rows(self) -> None:
        """Selects rows of the splits in memory."""
        self._choose({split: rows for split, rows in self.splits.items() if split != "train"})

    def texts(self) -> Iterator[str]:
        """The first training texts."""
        return texts(self._training_rows().take(TOKENIZER_ROWS), self.columns, files_of(self._rows))

    def _numbered(self, cells: list[Any]) -> list[Any]:
        """Cells of the label column as numbers.

        Raises:
            UserError: one is missing or unknown.
        """
        missing = sum(map(is_missing, cells)) if self.data.label_delimiter is None else 0
        if missing:
            raise UserError(
                f"Missing label in the train data: {missing} of {len(cells)} rows in a row have none in column "
                f"{self.columns.label!r}. Fill it in, or leave such rows out with --skip_missing."
            )
        labels = self.labels
        assert labels is not None
        # The type is decided by all labels: whole numbers in a batch may be words.
        task = "regression" if labels.problem_type == "regression" else "classification"
        delimiter, name = self.data.label_delimiter, self.columns.label
        column = read_values(cells, self._feature, self._is_csv, name, "train", delimiter, task, from_file=False)
        return apply_labels(labels, labels.numbers(), column, "train", self.columns.label)

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> "dict[str, Dataset | Passes]":
        """Training rows are tokenized as they are read. Warns if the first rows are truncated.

        Raises:
            UserError: a label of the first rows isn't known.
        """
        assert self.labels is not None
        sample = self.splits["train"]
        scored = [split for split in self.splits if split != "train"]
        encoded: dict[str, Dataset | Passes] = {split: self._encode(split, tokenizer, max_length) for split in scored}

        def convert(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            found = tokenize_texts(batch, tokenizer, self.columns, max_length)
            return {**found, "labels": self._numbered(batch[self.columns.label])}

        encode(sample, None, tokenizer, self.columns, max_length, self.labels.problem_type)
        self._numbered(list(sample[self.columns.label]))
        rows = self._training_rows()
        buffer = self.data.shuffle_buffer_size or SHUFFLE_BUFFER
        if buffer > 1:
            seed = self.training.seed if self.training.data_seed is None else self.training.data_seed
            rows = rows.shuffle(seed=seed, buffer_size=buffer)
        rows = rows.map(convert, batched=True, batch_size=_BATCH, remove_columns=sample.column_names)
        return {**encoded, "train": Passes(rows, self._count)}

    def training_examples(self, most: int) -> tuple[list[list[str]], list[Any]]:
        """The first training rows."""
        rows = read_rows(self._training_rows(), most, "train")
        return self.texts_of(rows), self._numbered(list(rows[self.columns.label]))


class Passes(torch.utils.data.IterableDataset):
    """Repeats a stream without an end, shuffled anew each pass. Runs end after `max_steps`, and resume exactly."""

    def __init__(self, rows: IterableDataset, count: int | None, ended: bool = False) -> None:
        self.rows = rows
        self.count = count
        self.ended = ended
        """The run is resumed after its last step: yield nothing, or the Trainer would take one more."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.ended:
            return
        for number in itertools.count():
            self.rows.set_epoch(number)
            empty = True
            with reading(_WHAT, _WAY_OUT, files_of(self.rows)):
                for example in self.rows:
                    empty = False
                    yield example
            if empty:
                raise UserError("The train data has no rows to train on. Give more, or a --validation_file.")
