"""Writes blocks of text, tables and pictures as Markdown or as one HTML page.

Text is written once, with `code`, **bold** and [links](#anchor) as in Markdown. What comes out of a file (the name of a
part, the message of an error) goes through `plain` or `code`, and is shown as it is.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from hf_posenc.markdown import inline_html, markdown_table, number_columns, plain, render

PICTURES_NAME = "report_pictures"
TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True)
class Heading:
    """A heading. On the HTML page a scheme's name in `code` links to the heading that consists of it."""

    level: int
    text: str

    @property
    def anchor(self) -> str:
        """The fragment of its links, as GitHub makes it."""
        return anchor(self.text)


@dataclass(frozen=True)
class Text:
    """A paragraph; `code`, **bold** and [links](#anchor) as in Markdown."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table; the first column stands left, numbers right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers."""
        return number_columns(self.head, self.rows)


@dataclass(frozen=True)
class Picture:
    """A picture with alternative text and a caption."""

    name: str
    png: bytes
    text: str
    """As it is, without markup."""
    caption: str = ""
    wide: bool = False
    """Whether a narrow screen scrolls it instead of shrinking it."""

    @property
    def source(self) -> str:
        """The picture as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Block = Heading | Text | Points | Table | Picture


def anchor(text: str) -> str:
    """The fragment that links to a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def to_markdown(blocks: Sequence[Block]) -> str:
    """Markdown; pictures are files in `report_pictures`."""
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Text(text):
                parts.append(text)
            case Points(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Table(head, rows):
                parts.append(markdown_table(head, rows))
            case Picture(name=name, text=text, caption=caption):
                parts.append(f"![{plain(text)}]({PICTURES_NAME}/{name}.png)" + (f"\n\n*{caption}*" if caption else ""))
    return "\n\n".join(parts) + "\n"


def to_html(blocks: Sequence[Block]) -> str:
    """A self-contained HTML page with a table of contents and a light and a dark theme."""
    headings = [block for block in blocks if isinstance(block, Heading)]
    links = {heading.text: f"#{heading.anchor}" for heading in headings if heading.text.startswith("`")}
    return render(
        TEMPLATE,
        title=headings[0].text,
        blocks=[(type(block).__name__, block) for block in blocks if block != headings[0]],
        contents=_contents(headings),
        inline=lambda text: Markup(inline_html(text, links)),
        unlinked=lambda text: Markup(inline_html(text)),
    )


def _contents(headings: Sequence[Heading]) -> list[tuple[Heading, list[Heading]]]:
    """The sections, each with its subsections."""
    sections: list[tuple[Heading, list[Heading]]] = []
    for heading in headings:
        if heading.level == 2:
            sections.append((heading, []))
        elif heading.level > 2:
            sections[-1][1].append(heading)
    return sections
