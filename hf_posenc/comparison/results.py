"""The folder of a comparison: its plan, a JSON file for each run, and all results as one table.

`results.csv` has a row for each task, part, length, scheme and seed; baselines are schemes without a seed. A row
without a score: the inputs are longer than the scheme's table.
"""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..checkpoints.trainer_checkpoints import read_object
from ..errors import UserError, check_writable, one_line
from ..files import WRITING, expanded, finite, write_json, write_text
from .plan import Plan, PlannedRun, Task
from .plan_file import read_plan
from .statistics import check_power

PLAN_NAME, TABLE_NAME, WRITTEN_NAME = "plan.json", "results.csv", "report.md"
TRIED_NAME = "trials.csv"
RUNS_NAME, TRIALS_NAME, BASELINES_NAME, LOCKS_NAME = "runs", "trials", "baselines", ".locks"
FAILURES_NAME = "failures"
OLD = "**This report is old: there were runs after it. `hf-posenc report` writes it anew.**\n\n"
_WHOLE = ("seed", "examples", "steps", "parameters", "kept_step", "rising")
_KINDS = dict.fromkeys(_WHOLE, "Int64") | {"score": "float64"}
_KINDS |= dict.fromkeys(("task", "part", "scheme", "metric", "commit", "processor", "diverged"), "str")
COLUMNS = (
    *("task", "part", "length", "scheme", "seed", "metric", "score", "examples"),
    *("steps", "seconds", "parameters", "rate", "commit", "processor"),
)
_LATER = ("first_loss", "last_loss", "diverged", "kept_step", "rising")
"""Columns that tables before 2026-12 don't have: the training loss, why a run counts with the majority's score, the
step of its weights, and whether it was still rising when it ended."""
_OF_TRIALS = ("task", "part", "scheme", "rate", "C", "metric", "score", "examples", "diverged", "commit")
_OF_CONTRASTS = ("reference", "low", "high", "p", "verdict")
"""Columns of the planned contrasts, which stand below the scores: a scheme minus its reference in a group of tasks."""


def joined_plan(plan: Plan, folder: Path) -> Plan:
    """The plan with the tasks, schemes and seeds that a results folder has already.

    Raises:
        UserError: the folder holds another plan's results, an input has changed, or the tests could find nothing.
    """
    plan = plan.recorded()
    if (folder / PLAN_NAME).exists():
        plan = load_plan(folder).extended(plan, str(folder))
    check_power(plan)
    return plan


def record_plan(plan: Plan, folder: Path) -> None:
    """Writes the joined plan into a results folder; see `joined_plan`."""
    write_json(folder / PLAN_NAME, joined_plan(plan, folder).to_dict())


def check_folder(folder: Path) -> None:
    """Refuses a folder for results that holds something else, or a table without its runs.

    Raises:
        UserError: naming it.
    """
    check_writable(repr(str(folder)), folder)
    names = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in names if name != LOCKS_NAME and not name.endswith(WRITING)]  # which a kill leaves
    if others and not (folder / PLAN_NAME).exists():
        held = ", ".join(others[:4])
        raise UserError(f"{str(folder)!r} holds no results of a comparison, but {held}. Name a new folder.")
    if (folder / TABLE_NAME).is_file() and not (folder / RUNS_NAME).is_dir():
        raise UserError(f"{str(folder)!r} holds a table whose runs aren't there, so none can be added. Name a new one.")


def load_plan(folder: str | Path) -> Plan:
    """The plan of a results folder.

    Raises:
        UserError: there is none.
    """
    path = Path(expanded(folder)) / PLAN_NAME
    if not path.is_file():
        raise UserError(f"{str(folder)!r} holds no results: {PLAN_NAME} is missing. Give a folder of `compare`.")
    try:
        return read_plan(path, checked=False)
    except UserError as error:
        raise UserError(
            f"{str(path)!r} is damaged: {error} Restore it, or name another folder than {str(folder)!r}."
        ) from error


def result_path(folder: Path, of: Task | PlannedRun) -> Path:
    """The file of a run's results, of a trial's, or of a task's baselines."""
    kind = BASELINES_NAME if isinstance(of, Task) else RUNS_NAME if of.factor is None else TRIALS_NAME
    return folder / kind / f"{of.name}.json"


def write_result(folder: Path, plan: Plan, of: Task | PlannedRun, result: dict[str, Any]) -> None:
    """Writes the JSON of a run or of a task's baselines, whole or not at all, with a hash of itself and the plan."""
    write_json(result_path(folder, of), {**result, "hash": _hash(plan, of, finite(result))})
    forget_failure(folder, of)


def write_failure(folder: Path, run: PlannedRun, reason: str) -> None:
    """Keeps why a run failed, until it is made; of an absolute path the last name."""
    reason = re.sub(r"(?<![\w/])/(?:[^\s'\"/]+/)+", "", reason)
    with contextlib.suppress(OSError):  # the disk may be full
        write_json(folder / FAILURES_NAME / f"{run.name}.json", {"reason": reason})


def forget_failure(folder: Path, of: Task | PlannedRun) -> None:
    """Takes out why a run failed: it is tried again, or made."""
    (folder / FAILURES_NAME / f"{of.name}.json").unlink(missing_ok=True)


def has_failed(folder: Path, run: PlannedRun) -> bool:
    """True where a run's last try failed."""
    return (folder / FAILURES_NAME / f"{run.name}.json").is_file()


def read_failures(folder: Path, plan: Plan) -> dict[str, str]:
    """Why runs failed that haven't been made since, by their names in the plan's order."""
    files = {run.name: folder / FAILURES_NAME / f"{run.name}.json" for run in plan.work()}
    reasons = {name: read_object(file).get("reason") for name, file in files.items() if file.is_file()}
    return {name: str(reason or f"{files[name].name} can't be read") for name, reason in reasons.items()}


def mark_report(folder: Path) -> None:
    """Writes on the folder's report that it is old."""
    path = folder / WRITTEN_NAME
    if path.is_file() and not (text := path.read_text(encoding="utf-8")).startswith(OLD):
        write_text(path, OLD + text)


def read_result(folder: Path, plan: Plan, of: Task | PlannedRun) -> dict[str, Any]:
    """Reads what `write_result` wrote; empty where nothing is.

    Raises:
        UserError: a letter of it has changed since, or it is of another plan.
    """
    path = result_path(folder, of)
    if not path.is_file():
        return {}
    try:
        result = dict(json.loads(path.read_text(encoding="utf-8")))
        is_whole = result.pop("hash") == _hash(plan, of, result)
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"{str(path)!r} is damaged, or of another plan than {PLAN_NAME} says: it isn't as it was written. Take it "
            "out of the folder, and run `compare` again."
        )
    return result


def _hash(plan: Plan, of: Task | PlannedRun, result: dict[str, Any]) -> str:
    settings = plan.settings(of if isinstance(of, Task) else of.task)
    content = [settings, None if isinstance(of, Task) else plan.scheme_kwargs.get(of.scheme), result]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_table(folder: str | Path) -> tuple[pd.DataFrame, list[str]]:
    """All results of a folder, and the names of the runs that are missing.

    Raises:
        UserError: there are no results, or they are damaged.
    """
    folder, plan = Path(expanded(folder)), load_plan(folder)
    table = _read_csv(folder / TABLE_NAME, _table_text(folder, plan))
    table = table[table["seed"].isna() | table["scheme"].isin(plan.schemes)].reset_index(drop=True)
    there = set(zip(table["task"], table["scheme"], table["seed"], strict=True))
    return table, [run.name for run in plan.runs() if (run.task.name, run.scheme, run.seed) not in there]


def unnamed_schemes(folder: Path, plan: Plan) -> list[str]:
    """The schemes of which a folder has runs, but which its plan doesn't name."""
    if (folder / RUNS_NAME).is_dir():
        stems = [path.stem for path in (folder / RUNS_NAME).glob("*.json")]
        names = {match[1] for stem in stems if (match := re.fullmatch(r"[\w.]+?-(.+)-seed\d+", stem))}
    elif (path := folder / TABLE_NAME).is_file():
        names = set(_read_csv(path, path.read_text(encoding="utf-8")).dropna(subset="seed")["scheme"])
    else:
        names = set()
    return sorted(names.difference(plan.schemes))


def no_table() -> pd.DataFrame:
    """The table before any run."""
    return _read_csv(Path(TABLE_NAME), ",".join(COLUMNS))


def write_tables(folder: Path, into: Path, findings: Sequence[dict[str, Any]]) -> None:
    """Writes `results.csv`, with all results of a folder and these contrasts, and `trials.csv` into one."""
    plan = load_plan(folder)
    scores = _read_csv(folder / TABLE_NAME, _table_text(folder, plan))
    contrasts = pd.DataFrame(findings).rename(columns={"tasks": "task", "difference": "score"})
    if findings:  # whoever takes means by scheme mustn't meet differences there
        contrasts["scheme"] += " minus " + contrasts["reference"]
    table = pd.concat([scores, contrasts.assign(metric="difference")]) if findings else scores
    columns = [name for name in (*COLUMNS, *_LATER, *_OF_CONTRASTS) if name in table]
    write_text(into / TABLE_NAME, table[columns].to_csv(index=False))
    if not (tried := read_trials(folder)).empty:
        write_text(into / TRIED_NAME, tried.to_csv(index=False))


def read_trials(folder: Path) -> pd.DataFrame:
    """The scores by which rates were chosen, and `C` of linear models; empty where none were tried, or aren't there."""
    plan = load_plan(folder)
    path = folder / TRIED_NAME
    if path.is_file() and not (folder / TRIALS_NAME).is_dir():  # it alone was kept
        names = dict.fromkeys(("task", "part", "scheme", "metric", "commit", "diverged"), "str")
        return pd.read_csv(path, dtype=names, keep_default_na=False, na_values=[""])
    rows = [
        row
        for task in plan.tasks
        for scheme in plan.schemes
        for trial in plan.trials(task, scheme)
        for row in read_result(folder, plan, trial).get("rows", ())
    ]
    rows += [row for task in plan.tasks for row in read_result(folder, plan, task).get("tried", ())]
    return pd.DataFrame(rows, columns=_OF_TRIALS).astype({"examples": "Int64"})


def _table_text(folder: Path, plan: Plan) -> str:
    """The table as csv; of a folder without `runs` the one that alone was kept."""
    path = folder / TABLE_NAME
    if path.is_file() and not (folder / RUNS_NAME).is_dir():
        return path.read_text(encoding="utf-8")
    return _gather(folder, plan)


def _gather(folder: Path, plan: Plan) -> str:
    """The table of all baselines and runs, as csv."""
    measured: list[Task | PlannedRun] = [*plan.tasks, *plan.runs()]
    if lost := [task.name for task in plan.tasks if "rows" not in read_result(folder, plan, task)]:
        raise UserError(f"The baselines of {lost[0]!r} are missing in {str(folder)!r}. Run `hf-posenc compare` again.")
    rows = [row for of in measured for row in read_result(folder, plan, of).get("rows", ())]
    return pd.DataFrame(rows, columns=[*COLUMNS, *_LATER]).astype(dict.fromkeys(_WHOLE, "Int64")).to_csv(index=False)


def _read_csv(path: Path, text: str) -> pd.DataFrame:
    """The table in a text, which is the file's."""
    try:
        # A task may be called 1000 or NA, and a commit 12e34: names are words, and only an empty cell is none.
        table = pd.read_csv(io.StringIO(text), dtype=_KINDS, keep_default_na=False, na_values=[""])
    except ValueError as error:  # pandas' own errors are of this kind
        raise UserError(f"{str(path)!r} is damaged: {one_line(error)}") from error
    if "reference" in table:
        table = table[table["reference"].isna()]
    if lacking := [name for name in COLUMNS if name not in table]:
        raise UserError(f"{str(path)!r} is no table of results: the column {lacking[0]!r} is missing.")
    if cut := [*table.index[table["examples"].isna() | (table["seed"].notna() & table["processor"].isna())]]:
        raise UserError(f"{str(path)!r} is damaged: line {cut[0] + 2} isn't whole.")
    table = table.reindex(columns=[*COLUMNS, *_LATER])
    # A run that diverged has the majority's scores, which go on where the scheme's table of positions ends.
    places = [table[name] for name in ("task", "part", "length", "scheme")]
    is_past = table["score"].isna().groupby(places).transform("any")
    return table.assign(score=table["score"].mask(is_past & table["diverged"].notna()))
