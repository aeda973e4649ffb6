"""`compare` and `report`: schemes side by side."""

import shlex
from typing import Annotated, Any, Literal

import typer

from hf_posenc import options as shared

from .application import WritingCommand, app, loading, reads_data


def _seeds(text: str) -> int | list[int]:
    """Reads a number of seeds, or a list of them."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} says neither how many seeds, nor which: 5, or 0,1,2.") from error
    return numbers if len(numbers) > 1 else numbers[0]


@app.command(cls=WritingCommand)
@reads_data(shared.OF_SEVERAL_LABELS)
def compare(
    context: typer.Context,
    output: Annotated[str, shared.output_option(help="Folder for the results.", show_default=False)],
    plan: Annotated[
        str | None, typer.Option(help="A YAML file that says what is compared, or the name of a built-in plan.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="File, folder with train.csv and test.csv, Hub name, `probes` or `halves`; may be repeated."),
    ] = None,
    schemes: Annotated[str | None, typer.Option(help="Schemes with commas, or all.")] = None,
    seeds: Annotated[
        Any, typer.Option(parser=_seeds, metavar="<str>", help="How many seeds, or which: 0,1,2. Default 5.")
    ] = None,
    scheme_file: Annotated[
        list[str] | None,
        typer.Option(help="A Python file with a scheme of your own, for --schemes; may be given more than once."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The scheme that others are compared with. Default: none, or the first one.")
    ] = None,
    size: shared.SizeOption = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Start from a checkpoint, converted to each scheme; or from converted/{scheme}.")
    ] = None,
    options: Annotated[str | None, typer.Option(metavar="JSON", help="Options of `train`, such as epochs.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Choose each scheme's rate: 3 trials, on a seed and rows not reported.")
    ] = False,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep each run's model, in models.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read the data, list the runs, make none.")] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Give each run to a Ray cluster, as a task.")] = False,
) -> None:
    """Compare schemes: the same encoder, data, seeds and budget; only positions change.

    Finished runs are skipped: the same command resumes after Ctrl-C, and adds seeds or schemes to a folder. Several
    processes may share a folder: each run is made by one of them. When no run is missing, the report is written;
    `hf-posenc report` writes it earlier, too. Lengths and numbers of examples stand in a plan. `--plan quick` is the
    quick start.
    """
    with loading():
        from hf_posenc.comparison.compare import compare as run

    comparison = run(**context.params)
    if dry_run:
        print(*comparison.runs, sep="\n")
        return
    if comparison.missing and not comparison.has_ended:
        there = f"hf-posenc report {shlex.quote(str(comparison.folder))}"
        print(f"Runs that are missing: {len(comparison.missing)}. What is there: {there}")
        raise typer.Exit(1 if comparison.failed else 0)
    print(comparison)
    print(f"The report is in {comparison.folder / 'report.md'}")
    if comparison.failed:
        raise typer.Exit(1)
    if plan == "quick":
        print("Next, your own file: hf-posenc train -o runs/mine --data mine.csv")


@app.command()
def report(
    results: Annotated[str, typer.Argument(help="A folder of `compare`.", show_default=False)],
    format: Annotated[Literal["latex"] | None, typer.Option(help="Print the scores as a table: latex.")] = None,
) -> None:
    """Write the report of a comparison: report.md with its pictures, and all results in results.csv."""
    from hf_posenc.comparison import Comparison

    comparison = Comparison(results)
    if format == "latex":
        print(comparison.to_latex())
        return
    path = comparison.report()
    if missing := comparison.missing:
        print(f"Runs that are missing: {len(missing)}. The report says which.")
    print(f"The report is in {path}")
