"""What a run shows: a bar on a terminal, a line a minute in a log, at most 40 lines of results, nothing twice."""

import io
import logging
import re
import subprocess
import sys

import pytest
from rich.console import Console
from transformers.utils import logging as transformers_logging

from hf_posenc import progress
from tests.support.training import ENVIRONMENT, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file, tmp_path, capfd, **options):
    """What a run writes to a console of 80 columns, and what comes elsewhere."""
    console = Console(file=file, force_terminal=file.isatty(), width=80)
    train(tmp_path / "run", console, disable_tqdm=False, **options)
    return file.getvalue(), "".join(capfd.readouterr())


def test_a_log_is_short_and_says_nothing_twice(order, tmp_path, capfd):
    options = {**order, "epochs": 3, "baselines": True, "class_weights": "balanced"}
    written, elsewhere = shown(io.StringIO(), tmp_path, capfd, **options)
    assert elsewhere == ""
    assert not re.search(r"[^\n -~•-￿]", written), "control characters"
    lines = [line for line in written.splitlines() if line.strip()]
    assert len(lines) <= 40
    assert len(set(lines)) == len(lines)
    numbers = [line.split() for line in lines if re.search(r"\d\.\d{3,4}", line)]
    assert len({tuple(words) for words in numbers}) == len(numbers)
    assert [line.split(",")[0] for line in lines if line.startswith("Epoch")] == ["Epoch 1", "Epoch 2", "Epoch 3"]
    wanted = ["Data ", "Model ", "Class weights: ", "loss ", "accuracy of words ", "test: class", "Calibration error"]
    assert [sum(line.strip().startswith(words) for line in lines) for words in wanted] == [1] * len(wanted)


def test_a_long_run_writes_a_line_to_the_log_now_and_then(order, tmp_path, capfd, monkeypatch):
    assert progress.LINE_EVERY == 60
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    written, _ = shown(io.StringIO(), tmp_path, capfd, **order, max_steps=3, logging_steps=1, logging_strategy="steps")
    lines = [line for line in written.splitlines() if " left" in line and "step" in line]
    assert len(lines) == 3
    assert re.fullmatch(r"Epoch 0\.2, step 2 of 3, loss \d\.\d{3}, 00:0\d left", lines[1])


def test_a_terminal_has_the_bar_of_the_trainer_and_a_line_for_each_evaluation(order, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    written, elsewhere = shown(Terminal(), tmp_path, capfd, **order)
    assert "10/10" in elsewhere
    assert "{'" not in written + elsewhere  # the Trainer's own lines
    assert re.search(r"Epoch 1, loss \d\.\d{3}; validation: loss ", written)
    assert " left\n" not in written


def test_checkpoints_that_follow_each_other_at_once_are_no_warning(order, tmp_path, capfd):
    transformers_logging.warning_once.cache_clear()
    saved = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    _, elsewhere = shown(io.StringIO(), tmp_path, capfd, data=order["data"], max_steps=3, **saved)
    assert elsewhere == ""


@pytest.mark.slow
def test_the_first_process_alone_gives_notices():
    assert logging.getLogger("hf_posenc.training.x").getEffectiveLevel() == logging.WARNING
    asked = "import hf_posenc, logging; print(logging.getLogger('hf_posenc.training.x').getEffectiveLevel())"
    environment = {**ENVIRONMENT, "RANK": "1"}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(logging.ERROR)]
