"""The Typer application: errors in one line, notes, what commands share, and the entry point."""

import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from typer.core import TyperCommand
from typer.exceptions import TyperException

import hf_posenc
from hf_posenc.errors import UserError, run_script, spelling
from hf_posenc.options import READING, Options, output_option

from .spelling import CommandLineSpelling
from .streams import OutputLost, output_may_be_lost, outputs

CheckpointName = Annotated[
    str, typer.Argument(help="A checkpoint's folder, or its name on the Hub.", show_default=False)
]
Output = Annotated[str, output_option(help="The folder to write, whole or not at all.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what hf-posenc wrote there.")]


class WritingCommand(TyperCommand):
    """A command that leaves files. What it prints tells of them: where that can't be printed, it goes on.

    Of any other command, and with `--dry-run`, standard output is the answer: without it the command fails.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        if not ctx.params.get("dry_run"):
            output_may_be_lost()
        return super().invoke(ctx)


app = typer.Typer(
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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Encoders whose positional scheme is one config value: train, evaluate, predict."""
    running = context.invoked_subcommand
    commands = cast(Any, context.command).commands
    if running in commands:
        context.with_resource(spelling(CommandLineSpelling(commands, str(running))))


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these `Options` behind its own parameters; they stand in its context alone."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        options = inspect.signature(Options).parameters

        @functools.wraps(command)
        def called(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name in signature.parameters})

        parameters = [*signature.parameters.values(), *(options[name] for name in names)]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return called

    return decorated


def reads_data(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of reading, but those left out."""
    return with_options(*(name for name in READING if name not in left_out))


def data_options(context: typer.Context) -> Options:
    """The options of the data, and others of a training, among a command's own."""
    return Options(**{name: value for name, value in context.params.items() if name in Options.__dataclass_fields__})


@contextlib.contextmanager
def loading(text: str = "Loading PyTorch and transformers") -> Iterator[None]:
    """Shows a spinner beside a text during what takes long, such as the import of PyTorch."""
    console = Console(stderr=True)
    with console.status(text) if console.is_interactive else contextlib.nullcontext():
        yield


def main() -> None:
    """Entry point: runs a command; any error ends in one line and an exit code (see `format_cli_error`)."""
    logging.getLogger("hf_posenc").addHandler(cast(logging.Handler, logging.lastResort))  # warnings, as they are
    if "_HF_POSENC_COMPLETE" in os.environ:  # a shell that completes a word
        app(prog_name="hf-posenc")
    with outputs():
        run_script(_run)


def _run() -> None:
    """Runs the command that the words of the command line name."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("hf-posenc", sys.argv[1:] or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        if end.exit_code:
            sys.exit(end.exit_code)
    except OutputLost as lost:
        if lost.reason is not None:  # else the reader, such as head, has all that it wanted
            print(f"Error: standard output can't be written to: {lost.reason}.", file=sys.stderr)
            sys.exit(1)
    except TyperException as error:  # of the words of the command line
        where = getattr(getattr(error, "ctx", None), "command_path", "hf-posenc")
        text = error.format_message().rstrip(".").replace("Value error, ", "")
        raise UserError(f"{text}{'' if text.endswith('?') else '.'} `{where} --help` lists what there is.") from error
