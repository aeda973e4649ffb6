"""The folder of a comparison: its plan, a JSON file for each run, and all results as one table.

`results.csv` has a row for each task, part, length, scheme and seed; baselines are schemes without a seed. A row
without a score: the inputs are longer than the scheme's table.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from hf_posenc.errors import UserError, one_line
from hf_posenc.files import finite, write_json, write_text

from .plan import Plan, PlannedRun
from .plan_file import read_plan

PLAN_NAME, TABLE_NAME = "plan.json", "results.csv"
RUNS_NAME, TRIALS_NAME, BASELINES_NAME = "runs", "trials", "baselines"
_OF_A_RUN = ("steps", "seconds", "parameters", "rate", "commit", "processor")
_WHOLE = ("seed", "steps", "parameters")
_KINDS = dict.fromkeys(_WHOLE, "Int64") | {"score": "float64"}
_KINDS |= dict.fromkeys(("task", "part", "scheme", "metric", "commit", "processor"), "str")
COLUMNS = ("task", "part", "length", "scheme", "seed", "metric", "score", "examples", *_OF_A_RUN)
ENDED = ("done", "diverged")
"""The status of runs that aren't repeated; `diverged`: a trial whose learning rate led to NaN."""


def record_plan(plan: Plan, inputs: dict[str, str], folder: Path) -> None:
    """Writes the plan into a results folder, with the tasks, schemes and seeds that are there already.

    Args:
        plan: what is compared.
        inputs: a hash of each file or data set that runs depend on, by its name.
        folder: of the results.

    Raises:
        UserError: the folder holds another plan's results, or something else; or an input has changed.
    """
    check_folder(folder)
    if (folder / PLAN_NAME).exists():
        before = _read_json(folder / PLAN_NAME).get("inputs", {})
        if changed := [name for name, digest in inputs.items() if before.get(name, digest) != digest]:
            raise UserError(
                f"{', '.join(changed)} has changed since the first runs in {str(folder)!r}: runs of both don't "
                "compare. Name a new folder, or restore it."
            )
        try:
            plan = load_plan(folder).extended(plan)
        except UserError as error:
            raise UserError(f"{str(folder)!r} holds {error}") from error
        inputs = {**before, **inputs}
    write_json(folder / PLAN_NAME, {**plan.to_dict(), "inputs": inputs})


def check_folder(folder: Path) -> None:
    """Refuses a folder for results that holds something else, or a table without its runs.

    Raises:
        UserError: naming it.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise UserError(f"{str(folder)!r} can't be written to. Name another folder.")
    if folder.is_dir() and not (folder / PLAN_NAME).exists() and any(folder.iterdir()):
        names = ", ".join(sorted(item.name for item in folder.iterdir())[:4])
        raise UserError(f"{str(folder)!r} holds no results of a comparison, but {names}. Name a new folder.")
    if (folder / TABLE_NAME).is_file() and not (folder / RUNS_NAME).is_dir():
        raise UserError(f"{str(folder)!r} holds a table whose runs aren't there, so none can be added. Name a new one.")


def load_plan(folder: str | Path) -> Plan:
    """The plan of a results folder.

    Raises:
        UserError: there is none.
    """
    path = Path(folder) / PLAN_NAME
    if not path.is_file():
        raise UserError(f"{str(folder)!r} holds no results: {PLAN_NAME} is missing. Give a folder of `compare`.")
    try:
        return read_plan(_read_json(path), checked=False)
    except UserError as error:
        raise UserError(f"{str(path)!r} is no plan: {one_line(error)}") from error


def run_path(folder: Path, run: PlannedRun) -> Path:
    """The file of a run's results, or of a trial's."""
    return folder / (RUNS_NAME if run.factor is None else TRIALS_NAME) / f"{run.name}.json"


def write_run(folder: Path, plan: Plan, run: PlannedRun, result: dict[str, Any]) -> None:
    """Writes a run's JSON, whole or not at all."""
    _write_signed(run_path(folder, run), {"settings": _hash(plan.settings(run.task)), **result})


def read_run(folder: Path, plan: Plan, run: PlannedRun) -> dict[str, Any]:
    """A run's JSON; its status is `missing` without one, and `failed` if it can't be read.

    Raises:
        UserError: it is a run of another plan.
    """
    path = run_path(folder, run)
    if not path.is_file():
        return {"status": "missing"}
    try:
        result = _read_signed(path)
    except UserError as error:
        return {"status": "failed", "error": one_line(error)}
    if result["settings"] != _hash(plan.settings(run.task)):
        raise UserError(f"{str(path)!r} is a run of another plan than {PLAN_NAME} says. Take it out of the folder.")
    return result


def write_baselines(folder: Path, task: str, measured: dict[str, Any]) -> None:
    """Writes what `measure_baselines` returned for a task."""
    _write_signed(folder / BASELINES_NAME / f"{task}.json", measured)


def read_baselines(folder: Path, task: str) -> dict[str, Any]:
    """What `write_baselines` wrote; empty where it wasn't measured.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / BASELINES_NAME / f"{task}.json"
    return _read_signed(path) if path.is_file() else {}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _write_signed(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON with a hash of itself."""
    write_json(path, {**content, "hash": _hash(finite(content))})


def _read_signed(path: Path) -> dict[str, Any]:
    """Reads what `_write_signed` wrote; raises a UserError if a letter has changed since."""
    content = _read_json(path)
    if content.pop("hash", None) != _hash(content):
        raise UserError(f"{str(path)!r} is damaged: it isn't as it was written. Delete it, and run `compare` again.")
    return content


def read_table(folder: str | Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """All results of a folder, and why runs of the plan aren't among them, by their names; writes `results.csv`.

    A folder without `runs` is one whose table alone was kept.

    Raises:
        UserError: there are no results, or they are damaged.
    """
    folder, plan = Path(folder), load_plan(folder)
    path = folder / TABLE_NAME
    if path.is_file() and not (folder / RUNS_NAME).is_dir():
        table = _read_csv(path)
        there = set(zip(table["task"], table["scheme"], table["seed"], strict=True))
        absent = [run.name for run in plan.runs() if (run.task.name, run.scheme, run.seed) not in there]
        if len(absent) == len(plan.runs()):
            raise UserError(f"{str(path)!r} holds no run of the plan. Run `hf-posenc compare` again, or restore it.")
        return table, dict.fromkeys(absent, "not run yet")
    rows: list[dict[str, Any]] = []
    for task in plan.tasks:
        rows += [{"task": task.name, **row} for row in read_baselines(folder, task.name).get("rows", ())]
    problems = {}
    for run in plan.runs():
        result = read_run(folder, plan, run)
        if result["status"] != "done":
            problems[run.name] = result.get("error", "not run yet")
            continue
        shared = {"task": run.task.name, "scheme": run.scheme, "seed": run.seed}
        shared |= {name: result[name] for name in _OF_A_RUN}
        rows += [{**shared, **row} for row in result["rows"]]
    if not any("seed" in row for row in rows):
        why = next((f" {name}: {reason}" for name, reason in problems.items() if reason != "not run yet"), "")
        raise UserError(f"No run in {str(folder)!r} is done.{why} Run `hf-posenc compare` first.")
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_WHOLE, "Int64"))
    write_text(path, table.to_csv(index=False))
    return _read_csv(path), problems


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        # A task may be called 1000 or NA, and a commit 12e34: names are words, and only an empty cell is none.
        table = pd.read_csv(path, dtype=_KINDS, keep_default_na=False, na_values=[""])
    except ValueError as error:  # pandas' own errors are of this kind
        raise UserError(f"{str(path)!r} is damaged: {one_line(error)}") from error
    if lacking := [name for name in COLUMNS if name not in table]:
        raise UserError(f"{str(path)!r} is no table of results: the column {lacking[0]!r} is missing.")
    if cut := [*table.index[table["examples"].isna() | (table["seed"].notna() & table["processor"].isna())]]:
        raise UserError(f"{str(path)!r} is damaged: line {cut[0] + 2} isn't whole.")
    return table


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} is damaged: {one_line(error)} Delete it, and run `compare` again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} is damaged: it holds no object. Delete it, and run `compare` again.")
    return value
