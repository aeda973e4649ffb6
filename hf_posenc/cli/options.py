"""Arguments that several commands share, and the parsers of their values; `hf_posenc.options` has the options."""

from typing import Annotated

import typer

from hf_posenc.errors import UserError, dashed
from hf_posenc.options import Options, words

Checkpoint = Annotated[str, typer.Argument(help="A checkpoint's folder, or its name on the Hub.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the model in OUT.")]


def data_options(context: typer.Context) -> Options:
    """The options of the data, and others of a training, among a command's own."""
    return Options(**{name: value for name, value in context.params.items() if name in Options.__dataclass_fields__})


def numbers(option: str, text: str | None) -> list[int] | None:
    """Whole numbers between commas; None stays None.

    Raises:
        UserError: one isn't.
    """
    if text is None:
        return None
    parts = words(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise UserError(f"{dashed(option)} {text!r} are no whole numbers. Write 64 or 64,128.")
    return [int(part) for part in parts]
