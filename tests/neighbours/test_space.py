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
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in DISABLED)]
PATIENCE = 60_000  # milliseconds


def test_the_card_is_what_the_hub_reads() -> None:
    card = SpaceCard.load(SPACE / "README.md")
    assert card.data.sdk == "gradio"
    assert (SPACE / card.data.app_file).is_file()
    assert card.data.license == "apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+", card.data.sdk_version)
    assert len(card.data.short_description) <= 60
    assert (SPACE / "requirements.txt").read_text().split() == ["hf-posenc[plots]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("gradio")
    if CHROMIUM is None:
        assert "CI" not in os.environ, "CI must have a browser: install Debian's package chromium."
        pytest.skip("There is no Chromium: install Debian's package chromium.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join([str(SPACE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1",
    }
    folder = tmp_path_factory.mktemp("space")
    alone = shutil.copytree(SPACE, folder / "space")
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=alone, env=environment, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}/"
    for _ in range(300):
        time.sleep(0.2)
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=5).read()
            break
        except OSError:
            continue
    else:
        pytest.fail(f"The app doesn't answer: {log.read_text()}")
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def browser(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1280, "height": 1000},
        )
        context.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        yield context
        context.close()


@pytest.fixture
def page(browser: Any, server: str) -> Iterator[Any]:
    """The app, freshly opened; what it asks of other machines isn't answered."""
    opened = browser.new_page()
    opened.asked = []
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))

    def only_here(route: Any) -> None:
        if route.request.url.startswith((server, "data:", "blob:")):
            route.continue_()
        else:
            opened.asked.append(route.request.url)
            route.abort()

    opened.route("**/*", only_here)
    opened.goto(server)
    yield opened
    assert not opened.errors
    assert not opened.asked
    opened.close()


def shoot(page: Any, name: str) -> None:
    """A picture of the page, for people, where HF_POSENC_SCREENSHOTS names a folder."""
    if folder := os.environ.get("HF_POSENC_SCREENSHOTS"):
        page.wait_for_timeout(1000)  # what is new fades in
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def is_readable(page: Any, name: str) -> None:
    """On a wide screen and on a phone, where tables and pictures scroll and the page doesn't."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        shoot(page, f"{name}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_text_is_tried_under_several_schemes(page: Any) -> None:
    def change(scheme: str, percent: str) -> Any:
        return expect(page.get_by_role("row", name=re.compile(rf"^{scheme}\s+{percent}$")))

    change("none", "0").to_be_visible()
    change("rope", r"[1-9][\d.]*").to_be_visible()
    expect(page.locator(".vega-embed svg")).to_contain_text("sinusoidal")
    picture = page.get_by_test_id("matplotlib").locator("img")
    expect(picture).to_be_visible()
    is_readable(page, "text")
    other = page.get_by_label("The same words in another order")
    other.fill("")
    other.fill("the DOG, bit the man")
    change("rope", "0").to_be_visible()
    page.get_by_text("In the garden the cat slept yesterday.").click()
    change("rope", r"[1-9][\d.]*").to_be_visible()
    change("none", "0").to_be_visible()
    first = picture.get_attribute("src")
    page.get_by_label("What a scheme does").click()
    page.get_by_role("option", name="t5").click()
    expect(picture).not_to_have_attribute("src", first)


@pytest.mark.slow
def test_the_committed_results_are_shown_plan_by_plan(page: Any) -> None:
    page.get_by_role("tab", name="What was measured").click()
    expect(page.get_by_role("columnheader", name="semeval2010_task8")).to_be_visible()
    expect(page.get_by_text("Which one, and how sure")).to_be_visible()
    is_readable(page, "measured")
    page.get_by_label("Comparison").click()
    page.get_by_role("option", name="(listops)").click()
    expect(page.get_by_text("relative_key_query has the highest mean")).to_be_visible()
