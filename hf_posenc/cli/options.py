"""Options and arguments that several commands share, and the parsers of their values."""

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, overload

import typer

from hf_posenc.data.options import DataArguments
from hf_posenc.errors import UserError, check_is_checkpoint, dashed
from hf_posenc.options import is_json, kind_of
from hf_posenc.schemes.names import known_schemes
from hf_posenc.training.options import ClassificationOptions, ModelArguments

DECLARED = {item.name: item for kind in (DataArguments, ModelArguments, ClassificationOptions) for item in fields(kind)}
"""The options of `hf-posenc train` that this package declares, by name."""


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """Shell completion from a list of choices."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def complete_scheme(incomplete: str) -> list[str]:
    """Completion of a scheme's name in the shell."""
    return one_of(*known_schemes())(incomplete)


complete_preset = one_of("tiny", "mini", "small", "base")


def declared_option(name: str, help: str | None = None, panel: str | None = None) -> Any:
    """What Typer has to know of an option of `hf-posenc train`.

    Args:
        name: as it is declared in `DataArguments`, `ModelArguments` or `ClassificationOptions`.
        help: what another command says instead.
        panel: in which the help shows it.
    """
    item = DECLARED[name]
    about, kind = item.metadata["option"], kind_of(item.type)
    metavar = item.metadata.get("metavar") or ("BOOL" if kind is bool else "JSON" if is_json(item.type) else None)
    names = about.accepts.names if about.accepts else ()
    completions = complete_scheme if name == "position_embedding_type" else one_of(*names) if names else None
    return typer.Option(
        dashed(name),
        *item.metadata.get("aliases", ()),
        help=help or about.line,
        metavar=metavar,
        autocompletion=completions,
        rich_help_panel=panel,
        show_default=False,
    )


def _checkpoint(name: str) -> str:
    check_is_checkpoint(name)  # before PyTorch is imported
    return name


Checkpoint = Annotated[
    str,
    typer.Argument(help="A checkpoint's folder, or its name on the Hub.", show_default=False, callback=_checkpoint),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a checkpoint on the Hub.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the checkpoint's code, for a scheme of its author's own.")
]
SchemeKwargs = Annotated[str | None, declared_option("position_embedding_kwargs")]
RopeParameters = Annotated[str | None, declared_option("rope_parameters")]
SchemeFile = Annotated[str | None, declared_option("scheme_file")]
Delimiter = Annotated[str | None, declared_option("delimiter")]
Quoting = Annotated[str | None, declared_option("quoting")]
Encoding = Annotated[str | None, declared_option("encoding")]
TextColumns = Annotated[
    str | None,
    declared_option(
        "text_column_names",
        "Text column; two, with a comma, for pairs. Default: those the model was trained on, or text.",
    ),
]
TextDelimiter = Annotated[str | None, declared_option("text_column_delimiter")]


def without_none(**options: Any) -> dict[str, Any]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


@overload
def words(text: str) -> list[str]: ...
@overload
def words(text: None) -> None: ...
def words(text: str | None) -> list[str] | None:
    """The words between commas; None stays None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str | None) -> list[int] | None:
    """Whole numbers between commas; None stays None.

    Raises:
        UserError: one isn't.
    """
    parts = words(text)
    if parts is None:
        return None
    if not parts or not all(part.isdigit() for part in parts):
        raise UserError(f"{dashed(option)} {text!r} are no whole numbers. Write 64 or 64,128.")
    return [int(part) for part in parts]
