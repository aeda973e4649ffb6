"""Markdown: escaped text, tables, and the templates that cards and reports are made from."""

import functools
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from markdown_it import MarkdownIt

_MARKUP = re.compile(r"[\\`*\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|:(?=//)")
"""Characters that Markdown or GitHub may read as markup; an underscore between letters isn't."""


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


def inline_html(text: str, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """Inline Markdown (code, bold, links to anchors) as HTML, with what `plain` and `code` made shown as it was.

    Args:
        text: one line.
        links: where code leads, by itself: {"`rope`": "#rope"}.
    """
    return _inline_parser().renderInline(text, {"links": links})


@functools.cache
def _inline_parser() -> MarkdownIt:
    def tag(renderer: Any, tokens: Any, index: int, options: Any, environment: Any) -> str:
        content = tokens[index].content
        return content if content in ("<code>", "</code>") else html.escape(content)

    def code_span(renderer: Any, tokens: Any, index: int, options: Any, environment: Any) -> str:
        content = tokens[index].content
        shown, anchor = f"<code>{html.escape(content)}</code>", environment["links"].get(f"`{content}`")
        return f'<a href="{anchor}">{shown}</a>' if anchor else shown

    parser = MarkdownIt("zero", {"html": True})
    parser.enable(["backticks", "emphasis", "entity", "escape", "html_inline", "link"])
    parser.validateLink = lambda url: url.startswith("#")  # type: ignore[method-assign]
    parser.add_render_rule("html_inline", tag)
    parser.add_render_rule("code_inline", code_span)
    return parser


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]], align: str | None = None) -> str:
    """A table.

    Args:
        head: the names of the columns.
        rows: the cells, escaped by the caller.
        align: `l` or `r` for each column. None: the first column and text left, numbers right.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    align = align or "".join("r" if right else "l" for right in number_columns(head, cells))
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def number_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns of a table hold numbers; never the first."""

    def holds_numbers(column: int) -> bool:
        return any(re.match(r"[<+-]? ?[\d.]+", row[column].strip("*")) for row in rows)

    return [column > 0 and holds_numbers(column) for column in range(len(head))]


def render(template: Path, **values: Any) -> str:
    """Fills a Jinja template; `plain` and `code` are its filters, and it calls `markdown_table`.

    Values of `NAME.html.jinja` are escaped, those of `NAME.md.jinja` aren't.
    """
    return _compiled(template).render(markdown_table=markdown_table, **values)


@functools.cache
def _compiled(template: Path) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=template.name.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, code=code)
    return environment.get_template(template.name)
