"""What is compared: a plan is plain data, from a YAML file or from options; its runs follow from it.

```yaml
tasks: [probes, halves, {data: cola, metric: matthews_correlation}, {masked_lm: imdb}]
schemes: [none, learned, rope, mine]    # or: all
scheme_files: [mine.py]                 # schemes of one's own
seeds: 5                                # 0 to 4, or a list
baseline: none
train_length: 64
test_lengths: [64, 128, 256, 512]
```

A run is one task, one scheme and one seed. All that differs between the runs of a task and seed is the scheme.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hf_posenc.conversion import convert
from hf_posenc.conversion.output import REPORT_NAME
from hf_posenc.errors import UserError, one_line
from hf_posenc.model.configuration_posenc import PosEncConfig
from hf_posenc.model.positions import POSITIONS, make_position, own_code
from hf_posenc.model.scheme_code import comes_along
from hf_posenc.schemes.scheme_file import file_hash, register_scheme_file
from hf_posenc.training.arguments import MaskedLMTrainingArguments, make_arguments

from .probes import PROBES, SHORTEST

DATA_VARIABLE = "HF_POSENC_DATA"
KINDS = ("probes", "halves", "text", "masked_lm")
METRICS = ("accuracy", "matthews_correlation", "perplexity")
LENGTHS = ("cut", "buckets")

NEW_ENCODER: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    # The usual .02 leaves 128-wide embeddings so small that the first epoch goes into growing them.
    "config_overrides": "initializer_range=0.05",
    "learning_rate": 1e-3,
    "word_learning_rate_factor": 1.0,
    "weight_decay": 0.01,
}
"""Options of `hf-posenc train` for encoders from scratch, unless the plan's `options` say otherwise."""
FROM_CHECKPOINT: dict[str, Any] = {"learning_rate": 5e-5}
"""The same for pretrained ones."""
GENERATED: dict[str, Any] = {"classifier_pooling": "cls", "num_train_epochs": 1}
"""The same for generated tasks: a mean over all tokens would hide order, and no example is seen twice."""

SEARCH_FACTORS = (0.3, 1.0, 3.0)
"""What `compare --search` multiplies the learning rate with."""
DEVELOPMENT_SEED = 1_000_000
"""On which learning rates are chosen: none that is reported."""

MOST_SEEDS = 10_000

# The plan sets these itself; they are what makes runs comparable.
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
    "do_train",
    "do_eval",
    "do_predict",
    "resume_from_checkpoint",
    "overwrite_output_dir",
)


@dataclass(frozen=True)
class Task:
    """What a model learns, and what it is tested on. None: as the plan says."""

    name: str
    kind: str
    data: str | None = None
    """A folder of split files, one of those in the folder that HF_POSENC_DATA names, or a data set of the Hub."""
    metric: str = "accuracy"
    """`accuracy` or, for text, `matthews_correlation`; masked language models have `perplexity`."""
    lengths: str = "cut"
    """What a test length is: `cut`, all examples, cut to that many tokens; `buckets`, those that are as long as that or
    shorter, and longer than the next smaller test length."""
    extra_tests: tuple[str, ...] = ()
    """More test files in the folder, such as test_long.jsonl.gz: with `cut` each is a part of its own, in `buckets`
    they are more examples."""
    part_column: str | None = None
    """A column of truth values: the test examples where it is true are a part of their own, too, beside the means."""
    group_column: str | None = None
    """A column that says which test examples belong together: intervals resample groups."""
    probes: tuple[str, ...] = ()
    """Which probes; none named: all."""
    train_length: int | None = None
    test_lengths: tuple[int, ...] | None = None
    train_examples: int | None = None
    test_examples: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`, before those of the plan."""


@dataclass(frozen=True)
class SchemeFile:
    """A Python file with schemes of the user's own, as it was when the plan was read."""

    path: str
    sha256: str
    """Of its content: runs with an edited file don't compare with those before."""
    schemes: tuple[str, ...]
    """Those that it defines."""


@dataclass(frozen=True)
class Plan:
    """Tasks, schemes and seeds, and what all runs have in common."""

    tasks: tuple[Task, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    baseline: str = ""
    """The scheme that the others are compared with."""
    preset: str = "tiny"
    pretrained: str | None = None
    """A checkpoint to start from, which is converted to each scheme, not healed; or one for each scheme: a path with
    {scheme} in it, such as converted/{scheme}."""
    train_length: int = 64
    test_lengths: tuple[int, ...] = (64, 128, 256, 512)
    table_length: int | None = None
    """Positions of schemes with a table. None: the train length, so that no position is there untrained."""
    train_examples: int | None = None
    """Training examples of a task, the first ones; None: all, and 20,000 of a generated one."""
    test_examples: int | None = None
    """Test examples of each part and length, drawn from all; None: all, and 400 of a generated one."""
    scheme_arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`position_embedding_kwargs` by scheme."""
    scheme_files: tuple[SchemeFile, ...] = ()
    """Files with schemes of one's own; in YAML their paths."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`."""
    search: tuple[float, ...] = ()
    """Factors of the learning rate that are tried for each task and scheme, on a seed and on data that aren't reported;
    the best one is used. None: one rate for all."""
    chosen_baseline: bool = field(default=True, compare=False)
    """Whether the baseline was given; else it is the first scheme, or that of the results folder."""

    def runs(self) -> list["Run"]:
        """Every run, a whole seed before the next: what is done early compares schemes."""
        return [Run(task, scheme, seed) for seed in self.seeds for task in self.tasks for scheme in self.schemes]

    def trials(self, task: Task, scheme: str) -> list["Run"]:
        """What chooses the learning rate of a task and scheme."""
        return [Run(task, scheme, DEVELOPMENT_SEED, factor) for factor in self.search]

    def shard(self, index: int, count: int) -> list["Run"]:
        """The index-th of so many parts of the runs, from 1, with all schemes as far as there are seeds and tasks.

        Else a scheme's speed would be a machine's.

        Raises:
            UserError: there is no such part.
        """
        if not 1 <= index <= count:
            raise UserError(f"shard {index}/{count} doesn't exist. Give 1/{count} to {count}/{count}.")
        blocks = [(seed, task) for seed in self.seeds for task in self.tasks]
        return [
            Run(task, scheme, seed)
            for block, (seed, task) in enumerate(blocks)
            for place, scheme in enumerate(self.schemes)
            if (block + place) % count == index - 1  # another one begins each time
        ]

    def work(self, index: int, count: int) -> list["Run"]:
        """A part of the runs, each after the trials that it needs."""
        runs = self.shard(index, count)
        return list({one.name: one for run in runs for one in (*self.trials(run.task, run.scheme), run)}.values())

    def train_length_of(self, task: Task) -> int:
        """How many tokens a training input has at most."""
        return task.train_length or self.train_length

    def test_lengths_of(self, task: Task) -> tuple[int, ...]:
        """At how many tokens a task is tested."""
        return task.test_lengths or self.test_lengths

    def train_examples_of(self, task: Task) -> int | None:
        """How many training examples; None: all that there are."""
        return task.train_examples or self.train_examples or (20_000 if task.kind in ("probes", "halves") else None)

    def test_examples_of(self, task: Task) -> int | None:
        """How many test examples per part and length; None: all that there are."""
        return task.test_examples or self.test_examples or (400 if task.kind in ("probes", "halves") else None)

    def options_of(self, task: Task) -> dict[str, Any]:
        """What `hf-posenc train` would be told for this task, without scheme, seed, data and folder."""
        options: dict[str, Any] = {
            "per_device_train_batch_size": 64,
            "num_train_epochs": 3,
            "eval_strategy": "no",
            "save_strategy": "steps",
            "save_steps": 0.25,  # an interrupted run loses a quarter at most
            "save_total_limit": 1,
            "logging_strategy": "steps",
            "logging_steps": 0.05,
            "disable_tqdm": True,
            "max_seq_length": self.train_length_of(task),
        }
        if self.pretrained is None:
            options |= {**NEW_ENCODER, "config_preset": self.preset}
            options["max_position_embeddings"] = self.table_length or self.train_length_of(task)
        else:
            options |= FROM_CHECKPOINT
        if task.kind in ("probes", "halves"):
            options |= GENERATED
        if task.kind == "masked_lm":
            options["line_by_line"] = False
        return {**options, **self.options, **task.options}

    def checkpoint(self, scheme: str, data_folder: Path) -> Path:
        """Where a pretrained scheme starts."""
        assert self.pretrained is not None
        if "{scheme}" in self.pretrained:
            return Path(self.pretrained.format(scheme=scheme))
        return data_folder / "converted" / scheme

    def settings(self, scheme: str = "", task: Task | None = None) -> dict[str, Any]:
        """What runs must have in common to compare: all but the lists that may grow, the task, a scheme's own code."""
        grow = ["tasks", "schemes", "seeds", "baseline", "chosen_baseline", "scheme_files"]
        if not self.search:  # as it was written before there was one
            grow.append("search")
        values = {name: value for name, value in asdict(self).items() if name not in grow}
        if task is not None:  # where its data lies may differ by machine, see `Study.read`
            values["task"] = {name: value for name, value in asdict(task).items() if name != "data"}
        code = {name: sha256 for name, sha256 in self.code().items() if name in scheme.split("+")}
        return {**values, "scheme_code": code} if code else values

    def code(self) -> dict[str, str]:
        """The hash of the file that defines it, for each scheme that isn't one of hf_posenc's."""
        return {name: file.sha256 for file in self.scheme_files for name in file.schemes}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `plan.json`; `read_plan` takes them."""
        values = json.loads(json.dumps(asdict(self)))
        del values["chosen_baseline"]
        for name in ("scheme_files", "search"):
            if not values[name]:  # as it was written before there were any
                del values[name]
        return values

    def check(self) -> None:
        """Refuses what couldn't run, before anything does.

        Raises:
            UserError: an option, a scheme or a length can't be.
        """
        self.check_values()
        for task in self.tasks:
            _check_options(self, task)
        for scheme in self.schemes:
            _check_scheme(self, scheme)

    def check_values(self) -> None:
        """Refuses what can't be on any machine.

        Raises:
            UserError: a name, a number or a list can't be.
        """
        _check_lists(self)
        for task in self.tasks:
            _check_task(self, task)


@dataclass(frozen=True)
class Run:
    """One model."""

    task: Task
    scheme: str
    seed: int
    factor: float | None = None
    """Of a trial: what the learning rate is multiplied with."""

    @property
    def name(self) -> str:
        """Of its folder."""
        trial = "" if self.factor is None else f"-rate{self.factor:g}x"
        return f"{self.task.name}-{self.scheme}{trial}-seed{self.seed}"


def read_plan(source: str | Path | dict[str, Any], *, checked: bool = True, **overrides: Any) -> Plan:
    """A plan from a YAML file, the name of one that comes along (`quick`, `probes`, ...), or a dictionary; checked.

    Args:
        source: the file, the name or the values.
        checked: whether it has to be one that can run here; for one that has run, False.
        **overrides: fields of `Plan` that replace the file's; None leaves them.

    Raises:
        UserError: it can't be read, a field doesn't exist, or a value can't be.
    """
    values = source if isinstance(source, dict) else _read_yaml(source)
    values = {**values, **{name: value for name, value in overrides.items() if value is not None}}
    values.pop("about", None)
    _refuse_unknown(values, [item.name for item in fields(Plan) if item.name != "chosen_baseline"], "The plan")
    for name in ("tasks", "schemes"):
        if not values.get(name):
            raise UserError(f"The plan names no {name}. Give {name}: [...] in the file, or --{_option(name)}.")
    _check_kinds(values, _PLAN_KINDS, "The plan")
    made = dict(values)
    made["tasks"] = tuple(_task(entry) for entry in _as_list(values["tasks"]))
    schemes = _as_list(values["schemes"])
    files = _as_list(values.get("scheme_files") or [])
    made["scheme_files"] = tuple(_scheme_file(entry, schemes, checked) for entry in files)
    made["schemes"] = tuple(POSITIONS) if schemes == ["all"] else tuple(map(str, schemes))
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
    if checked:
        plan.check()
    else:
        plan.check_values()
    return plan


def _option(name: str) -> str:
    return {"tasks": "data"}.get(name, name)


def known_plans() -> dict[str, Path]:
    """The plans that come along, by name."""
    folder = Path(str(resources.files("hf_posenc.comparison") / "plans"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def about(name: str) -> str:
    """What a plan that comes along says of itself."""
    return str(_read_yaml(name).get("about", ""))


def _read_yaml(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if not path.is_file() and str(source) in known_plans():
        path = known_plans()[str(source)]
    if not path.is_file():
        raise UserError(
            f"There is no plan {str(source)!r}. Give a YAML file, or the name of one that comes along: "
            f"{', '.join(known_plans())}."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: 2020-99-99 is no date
        raise UserError(f"The plan {str(source)!r} is no YAML: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"The plan {str(source)!r} holds {values!r}. Write fields: tasks: [...], schemes: [...].")
    return values


_PLAN_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("options", "scheme_arguments"), (dict,)),
    **dict.fromkeys(("baseline", "preset", "pretrained"), (str,)),
    **dict.fromkeys(("tasks", "schemes", "scheme_files"), (str, dict, list, tuple, Task)),
    **dict.fromkeys(("seeds", "test_lengths"), (int, list, tuple)),
    "search": (list, tuple),
    **dict.fromkeys(("train_length", "table_length", "train_examples", "test_examples"), (int,)),
}
_TASK_KINDS: dict[str, tuple[type, ...]] = {
    "options": (dict,),
    **dict.fromkeys(("name", "kind", "data", "metric", "lengths", "part_column", "group_column"), (str,)),
    **dict.fromkeys(("extra_tests", "probes"), (str, list, tuple)),
    "test_lengths": (int, list, tuple),
    **dict.fromkeys(("train_length", "train_examples", "test_examples"), (int,)),
}
_OPTIONAL = (
    *("table_length", "train_length", "test_lengths", "train_examples", "test_examples", "pretrained", "baseline"),
    *("data", "part_column", "group_column", "scheme_files", "search"),
)


def _check_kinds(values: dict[str, Any], kinds: dict[str, tuple[type, ...]], what: str) -> None:
    """Refuses a value of a type that its field can't have; `field:` alone is None in YAML."""
    words = {dict: "fields", str: "a word", int: "a whole number", list: "a list"}
    for name, value in values.items():
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            accepted = " or ".join(words[kind] for kind in kinds[name] if kind in words)
            raise UserError(f"{what} has {name}: {value!r}. Give {accepted}, or leave it out.")


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _refuse_unknown(values: Iterable[str], accepted: Sequence[str], what: str) -> None:
    for name in values:
        if name not in accepted:
            near = difflib.get_close_matches(str(name), accepted, n=1)
            raise UserError(
                f"{what} has a field {name!r}, which doesn't exist. {f'Did you mean {near[0]!r}? ' if near else ''}"
                f"It takes {', '.join(accepted)}."
            )


def _task(entry: Any) -> Task:
    """A task from a word (`probes`, `halves`, the name of a data set) or a dictionary."""
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
    _refuse_unknown(values, [item.name for item in fields(Task)], "A task")
    _check_kinds(values, _TASK_KINDS, "A task")
    if values["kind"] not in KINDS:
        raise UserError(f"The task's kind {values['kind']!r} is unknown. Choose one of {', '.join(KINDS)}.")
    if values["kind"] in ("text", "masked_lm") and not isinstance(values.get("data"), str):
        raise UserError(f"The task {entry!r} names no data. Give data: with a folder or a Hub name.")
    if values["kind"] == "masked_lm":
        values["metric"] = "perplexity"
    default = values["kind"]
    if values["kind"] in ("text", "masked_lm"):
        word = re.sub(r"[^\w.]+", "_", Path(values["data"]).name or Path(values["data"]).resolve().name)
        default = word if values["kind"] == "text" else f"masked_lm_{word}"
    values.setdefault("name", default)
    for name in ("extra_tests", "probes", "test_lengths"):
        if values.get(name) is not None:
            values[name] = tuple(_as_list(values[name]))
    if not all(isinstance(probe, str) for probe in values.get("probes") or ()):
        raise UserError(f"A task has probes: {list(values['probes'])!r}. Give names.")
    missing = [item.name for item in fields(Task) if item.default is MISSING and item.default_factory is MISSING]
    assert all(name in values for name in missing)
    return Task(**values)


def _scheme_file(entry: Any, schemes: list[Any], checked: bool) -> SchemeFile:
    """Registers the schemes of a file, or takes an entry of `plan.json`; one that has run isn't read again."""
    recorded = entry if isinstance(entry, dict) else {"path": entry}
    _refuse_unknown(recorded, [item.name for item in fields(SchemeFile)], "A scheme file")
    path = recorded.get("path")
    if not isinstance(path, str | Path):
        raise UserError(f"The scheme file {entry!r} is no path. Give scheme_files: [my_scheme.py].")
    if not checked:
        names = recorded.get("schemes", ())
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise UserError(f"The scheme file {str(path)!r} has schemes: {names!r}. Give a list of names.")
        return SchemeFile(str(path), str(recorded.get("sha256")), tuple(names))
    try:
        parts = dict.fromkeys(part for scheme in schemes for part in str(scheme).split("+"))
        names = register_scheme_file(path, "+".join(parts))
    except ValueError as error:
        raise UserError(one_line(error)) from error
    found = SchemeFile(str(path), file_hash(path), tuple(names))
    if recorded.get("sha256") not in (None, found.sha256):
        raise UserError(f"The scheme file {str(path)!r} isn't the one that the plan names: its content has changed.")
    return found


def resolve_data(name: str) -> str:
    """Where a data set is: a folder, one of those in the folder that HF_POSENC_DATA names, or a name of the Hub."""
    if Path(name).exists() or not os.environ.get(DATA_VARIABLE):
        return name
    folder = Path(os.environ[DATA_VARIABLE]) / name
    return str(folder) if folder.is_dir() else name


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
    rate = plan.options_of(task)["learning_rate"]
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise UserError(f"{where}, options: the learning_rate {rate!r} is no number. Write 0.001, or 1.0e-3 in YAML.")


def _check_options(plan: Plan, task: Task) -> None:
    options = {**plan.options_of(task), "output_dir": "checked", "do_train": True}
    kinds = (MaskedLMTrainingArguments,) if task.kind == "masked_lm" else ()
    try:
        make_arguments(*kinds, **options)
    except UserError as error:
        raise UserError(f"The task {task.name!r}, options: {error}") from error


def _check_scheme(plan: Plan, scheme: str) -> None:
    if plan.pretrained is not None:
        if set("{}") & set(plan.pretrained.replace("{scheme}", "")):
            raise UserError(
                f"pretrained {plan.pretrained!r} is no path in which {{scheme}} stands for the scheme's name: give one "
                "such as converted/{scheme}, or one checkpoint for all."
            )
        if plan.preset != "tiny":
            raise UserError(f"pretrained {plan.pretrained!r} has its own size. Leave preset {plan.preset!r} out.")
        if "{scheme}" not in plan.pretrained:  # there is none yet, see `convert_checkpoints`
            return
        limits = _check_checkpoint(plan, scheme, Path(plan.pretrained.format(scheme=scheme)))
    else:
        configs = {task.name: scheme_config(plan, task, scheme) for task in plan.tasks}
        limits = {name: make_limit(config) for name, config in configs.items()}
        try:
            own_code(next(iter(configs.values())))  # checkpoints hold it
        except ValueError as error:
            raise UserError(one_line(error)) from error
    _check_limits(plan, scheme, limits)


def _check_checkpoint(plan: Plan, scheme: str, folder: Path) -> dict[str, int | None]:
    """Refuses one of another scheme; how many positions it has, by task."""
    if not (folder / "config.json").is_file():
        raise UserError(f"There is no checkpoint in {str(folder)!r}, from which {scheme!r} would start.")
    config = PosEncConfig.from_pretrained(folder)
    if config.position_embedding_type != scheme:
        raise UserError(f"{str(folder)!r} has the scheme {config.position_embedding_type!r}, not {scheme!r}.")
    if any(comes_along(config, name) and name not in POSITIONS for name in scheme.split("+")):
        raise UserError(
            f"{scheme!r} in {str(folder)!r} isn't a scheme of hf_posenc. Give the file that defines it: --scheme-file, "
            "or scheme_files: [...] in the plan."
        )
    return {task.name: make_limit(config) for task in plan.tasks}


def convert_checkpoints(plan: Plan, data_folder: Path) -> None:
    """Makes a checkpoint of each scheme from the one that the plan names, where it names one for all.

    Raises:
        UserError: it can't be converted to a scheme, or is too short.
    """
    if plan.pretrained is None or "{scheme}" in plan.pretrained:
        return
    for scheme in plan.schemes:
        folder = plan.checkpoint(scheme, data_folder)
        if not (folder / "config.json").is_file():
            try:
                convert(
                    plan.pretrained,
                    folder,
                    position_embedding_type=scheme,
                    position_embedding_kwargs=plan.scheme_arguments.get(scheme),
                    measure=False,
                    overwrite=True,  # what a killed process left
                )
            except ValueError as error:
                raise UserError(f"{plan.pretrained!r} can't be converted to {scheme!r}: {one_line(error)}") from error
        _check_limits(plan, scheme, _check_checkpoint(plan, scheme, folder))
    made = data_folder / "converted"
    if len({source_of(folder) for folder in made.iterdir()} - {None}) > 1:  # None: left by a process that was killed
        raise UserError(
            f"{plan.pretrained!r} has changed since the first schemes in {str(made)!r} were converted from it. Put the "
            "old one back and delete those converted since, or name a new folder for the results."
        )


def source_of(checkpoint: Path) -> str | None:
    """The fingerprint of the weights that a checkpoint was converted from, if `hf-posenc convert` made it."""
    report = checkpoint / REPORT_NAME
    if not report.is_file():
        return None
    return json.loads(report.read_text(encoding="utf-8")).get("source_sha256")


def _check_limits(plan: Plan, scheme: str, limits: dict[str, int | None]) -> None:
    for task in plan.tasks:
        limit, train = limits[task.name], plan.train_length_of(task)
        if limit is not None and limit < train:
            raise UserError(
                f"{scheme!r} has {limit} positions, the task {task.name!r} trains at {train} tokens. Make table_length "
                f"{train} or more, or leave the scheme out."
            )


def scheme_config(plan: Plan, task: Task, scheme: str) -> PosEncConfig:
    """A config of the plan's size with the scheme, as far as positions go.

    Raises:
        UserError: there is no such scheme or argument.
    """
    try:
        return PosEncConfig.from_preset(
            plan.preset,
            position_embedding_type=scheme,
            position_embedding_kwargs=plan.scheme_arguments.get(scheme),
            max_position_embeddings=plan.table_length or plan.train_length_of(task),
        )
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error)) from error
    except Exception as error:  # in the code of a scheme of the user's own
        raise UserError(f"{scheme!r} can't be built: {type(error).__name__}: {one_line(error)}") from error


def make_limit(config: PosEncConfig) -> int | None:
    """How many positions the scheme of a config has; None: any number."""
    import torch

    with torch.device("meta"):
        return make_position(config).max_length


def extend(old: Plan, new: Plan) -> Plan:
    """One plan with the tasks, schemes and seeds of both.

    Raises:
        UserError: they differ in anything else, so that their runs don't compare; the message names it.
    """
    before, now = old.settings(), new.settings()
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    tasks = {task.name: task for task in old.tasks}
    for task in new.tasks:
        if task.name in tasks and tasks[task.name] != task:
            different.append(f"task {task.name}")
        tasks[task.name] = task
    code = {**old.code(), **new.code()}
    different += [f"the code of {name}" for name in code if old.code().get(name, code[name]) != code[name]]
    files = [file for file in old.scheme_files if not set(file.schemes) & new.code().keys()]
    if different:
        name = different[0]
        values = f" ({before.get(name)!r} there, {now.get(name)!r} here)" if name in {**before, **now} else ""
        raise UserError(
            f"another plan: it differs in {', '.join(different)}{values}. Runs of both don't compare: name a new "
            "folder, or give the plan that the folder has."
        )

    def joined(first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys((*first, *second)))

    return replace(
        new,
        baseline=new.baseline if new.chosen_baseline else old.baseline,
        tasks=tuple(tasks.values()),
        schemes=joined(old.schemes, new.schemes),
        seeds=joined(old.seeds, new.seeds),
        scheme_files=(*files, *new.scheme_files),
    )
