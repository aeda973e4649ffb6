"""Reads plans from YAML, and refuses what couldn't run before anything does."""

import difflib
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from hf_posenc.errors import UserError, one_line
from hf_posenc.files import sha256
from hf_posenc.options import Options
from hf_posenc.schemes.names import check_scheme_name, known_schemes

from .plan import DEVELOPMENT_SEED, GENERATED_KINDS, Plan, SchemeFile, Task, resolve_data
from .probes import PROBES, SHORTEST

PLAN_NAME = "plan.json"
METRICS = {
    "probes": ("accuracy",),
    "halves": ("accuracy",),
    "text": ("accuracy", "matthews_correlation"),
}
"""The kinds of tasks, and what each may be measured by."""
LENGTHS = ("cut", "buckets")
MOST_SEEDS = 10_000

# The plan sets these itself, so that runs stay comparable.
_OWN_OPTIONS = (
    *("output", "overwrite", "resume", "seed", "data", "validation", "test", "max_rows", "scheme", "scheme_kwargs"),
    *("scheme_file", "max_length", "size", "pretrained"),
)


def read_plan(source: str | Path | dict[str, Any], *, checked: bool = True, **overrides: Any) -> Plan:
    """Reads and checks a plan: a YAML file, the name of a built-in plan (`quick`, `probes`, ...) or a dictionary.

    Args:
        source: the file, the name or the values.
        checked: whether the plan must be able to run here. False for one that has run.
        **overrides: fields of `Plan` that replace the file's; None leaves them.

    Raises:
        UserError: it can't be read, a field doesn't exist, or a value can't be.
    """
    values = source if isinstance(source, dict) else _read_yaml(source)
    values = {**values, **{name: value for name, value in overrides.items() if value is not None}}
    values.pop("about", None)
    for name, option in (("tasks", "data"), ("schemes", "schemes")):
        if not values.get(name):
            raise UserError(f"The plan names no {name}. Give {name}: [...] in the file, or --{option}.")
    made = _typed(values, Plan, "The plan")
    made["tasks"] = tuple(_task(entry, checked) for entry in made["tasks"])
    files = made.get("scheme_files") or ()
    made["scheme_files"] = tuple(_scheme_file(entry, made["schemes"], checked) for entry in files)
    if made["schemes"] == ("all",):
        made["schemes"] = tuple(_registered())
    if isinstance(seeds := values.get("seeds"), int):
        if seeds > MOST_SEEDS:
            raise UserError(f"The plan has seeds: {seeds}. Give how many, up to {MOST_SEEDS:,}, or a list.")
        made["seeds"] = tuple(range(seeds))
    made["chosen_baseline"] = bool(values.get("baseline"))
    made["baseline"] = values.get("baseline") or made["schemes"][0]
    plan = Plan(**made)
    _check_lists(plan)
    for task in plan.tasks:
        _check_task(plan, task)
    if checked:
        _check_before_loading(plan)
        from .checkpoints import check_scheme  # imports PyTorch

        for scheme in plan.schemes:
            check_scheme(plan, scheme)
    return plan


def check_folder(folder: Path) -> None:
    """Refuses a folder for results that can't be written to, or holds something else than results.

    Raises:
        UserError: naming it.
    """
    if folder.is_dir() and not (folder / PLAN_NAME).exists() and any(folder.iterdir()):
        names = ", ".join(sorted(item.name for item in folder.iterdir())[:4])
        raise UserError(f"{str(folder)!r} holds no results of a comparison, but {names}. Name a new folder.")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise UserError(f"{str(folder)!r} can't be written to: {error.strerror}. Name another folder.") from error


def _check_before_loading(plan: Plan) -> None:
    """Refuses options, data and schemes that can be known to be wrong without PyTorch."""
    for task in plan.tasks:
        data_options(plan, task)
    for name in _parts(plan.schemes) if plan.pretrained is None else ():
        if name not in plan.code().keys() | _registered():
            check_scheme_name(name, "The scheme")


def _registered() -> dict[str, None]:
    """The names of the built-in schemes, and of those that are registered in this process."""
    loaded = sys.modules.get("hf_posenc.model.scheme_table")  # importing it would import PyTorch
    return dict.fromkeys([*known_schemes(), *(loaded.SCHEMES if loaded else ())])


def known_plans() -> dict[str, Path]:
    """The built-in plans, by name."""
    folder = Path(str(resources.files("hf_posenc.comparison") / "plans"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def about(name: str) -> str:
    """The description of a built-in plan."""
    return str(_read_yaml(name).get("about", ""))


def _read_yaml(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if not path.is_file() and str(source) in known_plans():
        path = known_plans()[str(source)]
    if not path.is_file():
        raise UserError(
            f"There is no plan {str(source)!r}. Give a YAML file, or the name of a built-in one: "
            f"{', '.join(known_plans())}."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: 2020-99-99 is no date
        raise UserError(f"The plan {str(source)!r} is no YAML: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"The plan {str(source)!r} holds {values!r}. Write fields: tasks: [...], schemes: [...].")
    return values


_WORDS = {dict: "fields", str: "a word", int: "a whole number", float: "a number"}


def _typed(values: dict[str, Any], made: type, what: str) -> dict[str, Any]:
    """The fields, lists as tuples. Refuses unknown ones, and values of a type that their field can't have.

    A list of one may stand without brackets; `field:` alone is None in YAML.
    """
    hints = {name: hint for name, hint in get_type_hints(made).items() if name != "chosen_baseline"}
    typed = dict(values)
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            raise UserError(
                f"{what} has a field {name!r}, which doesn't exist. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"It takes {', '.join(hints)}."
            )
        kind = hints[name]
        may_be_none = name in ("baseline", "scheme_files")
        if isinstance(kind, UnionType):
            kind, may_be_none = get_args(kind)[0], True
        if value is None and may_be_none:
            continue
        is_list = get_origin(kind) is tuple
        kind = get_args(kind)[0] if is_list else get_origin(kind) or kind
        items = list(value) if is_list and isinstance(value, list | tuple) else [value]
        accepted = (int, float) if kind is float else kind
        if kind in _WORDS and not all(isinstance(item, accepted) and not isinstance(item, bool) for item in items):
            several = " or a list of such" if is_list else ""
            raise UserError(f"{what} has {name}: {value!r}. Give {_WORDS[kind]}{several}, or leave it out.")
        typed[name] = tuple(items) if is_list else value
    return typed


def _task(entry: Any, checked: bool) -> Task:
    """A task from a word (`probes`, `halves`, a file, the name of a data set) or a dictionary."""
    if isinstance(entry, Task):
        return entry
    if isinstance(entry, str):
        entry = {"kind": entry} if entry in GENERATED_KINDS else {"data": entry}
    if not isinstance(entry, dict):
        raise UserError(f"The task {entry!r} is neither a name nor fields such as {{data: cola}}.")
    values = dict(entry)
    values.setdefault("kind", "text")
    values = _typed(values, Task, "A task")
    kind, data = values["kind"], values.get("data")
    if kind not in METRICS:
        raise UserError(f"The task's kind {kind!r} is unknown. Choose one of {', '.join(METRICS)}.")
    if kind in GENERATED_KINDS:
        return Task(**{"name": kind, **values})
    if data is None:
        raise UserError(f"The task {entry!r} names no data. Give data: with a folder or a Hub name.")
    word = Path(data).name or Path(data).resolve().name
    if is_file(data):
        word = word.partition(".")[0]
        if checked:
            values["sha256"] = _digest(data, values.get("sha256"))
    return Task(**{"name": re.sub(r"[^\w.]+", "_", word), **values})


def is_file(data: str) -> bool:
    """Whether a task's data is a file, there or not, and no folder or name."""
    from hf_posenc.data.reading import KINDS, kind_of

    return not Path(data).is_dir() and (Path(data).is_file() or kind_of(Path(data)) in KINDS)


def _digest(path: str, recorded: str | None) -> str:
    """SHA-256 of a file, by which the plan knows it: its path may be spelled in many ways."""
    if not Path(path).is_file():
        raise UserError(f"{path!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    content = sha256(path)
    if recorded not in (None, content):
        raise UserError(f"The file {path!r} isn't the one that the plan names: its content has changed.")
    return content


def _scheme_file(entry: Any, schemes: tuple[str, ...], checked: bool) -> SchemeFile:
    """Registers the schemes of a file. Unless `checked`, takes the entry of `plan.json` without reading the file."""
    if not isinstance(entry, dict):
        entry = {"path": str(entry) if isinstance(entry, Path) else entry}
    recorded = _typed(entry, SchemeFile, "A scheme file")
    if "path" not in recorded:
        raise UserError(f"The scheme file {entry!r} has no path. Give scheme_files: [my_scheme.py].")
    path = recorded["path"]
    if not checked:
        return SchemeFile(path, str(recorded.get("sha256")), recorded.get("schemes", ()))
    from hf_posenc.schemes.scheme_file import register_scheme_file

    try:
        names = register_scheme_file(path, "+".join(_parts(schemes)))
    except ValueError as error:
        raise UserError(one_line(error)) from error
    return SchemeFile(path, _digest(path, recorded.get("sha256")), tuple(names))


def _parts(schemes: Iterable[str]) -> dict[str, None]:
    """The schemes, and those that combinations are made of."""
    return dict.fromkeys("+".join(schemes).split("+"))


def _check_lists(plan: Plan) -> None:
    tasks, schemes = [task.name for task in plan.tasks], ", ".join(plan.schemes)
    lists: dict[str, Sequence[Any]] = {"tasks": tasks, "schemes": plan.schemes, "seeds": plan.seeds}
    lists |= {"search": plan.search, **{f"probes of {task.name!r}": task.probes for task in plan.tasks}}
    for name, values in lists.items():
        twice = next((value for value in values if list(values).count(value) > 1), None)
        if twice is not None:
            hint = " Give one of them a name: of its own." if name == "tasks" else ""
            raise UserError(f"In the plan's {name} {twice!r} stands twice. Leave one out.{hint}")
    for kind, names, letters in (("task", tasks, r"[\w.]+"), ("scheme", plan.schemes, r"[\w.+-]+")):
        for name in names:
            if not re.fullmatch(letters, name):
                raise UserError(f"The {kind}'s name {name!r} can't name a folder. Use letters, digits, _ and dots.")
    for seed in plan.seeds:
        if not 0 <= seed < 2**32:
            raise UserError(f"The seed {seed!r} is no whole number from 0 to 4294967295.")
    if plan.threads is not None and plan.threads < 1:
        raise UserError(f"The plan has threads: {plan.threads}. Give 1 or more, or leave it out.")
    if not plan.seeds:
        raise UserError("The plan has no seeds. Give one or more; intervals need two.")
    if not all(0 < factor < 1000 for factor in plan.search) or len(plan.search) == 1:
        raise UserError(f"search {list(plan.search)} is no choice. Give two positive factors or more: [0.3, 1, 3].")
    if plan.search and DEVELOPMENT_SEED in plan.seeds:
        raise UserError(f"The seed {DEVELOPMENT_SEED} is the one that search chooses on. Report others.")
    for field, name in (("baseline", plan.baseline), *(("scheme_arguments", name) for name in plan.scheme_arguments)):
        if name not in plan.schemes:
            raise UserError(f"{field} names {name!r}, which isn't among the schemes {schemes}. Add it, or name one.")
    for file in plan.scheme_files:
        if not set(file.schemes) & _parts(plan.schemes).keys():
            raise UserError(
                f"The scheme file {file.path!r} defines {', '.join(file.schemes)}, and the schemes are {schemes}. Add "
                "it to them, or leave the file out."
            )


def _check_task(plan: Plan, task: Task) -> None:
    where = f"The task {task.name!r}"
    if task.metric not in METRICS[task.kind]:
        raise UserError(f"{where} has the metric {task.metric!r}. Choose {' or '.join(METRICS[task.kind])}.")
    if task.lengths not in LENGTHS:
        raise UserError(f"{where} has lengths: {task.lengths!r}. Choose one of {', '.join(LENGTHS)}.")
    if task.is_generated and (task.extra_tests or task.lengths != "cut"):
        raise UserError(f"{where} is generated: extra_tests and lengths are for text.")
    for name in task.probes:
        if name not in PROBES:
            raise UserError(f"{where} names the probe {name!r}. Choose from {', '.join(PROBES)}.")
    tests = plan.test_lengths_of(task)
    least = SHORTEST if task.kind == "probes" else 8
    for length in (plan.train_length_of(task), *tests):
        if length < least:
            raise UserError(f"{where} can't have inputs of {length!r} tokens. Give whole numbers from {least}.")
    if not tests or list(tests) != sorted(set(tests)):
        raise UserError(f"{where} has test_lengths {list(tests)}. Give one or more, each longer than the one before.")
    for name in ("train_examples", "test_examples"):
        for count in (getattr(task, name), getattr(plan, name)):
            if count is not None and count < 2:
                raise UserError(f"{where} has {name} {count}. Give a whole number from 2, or leave it out for all.")
    for name in (*plan.options, *task.options):
        if not isinstance(name, str):  # YAML reads {learning_rate: 0,001} so
            raise UserError(f"{where}: options hold {name!r}, which is no name. Write {{learning_rate: 0.001}}.")
        if name in _OWN_OPTIONS:
            raise UserError(f"{where}: options can't set {name!r}, which the plan itself decides.")
    rate = plan.options_of(task).get("learning_rate", 0)
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise UserError(f"{where}, options: the learning_rate {rate!r} is no number. Write 0.001, or 1.0e-3 in YAML.")


def data_options(plan: Plan, task: Task) -> Options:
    """The options of a task's data.

    Raises:
        UserError: an option of the plan doesn't exist, or a value isn't accepted.
    """
    try:
        return Options.of(**plan.options_of(task), data=None if task.data is None else resolve_data(task.data))
    except UserError as error:
        raise UserError(f"The task {task.name!r}, options: {error}") from error
