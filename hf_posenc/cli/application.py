"""The Typer application: errors in one line, notes, and the entry point. Its commands are in the files beside it."""

import contextlib
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import hf_posenc
from hf_posenc.errors import UserError, format_cli_error, leave_process_group, with_home

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer may bring its own click, or import it


class _Ended(Exception):
    """Carries an exit of Typer's past its own handling, so that we print the line."""


@contextlib.contextmanager
def _as_user_errors(ctx: Any) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        raise _Ended from error
    except _UsageError as error:
        where = getattr(getattr(error, "ctx", None) or ctx, "command_path", "hf-posenc")
        text = str(getattr(error, "format_message", error.__str__)()).rstrip(".").replace("Value error, ", "")
        raise UserError(f"{text}{'' if text.endswith('?') else '.'} `{where} --help` lists what there is.") from error


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:  # the help
            return super().parse_args(ctx, args)
        with _as_user_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _as_user_errors(ctx):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    name="hf-posenc",
    no_args_is_help=True,
    rich_markup_mode=None,  # a line for each option
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hf-posenc {hf_posenc.__version__}")
        raise typer.Exit()


@app.callback()
def _hf_posenc(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Encoders whose positional scheme is one config value: train, evaluate, predict."""


def plain_console(*, stderr: bool = False) -> Console:
    """Where a line is printed as it is: names hold no markup, and paths are copied whole."""
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def show_metrics(metrics: dict[str, float]) -> None:
    """Prints a table of scores."""
    table = Table("metric", "value")
    table.columns[1].justify = "right"
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)


class _Notes(logging.Handler):
    """Prints the package's warnings, wrapped to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if sys.stderr.isatty():
            text = textwrap.fill(text, shutil.get_terminal_size().columns - 1)
        print(text, file=sys.stderr)


_NOTES = _Notes()


@contextlib.contextmanager
def loading(text: str = "Loading PyTorch and transformers") -> Iterator[None]:
    """Shows a spinner beside a text during what takes long, such as the import of PyTorch."""
    console = Console(stderr=True)
    with console.status(text) if console.is_interactive else contextlib.nullcontext():
        yield


def main() -> None:
    """Entry point: runs a command; any error ends in one line and an exit code (see `format_cli_error`)."""
    logging.getLogger("hf_posenc").addHandler(_NOTES)
    sys.argv[1:] = with_home(sys.argv[1:])
    try:
        app(prog_name="hf-posenc")
    except SystemExit as end:
        if not end.code:
            leave_process_group()
        raise
    except (Exception, KeyboardInterrupt) as caught:
        error = (caught.__cause__ or caught) if isinstance(caught, _Ended) else caught
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has all that it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        from rich.markup import escape

        line, code = format_cli_error(error)
        kind, _, text = line.partition(":")
        if line:
            errors = Console(stderr=True, highlight=False)
            errors.soft_wrap = not errors.is_terminal
            errors.print(f"[red]{kind.capitalize()}:[/red]{escape(text)}")
        sys.exit(code)
