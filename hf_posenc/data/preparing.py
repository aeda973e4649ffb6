"""From the rows of all splits to what a run trains and scores on."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, cast

from ..errors import UserError
from .cells import is_missing
from .columns import Columns, find_columns, require_columns, texts_of
from .labels import TOKENS, Labels, encode_labels, standard_units
from .options import DataArguments
from .prepared import Part, PreparedData, TrainingStream, Use
from .splitting import choose_texts, marks_of, repeated
from .streaming import HELD_OUT, SAMPLE, SHUFFLE_BUFFER, FirstReading
from .summary import DataSummary, SplitSummary
from .table import Stream, Table, Tally
from .words import labels_words, read_words, word_columns

logger = logging.getLogger(__name__)


def prepare(splits: Mapping[str, Any], data: DataArguments, use: Use) -> PreparedData:
    """Finds columns and labels, chooses the rows to use and sets validation rows aside.

    Args:
        splits: what `read_splits` gave: a `Table` each, or with `data.streaming` a `Stream`.
        data: the options.
        use: what the run does with them.

    Raises:
        UserError: a split, a column or a label is missing, or no row is left.
    """
    _check_splits(splits, use)
    if data.streaming:
        return _prepare_stream(splits, data, use)
    tables = _used_splits(splits, use)
    columns, labels, texts, numbers = _read(tables, data, use)
    _leave_unlabelled_test_out(tables, numbers, columns, use)
    summary = DataSummary.start(columns, labels, tables)
    parts = _usable_rows(tables, texts, numbers, data, summary)
    if use.validate and "validation" not in splits:
        whole = parts["train" if use.train else "validation"]
        parts["validation"], held = _set_aside(whole, labels, data, summary)
        if use.train:
            parts["train"] = whole.select([row for row, mark in enumerate(whole.marks) if mark not in held])
    for split in parts:
        parts[split] = _cut_to(parts[split], data.most_rows[split], summary.splits.get(split))
    _check_labels_vary(parts, labels, data)
    trained: Set[int] = use.trained_on
    if "train" in parts:
        train = parts["train"]
        labels = _in_units(labels, train.labels or ())
        summary.repeated, summary.contradictory = repeated(train.marks, train.labels)
        trained = set(train.marks)
    _count_shared(parts, trained, summary)
    return PreparedData(columns, labels, parts, summary)


def _check_splits(splits: Mapping[str, Any], use: Use) -> None:
    """Raises a UserError if the data lacks a split that the run needs."""
    names = ", ".join(splits)
    if use.train and "train" not in splits:
        raise UserError(f"--do-train needs training data, there is {names}. Give --train-file.")
    if use.test and "test" not in splits:
        raise UserError(f"--do-predict needs test data, there is {names}. Give --test-file.")
    if use.validate and not {"train", "validation"} & set(splits):
        raise UserError(f"--do-eval needs validation data, there is {names}. Give --validation-file.")


def _used_splits(splits: Mapping[str, Any], use: Use) -> dict[str, Any]:
    """The splits that are used. Without validation data and training, `validation` is a part of the training data."""
    used = {}
    if use.train:
        used["train"] = splits["train"]
    if use.validate and ("validation" in splits or not use.train):
        used["validation"] = splits["validation" if "validation" in splits else "train"]
    if use.test or (use.score_test and "test" in splits):
        used["test"] = splits["test"]
    return used


def _read(
    tables: Mapping[str, Table], data: DataArguments, use: Use
) -> tuple[Columns, Labels | None, Mapping[str, tuple[Sequence[Any], ...]], Mapping[str, list[Any] | None]]:
    """Columns, labels, and for each split the texts of all rows and the numbers of their labels."""
    first = next(iter(tables.values()))
    if use.labelled and is_about_words(tables, data, use):
        columns = word_columns(first, data)
        labels, words, numbers = read_words(tables, columns, use.label_names)
        return columns, labels, {split: (rows,) for split, rows in words.items()}, numbers
    columns = find_columns(first, data, use.known, needs_label=use.labelled and set(tables) != {"test"})
    texts = {split: texts_of(table, columns, split) for split, table in tables.items()}
    if not use.labelled:
        return columns, None, texts, dict.fromkeys(tables)
    labels, numbers = encode_labels(tables, columns, data, label_names=use.label_names, problem_type=use.problem_type)
    return columns, labels, texts, numbers


def is_about_words(splits: Mapping[str, Any], data: DataArguments, use: Use) -> bool:
    """Whether words are labelled: by option, by the trained model, or because the data looks so."""
    if data.task is not None or use.problem_type is not None:
        return data.task == "tokens" or use.problem_type == TOKENS
    first = next(iter(splits.values()))
    return isinstance(first, Table) and data.text_column_names is None and labels_words(first)


def _leave_unlabelled_test_out(
    tables: dict[str, Table], numbers: Mapping[str, Any], columns: Columns, use: Use
) -> None:
    """Drops a test split that could only be scored, and has no labels to score it by; says so."""
    if "test" not in tables or numbers["test"] is not None or not use.labelled:
        return
    if use.score_test and not (use.train or use.validate):
        require_columns(tables["test"], columns.labels, "--label-column-name", "test")
        raise UserError(f"The test data has no labels in column {columns.label!r}. Name it with --label-column-name.")
    if not use.test:
        del tables["test"]
        logger.warning("The test split has no labels, so it isn't scored. --do-predict true predicts them.")


def _usable_rows(
    tables: Mapping[str, Table],
    texts: Mapping[str, tuple[Sequence[Any], ...]],
    numbers: Mapping[str, list[Any] | None],
    data: DataArguments,
    summary: DataSummary,
) -> dict[str, Part]:
    """The rows of each split that have a label, and with `--skip-missing` those that have a text."""
    parts = {}
    for split, table in tables.items():
        part, of_split = Part.of(table, texts[split], numbers[split]), summary.splits[split]
        blank = {row for row, cells in enumerate(zip(*part.texts, strict=True)) if not any(map(_holds_text, cells))}
        unlabelled = {row for row, number in enumerate(part.labels or ()) if number is None}
        dropped = unlabelled | (blank if data.skip_missing else set())
        if dropped:
            part = part.select([row for row in part.rows if row not in dropped])
        if not len(part):
            raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
        of_split.without_label, of_split.without_text, of_split.left_out = len(unlabelled), len(blank), len(dropped)
        of_split.rows = len(part)
        parts[split] = part
    return parts


def _holds_text(cell: Any) -> bool:
    return bool(cell) if isinstance(cell, list) else not is_missing(cell)


def _set_aside(
    whole: Part, labels: Labels | None, data: DataArguments, summary: DataSummary, count: int | None = None
) -> tuple[Part, set[int]]:
    """The training rows that are validated on, and the marks of their texts; `count` as in `choose_texts`."""
    problem_type = "" if labels is None else labels.problem_type
    numbers = None if problem_type == TOKENS else whole.labels
    held = choose_texts(whole.marks, numbers, data.validation_split_percentage, problem_type, count=count)
    aside = whole.select([row for row, mark in enumerate(whole.marks) if mark in held])
    summary.set_aside = len(aside)
    if problem_type == "single_label_classification" and labels is not None:
        seen = set(aside.labels or ())
        if alone := [name for number, name in enumerate(labels.names) if number not in seen]:
            summary.notes.append(
                f"No row of {', '.join(map(repr, alone[:5]))}{f', ... ({len(alone)})' if len(alone) > 5 else ''} was "
                "set aside for validation."
            )
    return aside, held


def _cut_to(part: Part, most: int | None, of_split: SplitSummary | None) -> Part:
    cut = 0 if most is None else max(len(part) - most, 0)
    if of_split is not None:
        of_split.cut, of_split.rows = cut, len(part) - cut
    return part.select(range(len(part) - cut)) if cut else part


def _check_labels_vary(parts: Mapping[str, Part], labels: Labels | None, data: DataArguments) -> None:
    """Refuses training rows with one label; warns of validation rows with one."""
    if labels is None or labels.problem_type != "single_label_classification":
        return
    for split in ("train", "validation"):
        numbers = set(parts[split].labels or ()) if split in parts else set()
        if len(numbers) != 1:
            continue
        label, count = labels.names[numbers.pop()], len(parts[split])
        if split == "train":
            raise UserError(
                f"All {count} examples that are left to train on have the label {label!r}. Give more examples of the "
                f"others{', or a greater --max-train-samples' if data.max_train_samples else ''}."
            )
        logger.warning(
            f"All {count} validation examples have the label {label!r}: scores on them say little. Give examples of "
            "other labels."
        )


def _in_units(labels: Labels | None, numbers: Iterable[Any]) -> Labels | None:
    """The labels of a regression with mean and standard deviation of the training rows' numbers."""
    if labels is None or labels.problem_type != "regression":
        return labels
    mean, std = standard_units(numbers)
    return replace(labels, mean=mean, std=std)


def _count_shared(parts: Mapping[str, Part], trained: Set[int], summary: DataSummary) -> None:
    """Counts the texts of other splits that stand in the training data too."""
    for split in ("validation", "test"):
        if split in parts and (shared := sum(mark in trained for mark in parts[split].marks)):
            summary.shared[split] = shared


# ---- streams --------------------------------------------------------------------------------------------------------


def _prepare_stream(splits: Mapping[str, Stream], data: DataArguments, use: Use) -> PreparedData:
    source = splits["train"].taking(data.max_train_samples)
    sample = source.table(SAMPLE)
    stream = source = replace(source, names=tuple(sample.names))  # an object of JSON may lack a key
    columns = find_columns(sample, data)
    require_columns(sample, columns.labels, "--label-column-name")
    if data.skip_missing:
        stream = source.only(columns.is_complete)
        sample = stream.table(SAMPLE)
    others = {split: part for split, part in _used_splits(splits, use).items() if split != "train"}
    tables = {split: part.table(data.most_rows[split]) for split, part in others.items()}
    texts = {split: texts_of(table, columns, split) for split, table in tables.items()}
    labelled, first_reading = _known_labels(sample, columns, data), None
    sets_aside = use.validate and "validation" not in splits
    if sets_aside or labelled is None:
        why = ["find its labels (--class-names)"] * (labelled is None) + ["set validation data aside"] * sets_aside
        logger.warning(f"Reading the training data once before training, to {' and '.join(why)}.")
        watched = {mark for columns_of_text in texts.values() for mark in marks_of(*columns_of_text)}
        most_held = (data.max_eval_samples or HELD_OUT) if sets_aside else 0
        first_reading = FirstReading(source, columns, data, most_held, watched)
        labelled = _label_table(sample, columns, first_reading.labels()) if labelled is None else labelled
    numbered = {**tables, "train": labelled}
    if first_reading is not None and sets_aside:
        numbered["validation"] = source.collect(first_reading.candidates.rows(), Tally())
    labels, numbers = encode_labels(numbered, columns, data, label_names=_label_names(data, use))
    _leave_unlabelled_test_out(tables, numbers, columns, use)
    summary = DataSummary.start(columns, labels, {"train": replace(sample, tally=source.tally), **tables})
    parts = _usable_rows(tables, texts, numbers, data, summary)
    held: set[int] = set()
    if first_reading is not None and sets_aside:
        kept = numbered["validation"]
        whole = Part.of(kept, texts_of(kept, columns, "train"), numbers["validation"])
        parts["validation"], held = _set_aside(whole, labels, data, summary, first_reading.count)
    if first_reading is not None:
        _count_shared({split: parts[split] for split in tables}, first_reading.seen_marks - held, summary)
    left = _summarize_stream(summary, first_reading)
    streamed = TrainingStream(stream, columns, labels, held, left)
    labels = cast(Labels, _in_units(labels, streamed.numbers(SAMPLE if first_reading is None else None)))
    return PreparedData(columns, labels, parts, summary, streamed, data.shuffle_buffer_size or SHUFFLE_BUFFER)


def _known_labels(sample: Table, columns: Columns, data: DataArguments) -> Table | None:
    """Rows that hold each label, where these are known without reading all data."""
    names, declared = _class_names(data), sample.classes.get(columns.label)
    is_regression = data.task == "regression"
    if names and (declared is not None or is_regression):
        why = "is a regression" if declared is None else f"has the labels {', '.join(declared)}"
        raise UserError(f"--class-names {data.class_names}: the data {why}. Leave it out.")
    if columns.one_hot or declared is not None or is_regression:
        return sample
    if not names:
        return None
    several = any(isinstance(cell, list) for cell in sample.columns[columns.label])
    cells = [[name] for name in names] if several or columns.label_delimiter is not None else names
    return replace(_label_table(sample, columns, cells), is_text=False)


def _label_table(sample: Table, columns: Columns, cells: Sequence[Any]) -> Table:
    """A table of labels alone, which aren't the rows of a file."""
    return replace(sample, columns={columns.label: cells}, places=None, unit="", files=())


def _class_names(data: DataArguments) -> list[str]:
    """`--class-names`.

    Raises:
        UserError: there is none among them, or one twice.
    """
    if data.class_names is None:
        return []
    names = [name.strip() for name in data.class_names.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UserError(
            f"--class-names {data.class_names!r} names {'a label twice' if names else 'no label'}. Give each label of "
            "the data once: no,yes."
        )
    return names


def _label_names(data: DataArguments, use: Use) -> Sequence[str] | None:
    """The labels that are known, in order: `--class-names`, unless they are those of the trained model."""
    names = _class_names(data)
    return names if names and set(use.label_names or ()) != set(names) else use.label_names


def _summarize_stream(summary: DataSummary, first_reading: FirstReading | None) -> int | None:
    """Writes what was read of the training rows into the summary; returns how many are left, where that's known."""
    of_train = summary.splits["train"]
    of_train.read = "a stream"
    if first_reading is None:
        return None
    of_train.read += f" of {first_reading.count + first_reading.left_out:,} rows"
    of_train.left_out, of_train.without_text = first_reading.left_out, first_reading.without_text
    of_train.rows = first_reading.count - summary.set_aside
    return of_train.rows
