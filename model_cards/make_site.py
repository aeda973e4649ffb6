"""Makes the site of the repository's Markdown: a hook of MkDocs (`mkdocs.yml`).

A page of `docs/` stands at the root of the site, every other file at its own path. Links stay as GitHub follows them,
relative to the file in the repository: a page that is linked joins the site, and so does any other file.
"""

import os
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from model_cards.formulas import picture

ROOT = Path(__file__).parent.parent
_CODE = r"^```.*?^```|`[^`\n]*`"
_LINK = re.compile(rf"{_CODE}|(\]\()([^)\s:]+?)(#[^)\s]*)?(?=\))", re.DOTALL | re.MULTILINE)
"""A relative link, in groups: what stands before it, the file, the anchor. Code comes first, and has no groups."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebooks as pages; what pages link to outside `docs/`, and what those link to."""
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        content = _as_markdown(nbformat.read(notebook, as_version=4))
        files.append(File.generated(config, _place(notebook.with_suffix(".md")), content=content))
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        source = _source(page)
        for link in _LINK.finditer(page.content_string):
            path = _linked(source, link[2]) if link[2] else source
            if path.is_file() and files.get_file_from_path(_place(path)) is None:
                files.append(File.generated(config, _place(path), abs_src_path=str(path)))
                waiting += [file for file in files if file.src_uri == _place(path) and path.suffix == ".md"]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links relative to the page's place in the site, and typesets formulas."""
    place = page.file.src_uri
    source = _source(page.file)

    def rewritten(link: re.Match[str]) -> str:
        if not link[2]:
            return link[0]
        target = _place(_linked(source, link[2]))
        return f"{link[1]}{os.path.relpath(target, os.path.dirname(place) or '.')}{link[3] or ''}"

    with_formulas = re.sub(r"^\$\$\n(.+?)\n\$\$$", lambda found: picture(found[1]), markdown, flags=re.MULTILINE)
    return _LINK.sub(rewritten, with_formulas)


def _as_markdown(notebook: Any) -> str:
    """A page of the site: text, code, and what it showed."""
    parts = []
    for cell in notebook.cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _shown(output: Any) -> str:
    """What a cell showed: a table, a picture or text."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"]
    if frame := re.search(r"<table.*</table>", data.get("text/html", ""), re.DOTALL):
        return re.sub(r"<(table|tr)[^>]*>|\n *", lambda tag: f"<{tag[1]}>" if tag[1] else "", frame[0])
    if "image/png" in data:
        return f"![What the cell drew](data:image/png;base64,{data['image/png'].strip()})"
    return f"```text\n{(data.get('text/plain') or output.text).rstrip()}\n```"


def _source(file: File) -> Path:
    """Where a page of the site stands in the repository."""
    return Path(file.abs_src_path or ROOT / "docs" / file.src_uri)


def _linked(page: Path, link: str) -> Path:
    """The file that a link leads to."""
    return Path(os.path.normpath(page.parent / link))


def _place(path: Path) -> str:
    """Where a file of the repository stands in the site."""
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")
