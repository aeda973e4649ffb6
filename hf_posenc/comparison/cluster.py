"""Runs of a comparison as tasks of a Ray cluster: each gets all that it needs as values, and returns its results.

The machines need hf_posenc, and no folder in common. A task that fails, or whose machine is lost, is tried again.
"""

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by the import that follows
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import ray

from ..errors import UserError, one_line
from .engine import Engine, Made, make_run
from .plan import Plan, PlannedRun
from .run import register_files
from .tasks import TaskData, make_tokenizer

_RETRIES = 2
"""So often a run is tried again."""
Files = dict[str, bytes]
"""What a folder holds, by the names within it."""


def connect() -> dict[str, float]:
    """Joins the cluster, unless that is done; returns what it has, such as CPU and GPU.

    Raises:
        UserError: there is none.
    """
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of many kinds: no such address, another version, a node that doesn't start
            raise UserError(f"needs a Ray cluster: {one_line(error)}", parameter="ray", value=True) from error
    return dict(ray.cluster_resources())


class RayCluster(Engine):
    """The cluster that RAY_ADDRESS names, the one of this machine, or a new one of this machine alone.

    Args:
        plan: what is compared.
        keep_models: whether the models come back.
    """

    most = None  # all wait in Ray's queue, so that a cluster that grows by demand does
    kept = "what is finished is kept. Compare again, and the rest is made."

    def __init__(self, plan: Plan, keep_models: bool) -> None:
        self.keep_models = keep_models
        self._was_there = ray.is_initialized()
        there = connect()
        cpus = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if plan.threads is not None and plan.threads > cpus:
            raise UserError(f"The plan's threads={plan.threads} are more than a machine of the cluster has, {cpus:g}.")
        gpus = there.get("GPU", 0) if plan.options.get("device") != "cpu" else 0
        needs: dict[str, Any] = {"num_cpus": plan.threads or 1, "num_gpus": 1 if gpus else 0}
        self.at_once = max(1, int(gpus or there.get("CPU", 1) // needs["num_cpus"]))
        self.where = f"on Ray, {self.at_once} at once"
        self._task: Any = ray.remote(_make).options(**needs, max_retries=_RETRIES, retry_exceptions=True)
        self._code = ray.put(_scheme_code(plan))
        self._shared: dict[str, Any] = {}
        self._running: dict[Future[Any], Any] = {}

    def submit(self, data: TaskData, run: PlannedRun, work: Path, tokenizer: Path, *chosen: Any) -> "Future[Any]":
        """Hands a run to Ray."""
        source = Path(data.plan.checkpoint(run.scheme))
        is_here = data.plan.pretrained is not None and source.is_dir()  # else there is none, or it is on the Hub
        checkpoint = self._share(str(source), lambda: packed(source) if is_here else {})
        shared = self._share(f"data of {data.task.name}", lambda: data)
        keep = self.keep_models and run.factor is None
        reference = self._task.remote(shared, run, chosen, self._code, checkpoint, keep)
        future = reference.future()
        self._running[future] = reference
        return future

    def result(self, future: "Future[Any]", work: Path) -> Made:
        """Returns what came back of a run, whose model goes into `work`; raises what the run did."""
        del self._running[future]
        try:
            made, files = future.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        unpack(files, work)
        return made

    def close(self) -> None:
        """Stops what still runs, and leaves the cluster."""
        for reference in self._running.values():
            ray.cancel(reference, force=True)
        if not self._was_there:
            ray.shutdown()

    def _share(self, name: str, value: Any) -> Any:
        """Gives Ray a value once for all runs."""
        if name not in self._shared:
            self._shared[name] = ray.put(value())
        return self._shared[name]


def packed(folder: Path, pattern: str = "**/*") -> Files:
    """The files of a folder as values."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.glob(pattern)) if p.is_file()}


def unpack(files: Files, folder: Path) -> None:
    """Writes such files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _scheme_code(plan: Plan) -> tuple[tuple[str, Files], ...]:
    """The names of the plan's scheme files, each with the Python files that it may import from beside it."""
    return tuple((Path(path).name, packed(Path(path).absolute().parent, "*.py")) for path in plan.scheme_files)


def _digest(files: Files) -> str:
    """Tells files from others of the same names: a worker may serve several comparisons."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()


@functools.cache
def _code_folder() -> Path:
    """Where a worker keeps the scheme files."""
    return Path(tempfile.mkdtemp(prefix="hf_posenc-"))


def _make(
    data: TaskData, run: PlannedRun, chosen: Sequence[Any], code: Any, checkpoint: Files, keep: bool
) -> tuple[Made, Files]:
    """The task: makes a run in a folder of its own, and returns what it made, and its model where it is kept."""
    scheme_files = []
    for name, files in code:
        scheme_files.append(str(_code_folder() / _digest(files) / name))
        if not Path(scheme_files[-1]).exists():
            unpack(files, Path(scheme_files[-1]).parent)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data.plan = replace(data.plan, scheme_files=tuple(scheme_files))
        if checkpoint:
            unpack(checkpoint, place / "checkpoint")
            data.plan = replace(data.plan, pretrained=str(place / "checkpoint"))
        register_files(data.plan)
        make_tokenizer().save_pretrained(str(place / "tokenizer"))
        made = make_run(data, run, place / "model", place / "tokenizer", *chosen)
        return made, packed(place / "model") if keep else {}
