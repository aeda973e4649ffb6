"""Reads the options of a run: of a command line, a .json file, or keywords."""

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ..data.options import DataArguments
from ..errors import UserError, one_line
from ..model.position_math import did_you_mean
from ..training.arguments import ClassificationTrainingArguments, ModelArguments, RunArguments


class OptionParser(HfArgumentParser):
    """Transformers' parser without abbreviated options, and with errors of one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raises a UserError instead of printing hundreds of options."""
        option, colon, text = message.removeprefix("argument ").rstrip(".").partition(":")
        raise UserError(f"{option.partition('/')[0]}{colon}{text}. --help lists the options.")

    def parse(self, arguments: Sequence[str]) -> tuple[Any, ...]:
        """The dataclasses. Refuses unknown options, and suggests the nearest one."""
        *parsed, rest = self.parse_args_into_dataclasses(args=arguments, return_remaining_strings=True)
        if rest:
            name = rest[0].split("=")[0]
            typed, known = name.replace("-", "_").replace("__", "--", 1), self._option_string_actions
            longer = [option for option in known if option.endswith(f"_{typed.lstrip('-_')}")]  # --epochs
            near = longer or difflib.get_close_matches(typed, known, n=1)
            raise UserError(
                f"{name!r} is no option. {f'Did you mean {near[0]}? ' if near else ''}--help lists the options."
            )
        return tuple(parsed)

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """The dataclasses, from keywords or a .json file. Refuses unknown options, and suggests the nearest one."""
        known = {action.dest for action in self._actions}
        if unknown := next((name for name in args if name not in known), None):
            raise UserError(
                f"{unknown!r} is no option. {did_you_mean(unknown, known)}`hf-posenc train --help` lists the options, "
                "written there with dashes."
            )
        return super().parse_dict(args, allow_extra_keys)


def parse_arguments(
    argv: Sequence[str] | None = None,
    description: str | None = None,
    training_class: type[Any] = ClassificationTrainingArguments,
) -> tuple[DataArguments, ModelArguments, Any]:
    """Reads the options of a script from its command line, or from the one .json file that is named there.

    Args:
        argv: the options. None: those of this process.
        description: what --help says first.
        training_class: `ClassificationTrainingArguments`, `MaskedLMTrainingArguments`, or your own dataclass.

    Raises:
        UserError: an option doesn't exist, or a value isn't accepted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = OptionParser((DataArguments, ModelArguments, training_class), description=description)
    try:
        if len(arguments) == 1 and arguments[0].endswith(".json"):
            data, model, training = parser.parse_json_file(json_file=str(Path(arguments[0]).absolute()))
        else:
            data, model, training = parser.parse(arguments)
    except (ValueError, TypeError, OSError) as error:
        raise UserError(one_line(error)) from error
    return data, model, training


def make_arguments(
    training_class: type[RunArguments] = ClassificationTrainingArguments, /, **options: Any
) -> tuple[DataArguments, ModelArguments, Any]:
    """Options by keyword: `make_arguments(dataset_name="blimp_order", do_train=True, output_dir="run")`.

    Raises:
        UserError: an option doesn't exist or a value isn't accepted.
    """
    parser = OptionParser((DataArguments, ModelArguments, training_class))  # type: ignore[arg-type]
    try:
        data, model, training = parser.parse_dict(options)
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error)) from error
    return data, model, training


def parse_overrides(text: str | None, accepted: Sequence[str]) -> dict[str, Any]:
    """`a=1,b=gelu` as a dictionary; values are JSON where they can be, else strings.

    Raises:
        UserError: a part has no `=`, or a name isn't accepted.
    """
    overrides: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in accepted:
            raise UserError(
                f"--config_overrides {part!r}: give name=value,name=value with fields of PosEncConfig: "
                f"{', '.join(accepted)}."
            )
        try:
            overrides[name] = json.loads(value)
        except json.JSONDecodeError:
            overrides[name] = value
    return overrides
