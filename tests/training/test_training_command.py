"""`hf-posenc train` as it is run: bad input, a full disk, Ctrl-C."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_harness import (
    LAUNCH,
    TRAIN,
    assert_same_weights,
    await_loss,
    begun,
    command,
    in_processes,
    snapshot,
    train,
    train_by_command,
    write_jsonl,
)

from hf_posenc.training import is_complete


@pytest.mark.slow
def test_ctrl_c_stops_two_processes_at_the_same_step(order, tmp_path):
    """As a terminal sends it: to the launcher, which passes it on, and to both processes."""
    options = {**order, "output_dir": tmp_path / "run", "num_train_epochs": 500, "per_device_train_batch_size": 8}
    options |= {"logging_strategy": "steps", "logging_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    with begun([*LAUNCH, *TRAIN, *command(options)], tmp_path / "errors") as running:
        await_loss(running)
        os.killpg(running.pid, signal.SIGINT)
    errors = (tmp_path / "errors").read_text()
    assert errors.count("Interrupted: the newest checkpoint is") == 1, errors
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert is_complete(checkpoint)
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2
    options |= {"max_steps": int(checkpoint.name.rpartition("-")[2]) + 3}
    for name, resumed in (("run", "true"), ("whole", None)):
        words = [*LAUNCH, *TRAIN, *command({**options, "output_dir": tmp_path / name})]
        in_processes([*words, *(["--resume_from_checkpoint", resumed] if resumed else [])])
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def damaged_checkpoint(part: str, change: Callable[[Path], Any]) -> Callable[..., dict[str, Any]]:
    """Options that name a checkpoint of which one file was changed."""

    def make(folder: Path, order: dict[str, str]) -> dict[str, Any]:
        run = train(folder / "trained", train_file=order["train_file"], max_train_samples=32)
        change(run.output_dir / part)
        return {"model_name_or_path": str(run.output_dir), "config_overrides": None}

    return make


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


BAD: list[tuple[Any, str]] = [
    (
        {"position_embedding_type": "rope", "position_embedding_kwargs": {"interleave": True}},
        "position_embedding_kwargs['interleave']=True is no argument of 'rope'. Did you mean",
    ),
    ({"config_overrides": "hidden_sizes=32"}, "--config-overrides 'hidden_sizes=32': give name=value"),
    (
        {"config_overrides": "hidden_size=33,num_attention_heads=2"},
        "hidden_size=33 isn't a multiple of num_attention_heads=2",
    ),
    ({"config_overrides": "hidden_act=7"}, "hidden_act"),
    (
        {"text_column_names": "body"},
        "no column 'body'. It has 'text', 'label', 'paradigm', 'pair_id': name one with --text-column-names",
    ),
    (lambda folder, order: {"train_file": write_jsonl(folder / "empty.jsonl", [])}, "empty.jsonl' is empty"),
    (
        {"position_embedding_type": "learned", "max_position_embeddings": 32, "max_seq_length": 33},
        "--max-seq-length 33 is too long: 'learned' has 32 positions. Give at most 32",
    ),
    (damaged_checkpoint("model.safetensors", cut), "Download or train it anew."),
    (damaged_checkpoint("config.json", cut), "can't be read as a checkpoint: "),
    (damaged_checkpoint("tokenizer.json", Path.unlink), "--tokenizer-name"),
    (
        {"model_name_or_path": "nobody/nothing", "config_overrides": None},
        "'nobody/nothing' can't be read as a checkpoint: ",
    ),
    pytest.param(
        {"output_dir": "/sys/hf-posenc-run"},
        "--output-dir '/sys/hf-posenc-run' can't be written to: Operation not permitted",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody can write to"),
    ),
    ({"do_train": False}, "Nothing to do. Give at least one of --do-train"),
    ({"do_train": False, "do_eval": True}, "Name a trained one with --model-name-or-path"),
    (
        {"metric_for_best_model": "acuracy"},
        "--metric-for-best-model 'acuracy' isn't measured here. Choose one of loss, accuracy, ",
    ),
    ({"per_device_train_batch_size": 0}, "--per-device-train-batch-size 0 is out of range. Give a whole number from 1"),
    ({"num_train_epochs": -1}, "--num-train-epochs -1.0 is out of range. Give a positive number"),
    ({"learning_rate": "inf"}, "--learning-rate inf is out of range. Give 0 or"),
    ({"bf16_full_eval": True}, "--bf16_full_eval "),
    (
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": '{"cycles": 2}'},
        "--lr-scheduler-kwargs {'cycles': 2} for cosine: get_cosine_schedule",
    ),
    ({"save_strategy": "often"}, "--save-strategy 'often' is unknown. Choose one of no, steps"),
    pytest.param(
        {"fp16": True},
        "--fp16 needs a GPU, and there is none. Use --bf16",
        marks=pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU"),
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(options, message, order, tmp_path, monkeypatch, capsys):
    options = options if isinstance(options, dict) else options(tmp_path, order)
    before = snapshot(tmp_path)
    capsys.readouterr()
    assert train_by_command(monkeypatch, **{**order, "output_dir": tmp_path / "run", **options}) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert snapshot(tmp_path) == before


def test_whatever_else_goes_wrong_is_one_line_too(order, tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("transformers.Trainer.training_step", broken)
    first = tmp_path / "run"
    first.mkdir()
    (first / "README.md").write_text("an earlier run")
    options = {**order, "output_dir": first, "overwrite_output_dir": True}
    assert train_by_command(monkeypatch, **options) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "Error: RuntimeError: two lines (HF_POSENC_TRACEBACK=1 shows where)"
    assert (first / "README.md").read_text() == "an earlier run"  # replaced only once a step was made
    monkeypatch.setenv("HF_POSENC_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="two"):
        train_by_command(monkeypatch, **options)


def test_a_full_disk_is_one_line_and_keeps_the_earlier_checkpoints(order, tmp_path, monkeypatch, capsys):
    resource = pytest.importorskip("resource")
    options = {**order, "output_dir": tmp_path / "run", "save_strategy": "epoch", "config_preset": "tiny"}
    options["config_overrides"] = None
    first = train(tmp_path / "run", **{name: value for name, value in options.items() if name != "output_dir"})
    before = snapshot(first.output_dir)
    options |= {"num_train_epochs": 2, "resume_from_checkpoint": "true"}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # the weights are larger
    try:
        assert train_by_command(monkeypatch, **options) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Make room or name another --output-dir. What is left: the newest checkpoint is" in errors[0]
    after = snapshot(first.output_dir)
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(order, tmp_path):
    options = {**order, "output_dir": tmp_path / "run", "num_train_epochs": 500, "logging_strategy": "steps"}
    options |= {"logging_steps": 1}
    with begun([sys.executable, *TRAIN, *command(options)], tmp_path / "errors") as running:
        await_loss(running)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
    errors = (tmp_path / "errors").read_text()
    assert running.returncode == 130, errors
    assert errors.strip().splitlines()[-1].startswith("Interrupted: the newest checkpoint is")
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] > 0
