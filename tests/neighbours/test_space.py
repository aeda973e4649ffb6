"""The Gradio app of examples/space, driven in headless Chromium as a visitor would."""

import importlib.util
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
from remote_code_harness import save_tiny

SPACE = Path(__file__).parents[2] / "examples" / "space"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DISABLED = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in DISABLED)]
PATIENCE = 60_000  # milliseconds
SENTENCE = "the old cat chased the big dog"
SWAPPED = "the old dog chased the big cat"


def test_the_card_is_what_the_hub_reads() -> None:
    card = SpaceCard.load(SPACE / "README.md")
    assert card.data.sdk == "gradio"
    assert (SPACE / card.data.app_file).is_file()
    assert card.data.license == "apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+", card.data.sdk_version)
    assert len(card.data.short_description) <= 60
    assert (SPACE / "requirements.txt").read_text().split() == ["hf-posenc[plots]"]


def load_app() -> Any:
    pytest.importorskip("gradio")
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    return app


@pytest.mark.slow
def test_visitors_of_a_space_name_no_folder_and_a_folder_written_anew_is_read_anew(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app()
    shutil.copytree(checkpoints["rope"], tmp_path / "me" / "model")
    first = app.load(str(tmp_path / "me" / "model"))
    assert app.load(str(tmp_path / "me" / "model")) is first
    shutil.copytree(checkpoints["none"], tmp_path / "me" / "model", dirs_exist_ok=True)
    assert app.load(str(tmp_path / "me" / "model")).model.config.position_embedding_type == "none"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "PUBLIC", True)
    for named in (str(tmp_path / "me" / "model"), "me/model", "../etc", "/etc/passwd"):
        with pytest.raises(ValueError, match="is no name on the Hub"):
            app.load(named)
    monkeypatch.setattr(app, "CHECKPOINT", "me/model")
    assert app.load("me/model").model.config.position_embedding_type == "none"

    def broken(*_: object) -> tuple[str]:
        raise RuntimeError("out of room")

    assert app.readable(broken, 1)() == (None, "\u26a0\ufe0f RuntimeError: out of room")

    commit = ["first"]
    monkeypatch.setattr(app.PosEncConfig, "get_config_dict", lambda name: ({"_commit_hash": commit[0]}, {}))
    monkeypatch.setattr(app, "load_classifier", lambda name: object())
    pushed = app.load("me/pushed")
    assert app.load("me/pushed") is pushed
    commit[0] = "second"
    assert app.load("me/pushed") is not pushed


@pytest.mark.slow
def test_a_long_text_is_drawn_as_far_as_a_picture_shows(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app()
    monkeypatch.setattr(
        app, "plot_position", lambda model, max_positions, input_ids: (max_positions, input_ids.shape[1])
    )
    for sentence in ("the the", "a cat The the"):
        with pytest.raises(ValueError, match="last two words are both '[Tt]he'"):
            app.swap(sentence, "")
    table = app.PosEncConfig.from_pretrained(checkpoints["learned"]).max_position_embeddings
    for scheme, most in (("rope", 512), ("learned", table)):
        *_, shown = app.show_model(str(checkpoints[scheme]), "the cat " * 3000, "the cat", 512)
        assert shown == (most, most)


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
        "HF_POSENC_CHECKPOINT": "",
    }
    log = tmp_path_factory.mktemp("space") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(SPACE / "app.py")], env=environment, stdout=output, stderr=output
        )
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


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {scheme: save_tiny(root / scheme, scheme) for scheme in ("none", "rope", "learned")}
    return {**folders, "encoder": save_tiny(root / "encoder", "rope", "PosEncModel")}


def shoot(page: Any, name: str) -> None:
    """A picture of the page, for people, where HF_POSENC_SCREENSHOTS names a folder."""
    if folder := os.environ.get("HF_POSENC_SCREENSHOTS"):
        page.wait_for_timeout(1000)  # what is new fades in
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def pictures(page: Any) -> Any:
    return page.get_by_test_id("matplotlib").locator("img").filter(visible=True)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def choose(page: Any, scheme: str) -> None:
    box = page.get_by_label("Scheme", exact=True).first
    box.fill(scheme)
    box.press("Enter")
    box.press("Escape")


def ask(page: Any, checkpoint: str | Path, sentence: str = SENTENCE, words: str = "") -> None:
    page.get_by_role("tab", name="A trained model").click()
    for label, text in (("Checkpoint", str(checkpoint)), ("Sentence", sentence), ("Words to swap", words)):
        page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Ask the model").click()


@pytest.mark.slow
def test_on_a_phone_pictures_scroll_at_a_size_that_can_be_read(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    expect(pictures(page)).to_have_count(1)
    shoot(page, "phone")
    width, left, room, whole = pictures(page).evaluate(
        "image => { const box = image.parentElement; return [image.width, image.getBoundingClientRect().left - "
        "box.getBoundingClientRect().left, box.clientWidth, box.scrollWidth]; }"
    )
    assert left == 0  # nothing is cut off where it can't be scrolled to
    assert room < 390 < 900 < width <= whole
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_it_opens_with_a_scheme_and_shows_another(page: Any) -> None:
    expect(pictures(page)).to_have_count(1)
    first = pictures(page).get_attribute("src")
    shoot(page, "first")
    choose(page, "t5")
    page.get_by_role("button", name="Show").click()
    page.wait_for_function(
        "before => document.querySelector('[data-testid=matplotlib] img')?.src !== before", arg=first
    )
    width, height = pictures(page).evaluate("image => [image.naturalWidth, image.naturalHeight]")
    assert width > 600
    assert height > 250
    shoot(page, "scheme")


@pytest.mark.slow
def test_a_scheme_that_is_not_there_is_named_in_the_page(page: Any) -> None:
    expect(pictures(page)).to_have_count(1)
    for scheme, message in (
        ("ropee", "position_embedding_type='ropee' is unknown. Did you mean 'rope'?"),
        ("none+rope", "'none+rope' makes no sense"),
    ):
        choose(page, scheme)
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text(message)).to_be_visible()
        shoot(page, f"complaint-{scheme}")
        expect(pictures(page)).to_have_count(0)


@pytest.mark.slow
def test_a_model_is_asked_before_and_after_two_words_are_swapped(page: Any, checkpoints: dict[str, Path]) -> None:
    ask(page, checkpoints["learned"], words="Dog, cat")
    expect(page.get_by_text("The swap changes what the model says")).to_be_visible()
    expect(page.get_by_text("PosEncForSequenceClassification")).to_be_visible()
    expect(page.get_by_text(SWAPPED).first).to_be_visible()
    expect(pictures(page)).to_have_count(1)
    shoot(page, "model")
    ask(page, checkpoints["none"])  # which is blind to order
    expect(page.get_by_text("The model says the same: it doesn't see this change of the order.")).to_be_visible()
    expect(pictures(page)).to_have_count(1)
    shoot(page, "blind")


@pytest.mark.slow
def test_what_cannot_be_asked_is_named_in_the_page(page: Any, checkpoints: dict[str, Path]) -> None:
    for checkpoint, sentence, words, message in (
        ("", SENTENCE, "", "No checkpoint is named. Give the folder of a classifier"),
        ("/no/such/folder", SENTENCE, "", "'/no/such/folder': there is no such folder"),
        ("rope", "Hello!", "", "'Hello!' has no two words to swap"),
        ("rope", SENTENCE, "the mouse", "'mouse' isn't in the sentence. Its words are the, old, cat"),
        ("rope", SENTENCE, "cat", "'cat' are not two different words"),
        ("encoder", SENTENCE, "", "holds PosEncModel, which doesn't classify texts"),
    ):
        ask(page, checkpoints.get(checkpoint, checkpoint), sentence, words)
        expect(page.get_by_text(message)).to_be_visible()
        expect(pictures(page)).to_have_count(0)
