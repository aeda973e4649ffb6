"""The names of the built-in schemes, read from their source: help and completion don't wait for PyTorch."""

import re
from pathlib import Path


def known_schemes() -> list[str]:
    """The built-in schemes, in the order of their table."""
    table = Path(__file__).parents[1] / "model" / "scheme_table.py"
    return re.findall(r'^    "(\w+)": ', table.read_text(encoding="utf-8"), flags=re.MULTILINE)
