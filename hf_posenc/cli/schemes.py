"""`schemes`, `plot` and `check`: the schemes."""

import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hf_posenc import options as shared
from hf_posenc.files import expanded

from .application import WritingCommand, app, loading

if TYPE_CHECKING:
    from hf_posenc.schemes.conformance import CheckResult


@app.command()
def schemes() -> None:
    """List the positional schemes: what each is, its parameters at base size, its length limit, its cost."""
    from hf_posenc.schemes.describe import describe_schemes

    table = Table("scheme", "what it is", "parameters", "max length", "cost", title="Positional schemes")
    table.columns[2].justify = table.columns[3].justify = "right"
    table.columns[0].no_wrap = True  # names are to be copied
    table.columns[1].overflow = table.columns[4].overflow = "fold"
    for row in describe_schemes():
        length = "any" if row.max_length is None else f"{row.max_length:,}"
        table.add_row(row.name, row.summary, f"{row.parameters:,}", length, row.cost)
    Console().print(table)
    Console().print(
        "Parameters at base size (12 layers, D = 768, 12 heads, 512 positions). model_cards/SCHEME.md in the "
        "repository says when to choose one; `hf-posenc plot SCHEME -o out.png` draws it.",
        style="dim",
    )


@app.command(cls=WritingCommand)
def plot(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A scheme's name, or a checkpoint: a folder, or a Hub name.")],
    output: Annotated[str, shared.output_option(help="Picture to write: .png, .svg or .pdf.")],
    max_positions: Annotated[int | None, typer.Option(help="Positions shown. [128]")] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, from 0, of what differs by layer. [the first with a bias, or 0]")
    ] = None,
    size: shared.SizeOption = "mini",
    scheme_kwargs: shared.SchemeKwargsOption = None,
    revision: shared.RevisionOption = None,
    scheme_file: shared.SchemeFileOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Draw what a scheme adds, turns or biases, and what of order the model sees: a new one, or a checkpoint."""
    from hf_posenc.plotting import plot as draw

    draw(**context.params)
    print(f"The picture is in {expanded(output)}")


@app.command()
def check(
    scheme: Annotated[
        str, typer.Argument(autocompletion=shared.complete_scheme, help="A positional scheme: see `schemes`.")
    ],
    scheme_kwargs: shared.SchemeKwargsOption = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone; repeatable.")] = None,
    scheme_file: shared.SchemeFileOption = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also run the exported graph in ONNX Runtime and compare: a minute more.")
    ] = False,
) -> None:
    """Put a scheme through the conformance checks: padding, packing, gradients, saving, export, remote code, ...

    They take from ten seconds to a minute, most of it for `export` and `remote_code`.
    """
    from hf_posenc.schemes.conformance import check_scheme
    from hf_posenc.schemes.scheme_file import register_scheme

    if scheme_file is not None:
        register_scheme(scheme_file, scheme)
    kwargs = shared.json_object("scheme_kwargs", scheme_kwargs) or {}
    with loading("Running the checks, which takes up to a minute"):
        report = check_scheme(scheme, scheme_kwargs=kwargs, only=only or None)
        if onnx:
            report = replace(report, results=(*report.results, _check_onnx(scheme, kwargs)))
    print(report)
    if not report.ok:
        raise typer.Exit(1)


def _check_onnx(scheme: str, kwargs: dict[str, Any]) -> "CheckResult":
    """Exports a tiny classifier with the scheme to ONNX, and compares it with PyTorch on texts, as `export` does."""
    from hf_posenc.data.texts import own_texts
    from hf_posenc.data.tokenizer import train_tokenizer
    from hf_posenc.exporting.run import export
    from hf_posenc.quiet import without_bars
    from hf_posenc.schemes.conformance import CheckResult
    from hf_posenc.schemes.conformance.case import Case, describe

    started = time.perf_counter()
    tokenizer = train_tokenizer(own_texts())
    with tempfile.TemporaryDirectory() as folder, without_bars():
        tokenizer.save_pretrained(f"{folder}/model")
        try:
            Case(scheme, None, kwargs).classifier(vocab_size=len(tokenizer)).save_pretrained(f"{folder}/model")
            export(f"{folder}/model", f"{folder}/onnx", to="onnx")
        except Exception as error:  # whatever the scheme, the exporter or the runtime raises
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # names the operation
            message = f"{describe(cause)}. docs/own-scheme.md lists the pitfalls of ONNX"
            return CheckResult("onnx", "failed", message, time.perf_counter() - started, error)
    return CheckResult("onnx", "passed", "", time.perf_counter() - started)
