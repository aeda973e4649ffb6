"""Reads plans from YAML, and refuses what couldn't run before anything does."""

import difflib
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from hf_posenc.data.options import DataArguments
from hf_posenc.errors import UserError, one_line
from hf_posenc.files import sha256
from hf_posenc.finetuning.early import check_data
from hf_posenc.finetuning.options import make_arguments, read_options
from hf_posenc.schemes.names import check_scheme_name, known_schemes
from hf_posenc.training.options import ClassificationOptions, MaskedLMOptions

from .plan import DEVELOPMENT_SEED, Plan, SchemeFile, Task, resolve_data
from .probes import PROBES, SHORTEST

PLAN_NAME = "plan.json"
KINDS = ("probes", "halves", "text", "masked_lm")
METRICS = ("accuracy", "matthews_correlation", "perplexity")
LENGTHS = ("cut", "buckets")
MOST_SEEDS = 10_000

# The plan sets these itself, so that runs stay comparable.
_OWN_OPTIONS = (
    "output_dir",
    "seed",
    "data_seed",
    "position_embedding_type",
    "position_embedding_kwargs",
    "max_seq_length",
    "max_position_embeddings",
    "config_preset",
    "model_name_or_path",
    "max_train_samples",
    "max_predict_samples",
    "dataset_name",
    "train_file",
    "do_train",
    "do_eval",
    "do_predict",
    "resume_from_checkpoint",
    "overwrite_output_dir",
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
    _check_types(values, Plan, "The plan")
    made = dict(values)
    made["tasks"] = tuple(_task(entry, checked) for entry in _as_list(values["tasks"]))
    schemes = _as_list(values["schemes"])
    files = _as_list(values.get("scheme_files") or [])
    made["scheme_files"] = tuple(_scheme_file(entry, schemes, checked) for entry in files)
    made["schemes"] = tuple(_registered() if schemes == ["all"] else map(str, schemes))
    if "seeds" in values:
        seeds = values["seeds"]
        if isinstance(seeds, int) and seeds > MOST_SEEDS:
            raise UserError(f"The plan has seeds: {seeds}. Give how many, up to {MOST_SEEDS:,}, or a list.")
        made["seeds"] = tuple(range(seeds)) if isinstance(seeds, int) else tuple(_as_list(seeds))
    if "test_lengths" in values:
        made["test_lengths"] = tuple(_as_list(values["test_lengths"]))
    if values.get("search") is not None:
        made["search"] = tuple(_as_list(values["search"]))
    made["chosen_baseline"] = bool(values.get("baseline"))
    made["baseline"] = values.get("baseline") or made["schemes"][0]
    plan = Plan(**made)
    _check_lists(plan)
    for task in plan.tasks:
        _check_task(plan, task)
    if checked:
        _check_before_loading(plan)
        from .checkpoints import check_scheme  # imports PyTorch

        for task in plan.tasks:
            data_arguments(plan, task, wholly=True)
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
    for task, data in [(task, data_arguments(plan, task)) for task in plan.tasks]:
        if task.sha256 is not None:
            check_data(data)
    parts = () if plan.pretrained is not None else dict.fromkeys("+".join(plan.schemes).split("+"))
    for name in parts:
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


_WORDS = {dict: "fields", str: "a word", int: "a whole number", list: "a list"}


def _accepted(hint: Any) -> tuple[type, ...]:
    """The types in which YAML may give a field; a list of one may stand without brackets."""
    kind = next((part for part in get_args(hint) if isinstance(hint, UnionType) and part is not NoneType), hint)
    if get_origin(kind) is not tuple:
        return (get_origin(kind) or kind,)
    alone = {str: (str,), int: (int,), Task: (str, dict, Task), SchemeFile: (str, dict)}
    return (*alone.get(get_args(kind)[0], ()), list, tuple)


def _check_types(values: dict[str, Any], made: type, what: str) -> None:
    """Refuses unknown fields, and values of a type that their field can't have; `field:` alone is None in YAML."""
    hints = {name: hint for name, hint in get_type_hints(made).items() if name != "chosen_baseline"}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            raise UserError(
                f"{what} has a field {name!r}, which doesn't exist. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"It takes {', '.join(hints)}."
            )
        may_be_none = NoneType in get_args(hints[name]) or name in ("baseline", "scheme_files")
        accepted = _accepted(hints[name])
        if not (value is None and may_be_none) and (not isinstance(value, accepted) or isinstance(value, bool)):
            shown = " or ".join(_WORDS[kind] for kind in accepted if kind in _WORDS)
            raise UserError(f"{what} has {name}: {value!r}. Give {shown}, or leave it out.")


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _task(entry: Any, checked: bool) -> Task:
    """A task from a word (`probes`, `halves`, a file, the name of a data set) or a dictionary."""
    if isinstance(entry, Task):
        return entry
    if isinstance(entry, str):
        entry = {"kind": entry} if entry in ("probes", "halves") else {"data": entry}
    if not isinstance(entry, dict):
        raise UserError(f"The task {entry!r} is neither a name nor fields such as {{data: cola}}.")
    values = dict(entry)
    if "masked_lm" in values and "data" in values:
        raise UserError(f"The task {entry!r} names masked_lm and data. Give one of them.")
    if "masked_lm" in values:
        values |= {"kind": "masked_lm", "data": values.pop("masked_lm")}
    values.setdefault("kind", "text")
    _check_types(values, Task, "A task")
    if values["kind"] not in KINDS:
        raise UserError(f"The task's kind {values['kind']!r} is unknown. Choose one of {', '.join(KINDS)}.")
    if values["kind"] in ("text", "masked_lm") and not isinstance(values.get("data"), str):
        raise UserError(f"The task {entry!r} names no data. Give data: with a folder or a Hub name.")
    if values["kind"] == "masked_lm":
        values["metric"] = "perplexity"
    default = values["kind"]
    if values["kind"] in ("text", "masked_lm"):
        word = Path(values["data"]).name or Path(values["data"]).resolve().name
        if is_file(values["data"]):
            word = word.partition(".")[0]
            if checked:
                values["sha256"] = _digest(values)
        word = re.sub(r"[^\w.]+", "_", word)
        default = word if values["kind"] == "text" else f"masked_lm_{word}"
    values.setdefault("name", default)
    for name in ("extra_tests", "probes", "test_lengths"):
        if values.get(name) is not None:
            values[name] = tuple(_as_list(values[name]))
    if not all(isinstance(probe, str) for probe in values.get("probes") or ()):
        raise UserError(f"A task has probes: {list(values['probes'])!r}. Give names.")
    return Task(**values)


def is_file(data: str) -> bool:
    """Whether a task's data is a file, there or not, and no folder or name."""
    from hf_posenc.data.reading import KINDS, kind_of

    return not Path(data).is_dir() and (Path(data).is_file() or kind_of(Path(data)) in KINDS)


def _digest(values: dict[str, Any]) -> str:
    """SHA-256 of a task's file, by which the plan knows it: its path may be spelled in many ways."""
    path = Path(values["data"])
    if not path.is_file():
        raise UserError(f"{str(path)!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    content = sha256(path)
    if values.get("sha256") not in (None, content):
        raise UserError(f"The file {str(path)!r} isn't the one that the plan names: its content has changed.")
    return content


def _scheme_file(entry: Any, schemes: list[Any], checked: bool) -> SchemeFile:
    """Registers the schemes of a file. Unless `checked`, takes the entry of `plan.json` without reading the file."""
    recorded = entry if isinstance(entry, dict) else {"path": entry}
    if isinstance(entry, dict):
        _check_types(entry, SchemeFile, "A scheme file")
    path = recorded.get("path")
    if not isinstance(path, str | Path):
        raise UserError(f"The scheme file {entry!r} is no path. Give scheme_files: [my_scheme.py].")
    if not checked:
        names = recorded.get("schemes", ())
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise UserError(f"The scheme file {str(path)!r} has schemes: {names!r}. Give a list of names.")
        return SchemeFile(str(path), str(recorded.get("sha256")), tuple(names))
    from hf_posenc.schemes.scheme_file import register_scheme_file

    try:
        parts = dict.fromkeys(part for scheme in schemes for part in str(scheme).split("+"))
        names = register_scheme_file(path, "+".join(parts))
    except ValueError as error:
        raise UserError(one_line(error)) from error
    current = SchemeFile(str(path), sha256(path), tuple(names))
    if recorded.get("sha256") not in (None, current.sha256):
        raise UserError(f"The scheme file {str(path)!r} isn't the one that the plan names: its content has changed.")
    return current


def _check_lists(plan: Plan) -> None:
    for name, values in (
        ("tasks", [task.name for task in plan.tasks]),
        ("schemes", plan.schemes),
        ("seeds", plan.seeds),
    ):
        twice = next((value for value in values if list(values).count(value) > 1), None)
        if twice is not None:
            hint = " Give one of them a name: of its own." if name == "tasks" else ""
            raise UserError(f"The plan's {name} hold {twice!r} twice. Leave one out.{hint}")
    for seed in plan.seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise UserError(f"The seed {seed!r} is no whole number from 0 to 4294967295.")
    for factor in plan.search:
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1000:
            raise UserError(f"search holds {factor!r}. Give factors of the learning rate, such as [0.3, 1, 3].")
    if plan.search and (len(set(plan.search)) < 2 or len(set(plan.search)) < len(plan.search)):
        raise UserError(f"search {list(plan.search)} is no choice. Give two factors or more, each once: [0.3, 1, 3].")
    if plan.search and DEVELOPMENT_SEED in plan.seeds:
        raise UserError(f"The seed {DEVELOPMENT_SEED} is the one that search chooses on. Report others.")
    if not plan.seeds:
        raise UserError("The plan has no seeds. Give one or more; intervals need two.")
    if plan.baseline not in plan.schemes:
        raise UserError(
            f"The baseline {plan.baseline!r} isn't among the schemes {', '.join(plan.schemes)}. Add it, or name one."
        )
    for name in plan.scheme_arguments:
        if name not in plan.schemes:
            raise UserError(
                f"scheme_arguments names {name!r}, which isn't among the schemes {', '.join(plan.schemes)}."
            )
    for file in plan.scheme_files:
        if not set(file.schemes) & {part for scheme in plan.schemes for part in scheme.split("+")}:
            raise UserError(
                f"The scheme file {file.path!r} defines {', '.join(file.schemes)}, and the schemes are "
                f"{', '.join(plan.schemes)}. Add it to them, or leave the file out."
            )
    for task in plan.tasks:
        if not re.fullmatch(r"[\w.]+", task.name):
            raise UserError(f"The task's name {task.name!r} can't name a folder. Use letters, digits, _ and dots.")
    for scheme in plan.schemes:
        if not re.fullmatch(r"[\w.+-]+", scheme):
            raise UserError(f"The scheme's name {scheme!r} can't name a folder. A scheme is called like a variable.")


def _check_task(plan: Plan, task: Task) -> None:
    where = f"The task {task.name!r}"
    if task.metric not in METRICS or (task.metric == "perplexity") != (task.kind == "masked_lm"):
        raise UserError(
            f"{where} has the metric {task.metric!r}. Choose accuracy or matthews_correlation; a masked_lm's is "
            "perplexity."
        )
    if task.metric != "accuracy" and task.kind in ("probes", "halves"):
        raise UserError(f"{where} is balanced: its metric is accuracy, not {task.metric!r}.")
    if task.lengths not in LENGTHS:
        raise UserError(f"{where} has lengths: {task.lengths!r}. Choose one of {', '.join(LENGTHS)}.")
    for name in task.probes:
        if name not in PROBES:
            raise UserError(f"{where} names the probe {name!r}. Choose from {', '.join(PROBES)}.")
    train, tests = plan.train_length_of(task), plan.test_lengths_of(task)
    least = SHORTEST if task.kind == "probes" else 8
    for length in (train, *tests):
        if not isinstance(length, int) or isinstance(length, bool) or length < least:
            raise UserError(f"{where} can't have inputs of {length!r} tokens. Give whole numbers from {least}.")
    if not tests or list(tests) != sorted(set(tests)):
        raise UserError(f"{where} has test_lengths {list(tests)}. Give one or more, each longer than the one before.")
    for name, count in (
        ("train_examples", plan.train_examples_of(task)),
        ("test_examples", plan.test_examples_of(task)),
    ):
        if count is not None and (not isinstance(count, int) or count < 2):
            raise UserError(f"{where} has {name} {count!r}. Give a whole number from 2, or leave it out for all.")
    if task.kind in ("probes", "halves") and (task.extra_tests or task.part_column or task.lengths != "cut"):
        raise UserError(f"{where} is generated: extra_tests, part_column and lengths are for text.")
    for name, count in (("train_examples", task.train_examples), ("train_examples", plan.train_examples)):
        if count == 0:
            raise UserError(f"{where} has {name} 0. Give a whole number from 2, or leave it out for all.")
    if len(set(task.probes)) != len(task.probes):
        raise UserError(f"{where} names a probe twice: {', '.join(task.probes)}.")
    for name in (*plan.options, *task.options):
        if not isinstance(name, str):  # YAML reads {learning_rate: 0,001} so
            raise UserError(f"{where}: options hold {name!r}, which is no name. Write {{learning_rate: 0.001}}.")
        if name in _OWN_OPTIONS:
            raise UserError(f"{where}: options can't set {name!r}, which the plan itself decides.")
    rate = plan.options_of(task).get("learning_rate", 0)
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise UserError(f"{where}, options: the learning_rate {rate!r} is no number. Write 0.001, or 1.0e-3 in YAML.")


def data_arguments(plan: Plan, task: Task, *, wholly: bool = False) -> DataArguments:
    """The options of a task's data.

    Args:
        plan, task: what is compared.
        wholly: check what transformers alone can check too, which imports PyTorch.

    Raises:
        UserError: an option of the plan doesn't exist, or a value isn't accepted.
    """
    options = {**plan.options_of(task), "output_dir": "data", "do_train": True}
    if task.data is not None:
        options["dataset_name" if task.sha256 is None else "train_file"] = resolve_data(task.data)
    is_masked_lm = task.kind == "masked_lm"
    try:
        data = read_options(options, MaskedLMOptions if is_masked_lm else ClassificationOptions)[0]
        if wholly:
            from hf_posenc.training.arguments import MaskedLMTrainingArguments

            make_arguments(*[MaskedLMTrainingArguments] * is_masked_lm, **options)
    except UserError as error:
        raise UserError(f"The task {task.name!r}, options: {error}") from error
    return data
