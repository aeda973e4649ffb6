"""Reads plans from YAML, and refuses what couldn't run before anything does."""

import difflib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from huggingface_hub.dataclasses import type_validator

from hf_posenc.errors import UserError, one_line
from hf_posenc.options import COUNT, POSITIVE, SEED, check_range, whole_number
from hf_posenc.schemes.names import known_schemes

from .plan import DEVELOPMENT_SEED, Plan, Task
from .probes import PROBES, SHORTEST

_SEEDS = whole_number(1, 10_000)
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
    if isinstance(seeds := values.get("seeds"), int):
        check_range(f"The plan's number of seeds {seeds}", seeds, _SEEDS)
        values["seeds"] = tuple(range(seeds))
    if values["schemes"] in ("all", ["all"]):
        values["schemes"] = known_schemes()
    if isinstance(values["tasks"], list | tuple):
        values["tasks"] = tuple(map(_task, values["tasks"]))
    if isinstance(groups := values.get("groups"), dict):
        values["groups"] = {name: _as_tuple(tasks) for name, tasks in groups.items()}
    plan = Plan(**_checked(Plan, values, "The plan"))
    _check_lists(plan)
    _check_numbers(plan)
    for task in plan.tasks:
        _check_task(plan, task)
    if checked:
        _check_schemes(plan)
    return plan


def _check_schemes(plan: Plan) -> None:
    """Registers the plan's scheme files, and refuses schemes that can't be built or started as it says."""
    from hf_posenc.schemes.scheme_file import register_scheme_file

    from .run import check_scheme  # imports PyTorch

    names = dict.fromkeys("+".join(plan.schemes).split("+"))
    for path in plan.scheme_files:
        try:
            register_scheme_file(path, "+".join(names))
        except ValueError as error:
            raise UserError(one_line(error)) from error
    for scheme in plan.schemes:
        check_scheme(plan, scheme)


def known_plans() -> dict[str, Path]:
    """The built-in plans, by name."""
    folder = Path(str(resources.files("hf_posenc.comparison") / "plans"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


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


def _checked(kind: type, values: dict[str, Any], what: str) -> dict[str, Any]:
    """The fields, lists as tuples. Refuses unknown ones, and values of another type than their field has."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            raise UserError(
                f"{what} has a field {name!r}, which doesn't exist. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"It takes {', '.join(hints)}."
            )
        try:
            type_validator(name, _as_tuple(value), hints[name])
        except TypeError as error:
            raise UserError(f"{what} has {name}: {value!r}. {one_line(error)}.") from error
    return {name: _as_tuple(value) for name, value in values.items()}


def _as_tuple(value: Any) -> Any:
    """A list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _task(entry: Any) -> Task:
    """A task from a word (`probes`, `halves`, a file, the name of a data set) or a dictionary."""
    if isinstance(entry, Task):
        return entry
    values = {"data": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict) or not isinstance(data := values.get("data"), str):
        raise UserError(f"The task {entry!r} names no data. Give a name, or fields such as {{data: cola}}.")
    word = Path(data).name or Path(data).resolve().name
    if Path(data).is_file():
        word = word.partition(".")[0]
    return Task(**_checked(Task, {"name": re.sub(r"[^\w.]+", "_", word), **values}, "A task"))


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
    """Refuses numbers that can't be."""
    if not plan.seeds:
        raise UserError("The plan has no seeds. Give one or more; intervals need two.")
    for seed in plan.seeds:
        check_range(f"The plan's seed {seed}", seed, SEED)
    check_range(f"The plan's threads {plan.threads}", plan.threads, COUNT)
    counts = {name: getattr(plan, name) for name in ("train_examples", "test_examples")}
    counts |= {f"train_examples of {task.name!r}": task.train_examples for task in plan.tasks}
    for name, count in counts.items():
        check_range(f"The plan's {name} {count}", count, whole_number(2))
    for factor in plan.search:
        check_range(f"The plan's search {factor}", factor, POSITIVE)
    if plan.search and DEVELOPMENT_SEED in plan.seeds:
        raise UserError(f"The seed {DEVELOPMENT_SEED} is the one that search chooses on. Report others.")
    least = SHORTEST if any(task.data == "probes" for task in plan.tasks) else 8
    for length in (plan.train_length, *plan.lengths):
        check_range(f"The plan's inputs of {length} tokens", length, whole_number(least))
    if list(plan.lengths) != sorted(set(plan.lengths)):
        raise UserError(f"The plan has test_lengths {list(plan.lengths)}. Make each longer than the one before.")


def _check_task(plan: Plan, task: Task) -> None:
    where = f"The task {task.name!r}"
    if task.is_generated and (task.extra_tests or task.lengths != "cut" or task.metric != "accuracy"):
        raise UserError(f"{where} is generated: its metric is accuracy, and extra_tests and lengths are for text.")
    for name in task.probes:
        if name not in PROBES:
            raise UserError(f"{where} names the probe {name!r}. Choose from {', '.join(PROBES)}.")
    for name in (*plan.options, *task.options):
        if name in _OWN_OPTIONS:
            raise UserError(f"{where}: options can't set {name!r}, which the plan itself decides.")
    for options in (plan.options, task.options):
        if not isinstance(options.get("set", {}), dict):
            raise UserError(f"{where}, options: set is {options['set']!r}. Give fields: {{weight_decay: 0.01}}.")
    if isinstance(rate := {**plan.options, **task.options}.get("learning_rate"), str):
        raise UserError(f"{where}, options: the learning_rate {rate!r} is a word. Write 0.001, or 1.0e-3 in YAML.")
    plan.data_options(task)
