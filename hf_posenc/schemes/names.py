"""The names of the schemes, read from their source: help, completion and first checks don't wait for PyTorch."""

import difflib
import re
from pathlib import Path

from hf_posenc.errors import UserError

_MODEL = Path(__file__).parents[1] / "model"


def known_schemes() -> list[str]:
    """The built-in schemes, in the order of their table."""
    return re.findall(r'^    "(\w+)": ', (_MODEL / "scheme_table.py").read_text(encoding="utf-8"), flags=re.MULTILINE)


def check_scheme_name(position_embedding_type: str, option: str = "--scheme") -> None:
    """Refuses a name that is no scheme's, nor several joined by `+`, as the configuration does.

    Raises:
        UserError: no scheme has this name.
    """
    known = known_schemes()
    for name in position_embedding_type.split("+"):
        if name in known or not name:
            continue
        near = difflib.get_close_matches(name.lower(), known, n=1)
        raise UserError(
            f"{option} {name!r} is unknown. {f'Did you mean {near[0]!r}? ' if near else ''}Choose one of "
            f"{', '.join(known)}, or several joined by '+'; one of your own with --scheme-file."
        )
