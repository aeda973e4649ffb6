"""Plans that run in a second, and results that nobody has run."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_posenc.comparison import Plan, read_plan
from hf_posenc.comparison.outcomes import right_outcome
from hf_posenc.comparison.plan import PlannedRun
from hf_posenc.comparison.results_folder import PLAN_NAME, RUNS_NAME
from hf_posenc.comparison.run import RUN_NAME
from hf_posenc.files import write_json

SMALL = {
    "config_overrides": "initializer_range=0.05,hidden_size=32,intermediate_size=32,num_attention_heads=2",
    "per_device_train_batch_size": 8,
    "use_cpu": True,
}
TOY: dict[str, Any] = {
    "tasks": [{"kind": "probes", "probes": ["order", "parity"]}],
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


def read_run(results: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / RUNS_NAME / name / RUN_NAME).read_text())
    return found


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
        "tests": tests or [{"part": "order", "length": length, "examples": 2, **outcome}],
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
        subset = [f"{run.task.name}/{run.task.part_column}"] if run.task.part_column else []
        for part in run.task.probes or [run.task.name, *subset]:
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
