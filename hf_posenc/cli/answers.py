"""`predict` and `evaluate`: a checkpoint's predictions, and their scores."""

import contextlib
import json
import os
import sys
import tempfile
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from hf_posenc.data.options import DataArguments
from hf_posenc.errors import UserError
from hf_posenc.training.options import NO_SCORES

from .application import app, loading, plain_console, show_metrics
from .options import TEXT_COLUMNS, Checkpoint, Revision, Trust, declared_options

_File = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        help="Read .txt (a text per line), .csv, .tsv, .json, .jsonl (also .gz) or .parquet; - is standard input.",
    ),
]
_Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Write .csv, .jsonl or .parquet: all columns of the file, and the answers.",
        show_default=False,
    ),
]
_Format = Annotated[
    Literal["table", "jsonl"] | None,
    typer.Option("--format", help="On the screen: `table` (default) or `jsonl` (one JSON object per line)."),
]
_Threshold = Annotated[
    float,
    typer.Option(
        min=0, max=1, metavar="0 TO 1", help="Several labels per text: give those with a probability above this."
    ),
]
_TopK = Annotated[int | None, typer.Option(min=1, metavar="N", help="Give the n most probable labels; default: all.")]
_Bf16 = Annotated[
    Literal["true", "false"] | None,
    typer.Option(help="Mixed precision: faster where the processor has it, less exact."),
]
_Backend = Annotated[
    Literal["torch", "onnx", "openvino"] | None,
    typer.Option(
        metavar="NAME",
        help="torch, onnx or openvino. Default: the fastest installed that the folder has files for.",
        show_default=False,
    ),
]


@app.command()
@declared_options(
    "output",
    delimiter=None,
    quoting=None,
    encoding=None,
    text_column_names=TEXT_COLUMNS,
    text_column_delimiter=None,
)
def predict(
    checkpoint: Checkpoint,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.", show_default=False)] = None,
    text_pair: Annotated[str | None, typer.Option(help="Second text of a pair; goes with one text.")] = None,
    file: _File = None,
    output: _Output = None,
    output_format: _Format = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Texts per forward pass.")] = 32,
    threshold: _Threshold = 0.5,
    top_k: _TopK = None,
    bf16: _Bf16 = None,
    backend: _Backend = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.")] = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    **columns: Any,
) -> None:
    """Label texts, a pair, a file or standard input: labels with probabilities, or numbers.

    The file's other columns stay beside the answers; a column `label` becomes `input_label`. Empty texts get an answer
    and a warning.
    """
    options = DataArguments(**columns)
    with loading():
        _check_options(texts, text_pair, file, output, output_format, options)
        from tqdm import tqdm

        from hf_posenc.data import remembered_columns
        from hf_posenc.data.inputs import NO_TEXT, Text, read_inputs
        from hf_posenc.finetuning.prediction import CutTexts, load_classifier
        from hf_posenc.finetuning.prediction import predict as run

    in_bf16 = bf16 == "true"
    classifier = load_classifier(
        checkpoint,
        device,
        revision,
        backend=backend,
        bf16=in_bf16,
        throughput=file is not None,
        trust_remote_code=trust_remote_code,
    )
    read, trained_on = None, remembered_columns(classifier.model.config)
    if file:
        read = read_inputs(file, options, trained_on, twice=output is not None)
    errors = plain_console(stderr=True)
    if classifier.backend != "torch":
        errors.print(f"Backend: {classifier.backend}, in {'bfloat16' if in_bf16 else 'float32'}.", style="dim")
    elif in_bf16:
        errors.print("Computing in bfloat16 mixed precision: less exact than float32.", style="dim")
    if texts and text_pair is None and trained_on is not None and trained_on.is_pair:
        errors.print("The model was trained on pairs of texts. Give the second one with --text-pair.")
    inputs: Any = read or [Text(text, text_pair) for text in texts or []]
    cut = CutTexts()
    total, hidden = len(inputs) if read is None else read.count, output is None or not errors.is_terminal
    with tqdm(desc="Labelling", total=total, unit=" texts", leave=False, disable=hidden) as bar:
        predictions = run(
            classifier,
            inputs,
            batch_size,
            threshold=threshold,
            top_k=top_k,
            bf16=in_bf16,
            window=1 if file == "-" else 32,  # standard input is answered as it comes
            progress=bar.update,
        )
        _give_answers(cut.watched(predictions), classifier.task, inputs, output, output_format)
    for remark in [*([read.line(), *read.remarks()] if read is not None else []), cut.sentence(classifier.tokenizer)]:
        if remark:
            errors.print(remark)
    for number, text in enumerate(texts or [], 1):
        if not text.strip():
            errors.print(f"Text {number} is empty, {NO_TEXT}")


def _check_options(
    texts: list[str] | None,
    text_pair: str | None,
    file: str | None,
    output: str | None,
    output_format: str | None,
    options: DataArguments,
) -> None:
    """Refuses options and files of `predict` that don't fit, before PyTorch is imported."""
    if output_format is not None and output is not None:
        raise UserError(f"--format is for the screen; --output {output!r} has one by its suffix. Give one of them.")
    if bool(texts) == bool(file):
        raise UserError("Give texts to classify, or --file FILE (- for standard input), and not both.")
    if text_pair is not None and len(texts or []) != 1:
        raise UserError("--text-pair goes with exactly one text. For many pairs, give a .csv or .jsonl --file.")
    from hf_posenc.data.inputs import check_input  # here, for it takes a second
    from hf_posenc.finetuning.early import check_data
    from hf_posenc.finetuning.prediction_files import check_output

    if file is not None:
        check_input(file)
    if output is not None:
        check_output(output, file)
    if file is not None and file != "-" and not file.removesuffix(".gz").endswith(".txt"):
        check_data(replace(options, test_file=file))


def _give_answers(predictions: Any, task: Any, inputs: Any, output: str | None, output_format: str | None) -> None:
    """Writes answers to a file, or prints them."""
    from rich.markup import escape

    from hf_posenc.data.inputs import Inputs
    from hf_posenc.finetuning.prediction_files import json_line, write_answers

    if output is not None:
        names = inputs.names if isinstance(inputs, Inputs) else inputs[0].columns
        written = write_answers(output, predictions, task, inputs, list(names))
        plain_console(stderr=True).print(f"{written:,} {'answer is' if written == 1 else 'answers are'} in {output}")
        return
    if output_format == "jsonl":
        for prediction in predictions:
            print(json_line(prediction, task), flush=True)
        return
    heads = ("prediction",) if task.problem_type == "regression" else ("label", "probabilities")
    table = Table("text", *heads)
    for prediction in predictions:
        text = prediction.input
        shown = text.text if text.text_pair is None else f"{text.text} || {text.text_pair}"
        table.add_row(*map(escape, (shown, *_cells(prediction.answer))))
    Console().print(table)


def _cells(answer: dict[str, Any]) -> tuple[str, ...]:
    """An answer of any task, as the table shows it."""
    if "probabilities" not in answer:
        numbers = answer.get("predictions") or {"": answer["prediction"]}
        return (", ".join(f"{name} {number:.4g}".strip() for name, number in numbers.items()),)
    label = answer["label"]
    shares = ", ".join(f"{name} {share:.3f}" for name, share in answer["probabilities"].items())
    return (", ".join(label) or "(none)" if isinstance(label, list) else label, shares)


@app.command()
@declared_options(
    "split",
    delimiter=None,
    quoting=None,
    encoding=None,
    label_names=None,
    text_column_names=TEXT_COLUMNS,
    label_column_name="Label column. Default: as trained.",
    label_delimiter=None,
    text_column_delimiter=None,
)
def evaluate(
    checkpoint: Checkpoint,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Labelled data: .csv, .json, .jsonl, .parquet.")
    ] = None,
    dataset_name: Annotated[
        str | None, typer.Option(help="A Hub data set, a folder of split files, or blimp_order.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of --dataset-name.")] = "test",
    skip_missing: Annotated[bool, typer.Option("--skip-missing", help="Leave rows without label or text out.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    trust_remote_code: Trust = False,
    **columns: Any,
) -> None:
    """Score a checkpoint on labelled data, a file or a split of a data set: loss and the metrics of its task."""
    if (file is None) == (dataset_name is None):
        raise UserError("Give the data: --file FILE, or --dataset-name NAME, and not both.")
    # Any other split counts as a test, in messages too.
    role = "validation" if file is None and split in ("validation", "valid", "val", "dev") else "test"
    source = {"test_file": file} if file else {"dataset_name": dataset_name, f"{role}_split_name": split}
    kind = {"do_eval": True} if role == "validation" else {"do_predict": True, "score_test": True}
    with loading():
        from hf_posenc.finetuning.early import check_data

        check_data(DataArguments(**source, **columns))
        from hf_posenc.finetuning import fine_tune, make_arguments

    # Whatever the Trainer prints goes to standard error: standard output holds the result alone.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        result = fine_tune(
            *make_arguments(
                model_name_or_path=checkpoint,
                trust_remote_code=trust_remote_code,
                output_dir=folder,
                skip_missing=skip_missing,
                per_device_eval_batch_size=batch_size,
                disable_tqdm=as_json,
                **source,
                **kind,
                **columns,
            ),
            console=Console(stderr=True),
        )
    prefix = "eval_" if role == "validation" else "test_"
    metrics = {
        name.removeprefix(prefix): float(value)
        for name, value in result.metrics.items()
        if not name.endswith(NO_SCORES)
    }
    examples = next(iter(result.summary.examples.values()))
    if as_json:
        about = {"data": file or dataset_name, "split": role if file else split, "examples": examples}
        print(json.dumps(about | metrics))
        return
    where = f"{os.path.basename(file)}, as test data" if file else f"{dataset_name}, split {split!r}"
    plain_console().print(f"{where}: {examples:,} examples")
    show_metrics(metrics)
