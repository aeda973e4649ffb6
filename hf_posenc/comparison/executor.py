"""Running a plan: what is done is skipped, what was interrupted goes on, what fails is recorded."""

import contextlib
import io
import json
import logging as std_logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from hf_posenc.training.checkpoints import write_json
from hf_posenc.training.errors import Interrupted, UserError, disk_error, one_line

from .plan import Plan, Run, convert_checkpoints, extend, read_plan
from .run import RUN_NAME, WORK_NAME, finish, run_one
from .tasks import check_data

PLAN_NAME = "plan.json"
RUNS_NAME = "runs"
DATA_NAME = "data"
LOCKS_NAME = ".locks"


@dataclass
class Execution:
    """What `execute` did."""

    done: list[str] = field(default_factory=list)
    """Runs that it made."""
    skipped: list[str] = field(default_factory=list)
    """Runs that were there, or were made by another process in the meantime."""
    elsewhere: list[str] = field(default_factory=list)
    """Runs that another process is making."""
    failed: dict[str, str] = field(default_factory=dict)
    """Runs that ended in an error, with its message."""


def execute(
    plan: Plan, results: str | Path, *, shard: tuple[int, int] = (1, 1), console: Console | None = None
) -> Execution:
    """Makes every run of a plan that isn't done yet, and that no other process is making.

    Args:
        plan: what is compared.
        results: the folder: `plan.json`, and `runs/<task>-<scheme>-seed<n>/run.json` for each run. Folders of several
            machines merge by copying `runs`.
        shard: (i, n): the i-th of n parts of the runs, i from 1.
        console: where the progress goes. None: standard output.

    Raises:
        UserError: the folder holds another plan's results or runs, or the data can't be read.
        Interrupted: Ctrl-C. The same call goes on where it was.
    """
    console = console or Console()
    runs = plan.shard(*shard)
    folder = Path(results)
    for task in plan.tasks:
        with _quiet():
            check_data(plan, task)
    record_plan(plan, folder)
    load_runs(folder, load_plan(folder))
    with _quiet(), _lock(folder, "converted", wait=True):
        convert_checkpoints(plan, folder / DATA_NAME)
    execution = Execution()
    pending = []
    for run in runs:
        if read_status(folder, run) == "done":
            execution.skipped.append(run.name)
        else:
            pending.append(run)
    if execution.skipped:
        console.print(f"{len(execution.skipped)} of {len(runs)} runs are done already.")
    if len(plan.seeds) < 2:
        console.print("One seed: there will be no intervals and no comparison beyond it. Give 2 seeds or more.")
    clock = Clock(pending)
    for number, run in enumerate(pending, start=1):
        with _lock(folder, run.name) as mine:
            if mine and read_status(folder, run) == "done":
                execution.skipped.append(run.name)
                continue
            left = clock.left(number - 1)
            console.print(f"[{number} of {len(pending)}] {run.name}{left}", markup=False, highlight=False)
            if not mine:
                execution.elsewhere.append(run.name)
                console.print("  another process is making it", style="dim", highlight=False)
                continue
            started = time.time()
            error = _attempt(plan, run, folder)
            clock.add(run, time.time() - started)
            if error is None:
                execution.done.append(run.name)
                console.print(f"  done in {duration(time.time() - started)}", style="dim", highlight=False)
            else:
                execution.failed[run.name] = error
                console.print(f"  [red]failed[/red]: {escape(error)}", highlight=False)
    return execution


@contextlib.contextmanager
def _lock(folder: Path, name: str, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process has it, until the end of the block; the system takes it from one that dies."""
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
    """Makes a run; what goes wrong is returned and, if that can be written, recorded."""
    place = folder / RUNS_NAME / run.name
    try:
        with _quiet():
            result = run_one(plan, run, place, folder / DATA_NAME)
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
        with contextlib.suppress(OSError):  # not even this can be written: the run counts as not made
            write_json(place / RUN_NAME, {**failure, "settings": plan.settings(run.scheme, run.task)})
        return message
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and notes of single trainings, of which there are many."""
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
    """Guesses the time that is left from the runs made: a task's own where there are some."""

    def __init__(self, pending: list[Run]) -> None:
        self.pending = pending
        self.seconds: dict[str, list[float]] = {}

    def add(self, run: Run, seconds: float) -> None:
        """Takes note of a run."""
        self.seconds.setdefault(run.task.name, []).append(seconds)

    def left(self, made: int) -> str:
        """Words on the time left after so many runs; none before the first."""
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
    return read_plan(_read_json(path), checked=False)


def read_status(folder: Path, run: Run) -> str | None:
    """`done`, `failed`, or None for a run that isn't there."""
    path = folder / RUNS_NAME / run.name / RUN_NAME
    return str(_read_json(path).get("status")) if path.is_file() else None


def load_runs(folder: str | Path, plan: Plan) -> list[dict[str, Any]]:
    """What the runs of a results folder hold, done and failed.

    Raises:
        UserError: one of them is damaged, or of another plan.
    """
    found = []
    data: dict[tuple[str, str, int], tuple[str | None, Path]] = {}
    starts: dict[str, tuple[str, Path]] = {}
    for path in sorted((Path(folder) / RUNS_NAME).glob(f"*/{RUN_NAME}")):
        result = _read_json(path)
        task = next((task for task in plan.tasks if task.name == result.get("task")), None)
        here = json.loads(json.dumps(plan.settings(str(result.get("scheme")), task)))
        there = result.get("settings", {})
        different = [name for name in {**here, "scheme_code": None} if there.get(name) != here.get(name)]
        named = f"{result.get('task')}-{result.get('scheme')}-seed{result.get('seed')}"
        if named not in {run.name for run in plan.runs()}:
            different.append("its tasks, schemes or seeds")
        if different:
            raise UserError(
                f"{str(path.parent)!r} is a run of another plan than {PLAN_NAME} says: it differs in "
                f"{', '.join(different)}. Take it out of the folder, or merge the plans by running `compare` here."
            )
        for test in result.get("tests", ()):
            key = (result["task"], test["part"], test["length"])
            if data.setdefault(key, (test.get("data"), path))[0] != test.get("data"):
                raise UserError(
                    f"{str(path.parent)!r} was tested on other examples of {test['part']!r} than "
                    f"{str(data[key][1].parent)!r}: the data has changed in between. Delete the runs of one of them."
                )
        if start := result.get("source_sha256"):
            before = starts.setdefault(result["scheme"] if "{scheme}" in str(plan.pretrained) else "", (start, path))
            if before[0] != start:
                raise UserError(
                    f"{str(path.parent)!r} started from other weights than {str(before[1].parent)!r}: "
                    f"{str(plan.pretrained)!r} has changed in between. Delete the runs of one of them."
                )
        found.append(result)
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{str(path)!r} can't be read: {one_line(error)}. Delete it, and run `compare` again."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} holds no object. Delete it, and run `compare` again.")
    return value
