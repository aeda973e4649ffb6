"""Options and arguments that several commands share, and the parsers of their values."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hf_posenc.errors import UserError, check_is_checkpoint, check_local


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """Shell completion from a list of choices."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def scheme_names() -> list[str]:
    """The table of schemes, as it stands in its source: completion can't wait for PyTorch."""
    source = Path(__file__).parents[1] / "model" / "configuration_posenc.py"
    table = source.read_text(encoding="utf-8").partition("POSITIONS.update(")[2].partition("\n)")[0]
    return re.findall(r"(\w+)=", table)


def complete_scheme(incomplete: str) -> list[str]:
    """Completion of a scheme's name in the shell."""
    return one_of(*scheme_names())(incomplete)


complete_preset = one_of("tiny", "mini", "small", "base")


def _checkpoint(name: str) -> str:
    check_is_checkpoint(name)  # before PyTorch is imported
    return name


def here_or_hub(parameter: typer.CallbackParam, name: str | None) -> str | None:
    """Refuses a wrong local path before PyTorch is imported, and before the Hub is asked for it."""
    if name is not None:
        check_local(f"--{parameter.name}", name)
    return name


Checkpoint = Annotated[
    str,
    typer.Argument(help="A checkpoint's folder, or its name on the Hub.", show_default=False, callback=_checkpoint),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a checkpoint on the Hub.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the checkpoint's code, for a scheme of its author's own.")
]
TextColumns = Annotated[
    str | None,
    typer.Option(help="Text column; two, with a comma, for pairs. Default: those the model was trained on, or text."),
]
Delimiter = Annotated[str | None, typer.Option(help="Between csv columns; default: found.")]
TextDelimiter = Annotated[str | None, typer.Option(help="Join text columns with this; no pairs.")]
SchemeKwargs = Annotated[str | None, typer.Option(metavar="JSON", help="The scheme's own arguments.")]
RopeParameters = Annotated[str | None, typer.Option(metavar="JSON", help="RoPE's parameters.")]
SchemeFile = Annotated[str | None, typer.Option(help="A Python file with a scheme of your own.", show_default=False)]


def words(text: str) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers between commas.

    Raises:
        UserError: one isn't.
    """
    parts = words(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise UserError(f"--{option} {text!r} are no whole numbers. Write 64 or 64,128.")
    return [int(part) for part in parts]
