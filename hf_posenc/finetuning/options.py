"""Reads the options of a run: of a command line, a .json file, or keywords."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ..data.options import DataArguments
from ..errors import UserError, dashed, one_line
from ..training.options import ModelArguments, RunOptions
from ..training.transformers_options import with_transformers


class OptionParser(HfArgumentParser):
    """Transformers' parser without abbreviated options, and with errors of one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def add_argument(self, *names: Any, **settings: Any) -> Any:
        """Takes what `hf_posenc.options.option` says of an option that argparse has a place for: its choices."""
        about = settings.pop("option", None)
        if about is not None and about.accepts is not None and about.accepts.names:
            settings.setdefault("metavar", f"{{{','.join(about.accepts.names)}}}")
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises a UserError instead of printing hundreds of options."""
        names, colon, text = message.removeprefix("argument ").rstrip(".").partition(":")
        option = dashed(names.partition("/")[0].lstrip("-")) if colon else names
        raise UserError(f"{option}{colon}{text}. --help lists the options.")

    def parse(self, arguments: Sequence[str]) -> tuple[Any, ...]:
        """The dataclasses, from a command line, or from the one .json file that it names.

        Raises:
            UserError: an option doesn't exist; or a value isn't accepted, or isn't by transformers.
        """
        try:
            if len(arguments) == 1 and arguments[0].endswith(".json"):
                return self.parse_json_file(json_file=str(Path(arguments[0]).absolute()))
            *parsed, rest = self.parse_args_into_dataclasses(args=arguments, return_remaining_strings=True)
        except (ValueError, TypeError, OSError) as error:
            raise UserError(one_line(error)) from error
        if rest:
            word = rest[0].split("=")[0]
            raise UserError(f"Unknown option {word!r}. {self._nearest(word)}--help lists the options.")
        return tuple(parsed)

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """The dataclasses, from keywords or a .json file.

        Raises:
            UserError: as `parse`.
        """
        self.check_names(args)
        try:
            return super().parse_dict({**self._defaults, **args}, allow_extra_keys)
        except (ValueError, TypeError) as error:
            raise UserError(one_line(error)) from error

    def check_names(self, names: Iterable[str]) -> None:
        """Raises a UserError if a keyword is no option."""
        known = {action.dest for action in self._actions}
        if unknown := next((name for name in names if name not in known), None):
            raise UserError(
                f"Unknown option {unknown!r}. {self._nearest(unknown)}`train --help-all` lists the options."
            )

    def _nearest(self, word: str) -> str:
        """The option that was probably meant, as it is written where the word was."""
        name = word.lstrip("-").replace("-", "_")
        known = [action.dest for action in self._actions]
        near = [dest for dest in known if dest.endswith(f"_{name}")] or difflib.get_close_matches(name, known, n=1)
        return f"Did you mean {dashed(near[0]) if word.startswith('-') else repr(near[0])}? " if near else ""


def read_options(
    options: Sequence[str] | dict[str, Any],
    description: str | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[DataArguments, ModelArguments, Any]:
    """The options of a command line or by keyword, read and checked without PyTorch.

    Args:
        options: words, or values by name.
        description: what --help says first.
        defaults: other defaults than the declared ones.

    Returns:
        The options of the data, of the model, and all others.

    Raises:
        UserError: an option doesn't exist, or a value isn't accepted.
    """
    classes: Any = (DataArguments, ModelArguments, with_transformers(RunOptions))
    parser = OptionParser(classes, description=description)
    parser.set_defaults(**defaults)
    data, model, training = parser.parse_dict(options) if isinstance(options, dict) else parser.parse(options)
    return data, model, training


def as_training_arguments(options: Any) -> Any:
    """The options of training that `read_options` read, as `RunArguments`.

    Raises:
        UserError: transformers doesn't accept one.
    """
    from ..training.arguments import RunArguments

    names = [item.name for item in fields(options) if getattr(options, item.name) != item.default]
    try:
        return RunArguments(**{name: getattr(options, name) for name in names})
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error)) from error


def make_arguments(**options: Any) -> tuple[DataArguments, ModelArguments, Any]:
    """Options by keyword: `make_arguments(dataset_name="blimp_order", do_train=True, output_dir="run")`.

    Raises:
        UserError: an option doesn't exist or a value isn't accepted.
    """
    data, model, training = read_options(options)
    return data, model, as_training_arguments(training)


def parse_overrides(text: str | None, accepted: Sequence[str]) -> dict[str, Any]:
    """`a=1,b={"c": [2, 3]},d=gelu` as a dictionary; values are JSON where they can be, else strings without commas.

    Raises:
        UserError: a part has no `=`, or a name isn't accepted.
    """
    overrides: dict[str, Any] = {}
    rest = (text or "").strip().strip(",")
    while rest:
        name, equals, value = (piece.strip() for piece in rest.partition("="))
        if not equals or name not in accepted:
            raise UserError(
                f"--config-overrides {rest!r}: give name=value,name=value with fields of PosEncConfig: "
                f"{', '.join(accepted)}."
            )
        try:
            overrides[name], end = json.JSONDecoder().raw_decode(value)
            after = value[end:].lstrip()
        except json.JSONDecodeError:
            after = "no JSON"
        if after and not after.startswith(","):
            overrides[name], _, after = (piece.strip() for piece in value.partition(","))
        rest = after.lstrip(", ")
    return overrides
