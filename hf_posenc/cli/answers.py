"""`predict` and `evaluate`: a checkpoint's answers, and their scores."""

import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from hf_posenc import options as shared
from hf_posenc.errors import UserError, spell
from hf_posenc.files import expanded, json_text

from .application import CheckpointName, app, data_options, loading, reads_data

if TYPE_CHECKING:
    from hf_posenc.finetuning.functions import Answers

_BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Texts per forward pass.")]
_Split = Annotated[str | None, typer.Option(help="Of --data, where that has several. [test]", show_default=False)]


@app.command()
@reads_data(*shared.OF_LABELS)
def predict(
    context: typer.Context,
    checkpoint: CheckpointName,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.", show_default=False)] = None,
    text_pair: Annotated[str | None, typer.Option(help="Second text of a pair; goes with one text.")] = None,
    data: shared.DataOption = None,
    data_config: shared.DataConfigOption = None,
    split: _Split = None,
    output: Annotated[
        str | None, shared.output_option(help="Write .csv, .jsonl or .parquet: all columns, and the answers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    batch_size: _BatchSize = 64,
    windows: shared.WindowsOption = None,
    stride: shared.StrideOption = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="0 TO 1", help="Several labels per text: give those above this. [0.5]"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Give the n most probable labels.")] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Divide logits by the temperature that training fitted.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Mixed precision: faster where it is, less exact.")] = False,
    backend: Annotated[
        Literal["torch", "onnx", "openvino"] | None,
        typer.Option(help="Default: PyTorch for weights, else the fastest that is installed."),
    ] = None,
    device: shared.DeviceOption = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Label texts, a pair, a file or standard input (--data -): labels with probabilities, or numbers.

    The file's other columns stay beside the answers; a column `label` becomes `input_label`. Empty texts get an answer
    and a warning.
    """
    if output is not None and as_json:
        raise UserError(f"prints the answers, {spell('output')} writes them to a file. Give one.", parameter="as_json")
    if texts == ["-"]:
        stdin = f"{spell('data', '-')} {spell('format', 'txt')}"
        raise UserError(f"'-' would be a text. Standard input is read by {stdin}, or of another format.")
    output = expanded(output)
    with loading():
        from tqdm import tqdm

        from hf_posenc.finetuning.functions import open_answers
        from hf_posenc.finetuning.prediction import Asked
        from hf_posenc.inference.windows import Windows

    asked = Asked(
        batch_size=batch_size,
        windows=Windows.of(windows, stride),
        threshold=threshold,
        top_k=top_k,
        calibrated=calibrated,
        bf16=bf16,
    )
    answers = open_answers(
        checkpoint,
        texts,
        asked,
        data_options(context),
        text_pair=text_pair,
        split=split,
        output=output,
        backend=backend,
    )
    classifier = answers.classifier
    if classifier.backend != "torch":
        precision = [name for name in (classifier.model.precision, "in bfloat16" if bf16 else None) if name]
        print(f"Backend: {', '.join([classifier.backend, *precision])}.", file=sys.stderr)
    with tqdm(desc="Labelling", total=len(answers.inputs), unit=" texts", leave=False, disable=None, delay=1) as bar:
        _give(answers, answers.compute(bar.update), output, as_json)
    for remark in chain.from_iterable(answers.remarks()):
        print(remark, file=sys.stderr)


def _give(answers: "Answers", computed: Iterator[dict[str, Any]], output: str | None, as_json: bool) -> None:
    """Writes answers into a file, or prints them."""
    from hf_posenc.finetuning.prediction import json_lines, write_answers

    if output is not None:
        written = write_answers(output, answers.rows, computed, answers.classifier.known.label_names)
        print(f"{written:,} {'answer is' if written == 1 else 'answers are'} in {output}", file=sys.stderr)
    elif as_json:
        for line in json_lines(answers.rows, computed):
            print(line, flush=True)
    else:
        _print_table(answers.inputs, list(computed))


def _print_table(inputs: list[tuple[str, ...]], answers: list[dict[str, Any]]) -> None:
    """A line per text with its answer."""
    table = Table("text", *answers[0])
    for parts, answer in zip(inputs, answers, strict=True):
        table.add_row(*map(escape, (" || ".join(parts), *map(_table_cell, answer.values()))))
    Console().print(table)


def _table_cell(value: Any) -> str:
    """A part of any answer, as the table shows it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_table_cell(number)}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.7g}"  # as float32 holds a number


@app.command()
@reads_data()
def evaluate(
    context: typer.Context,
    checkpoint: CheckpointName,
    data: shared.DataOption,
    data_config: shared.DataConfigOption = None,
    split: _Split = None,
    errors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the rows that are answered wrongly.")
    ] = None,
    batch_size: _BatchSize = 64,
    windows: shared.WindowsOption = None,
    stride: shared.StrideOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    device: shared.DeviceOption = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Score a checkpoint on labelled data, a file or a split of a data set: loss and metrics."""
    errors = expanded(errors)
    with loading():
        from tqdm import tqdm

        from hf_posenc.finetuning.prediction import Asked, score_checkpoint
        from hf_posenc.inference.windows import Windows
        from hf_posenc.training.classes import class_tables
        from hf_posenc.training.report import digits

    asked = Asked(batch_size=batch_size, windows=Windows.of(windows, stride))
    with tqdm(desc="Scoring", unit=" texts", leave=False, disable=None, delay=1) as bar:
        scores = score_checkpoint(
            checkpoint,
            data_options(context),
            asked,
            split=split,
            errors=errors,
            progress=bar.update,
        )
    for remark in (*scores.notes, *scores.doubts):
        print(remark, file=sys.stderr)
    if errors is not None:
        print(f"{scores.wrong:,} {'row is' if scores.wrong == 1 else 'rows are'} in {errors}", file=sys.stderr)
    if as_json:
        print(json_text(scores.as_dict(str(data))))
    else:
        print(f"{data}: {scores.examples:,} examples")
        for name, value in scores.metrics.items():
            print(f"{name:<20}{digits(value):>10}")
        Console().print(Markdown(class_tables("data", scores.classes, scores.confusion, "--json")))
