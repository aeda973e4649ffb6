"""How a report is written: blocks of text, tables and pictures, as Markdown or as one HTML page.

Text is written once, with `code`, **bold** and [links](#anchor) as in Markdown. What comes out of a file (the name of a
part, the message of an error) goes through `plain` or `code`, and is shown as it is.
"""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

_MARKUP = re.compile(r"[\\`*\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|:(?=//)")
"""What Markdown, or GitHub's, could take for markup: an underscore between letters is none."""
PICTURES_NAME = "report_pictures"
TEMPLATE_NAME = "report.html.j2"


@dataclass(frozen=True)
class Heading:
    """A line above a section. One that is a scheme's name in `code` is where that name links to."""

    level: int
    text: str

    @property
    def anchor(self) -> str:
        """What links to it name, made as GitHub makes it."""
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
        return [index > 0 and _is_number(index, self.rows) for index in range(len(self.head))]


@dataclass(frozen=True)
class Picture:
    """A picture with words for those who don't see it, and with a line below it."""

    name: str
    png: bytes
    text: str
    """As it is, without markup."""
    caption: str = ""
    wide: bool = False
    """Whether a narrow screen had better scroll than shrink it."""

    @property
    def source(self) -> str:
        """The picture itself, for a page that needs no other file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Block = Heading | Text | Points | Table | Picture


def plain(text: object) -> str:
    """A text as it is, on one line: what would be markup is escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(str(text).split()))


def code(text: object) -> str:
    """A name as `code`, on one line, whatever is in it."""
    name = " ".join(str(text).split())
    if re.fullmatch(r"[^`|\\<>&$]+", name):
        return f"`{name}`"
    return "<code>" + re.sub(r"[^\w\s]|_", _entity, name) + "</code>"  # in a table even `code` ends at a |


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0][-1])};"


def anchor(text: str) -> str:
    """The name of a heading in links."""
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


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    rule = ["---", *("---:" if _is_number(index, rows) else "---" for index in range(1, len(head)))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _is_number(column: int, rows: Sequence[Sequence[str]]) -> bool:
    cells = [row[column].strip("*") for row in rows if row[column]]
    return any(re.match(r"[<+-]? ?[\d.]+", cell) for cell in cells)


def to_html(blocks: Sequence[Block]) -> str:
    """One page that needs no other file: contents, sections, light or dark as the reader's screen is."""
    headings = [block for block in blocks if isinstance(block, Heading)]
    links = {heading.text: f"#{heading.anchor}" for heading in headings if heading.text.startswith("`")}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_posenc.comparison", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = lambda text: Markup(_inline(text, links))
    environment.filters["plain"] = lambda text: Markup(_inline(text, {}))
    blocks_by_kind = [(type(block).__name__, block) for block in blocks if block != headings[0]]
    return environment.get_template(TEMPLATE_NAME).render(
        title=headings[0].text, blocks=blocks_by_kind, contents=_contents(headings)
    )


def _contents(headings: Sequence[Heading]) -> list[tuple[Heading, list[Heading]]]:
    """The sections, each with those below it."""
    found: list[tuple[Heading, list[Heading]]] = []
    for heading in headings:
        if heading.level == 2:
            found.append((heading, []))
        elif heading.level > 2:
            found[-1][1].append(heading)
    return found


def _inline(text: str, links: Mapping[str, str]) -> str:
    """Markdown's code, bold and links in HTML; a scheme's name leads to its section."""

    def shown(match: re.Match[str]) -> str:
        name = "<code>" + re.sub(r"[*\[\]]", _entity, match[1]) + "</code>"
        return f'<a href="{links[match[0]]}">{name}</a>' if match[0] in links else name

    text = re.sub(r"\\[!-/:-@\[-`{-~]", _entity, text)
    text = re.sub(r"&(?!#\d+;)|<(?!/?code>)|(?<!<code)(?<!</code)>", lambda match: html.escape(match[0]), text)
    text = re.sub(r"`([^`]+)`", shown, text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\[([^\]]+)\]\((#[^)\s]+)\)", r'<a href="\2">\1</a>', text)
