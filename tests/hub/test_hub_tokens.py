"""A server, such as a mirror or a proxy, that repeats what it was sent: no command prints the token."""

from pathlib import Path

import pytest
from typer.main import get_command

from hf_posenc import cli
from tests.support.hub_server import Hub

TOKEN = "hf_thisIsNoRealTokenButLooksLikeOne"


@pytest.fixture
def echo(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """A Hub that refuses each request, with the token that it was sent as the reason."""
    for method in ("GET", "HEAD", "POST", "PUT"):
        hub.fail(method, "", 403, times=99, message=f"You sent Bearer {TOKEN}.")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    return hub


TRAIN = "train -o run --max-steps 1 --data"
ASKING = {
    "convert": "convert me/private -o out",
    "export": "export me/private -o out --to native",
    "predict": "predict me/private text",
    "evaluate": "evaluate me/private --data mine.csv",
    "train": f"{TRAIN} mine.csv --pretrained me/private",
    "train, a tokenizer": f"{TRAIN} mine.csv --tokenizer me/private",
    "train, data": f"{TRAIN} me/private",
    "compare": "compare -o compared --data mine.csv --schemes none --seeds 1 --pretrained me/private",
    "compare, data": "compare -o compared --data me/private --schemes none --seeds 1",
    "plot": "plot me/private -o out.png",
    "publish": "publish saved --repo-id me/private",
}
"""Commands that ask the Hub."""


def test_every_command_that_asks_the_hub_is_tried():
    local = {"schemes", "check", "report"}
    assert {words.split()[0] for words in ASKING.values()} | local == {*get_command(cli.app).commands}


@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_no_command_repeats_a_token(words, echo, saved, run, tmp_path):
    (tmp_path / "mine.csv").write_text(
        "text,label\n" + "".join(f"film {number},{number % 2}\n" for number in range(40))
    )
    (tmp_path / "saved").symlink_to(saved)
    code, out, err = run(*words.split())
    assert any(request.token == TOKEN for request in echo.requests), err
    assert code != 0
    assert TOKEN not in out + err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
