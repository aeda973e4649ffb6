"""A reader that goes away, a log on a full disk and an encoding without our letters end no training.

A command whose answer is its output says that it couldn't be written.
"""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from common import tiny_classifier
from typer.main import get_command

from hf_posenc import cli
from hf_posenc.progress import ProgressConsole

ROOT = Path(__file__).parent
SMALL = ["--max-steps", "1", "--no-bf16"]
WAYS = ("| true", "> /dev/full", "2>&1 > /dev/full", ">&-", "ascii")
NEW = "NEW"
"""Stands for a path that doesn't exist yet."""
COMPARED = ["compare", "-o", NEW, "--data", "café.csv", "--schemes", "none,rope", "--seeds", "1", "--options"]
COMPARED += ['{"max_steps": 1, "set": {"hidden_size": 16, "num_hidden_layers": 1}}']
WRITING = {
    "train": (["train", "-o", NEW, "--data", "café.csv", *SMALL, "--device", "cpu"], "model.safetensors"),
    "convert": (["convert", "café", "-o", NEW, "--scheme", "alibi", "--heal", "café.csv", *SMALL], "model.safetensors"),
    "export": (["export", "café", "-o", NEW, "--to", "native"], "model.safetensors"),
    "compare": (COMPARED, "report.md"),
    "plot": (["plot", "rope", "-o", f"{NEW}é.png"], None),
}
"""Commands that leave files: words, and a file that they leave."""
ANSWERING = {
    "predict": ["predict", "café", "un café", "--json"],
    "evaluate": ["evaluate", "café", "--data", "café.csv", "--errors", "wrong.csv"],
    "schemes": ["schemes"],
    "check": ["check", "none", "--only", "shapes"],
    "report": ["report", "compared"],
    "publish": ["publish", "café", "--repo-id", "me/mine", "--dry-run"],
    "compare": [*COMPARED, "--dry-run"],
    "help": ["train", "--help"],
}
"""Commands whose answer is their output."""


def test_every_command_is_tried():
    assert {words[0] for words in [*ANSWERING.values(), *(words for words, _ in WRITING.values())]} == {
        *get_command(cli.app).commands
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    texts = [f"un café {number} und {number * 7}" for number in range(30)]
    rows = "".join(f"{text},{'café' if number % 2 else 'thé'}\n" for number, text in enumerate(texts))
    (folder / "café.csv").write_text("text,label\n" + rows, encoding="utf-8")
    head = {"classifier_pooling": "cls", "classifier_hidden_act": "tanh"}  # BERT's, so that it can be exported
    tiny_classifier(folder / "café", texts, ("café", "thé"), norm_position="post", **head)
    return folder


def ran(place: Path, cases: list[tuple[list[str], str]]) -> list[tuple[int, str, str]]:
    """The exit code, standard output and standard error of each case."""
    words = [sys.executable, str(ROOT / "streams_process.py"), json.dumps(cases)]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def check(place: Path, new: Path, writing: list[tuple[str, str]], answering: list[tuple[str, str]]) -> None:
    """Runs commands, each in a way.

    Those that leave files end well, and leave them. Those whose answer is their output fail where it is lost.
    """
    cases, left = [], []
    for number, (command, way) in enumerate(writing):
        words, file = WRITING[command]
        cases.append(([word.replace(NEW, str(new / f"{number}")) for word in words], way))
        left.append(new / f"{number}" / file if file else new / f"{number}é.png")
    answers = [(ANSWERING[command], way) for command, way in answering]
    results = ran(place, [*cases, *answers])
    for (words, way), file, (code, out, err) in zip(cases, left, results, strict=False):
        assert (code, file.is_file()) == (0, True), (words, way, err)
        assert "Traceback" not in err
        assert way != "ascii" or (out.isascii() and out), out
    for (words, way), (code, out, err) in zip(answers, results[len(cases) :], strict=True):
        assert code == (way in ("> /dev/full", "2>&1 > /dev/full", ">&-")), (words, way, out, err)
        errors = [line for line in err.splitlines() if "Error" in line or "Traceback" in line]
        reason = {"> /dev/full": "No space left on device", ">&-": "File not open for writing"}.get(way)
        assert errors == ([] if reason is None else [f"Error: standard output can't be written to: {reason}."])
        assert way not in ("> file", "2> /dev/full", "ascii") or out, (words, way)
        assert way != "ascii" or out.isascii(), (words, out)
        assert way != "ascii" or "--json" not in words or json.loads(out)["text"] == "un café"


def test_a_training_is_whole_and_an_answer_fails_where_it_cannot_be_printed(place, tmp_path):
    answering = [*(("predict", way) for way in ("> /dev/full", "| true", "ascii")), ("evaluate", "| true")]
    check(place, tmp_path, [("train", "2>&1 | true"), ("train", "> /dev/full")], answering)
    assert (place / "wrong.csv").is_file()  # though nobody read the scores


@pytest.mark.slow
def test_every_command_leaves_what_it_makes_whoever_reads_it(place, tmp_path):
    check(place, tmp_path, [(command, way) for command in WRITING for way in WAYS], [])


@pytest.mark.slow
def test_every_answer_that_is_lost_is_said(place, tmp_path):
    ((code, _, err),) = ran(place, [([word.replace(NEW, "compared") for word in COMPARED], "> file")])
    assert code == 0, err
    check(place, tmp_path, [], [(command, way) for command in ANSWERING for way in WAYS])


SCRIPT = """
import sys
import hf_posenc
texts, options = [f"a text {number}" for number in range(30)], {"max_steps": 1, "bf16": False, "device": "cpu"}
hf_posenc.PosEncClassifier(verbose=1, baselines=True, **options).fit(texts, [0, 1] * 15).save(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["| head -1", "2>&1 > /dev/full", "2>&1 | true"])
def test_a_training_of_a_script_that_a_shell_started_is_whole(place, tmp_path, ending):
    line = f"{shlex.join([sys.executable, '-c', SCRIPT, str(tmp_path / 'new')])} {ending}"
    done = subprocess.run(["bash", "-c", line], cwd=place, capture_output=True, text=True)
    assert (tmp_path / "new" / "model.safetensors").is_file(), done.stderr
    assert "Traceback" not in done.stderr


class Broken(io.StringIO):
    """A stream of which each write fails, once it is broken."""

    def __init__(self, error: type[OSError] | None = None) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        if self.error is not None:
            raise self.error


def test_progress_of_a_script_ends_nothing_and_comes_back(monkeypatch):
    stream = Broken()
    monkeypatch.setattr(sys, "stdout", stream)
    console = ProgressConsole()
    for stream.error in (None, OSError, BrokenPipeError, None):
        console.print(f"line {stream.error}")
    assert stream.getvalue().startswith("line None\n")
    assert stream.getvalue().endswith("line None\n")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    ProgressConsole().print("un café")
    assert ascii_only.buffer.getvalue() == b"un caf\\xe9\n"
