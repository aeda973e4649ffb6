"""More than one process gives what one gives, and a process that is killed at any moment loses nothing for good."""

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_harness import (
    ACCELERATE,
    LAUNCH,
    ROOT,
    TRAIN,
    assert_same_weights,
    await_loss,
    begun,
    command,
    in_processes,
    results,
)

from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.training import last_complete_checkpoint

WORKER = Path(__file__).with_name("fsdp_worker.py")
ALL_HOOKS = "learned+rope+t5"
"""An added, a rotary and a bias scheme at once."""


def assert_close_weights(first: Path, second: Path) -> None:
    """But for the order of sums."""
    a, b = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-4, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.promise("Numbers", "Two processes end in the weights where one with the same global batch ends")
@pytest.mark.slow
@pytest.mark.parametrize("launch", [ACCELERATE, LAUNCH], ids=["accelerate", "torchrun"])
def test_two_processes_end_where_one_ends(order: dict[str, str], tmp_path: Path, launch: list[str]) -> None:
    options = {**order, "do_eval": True, "hidden_dropout_prob": 0, "max_steps": 8, "position_embedding_type": ALL_HOOKS}
    in_processes([sys.executable, *TRAIN, *command({**options, "output_dir": tmp_path / "one"})])
    two = {**options, "per_device_train_batch_size": 8, "output_dir": tmp_path / "two"}
    in_processes([*launch, *TRAIN, *command(two)])
    first, second = (results(tmp_path / name) for name in ("one", "two"))
    assert [first["processes"], second["processes"]] == [1, 2]
    for name in ("train_loss", "eval_loss", "eval_accuracy"):
        assert second["metrics"][name] == pytest.approx(first["metrics"][name], abs=1e-4), name
    assert_close_weights(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_sharded_model_ends_where_a_whole_one_ends_and_resumes(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "one", tmp_path / "two"
    whole.mkdir()
    resumed.mkdir()
    in_processes([sys.executable, str(WORKER), str(whole), ALL_HOOKS, "0", "4"])
    for start, end in (("0", "2"), ("2", "4")):
        in_processes([*LAUNCH, str(WORKER), str(resumed), ALL_HOOKS, start, end])
    expected = [float(text) for text in (whole / "losses-4").read_text().split()]
    losses = [float(text) for name in ("losses-2", "losses-4") for text in (resumed / name).read_text().split()]
    assert losses == pytest.approx(expected, abs=1e-5)
    assert_close_weights(whole / "checkpoint", resumed / "checkpoint")
    model = PosEncForSequenceClassification.from_pretrained(resumed / "checkpoint")
    assert (resumed / "checkpoint" / "modeling_posenc.py").is_file()
    assert not any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())


@pytest.mark.slow
def test_killed_at_three_random_moments_it_resumes_to_the_same_weights(order: dict[str, str], tmp_path: Path) -> None:
    options = {**order, "num_train_epochs": 12, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    options |= {"logging_strategy": "steps", "logging_steps": 1, "resume_from_checkpoint": "true"}
    in_processes([sys.executable, *TRAIN, *command({**options, "output_dir": tmp_path / "whole"})])
    moments = random.Random(0)
    kills = 0
    for number in itertools.count():  # a quick machine ends a training before its three kills: then another begins
        folder, steps = tmp_path / f"killed{number}", []
        words = [sys.executable, *TRAIN, *command({**options, "output_dir": folder})]
        while kills < 3 and not (folder / "config.json").exists():
            with begun(words, tmp_path / "errors") as running:
                if kills == 1:  # while it starts, or reads what it resumes from
                    time.sleep(moments.uniform(0, 5))
                else:
                    await_loss(running)
                    time.sleep(moments.uniform(0, 0.4))
                os.killpg(running.pid, signal.SIGKILL)
            errors = (tmp_path / "errors").read_text()
            assert running.returncode == -signal.SIGKILL, errors[-2000:]  # it had ended before
            kills += 1
            last = last_complete_checkpoint(folder)
            steps.append(int(last.name.rpartition("-")[2]) if last else 0)
        assert steps == sorted(steps)
        in_processes(words)
        assert_same_weights(tmp_path / "whole", folder)
        if kills == 3:
            break
    assert steps[-1] > 0 or number > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_accelerates_fsdp_resumes_and_saves_an_ordinary_checkpoint(order: dict[str, str], tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(torch.cuda.device_count())]
    launch += ["--config_file", str(ROOT / "examples" / "accelerate" / "fsdp2.yaml"), *TRAIN]
    options = {**order, "use_cpu": False, "save_strategy": "steps", "save_steps": 3, "output_dir": tmp_path / "run"}
    options["keep_checkpoints"] = True
    in_processes([*launch, *command({**options, "max_steps": 6})])
    assert any((tmp_path / "run" / "checkpoint-3").glob("pytorch_model_fsdp*"))
    PosEncForSequenceClassification.from_pretrained(tmp_path / "run")
    in_processes([*launch, *command({**options, "max_steps": 9, "resume_from_checkpoint": "true"})])
    assert results(tmp_path / "run")["history"][-1]["step"] == 9


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
        model = PosEncForSequenceClassification(PosEncConfig.from_preset("tiny"))
        assert named in {type(module).__name__ for module in model.modules()}
