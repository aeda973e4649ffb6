"""More than one process gives what one gives, and a process that is killed at any moment loses nothing for good."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.checkpoints.keeper import output_folder
from tests.support import fsdp_worker
from tests.support.common import write_jsonl
from tests.support.training import (
    ACCELERATE,
    ENVIRONMENT,
    LAUNCH,
    ROOT,
    SHARDED,
    TRAIN,
    TWO,
    assert_same_weights,
    await_loss,
    begun,
    checkpoints,
    command,
    in_processes,
    results,
    rows,
    train,
)

ALL_HOOKS = "learned+rope+t5"
"""An added, a rotary and a bias scheme at once."""


def assert_close_weights(first: Path, second: Path) -> None:
    """But for the order of sums."""
    a, b = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-4, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


def price(row: dict[str, Any]) -> dict[str, Any]:
    """Far from 0, so that the units of the data matter."""
    return {"text": row["text"], "label": 1000.0 + 25.5 * len(row["text"])}


def numbers(folder: Path) -> dict[str, str]:
    """Splits of sizes that two processes don't share evenly."""
    sizes = {"data": ("train", 160), "validation": ("validation", 61), "test": ("test", 35)}
    examples = {name: [price(row) for row in rows(*split)] for name, split in sizes.items()}
    return {name: write_jsonl(folder / f"m{name}.jsonl", priced) for name, priced in examples.items()}


# It writes a card, the best weights are not the last ones, and validation rows are set aside.
BEST: dict[str, Any] = {"save_strategy": None, "epochs": 3, "learning_rate": 1e-2, "metric_for_best_model": "loss"}
CASES: dict[str, Any] = {
    # Where a gradient is as small as its rounding error, Adam's usual epsilon of 1e-8 would make steps of the error.
    "texts": (LAUNCH, {**BEST, "scheme": ALL_HOOKS, "max_length": 48, "adam_epsilon": 1e-6}),
    "adapted": (ACCELERATE, {**BEST, "lora": True, "learning_rate": 1e-3}),
}
"""What starts them, and options of the run; the low-rank updates are of pretrained weights of a regression."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_where_one_ends(order: dict[str, str], tmp_path: Path, case: str) -> None:
    launch, given = CASES[case]
    options = {**(numbers(tmp_path) if case == "adapted" else order), **given, "bf16": False}
    if case == "adapted":
        train(tmp_path / "start", data=options["data"])
        options["pretrained"] = str(tmp_path / "start")
    train(tmp_path / "one", **options, baselines=True)
    printed = in_processes([*launch, *TRAIN, *command(tmp_path / "two", **{**options, "batch_size": 8})])
    first, second = (results(tmp_path / name) for name in ("one", "two"))
    assert [first["processes"], second["processes"]] == [1, 2]
    for name, value in first["metrics"].items():
        if name.endswith(("loss", "eval_accuracy", "pearson")):
            assert second["metrics"][name] == pytest.approx(value, abs=1e-4), name
    assert_close_weights(tmp_path / "one", tmp_path / "two")
    assert second["best"]["step"] == first["best"]["step"]  # both hold the best weights
    assert second["metrics"][second["best"]["metric"]] == pytest.approx(second["best"]["value"], abs=1e-6)
    for name, scores in first["baselines"].items():
        assert second["baselines"][name] == pytest.approx(scores, abs=1e-6)
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith("[transformers]")]
    assert sorted(set(lines)) == sorted(lines), printed
    assert not [path.name for path in (tmp_path / "two").iterdir() if path.name.startswith((".", "checkpoint-"))]


@pytest.mark.slow
def test_a_sharded_model_ends_where_a_whole_one_ends(tmp_path: Path) -> None:
    whole, sharded = tmp_path / "one", tmp_path / "two"
    whole.mkdir()
    sharded.mkdir()
    fsdp_worker.main(whole, ALL_HOOKS)
    in_processes([*SHARDED, fsdp_worker.__file__, str(sharded), ALL_HOOKS])
    expected, losses = ([float(text) for text in (run / "losses").read_text().split()] for run in (whole, sharded))
    assert losses == pytest.approx(expected, abs=1e-5)
    assert_close_weights(whole / "checkpoint", sharded / "checkpoint")
    PosEncForSequenceClassification.from_pretrained(sharded / "checkpoint")
    assert (sharded / "checkpoint" / "modeling_posenc.py").is_file()


@pytest.mark.slow
def test_of_several_processes_the_main_one_alone_looks_at_the_folder_and_all_are_refused(order, tmp_path):
    with socket.socket() as place:
        place.bind(("localhost", 0))
        port = str(place.getsockname()[1])
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    words = [sys.executable, *TRAIN, *command(tmp_path / "out", **order)]
    with output_folder(tmp_path / "out"):
        running = [
            subprocess.Popen(
                words, env={**ENVIRONMENT, **world, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True
            )
            for rank in ("0", "1")
        ]
        said = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [2, 2]
    assert "out' is in use: another process writes into it" in said[0]
    assert "Error" not in said[1]
    assert not (tmp_path / "out").exists()


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_accelerates_fsdp_resumes_and_saves_an_ordinary_checkpoint(order: dict[str, str], tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(torch.cuda.device_count())]
    launch += ["--config_file", str(ROOT / "examples" / "accelerate" / "fsdp2.yaml"), *TRAIN]
    options: dict[str, Any] = {**order, "device": None, "save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    in_processes([*launch, *command(tmp_path / "run", **options)])
    PosEncForSequenceClassification.from_pretrained(tmp_path / "run")
    options["max_steps"] = 300
    with begun([*launch, *command(tmp_path / "killed", **options)], tmp_path / "errors") as running:
        while not any((tmp_path / "killed" / "checkpoint-3").glob("pytorch_model_fsdp*")) and running.poll() is None:
            time.sleep(0.2)
        os.killpg(running.pid, signal.SIGINT)
    in_processes([*launch, *command(tmp_path / "killed", **options, resume=True)])
    assert results(tmp_path / "killed")["history"][-1]["step"] == 300


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_the_example_configurations(path: Path) -> None:
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    expected = {"one_gpu": "NO", "eight_gpus": "MULTI_GPU", "fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED"}
    assert config.distributed_type.value == expected[path.stem]
    assert config.num_processes == (1 if path.stem == "one_gpu" else 8)
    settings = yaml.safe_load(path.read_text())
    if path.stem == "fsdp2":
        named = settings["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"]
        model = PosEncForSequenceClassification(PosEncConfig.from_size("tiny"))
        assert named in {type(module).__name__ for module in model.modules()}
