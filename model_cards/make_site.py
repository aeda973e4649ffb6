"""Makes the site of the repository's Markdown: a hook of MkDocs (`mkdocs.yml`).

A page of `docs/` stands at the root of the site, every other file at its own path. Links stay as GitHub follows them,
relative to the file in the repository: a page that is linked joins the site, and so does any other file.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_CODE = r"^```.*?^```|`[^`\n]*`"
_LINK = re.compile(rf"{_CODE}|(\]\()([^)\s:]+?)(#[^)\s]*)?(?=\))", re.DOTALL | re.MULTILINE)
"""A relative link, in groups: what stands before it, the file, the anchor. Code comes first, and has no groups."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside `docs/`, and what those link to."""
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            path = _linked(page, link[2]) if link[2] else page
            if path.is_file() and files.get_file_from_path(_place(path)) is None:
                files.append(File.generated(config, _place(path), abs_src_path=str(path)))
                waiting += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links relative to the page's place in the site."""
    place = page.file.src_uri
    source = Path(page.file.abs_src_path or ROOT / "docs" / place)

    def rewritten(link: re.Match[str]) -> str:
        if not link[2]:
            return link[0]
        target = _place(_linked(source, link[2]))
        return f"{link[1]}{os.path.relpath(target, os.path.dirname(place) or '.')}{link[3] or ''}"

    return _LINK.sub(rewritten, markdown)


def _linked(page: Path, link: str) -> Path:
    """The file that a link leads to; of a folder its README."""
    path = Path(os.path.normpath(page.parent / link))
    return path / "README.md" if path.is_dir() else path


def _place(path: Path) -> str:
    """Where a file of the repository stands in the site."""
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")
