"""Runs a plan: skips finished runs, resumes interrupted ones, records failures."""

import contextlib
import importlib.util
import math
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from threadpoolctl import threadpool_limits

from ..data.tables import counted
from ..errors import Interrupted, UserError, disk_error, one_line
from ..files import expanded, last_name, sha256, written_whole
from ..progress import ProgressConsole
from ..quiet import silence, without_bars
from .baselines import BASELINES, measure_baselines
from .engine import Engine
from .plan import MAJORITY, Plan, PlannedRun
from .results import (
    LOCKS_NAME,
    check_folder,
    forget_failure,
    has_failed,
    mark_report,
    read_result,
    record_plan,
    write_failure,
    write_result,
)
from .run import rate_of_run
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


def execute(
    plan: Plan, results: str | Path, *, keep_models: bool = False, ray: bool = False, console: Console | None = None
) -> Execution:
    """Makes the plan's missing runs, except those that another process is making.

    Args:
        plan: what is compared.
        results: the folder: `plan.json`, and `runs/<task>-<scheme>-seed<n>.json` for each run.
        keep_models: leave each run's model in `models`.
        ray: give the runs to a Ray cluster.
        console: where the progress goes. None: standard output.

    Raises:
        UserError: the folder holds another plan's results or runs, the data can't be read, or Ray isn't installed.
        Interrupted: Ctrl-C. The same call resumes.
    """
    if ray and importlib.util.find_spec("ray") is None:
        raise UserError("needs Ray, which isn't installed: pip install 'hf-posenc[ray]'.", parameter="ray", value=True)
    console, folder, engine = console or ProgressConsole(), Path(expanded(results)), Engine()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    try:
        data = {task.name: TaskData(plan, task) for task in plan.tasks}
        if ray:
            from .cluster import RayCluster  # imports Ray

            engine = RayCluster(plan, keep_models)
        with contextlib.closing(engine):
            seconds = _prepare(plan, data, folder, say)
            return _Execution(plan, data, folder, keep_models, engine, say).make(seconds)
    except KeyboardInterrupt as interrupt:
        console.print()  # what is said next has a line of its own
        raise Interrupted(engine.kept) from interrupt


@dataclass
class _Execution:
    """The runs that are missing. Which can begin, what is written and which locks are held is decided here alone."""

    plan: Plan
    data: dict[str, TaskData]
    folder: Path
    keep_models: bool
    engine: Engine
    say: Callable[..., None]
    pending: list[PlannedRun] = field(default_factory=list)
    waiting: list[PlannedRun] = field(default_factory=list)
    running: dict["Future[Any]", tuple[PlannedRun, str, contextlib.ExitStack]] = field(default_factory=dict)
    """With the beginning of its line, and its lock."""
    made: Execution = field(default_factory=Execution)

    def make(self, seconds: dict[str, float]) -> Execution:
        """Makes them; `seconds` is about how long a run of each task takes."""
        runs = self.plan.work()
        self.pending = [run for run in runs if not read_result(self.folder, self.plan, run)]
        self.waiting = list(self.pending)
        self.made.skipped = [run.name for run in runs if run not in self.pending]
        left = timedelta(seconds=round(sum(seconds[run.task.name] for run in self.pending) / self.engine.at_once))
        here = f"about {left} {self.engine.where}. {what_can_be_found(self.plan)}"
        self.say(f"{len(self.pending)} of {len(runs)} runs to make, {here}")
        try:
            while self._take_over() or self.running:
                self._begin_some()
                for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                    self._end(future)
        finally:
            for _, _, lock in self.running.values():
                lock.close()
        self.say(str(self.made))
        return self.made

    def _take_over(self) -> list[PlannedRun]:
        """Lets those runs wait again that another process has left unmade, as one that is killed; returns all."""
        for run in self.pending:
            if run.name in self.made.elsewhere and not has_failed(self.folder, run):
                with _lock(self.folder, run.name) as is_free:
                    if is_free and not read_result(self.folder, self.plan, run):
                        self.made.elsewhere.remove(run.name)
                        self.waiting.append(run)
        return self.waiting

    def _begin_some(self) -> None:
        """Begins runs, in order, until so many are running as may be, or none is left that can begin."""
        for run in list(self.waiting):
            if self.engine.most is not None and len(self.running) >= self.engine.most:
                return
            if self._has_trials(run):
                self._begin(run)
        if self.waiting and not self.running:  # another process makes what all of them need
            for trial in self._trials(self.waiting[0]):
                with _lock(self.folder, trial.name, wait=True):
                    pass

    def _trials(self, run: PlannedRun) -> list[PlannedRun]:
        return self.plan.trials(run.task, run.scheme) if run.factor is None else []

    def _has_trials(self, run: PlannedRun) -> bool:
        """True where no process, this one included, is yet to make a trial that a run needs."""
        for trial in self._trials(run):
            with _lock(self.folder, trial.name) as is_free:
                if trial in self.waiting or not is_free:
                    return False
        return True

    def _begin(self, run: PlannedRun) -> None:
        """Begins a run, unless another process makes it or has made it."""
        self.waiting.remove(run)
        line = f"[{len(self.pending) - len(self.waiting)} of {len(self.pending)}] {run.name}: "
        with contextlib.ExitStack() as lock:
            is_mine = lock.enter_context(_lock(self.folder, run.name))
            if is_mine and read_result(self.folder, self.plan, run):
                self.made.skipped.append(run.name)
                return
            if not is_mine:
                self.made.elsewhere.append(run.name)
                self.say(f"{line}another process is making it")
                return
            if self.engine.most == 1:
                self.say(line, end="")
                line = ""
            mark_report(self.folder)
            forget_failure(self.folder, run)
            work = self.folder / MODELS_NAME / run.name
            try:
                chosen = self._rate(run), self._majority(run)
            except UserError as error:
                self._failed(run, line, error)
                return
            future = self.engine.submit(self.data[run.task.name], run, work, self.folder / TOKENIZER_NAME, *chosen)
            self.running[future] = run, line, lock.pop_all()

    def _rate(self, run: PlannedRun) -> float | None:
        """The learning rate that its trials chose; None: there are none."""
        return choose_rate(self.plan, run, self.folder) if self._trials(run) else None

    def _majority(self, run: PlannedRun) -> list[dict[str, Any]]:
        """The majority's rows, which a run that diverges has. A trial has none: its rate isn't tried again."""
        measured = read_result(self.folder, self.plan, run.task)["rows"] if run.factor is None else ()
        return [row for row in measured if row["scheme"] == MAJORITY]

    def _end(self, future: "Future[Any]") -> None:
        """Writes what became of a run."""
        run, line, lock = self.running.pop(future)
        work = self.folder / MODELS_NAME / run.name
        with lock:
            try:
                rows, seconds = self.engine.result(future, work)
                if not self.keep_models or run.factor is not None:
                    shutil.rmtree(work, ignore_errors=True)  # before the record: the disk may be full
                write_result(self.folder, self.plan, run, {"rows": rows})
            except Exception as error:  # whatever it is, the other runs don't depend on it
                shutil.rmtree(work, ignore_errors=True)  # its checkpoints would leave no room for the runs after it
                self._failed(run, line, error)
                return
        self.made.done.append(run.name)
        self.say(f"{line}done in {timedelta(seconds=round(seconds))}")

    def _failed(self, run: PlannedRun, line: str, error: Exception) -> None:
        """Keeps why a run failed."""
        reason = one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
        if (disk := disk_error(error)) is not None:
            reason = f"writing failed: {disk}"
        self.made.failed[run.name] = reason
        write_failure(self.folder, run, reason)
        self.say(f"{line}failed: {reason}")


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
                for sentence in measured["said"]:
                    say(f"{task.name}: {sentence}")
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


def choose_rate(plan: Plan, run: PlannedRun, folder: Path) -> float:
    """The learning rate whose trial was best; of two equal ones, the nearer to the plan's; if all diverged, the least.

    Raises:
        UserError: one of the trials is missing.
    """
    nearest = sorted(plan.trials(run.task, run.scheme), key=lambda trial: abs(math.log(trial.factor or 1)))
    trials = [read_result(folder, plan, trial).get("rows") for trial in nearest]
    if missing := trials.count(None):
        raise UserError(f"{counted(missing, 'trial')} of its learning rate failed.")
    ended = [rows for rows in trials if rows and not rows[0].get("diverged")]
    if not ended:
        return min(rate_of_run(plan, trial) for trial in nearest)

    def score(rows: list[dict[str, Any]]) -> float:
        return fmean(-math.inf if row["score"] is None else row["score"] for row in rows)  # None: NaN

    return float(max(ended, key=score)[0]["rate"])
