"""Runs a plan: skips finished runs, resumes interrupted ones, records failures."""

import contextlib
import io
import json
import logging as std_logging
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from hf_posenc.errors import Diverged, Interrupted, UserError, disk_error, one_line
from hf_posenc.files import write_json

from .checkpoints import convert_checkpoints
from .plan import Plan, Run, extend
from .plan_file import read_plan
from .records import ENDED, Damaged, check_counts, read_baselines, read_json, read_run, read_speed
from .references import REFERENCES_NAME, measure_references
from .run import RUN_NAME, WORK_NAME, finish, learning_rate, run_one
from .speed import SPEED_NAME, measure_speed
from .tasks import check_data

PLAN_NAME = "plan.json"
RUNS_NAME = "runs"
DATA_NAME = "data"
SEARCH_NAME = "search"
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
    plan: Plan, results: str | Path, *, shard: tuple[int, int] = (1, 1), console: Console | None = None
) -> Execution:
    """Makes the plan's missing runs, except those that another process is making.

    Args:
        plan: what is compared.
        results: the folder: `plan.json`, and `runs/<task>-<scheme>-seed<n>/run.json` for each run. Folders of several
            machines merge by copying `runs`.
        shard: (i, n): the i-th of n parts of the runs, i from 1.
        console: where the progress goes. None: standard output.

    Raises:
        UserError: the folder holds another plan's results or runs, or the data can't be read.
        Interrupted: Ctrl-C. The same call resumes.
    """
    console = console or Console()
    runs = plan.work(*shard)
    folder = Path(results)
    for task in plan.tasks:
        with _quiet():
            check_data(plan, task)
    record_plan(plan, folder)
    load_runs(folder, load_plan(folder))
    with _quiet(), _lock(folder, "converted", wait=True):
        convert_checkpoints(plan, folder / DATA_NAME)
    _add_references(plan, folder, console)
    execution = Execution()
    pending = []
    for run in runs:
        if read_status(folder, run) in ENDED:
            execution.skipped.append(run.name)
        else:
            pending.append(run)
    if execution.skipped:
        console.print(f"{len(execution.skipped)} of {len(runs)} runs are done already.")
    if len(plan.seeds) < 2:
        console.print("One seed gives no intervals and no comparisons. Give 2 seeds or more.")
    clock = Clock(pending)
    for number, run in enumerate(pending, start=1):
        with _lock(folder, run.name) as mine:
            if mine and read_status(folder, run) in ENDED:
                execution.skipped.append(run.name)
                continue
            left = clock.left(number - 1)
            console.print(f"[{number} of {len(pending)}] {run.name}{left}", markup=False, highlight=False)
            if not mine:
                execution.elsewhere.append(run.name)
                console.print("  another process is making it", style="dim", highlight=False)
                continue
            started = time.time()
            for trial in plan.trials(run.task, run.scheme) if run.factor is None else ():
                with _lock(folder, trial.name, wait=True):  # another process may be making it
                    pass
            error = _attempt(plan, run, folder)
            clock.add(run, time.time() - started)
            if error is None:
                execution.done.append(run.name)
                console.print(f"  done in {duration(time.time() - started)}", style="dim", highlight=False)
            else:
                execution.failed[run.name] = error
                console.print(f"  [red]failed[/red]: {escape(error)}", highlight=False)
    _add_speed(load_plan(folder), folder, console)
    return execution


def _add_references(plan: Plan, folder: Path, console: Console) -> None:
    """Measures the baselines of each task once; a failure doesn't touch the runs."""
    for task in plan.tasks:
        path = folder / REFERENCES_NAME / f"{task.name}.json"
        with _lock(folder, f"{REFERENCES_NAME}-{task.name}") as mine:
            if task.kind == "masked_lm" or path.is_file() or not mine:
                continue
            try:
                with _quiet():
                    write_json(path, {"baselines": measure_references(plan, task, folder / DATA_NAME)})
            except Exception as error:  # whatever it is, the runs don't depend on it
                console.print(f"{task.name} has no baselines: {one_line(error)}", markup=False, highlight=False)


def _add_speed(plan: Plan, folder: Path, console: Console) -> None:
    """Measures the cost of a training step once every scheme has a run of the task, and again after new schemes."""
    path = folder / SPEED_NAME
    measured = read_speed(path) if path.is_file() else {}
    for task in plan.tasks:
        runs: dict[str, dict[str, Any]] = {}
        for run in plan.runs():
            if run.task == task and run.scheme not in runs and read_status(folder, run) == "done":
                runs[run.scheme] = read_run(run_folder(folder, run) / RUN_NAME)
        known = measured.get(task.name, {})
        if known.get("baseline") == plan.baseline and set(runs) <= set(known["schemes"]):
            continue
        if len(runs) < len(plan.schemes) or not all("config" in run for run in runs.values()):
            continue
        with _lock(folder, SPEED_NAME) as mine:
            if not mine:
                return
            console.print(f"{task.name}: measuring what a step costs", style="dim", markup=False, highlight=False)
            try:
                with _quiet():
                    measured[task.name] = measure_speed(plan, task, runs, plan.baseline)
                write_json(path, measured)
            except Exception as error:  # too little memory for all of them, a full disk, a scheme's own code
                console.print(f"  not measured: {one_line(error)}", style="dim", markup=False, highlight=False)


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


def _attempt(plan: Plan, run: Run, folder: Path) -> str | None:
    """Makes a run. Returns the error message, if any, and records it where the disk allows."""
    place = run_folder(folder, run)
    try:
        with _quiet():
            chosen = choose_rate(plan, run, folder) if plan.search and run.factor is None else None
            result = run_one(plan, run, place, folder / DATA_NAME, chosen)
            finish(place, result)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            f"{run.name} keeps its newest checkpoint, all runs before it are done. The same command goes on there."
        ) from interrupt
    except Exception as error:  # whatever it is, the other runs don't depend on it
        message = one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
        reason = disk_error(error)
        if reason is not None:  # its checkpoints would leave no room for the runs after it, nor for this record
            shutil.rmtree(place / WORK_NAME, ignore_errors=True)
            message = f"writing failed: {reason}"
        failure = {"task": run.task.name, "scheme": run.scheme, "seed": run.seed, "status": "failed", "error": message}
        tried = isinstance(error, Diverged) and run.factor is not None  # this rate is too high; it isn't tried again
        if tried:
            failure |= {"status": "diverged", "learning_rate": learning_rate(plan, run)}
        with contextlib.suppress(OSError):  # not even this can be written: the run counts as not made
            write_json(place / RUN_NAME, {**failure, "settings": plan.settings(run.scheme, run.task)})
        return None if tried else message
    return None


def run_folder(folder: Path, run: Run) -> Path:
    """Where a run's results lie, or a trial's."""
    return folder / (RUNS_NAME if run.factor is None else SEARCH_NAME) / run.name


def choose_rate(plan: Plan, run: Run, folder: Path) -> dict[str, Any]:
    """The learning rate whose trial was best, every trial's score, and what they cost.

    Raises:
        UserError: none of the trials is done.
    """
    found = []
    for trial in plan.trials(run.task, run.scheme):
        path = run_folder(folder, trial) / RUN_NAME
        if path.is_file():
            found.append(read_run(path))
    ended = [one for one in found if one["status"] in ENDED]
    done = [one for one in ended if one["status"] == "done"]
    if len(ended) < len(plan.search) or not done:
        error = next((one["error"] for one in found if one["status"] != "done"), "another process didn't end it")
        raise UserError(f"{len(plan.search) - len(done)} trials of its learning rate are missing: {error}")
    values = {one["learning_rate"]: [test["value"] for test in one.get("tests", [{"value": None}])] for one in ended}
    scores = {rate: float(np.mean(np.array(found, dtype=float))) for rate, found in values.items()}  # null: NaN
    sign = -1 if run.task.metric == "perplexity" else 1
    middle = learning_rate(plan, run)

    def worth(rate: float) -> tuple[float, float]:
        score = sign * scores[rate]
        return (-math.inf if math.isnan(score) else score, -abs(math.log(rate / middle)))  # the nearer of two equals

    search = {
        "seed": done[0]["seed"],
        "scores": {f"{rate:g}": round(score, 6) for rate, score in sorted(scores.items())},
        "seconds": round(sum(one["seconds"] for one in done), 1),
    }
    return {"learning_rate": max(scores, key=worth), "search": search}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the progress bars and notes of single trainings."""
    import datasets
    from transformers.utils import logging

    level, own = logging.get_verbosity(), std_logging.getLogger("hf_posenc")
    own_level = own.level
    own.setLevel(std_logging.ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the Trainer prints what it logs
            yield
    finally:
        logging.set_verbosity(level)
        own.setLevel(own_level)
        logging.enable_progress_bar()
        datasets.enable_progress_bars()


class Clock:
    """Estimates the time left from the runs so far: from those of the same task, where there are some."""

    def __init__(self, pending: list[Run]) -> None:
        self.pending = pending
        self.seconds: dict[str, list[float]] = {}

    def add(self, run: Run, seconds: float) -> None:
        """Adds a finished run."""
        self.seconds.setdefault(run.task.name, []).append(seconds)

    def left(self, made: int) -> str:
        """The time left, in words; empty before the first run."""
        every = [value for values in self.seconds.values() for value in values]
        if not every:
            return ""
        mean = sum(every) / len(every)
        total = 0.0
        for run in self.pending[made:]:
            own = self.seconds.get(run.task.name)
            total += sum(own) / len(own) if own else mean
        return f", about {duration(total)} left"


def duration(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def record_plan(plan: Plan, folder: Path) -> None:
    """Writes the plan into a results folder, with the tasks, schemes and seeds that are there already.

    Raises:
        UserError: the folder holds another plan's results, or something else.
    """
    path = folder / PLAN_NAME
    if path.exists():
        try:
            plan = extend(load_plan(folder), plan)
        except UserError as error:
            raise UserError(f"{str(folder)!r} holds {error}") from error
    elif folder.is_dir() and any(folder.iterdir()):
        found = ", ".join(sorted(item.name for item in folder.iterdir())[:4])
        raise UserError(f"{str(folder)!r} holds no results of a comparison, but {found}. Name a new folder.")
    try:
        write_json(path, plan.to_dict())
    except OSError as error:
        raise UserError(f"{str(folder)!r} can't be written to: {error.strerror}. Name another folder.") from error


def load_plan(folder: str | Path) -> Plan:
    """The plan of a results folder.

    Raises:
        UserError: there is none.
    """
    path = Path(folder) / PLAN_NAME
    if not path.is_file():
        raise UserError(f"{str(folder)!r} holds no results: {PLAN_NAME} is missing. Give a folder of `compare`.")
    try:
        return read_plan(read_json(path), checked=False)
    except Damaged:
        raise
    except UserError as error:
        raise UserError(f"{str(path)!r} is no plan: {one_line(error)}") from error


def read_status(folder: Path, run: Run) -> str | None:
    """The status in a run's JSON (`done`, `failed`, ...); None where there is no run."""
    path = run_folder(folder, run) / RUN_NAME
    return str(read_run(path)["status"]) if path.is_file() else None


def load_runs(folder: str | Path, plan: Plan, damaged: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Reads the runs of a results folder, done and failed.

    Args:
        folder: the results.
        plan: theirs.
        damaged: where files that are damaged are noted, with the reason; they are left out. None: the first one is an
            error.

    Raises:
        UserError: one of them is damaged, or of another plan.
    """
    found = []
    same = _Same(plan)
    for path in sorted((Path(folder) / RUNS_NAME).glob(f"*/{RUN_NAME}")):
        with _noted(path, damaged):
            result = read_run(path, searched=bool(plan.search))
            _check_plan(plan, result, path)
            if result["status"] == "done":
                _check_tests(plan, result, path)
                same.check(result, path)
            found.append(result)
    return found


def _check_plan(plan: Plan, result: dict[str, Any], path: Path) -> None:
    """Refuses a run of another plan, and a copied run, which would count twice."""
    task = next((task for task in plan.tasks if task.name == result["task"]), None)
    here = json.loads(json.dumps(plan.settings(result["scheme"], task)))
    there = result["settings"]
    different = [name for name in {**here, "scheme_code": None, "search": None} if there.get(name) != here.get(name)]
    named = f"{result['task']}-{result['scheme']}-seed{result['seed']}"
    if named not in {run.name for run in plan.runs()}:
        different.append("its tasks, schemes or seeds")
    if different:
        raise UserError(
            f"{str(path.parent)!r} is a run of another plan than {PLAN_NAME} says: it differs in "
            f"{', '.join(different)}. Take it out of the folder, or merge the plans by running `compare` here."
        )
    if named != path.parent.name:
        raise Damaged(path, f"it is the run {named}, in the folder of another.")


def _check_tests(plan: Plan, result: dict[str, Any], path: Path) -> None:
    """Refuses tests of another task, and impossible counts."""
    tests = result["tests"]
    (task,) = (task for task in plan.tasks if task.name == result["task"])
    for place, test in enumerate(tests):
        if test["length"] not in plan.test_lengths_of(task) or test.get("metric", task.metric) != task.metric:
            raise Damaged(path, f"tests[{place}] isn't of one of the task's lengths, or of another metric.")
    check_counts(path, tests)


class _Same:
    """What all runs of a folder share beyond their plan; of two that differ, neither is known to be wrong."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.data: dict[tuple[str, str, int], tuple[Any, Path]] = {}
        self.starts: dict[str, tuple[str, Path]] = {}
        self.rates: dict[tuple[str, str], tuple[float, Path]] = {}

    def check(self, result: dict[str, Any], path: Path) -> None:
        """Refuses a run whose test examples, learning rate or starting weights differ from those of earlier runs.

        Raises:
            UserError: naming both.
        """
        for test in result["tests"]:
            key = (result["task"], test["part"], test["length"])
            own = (test.get("data"), test["examples"])
            before = self.data.setdefault(key, (own, path))
            if before[0] != own:
                raise UserError(
                    f"{str(path.parent)!r} was tested on other examples of {test['part']!r} than "
                    f"{str(before[1].parent)!r}: the data has changed in between. Delete the runs of one of them."
                )
        if (rate := result.get("learning_rate")) is not None:
            other = self.rates.setdefault((result["task"], result["scheme"]), (rate, path))
            if other[0] != rate:
                raise UserError(
                    f"{str(path.parent)!r} learned at {rate:g}, {str(other[1].parent)!r} at {other[0]:g}: each machine "
                    f"searched anew. Delete the runs of one of them, and copy {SEARCH_NAME} before the others start."
                )
        if start := result.get("source_sha256"):
            name = result["scheme"] if "{scheme}" in str(self.plan.pretrained) else ""
            first = self.starts.setdefault(name, (start, path))
            if first[0] != start:
                raise UserError(
                    f"{str(path.parent)!r} started from other weights than {str(first[1].parent)!r}: "
                    f"{str(self.plan.pretrained)!r} has changed in between. Delete the runs of one of them."
                )


def load_references(
    folder: str | Path, done: list[dict[str, Any]], damaged: dict[str, str] | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """The baselines, by task and name; a task whose baselines weren't measured is left out.

    Args:
        folder: the results.
        done: its runs.
        damaged: see `load_runs`.

    Raises:
        UserError: it was measured on other examples than the runs, or is damaged.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    tested = {(run["task"], test["part"], test["length"]): test.get("data") for run in done for test in run["tests"]}
    for path in sorted((Path(folder) / REFERENCES_NAME).glob("*.json")):
        with _noted(path, damaged):
            for reference in read_baselines(path):
                for test in reference["tests"]:
                    if tested.get((reference["task"], test["part"], test["length"]), test.get("data")) != test.get(
                        "data"
                    ):
                        raise UserError(
                            f"{str(path)!r} was measured on other examples of {test['part']!r} than the runs. Delete "
                            "it, and run `compare` again."
                        )
                found.setdefault(reference["task"], {})[reference["scheme"]] = reference
    return found


def load_speed(folder: str | Path, baseline: str, damaged: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The cost of a step, by task; a task that wasn't measured beside the baseline is left out.

    Args:
        folder: the results.
        baseline: the scheme whose cost is 1.
        damaged: see `load_runs`.

    Raises:
        UserError: it is damaged.
    """
    path, measured = Path(folder) / SPEED_NAME, {}
    with _noted(path, damaged):
        measured = read_speed(path) if path.is_file() else {}
    return {task: found for task, found in measured.items() if found["baseline"] == baseline}


@contextlib.contextmanager
def _noted(path: Path, damaged: dict[str, str] | None) -> Iterator[None]:
    """Notes a damaged file under its run's folder or its own name, and goes on without it; see `load_runs`."""
    try:
        yield
    except Damaged as error:
        if damaged is None:
            raise
        damaged[path.parent.name if path.name == RUN_NAME else path.name] = error.reason
