"""The site builds without a warning, asks no other host for anything, and has every public name and scheme."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import hf_posenc
from tests.support.common import BUILTIN

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # every page, and the docstrings of every public name


class Page(HTMLParser):
    """The anchors of a page, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.loaded = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors.add(attributes.get("id", ""))
        if tag != "a" and (url := attributes.get("src") or attributes.get("href")):
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


def test_nothing_comes_from_elsewhere(site):
    for path, page in site.items():  # that links and anchors are there, the strict build holds
        assert not [url for url in page.loaded if re.match(r"https?:|//", url)], path


def test_a_page_is_called_what_its_title_says_and_no_two_alike(site):
    names = {}
    for path in site:
        text = path.read_text(encoding="utf-8")
        name, title = re.search("<title>(.*?)(?: - hf_posenc)?</title>.*<h1.*?>(.*?)</h1>", text, re.DOTALL).groups()
        assert path.parent.name == "report" or name == re.sub("<a class.*|<.*?>", "", title), path  # reports: by plan
        assert names.setdefault(name, path) == path


def test_tables_of_notebooks_are_tables(site):
    (page,) = [path for path in site if path.parent.name == "classify"]
    assert page.read_text(encoding="utf-8").count("<table>") == 3


def test_the_reference_has_every_public_name_and_there_is_a_page_for_each_scheme(site):
    anchors = set().union(*(page.anchors for path, page in site.items() if "reference" in path.parts))
    assert {f"hf_posenc.{name}" for name in hf_posenc.__all__} <= anchors
    texts = [path.read_text(encoding="utf-8") for path in site if "reference" in path.parts]
    returned = [part for text in texts for part in re.findall("Returns:.*?</ul>", text, re.DOTALL)]
    assert returned  # and none is cut where a line of its docstring ends
    assert all(part.count("<li") == 1 for part in returned)
    assert set(BUILTIN) <= {path.parent.name for path in site if "model_cards" in path.parts}
