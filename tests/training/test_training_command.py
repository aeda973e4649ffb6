"""`hf-posenc train` as it is run: a fault of ours, a full disk, Ctrl-C."""

import os
import signal
from typing import Any

import pytest
from training_harness import LAUNCH, SIZES, TRAIN, TWO, assert_same_weights, await_loss, begun, command, in_processes
from transformers import Trainer

from hf_posenc.checkpoints.trainer_checkpoints import checkpoints


@pytest.mark.slow
def test_ctrl_c_stops_two_processes_at_the_same_step(order, tmp_path):
    """As a terminal sends it: to the launcher, which passes it on, and to both processes."""
    options = {**order, "max_steps": 200, "batch_size": 8}
    with begun([*LAUNCH, *TRAIN, *command(tmp_path / "run", **options)], tmp_path / "errors") as running:
        await_loss(running)
        os.killpg(running.pid, signal.SIGINT)
    errors = (tmp_path / "errors").read_text()
    assert errors.count("Interrupted: '") == 1, errors
    (checkpoint,) = checkpoints(tmp_path / "run")
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2
    resumed, whole = ([*TRAIN, *command(tmp_path / name, **options, resume=name == "run")] for name in ("run", "whole"))
    in_processes([*TWO, *resumed, "--then", *whole])
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_full_disk_is_one_line_and_keeps_the_earlier_checkpoints(order, tmp_path, monkeypatch, run):
    resource = pytest.importorskip("resource")
    options = {**order, **dict.fromkeys(SIZES), "epochs": 2, "save_strategy": "epoch"}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = Trainer._save_checkpoint

    def then_full(*arguments: Any) -> None:
        save(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # the weights are larger

    monkeypatch.setattr(Trainer, "_save_checkpoint", then_full)
    try:
        code, _, err = run("train", *command(tmp_path / "run", **options))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    (error,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert "Make room, or name another folder. What is left: '" in error
    assert "checkpoint-10'. The same command with --resume goes on from there." in error
    monkeypatch.setattr(Trainer, "_save_checkpoint", save)
    assert run("train", *command(tmp_path / "run", **options, resume=True))[0] == 0
