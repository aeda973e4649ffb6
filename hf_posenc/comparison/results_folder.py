"""The folder of a comparison's results: its plan, its runs and their baselines, checked as they are read."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_posenc.errors import UserError, one_line
from hf_posenc.files import write_json

from .plan import Plan, PlannedRun, compact, extend
from .plan_file import PLAN_NAME, check_folder, read_plan
from .records import Damaged, check_counts, name_of, read_baselines, read_json, read_run
from .references import REFERENCES_NAME
from .run import RUN_NAME

RUNS_NAME = "runs"
SEARCH_NAME = "search"


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Where a run's results lie, or a trial's."""
    return folder / (RUNS_NAME if run.factor is None else SEARCH_NAME) / run.name


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
    else:
        check_folder(folder)
    write_json(path, plan.to_dict())


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


def read_result(folder: Path, run: PlannedRun) -> dict[str, Any]:
    """A run's JSON; empty where there is no run."""
    path = run_folder(folder, run) / RUN_NAME
    return read_run(path) if path.is_file() else {}


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
    runs = []
    seen: dict[Any, tuple[Any, Path]] = {}
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted((Path(folder) / RUNS_NAME).glob(f"*/{RUN_NAME}")):
        with _collect_damage(path, damaged):
            result = read_run(path, searched=bool(plan.search))
            _check_plan(plan, result, path, settings)
            if result["status"] == "done":
                _check_tests(plan, result, path)
                _check_consistent(plan, result, path, seen)
            runs.append(result)
    return runs


def _check_plan(
    plan: Plan, result: dict[str, Any], path: Path, settings: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """Refuses a run of another plan, and a copied run, which would count twice; `settings` keeps what the plan says."""
    task = next((task for task in plan.tasks if task.name == result["task"]), None)
    key = (result["scheme"], result["task"])
    if key not in settings:  # the same for every seed
        settings[key] = json.loads(json.dumps(plan.settings(result["scheme"], task)))
    expected = settings[key]
    recorded = compact(result["settings"])
    if isinstance(recorded.get("task"), dict):
        recorded["task"] = compact(recorded["task"])
    different = [name for name in {**recorded, **expected} if recorded.get(name) != expected.get(name)]
    named = name_of(result)
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


def _check_consistent(plan: Plan, result: dict[str, Any], path: Path, seen: dict[Any, tuple[Any, Path]]) -> None:
    """Refuses a run whose test examples, learning rate or starting weights aren't those of the runs before it.

    Args:
        plan, result, path: the run and its file.
        seen: what the runs before it had, and the file of the first; this run is added. Of two that differ, neither is
            known to be wrong.

    Raises:
        UserError: naming both.
    """

    def check(value: Any, key: tuple[Any, ...], what: str, why: str) -> None:
        first, other = seen.setdefault((what, *key), (value, path))
        if first != value:
            raise UserError(
                f"{str(path.parent)!r} {what} than {str(other.parent)!r} ({value} and {first}): {why}. Delete the runs "
                "of one of them."
            )

    task, scheme, changed = result["task"], result["scheme"], "has changed in between"
    for test in result["tests"]:
        examples = f"{test['examples']} of {test.get('data')}"
        what = f"was tested on other examples of {test['part']!r}"
        check(examples, (task, test["length"]), what, f"the data {changed}")
    anew = "the rate was searched for anew"
    check(result["learning_rate"], (task, scheme), "learned at another rate", anew)
    if start := result.get("source_sha256"):
        key = (scheme,) if "{scheme}" in str(plan.pretrained) else ()
        check(start[:12], key, "started from other weights", f"{str(plan.pretrained)!r} {changed}")


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
    references: dict[str, dict[str, dict[str, Any]]] = {}
    tested = {(run["task"], test["part"], test["length"]): test.get("data") for run in done for test in run["tests"]}
    for path in sorted((Path(folder) / REFERENCES_NAME).glob("*.json")):
        with _collect_damage(path, damaged):
            for reference in read_baselines(path):
                for test in reference["tests"]:
                    data, key = test.get("data"), (reference["task"], test["part"], test["length"])
                    if tested.get(key, data) != data:
                        raise UserError(
                            f"{str(path)!r} was measured on other examples of {test['part']!r} than the runs. Delete "
                            "it, and run `compare` again."
                        )
                references.setdefault(reference["task"], {})[reference["scheme"]] = reference
    return references


@contextlib.contextmanager
def _collect_damage(path: Path, damaged: dict[str, str] | None) -> Iterator[None]:
    """Notes a damaged file under its run's folder or its own name, and goes on without it; see `load_runs`."""
    try:
        yield
    except Damaged as error:
        if damaged is None:
            raise
        damaged[path.parent.name if path.name == RUN_NAME else path.name] = error.reason
