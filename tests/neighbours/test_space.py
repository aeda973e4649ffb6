"""The Gradio app of examples/space, driven in headless Chromium as a visitor would."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import SpaceCard

SPACE = Path(__file__).parents[2] / "examples" / "space"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60_000  # milliseconds


def test_the_card_is_what_the_hub_reads() -> None:
    card = SpaceCard.load(SPACE / "README.md")
    assert card.data.sdk == "gradio"
    assert (SPACE / card.data.app_file).is_file()
    assert card.data.license == "apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+", card.data.sdk_version)
    assert len(card.data.short_description) <= 60
    assert (SPACE / "requirements.txt").read_text().split() == ["hf-posenc[plots]"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("gradio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": port, "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SPACE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone, url = shutil.copytree(SPACE, tmp_path / "space"), f"http://127.0.0.1:{port}/"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=alone, env=environment, stdout=log, stderr=log)
    answers, deadline = False, time.monotonic() + 180
    while not answers and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
        try:
            answers = bool(urllib.request.urlopen(url, timeout=5).read())
        except OSError:
            continue
    assert answers, (tmp_path / "log").read_text()
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture
def page(server: str) -> Iterator[Any]:
    """The app, freshly opened; what it asks of other machines isn't answered."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        assert "CI" not in os.environ, "CI must have a browser: install Debian's package chromium."
        pytest.skip("There is no Chromium: install Debian's package chromium.")
    asked, errors = [], []

    def only_here(route: Any) -> None:
        if route.request.url.startswith((server, "data:", "blob:")):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        opened.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.route("**/*", only_here)
        opened.goto(server)
        yield opened
        browser.close()
    assert (asked, errors) == ([], [])


@pytest.mark.slow
def test_a_text_is_tried_under_several_schemes_and_the_committed_results_are_shown(page: Any) -> None:
    from playwright.sync_api import expect

    def tells_apart(scheme: str, answer: str) -> None:
        expect(page.get_by_role("row", name=re.compile(rf"^{scheme}\s+{answer}$"))).to_be_visible()

    def fits_a_wide_screen_and_a_phone() -> None:
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width

    expect(page.get_by_role("columnheader", name="semeval2010_task8")).to_be_visible()
    expect(page.get_by_text("Which one, and how sure")).to_be_visible()
    fits_a_wide_screen_and_a_phone()
    page.get_by_label("Comparison").click()
    page.get_by_role("option", name="(listops)").click()
    expect(page.get_by_text("relative_key_query has the highest mean")).to_be_visible()
    page.get_by_role("tab", name="Try a text").click()
    tells_apart("none", "no")
    tells_apart("rope", "yes")
    picture = page.get_by_test_id("matplotlib").locator("img")
    expect(picture).to_be_visible()
    fits_a_wide_screen_and_a_phone()
    page.get_by_label("The same words in another order").fill("the DOG, bit the man")
    tells_apart("rope", "no")
    first = picture.get_attribute("src")
    page.get_by_label("What a scheme does").click()
    page.get_by_role("option", name="t5").click()
    expect(picture).not_to_have_attribute("src", first)
