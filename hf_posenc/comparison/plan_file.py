"""Reads plans from YAML, and refuses what couldn't run before anything does."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from hf_posenc.errors import UserError, one_line
from hf_posenc.schemes.names import check_scheme_name, known_schemes

from .plan import DEVELOPMENT_SEED, Plan, Task
from .probes import PROBES, SHORTEST

METRICS = ("accuracy", "matthews_correlation")
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
    for name in ("about", "inputs"):  # of a built-in plan, and of a folder's
        values.pop(name, None)
    for name, option in (("tasks", "data"), ("schemes", "schemes")):
        if not values.get(name):
            raise UserError(f"The plan names no {name}. Give {name}: [...] in the file, or --{option}.")
    if isinstance(seeds := values.get("seeds"), int) and not isinstance(seeds, bool):
        if seeds > MOST_SEEDS:
            raise UserError(f"The plan has seeds: {seeds}. Give how many, up to {MOST_SEEDS:,}, or a list.")
        values["seeds"] = tuple(range(seeds))
    made = _typed(values, Plan, "The plan")
    made["tasks"] = tuple(map(_task, made["tasks"]))
    made["groups"] = {str(name): tuple(tasks) for name, tasks in (made.get("groups") or {}).items()}
    if made["schemes"] == ("all",):
        made["schemes"] = tuple(_registered())
    plan = Plan(**made)
    _check_lists(plan)
    _check_numbers(plan)
    for task in plan.tasks:
        _check_task(plan, task)
    if checked:
        _check_schemes(plan)
    return plan


def _check_schemes(plan: Plan) -> None:
    """Registers the plan's scheme files, and refuses schemes that can't be built or started as it says."""
    defined = {name for path in plan.scheme_files for name in _register(path, plan)}
    for name in _parts(plan.schemes):
        if name not in defined | _registered().keys():
            check_scheme_name(name, "The scheme")
    from .run import check_scheme  # imports PyTorch

    for scheme in plan.schemes:
        check_scheme(plan, scheme)


def _register(path: str, plan: Plan) -> list[str]:
    from hf_posenc.schemes.scheme_file import register_scheme_file

    try:
        names = register_scheme_file(path, "+".join(_parts(plan.schemes)))
    except ValueError as error:
        raise UserError(one_line(error)) from error
    if not set(names) & _parts(plan.schemes).keys():
        raise UserError(
            f"The scheme file {path!r} defines {', '.join(names)}, and the schemes are {', '.join(plan.schemes)}. Add "
            "it to them, or leave the file out."
        )
    return list(names)


def _registered() -> dict[str, None]:
    """The names of the built-in schemes, and of those that are registered in this process."""
    loaded = sys.modules.get("hf_posenc.model.scheme_table")  # importing it would import PyTorch
    return dict.fromkeys([*known_schemes(), *(loaded.SCHEMES if loaded else ())])


def _parts(schemes: Iterable[str]) -> dict[str, None]:
    """The schemes, and those that combinations are made of."""
    return dict.fromkeys("+".join(schemes).split("+"))


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
    hints = get_type_hints(made)
    typed = dict(values)
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            raise UserError(
                f"{what} has a field {name!r}, which doesn't exist. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"It takes {', '.join(hints)}."
            )
        kind, may_be_none = hints[name], isinstance(hints[name], UnionType)
        kind = get_args(kind)[0] if may_be_none else kind
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


def _task(entry: Any) -> Task:
    """A task from a word (`probes`, `halves`, a file, the name of a data set) or a dictionary."""
    if isinstance(entry, Task):
        return entry
    values = {"data": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict):
        raise UserError(f"The task {entry!r} is neither a name nor fields such as {{data: cola}}.")
    values = _typed(values, Task, "A task")
    data = values.get("data")
    if data is None:
        raise UserError(f"The task {entry!r} names no data. Give data: with a file, a folder or a Hub name.")
    word = Path(data).name or Path(data).resolve().name
    if Path(data).is_file():
        word = word.partition(".")[0]
    return Task(**{"name": re.sub(r"[^\w.]+", "_", word), **values})


def _check_lists(plan: Plan) -> None:
    """Refuses what stands twice, names that can't name a file, and names of tasks and schemes that aren't there."""
    tasks, schemes = [task.name for task in plan.tasks], ", ".join(plan.schemes)
    lists: dict[str, Sequence[Any]] = {"tasks": tasks, "schemes": plan.schemes, "seeds": plan.seeds}
    lists |= {"search": plan.search, **{f"group {name!r}": group for name, group in plan.groups.items()}}
    lists |= {f"probes of {task.name!r}": task.probes for task in plan.tasks}
    for name, values in lists.items():
        twice = next((value for value in values if list(values).count(value) > 1), None)
        if twice is not None:
            hint = " Give one of them a name: of its own." if name == "tasks" else ""
            raise UserError(f"In the plan's {name} {twice!r} stands twice. Leave one out.{hint}")
    for kind, names, letters in (("task", tasks, r"[\w.]+"), ("scheme", plan.schemes, r"[\w.+-]+")):
        for name in names:
            if not re.fullmatch(letters, name):
                raise UserError(f"The {kind}'s name {name!r} can't name a file. Use letters, digits, _ and dots.")
    named = [("scheme_kwargs", name) for name in plan.scheme_kwargs]
    named += [("baseline", plan.baseline)] if plan.baseline else []
    for field, name in named:
        if name not in plan.schemes:
            raise UserError(f"{field} names {name!r}, which isn't among the schemes {schemes}. Add it, or name one.")
    metrics = {task.name: task.metric for task in plan.tasks}
    for name, group in plan.groups.items():
        if absent := [task for task in group if task not in metrics]:
            raise UserError(f"The group {name!r} names {absent[0]!r}, and the tasks are {', '.join(tasks)}.")
        if len({metrics[task] for task in group}) > 1:
            raise UserError(f"The group {name!r} has tasks with different metrics. Make a group of each metric.")


def _check_numbers(plan: Plan) -> None:
    if not plan.seeds:
        raise UserError("The plan has no seeds. Give one or more; intervals need two.")
    for seed in plan.seeds:
        if not 0 <= seed < 2**32:
            raise UserError(f"The seed {seed!r} is no whole number from 0 to 4294967295.")
    counts = {name: getattr(plan, name) for name in ("train_examples", "test_examples")}
    counts |= {f"train_examples of {task.name!r}": task.train_examples for task in plan.tasks}
    for name, count, least in (("threads", plan.threads, 1), *((name, count, 2) for name, count in counts.items())):
        if count is not None and count < least:
            raise UserError(f"The plan has {name}: {count}. Give {least} or more, or leave it out.")
    if not all(0 < factor < 1000 for factor in plan.search) or len(plan.search) == 1:
        raise UserError(f"search {list(plan.search)} is no choice. Give two positive factors or more: [0.3, 1, 3].")
    if plan.search and DEVELOPMENT_SEED in plan.seeds:
        raise UserError(f"The seed {DEVELOPMENT_SEED} is the one that search chooses on. Report others.")
    least = SHORTEST if any(task.data == "probes" for task in plan.tasks) else 8
    for length in (plan.train_length, *plan.lengths):
        if length < least:
            raise UserError(f"The plan has inputs of {length!r} tokens. Give whole numbers from {least}.")
    if list(plan.lengths) != sorted(set(plan.lengths)):
        raise UserError(f"The plan has test_lengths {list(plan.lengths)}. Make each longer than the one before.")


def _check_task(plan: Plan, task: Task) -> None:
    where = f"The task {task.name!r}"
    if task.metric not in METRICS or (task.is_generated and task.metric != "accuracy"):
        accepted = "accuracy" if task.is_generated else " or ".join(METRICS)
        raise UserError(f"{where} has the metric {task.metric!r}. Choose {accepted}.")
    if task.lengths not in LENGTHS:
        raise UserError(f"{where} has lengths: {task.lengths!r}. Choose one of {', '.join(LENGTHS)}.")
    if task.is_generated and (task.extra_tests or task.lengths != "cut"):
        raise UserError(f"{where} is generated: extra_tests and lengths are for text.")
    for name in task.probes:
        if name not in PROBES:
            raise UserError(f"{where} names the probe {name!r}. Choose from {', '.join(PROBES)}.")
    for name in (*plan.options, *task.options):
        if not (isinstance(name, str) and name):  # YAML reads {learning_rate: 0,001} so
            raise UserError(f"{where}: options hold {name!r}, which is no name. Write {{learning_rate: 0.001}}.")
        if name in _OWN_OPTIONS:
            raise UserError(f"{where}: options can't set {name!r}, which the plan itself decides.")
    for options in (plan.options, task.options):
        if not isinstance(options.get("set", {}), dict):
            raise UserError(f"{where}, options: set is {options['set']!r}. Give fields: {{weight_decay: 0.01}}.")
    rate = plan.options_of(task).get("learning_rate", 0)
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise UserError(f"{where}, options: the learning_rate {rate!r} is no number. Write 0.001, or 1.0e-3 in YAML.")
    plan.data_options(task)
