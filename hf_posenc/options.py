"""What an option is: declared once, as a field of a dataclass, for all who read options.

These are the command line, `fit`, the estimators and the docs. Nothing here needs PyTorch.
"""

import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from .errors import UserError, dashed


@dataclass(frozen=True)
class Range:
    """The values that an option takes."""

    text: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    """All of them, where they are names."""


def one_of(*names: str) -> Range:
    """A choice of names, any if there are none; members of transformers' enumerations count as theirs."""
    return Range(", ".join(names), lambda value: not names or plain_name(value) in names, names)


def plain_name(value: Any) -> str:
    """The name of a member of one of transformers' enumerations, or of one that still is a string."""
    return str(getattr(value, "value", value))


def whole_number(least: int, most: int | None = None) -> Range:
    """A whole number from `least` on, up to `most` if there is one."""
    text = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    return Range(text, lambda value: least <= operator.index(value) and (most is None or value <= most))


COUNT = whole_number(1)
SEED = whole_number(0, 2**32 - 1)
POSITIVE = Range("a positive number", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Range("0 or a positive number", lambda value: 0 <= value < math.inf)


@dataclass(frozen=True)
class Declared:
    """What an option has besides name, type and default."""

    line: str
    """Its help in one line, for `hf-posenc train --help`."""
    panel: str | None = None
    """Where it stands there; None: in `--help-all` alone."""
    accepts: Range | None = None
    is_source: bool = False
    """Whether it names something here or on the Hub."""


def option(default: Any, line: str, more: str = "", *, argparse: Mapping[str, Any] | None = None, **about: Any) -> Any:
    """The dataclass field of an option.

    Args:
        default: its default; None where the default depends on other options, or there is none.
        line, **about: see `Declared`.
        more: what `--help-all` says after the line.
        argparse: further settings of `HfArgumentParser`: `aliases`, `metavar`.
    """
    help = f"{line} {more}".strip()
    return field(default=default, metadata={"help": help, "option": Declared(line, **about), **(argparse or {})})


def declarations(options: Any) -> dict[str, Declared]:
    """The options of a dataclass that are declared by `option`, by name."""
    return {item.name: item.metadata["option"] for item in fields(options) if "option" in item.metadata}


def is_json(hint: Any) -> bool:
    """Whether an option's annotation is that of a JSON object, as a dictionary or written."""
    return any(typing.get_origin(part) is dict for part in typing.get_args(hint))


def kind_of(hint: Any) -> type:
    """The type of an option's value on the command line: that of the annotation, without None and without JSON."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [part for part in parts if part in (bool, int, float)]
    return kinds[0] if kinds and str not in parts else str


def check_values(options: Any, others: Mapping[str, Range] = MappingProxyType({})) -> None:
    """Raises a UserError if an option's value isn't one that it takes.

    Args:
        options: an instance of a dataclass.
        others: what its fields take that aren't declared by `option`.
    """
    ranges = {name: about.accepts for name, about in declarations(options).items() if about.accepts is not None}
    for name, accepts in {**ranges, **others}.items():
        value = getattr(options, name, None)
        if accepts.names and not _holds(accepts, value):
            raise UserError(f"{dashed(name)} {plain_name(value)!r} is unknown. Choose one of {accepts.text}.")
        check_range(f"{dashed(name)} {value}", value, accepts)


def check_range(spelt: str, value: Any, accepts: Range) -> None:
    """Raises a UserError if a value, spelt with its name, isn't one that is accepted; None always is."""
    if not _holds(accepts, value):
        raise UserError(f"{spelt} is out of range. Give {accepts.text}.")


def _holds(accepts: Range, value: Any) -> bool:
    try:
        return value is None or accepts.holds(value)
    except TypeError:  # a string where a number is wanted, or a fraction where a whole one is
        return False


def refuse_given(options: Any, names: Iterable[str], why: str) -> None:
    """Raises a UserError if an option of these names isn't at its default: `--name value`, then `why`."""
    defaults = {item.name: item.default for item in fields(options)}
    for name in names:
        if (value := getattr(options, name)) != defaults[name]:
            raise UserError(f"{dashed(name)} {value!r} {why}. Leave it out.")


def parse_json_option(name: str, value: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """The value of an option that is a JSON object.

    Raises:
        UserError: it isn't one.
    """
    if value is None or isinstance(value, dict):
        return value
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise UserError(f"{dashed(name)} {value!r} is no JSON ({error}). Give an object: '{{\"name\": 1}}'.") from error
    if not isinstance(parsed, dict):
        raise UserError(f"{dashed(name)} {value!r} is no JSON object. Give one: '{{\"name\": 1}}'.")
    return parsed
