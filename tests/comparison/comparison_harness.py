"""Plans that run in a second, and results that nobody has run."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hf_posenc.comparison import Plan, read_plan
from hf_posenc.comparison.outcomes import right_outcome
from hf_posenc.comparison.plan import PlannedRun
from hf_posenc.comparison.results_folder import PLAN_NAME, RUNS_NAME
from hf_posenc.comparison.run import RUN_NAME
from hf_posenc.files import write_json

SMALL = {
    "set": {"initializer_range": 0.05, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    "batch_size": 8,
    "device": "cpu",
}
TOY: dict[str, Any] = {
    "tasks": [{"kind": "probes", "probes": ["order_near", "parity"]}],
    "schemes": ["none", "rope"],
    "seeds": 1,
    "train_length": 32,
    "test_lengths": [32, 48],
    "train_examples": 64,
    "test_examples": 20,
    "options": SMALL,
}


def toy(**overrides: Any) -> Plan:
    return read_plan({**TOY, **overrides})


TEXT = {**TOY, "schemes": ["none", "learned"], "train_length": 24, "test_lengths": [24, 36, 48], "test_examples": None}
"""For `write_text_data`."""


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def printed(console: Console) -> str:
    return console.file.getvalue()


def write_text_data(folder: Path) -> Path:
    """Two labels that one word gives away; test texts of 3 to 40 words, and longer ones in a file of their own."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name, count, most in (("train", 64, 20), ("test", 40, 39), ("test_long", 10, 60)):
        rows = []
        for index in range(count):
            label = ("good", "bad")[index % 2]
            text = " ".join([label, *draw.choice(("red", "green", "blue", "black", "white"), size=2 + index % most)])
            rows.append({"text": text, "label": label, "pair": index // 2})
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_json(path: Path, change: Callable[[dict[str, Any]], Any] | None = None, **fields: Any) -> None:
    """Rewrites a JSON file: with other fields, or as what a function makes of it."""
    value = json.loads(path.read_text())
    path.write_text(json.dumps(change(value) if change else {**value, **fields}))


def change_runs(folder: Path, change: Callable[[dict[str, Any]], Any], runs: str = "*") -> None:
    for path in (folder / RUNS_NAME).glob(f"{runs}/{RUN_NAME}"):
        change_json(path, change)


def read_run(results: Path, name: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((results / RUNS_NAME / name / RUN_NAME).read_text())
    return run


def done_run(plan: Plan, run: PlannedRun, tests: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """What the run.json of a run holds that nobody has made; without tests, one question that was answered."""
    length = plan.test_lengths_of(run.task)[0]
    outcome = {"metric": "accuracy", "value": 1.0, "units": {"right": "1x2", "of": "1x2"}}
    return {
        "task": run.task.name,
        "scheme": run.scheme,
        "seed": run.seed,
        "status": "done",
        "settings": json.loads(json.dumps(plan.settings(run.scheme, run.task))),
        "learning_rate": 0.001,
        "tests": tests or [{"part": "order_near", "length": length, "examples": 2, **outcome}],
        "loss": [[1, 0.7], [2, 0.6 - 0.01 * run.seed]],
        "parameters": 1000,
        "positional_parameters": 10,
        "seconds": 3.0,
        "versions": {"python": "3"},
        "machine": {"device": "a machine", "threads": 1},
        **fields,
    }


def made_up(folder: Path, plan: Plan, rates: dict[str, float], units: int = 100, **fields: Any) -> Path:
    """A results folder in which each scheme is right at a rate, with a seed's own luck; `learned` ends at 32 tokens."""
    write_json(folder / PLAN_NAME, plan.to_dict())
    for run in plan.runs():
        tests = []
        for part in run.task.probes or [run.task.name]:
            for length in plan.test_lengths_of(run.task):
                entry: dict[str, Any] = {"part": part, "length": length, "examples": units}
                if run.scheme == "learned" and length > 32:
                    tests.append({**entry, "skipped": "learned has 32 positions"})
                    continue
                draw = np.random.default_rng([run.seed, length, len(run.scheme), len(part)])
                right = draw.random(units) < rates[run.scheme] + 0.02 * draw.standard_normal()
                outcome = right_outcome(right)
                tests.append({**entry, "metric": "accuracy", "value": outcome.value(), "units": outcome.to_dict()})
        write_json(folder / RUNS_NAME / run.name / RUN_NAME, done_run(plan, run, tests, **fields))
    return folder
