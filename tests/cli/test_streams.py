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
from typer.main import get_command

from hf_posenc import cli, progress
from tests.support.common import tiny_classifier

ROOT = Path(__file__).parents[1] / "support"
TRAINING = ["train", "--data", "café.csv", "--max-steps", "1", "--no-bf16", "--device", "cpu", "-o"]  # FOLDER
ANSWERING = {
    "predict": ["predict", "café", "un café", "--json"],
    "evaluate": ["evaluate", "café", "--data", "café.csv", "--errors", "wrong.csv"],
    "help": ["train", "--help"],
}
"""Commands whose answer is their output."""


def test_commands_that_leave_files_are_told_from_those_that_answer():
    commands = get_command(cli.app).commands.items()
    leaving = {name for name, command in commands if type(command).__name__ == "WritingCommand"}
    assert leaving == {"train", "convert", "export", "compare", "plot", "publish"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    texts = [f"un café {number} und {number * 7}" for number in range(30)]
    rows = "".join(f"{text},{'café' if number % 2 else 'thé'}\n" for number, text in enumerate(texts))
    (folder / "café.csv").write_text("text,label\n" + rows, encoding="utf-8")
    tiny_classifier(folder / "café", texts, ("café", "thé"))
    return folder


CASES = [*(("train", way) for way in ("2>&1 > /dev/full", "ascii")), ("evaluate", "| true")]
CASES += [(name, way) for name in ("predict", "help") for way in ("| true", "> /dev/full", ">&-", "ascii")]


@pytest.fixture(scope="module")
def results(place):
    """The exit code, standard output and standard error of each case."""
    cases = [([*TRAINING, way] if name == "train" else ANSWERING[name], way) for name, way in CASES]
    script = [sys.executable, str(ROOT / "streams_process.py"), json.dumps(cases)]
    done = subprocess.run(script, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


def test_a_training_is_whole_whoever_reads_it(place, results):
    for (name, way), (code, out, err) in results.items():
        if name == "train":
            assert (code, (place / way / "model.safetensors").is_file()) == (0, True), (way, err)
            assert "Traceback" not in err
            assert way != "ascii" or (out.isascii() and out)


REASONS = {"> /dev/full": "No space left on device", ">&-": "File not open for writing"}


def test_an_answer_that_cannot_be_printed_is_said(place, results):
    for (name, way), (code, out, err) in results.items():
        if name == "train":
            continue
        assert code == (way in REASONS), (name, way, out, err)
        errors = [line for line in err.splitlines() if "Error" in line or "Traceback" in line]
        said = f"Error: standard output can't be written to: {REASONS.get(way)}."
        assert errors == ([said] if way in REASONS else [])
        assert way != "ascii" or (out.isascii() and out), (name, out)
        assert (way, name) != ("ascii", "predict") or json.loads(out)["text"] == "un café"
    assert (place / "wrong.csv").is_file()  # though nobody read the scores


SCRIPT = """
import sys
import hf_posenc
texts, options = [f"a text {number}" for number in range(30)], {"max_steps": 1, "bf16": False, "device": "cpu"}
hf_posenc.PosEncClassifier(verbose=1, baselines=True, **options).fit(texts, [0, 1] * 15).save(sys.argv[1])
"""


@pytest.mark.slow
def test_a_training_of_a_script_that_a_shell_started_is_whole(place, tmp_path):
    line = f"{shlex.join([sys.executable, '-c', SCRIPT, str(tmp_path / 'new')])} | head -1"
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
    console = progress.ProgressConsole()
    for stream.error in (None, OSError, BrokenPipeError, None):
        console.print(f"line {stream.error}")
    assert stream.getvalue().startswith("line None\n")
    assert stream.getvalue().endswith("line None\n")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    progress.ProgressConsole().print("un café")
    assert ascii_only.buffer.getvalue() == b"un caf\\xe9\n"
