"""Runs a plan: skips finished runs, resumes interrupted ones, records failures."""

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from threadpoolctl import threadpool_limits

from ..errors import Interrupted, UserError, disk_error, one_line
from ..files import expanded, last_name, sha256, written_whole
from ..progress import ProgressConsole
from ..quiet import silence, without_bars
from .baselines import BASELINES, measure_baselines
from .plan import MAJORITY, Plan, PlannedRun
from .results import LOCKS_NAME, check_folder, mark_report, read_result, record_plan, write_failure, write_result
from .run import rate_of_run, run_one
from .statistics import what_can_be_found
from .tasks import TaskData, make_tokenizer

MODELS_NAME, TOKENIZER_NAME = "models", "tokenizer"


@dataclass
class Execution:
    """Outcome of `execute`: runs it made, runs that were there, runs of other processes, and why others failed."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Says the number of each."""
        others = f"{len(self.elsewhere)} are another process's, " if self.elsewhere else ""
        again = "\nCompare again, and those that failed are tried again." if self.failed else ""
        return f"{len(self.done)} runs made, {len(self.skipped)} were there, {others}{len(self.failed)} failed.{again}"


def execute(plan: Plan, results: str | Path, *, keep_models: bool = False, console: Console | None = None) -> Execution:
    """Makes the plan's missing runs, except those that another process is making.

    Args:
        plan: what is compared.
        results: the folder: `plan.json`, and `runs/<task>-<scheme>-seed<n>.json` for each run.
        keep_models: leave each run's model in `models`.
        console: where the progress goes. None: standard output.

    Raises:
        UserError: the folder holds another plan's results or runs, or the data can't be read.
        Interrupted: Ctrl-C. The same call resumes.
    """
    console, folder, made = console or ProgressConsole(), Path(expanded(results)), Execution()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    try:
        data = {task.name: TaskData(plan, task) for task in plan.tasks}
        seconds = _prepare(plan, data, folder, say)
        runs = plan.work()
        pending = [run for run in runs if not read_result(folder, plan, run)]
        made.skipped = [run.name for run in runs if run not in pending]
        left = timedelta(seconds=round(sum(seconds[run.task.name] for run in pending)))
        say(f"{len(pending)} of {len(runs)} runs to make, about {left} here. {what_can_be_found(plan)}")
        for number, run in enumerate(pending, start=1):
            with _lock(folder, run.name) as is_mine:
                if is_mine and read_result(folder, plan, run):
                    made.skipped.append(run.name)
                    continue
                say(f"[{number} of {len(pending)}] {run.name}: ", end="")
                if not is_mine:
                    made.elsewhere.append(run.name)
                    say("another process is making it")
                    continue
                started = time.time()
                mark_report(folder)
                if (failure := _attempt(data[run.task.name], run, folder, keep_models)) is not None:
                    made.failed[run.name] = failure
                    write_failure(folder, run, failure)
                    say(f"failed: {failure}")
                else:
                    made.done.append(run.name)
                    say(f"done in {timedelta(seconds=round(time.time() - started))}")
        say(str(made))
    except KeyboardInterrupt as interrupt:
        console.print()  # what is said next has a line of its own
        what = "what is finished is kept, and the newest checkpoint of a run. Compare again, and it goes on there."
        raise Interrupted(what) from interrupt
    return made


def _prepare(plan: Plan, data: dict[str, TaskData], folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Makes what all runs need: checked data, the plan in the folder, the baselines of each task.

    Returns:
        About how long a run of each task takes.
    """
    if taken := sorted(set(plan.schemes) & set(BASELINES)):
        raise UserError(f"The scheme's name {taken[0]!r} is a baseline's in the table of results. Rename the scheme.")
    inputs = {f"the scheme file {last_name(path)!r}": sha256(path) for path in plan.scheme_files}
    for name, of_task in data.items():
        with without_bars():  # what it warns of is about the user's data
            checked = of_task.check()
        say(checked.line)
        if checked.digest is not None:
            inputs[f"the data of {name!r}"] = checked.digest
    for scheme in plan.schemes if plan.pretrained is not None else ():
        checkpoint = plan.checkpoint(scheme)
        for weights in sorted(Path(checkpoint).glob("*.safetensors")):
            inputs[f"the checkpoint '{last_name(checkpoint)}/{weights.name}'"] = sha256(weights)
    check_folder(folder)
    with _lock(folder, "plan", wait=True):  # two processes may bring seeds or schemes of their own
        record_plan(replace(plan, inputs=inputs), folder)
    with _lock(folder, TOKENIZER_NAME, wait=True):
        if not (folder / TOKENIZER_NAME).exists():
            with written_whole(folder / TOKENIZER_NAME) as new:
                make_tokenizer().save_pretrained(str(new))
    seconds = {}
    for task in plan.tasks:
        with _lock(folder, f"baselines-{task.name}", wait=True):
            if not (measured := read_result(folder, plan, task)):
                with threadpool_limits(plan.threads), silence():
                    measured = measure_baselines(data[task.name], folder / TOKENIZER_NAME)
                write_result(folder, plan, task, measured)
                if cut := measured["cut"]:
                    texts = f"{cut:,} of {measured['texts']:,} training texts are cut at {plan.train_length} tokens"
                    say(f"{task.name}: {texts} (train_length of a plan).")
        seconds[task.name] = float(measured["seconds"])
    return seconds


@contextlib.contextmanager
def _lock(folder: Path, name: str, *, wait: bool = False) -> Iterator[bool]:
    """Yields whether this process holds the lock inside the block; the system frees it if the process dies."""
    place = folder / LOCKS_NAME
    place.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place / f"{name}.lock", -1 if wait else 0):
            yield True
    except Timeout:
        yield False


def _attempt(data: TaskData, run: PlannedRun, folder: Path, keep_models: bool) -> str | None:
    """Makes a run, and records it; returns why it failed."""
    plan = data.plan
    work = folder / MODELS_NAME / run.name
    trials = plan.trials(run.task, run.scheme) if run.factor is None else []
    try:
        for trial in trials:
            with _lock(folder, trial.name, wait=True):  # another process may be making it
                pass
        with silence(), threadpool_limits(plan.threads):
            rate = choose_rate(plan, run, folder) if trials else None
            measured = read_result(folder, plan, run.task)["rows"] if run.factor is None else ()
            majority = [row for row in measured if row["scheme"] == MAJORITY]
            # A trial that diverged has no rows: its rate is too high, and isn't tried again.
            rows = run_one(data, run, work, folder / TOKENIZER_NAME, rate, majority)
        if not keep_models or run.factor is not None:
            shutil.rmtree(work, ignore_errors=True)  # before the record: the disk may be full
        write_result(folder, plan, run, {"rows": rows})
    except Exception as error:  # whatever it is, the other runs don't depend on it
        shutil.rmtree(work, ignore_errors=True)  # its checkpoints would leave no room for the runs after it
        if (reason := disk_error(error)) is not None:
            return f"writing failed: {reason}"
        return one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
    return None


def choose_rate(plan: Plan, run: PlannedRun, folder: Path) -> float:
    """The learning rate whose trial was best; of two equal ones, the nearer to the plan's; if all diverged, the least.

    Raises:
        UserError: one of the trials is missing.
    """
    nearest = sorted(plan.trials(run.task, run.scheme), key=lambda trial: abs(math.log(trial.factor or 1)))
    trials = [read_result(folder, plan, trial).get("rows") for trial in nearest]
    if missing := trials.count(None):
        raise UserError(f"{missing} trials of its learning rate failed.")
    if not any(trials):
        return min(rate_of_run(plan, trial) for trial in nearest)

    def score(rows: list[dict[str, Any]]) -> float:
        return fmean(-math.inf if row["score"] is None else row["score"] for row in rows)  # None: NaN

    return float(max(filter(None, trials), key=score)[0]["rate"])
