"""`predict` and `evaluate`: a checkpoint's answers, and their scores."""

import sys
from functools import partial
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from hf_posenc import options as shared
from hf_posenc.errors import UserError
from hf_posenc.files import expanded, json_text
from hf_posenc.options import refuse_given

from .application import Checkpoint, app, data_options, loading, reads_data

_BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Texts per forward pass.")]
_Split = Annotated[str | None, typer.Option(help="Of --data, where that has several. [test]", show_default=False)]


@app.command()
@reads_data(*shared.OF_LABELS)
def predict(
    context: typer.Context,
    checkpoint: Checkpoint,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.", show_default=False)] = None,
    text_pair: Annotated[str | None, typer.Option(help="Second text of a pair; goes with one text.")] = None,
    data: shared.DataOption = None,
    data_config: shared.DataConfigOption = None,
    split: _Split = None,
    output: Annotated[
        str | None, shared.output_option(help="Write .csv, .jsonl or .parquet: all columns, and the answers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    batch_size: _BatchSize = 32,
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
        typer.Option(help="Default: the fastest that is installed and that the folder has files for."),
    ] = None,
    device: shared.DeviceOption = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Label texts, a pair, a file or standard input (-): labels with probabilities, or numbers.

    The file's other columns stay beside the answers; a column `label` becomes `input_label`. Empty texts get an answer
    and a warning.
    """
    options, output = data_options(context), expanded(output)
    if bool(texts) == bool(data):
        raise UserError("Give texts to classify, or --data FILE (- for standard input), and not both.")
    if text_pair is not None and len(texts or []) != 1:
        raise UserError("--text-pair goes with exactly one text. For many pairs, give a .csv or .jsonl as --data.")
    if output is not None and as_json:
        raise UserError("--json prints the answers, --output writes them to a file. Give one of them.")
    with loading():
        from tqdm import tqdm

        from hf_posenc.finetuning import prediction
        from hf_posenc.training.inference import cut_texts_in_words

    if output is not None:
        prediction.check_output(output, options.data)
    way: Any = {"backend": backend, "bf16": bf16, "trust_remote_code": trust_remote_code}
    classifier = prediction.load_classifier(checkpoint, device, revision, throughput=data is not None, **way)
    if classifier.backend != "torch":
        precision = [name for name in (classifier.model.precision, "in bfloat16" if bf16 else None) if name]
        print(f"Backend: {', '.join([classifier.backend, *precision])}.", file=sys.stderr)
    rows, inputs, remarks = _read(classifier, options, split, texts, text_pair)
    asked: Any = {"threshold": threshold, "top_k": top_k, "calibrated": calibrated, "bf16": bf16}
    truncated: set[int] = set()
    with tqdm(desc="Labelling", total=len(inputs), unit=" texts", leave=False, disable=None, delay=1) as bar:
        answers = prediction.predict(classifier, inputs, batch_size, truncated=truncated, progress=bar.update, **asked)
        if output is not None:
            written = prediction.write_answers(output, rows, answers, classifier.known.label_names)
            print(f"{written:,} {'answer is' if written == 1 else 'answers are'} in {output}", file=sys.stderr)
        elif as_json:
            for line in prediction.json_lines(rows, answers):
                print(line, flush=True)
        else:
            given = list(answers)
            table = Table("text", *given[0])
            for parts, answer in zip(inputs, given, strict=True):
                table.add_row(*map(escape, (" || ".join(parts), *map(_cell, answer.values()))))
            Console().print(table)
    for remark in (cut_texts_in_words(truncated, classifier.tokenizer), *remarks):
        if remark:
            print(remark, file=sys.stderr)


def _read(
    classifier: Any, options: shared.Options, split: str | None, texts: list[str] | None, text_pair: str | None
) -> tuple[Any, list[tuple[str, ...]], list[str]]:
    """Every row of a file or of the command line, the inputs that the model reads for them, and what is said of them.

    A single text of the command line is taken as already joined.
    """
    import pyarrow as pa

    from hf_posenc.data.columns import as_input, find_columns
    from hf_posenc.data.reading import Source, empty_in_words, names_of, refuse_surrogates, where
    from hf_posenc.data.sources import read_split

    remarks, known = [], classifier.known.columns
    if texts:
        refuse_given(options, ("data_config", *shared.READING), "is for --data, and texts are given")
        if split is not None:
            raise UserError(f"--split {split!r} is for --data, and texts are given. Leave it out.")
        cells = {"text": texts} | ({} if text_pair is None else {"text_pair": [text_pair]})
        refuse_surrogates((f"Row {row}", text) for column in cells.values() for row, text in enumerate(column))
        source = Source(pa.table(cells), "Your texts")
        table = source.table()
        inputs = [as_input(row, known) for row in zip(*cells.values(), strict=True)]
    else:
        source = read_split(options, split, classifier.known.dialect)
        table = source.table()
        columns = find_columns(table, options, known, needs_label=False)
        inputs = list(zip(*columns.texts(table), strict=True))
        remarks.append(f"{table.info.dataset_name}: {columns.sentence(names_of(table))}; {table.info.description}.")
    remarks.append(empty_in_words(str(table.info.dataset_name), inputs, partial(where, table)))
    return source.rows, inputs, remarks


def _cell(value: Any) -> str:
    """A part of an answer of any task, as the table shows it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:.4g}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    return value if isinstance(value, str) else f"{value:.4g}"


@app.command()
@reads_data()
def evaluate(
    context: typer.Context,
    checkpoint: Checkpoint,
    data: shared.DataOption,
    data_config: shared.DataConfigOption = None,
    split: _Split = None,
    errors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the rows that are answered wrongly.")
    ] = None,
    batch_size: _BatchSize = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    device: shared.DeviceOption = None,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Score a checkpoint on labelled data, a file or a split of a data set: loss and the metrics of its task."""
    options, errors = data_options(context), expanded(errors)
    with loading():
        from tqdm import tqdm

        from hf_posenc.finetuning import prediction
        from hf_posenc.training.classes import class_tables

    if errors is not None:
        prediction.check_output(errors, options.data, "--errors")
    classifier = prediction.load_classifier(checkpoint, device, revision, trust_remote_code=trust_remote_code)
    if errors is not None and classifier.known.problem_type == "regression":
        raise UserError(f"--errors {errors!r} lists wrong labels, and {checkpoint!r} predicts numbers. Leave it out.")
    with tqdm(desc="Scoring", unit=" texts", leave=False, disable=None, delay=1) as bar:
        found = prediction.evaluate(classifier, options, split, batch_size=batch_size, progress=bar.update)
    for line in (found.data.line, *found.data.doubts, found.cut):
        if line:
            print(line, file=sys.stderr)
    if errors is not None:  # before the scores, whose reader may have left
        written = prediction.write_answers(errors, found.errors, found.answers, classifier.known.label_names)
        print(f"{written:,} {'row is' if written == 1 else 'rows are'} in {errors}", file=sys.stderr)
    if as_json:
        by_class = {"classes": found.classes, "confusion": found.confusion} if found.classes else {}
        print(json_text({"data": data, "examples": found.examples} | found.metrics | by_class))
    else:
        print(f"{data}: {found.examples:,} examples")
        for name, value in found.metrics.items():
            print(f"{name:<20}{value:>10.4f}")
        Console().print(Markdown(class_tables("data", found.classes, found.confusion, "--json")))
