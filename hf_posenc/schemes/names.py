"""The names of schemes: the built-in ones, and whether what a user gives is one. Imported without PyTorch."""

import re
from pathlib import Path
from typing import Any

from ..errors import UserError, spell, user_errors


def known_schemes() -> list[str]:
    """The built-in schemes, in the order of their table, read from its source: help and completion don't wait."""
    table = Path(__file__).parents[1] / "model" / "scheme_table.py"
    return re.findall(r'^    "(\w+)": ', table.read_text(encoding="utf-8"), flags=re.MULTILINE)


def require_scheme(scheme: Any, scheme_kwargs: dict[str, Any] | None = None, *, parameter: str = "scheme") -> None:
    """Refuses a scheme that doesn't exist, and arguments that it doesn't take, by the parameters that gave them.

    Args:
        scheme: what is to be `config.position_embedding_type`.
        scheme_kwargs: what is to be `config.position_embedding_kwargs`.
        parameter: what gave the scheme.

    Raises:
        UserError: there is no such scheme, or it takes no such argument.
    """
    from ..model.package_config import FieldError, PosEncConfig

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
