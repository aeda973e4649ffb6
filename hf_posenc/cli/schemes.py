"""`schemes`, `plot` and `check`: the schemes."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hf_posenc import options as shared
from hf_posenc.errors import UserError, one_line, user_errors

from .application import app, loading, plain_console


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


@app.command()
def plot(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SCHEME|CHECKPOINT...",
            help="Schemes, by name, or checkpoints; several are compared on one sheet.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Picture to write: .png, .svg or .pdf.", show_default=False)
    ],
    max_positions: Annotated[int | None, typer.Option(help="Positions shown; default 128.")] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, from 0, of what differs by layer; default: the first with a bias, or 0.")
    ] = None,
    size: shared.SizeOption = "base",
    scheme_kwargs: shared.SchemeKwargsOption = None,
    revision: shared.RevisionOption = None,
    scheme_file: shared.SchemeFileOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Draw what a scheme does to embeddings, queries and keys, or logits: with initial or a checkpoint's weights."""
    from hf_posenc.finetuning.loading import load_any
    from hf_posenc.model.package_config import PosEncConfig
    from hf_posenc.quiet import without_bars
    from hf_posenc.schemes.plots import check_picture_path, plot_comparison, plot_position, save_figure
    from hf_posenc.schemes.scheme_file import register_scheme_file
    from hf_posenc.schemes.sources import is_scheme

    check_picture_path(output)
    if scheme_file is not None:
        register_scheme_file(scheme_file, "+".join(sources))
    if scheme_kwargs is not None and (len(sources) > 1 or not is_scheme(sources[0])):
        raise UserError("--scheme-kwargs goes with one scheme's name. A checkpoint has its own.")
    fields = {"position_embedding_kwargs": shared.json_object("scheme_kwargs", scheme_kwargs)}
    options: dict[str, Any] = {"max_positions": max_positions, "layer": layer, "revision": revision}
    try:
        with without_bars(), user_errors():
            read: list[Any] = [
                PosEncConfig.from_preset(size or "base", position_embedding_type=source, **fields)
                if is_scheme(source)
                else load_any(source, revision=revision, trust_remote_code=True)
                if trust_remote_code
                else source
                for source in sources
            ]
            figure = plot_position(read[0], **options) if len(read) == 1 else plot_comparison(read, **options)
    except (ImportError, OSError) as error:
        raise UserError(one_line(error)) from error
    save_figure(figure, output)
    plain_console().print(f"The picture is in {output}")


@app.command()
def check(
    scheme: Annotated[
        str,
        typer.Argument(
            autocompletion=shared.complete_scheme, help="A positional scheme: see `schemes`.", show_default=False
        ),
    ],
    scheme_kwargs: shared.SchemeKwargsOption = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone; may be given several times.")] = None,
    scheme_file: shared.SchemeFileOption = None,
) -> None:
    """Put a scheme through the conformance checks: padding, packing, gradients, saving, export, remote code, ...

    They take from ten seconds to a minute, most of it for `export` and `remote_code`.
    """
    from hf_posenc.schemes.conformance import check_position
    from hf_posenc.schemes.scheme_file import register_scheme_file

    if scheme_file is not None:
        register_scheme_file(scheme_file, scheme)
    with loading("Running the checks, which takes up to a minute"):
        report = check_position(
            scheme, kwargs=shared.json_object("scheme_kwargs", scheme_kwargs) or {}, checks=only or None
        )
    Console().print(report)
    if not report.ok:
        raise typer.Exit(1)
