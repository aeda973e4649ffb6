"""Writes files of answers row by row; answers keep the input's columns."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..data.inputs import Text
from ..errors import UserError, disk_error, one_line
from ..files import written_whole

if TYPE_CHECKING:  # where answers go is checked before PyTorch is imported
    from .prediction import Prediction, PredictionTask

_WRITTEN = (".csv", ".jsonl", ".parquet")
"""What `--output` writes."""
_BETWEEN_LABELS = "|"
_CHUNK = 1000
_NESTED = {"probabilities": "probability", "predictions": "prediction"}
"""Keys of answers with a value for each name, and what their columns begin with."""


def check_output(path: str, source: str | None = None) -> str:
    """The format that a path's suffix names.

    Raises:
        UserError: it names none, or the file is the one that is read.
    """
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in _WRITTEN:
        raise UserError(f"--output {path!r} names no format that is written. End it in {', '.join(_WRITTEN)}.")
    if file.is_dir():
        raise UserError(f"--output {path!r} is a folder. Give the name of a file.")
    if source is not None and source != "-" and file.exists() and file.samefile(source):
        raise UserError(f"--output {path!r} is the file that is read. Name another.")
    return kind


def kept_names(columns: Iterable[str], answer: Iterable[str]) -> dict[str, str]:
    """New names of the input's columns that an answer also has: `label` becomes `input_label`."""
    columns, answer = list(columns), set(answer)
    taken = answer | set(columns)
    names = {}
    for name in columns:
        new = name
        while name in answer and new in taken:
            new = f"input_{new}"
        taken.add(new)
        names[name] = new
    return names


def json_line(prediction: "Prediction", task: "PredictionTask") -> str:
    """One line of JSON: the columns of the input, then the answer."""
    columns = prediction.input.columns
    kept = kept_names(columns, task.columns)
    row = {kept[name]: value for name, value in columns.items()} | prediction.answer
    return json.dumps(row, ensure_ascii=False, default=str)


def write_answers(
    path: str, predictions: Iterable["Prediction"], task: "PredictionTask", inputs: Iterable[Text], names: Sequence[str]
) -> int:
    """Writes each input's columns with its answer, in the format of the suffix, whole or not at all.

    Args:
        path: see `check_output`; its folder is made.
        predictions: written as they come.
        task: what the answers are.
        inputs: what the predictions are of, to be read once more where the format wants to know their types.
        names: all columns of the inputs.

    Returns:
        The number of rows.

    Raises:
        UserError: it can't be written.
    """
    kind = check_output(path)
    try:
        with written_whole(path) as temporary:
            if kind == ".jsonl":
                with temporary.open("w", encoding="utf-8", newline="") as handle:
                    return sum(handle.write(f"{json_line(prediction, task)}\n") > 0 for prediction in predictions)
            columns = answer_columns(task)
            kept = kept_names(names, columns)
            rows = (_flat_row(prediction, task, kept) for prediction in predictions)
            if kind == ".parquet":
                return _write_parquet(temporary, rows, _schema(inputs, kept, columns))
            return _write_csv(temporary, rows, [*kept.values(), *columns])
    except OSError as error:
        raise UserError(f"--output {path!r} can't be written: {disk_error(error) or one_line(error)}.") from error


def flat_answer(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """An answer as columns of one value each: `probability_LABEL` and `prediction_NAME`; None where it has none."""
    flat = {name: value for name, value in answer.items() if name not in _NESTED}
    for nested in _NESTED.keys() & answer.keys():
        flat |= {f"{_NESTED[nested]}_{name}": answer[nested].get(name) for name in names}
    return flat


def answer_columns(task: "PredictionTask") -> dict[str, pa.DataType]:
    """The columns that a task's answers fill, with their types; see `flat_answer`."""
    kinds = dict.fromkeys(task.names, pa.float64())
    text = pa.list_(pa.string()) if task.problem_type == "multi_label_classification" else pa.string()
    kind = {"prediction": pa.float64()}
    return flat_answer({name: kinds if name in _NESTED else kind.get(name, text) for name in task.columns}, task.names)


def _flat_row(prediction: "Prediction", task: "PredictionTask", kept: Mapping[str, str]) -> dict[str, Any]:
    columns = {kept[name]: value for name, value in prediction.input.columns.items()}
    return columns | flat_answer(prediction.answer, task.names)


def _write_csv(path: Path, rows: Iterable[dict[str, Any]], names: list[str]) -> int:
    """Writes all cells in quotes: so a cell of several lines is read again, whatever ends a line in it."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, names, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writeheader()
        return sum(writer.writerow({name: _cell(value) for name, value in row.items()}) > 0 for row in rows)


def _cell(value: Any) -> Any:
    """One value: several labels are joined, other lists and objects are JSON."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _BETWEEN_LABELS.join(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


def _schema(inputs: Iterable[Text], kept: Mapping[str, str], columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The types of all columns; pyarrow infers those of the input from all values."""
    schema = pa.schema([])
    for chunk in _chunks(inputs):
        try:
            table = pa.Table.from_pylist([{name: text.columns.get(name) for name in kept} for text in chunk])
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"The columns of the input don't fit a .parquet file: {one_line(error)}. Give --output a .jsonl file."
            ) from error
    fields = [pa.field(new, schema.field(name).type) for name, new in kept.items()]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in columns.items())])


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> int:
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in _chunks(rows):
            count += len(chunk)
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
    return count


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
