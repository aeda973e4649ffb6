"""Runs a plan: skips finished runs, resumes interrupted ones, records failures."""

import contextlib
import itertools
import math
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from hf_posenc.errors import Diverged, Interrupted, UserError, disk_error, one_line
from hf_posenc.files import write_json
from hf_posenc.quiet import silence

from .checkpoints import convert_checkpoints
from .plan import Plan, PlannedRun
from .records import ENDED
from .references import REFERENCES_NAME, measure_references
from .results_folder import load_plan, load_runs, read_result, record_plan, run_folder
from .run import MODEL_NAME, RUN_NAME, finish, learning_rate, run_one
from .tasks import check_data

DATA_NAME = "data"
LOCKS_NAME = ".locks"


@dataclass
class Execution:
    """What `execute` did."""

    done: list[str] = field(default_factory=list)
    """Runs made by this call."""
    skipped: list[str] = field(default_factory=list)
    """Runs that were already there, or that another process finished meanwhile."""
    elsewhere: list[str] = field(default_factory=list)
    """Runs that another process is making."""
    failed: dict[str, str] = field(default_factory=dict)
    """Runs that ended in an error, with its message."""


def execute(
    plan: Plan,
    results: str | Path,
    *,
    keep_models: bool = False,
    console: Console | None = None,
) -> Execution:
    """Makes the plan's missing runs, except those that another process is making.

    Args:
        plan: what is compared.
        results: the folder: `plan.json`, and `runs/<task>-<scheme>-seed<n>/run.json` for each run.
        keep_models: leave each run's model in `model` in its folder.
        console: where the progress goes. None: standard output.

    Raises:
        UserError: the folder holds another plan's results or runs, or the data can't be read.
        Interrupted: Ctrl-C. The same call resumes.
    """
    console = console or Console()
    folder, runs, execution = Path(results), plan.work(), Execution()
    _prepare(plan, folder, console)
    pending = [run for run in runs if read_result(folder, run).get("status") not in ENDED]
    execution.skipped = [run.name for run in runs if run not in pending]
    if execution.skipped:
        console.print(f"{len(execution.skipped)} of {len(runs)} runs are done already.")
    if len(plan.seeds) < 2:
        console.print("One seed gives no intervals and no comparisons. Give 2 seeds or more.")
    seconds: dict[str, list[float]] = {}
    for number, run in enumerate(pending, start=1):
        with _lock(folder, run.name) as mine:
            if mine and read_result(folder, run).get("status") in ENDED:
                execution.skipped.append(run.name)
                continue
            line = f"[{number} of {len(pending)}] {run.name}{time_left(pending[number - 1 :], seconds)}: "
            console.print(line, markup=False, highlight=False, end="")
            if not mine:
                execution.elsewhere.append(run.name)
                console.print("another process is making it", highlight=False)
                continue
            started = time.time()
            outcome = _attempt(plan, run, folder, keep_models, console)
            seconds.setdefault(run.task.name, []).append(time.time() - started)
            if isinstance(outcome, str):
                execution.failed[run.name] = outcome
                console.print(f"[red]failed[/red]: {escape(outcome)}", highlight=False)
            else:
                execution.done.append(run.name)
                console.print(f"{_score(outcome)}, done in {duration(time.time() - started)}", highlight=False)
    return execution


def _prepare(plan: Plan, folder: Path, console: Console) -> None:
    """What all runs need: checked data, the plan in the folder, checkpoints to start from, baselines."""
    for task in plan.tasks:
        with silence():
            check_data(plan, task)
    record_plan(plan, folder)
    load_runs(folder, load_plan(folder))
    with silence(), _lock(folder, "converted", wait=True):
        convert_checkpoints(plan, folder / DATA_NAME)
    _add_references(plan, folder, console)


def _score(run: dict[str, Any]) -> str:
    """The mean over the tests of a run at their shortest length; a trial whose rate was too high has none."""
    tests = [test for test in run.get("tests", []) if "value" in test]
    if not tests:
        return "diverged"
    values = [test["value"] for test in tests if test["length"] == tests[0]["length"]]
    return f"{tests[0]['metric'].replace('_', ' ')} {np.mean(values):.3f}"


def _add_references(plan: Plan, folder: Path, console: Console) -> None:
    """Measures the baselines of each task once; a failure doesn't touch the runs.

    Raises:
        Interrupted: Ctrl-C; says what is kept.
    """
    for task in plan.tasks:
        path = folder / REFERENCES_NAME / f"{task.name}.json"
        with _lock(folder, f"{REFERENCES_NAME}-{task.name}") as mine:
            if path.is_file() or not mine:
                continue
            console.print(f"{task.name}: measuring the baselines", style="dim", markup=False, highlight=False)
            try:
                with silence():
                    write_json(path, {"baselines": measure_references(plan, task, folder / DATA_NAME)})
            except KeyboardInterrupt as interrupt:
                raise Interrupted(
                    f"what was measured before the baselines of {task.name} is kept. The same command goes on there."
                ) from interrupt
            except Exception as error:  # whatever it is, the runs don't depend on it
                console.print(f"{task.name} has no baselines: {one_line(error)}", markup=False, highlight=False)


@contextlib.contextmanager
def _lock(folder: Path, name: str, *, wait: bool = False) -> Iterator[bool]:
    """Yields whether this process holds the lock inside the block; the system frees it if the process dies."""
    place = folder / LOCKS_NAME
    try:
        place.mkdir(exist_ok=True)
        lock: contextlib.AbstractContextManager[Any] = FileLock(place / f"{name}.lock", -1 if wait else 0).acquire()
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError):  # a full disk, of which the run will say more; a file system without locks
        lock = contextlib.nullcontext()
    with lock:
        yield True


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Computes in so many processor threads; None: in as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _attempt(plan: Plan, run: PlannedRun, folder: Path, keep_models: bool, console: Console) -> dict[str, Any] | str:
    """Makes a run, and records it. Returns what was recorded, or the error, recorded where the disk allows.

    Raises:
        Interrupted: Ctrl-C; says what is kept.
    """
    place, trials = run_folder(folder, run), plan.trials(run.task, run.scheme) if run.factor is None else []
    try:
        for trial in trials:
            with _lock(folder, trial.name, wait=True):  # another process may be making it
                pass
        with silence(), _threads(plan.threads):
            chosen = choose_rate(plan, run, folder) if trials else None
            result = run_one(plan, run, place, folder / DATA_NAME, chosen)
            finish(place, result, keep_models and run.factor is None)
        return result
    except KeyboardInterrupt as interrupt:
        console.print()  # what is said next has a line of its own
        raise Interrupted(
            f"{run.name} keeps its newest checkpoint, all runs before it are done. The same command goes on there."
        ) from interrupt
    except Exception as error:  # whatever it is, the other runs don't depend on it
        message = one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
        reason = disk_error(error)
        if reason is not None:  # its checkpoints would leave no room for the runs after it, nor for this record
            shutil.rmtree(place / MODEL_NAME, ignore_errors=True)
            message = f"writing failed: {reason}"
        failure = {"task": run.task.name, "scheme": run.scheme, "seed": run.seed, "status": "failed", "error": message}
        tried = isinstance(error, Diverged) and run.factor is not None  # this rate is too high; it isn't tried again
        if tried:
            failure |= {"status": "diverged", "learning_rate": learning_rate(plan, run, folder / DATA_NAME)}
        with contextlib.suppress(OSError):  # not even this can be written: the run counts as not made
            write_json(place / RUN_NAME, {**failure, "settings": plan.settings(run.scheme, run.task)})
        return failure if tried else message


def choose_rate(plan: Plan, run: PlannedRun, folder: Path) -> dict[str, Any]:
    """The learning rate whose trial was best, every trial's score, and what they cost.

    Raises:
        UserError: none of the trials is done.
    """
    results = (read_result(folder, trial) for trial in plan.trials(run.task, run.scheme))
    trials = [result for result in results if result]
    ended = [trial for trial in trials if trial["status"] in ENDED]
    done = [trial for trial in ended if trial["status"] == "done"]
    if len(ended) < len(plan.search) or not done:
        error = next((trial["error"] for trial in trials if trial["status"] != "done"), "another process didn't end it")
        raise UserError(f"{len(plan.search) - len(done)} trials of its learning rate are missing: {error}")
    scores = {}
    for trial in ended:
        values = [test["value"] for test in trial.get("tests", [{"value": None}])]
        scores[trial["learning_rate"]] = float(np.mean(np.array(values, dtype=float)))  # null: NaN
    middle = learning_rate(plan, run, folder / DATA_NAME)

    def worth(rate: float) -> tuple[float, float]:
        score = scores[rate]
        return (-math.inf if math.isnan(score) else score, -abs(math.log(rate / middle)))  # the nearer of two equals

    search = {
        "seed": done[0]["seed"],
        "scores": {f"{rate:g}": round(score, 6) for rate, score in sorted(scores.items())},
        "seconds": round(sum(trial["seconds"] for trial in done), 1),
    }
    return {"learning_rate": max(scores, key=worth), "search": search}


def time_left(pending: list[PlannedRun], seconds: dict[str, list[float]]) -> str:
    """The time left, in words; empty before the first run has ended.

    Args:
        pending: the runs to be made.
        seconds: what each run so far took, by task; the others take the mean over all.
    """
    every = [*itertools.chain.from_iterable(seconds.values())]
    if not every:
        return ""
    return f", about {duration(sum(statistics.mean(seconds.get(run.task.name, every)) for run in pending))} left"


def duration(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
