"""What the training tests share: slices of real text, narrow encoders, and scripts run in this process or others."""

import contextlib
import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from hf_posenc import cli
from hf_posenc.data import example_data
from hf_posenc.finetuning import make_arguments, set_up, train_classifier
from hf_posenc.training import TrainingResult

ROOT = Path(__file__).parents[2]
TRAIN = ["-m", "hf_posenc.cli", "train"]
"""`hf-posenc train`, to follow the name of an interpreter or launcher."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
LAUNCH += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
ACCELERATE += ["--main_process_port", "0"]

SMALL: dict[str, Any] = {
    "config_overrides": "hidden_size=32,num_attention_heads=2,intermediate_size=64,initializer_range=0.05",
    "vocab_size": 1000,
    "per_device_train_batch_size": 16,
    "num_train_epochs": 1,
    "disable_tqdm": True,
    "use_cpu": True,
    "save_strategy": "no",
    "do_train": True,
    "seed": 1,
}


def rows(split: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a split of the package data."""
    with gzip.open(f"{example_data()}/{split}.jsonl.gz", "rt") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def write_jsonl(path: Path, examples: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))
    return str(path)


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write_csv(path: Path, examples: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(examples[0]))
        writer.writeheader()
        writer.writerows(examples)
    return str(path)


def order_files(folder: Path) -> dict[str, str]:
    """A slice of the package data as files: 160 training, 64 validation and 64 test sentences."""
    return {
        f"{split}_file": write_jsonl(folder / f"{split}.jsonl", rows(split, count))
        for split, count in (("train", 160), ("validation", 64), ("test", 64))
    }


def train(output_dir: Path, console: Console | None = None, **options: Any) -> TrainingResult:
    """Trains in this process with `SMALL` options and those given, by default in silence."""
    # Checkpoints are looked at and resumed from; that they go by default has tests of its own.
    arguments = {**SMALL, "output_dir": str(output_dir), "keep_checkpoints": True, **options}
    return train_classifier(*make_arguments(**arguments), console=console or Console(file=StringIO()))


def prepared(output_dir: Path, **options: Any) -> Any:
    """The `Setup` of a run with `SMALL` options and those given, which isn't trained."""
    return set_up(*make_arguments(**{**SMALL, "output_dir": str(output_dir), **options}))


def command(options: dict[str, Any]) -> list[str]:
    """Options of `hf-posenc train`, with `SMALL` ones and without what it does unasked; None leaves one out."""
    words = []
    for name, value in {"do_eval": False, "do_predict": False, "score_test": False, **SMALL, **options}.items():
        if value is not None:
            words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def train_by_command(monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """Runs `hf-posenc train` in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["hf-posenc", "train", *command(options)])
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(StringIO()):
        cli.main()
    return int(ended.value.code or 0)


def in_processes(words: list[str]) -> str:
    """Runs a command to its end; returns what it printed."""
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@contextlib.contextmanager
def begun(words: list[str], errors: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a command that trains, in a group of its own; what it says of errors goes to a file."""
    with errors.open("w") as file:
        running = subprocess.Popen(
            words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
        )
    try:
        yield running
        running.communicate(timeout=120)
    finally:
        running.kill()


def await_loss(running: subprocess.Popen[str]) -> None:
    """Waits until it has logged a loss, or ended."""
    assert running.stdout is not None
    next((line for line in running.stdout if ": loss " in line), None)


def results(folder: Path | str) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((Path(folder) / "results.json").read_text())
    return saved


def assert_same_weights(first: Path | str, second: Path | str) -> None:
    """Bitwise."""
    a, b = (load_file(Path(folder) / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name} differs by {(a[name] - b[name]).abs().max()}"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy_until(source: Path, target: Path, step: int) -> Path:
    """What a run that was killed after `step` left behind."""
    target.mkdir()
    for path in source.glob("checkpoint-*"):
        if int(path.name.rpartition("-")[2]) <= step:
            shutil.copytree(path, target / path.name)
    return target
