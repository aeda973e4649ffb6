"""The names of the schemes, read from their source: help, completion and first checks don't wait for PyTorch."""

import ast
import difflib
import functools
import re
from pathlib import Path
from typing import Any

from hf_posenc.errors import UserError

_MODEL = Path(__file__).parents[1] / "model"


def known_schemes() -> list[str]:
    """The built-in schemes, in the order of their table."""
    return re.findall(r'^    "(\w+)": ', (_MODEL / "scheme_table.py").read_text(encoding="utf-8"), flags=re.MULTILINE)


@functools.cache
def _tables() -> dict[str, Any]:
    """The dictionaries of `model/hints.py`."""
    tables: dict[str, Any] = {}
    for node in ast.parse((_MODEL / "hints.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict):
            tables[node.targets[0].id] = ast.literal_eval(node.value)
    return tables


def check_scheme_name(position_embedding_type: str, option: str = "--scheme") -> None:
    """Refuses a name that is no scheme's, nor several joined by `+`, as the configuration does.

    Raises:
        UserError: no scheme has this name.
    """
    known = known_schemes()
    for name in position_embedding_type.split("+"):
        refused = _tables().get("REFUSED_SCHEMES", {})
        reason = next((refused[key] for key in refused if name.lower().replace("-", "_") in key.split()), None)
        if name in known or not name:
            continue
        if reason is not None:
            raise UserError(f"{option} {name!r}: {reason}")
        other = _tables().get("OTHER_SCHEMES", {}).get(name)
        near = [other] if other else difflib.get_close_matches(name, known, n=1)
        raise UserError(
            f"{option} {name!r} is unknown. {f'Did you mean {near[0]!r}? ' if near else ''}Choose one of "
            f"{', '.join(known)}, or several joined by '+'; one of your own with --scheme-file."
        )
