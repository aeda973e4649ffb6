"""Chooses the rows of each split: with text and label, up to the sizes asked for, some set aside."""

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from datasets import Dataset, DatasetDict
from transformers.utils import logging

from ...errors import UserError
from ..arguments import DataArguments, RunArguments
from .cells import is_csv_data, row_name
from .columns import Columns
from .labels import Labels

logger = logging.get_logger(__name__)


def check_splits(found: Collection[str], training: RunArguments) -> None:
    """Raises a UserError if the data lacks a split that the run needs."""
    there = ", ".join(found)
    if training.do_train and "train" not in found:
        raise UserError(f"--do_train needs training data, there is {there}. Give --train_file.")
    if training.do_predict and "test" not in found:
        raise UserError(f"--do_predict needs test data, there is {there}. Give --test_file.")
    if training.do_eval and not {"train", "validation"} & set(found):
        raise UserError(f"--do_eval needs validation data, there is {there}. Give --validation_file.")


def wanted_splits(splits: DatasetDict, data: DataArguments, training: RunArguments) -> DatasetDict:
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


def scores_test(training: RunArguments) -> bool:
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
