"""What the training tests share: slices of real text, narrow encoders, and scripts run in this process or others."""

import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file

import hf_posenc
from hf_posenc.data.preparing import prepare
from hf_posenc.data.sources import read
from hf_posenc.finetuning import train as road
from hf_posenc.finetuning.prediction import answers_to, load_classifier
from hf_posenc.finetuning.start import check_start, start
from hf_posenc.options import Options
from hf_posenc.training.recipe import Recipe, make_recipe
from tests.support.common import write_jsonl

ROOT = Path(__file__).parents[2]
EXAMPLE_DATA = Path(hf_posenc.__file__).parent / "data" / "blimp_order"
TRAIN = ["-m", "hf_posenc.cli", "train"]
"""`hf-posenc train`, to follow the name of an interpreter or launcher."""
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"}
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
LAUNCH += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
_TWO = [sys.executable, str(ROOT / "tests" / "support" / "two_processes.py")]
TWO = [*_TWO, "hf_posenc.cli,hf_posenc.finetuning.train,transformers.trainer,accelerate,matplotlib.pyplot"]
SHARDED = [*_TWO, "hf_posenc,torch.distributed.fsdp,torch.distributed.checkpoint.state_dict"]
"""Two processes for half of a launcher's time, for a training and for a model alone."""
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
ACCELERATE += ["--main_process_port", "0"]

SMALL: dict[str, Any] = {"batch_size": 16, "epochs": 1, "device": "cpu", "seed": 1, "validation_share": 0.0}
SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SIZES |= {"initializer_range": 0.05, "vocab_size": 1000}
"""Of a new encoder, for `set`."""
OPTIONS = {item.name for item in fields(Options)}


def dashed(name: str) -> str:
    """The option of the command line."""
    return f"--{name.replace('_', '-')}"


def rows(split: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a split of the package data."""
    with gzip.open(EXAMPLE_DATA / f"{split}.jsonl.gz", "rt") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def expected(checkpoint: Path | str, texts: list[str]) -> list[dict[str, Any]]:
    """What a checkpoint answers."""
    return list(answers_to(load_classifier(str(checkpoint), "cpu"), [(text,) for text in texts]))


def order_files(folder: Path) -> dict[str, str]:
    """A slice of the package data as files: 160 training, 64 validation and 64 test sentences."""
    return {
        name: write_jsonl(folder / f"{split}.jsonl", rows(split, count))
        for name, split, count in (("data", "train", 160), ("validation", "validation", 64), ("test", "test", 64))
    }


def options(output: Path | str, **values: Any) -> Options:
    """Those of a run: `SMALL` and `SIZES` ones without checkpoints, and these; what is no option of ours goes to `set`.

    None leaves a value of `set` out.
    """
    own = {name: value for name, value in values.items() if name in OPTIONS}
    given = {name: value for name, value in values.items() if name not in OPTIONS} | dict(own.pop("set", {}))
    sizes = {} if own.get("pretrained") else SIZES
    both = {"save_strategy": "no", "disable_tqdm": True, **sizes, **given}
    chosen = {name: value for name, value in both.items() if value is not None}
    small = {name: value for name, value in SMALL.items() if name != "epochs" or own.get("max_steps") is None}
    return Options.of(**{**small, "output": str(output), **own, "set": chosen})


def train(
    output: Path | str, console: Console | None = None, *, baselines: bool = False, **values: Any
) -> road.TrainingResult:
    """Trains in this process with these `options`, by default in silence and without baselines."""
    console = console or Console(file=StringIO())
    return road.fine_tune(options(output, **values), baselines=baselines, console=console)


def started(**values: Any) -> tuple[Any, Any, Any, list[str]]:
    """Data, tokenizer, model and notes of a run with these `options` before it trains."""
    chosen = options("unused", **values)
    beginning = check_start(chosen)
    data = prepare(read(chosen), chosen, beginning.known)
    return data, *start(chosen, data, beginning)


def recipe_of(output: Any = "unused", **values: Any) -> Recipe:
    """The recipe of so many rows and so wide a model, with these `options` and without `SMALL` ones of saving."""
    facts = {"examples": 160, "seen": 16.0, "validates": True}
    examples, seen, validates = (values.pop(name, value) for name, value in facts.items())
    fields = {"hidden_size": 32, "problem_type": "single_label_classification"}
    model: Any = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace(**{name: values.pop(name, value) for name, value in fields.items()})
    encoded = {split: {"input_ids": [[1] * 10] * examples} for split in ["train", "validation"][: 1 + validates]}
    words = range(int(10 * examples / seen))
    return make_recipe(options(output, **{"save_strategy": None, **values}), model, words, encoded)


def command(output: Path | str, **values: Any) -> list[str]:
    """These `options` as words of `hf-posenc train`."""
    words = []
    for name, value in options(output, **values).changed().items():
        if name == "set":
            for key, item in value.items():
                words += ["--set", f"{key}={item if isinstance(item, str) else json.dumps(item)}"]
        elif isinstance(value, bool):
            words.append(dashed(name) if value else dashed(f"no_{name}"))
        else:
            words += [dashed(name), json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


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
    """Waits until it has printed an evaluation, or ended."""
    assert running.stdout is not None
    next((line for line in running.stdout if ", loss " in line), None)


def results(folder: Path | str) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((Path(folder) / "results.json").read_text())
    return saved


def assert_same_weights(first: Path | str, second: Path | str) -> None:
    """Bitwise."""
    a, b = (load_file(Path(folder) / "model.safetensors") for folder in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name} differs by {(a[name] - b[name]).abs().max()}"


def checkpoints(folder: Path | str) -> list[Path]:
    """Those that a run has written on its way, by step."""
    return sorted(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
