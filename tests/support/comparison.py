"""Plans that run in a second, and results that nobody has run."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hf_posenc.comparison import Plan, read_plan
from hf_posenc.comparison.results import write_result
from tests.support.common import write_jsonl

SMALL = {
    "set": {"initializer_range": 0.05, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    "batch_size": 8,
    "device": "cpu",
}
TOY: dict[str, Any] = {
    "tasks": [{"data": "probes", "probes": ["order_near", "parity"]}],
    "schemes": ["none", "rope"],
    "seeds": 1,
    "train_length": 32,
    "test_lengths": [32, 48],
    "train_examples": 64,
    "test_examples": 20,
    "options": SMALL,
}
TEXT = {**TOY, "schemes": ["none", "learned"], "train_length": 24, "test_lengths": [24, 36, 48], "test_examples": None}
"""For `write_text_data`."""


def toy(**overrides: Any) -> Plan:
    return read_plan({**TOY, **overrides})


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def printed(console: Console) -> str:
    return console.file.getvalue()


def write_text_data(folder: Path) -> Path:
    """Two labels that one word gives away; test texts of 3 to 40 words."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name, count, most in (("train", 64, 20), ("test", 40, 39)):
        rows = []
        for index in range(count):
            label = ("good", "bad")[index % 2]
            text = " ".join([label, *draw.choice(("red", "green", "blue", "black", "white"), size=2 + index % most)])
            rows.append({"text": text, "label": label})
        write_jsonl(folder / f"{name}.jsonl", rows)
    return folder


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_run(results: Path, name: str) -> dict[str, Any]:
    """What all rows of a run share, and the rows."""
    rows: list[dict[str, Any]] = json.loads((results / "runs" / f"{name}.json").read_text())["rows"]
    return {**rows[0], "rows": rows}


def row(
    plan: Plan, run: Any, score: float | None, length: int | None = None, part: str | None = None
) -> dict[str, Any]:
    shared = {"part": part or run.task.name, "length": length or plan.home_length, "metric": run.task.metric}
    return {**shared, "score": score, "examples": 400}


def done_run(plan: Plan, run: Any, rows: list[dict[str, Any]] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """What `run_one` returns of a run that nobody has made."""
    shared = {"task": run.task.name, "scheme": run.scheme, "seed": run.seed, "steps": 8, "seconds": 3.0}
    shared |= {"parameters": 1000, "rate": 0.001, "commit": "12e3456", "processor": "a machine", **fields}
    return [{**shared, **entry} for entry in rows or [row(plan, run, 0.5)]]


def made_up(folder: Path, plan: Plan, score: Callable[[Any, int], Any], **baselines: float) -> Path:
    """A results folder with these scores by run and length, and baselines (`word_pairs=0.8`) of each task.

    A score of None: the inputs are too long; a dictionary: the scores of the task's parts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan.to_dict()))
    for task in plan.tasks:
        run = replace(plan.runs()[0], task=task)
        rows = [
            {**row(plan, run, value, length), "task": task.name, "scheme": name.replace("_", " ")}
            for name, value in baselines.items()
            for length in plan.lengths
        ]
        write_result(folder, plan, task, {"rows": rows, "seconds": 1.0})
    for run in plan.runs():
        rows = []
        for length in plan.lengths:
            scored = score(run, length)
            parts = scored if isinstance(scored, dict) else {run.task.name: scored}
            rows += [row(plan, run, value, length, part) for part, value in parts.items()]
        write_result(folder, plan, run, {"rows": done_run(plan, run, rows)})
    return folder
