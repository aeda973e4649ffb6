"""Markdown: escaped text, tables, and the templates that cards and reports are made from."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from .machine import versions

_MARKUP = re.compile(r"[\\`*\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|:(?=//)")
"""Characters that Markdown or GitHub may read as markup; an underscore between letters isn't."""


HERE = "path/to/this/folder"
"""Stands in a checkpoint's card for its folder; `publish` puts the repository there."""


def plain(text: object) -> str:
    """A text as it is, on one line, with its markup escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(str(text).split()))


def code(text: object) -> str:
    """A name as `code`, on one line, whatever is in it."""
    name = " ".join(str(text).split())
    if re.fullmatch(r"[^`|\\<>&$]+", name):
        return f"`{name}`"
    # In a table even `code` ends at a |.
    return "<code>" + re.sub(r"[^\w\s]|_", lambda match: f"&#{ord(match[0])};", name) + "</code>"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]], align: str | None = None) -> str:
    """A table.

    Args:
        head: the names of the columns.
        rows: the cells, escaped by the caller.
        align: `l` or `r` for each column. None: the first column and text left, numbers right.
    """
    cells = [[str(cell) for cell in row] for row in rows]

    def holds_numbers(column: int) -> bool:
        return any(re.match(r"[<+-]? ?[\d.]+", row[column].strip("*")) for row in cells)

    align = align or "".join("r" if column and holds_numbers(column) else "l" for column in range(len(head)))
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def render(template: Path, **values: Any) -> str:
    """Fills a Jinja template; `plain` and `code` are its filters; it has `versions`, and calls `markdown_table`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, code=code)
    line = ", ".join(f"{name} {number}" for name, number in versions().items())
    return environment.get_template(template.name).render(markdown_table=markdown_table, versions=line, **values)
