"""Functions of the commands `train`, `predict` and `evaluate`, with the same parameters."""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.console import Console

from ..data.columns import as_input, find_columns
from ..data.memory import values_in_memory
from ..data.reading import doubts_of_empty, refuse_surrogates
from ..data.sources import read_split
from ..data.tables import as_table
from ..errors import UserError, checks_types, readable, spell
from ..files import expanded
from ..inference.windows import Windows, remarks_on_long
from ..options import OF_LABELS, READING, Options, reading_options, refuse_given
from ..quiet import alone, silence
from . import prediction
from .train import TrainingResult, fine_tune

logger = logging.getLogger(__name__)


@checks_types
@alone()
def train(
    data: str | Path, output: str | Path, *, baselines: bool = True, verbose: int = 1, **options: Any
) -> TrainingResult:
    """Trains a classifier or a regressor on a file, and writes the checkpoint with its results and its card.

    Args:
        data: a file, a folder, a data set's name on the Hub, or `blimp_order`, which comes along.
        output: the folder to write; while it trains, checkpoints to resume from lie in it.
        baselines: score the majority and linear models on words, too.
        verbose: 1 prints what the command does, 0 nothing; then doubts are warned of.
        **options: others of `hf-posenc train`, by their names with underscores; see `hf_posenc.options.Options`.

    Returns:
        The folder, the report, the model and its tokenizer.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Diverged: the loss or the weights are no longer finite.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    chosen = Options.of(data=str(data), output=str(output), **options)
    if verbose:
        return fine_tune(chosen, baselines=baselines)
    with silence():
        result = fine_tune(chosen, baselines=baselines, console=Console(quiet=True))
    _remark([], result.report.doubts())
    return result


def _remark(notes: Iterable[str], doubts: Iterable[str]) -> None:
    """Logs notes, and warns the caller of doubts."""
    for note in notes:
        logger.info(note)
    for doubt in doubts:
        warnings.warn(doubt, stacklevel=3)


@dataclass
class Answers:
    """A checkpoint's answers to texts or to the rows of a file, computed as they are read.

    Attributes:
        rows: the inputs, with all columns as they were read.
        inputs: what the model reads of each.
        read: what was read of a file, in words; nothing of texts.
        doubts: what to doubt of the inputs: some are empty, or a text is a file's name.
    """

    classifier: prediction.Classifier
    rows: pa.Table
    inputs: list[tuple[str, ...]]
    read: str
    asked: prediction.Asked
    doubts: list[str]
    long: dict[int, int] = field(default_factory=dict)

    def compute(self, progress: Callable[[int], object] | None = None) -> Iterator[dict[str, Any]]:
        """An answer per input, in order; `progress` is called with the number of inputs after each batch."""
        return prediction.answers_to(self.classifier, self.inputs, self.asked, long=self.long, progress=progress)

    def remarks(self) -> tuple[list[str], list[str]]:
        """Says of answers that are computed what was read and how, and what to doubt: texts cut, and the inputs."""
        notes, doubts = remarks_on_long(self.long.values(), self.classifier.tokenizer, self.asked.windows)
        return [*filter(None, [self.read]), *notes], [*doubts, *self.doubts]


def open_answers(
    checkpoint: str | Path,
    texts: Sequence[str] | None,
    asked: prediction.Asked,
    options: Options,
    *,
    text_pair: str | None,
    split: str | None,
    output: str | None,
    backend: str | None,
) -> Answers:
    """Opens a checkpoint and the inputs for `predict`; parameters that it doesn't name are read from `options`.

    Raises:
        UserError: the parameters contradict each other, or something can't be read.
    """
    if bool(texts) == bool(options.data):
        raise UserError(f"Give texts to classify, or {spell('data')} with a file (- for standard input), and not both.")
    if text_pair is not None and len(texts or ()) != 1:
        raise UserError(f"goes with exactly one text. Many pairs are for {spell('data')}.", parameter="text_pair")
    if output is not None:
        prediction.check_output(output, options.data)
    classifier = prediction.load_classifier(
        str(checkpoint),
        options.device,
        options.revision,
        throughput=options.data is not None,
        backend=backend,
        bf16=asked.bf16,
        trust_remote_code=options.trust_remote_code,
    )
    if texts:
        refuse_given(options, ("data_config", *READING), f"is for {spell('data')}, and texts are given")
        if split is not None:
            useless = f"is for {spell('data')}, and texts are given. Leave it out."
            raise UserError(useless, parameter="split", value=split)
        return _of_texts(classifier, texts, text_pair, asked)
    return _of_a_file(classifier, options, split, asked)


def _of_texts(
    classifier: prediction.Classifier, texts: Sequence[str], text_pair: str | None, asked: prediction.Asked
) -> Answers:
    """Answers to texts; a single one is taken as already joined."""
    cells = {"text": list(texts)} | ({} if text_pair is None else {"text_pair": [text_pair]})
    refuse_surrogates((f"Row {row}", text) for column in cells.values() for row, text in enumerate(column))
    table = as_table(pa.table(cells), "Your texts")
    inputs = [as_input(row, classifier.known.columns) for row in zip(*cells.values(), strict=True)]
    files = [text for text in texts if os.path.isfile(text)]
    doubts = doubts_of_empty(table.name, inputs, table.where)
    if files:
        doubts.append(f"{files[0]!r} was taken as a text. It is a file, too, which {spell('data')} reads.")
    return Answers(classifier, table.rows, inputs, "", asked, doubts)


def _of_a_file(
    classifier: prediction.Classifier, options: Options, split: str | None, asked: prediction.Asked
) -> Answers:
    """Answers to every row of a file, or of a split of a folder or a data set."""
    table = read_split(options, split, classifier.known.dialect)
    columns = find_columns(table, options, classifier.known.columns, needs_label=False)
    inputs = list(zip(*columns.texts(table), strict=True))
    read = f"{table.name}: {columns.sentence(table.names)}; {table.summary}."
    return Answers(classifier, table.rows, inputs, read, asked, doubts_of_empty(table.name, inputs, table.where))


def _list_of_texts(texts: Any) -> list[str] | None:
    """Texts in memory as a list.

    Raises:
        UserError: one of them isn't a string.
    """
    if texts is None or isinstance(texts, str):
        return None if texts is None else [texts]
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        wanted = f"is of type {type(texts).__name__}. Give strings; hf_posenc.load(...).predict reads tables."
        raise UserError(wanted, parameter="texts")
    listed = values_in_memory(texts) if isinstance(texts, Iterable) else [texts]
    if wrong := [text for text in listed if not isinstance(text, str)]:
        raise UserError(f"holds {wrong[0]!r}, which is no text. Give strings; pairs are for data.", parameter="texts")
    return listed


@checks_types
@alone()
def predict(
    checkpoint: str | Path,
    texts: Any = None,
    *,
    text_pair: str | None = None,
    data: str | Path | None = None,
    data_config: str | None = None,
    split: str | None = None,
    output: str | Path | None = None,
    batch_size: int = 64,
    windows: str | None = None,
    stride: int | None = None,
    threshold: float | None = None,
    top_k: int | None = None,
    calibrated: bool = False,
    bf16: bool = False,
    backend: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **reading: Any,
) -> pd.DataFrame:
    """Labels texts, a pair or the rows of a file: labels with probabilities, or numbers.

    Args:
        checkpoint: a folder, or a name on the Hub.
        texts: to label: a string, or several in a list, an array or a column of a table.
        text_pair: the second text of a pair; goes with one text.
        data: a file, a folder, or a data set's name on the Hub, instead of texts.
        data_config: the configuration of a data set on the Hub.
        split: of `data`, where that has several. None: `test`.
        output: also write a .csv, .jsonl or .parquet file.
        batch_size: texts per forward pass.
        windows: answer texts that the model can't read whole from windows of them, by the `mean` or the `max` of the
            windows' probabilities, in a regression by the `mean` of their numbers. None: such texts are cut.
        stride: tokens from the beginning of a window to that of the next. None: half of what a window holds.
        threshold: of several labels per text those with a probability above this are given. None: 0.5.
        top_k: give the n most probable labels. None: all.
        calibrated: divide logits by the temperature that training fitted.
        bf16: compute in bfloat16: faster where that is, less exact.
        backend: `torch`, `onnx` or `openvino`. None: PyTorch for weights, else the fastest installed.
        device: `cpu`, `cuda` or `mps`. None: a GPU if there is one.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code.
        **reading: how `data` is read: `text_column`, `join`, `delimiter`, `quoting`, `encoding`, `format`.

    Returns:
        A row per text, in order: the columns of the input, then the answer. A column `label` of the input is
        `input_label`.

    Raises:
        UserError: the checkpoint or the data can't be read, or the parameters contradict each other.
    """
    options = reading_options(
        reading,
        *OF_LABELS,
        data=data,
        data_config=data_config,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    place = None if output is None else expanded(str(output))
    asked = prediction.Asked(
        batch_size=batch_size,
        windows=Windows.of(windows, stride),
        threshold=threshold,
        top_k=top_k,
        calibrated=calibrated,
        bf16=bf16,
    )
    answers = open_answers(
        checkpoint,
        _list_of_texts(texts),
        asked,
        options,
        text_pair=text_pair,
        split=split,
        output=place,
        backend=backend,
    )
    names = answers.classifier.known.label_names
    with readable("The input", "A data frame can't hold it: `hf-posenc predict --output FILE.parquet` keeps it."):
        answers.rows.to_pandas(integer_object_nulls=True)  # said before anything is computed
    given = list(answers.compute())
    if place is not None:
        prediction.write_answers(place, answers.rows, given, names)
    _remark(*answers.remarks())
    flat = [prediction.flat_answer(answer, names) for answer in given]
    table: pd.DataFrame = prediction.with_answers(answers.rows, flat).to_pandas(integer_object_nulls=True)
    return table


@checks_types
@alone()
def evaluate(
    checkpoint: str | Path,
    data: str | Path,
    *,
    data_config: str | None = None,
    split: str | None = None,
    errors: str | Path | None = None,
    batch_size: int = 64,
    windows: str | None = None,
    stride: int | None = None,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **reading: Any,
) -> dict[str, Any]:
    """Scores a checkpoint on labelled data: the loss and the metrics of its problem type.

    Args:
        checkpoint: a folder, or a name on the Hub.
        data: a file, a folder, or a data set's name on the Hub.
        data_config: the configuration of a data set on the Hub.
        split: of `data`, where that has several. None: `test`.
        errors: write the rows that are answered wrongly into this .csv, .jsonl or .parquet file.
        batch_size: texts per forward pass.
        windows: answer texts that the model can't read whole from windows of them, see `predict`. None: they are cut.
        stride: tokens from the beginning of a window to that of the next. None: half of what a window holds.
        device: `cpu`, `cuda` or `mps`. None: a GPU if there is one.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code.
        **reading: how `data` is read: `text_column`, `join`, `label_column`, `label_delimiter`, `label_names`,
            `skip_missing`, `delimiter`, `quoting`, `encoding`, `format`.

    Returns:
        The metrics by name, with `data`, `examples` and, of classes, `classes` and `confusion`.

    Raises:
        UserError: the data can't be read, has no labels, or other labels than the model's.
    """
    options = reading_options(
        reading,
        data=data,
        data_config=data_config,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    place = None if errors is None else expanded(str(errors))
    asked = prediction.Asked(batch_size=batch_size, windows=Windows.of(windows, stride))
    scores = prediction.score_checkpoint(checkpoint, options, asked, split=split, errors=place)
    _remark(scores.notes, scores.doubts)
    return scores.as_dict(str(data))
