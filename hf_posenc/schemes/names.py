"""The names of schemes: the built-in ones, and whether what a user gives is one. Imported without PyTorch."""

import re
from pathlib import Path
from typing import Any

from ..errors import UserError, spell, user_errors


def known_schemes() -> list[str]:
    """The built-in schemes, in the order of their table, read from its source: help and completion don't wait."""
    table = Path(__file__).parents[1] / "model" / "scheme_table.py"
    return re.findall(r'^    "(\w+)": ', table.read_text(encoding="utf-8"), flags=re.MULTILINE)


class FieldError(ValueError):
    """The value of a config's field isn't accepted: `fault` says why, behind the field and the value."""

    def __init__(self, field: str, value: Any, fault: str) -> None:
        self.field = field
        self.value = value
        self.fault = fault
        super().__init__(f"{field}={value!r} {fault}")


def scheme_names(position_embedding_type: str) -> list[str]:
    """The parts of `a+b`, in order.

    Raises:
        FieldError: the combination makes no sense.
    """
    names = position_embedding_type.split("+")
    sensible = list(dict.fromkeys(name for name in names if name not in ("", "none"))) or ["none"]
    if len(names) > 1 and names != sensible:
        fault = "makes no sense: '+' joins different schemes, and 'none' adds nothing to another."
        raise FieldError("position_embedding_type", position_embedding_type, f"{fault} Use {'+'.join(sensible)!r}.")
    return names


def require_scheme(scheme: Any, scheme_kwargs: dict[str, Any] | None = None, *, parameter: str = "scheme") -> None:
    """Refuses a scheme that doesn't exist, and arguments that it doesn't take, by the parameters that gave them.

    Args:
        scheme: what is to be `config.position_embedding_type`.
        scheme_kwargs: what is to be `config.position_embedding_kwargs`.
        parameter: what gave the scheme.

    Raises:
        UserError: there is no such scheme, or it takes no such argument.
    """
    from ..model.configuration_posenc import PosEncConfig

    if not isinstance(scheme, str):
        raise UserError("is no scheme's name.", parameter=parameter, value=scheme)
    with user_errors():
        try:
            PosEncConfig(position_embedding_type=scheme, position_embedding_kwargs=scheme_kwargs)
        except FieldError as error:
            if error.field == "position_embedding_kwargs":
                raise UserError(error.fault, parameter="scheme_kwargs", value=error.value) from error
            file = "" if "+" in error.value else f" {spell('scheme_file')} registers those of a file."
            raise UserError(f"{error.fault}{file}", parameter=parameter, value=error.value) from error
        except ValueError as error:  # arguments that a combination's parts don't have
            raise UserError(f": {error}", parameter="scheme_kwargs", value=scheme_kwargs) from error
