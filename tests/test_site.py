"""The site builds without a warning, asks no other host for anything, and leads everywhere in three clicks."""

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from common import BUILTIN

import hf_posenc

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow  # every page, and the docstrings of every public name


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.add(attributes.get("id", ""))
        if tag == "a" and "href" in attributes:
            self.links.add(attributes["href"])
        elif url := attributes.get("src") or attributes.get("href"):
            self.loaded.add(url)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "excluded" not in done.stderr  # a link to what isn't there, which isn't a warning
    return {path: Page(path) for path in folder.rglob("*.html") if path.name != "404.html"}


def target(page: Path, link: str) -> tuple[Path, str]:
    name, _, anchor = unquote(link).partition("#")
    path = Path(os.path.normpath(page.parent / name)) if name else page
    return path / "index.html" if path.is_dir() else path, anchor


def test_every_link_and_every_anchor_is_there_and_nothing_comes_from_elsewhere(site):
    for path, page in site.items():
        assert not [url for url in page.loaded if re.match(r"https?:|//", url)], path
        for link in (link for link in page.links | page.loaded if not re.match(r"https?:|data:", link)):
            leads_to, anchor = target(path, link)
            assert leads_to.exists(), f"{path}: {link}"
            assert not anchor or anchor in site[leads_to].anchors, f"{path}: {link}"


def test_every_page_is_at_most_three_clicks_away(site):
    start = min(site, key=lambda path: len(path.parts))
    assert "start" in site[start].anchors  # and no README, which would stand in its place
    seen, reached = {start}, {start}
    for _ in range(3):
        reached = {target(path, link)[0] for path in reached for link in site[path].links if "://" not in link}
        reached = (reached & site.keys()) - seen
        seen |= reached
    assert seen == site.keys()


def test_the_reference_has_every_public_name_and_there_is_a_page_for_each_scheme(site):
    anchors = set().union(*(page.anchors for path, page in site.items() if "reference" in path.parts))
    assert {f"hf_posenc.{name}" for name in hf_posenc.__all__} <= anchors
    texts = [path.read_text(encoding="utf-8") for path in site if "reference" in path.parts]
    returned = [part for text in texts for part in re.findall("Returns:.*?</ul>", text, re.DOTALL)]
    assert returned  # and none is cut where a line of its docstring ends
    assert all(part.count("<li") == 1 for part in returned)
    assert set(BUILTIN) <= {path.parent.name for path in site if "model_cards" in path.parts}


@pytest.mark.parametrize("name", [name for name in hf_posenc.__all__ if inspect.isfunction(getattr(hf_posenc, name))])
def test_a_docstring_says_what_goes_in_what_comes_out_and_what_is_refused(name):
    text, signature = inspect.getdoc(getattr(hf_posenc, name)), inspect.signature(getattr(hf_posenc, name))
    for parameter in signature.parameters:
        assert re.search(rf"^    \*{{0,2}}{parameter}: ", text, re.MULTILINE), parameter
    assert signature.return_annotation is None or re.search("Returns:|^Builds ", text)
    assert "Raises:" in text
