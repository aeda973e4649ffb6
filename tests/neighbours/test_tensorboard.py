"""`--set report_to=tensorboard`: the event files hold what the run logged."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboard")


def test_the_event_files_have_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = "".join(
        f"{text} {row},{label}\n" for row in range(40) for text, label in (("good film", "yes"), ("bad film", "no"))
    )
    (tmp_path / "mine.csv").write_text("text,label\n" + rows)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    words = f"train -o {tmp_path / 'run'} --data {tmp_path / 'mine.csv'} --epochs 2 --no-bf16 --device cpu"
    words += " --set report_to=tensorboard --set logging_steps=1 --set logging_strategy=steps"
    assert run(*words.split())[0] == 0
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    history = json.loads((tmp_path / "run" / "results.json").read_text())["history"]
    for tag, name in (("train/loss", "loss"), ("eval/loss", "eval_loss"), ("eval/accuracy", "eval_accuracy")):
        logged = {entry["step"]: entry[name] for entry in history if name in entry}
        losses = {event.step: event.value for event in board.Scalars(tag)}
        assert losses == pytest.approx(logged, rel=1e-6)
        assert len(losses) >= 2
