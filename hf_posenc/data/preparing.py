"""From the rows of all splits to what a run trains and scores on."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ..errors import UserError
from .columns import Columns, check_text, find_columns, require_columns
from .labels import TOKENS, Labels, number_labels
from .options import DataArguments
from .prepared import Part, PreparedData, Use
from .preparing_stream import prepare_stream
from .splitting import HoldOut, groups_of, repeated
from .summary import DataSummary, say_labels
from .table import Table
from .usable import check_splits, in_units, leave_unlabelled_test_out, usable
from .words import labels_words, number_words, read_words, word_columns

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
    check_splits(splits, use)
    if data.streaming:
        return prepare_stream(splits, data, use)
    chosen: dict[str, Table] = _wanted(splits, use)
    first = next(iter(chosen.values()))
    columns, labels, numbers, texts = _read(chosen, first, data, use)
    leave_unlabelled_test_out(chosen, numbers, columns, use)
    summary = DataSummary.start(columns.sentence(first.names), {split: chosen[split].tally for split in chosen})
    parts = {
        split: usable(split, table, texts[split], numbers[split], data, summary) for split, table in chosen.items()
    }
    if use.validate and "validation" not in splits:
        parts = _set_aside(parts, labels, data, use, summary)
    for split, most in (
        ("train", data.max_train_samples),
        ("validation", data.max_eval_samples),
        ("test", data.max_predict_samples),
    ):
        if split in parts:
            parts[split] = _first(parts[split], most, summary, split)
    _check_several(parts, labels, data)
    labels = in_units(labels, parts["train"].labels if "train" in parts else None)
    _compare_texts(parts, summary, use)
    summary.labels = "" if labels is None else say_labels(labels.names, labels.problem_type)
    return PreparedData(columns, labels, parts, summary)


def _wanted(splits: Mapping[str, Table], use: Use) -> dict[str, Table]:
    """The splits that are used. Without validation data and training, `validation` is a part of the training data."""
    wanted = {}
    if use.train:
        wanted["train"] = splits["train"]
    if use.validate and ("validation" in splits or not use.train):
        wanted["validation"] = splits["validation" if "validation" in splits else "train"]
    if use.test or (use.score_test and "test" in splits):
        wanted["test"] = splits["test"]
    for split, table in wanted.items():
        if not len(table):
            raise UserError(f"The {split} data has no rows. Give data with at least one example.")
    return wanted


def _read(
    chosen: Mapping[str, Table], first: Table, data: DataArguments, use: Use
) -> tuple[Columns, Labels | None, dict[str, Any], dict[str, tuple[Sequence[Any], ...]]]:
    """Columns, labels, and for each split the labels and the texts of all rows."""
    if use.labelled and is_about_words(chosen, data, use):
        columns = word_columns(first, data)
        read = {split: read_words(table, columns, split) for split, table in chosen.items()}
        names = use.label_names or first.classes.get(columns.label)
        labels, numbers = number_words(read, None if names is None else list(map(str, names)))
        return columns, labels, numbers, {split: (words,) for split, (words, _) in read.items()}
    needs_label = use.labelled and set(chosen) != {"test"}
    columns = find_columns(first, data, use.known, needs_label=needs_label)
    texts: dict[str, tuple[Sequence[Any], ...]] = {}
    for split, table in chosen.items():
        require_columns(table, columns.text, "--text-column-names", split)
        check_text(table, columns.text)
        texts[split] = tuple(filter(None, columns.texts(table.columns)))
    if not use.labelled:
        return columns, None, dict.fromkeys(chosen), texts
    labels, numbers = number_labels(chosen, columns, data, given=use.label_names, given_problem_type=use.problem_type)
    return columns, labels, numbers, texts


def is_about_words(splits: Mapping[str, Any], data: DataArguments, use: Use) -> bool:
    """Whether words are labelled: by option, by the trained model, or because the data looks so."""
    if data.task is not None or use.problem_type is not None:
        return data.task == "tokens" or use.problem_type == TOKENS
    first = next(iter(splits.values()))
    return isinstance(first, Table) and data.text_column_names is None and labels_words(first)


def _set_aside(
    parts: dict[str, Part], labels: Labels | None, data: DataArguments, use: Use, summary: DataSummary
) -> dict[str, Part]:
    """Takes validation rows out of the training rows; without training these alone are left."""
    source = "train" if use.train else "validation"
    whole = parts[source]
    hold_out = HoldOut()
    problem_type = "" if labels is None else labels.problem_type
    for row, mark in enumerate(whole.marks):
        hold_out.add(mark, row)
    of_words = problem_type == TOKENS
    held = hold_out.choose(
        data.validation_split_percentage, groups_of(None if of_words else whole.labels, problem_type)
    )
    chosen = sorted(row for rows in held.values() for row in rows)
    taken = set(chosen)
    summary.set_aside = len(chosen)
    parts = {**parts, "validation": whole.select(chosen)}
    if use.train:
        parts["train"] = whole.select([row for row in range(len(whole)) if row not in taken])
    if problem_type == "single_label_classification" and labels is not None:
        there = {parts["validation"].labels[row] for row in range(len(chosen))}  # type: ignore[index]
        if alone := [name for number, name in enumerate(labels.names) if number not in there]:
            summary.notes.append(
                f"No row of {', '.join(map(repr, alone[:5]))}{f', ... ({len(alone)})' if len(alone) > 5 else ''} was "
                "set aside for validation."
            )
    return parts


def _first(part: Part, most: int | None, summary: DataSummary, split: str) -> Part:
    if most is not None and most < len(part):
        if split in summary.splits:
            summary.splits[split].cut = len(part) - most
        part = part.select(range(most))
    if split in summary.splits:
        summary.splits[split].rows = len(part)
    return part


def _check_several(parts: Mapping[str, Part], labels: Labels | None, data: DataArguments) -> None:
    """Refuses training rows with one label; warns of validation rows with one."""
    if labels is None or labels.problem_type != "single_label_classification":
        return
    for split in ("train", "validation"):
        there = set(parts[split].labels or ()) if split in parts else set()
        if len(there) != 1:
            continue
        label, count = labels.names[there.pop()], len(parts[split])
        if split == "train":
            raise UserError(
                f"All {count} examples that are left to train on have the label {label!r}. Give more examples of the "
                f"others{', or a greater --max-train-samples' if data.max_train_samples else ''}."
            )
        logger.warning(
            f"All {count} validation examples have the label {label!r}: scores on them say little. Give examples of "
            "other labels."
        )


def _compare_texts(parts: Mapping[str, Part], summary: DataSummary, use: Use) -> None:
    """Counts repeated and contradictory training rows, and texts that other splits share with them."""
    trained: Set[int] = use.trained_on
    if "train" in parts:
        train = parts["train"]
        summary.repeated, summary.contradictory = repeated(train.marks, train.labels)
        trained = set(train.marks)
    for split in ("validation", "test"):
        if split in parts and (shared := sum(mark in trained for mark in parts[split].marks)):
            summary.shared[split] = shared
