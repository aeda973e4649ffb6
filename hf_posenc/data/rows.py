"""Chooses the rows of each split: those with text and label, up to the sizes asked for."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from datasets import Dataset, DatasetDict
from transformers.utils import logging

from ..errors import UserError
from .cells import is_csv_data, row_name
from .columns import Columns
from .labels import Labels
from .options import DataArguments
from .validation_split import groups_of, hold_out

if TYPE_CHECKING:
    from ..training.arguments import RunArguments


logger = logging.get_logger(__name__)


def check_splits(found: Collection[str], training: "RunArguments") -> None:
    """Raises a UserError if the data lacks a split that the run needs."""
    there = ", ".join(found)
    if training.do_train and "train" not in found:
        raise UserError(f"--do_train needs training data, there is {there}. Give --train_file.")
    if training.do_predict and "test" not in found:
        raise UserError(f"--do_predict needs test data, there is {there}. Give --test_file.")
    if training.do_eval and not {"train", "validation"} & set(found):
        raise UserError(f"--do_eval needs validation data, there is {there}. Give --validation_file.")


def wanted_splits(splits: DatasetDict, data: DataArguments, training: "RunArguments") -> DatasetDict:
    """The splits that this run uses; the test split also if `score_test` asks for it.

    Validation and test are cut to the sizes asked for; `choose_rows` does the rest. Without
    validation data `choose_rows` sets some aside; without training, `validation` holds the training data.
    """
    check_splits(splits, training)
    chosen = {}
    if training.do_train:
        chosen["train"] = splits["train"]
    if training.do_eval and "validation" in splits:
        chosen["validation"] = _first(splits["validation"], data.max_eval_samples)
    elif training.do_eval and not training.do_train:
        chosen["validation"] = splits["train"]
    if training.do_predict or (scores_test(training) and "test" in splits):
        chosen["test"] = _first(splits["test"], data.max_predict_samples)
    for split, dataset in chosen.items():
        if len(dataset) == 0:
            raise UserError(f"The {split} data has no rows. Give data with at least one example.")
    return DatasetDict(chosen)


def scores_test(training: "RunArguments") -> bool:
    """Whether the test split is scored if it has labels; a masked language model has no such option."""
    return bool(getattr(training, "score_test", False))


def _first(dataset: Dataset, most: int | None) -> Dataset:
    return dataset if most is None else dataset.select(range(min(most, len(dataset))))


def choose_rows(
    splits: Mapping[str, Dataset],
    columns: Columns,
    data: DataArguments,
    labels: Labels | None = None,
    numbers: Mapping[str, list[Any] | None] | None = None,
    *,
    set_aside: bool = False,
) -> dict[str, list[int]]:
    """Which rows of each split are used, by their numbers from 0.

    Args:
        splits: what `wanted_splits` gave.
        columns: where the text is.
        data: the options.
        labels: those of the data, if it has them.
        numbers: the label of each row; None where it is to be left out.
        set_aside: take `validation` from the training data, each label in its share.

    Raises:
        UserError: a split has no rows left, or the training rows have one label.
    """
    numbers = numbers or {}
    rows = {split: _usable(split, dataset, columns, numbers.get(split), data) for split, dataset in splits.items()}
    if set_aside:
        source = "train" if "train" in rows else "validation"
        groups = groups_of(labels, numbers.get(source), rows[source])
        train, validation = hold_out(groups, data.validation_split_percentage)
        rows, whole = {**rows, "validation": [rows[source][row] for row in validation]}, rows[source]
        if source == "train":
            rows["train"] = [whole[row] for row in train]
        _report_set_aside(len(validation), labels, groups)
    for split, most in (("train", data.max_train_samples), ("validation", data.max_eval_samples)):
        if split in rows:
            rows[split] = rows[split][:most]
    if labels is not None and labels.problem_type == "single_label_classification":
        for split in ("train", "validation"):
            found = numbers.get("train" if set_aside and "train" in rows else split)
            if split in rows and found is not None:
                _check_several(split, {found[row] for row in rows[split]}, len(rows[split]), labels, data)
    return rows


def _usable(
    split: str, dataset: Dataset, columns: Columns, numbers: Sequence[Any] | None, data: DataArguments
) -> list[int]:
    """The rows that have a label, and with `--skip_missing` those that have a text."""
    blank = set(blank_rows(dataset, columns))
    if blank:
        logger.warning(
            f"{len(blank)} of {len(dataset)} {split} rows hold no text"
            + (" and are left out (--skip_missing)" if data.skip_missing else "; --skip_missing leaves them out")
            + f", first {row_name(min(blank), is_csv_data(dataset))}."
        )
    dropped = blank if data.skip_missing else set()
    rows = [row for row in range(len(dataset)) if row not in dropped and (numbers is None or numbers[row] is not None)]
    if not rows:
        raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
    return rows


def _report_set_aside(count: int, labels: Labels | None, groups: Sequence[Any]) -> None:
    shared = any(group is not None for group in groups)
    text = (
        f"There is no validation data: {count} training example{' was' if count == 1 else 's were'} set aside for it"
        f"{', each label in its share' if shared else ''} (--validation_split_percentage)."
    )
    if labels is not None and labels.problem_type == "single_label_classification":
        alone = [labels.names[number] for number, rows in sorted(Counter(groups).items()) if rows == 1]
        if alone:
            text += (
                f" Labels with one example have none to validate on: {', '.join(map(repr, alone[:5]))}"
                f"{f', ... ({len(alone)})' if len(alone) > 5 else ''}."
            )
    logger.warning(text)


def _check_several(split: str, found: set[int], count: int, labels: Labels, data: DataArguments) -> None:
    """Refuses training rows with one label; warns of validation rows with one."""
    if len(found) > 1:
        return
    label = labels.names[found.pop()]
    if split == "train":
        raise UserError(
            f"All {count} examples that are left to train on have the label {label!r}. Give more examples of the "
            f"others{', or a greater --max_train_samples' if data.max_train_samples else ''}."
        )
    logger.warning(
        f"All {count} validation examples have the label {label!r}: scores on them say little. Give examples of other "
        "labels."
    )


def blank_rows(dataset: Dataset, columns: Columns) -> list[int]:
    """The rows that hold no text."""
    found: list[int] = []
    start = 0
    for batch in dataset.select_columns(list(columns.text)).iter(1000):
        cells = [cast(dict[str, list[Any]], batch)[name] for name in columns.text]
        for row, values in enumerate(zip(*cells, strict=True), start=start):
            if all(value is None or not str(value).strip() for value in values):
                found.append(row)
        start += len(cells[0])
    return found
