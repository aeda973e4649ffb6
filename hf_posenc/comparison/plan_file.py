"""Reads plans from YAML, and refuses what couldn't run before anything does."""

import json
import re
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from huggingface_hub.dataclasses import type_validator

from ..errors import UserError, did_you_mean, one_line, spell
from ..files import expanded
from ..options import FROM_0_TO_1, check_range, whole_number
from ..schemes.names import known_schemes
from .plan import DEVELOPMENT_SEED, Plan, Task, UntilFlat, merged_options
from .probes import PROBES, SHORTEST

PLANNED = {name: name for name in ("output", "overwrite", "resume", "data", "validation", "test")}
PLANNED |= {name: name for name in ("scheme_kwargs", "scheme_file", "size", "pretrained")}
PLANNED |= {"seed": "seeds", "scheme": "schemes", "max_length": "train_length", "max_rows": "train_examples"}
"""Options of `train` that the plan itself sets, so that runs stay comparable, and what they are called there."""


def read_plan(source: str | Path | dict[str, Any], *, checked: bool = True, **overrides: Any) -> Plan:
    """Reads and checks a plan: a YAML file, the name of a built-in plan (`quick`, `probes`, ...) or a dictionary.

    Args:
        source: the file, the name or the values.
        checked: whether the plan must be able to run here. False for one that has run.
        **overrides: fields of `Plan` that replace the file's, of `options` key by key; None leaves them.

    Raises:
        UserError: it can't be read, a field doesn't exist, or a value can't be.
    """
    values = source if isinstance(source, dict) else _read_file(source)
    pinned = values.get("options")
    values = {**values, **{name: value for name, value in overrides.items() if value is not None}}
    if isinstance(pinned, dict) and overrides.get("options") is not None:
        values["options"] = merged_options(pinned, overrides["options"])
    values.pop("about", None)  # of a built-in plan
    if "pretrained" in values:
        values["pretrained"] = expanded(values["pretrained"])
    if isinstance(files := values.get("scheme_files"), list | tuple):
        values["scheme_files"] = tuple(map(expanded, files))
    for name, given in (("tasks", spell("data")), ("schemes", spell("schemes"))):
        if not values.get(name):
            raise UserError(f"There are no {name}. Give {given}, or {name}: [...] in a plan.")
    if isinstance(seeds := values.get("seeds"), int):
        check_range("seeds", seeds, whole_number(1, 10_000))
        values["seeds"] = tuple(range(seeds))
    if values["schemes"] in ("all", ["all"]):
        values["schemes"] = known_schemes()
    if isinstance(rule := values.get("until_flat"), dict):
        values["until_flat"] = UntilFlat(**_checked(UntilFlat, rule, "The plan's until_flat"))
    if isinstance(values["tasks"], list | tuple):
        values["tasks"] = tuple(map(_task, values["tasks"]))
    if isinstance(groups := values.get("groups"), dict):
        values["groups"] = {name: tuple(g) if isinstance(g, list) else g for name, g in groups.items()}
    kwargs = values.get("scheme_kwargs")
    if overrides.get("schemes") is not None and isinstance(kwargs, dict):  # of the plan's other schemes
        values["scheme_kwargs"] = {name: given for name, given in kwargs.items() if name in values["schemes"]}
    plan = Plan(**_checked(Plan, values, "The plan"))
    _check_names(plan)
    _check_values(plan)
    if checked:
        from .run import check_schemes  # imports PyTorch

        check_schemes(plan)
    return plan


def known_plans() -> dict[str, Path]:
    """The built-in plans, by name."""
    folder = Path(str(resources.files("hf_posenc.comparison") / "plans"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _read_file(source: str | Path) -> dict[str, Any]:
    path, plans = Path(expanded(source)), known_plans()
    if not path.is_file():
        path = plans.get(str(source), path)
    if not path.is_file():
        raise UserError(
            f"There is no plan {str(source)!r}. Give a YAML file, or the name of a built-in one: {', '.join(plans)}."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: 2020-99-99 is no date
        raise UserError(f"The plan {str(source)!r} can't be read: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"The plan {str(source)!r} holds {values!r}. Write fields: tasks: [...], schemes: [...].")
    return values


def _checked(kind: type, values: dict[str, Any], what: str) -> dict[str, Any]:
    """The fields, lists as tuples. Refuses unknown ones, and values that their field doesn't take."""
    hints, annotated = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    checked = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    for name, value in checked.items():
        if name not in hints:
            near = did_you_mean(str(name), hints)
            raise UserError(f"{what} has a field {name!r}, which doesn't exist. {near}It takes {', '.join(hints)}.")
        try:
            type_validator(name, value, hints[name])
        except TypeError as error:
            raise UserError(f"{what} has {name}: {values[name]!r}. {one_line(error)}.") from error
        for accepts in getattr(annotated[name], "__metadata__", ()):
            for item in value if isinstance(value, tuple) else (value,):
                if fault := accepts.fault(item):
                    raise UserError(f"{what}'s {name} {item} {fault}")
    return checked


def _task(entry: Any) -> Task:
    """A task from a word (`probes`, `halves`, a file, the name of a data set) or a dictionary."""
    values = {"data": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict) or not isinstance(data := values.get("data"), str):
        raise UserError(f"The task {entry!r} names no data. Give a name, or fields such as {{data: cola}}.")
    data = expanded(data)
    word = Path(data).name or Path(data).resolve().name
    if Path(data).is_file():
        word = word.partition(".")[0]
    return Task(**_checked(Task, {"name": re.sub(r"[^\w.]+", "_", word), **values, "data": data}, "A task"))


def _check_names(plan: Plan) -> None:
    """Refuses names that can't name a file, what stands twice, and names of what isn't there."""
    tasks = {task.name: task for task in plan.tasks}
    if len(tasks) < len(plan.tasks):
        raise UserError("Two tasks of the plan have one name. Give one of them a name: of its own.")
    paths, kept = ({task.data for task in each.tasks} for each in (plan, plan.recorded()))
    if len(kept) < len(paths):
        raise UserError(
            "Two tasks have different data of one name, which a folder of results can't tell apart. Rename one."
        )
    for kind, names, letters in (("task", tasks, r"[\w.]+"), ("scheme", plan.schemes, r"[\w.+-]+")):
        for name in names:
            if not re.fullmatch(letters, name):
                raise UserError(f"The {kind}'s name {name!r} can't name a file. Use letters, digits, _ and dots.")
    lists: list[tuple[str, Collection[Any], Collection[Any]]] = [
        *((name, getattr(plan, name), getattr(plan, name)) for name in ("schemes", "seeds", "search")),
        ("scheme_kwargs", plan.scheme_kwargs, plan.schemes),
        ("reference", [plan.reference] if plan.reference else [], plan.schemes),
        *((f"group {name!r}", group, tasks) for name, group in plan.groups.items()),
        *((f"probes of {task.name!r}", task.probes, PROBES) for task in plan.tasks),
    ]
    for what, given, there in lists:
        for name in given:
            if name not in there:
                raise UserError(f"The plan's {what} names {name!r}, which isn't among {', '.join(there)}.")
            if list(given).count(name) > 1:
                raise UserError(f"In the plan's {what} {name!r} stands twice. Leave one out.")
    for name, group in plan.groups.items():
        if not group:
            raise UserError(f"The group {name!r} has no tasks. Name some of {', '.join(tasks)}, or leave it out.")
        if len({tasks[task].metric for task in group}) > 1:
            raise UserError(f"The group {name!r} has tasks with different metrics. Make a group of each metric.")


def _check_values(plan: Plan) -> None:
    """Refuses values that don't go together, and options that the plan decides."""
    if not plan.seeds:
        raise UserError("The plan has no seeds. Give one or more; intervals need two.")
    if plan.search and DEVELOPMENT_SEED in plan.seeds:
        raise UserError(f"The seed {DEVELOPMENT_SEED} is the one that search chooses on. Report others.")
    if list(plan.lengths) != sorted(set(plan.lengths)):
        raise UserError(f"The plan has test_lengths {list(plan.lengths)}. Make each longer than the one before.")
    if (rule := plan.until_flat) is not None and rule.least > rule.most:
        limits = f"ends no run before {rule.least} steps (least), and all after {rule.most} (most)"
        raise UserError(f"The plan's until_flat {limits}. Lower least, or raise most.")
    for task in plan.tasks:
        where = f"The task {task.name!r}"
        if task.is_generated and task.metric != "accuracy":
            raise UserError(f"{where} is generated: its metric is accuracy.")
        if task.data == "probes":
            shortest = min(plan.train_length, *plan.lengths)
            if fault := whole_number(SHORTEST).fault(shortest):
                raise UserError(f"{where}: {shortest} tokens of an input {fault}")
        for options in (plan.options, task.options):
            if fixed := [name for name in options if name in PLANNED]:
                raise UserError(f"{where}: options can't set {fixed[0]!r}, which the plan itself decides.")
            if plan.until_flat is not None and (ends := options.keys() & {"epochs", "max_steps", "patience"}):
                raise UserError(f"{where}: options can't set {min(ends)!r}: until_flat says when runs end.")
            if not isinstance(options.get("set", {}), dict):
                raise UserError(f"{where}, options: set is {options['set']!r}. Give fields: {{weight_decay: 0.01}}.")
            if isinstance(rate := options.get("learning_rate"), str):
                raise UserError(f"{where}, options: the rate {rate!r} is a word. Write 0.001, or 1.0e-3 in YAML.")
        if (rate := plan.data_options(task).learning_rate) is not None:
            for factor in plan.search:
                if fault := FROM_0_TO_1.fault(rate * factor):
                    raise UserError(f"{where}: {factor:g} times the learning rate {rate:g} {fault}")
