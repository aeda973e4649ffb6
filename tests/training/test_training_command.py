"""`hf-posenc train` as it is run: bad input, a full disk, Ctrl-C."""

import json
import os
import shutil
import signal
import sys
from typing import Any

import pytest
import torch
from training_harness import (
    LAUNCH,
    SIZES,
    TRAIN,
    TWO,
    assert_same_weights,
    await_loss,
    begun,
    command,
    in_processes,
    order_files,
    snapshot,
    train_by_command,
)
from transformers import Trainer

from hf_posenc.training.run_folder import checkpoints


@pytest.mark.slow
def test_ctrl_c_stops_two_processes_at_the_same_step(order, tmp_path):
    """As a terminal sends it: to the launcher, which passes it on, and to both processes."""
    options = {**order, "max_steps": 30, "batch_size": 8}
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


BAD = [
    (
        "--scheme rope --scheme-kwargs {'interleave':true}",
        "position_embedding_kwargs['interleave']=True is no argument of 'rope'. Did you mean",
    ),
    ("--set hidden_size=33 --set num_attention_heads=2", "hidden_size=33 isn't a multiple of num_attention_heads=2"),
    ("--set hidden_act=7", "Field 'hidden_act' expected str, got int (value: 7)"),
    ("--set save_strategy=often", "often"),
    ("--set report_to=foo", "Error: foo is not supported, only "),
    ("--set fsdp=true", "Error: Using fsdp only works in distributed training."),
    pytest.param(
        "--device cuda",
        "--device 'cuda' can't be trained on. This machine has cpu alone.",
        marks=pytest.mark.skipif(torch.accelerator.is_available(), reason="needs no GPU here"),
    ),
    (
        "--scheme learned --set max_position_embeddings=32 --max-length 33",
        "--max-length 33 is too long: 'learned' has 32 positions. Repeat its table with --set max",
    ),
    ("--pretrained weights", "'weights' can't be loaded: "),
    ("--pretrained configuration", "can't be read as a checkpoint: "),
    ("--pretrained tokenizer", "--tokenizer"),
    ("--pretrained nobody/nothing", "'nobody/nothing' can't be read as a checkpoint: "),
    pytest.param(
        "-o /sys/hf-posenc-run",
        "Writing to '/sys/hf-posenc-run' failed: [Errno 1] Operation not permitted",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody can write to"),
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, checkpoint):
    """A folder with data, and checkpoints of which one file is damaged."""
    folder = tmp_path_factory.mktemp("bad")
    order_files(folder)
    damages = {"weights": "model.safetensors", "configuration": "config.json", "tokenizer": "tokenizer.json"}
    for name, file in damages.items():
        shutil.copytree(checkpoint, folder / name)
        (folder / name / file).write_bytes((folder / name / file).read_bytes()[: 200 * (name != "tokenizer")])
    (folder / "tokenizer" / "tokenizer.json").unlink()
    return folder


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(words, message, place, run, monkeypatch):
    monkeypatch.chdir(place)
    before = snapshot(place)
    given = [word.replace("'", '"') for word in words.split()]
    usual = ("-o", "run", "--data", "train.jsonl", "--validation-share", "0", "--device", "cpu")
    code, _, err = run("train", *usual, *given)
    assert code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert snapshot(place) == before


def test_whatever_else_goes_wrong_is_one_line_too(order, tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("transformers.Trainer.training_step", broken)
    options = {**order, "overwrite": True}
    assert train_by_command(monkeypatch, tmp_path / "run", **options) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "Error: RuntimeError: two lines (HF_POSENC_TRACEBACK=1 shows where)"
    monkeypatch.setenv("HF_POSENC_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="two"):
        train_by_command(monkeypatch, tmp_path / "run", **options)


def test_a_full_disk_is_one_line_and_keeps_the_earlier_checkpoints(order, tmp_path, monkeypatch, capsys):
    resource = pytest.importorskip("resource")
    options = {**order, **dict.fromkeys(SIZES), "epochs": 2, "save_strategy": "epoch"}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = Trainer._save_checkpoint

    def then_full(*arguments: Any) -> None:
        save(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # the weights are larger

    monkeypatch.setattr(Trainer, "_save_checkpoint", then_full)
    try:
        assert train_by_command(monkeypatch, tmp_path / "run", **options) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Make room or name another --output. What is left: '" in errors[0]
    assert "checkpoint-10'. The same command with --resume goes on from there." in errors[0]
    monkeypatch.setattr(Trainer, "_save_checkpoint", save)
    assert train_by_command(monkeypatch, tmp_path / "run", **options, resume=True) == 0


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(order, tmp_path):
    words = command(tmp_path / "run", **order, epochs=20)
    with begun([sys.executable, *TRAIN, *words], tmp_path / "errors") as running:
        await_loss(running)
        running.send_signal(signal.SIGINT)
    errors = (tmp_path / "errors").read_text()
    assert running.returncode == 130, errors
    assert errors.strip().splitlines()[-1].startswith("Interrupted: '")
    (checkpoint,) = checkpoints(tmp_path / "run")
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] > 0
