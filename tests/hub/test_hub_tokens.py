"""A server, such as a mirror or a proxy, that repeats what it was sent: no command prints the token."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.main import get_command

from hf_posenc import cli

TOKEN = "hf_thisIsNoRealTokenButLooksLikeOne"


class Echo(BaseHTTPRequestHandler):
    """Refuses each request, with its Authorization header as the reason."""

    seen: list[str] = []

    def do_GET(self) -> None:
        text = f"You sent {self.headers.get('Authorization')}."
        self.seen.append(text)
        self.send_response(403)
        self.send_header("X-Error-Message", text)
        self.send_header("X-HF-Warning", f"echo; {text}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Such a server as the Hub, and what it has answered."""
    monkeypatch.setattr(Echo, "seen", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        at = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", at)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.chdir(tmp_path)
        yield Echo.seen
        server.shutdown()


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


def test_every_command_that_asks_the_hub_is_tried() -> None:
    local = {"schemes", "check", "report"}
    assert {words.split()[0] for words in ASKING.values()} | local == {*get_command(cli.app).commands}


@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_no_command_repeats_a_token(words: str, echo: list[str], saved: Path, run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "text,label\n" + "".join(f"film {number},{number % 2}\n" for number in range(40))
    )
    (tmp_path / "saved").symlink_to(saved)
    code, out, err = run(*words.split())
    assert any(TOKEN in text for text in echo), err
    assert code != 0
    assert TOKEN not in out + err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
