"""Writes files of answers; answers keep the input's columns."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UserError, disk_error, one_line
from ..files import written_whole

_WRITTEN = (".csv", ".jsonl", ".parquet")
_BETWEEN_LABELS = "|"
_NESTED = {"probabilities": "probability", "predictions": "prediction"}
"""Keys of answers with a value for each name, and what their columns begin with."""


def check_output(path: str, source: str | None = None, option: str = "--output") -> str:
    """The format that a path's suffix names.

    Args:
        path: of the file.
        source: the file that is read.
        option: by which the path was given.

    Raises:
        UserError: it names none, or the file is the one that is read.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in _WRITTEN:
        raise UserError(f"{option} {path!r} names no format that is written. End it in {', '.join(_WRITTEN)}.")
    if file.is_dir():
        raise UserError(f"{option} {path!r} is a folder. Give the name of a file.")
    if source not in (None, "-") and file.exists() and file.samefile(str(source)):
        raise UserError(f"{option} {path!r} is the file that is read. Name another.")
    return kind


def joined_row(row: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The columns of an input, then its answer; a column that an answer also has is renamed: `input_label`.

    So are those of an earlier answer, which would read as this one's.
    """
    taken, was_answered = {*row, *answer}, "confidence" in row
    kept = {}
    for name, value in row.items():
        new = name
        is_old = was_answered and name.startswith(("probability_", "probabilities"))
        while (name in answer or is_old) and new in taken:
            new = f"input_{new}"
        taken.add(new)
        kept[new] = value
    return kept | answer


def flat_answer(answer: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An answer as columns of one value each: `probability_LABEL` and `prediction_NAME`; None where it has none."""
    flat = {name: value for name, value in answer.items() if name not in _NESTED}
    for nested in _NESTED.keys() & answer.keys():
        flat |= {f"{_NESTED[nested]}_{name}": answer[nested].get(name) for name in names}
    return flat


def write_answers(
    path: str, rows: Iterable[dict[str, Any]], answers: Iterable[dict[str, Any]], names: Sequence[str]
) -> int:
    """Writes each input's columns with its answer, in the format of the suffix, whole or not at all.

    Args:
        path: see `check_output`; its folder is made.
        rows: the columns of the inputs.
        answers: to the inputs, in their order.
        names: of the labels.

    Returns:
        The number of rows.

    Raises:
        UserError: it can't be written.
    """
    kind = check_output(path)
    pairs = zip(rows, answers, strict=True)
    try:
        with written_whole(path) as temporary:
            if kind == ".jsonl":
                with temporary.open("w", encoding="utf-8", newline="") as handle:
                    lines = (json_line(row, answer) for row, answer in pairs)
                    return sum(handle.write(f"{line}\n") > 0 for line in lines)
            flat = [joined_row(row, flat_answer(answer, names)) for row, answer in pairs]
            if kind == ".parquet":
                _write_parquet(temporary, flat)
            else:
                _write_csv(temporary, flat)
            return len(flat)
    except OSError as error:
        raise UserError(f"--output {path!r} can't be written: {disk_error(error) or one_line(error)}.") from error


def json_line(row: dict[str, Any], answer: dict[str, Any]) -> str:
    """One line of JSON: the columns of the input, then the answer."""
    return json.dumps(joined_row(row, answer), ensure_ascii=False, default=str)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UserError(f"A .parquet file can't hold these columns: {one_line(error)}. Write .jsonl.") from error
    pq.write_table(table, path)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes all cells in quotes: so a cell of several lines is read again, whatever ends a line in it."""
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(names), quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """One value: several labels are joined, other lists and objects are JSON."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _BETWEEN_LABELS.join(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
