"""What a run shows while it works: one live line in a terminal, plain lines in a log, nobody else's bars."""

import io
import re
import sys

import pytest
from rich.console import Console
from rich.text import Text
from training_harness import train

from hf_posenc.training import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file, order, tmp_path, capfd, **options):
    console = Console(file=file, force_terminal=file.isatty(), width=80)
    train(tmp_path / "run", console, **order, do_eval=True, disable_tqdm=False, **options)
    return file.getvalue(), "".join(capfd.readouterr())


def test_a_terminal_shows_one_line_with_step_loss_rate_and_time_left(order, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_LIVE_EVERY", 0.0)
    written, elsewhere = shown(Terminal(), order, tmp_path, capfd)
    frames = [Text.from_ansi(frame).plain for frame in re.split(r"[\r\n]|\x1b\[\d*A", written)]
    assert all(len(frame) <= 80 for frame in frames)
    (frame, *_) = [frame for frame in frames if "step 9/10" in frame]
    assert re.fullmatch(r"epoch 0\.9  step 9/10  loss \d\.\d{3}  rate \d\.\de-0\d [━╸╺ ]+\d:\d\d:\d\d left ?", frame)
    assert any("scoring: batch 1/1" in frame for frame in frames)
    (line,) = [frame for frame in frames if frame.startswith("Epoch 1: loss ")]
    assert "validation loss " in line
    assert "accuracy " in line
    assert elsewhere == ""


def test_a_log_has_few_plain_lines_and_no_control_characters(order, tmp_path, capfd):
    written, elsewhere = shown(io.StringIO(), order, tmp_path, capfd, num_train_epochs=2, logging_strategy="steps")
    assert not re.search(r"[^\n -~•-￿]", written)
    assert "{" not in written
    lines = [line for line in written.splitlines() if line.startswith(("Epoch", "Step"))]
    assert [line.split(":")[0] for line in lines] == ["Epoch 1", "Epoch 2"]
    assert elsewhere == ""


def test_a_long_run_writes_a_line_to_the_log_now_and_then(order, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "_PLAIN_EVERY", 0.0)
    written, _ = shown(io.StringIO(), order, tmp_path, capfd, max_steps=3)
    lines = [line for line in written.splitlines() if "  step " in line]
    assert len(lines) == 3
    assert re.fullmatch(r"Epoch 0\.1  step 1/3  loss \d\.\d{3}  rate \d\.\de-0\d", lines[0])


def test_an_error_in_training_takes_the_line_away(order, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(progress.ProgressLine, "update_loss", lambda *_: 1 / 0)
    before = sys.stdout
    with pytest.raises(ZeroDivisionError):
        shown(terminal, order, tmp_path, capfd)
    assert sys.stdout is before, "the live line has given standard output back"
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the cursor is shown, the line gone"
