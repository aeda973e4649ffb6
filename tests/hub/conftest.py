"""A Hub for each test that wants one; a request that it doesn't know, or a token where none belongs, fails the test."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.hub import publishing
from tests.support.hub_server import Hub, no_token_lies_in
from tests.support.remote_code import tiny_model, tiny_tokenizer


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with Hub().running() as running:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        at = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", running.url + at)
        yield running
    assert running.problems == []
    no_token_lies_in(running)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the commit, which has tests of its own."""
    monkeypatch.setattr(publishing, "verify_upload", lambda *_: None)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with its tokenizer, and what lies in a folder after training."""
    folder = tmp_path_factory.mktemp("saved") / "mine"
    tiny_model("learned", "PosEncForSequenceClassification").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "notes.txt").write_text("private")
    return folder


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Any:
    """A copy to change."""
    return shutil.copytree(saved, tmp_path / "mine")
