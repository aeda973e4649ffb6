"""Prepares data whose training rows are read while training."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ..errors import UserError
from .cells import is_missing
from .columns import Columns, check_text, find_columns, require_columns
from .label_cells import decimal_sign
from .labels import Labels, number_labels
from .options import DataArguments
from .prepared import Part, PreparedData, StreamedPart, Use
from .splitting import HoldOut, check_percentage, groups_of, marks_of
from .streaming import HELD_OUT, SAMPLE, SHUFFLE_BUFFER, FirstReading, Stream
from .summary import DataSummary, say_labels
from .table import Row, Table
from .usable import in_units, leave_unlabelled_test_out, usable

logger = logging.getLogger(__name__)


def prepare_stream(splits: Mapping[str, Stream], data: DataArguments, use: Use) -> PreparedData:
    """What `prepare` gives, of streams; see `preparing.prepare`."""
    check_percentage(data.validation_split_percentage)
    stream = splits["train"].taking(data.max_train_samples)
    sample = stream.table(SAMPLE, "train")
    columns = find_columns(sample, data)
    require_columns(sample, columns.labels, "--label-column-name")

    def is_whole(cells: dict[str, Any]) -> bool:
        label = columns.one_hot or data.label_delimiter is not None or not is_missing(cells.get(columns.label))
        return bool(label) and any(not is_missing(cells.get(name)) for name in columns.text)

    whole = stream.only(is_whole) if data.skip_missing else stream
    sample = whole.table(SAMPLE, "train") if data.skip_missing else sample
    tables = {split: splits[split].table(most, split) for split, most in _scored(splits, data, use)}
    for split, table in tables.items():
        require_columns(table, columns.text, "--text-column-names", split)
        check_text(table, columns.text)
    marks = {split: marks_of(*columns.texts(table.columns)) for split, table in tables.items()}
    named = _given_labels(sample, columns, data)
    sets_aside = use.validate and "validation" not in splits
    first_reading, hold_out = None, HoldOut(data.max_eval_samples or HELD_OUT) if sets_aside else None
    if hold_out is not None or (named is None and not columns.one_hot):
        why = ["find its labels (--class-names)"] * (named is None) + ["set validation data aside"] * sets_aside
        logger.warning(f"Reading the training data once before training, to {' and '.join(why)}.")
        watched = frozenset(mark for own in marks.values() for mark in own)
        first_reading = FirstReading(
            stream, columns, hold_out, data.task, is_whole if data.skip_missing else None, watched
        )
        named = first_reading.labels() if named is None else named
    cells = sample.columns if columns.one_hot else {columns.label: named or []}
    classes = {} if data.class_names else sample.classes
    distinct = replace(sample, columns=cells, classes=classes, is_text=sample.is_text and not data.class_names)
    data = replace(data, decimal=decimal_sign([distinct, *tables.values()], columns, data))
    names = use.label_names if not data.class_names or set(use.label_names or ()) == set(_class_names(data)) else None
    given = names or _class_names(data) or None
    rows = sorted(hold_out.rows()) if hold_out is not None else []
    if hold_out is not None:
        tables["validation"] = _kept_table([row for _, row in rows], stream, sample)
    labels, numbers = number_labels({**tables, "train": distinct}, columns, data, given=given, sampled=True)
    held: dict[int, list[Any]] = {}
    if hold_out is not None:
        places = {number: place for place, (number, _) in enumerate(rows)}
        own = numbers["validation"] or []
        group_of = groups_of(own, labels.problem_type)
        held = hold_out.choose(data.validation_split_percentage, lambda kept: group_of(places[kept[0]]))
        chosen = sorted(places[number] for kept in held.values() for number, _ in kept)
        tables["validation"] = tables["validation"].select(chosen)
        numbers["validation"] = [own[place] for place in chosen]
    leave_unlabelled_test_out(tables, numbers, columns, use)
    prepared = _streamed(whole, sample, tables, columns, labels, numbers, held, first_reading, data)
    met = first_reading.met.difference(held) if first_reading is not None else ()
    for split in set(tables).intersection(marks):
        if shared := sum(mark in met for mark in marks[split]):
            prepared.summary.shared[split] = shared
    return prepared


def _scored(splits: Mapping[str, Stream], data: DataArguments, use: Use) -> list[tuple[str, int | None]]:
    """The splits that are read into memory to be scored, and how many rows of each."""
    wanted: list[tuple[str, int | None]] = []
    if use.validate and "validation" in splits:
        wanted.append(("validation", data.max_eval_samples))
    if "test" in splits and (use.test or use.score_test):
        wanted.append(("test", data.max_predict_samples))
    return wanted


def _kept_table(rows: Sequence[Row], stream: Stream, sample: Table) -> Table:
    table = Table.of_rows(
        stream.source, rows, replace(sample.tally), sample.names, unit=stream.unit, is_text=stream.is_text
    )
    return replace(table, classes=stream.classes)


def _streamed(
    stream: Stream,
    sample: Table,
    tables: Mapping[str, Table],
    columns: Columns,
    labels: Labels,
    numbers: Mapping[str, Any],
    held: Mapping[int, list[Any]],
    first_reading: FirstReading | None,
    data: DataArguments,
) -> PreparedData:
    tallies = {"train": stream.tally, **{split: table.tally for split, table in tables.items()}}
    if held:
        del tallies["validation"]
    summary = DataSummary.start(columns.sentence(sample.names), tallies)
    aside = sum(map(len, held.values()))
    count = None if first_reading is None else first_reading.count - aside
    summary.set_aside, summary.labels = aside, say_labels(labels.names, labels.problem_type)
    summary.splits["train"].rows = count
    summary.splits["train"].read = "a stream"
    if first_reading is not None:
        summary.splits["train"].read += f" of {first_reading.count + first_reading.left_out:,} rows"
        summary.splits["train"].left_out = first_reading.left_out
        summary.splits["train"].without_text = first_reading.without_text
    parts = {}
    for split, table in tables.items():
        texts = tuple(filter(None, columns.texts(table.columns)))
        if split in summary.splits:
            parts[split] = usable(split, table, texts, numbers[split], data, summary)
        else:
            places = [table.place(row) for row in range(len(table))]
            parts[split] = Part(texts, numbers[split], range(len(table)), places)
    check_text(sample, columns.text)
    first = tuple(filter(None, columns.texts(sample.columns)))
    part = Part(first, None, range(len(sample)), [])
    streamed = StreamedPart(stream, columns, labels, data.decimal, frozenset(held), part, count)
    labels = cast(Labels, in_units(labels, streamed.numbers(SAMPLE if first_reading is None else None)))
    buffer = data.shuffle_buffer_size or SHUFFLE_BUFFER
    return PreparedData(columns, labels, parts, summary, streamed, buffer)


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


def _given_labels(sample: Table, columns: Columns, data: DataArguments) -> list[Any] | None:
    """The labels as cells of their column, if they are known without reading all data."""
    names, declared = _class_names(data), sample.classes.get(columns.label)
    several = any(isinstance(cell, list) for cell in sample.columns.get(columns.label, ()))
    if names and (declared is not None or data.task == "regression"):
        why = f"has the labels {', '.join(declared)}" if declared is not None else "is a regression"
        raise UserError(f"--class-names {data.class_names}: the data {why}. Leave it out.")
    if names:
        return [[name] for name in names] if several or columns.label_delimiter is not None else list(names)
    if declared is not None or data.task == "regression":
        return list(sample.columns[columns.label])
    return None
