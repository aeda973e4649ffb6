"""Answers of a checkpoint to texts, its scores on labelled rows, and files of answers beside the input's columns."""

import contextlib
import csv
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedTokenizerBase

from ..checkpoints.loading import CLASSIFIER, input_length, knowledge, load_model, read_model_config
from ..checkpoints.opening import open_checkpoint
from ..checkpoints.tokenizers import load_checked_tokenizer
from ..data.columns import is_absent, notes_of
from ..data.labels import Labels
from ..data.preparing import Known, labels_of, prepare, texts_of
from ..data.sources import read_split
from ..data.tables import LINE, Table, take_rows
from ..errors import UserError, check_writable, disk_error, one_line, spell
from ..files import expanded, json_text, written_whole
from ..inference.backends import fastest_backend, open_backend
from ..inference.logits import logits_of
from ..inference.windows import Windows, remarks_on_long
from ..options import COUNT, FROM_0_TO_1, Options, check_range
from ..quiet import without_bars
from ..training.classes import class_scores, confusion
from ..training.metrics import ClassificationLoss, answers_from_logits, loss_and_metrics, predictions_from_logits


@dataclass(frozen=True)
class Classifier:
    """A trained model, in float32 on its device, with its tokenizer.

    Attributes:
        model: a PyTorch model, or a `Backend`.
        name: its folder or Hub name.
        folder: where its files lie.
        known: its problem type, its labels, and how the texts that it was trained on were put together.
        backend: what runs it: `torch`, `onnx` or `openvino`.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    name: str
    folder: Path
    known: Known
    backend: str

    def logits(
        self,
        inputs: Iterable[tuple[str, ...]],
        asked: "Asked",
        *,
        long: dict[int, int] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[np.ndarray]:
        """Logits (C,) of inputs as they are asked for, in order; see `logits_of`."""
        return logits_of(
            self.model,
            self.tokenizer,
            inputs,
            asked.batch_size,
            bf16=asked.bf16,
            progress=progress,
            temperature=self.temperature() if asked.calibrated else 1.0,
            windows=asked.windows,
            long=long,
        )

    def temperature(self) -> float:
        """The temperature that training fitted.

        Raises:
            UserError: there is none.
        """
        temperature: Any = notes_of(self.model.config).get("temperature")
        if isinstance(temperature, int | float) and 0 < temperature < math.inf:
            return float(temperature)
        raise UserError(
            f"{self.name!r} has no temperature to calibrate by: `hf-posenc train` fits one on validation rows of one "
            f"label per text, where some are answered wrongly. Leave {spell('calibrated', True)} out."
        )


@without_bars()
def load_classifier(
    checkpoint: str,
    device: str | None = None,
    revision: str | None = None,
    *,
    backend: str | None = None,
    bf16: bool = False,
    throughput: bool = False,
    trust_remote_code: bool = False,
) -> Classifier:
    """A model that labels texts, from a folder or Hub name, in float32 whatever its weights are stored in.

    Args:
        checkpoint: the folder or name.
        device: where it runs. None: a GPU if there is one.
        revision: of the Hub.
        backend: `torch`, `onnx` or `openvino`. None: see `fastest_backend`; with a device, and where the folder
            holds weights, PyTorch.
        bf16: let the graph compute in bfloat16; a PyTorch model gets that where it is run.
        throughput: let an OpenVINO graph take several batches at once, for a file; a single one takes longer then.
        trust_remote_code: run the checkpoint's code.

    Raises:
        UserError: there is no such checkpoint, it isn't a classifier, or the backend can't run it.
    """
    checkpoint = expanded(checkpoint)
    if backend is None:
        backend = "torch" if device not in (None, "cpu") else fastest_backend(checkpoint)
    if backend != "torch" and device not in (None, "cpu"):
        contradiction = f"runs on the processor, not on {spell('device', device)}. Leave one of them out."
        raise UserError(contradiction, parameter="backend", value=backend)
    opened = open_checkpoint(
        checkpoint, revision=revision, trust_remote_code=trust_remote_code, needs_weights=backend == "torch"
    )
    if opened.task != CLASSIFIER:
        architectures = ", ".join(opened.raw.get("architectures") or ()) or "no architecture"
        raise UserError(
            f"{checkpoint!r} holds {architectures}, which doesn't classify texts. Give a checkpoint that `hf-posenc "
            "train` or examples/run_classification.py wrote."
        )
    config = read_model_config(opened)
    tokenizer = load_checked_tokenizer(opened, config)
    model: Any
    if backend == "torch":
        model = load_model(opened, config)
        try:
            model.to(device or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        except (RuntimeError, AssertionError) as error:
            reason = one_line(error)[:80]
            way_out = f"can't be used: {reason}. Leave it out, or give {spell('device', 'cpu')}."
            raise UserError(way_out, parameter="device", value=device) from error
        tokenizer.model_max_length = input_length(model, tokenizer)
    else:
        model = open_backend(checkpoint, backend, bf16=bf16, throughput=throughput)
        model.config, model.name_or_path = config, checkpoint
        tokenizer.model_max_length = min(tokenizer.model_max_length, model.max_length or tokenizer.model_max_length)
    return Classifier(model, tokenizer, checkpoint, opened.folder, knowledge(config, opened), backend)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Parameters of `predict` and `evaluate` that say how texts are answered; their docstrings explain them.

    Raises:
        UserError: a value isn't accepted.
    """

    batch_size: int = 64
    threshold: float | None = None
    top_k: int | None = None
    calibrated: bool = False
    bf16: bool = False
    windows: Windows | None = None

    def __post_init__(self) -> None:
        """Checks each value."""
        check_range("batch_size", self.batch_size, COUNT)
        check_range("top_k", self.top_k, COUNT)
        check_range("threshold", self.threshold, FROM_0_TO_1)


def answers_to(
    classifier: Classifier,
    inputs: Iterable[tuple[str, ...]],
    asked: Asked | None = None,
    *,
    long: dict[int, int] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Answers inputs, in order; see `answers_from_logits` for the answers.

    Args:
        classifier: what `load_classifier` returned.
        inputs: `(text,)`, or `(text, second text)` for pairs.
        asked: how they are answered. None: with the defaults of `predict`.
        long: see `logits_of`.
        progress: called with the number of texts after each batch.

    Yields:
        An answer per input.

    Raises:
        UserError: the model answers NaN, or can't be asked so.
    """
    asked = asked or Asked()
    problem_type = str(classifier.known.problem_type)
    if asked.top_k is not None and problem_type == "regression":
        useless = f"is for labels, and {classifier.name!r} predicts numbers. Leave it out."
        raise UserError(useless, parameter="top_k", value=asked.top_k)
    if asked.threshold is not None and problem_type != "multi_label_classification":
        useless = f"is for several labels per text, and {classifier.name!r} gives one answer. Leave it out."
        raise UserError(useless, parameter="threshold", value=asked.threshold)
    least = 0.5 if asked.threshold is None else asked.threshold
    names = classifier.known.label_names
    for logits in classifier.logits(inputs, asked, long=long, progress=progress):
        yield answers_from_logits(logits[None], names, problem_type, threshold=least, top_k=asked.top_k)[0]


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        metrics: loss and the metrics of its problem type.
        classes, confusion: see `class_scores` and `confusion` of `training.classes`.
        examples: how many rows were scored.
        wrong: how many of them have another label; of a regression none.
        notes: what was read, used and left out, and which texts were read in windows.
        doubts: what is odd about the data, and which texts were cut.
    """

    metrics: dict[str, float]
    classes: list[dict[str, Any]]
    confusion: list[list[int]] | None
    examples: int
    wrong: int
    notes: list[str]
    doubts: list[str]

    def as_dict(self, data: str) -> dict[str, Any]:
        """Builds what `evaluate` returns, and its command prints as JSON: metrics, and the classes if there are any."""
        by_class = {"classes": self.classes, "confusion": self.confusion} if self.classes else {}
        return {"data": data, "examples": self.examples, **self.metrics, **by_class}


def score_checkpoint(
    checkpoint: str | Path,
    options: Options,
    asked: Asked,
    *,
    split: str | None = None,
    errors: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Opens a checkpoint and scores it on a file, or on one split of a folder or a data set.

    Args:
        checkpoint: its folder, or its name on the Hub.
        options: of the data.
        asked: how the texts are answered.
        split: of a folder or a data set.
        errors: a file for the rows that are answered wrongly, with all columns as they were read, and `line`.
        progress: called with the number of texts after each batch.

    Raises:
        UserError: something can't be read, the data has no labels, or the parameters contradict each other.
    """
    if errors is not None:
        check_output(errors, options.data, "errors")
    trusts = options.trust_remote_code
    classifier = load_classifier(str(checkpoint), options.device, options.revision, trust_remote_code=trusts)
    if errors is not None and classifier.known.problem_type == "regression":
        useless = f"lists wrong labels, and {classifier.name!r} predicts numbers. Leave it out."
        raise UserError(useless, parameter="errors", value=errors)
    numbers = len(classifier.known.label_names)
    if classifier.known.problem_type == "regression" and numbers > 1:
        raise UserError(f"{classifier.name!r} predicts {numbers} numbers for each text, and one can be scored.")
    table = read_split(options, split, classifier.known.dialect)
    prepared = prepare({"test": table}, options, classifier.known)
    part, kind = prepared.splits["test"], prepared.labels.problem_type
    right = labels_of(part)
    if right is None:
        missing = f"The data has no labels in column {prepared.columns.label!r}. Name it: {spell('label_column')}."
        raise UserError(missing)
    long: dict[int, int] = {}
    texts = zip(*texts_of(part), strict=True)
    logits = np.stack(list(classifier.logits(texts, asked, long=long, progress=progress)))
    labels = np.asarray(right)
    predicted = predictions_from_logits(logits, kind)
    differ = (predicted != labels).reshape(len(part), -1).any(1)
    wrong = [] if kind == "regression" else np.flatnonzero(differ).tolist()
    if errors is not None:
        _write_wrong(errors, table, part[LINE][wrong] if wrong else [], logits[wrong], prepared.labels)
    loss = ClassificationLoss(kind, label_scale=getattr(classifier.model.config, "label_scale", 1.0))
    notes, doubts = remarks_on_long(long.values(), classifier.tokenizer, asked.windows)
    return Evaluation(
        metrics=loss_and_metrics(loss, logits, labels),
        classes=class_scores(labels, predicted, prepared.labels.names),
        confusion=confusion(labels, predicted, prepared.labels.names),
        examples=len(part),
        wrong=len(wrong),
        notes=[prepared.summary.line, *notes],
        doubts=[*prepared.summary.doubts, *doubts],
    )


def _write_wrong(path: str, table: Table, lines: list[int], logits: np.ndarray, labels: Labels) -> None:
    """Writes the rows of these lines, with all columns as they were read, and `line` and the answer beside them."""
    row_of = {line: row for row, line in enumerate(table.numbers)}
    rows = take_rows(table.rows, [row_of[line] for line in lines])
    answers = answers_from_logits(logits, labels.names, labels.problem_type)
    located = ({"line": line, **answer} for line, answer in zip(lines, answers, strict=True))
    write_answers(path, rows, located, labels.names)


_WRITTEN = (".csv", ".jsonl", ".parquet")
_AT_ONCE = 1000
"""Rows that are written together."""
_NESTED = {"probabilities": "probability", "predictions": "prediction"}
"""Keys of answers with a value for each name, and what their columns begin with."""


def check_output(path: str, source: str | None = None, parameter: str = "output") -> None:
    """Refuses a path without the suffix of a format, of a file that is read, or where no file can be made.

    Args:
        path: of the file.
        source: the file or folder that is read.
        parameter: by which the path was given.
    """
    file = Path(os.path.realpath(path))  # a link is written through
    read = Path(source or "-")
    if Path(path).suffix.lower() not in _WRITTEN:
        unknown = f"names no format that is written. End it in {', '.join(_WRITTEN)}."
        raise UserError(unknown, parameter=parameter, value=path)
    check_writable(spell(parameter, path), file.parent)
    if file.is_dir():
        raise UserError("is a folder. Give the name of a file.", parameter=parameter, value=path)
    places = (file, file.parent, Path(path).absolute().parent)
    if read.exists() and any(place.exists() and place.samefile(read) for place in places):
        raise UserError("would be a file of the data that is read. Name another.", parameter=parameter, value=path)


JOINS_LABELS = "|"
"""Stands between several labels in one cell of a .csv."""


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


def write_answers(path: str, rows: pa.Table, answers: Iterable[dict[str, Any]], names: Sequence[str]) -> int:
    """Writes each input's columns with its answer, in the format of the suffix, whole or not at all.

    Args:
        path: see `check_output`; its folder is made.
        rows: the inputs, with all columns as they were read. A .parquet keeps them as they are.
        answers: to the inputs, in their order.
        names: of the labels.

    Returns:
        The number of rows.

    Raises:
        UserError: the file can't be written.
    """
    write = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}[Path(path).suffix.lower()]
    try:
        with written_whole(path) as temporary:
            write(temporary, rows, iter(answers), names)
    except (OSError, pa.ArrowException) as error:
        why = disk_error(error) or one_line(error)
        raise UserError(f"{path!r} can't be written: {why}. Name another file, or write .jsonl.") from error
    return rows.num_rows


def _parts(rows: pa.Table, answers: Iterator[dict[str, Any]]) -> Iterator[tuple[pa.Table, list[dict[str, Any]]]]:
    """Some rows and their answers at a time."""
    for start in range(0, rows.num_rows, _AT_ONCE):
        part = rows.slice(start, _AT_ONCE)
        yield part, list(islice(answers, part.num_rows))


def _write_jsonl(path: Path, rows: pa.Table, answers: Iterator[dict[str, Any]], names: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for line in json_lines(rows, answers):
            file.write(f"{line}\n")


def _write_csv(path: Path, rows: pa.Table, answers: Iterator[dict[str, Any]], names: Sequence[str]) -> None:
    """All cells in quotes: then a cell of several lines is read again, whatever ends a line in it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        if not rows.num_rows:
            writer.writerow(rows.column_names)
        for number, (part, given) in enumerate(_parts(rows, answers)):
            flat = [flat_answer(answer, names) for answer in given]
            if number == 0:
                if isinstance(flat[0].get("label"), list):
                    _cell([*names])  # each may be among later answers
                writer.writerow([*(input_name(name, flat[0]) for name in rows.column_names), *flat[0]])
            for row, answer in zip(_values(part), flat, strict=True):
                writer.writerow(map(_cell, (*row.values(), *answer.values())))


def _write_parquet(path: Path, rows: pa.Table, answers: Iterator[dict[str, Any]], names: Sequence[str]) -> None:
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for part, given in _parts(rows, answers):
            table = with_answers(part, [flat_answer(answer, names) for answer in given])
            writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)
    if writer is None:
        pq.write_table(rows, path)


def with_answers(rows: pa.Table, answers: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows, their columns as they are, with those of their answers, each a `flat_answer`."""
    kinds: dict[type, pa.DataType] = {str: pa.string(), list: pa.list_(pa.string()), bool: pa.bool_(), int: pa.int64()}
    schema = pa.schema({name: kinds.get(type(value), pa.float64()) for name, value in answers[0].items()})
    added = pa.Table.from_pylist(list(answers), schema)
    fields = [field.with_name(input_name(field.name, answers[0])) for field in rows.schema]
    metadata = _renamed_for_pandas(rows.schema.metadata or {}, answers[0])
    return pa.table([*rows.columns, *added.columns], schema=pa.schema([*fields, *schema], metadata))


def _renamed_for_pandas(metadata: dict[bytes, bytes], answer: Collection[str]) -> dict[bytes, bytes]:
    """A schema's notes, in which pandas' types stand by the columns' new names, not by those of the answer's."""
    if b"pandas" not in metadata:
        return metadata
    noted = json.loads(metadata[b"pandas"])

    def renamed(name: Any) -> Any:
        return input_name(name, answer) if isinstance(name, str) else name

    noted["index_columns"] = [*map(renamed, noted.get("index_columns", []))]
    for column in noted.get("columns", []):
        column |= {key: renamed(column[key]) for key in ("name", "field_name") if key in column}
    return {**metadata, b"pandas": json.dumps(noted).encode()}


def json_lines(rows: pa.Table, answers: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line of JSON for each input: its columns, then the answer."""
    given = iter(answers)
    for start in range(0, rows.num_rows, _AT_ONCE):
        for row in _values(rows.slice(start, _AT_ONCE)):
            answer = next(given)  # one by one: it is shown as soon as it is there
            yield json_text({input_name(name, answer): value for name, value in row.items()} | answer)


def _values(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python's values.

    Raises:
        UserError: Python has no value for a cell, such as for a day in the year 20,000.
    """
    try:
        return rows.to_pylist()
    except (ValueError, OverflowError) as error:
        reason = f"a column holds what Python has no value for: {one_line(error)}"
        raise UserError(f"The input can't be written as text: {reason}. Write .parquet, which keeps it.") from error


def _cell(value: Any) -> Any:
    """One value: several words are joined, other lists and objects are JSON; empty where it is missing.

    Raises:
        UserError: a word that would be joined to others holds what stands between them.
    """
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        if len(value) > 1 and (unclear := [part for part in value if JOINS_LABELS in part]):
            raise UserError(f"{unclear[0]!r} holds {JOINS_LABELS!r}, which joins a list in a .csv. Write .jsonl.")
        return JOINS_LABELS.join(value)
    if isinstance(value, list | dict):
        return json_text(value)
    if isinstance(value, bytes):
        return json_text(value).strip('"')
    return None if is_absent(value) else value
