"""Options and arguments that several commands share, and the parsers of their values."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from hf_posenc.data.options import DataArguments
from hf_posenc.errors import UserError, check_is_checkpoint, dashed
from hf_posenc.options import is_json, kind_of
from hf_posenc.schemes.names import known_schemes
from hf_posenc.training.options import ModelArguments, RunOptions

DECLARED = {item.name: item for kind in (DataArguments, ModelArguments, RunOptions) for item in fields(kind)}
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
        name: as it is declared in `DataArguments`, `ModelArguments` or `RunOptions`.
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


def declared_parameter(name: str, default: Any = None, **about: Any) -> inspect.Parameter:
    """The same as a parameter of a command; `about`: see `declared_option`."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind_of(DECLARED[name].type) | None, declared_option(name, **about)],
    )


def declared_options(behind: str, **helps: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options of `hf-posenc train`; those that have a value reach its `**` parameter.

    Args:
        behind: the parameter behind which the help lists them.
        **helps: see `declared_option`, by their names.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name not in helps or value is not None})

        *own, _ = inspect.signature(command).parameters.values()
        place = [parameter.name for parameter in own].index(behind) + 1
        more = [declared_parameter(name, help=help) for name, help in helps.items()]
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        wrapper.__signature__ = inspect.Signature([*keywords[:place], *more, *keywords[place:]])  # type: ignore[attr-defined]
        return wrapper

    return give


TEXT_COLUMNS = "Text column; two, with a comma, for pairs. Default: those the model was trained on, or text."
"""What a command says of `text_column_names` that gets a trained model."""


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


def words(text: str) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


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
