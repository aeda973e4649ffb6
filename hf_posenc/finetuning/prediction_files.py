"""Writes files of answers; answers keep the input's columns."""

import csv
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

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
    read = Path(source or "-")
    if file.exists() and read.exists() and any(place.samefile(read) for place in (file, file.parent)):
        raise UserError(f"{option} {path!r} is a file of the data that is read. Name another.")
    return kind


def input_name(name: str, answer: Collection[str]) -> str:
    """The name of an input's column beside an answer: `input_label` where the answer has a `label` too.

    Columns of an earlier answer's probabilities, which would read as this one's, are renamed as well.
    """
    first = re.sub("^(input_)*", "", name)
    return f"input_{name}" if first in answer or first.startswith(("probabilities", "probability_")) else name


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
    try:
        with written_whole(path) as temporary:
            if kind == ".jsonl":
                lines = [f"{json_line(row, answer)}\n" for row, answer in zip(rows, answers, strict=True)]
                temporary.write_text("".join(lines), encoding="utf-8", newline="")
                return len(lines)
            flat = [_joined(row, flat_answer(answer, names)) for row, answer in zip(rows, answers, strict=True)]
            if kind == ".parquet":
                pd.DataFrame(flat, dtype=object).to_parquet(temporary)
            else:  # with all cells in quotes a cell of several lines is read again, whatever ends a line in it
                cells = [{name: _cell(value) for name, value in row.items()} for row in flat]
                frame = pd.DataFrame(cells, dtype=object)
                frame.to_csv(temporary, index=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
            return len(flat)
    except pa.ArrowException as error:
        raise UserError(f"A .parquet file can't hold these columns: {one_line(error)}. Write .jsonl.") from error
    except OSError as error:
        raise UserError(f"--output {path!r} can't be written: {disk_error(error) or one_line(error)}.") from error


def json_line(row: dict[str, Any], answer: dict[str, Any]) -> str:
    """One line of JSON: the columns of the input, then the answer."""
    return json.dumps(_joined(row, answer), ensure_ascii=False, default=str)


def _joined(row: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {input_name(name, answer): value for name, value in row.items()} | answer


def _cell(value: Any) -> Any:
    """One value: several labels are joined, other lists and objects are JSON."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _BETWEEN_LABELS.join(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
