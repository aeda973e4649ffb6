"""Training data that is read while training, `--streaming`: for data that doesn't fit into memory or on the disk.

What is held in memory doesn't grow with the training data: `shuffle_buffer_size` rows to draw from; a block of the
reader (10 MB of a .jsonl, 10,000 rows of a .csv, a row group of a .parquet); `SAMPLE` rows to look at; the distinct
labels, at most `MOST_LABELS`; the distinct words of `TOKENIZER_ROWS` rows where a tokenizer is trained; and the
validation and test examples, which `max_eval_samples` and `max_predict_samples` limit, at most `HELD_OUT` where they
are set aside from the training data.
"""

import heapq
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, List
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ...errors import UserError
from ..arguments import DEFAULT_STEPS, ClassificationTrainingArguments, DataArguments, strategy_name
from .cells import is_csv_data, is_missing, row_name
from .columns import find_columns, require_columns
from .encoding import encode, tokenize_texts
from .label_values import read_values
from .labels import Labels, apply_labels
from .reading import files_of, reading, with_files
from .rows import check_percentage, in_shares

logger = logging.get_logger(__name__)

SHUFFLE_BUFFER = 10_000
"""Rows to draw from, where `shuffle_buffer_size` isn't given."""
SAMPLE = 1000
"""The first rows, from which columns are found and of whose truncation is warned."""
MOST_LABELS = 10_000
HELD_OUT = 10_000
"""Most rows that are set aside for validation, where `max_eval_samples` isn't given."""
TOKENIZER_ROWS = 100_000
"""A tokenizer is trained on the first of them."""
SEEN_BATCHES = 1000
"""The `train_...` metrics of a streamed run are those of its last batches."""
_BATCH = 256
_WHAT, _WAY_OUT = "The training data", "Mend the data, or leave these rows out."


def check_streaming(data: DataArguments, training: ClassificationTrainingArguments) -> None:
    """Refuses what can't be with a stream; what is done once per epoch is done ten times in the run instead.

    Raises:
        UserError: an option doesn't go with a stream, or goes with nothing else.
    """
    if not data.streaming:
        for name in ("shuffle_buffer_size", "class_names"):
            if getattr(data, name) is not None:
                raise UserError(f"--{name} {getattr(data, name)} is for --streaming. Give that too, or leave it out.")
        return
    if not training.do_train:
        raise UserError("--streaming is for training data, and there is no --do_train. Leave it out.")
    if training.max_steps <= 0:
        raise UserError(
            "--streaming needs --max_steps: a stream doesn't say how long it is. One pass is the number of training "
            "examples divided by the batch size."
        )
    if data.shuffle_buffer_size is not None and data.shuffle_buffer_size < 1:
        raise UserError(
            f"--shuffle_buffer_size {data.shuffle_buffer_size} is out of range. Give 1 or more; 1: in order."
        )
    refused: dict[str, tuple[Any, str]] = {
        "class_weights": (training.class_weights, "they are scaled by the labels of all training examples"),
        "train_sampling_strategy": (
            strategy_name(training.train_sampling_strategy) != "random" and training.train_sampling_strategy,
            "examples come in the order of the stream, shuffled in a buffer (--shuffle_buffer_size)",
        ),
        "preprocessing_num_workers": (data.preprocessing_num_workers, "examples are tokenized as they are read"),
        "dataloader_num_workers": (
            training.dataloader_num_workers > 1 and training.dataloader_num_workers,
            "one process reads the stream",
        ),
    }
    for name, (value, why) in refused.items():
        if value:
            raise UserError(f"--{name} {strategy_name(value)} can't be with --streaming: {why}. Leave one of them out.")
    tenth = max(1, training.max_steps // 10)
    for kind in ("eval", "save", "logging"):
        strategy = getattr(training, f"{kind}_strategy")
        if strategy_name(strategy) == "epoch":
            setattr(training, f"{kind}_strategy", type(strategy)("steps"))
            if getattr(training, f"{kind}_steps") == DEFAULT_STEPS[kind]:  # else it was given
                setattr(training, f"{kind}_steps", tenth)
    # Each process reads the stream and takes its part: batches that one hands out must all be of one length.
    training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]


class Stream:
    """Training rows that are read as they are needed, and what has to be known of them before.

    Args:
        rows: the training split.
        data: the options.
        seed: of the order.

    Raises:
        UserError: the data has no rows, can't be read, or lacks a column.
    """

    def __init__(self, rows: IterableDataset, data: DataArguments, seed: int) -> None:
        self.rows = rows if data.max_train_samples is None else rows.take(data.max_train_samples)
        self.data = data
        self.seed = seed
        self.sample = read_rows(self.rows, SAMPLE, "train")
        self.columns = find_columns(self.sample, data)
        require_columns(self.sample, [self.columns.label], "--label_column_name")
        if data.skip_missing:
            logger.warning("Rows of the training data that have no label or no text are left out (--skip_missing).")
            self.rows = self.rows.filter(self._is_whole)
            self.sample = read_rows(self.rows, SAMPLE, "train")
        self.feature = self.sample.features[self.columns.label]
        self.is_csv = is_csv_data(self.sample)
        self.count: int | None = None
        """Rows, if they have been counted."""
        self._read = 0
        self._distinct: list[Any] | None = None
        self._held_out: set[int] = set()
        """Marks of the texts that were set aside."""

    def _is_whole(self, row: dict[str, Any]) -> bool:
        """Whether a row has a label and a text."""
        label = self.data.label_delimiter is not None or not is_missing(row[self.columns.label])
        return label and any(not is_missing(row[name]) for name in self.columns.text)

    def read_once(self, hold_out: bool) -> Dataset | None:
        """Reads the stream once if labels have to be found or rows to be set aside for validation; returns the latter.

        Which rows these are depends on their text alone: a text that is there several times is set aside as a whole,
        and validated on once.

        Raises:
            UserError: a label is missing, there are too many, or too few rows.
        """
        wants_labels = self._given_labels() is None
        if not (wants_labels or hold_out):
            return None
        check_percentage(self.data.validation_split_percentage)
        logger.warning(
            "Reading the training data once before training, to "
            + " and ".join(
                [*["find its labels (--class_names)"] * wants_labels, *["set validation data aside"] * hold_out]
            )
            + "."
        )
        most = self.data.max_eval_samples or HELD_OUT
        labels = _DistinctLabels(self)
        least: list[tuple[int, int, dict[str, Any]]] = []  # a row for each of the texts with the smallest marks
        repeats: dict[int, int] = {}  # in how many rows each of these texts is
        count = 0
        with reading(_WHAT, _WAY_OUT, files_of(self.rows)):
            names = [self.columns.label, *(self.columns.text if hold_out else ())]
            for batch in self.rows.select_columns(names).iter(SAMPLE):
                labels.add(batch[self.columns.label], count)
                for row, mark in enumerate(self._marks(batch) if hold_out else ()):
                    if mark in repeats:
                        repeats[mark] += 1
                    elif len(least) < most or mark < -least[0][0]:
                        if len(least) == most:
                            del repeats[-heapq.heappop(least)[0]]
                        heapq.heappush(least, (-mark, count + row, {name: batch[name][row] for name in names}))
                        repeats[mark] = 1
                count += len(batch[self.columns.label])
        self.count = self._read = count
        if wants_labels:
            self._distinct = labels.values()
        if not hold_out:
            return None
        if count < 2:
            raise UserError("There is one training example and no validation data. Give --validation_file.")
        texts = sorted(((-mark, row, held) for mark, row, held in least), key=lambda entry: entry[:2])
        chosen, taken = self._chosen(texts, repeats, count)
        if not chosen:
            raise UserError(
                f"None of the texts of the {count} training examples can be set aside for validation: each stands in "
                "too many of them, or is the only one of its label. Give --validation_file, or a greater "
                "--validation_split_percentage."
            )
        self.count -= taken
        features = self.rows.features and Features({name: self.rows.features[name] for name in names})
        held = Dataset.from_list(chosen, features=features)
        held.info.builder_name = self.rows.info.builder_name
        logger.warning(
            f"There is no validation data: {len(held)} training examples were set aside for it "
            "(--validation_split_percentage, --max_eval_samples)."
        )
        return held

    def _chosen(
        self, texts: Sequence[tuple[int, int, dict[str, Any]]], repeats: dict[int, int], count: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Which texts (mark, row, cells) are set aside, each label in its share; and in how many rows these are."""
        groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for mark, _, held in texts:
            groups.setdefault(str(held[self.columns.label]), []).append((mark, held))
        if 2 * len(groups) > len(texts):  # numbers
            groups = {"": [(mark, held) for mark, _, held in texts]}
        wanted = max(1, min(2, len(groups)), count * self.data.validation_split_percentage // 100)
        # Where these are all texts, each label keeps one to train on.
        keep = int(sum(repeats.values()) == count)
        left = [len(group) for group in groups.values()]
        waiting = [iter(group) for group in groups.values()]
        taken = 0
        chosen = []
        for number in in_shares(tuple(left)):
            mark, held = next(waiting[number])
            if taken + repeats[mark] <= wanted and left[number] > keep:
                taken += repeats[mark]
                left[number] -= 1
                self._held_out.add(mark)
                chosen.append(held)
        return chosen, taken

    def _marks(self, batch: dict[str, list[Any]]) -> list[int]:
        """A number for each row of a batch that depends on its text alone."""
        first, second = self.columns.texts(batch)
        pairs = zip(first, second or itertools.repeat(""), strict=False)
        return [zlib.crc32(f"{one}\x1f{other}".encode(errors="surrogatepass")) for one, other in pairs]

    def training_rows(self) -> IterableDataset:
        """All rows but those that were set aside."""
        if not self._held_out:
            return self.rows
        return self.rows.filter(
            lambda batch: [mark not in self._held_out for mark in self._marks(batch)], batched=True, batch_size=_BATCH
        )

    def first_rows(self) -> IterableDataset:
        """Those that a tokenizer is trained on."""
        return self.training_rows().take(TOKENIZER_ROWS)

    def _given_labels(self) -> list[Any] | None:
        """Labels that are known without reading the data, as cells of its column; None if there are none."""
        names = self._given_names()
        several = isinstance(self.feature, List)
        inner = self.feature.feature if isinstance(self.feature, List) else self.feature
        if names and (isinstance(inner, ClassLabel) or self.data.task == "regression"):
            why = "is a regression" if self.data.task == "regression" else f"has the labels {', '.join(inner.names)}"
            raise UserError(f"--class_names {self.data.class_names}: the data {why}. Leave it out.")
        if names:
            return [[name] for name in names] if several else names
        if isinstance(inner, ClassLabel) or self.data.task == "regression":
            return list(self.sample[self.columns.label])
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

    def class_names(self, trained: Sequence[str] | None) -> Sequence[str] | None:
        """In which order labels are numbered, if they are these: a trained model's, or that of `--class_names`."""
        names = self._given_names()
        return trained if trained and (not names or set(trained) == set(names)) else names or None

    def labelled(self) -> Dataset:
        """A column with each of the labels, for `number_labels`."""
        cells = self._given_labels()
        feature = self.feature
        if self.data.class_names:
            feature = None  # names, whatever type the labels in the data are of
        elif cells is None:
            assert self._distinct is not None
            # Each twice says what _looks_like asks for: that labels are those of several texts.
            cells = self._distinct * (2 if self._read >= 2 * len(self._distinct) else 1)
        features = None if feature is None else Features({self.columns.label: feature})
        found = Dataset.from_dict({self.columns.label: cells}, features=features)
        if self.is_csv:
            found.info.builder_name = "csv"
        return found

    def numbered(self, cells: list[Any], labels: Labels) -> list[Any]:
        """Cells of the label column in the form in which a model takes labels.

        Raises:
            UserError: one is missing or unknown.
        """
        missing = sum(map(is_missing, cells)) if self.data.label_delimiter is None else 0
        if missing:
            raise UserError(
                f"Missing label in the train data: {missing} of {len(cells)} rows in a row have none in column "
                f"{self.columns.label!r}. Fill it in, or leave such rows out with --skip_missing."
            )
        # The kind of all labels has been decided: a few whole numbers among words are words.
        task = "regression" if labels.problem_type == "regression" else "classification"
        delimiter, name = self.data.label_delimiter, self.columns.label
        column = read_values(cells, self.feature, self.is_csv, name, "train", delimiter, task, from_file=False)
        return apply_labels(labels, labels.numbers(), column, "train", self.columns.label)

    def encoded(self, tokenizer: PreTrainedTokenizerBase, max_length: int, labels: Labels) -> "Passes":
        """Examples to train on: token ids and `labels`, without an end.

        Warns as `data.encode` when the first rows are truncated.

        Raises:
            UserError: a label of the first rows isn't known.
        """

        def convert(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            found = tokenize_texts(batch, tokenizer, self.columns, max_length)
            return {**found, "labels": self.numbered(batch[self.columns.label], labels)}

        encode(self.sample, None, tokenizer, self.columns, max_length, labels.problem_type)
        self.numbered(list(self.sample[self.columns.label]), labels)
        rows = self.training_rows()
        buffer = self.data.shuffle_buffer_size or SHUFFLE_BUFFER
        if buffer > 1:
            rows = rows.shuffle(seed=self.seed, buffer_size=buffer)
        return Passes(
            rows.map(convert, batched=True, batch_size=_BATCH, remove_columns=self.sample.column_names), self.count
        )


class _DistinctLabels:
    """The labels of a column, each once."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._single: dict[Any, None] = {}
        self._listed: dict[Any, None] = {}
        self._numbers = False

    def add(self, cells: list[Any], first_row: int) -> None:
        column, delimiter = self.stream.columns.label, self.stream.data.label_delimiter
        for row, cell in enumerate(cells, start=first_row):
            if delimiter is not None and (cell is None or isinstance(cell, str)):
                self._listed.update(
                    dict.fromkeys(part.strip() for part in (cell or "").split(delimiter) if part.strip())
                )
            elif is_missing(cell):
                raise UserError(
                    f"Missing label in the train data: {row_name(row, self.stream.is_csv)} has none in column "
                    f"{column!r}. Fill it in, or leave such rows out with --skip_missing."
                )
            elif isinstance(cell, list | tuple):
                self._listed.update(dict.fromkeys(cell))
            elif not self._numbers:
                self._single[cell] = None
        if len(self._single) + len(self._listed) > MOST_LABELS and not self._numbers:
            self._numbers = self._are_numbers()
            if not self._numbers:
                raise UserError(
                    f"Column {column!r} has more than {MOST_LABELS} different labels. Name the right column with "
                    "--label_column_name, or predict a number with --task regression."
                )

    def _are_numbers(self) -> bool:
        stream = self.stream
        if self._listed or stream.data.task == "classification":
            return False
        found = read_values(
            list(self._single), stream.feature, stream.is_csv, stream.columns.label, "train", None, None
        )
        return found.kind == "number"

    def values(self) -> list[Any]:
        """Cells of the column that hold each label once."""
        listed = list(self._listed) if self.stream.data.label_delimiter is not None else [[e] for e in self._listed]
        return [*self._single, *listed]


class Passes(torch.utils.data.IterableDataset):
    """A stream over and over, shuffled anew each time. A run on it ends by its steps, and resumes exactly."""

    def __init__(self, rows: IterableDataset, count: int | None) -> None:
        self.rows = rows
        self.count = count
        self.ended = False
        """Set where a run is resumed after its last step: the Trainer, which sees no end, would take one more."""

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


def open_stream(
    found: dict[str, IterableDataset], data: DataArguments, training: ClassificationTrainingArguments
) -> tuple[Stream, DatasetDict]:
    """The training stream; and the splits in memory, in which `train` is only the stream's first rows.

    Raises:
        UserError: there is no training data, or something in the data is wrong.
    """
    if "train" not in found:
        raise UserError(f"--do_train needs training data, there is {', '.join(found)}. Give --train_file.")
    stream = Stream(found["train"], data, training.seed if training.data_seed is None else training.data_seed)
    held_out = stream.read_once(hold_out=training.do_eval and "validation" not in found)
    splits = {"train": stream.sample}
    if held_out is not None:
        splits["validation"] = held_out
    elif training.do_eval:
        splits["validation"] = read_rows(found["validation"], data.max_eval_samples, "validation")
    if "test" in found and (training.do_predict or training.score_test):
        splits["test"] = read_rows(found["test"], data.max_predict_samples, "test")
    return stream, DatasetDict(splits)


def read_rows(rows: IterableDataset, most: int | None, split: str) -> Dataset:
    """The first rows of a stream, or all, in memory.

    Raises:
        UserError: it has none, or can't be read.
    """
    with reading(f"The {split} data", "Check the name, the format and the network.", files_of(rows)):
        taken = list(rows if most is None else rows.take(most))
        if not taken:
            raise UserError(
                f"{with_files(f'The {split} data', files_of(rows))} has no rows. Give data with at least one example."
            )
        found = Dataset.from_list(taken, features=rows.features)
    found.info.builder_name = rows.info.builder_name
    return found
