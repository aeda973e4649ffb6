"""Makes the runs that `executor` chooses, in this process; a subclass hands them to others."""

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from ..quiet import silence
from .plan import PlannedRun
from .run import run_one
from .tasks import TaskData

Made = tuple[list[dict[str, Any]], float]
"""The rows of a run, and its seconds."""


class Engine:
    """Makes runs in this process, one after the other; see `RayCluster` for many at once."""

    most: int | None = 1
    """So many are begun before one has ended. None: all that can be."""
    at_once = 1
    """So many are made at once, about."""
    where = "here"
    kept = "what is finished is kept, and the newest checkpoint of a run. Compare again, and it goes on there."

    def submit(self, data: TaskData, run: PlannedRun, work: Path, tokenizer: Path, *chosen: Any) -> "Future[Any]":
        """Begins a run; see `make_run`."""
        future: Future[Any] = Future()
        try:
            future.set_result(make_run(data, run, work, tokenizer, *chosen))
        except Exception as error:  # whatever it is, the other runs don't depend on it
            future.set_exception(error)
        return future

    def result(self, future: "Future[Any]", work: Path) -> Made:
        """Returns what became of a run that has ended; raises the error that it ended in."""
        made: Made = future.result()
        return made

    def close(self) -> None:
        """Stops what still runs."""


def make_run(data: TaskData, run: PlannedRun, work: Path, tokenizer: Path, *chosen: Any) -> Made:
    """Makes a run; returns its rows, and the seconds that it took.

    Args:
        data: of the task.
        run: what is made.
        work: the folder for its checkpoints and model.
        tokenizer: the folder of the one of generated data.
        *chosen: its learning rate, and the majority's rows.
    """
    started = time.time()
    with silence(), threadpool_limits(data.plan.threads):
        return run_one(data, run, work, tokenizer, *chosen), time.time() - started
