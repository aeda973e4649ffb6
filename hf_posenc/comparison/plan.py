"""A plan: the tasks, schemes and seeds of a comparison, as plain data, and the runs that follow from them.

```yaml
tasks: [sst2, {data: blimp_order, options: {epochs: 3}}]
groups: {words suffice: [sst2], order decides: [blimp_order]}
schemes: [none, learned, rope, mine]    # or: all
scheme_files: [mine.py]                 # schemes of your own
seeds: 5                                # 0 to 4, or a list
train_length: 64
test_lengths: [64, 128, 256, 512]
```

A run is one task, one scheme and one seed. All that differs between the runs of a task and seed is the scheme.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ..errors import UserError
from ..files import without_folders
from ..options import COUNT, POSITIVE, SEED, SHARE, Options, recorded, whole_number

DATA_VARIABLE = "HF_POSENC_DATA"
GENERATED = ("probes", "halves")
"""Data that are generated: questions about order, and the control, which counting words solves."""
CONTROL = "halves"
MAJORITY = "majority"
"""The baseline that every table has: the most frequent label."""
_LENGTHS = ("epochs", "max_steps")
_OF_GENERATED: dict[str, Any] = {"epochs": 1, "set": {"classifier_pooling": "cls"}}
"""A mean over all tokens would hide order, and no example is seen twice."""
VALIDATION_SHARE = 0.1
"""Of the training rows, where a run needs validation rows and there are none."""
SEARCH_FACTORS = (0.3, 1.0, 3.0)
"""What `search` of `compare` multiplies the learning rate with."""
DEVELOPMENT_SEED = 1_000_000
"""The seed on which learning rates are chosen; it is never reported."""
_GROW = (
    *("tasks", "groups", "schemes", "seeds", "reference", "scheme_kwargs", "scheme_files", "inputs"),
    "margin",
)
"""Fields that may change when a comparison is extended, or that no run depends on."""
_EXAMPLES, _LENGTH = whole_number(2), whole_number(8)


@dataclass(frozen=True)
class Task:
    """Data that a model learns, and those that it is tested on."""

    name: str
    data: str
    """`probes`, `halves`, a file, of which a tenth is the test, a folder of split files, one of those in the folder
    that HF_POSENC_DATA names, or a data set of the Hub."""
    metric: Literal["accuracy", "matthews_correlation"] = "accuracy"
    probes: tuple[str, ...] = ()
    """Which probes; none named: all."""
    train_examples: Annotated[int | None, _EXAMPLES] = None
    """The first ones. None: as the plan says."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`, before those of the plan."""

    @property
    def is_generated(self) -> bool:
        """True where its data are generated."""
        return self.data in GENERATED


@dataclass(frozen=True)
class UntilFlat:
    """When the runs of a plan end: one rule for all, so that none is stopped where another has learned more.

    A run is scored on validation rows every so many steps: those of the data where the test rows are others, else a
    tenth of its training rows. It ends when `patience` scores in a row aren't more than `gain` above the best one
    before, but not before the `least` steps, and keeps the best weights.
    """

    every: Annotated[int, COUNT] = 100
    patience: Annotated[int, COUNT] = 3
    gain: Annotated[int | float, SHARE] = 0.002
    """The least rise that counts."""
    least: Annotated[int, COUNT] = 1000
    """Steps before which no run ends: some schemes learn late."""
    most: Annotated[int, COUNT] = 3000
    """Steps after which a run ends in any case; the report says how many were still rising."""


@dataclass(frozen=True)
class Plan:
    """Tasks, schemes and seeds, and what all runs have in common."""

    tasks: tuple[Task, ...]
    schemes: tuple[str, ...]
    seeds: Annotated[tuple[int, ...], SEED] = (0, 1, 2, 3, 4)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tasks over whose mean schemes are tested, by the group's name. None named: all tasks but the control."""
    reference: str | None = None
    """What the others are compared with, beside `rope`. None: `none`, or the first scheme."""
    margin: Annotated[int | float | None, POSITIVE] = None
    """Of equivalence: that a scheme is within it of another is said where the interval of their difference is."""
    size: str = "tiny"
    pretrained: str | None = None
    """A checkpoint to start from, which each run converts to its scheme, without healing; or one for each scheme: a
    path with {scheme} in it, such as converted/{scheme}."""
    train_length: Annotated[int, _LENGTH] = 64
    """Tokens of a training input, at most; also the positions of schemes with a table, unless the options say more."""
    test_lengths: Annotated[tuple[int, ...], _LENGTH] = ()
    """None named: the train length."""
    train_examples: Annotated[int | None, _EXAMPLES] = None
    """Training examples of a task, the first ones. None: all, and 20,000 of a generated one."""
    test_examples: Annotated[int | None, _EXAMPLES] = None
    """Test examples of each part and length, drawn from all. None: all, and 400 of a generated one."""
    scheme_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The schemes' own arguments."""
    scheme_files: tuple[str, ...] = ()
    """Python files with schemes of your own."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`."""
    search: Annotated[tuple[int | float, ...], POSITIVE] = ()
    """Factors of the learning rate that are tried for each task and scheme, on a seed and on data that aren't reported;
    the best one is used. None: one rate for all."""
    until_flat: UntilFlat | None = None
    """None: the options say when runs end, and the last weights are kept."""
    threads: Annotated[int | None, COUNT] = None
    """Processor threads of each run. None: PyTorch's number."""
    inputs: dict[str, str] = field(default_factory=dict)
    """In a folder of results: a hash of each file and data set that runs depend on, by its name."""

    def runs(self) -> list["PlannedRun"]:
        """Every run, seed by seed, so that early results already compare all schemes."""
        return [PlannedRun(task, scheme, seed) for seed in self.seeds for task in self.tasks for scheme in self.schemes]

    def trials(self, task: Task, scheme: str) -> list["PlannedRun"]:
        """The runs that choose the learning rate of a task and scheme."""
        return [PlannedRun(task, scheme, DEVELOPMENT_SEED, factor) for factor in self.search]

    def work(self) -> list["PlannedRun"]:
        """Every run, each after the trials that it needs."""
        every = (each for run in self.runs() for each in (*self.trials(run.task, run.scheme), run))
        return list({each.name: each for each in every}.values())

    @property
    def references(self) -> tuple[str, ...]:
        """The schemes that each other one is compared with: the plan's reference and `rope`, the default."""
        first = self.reference or ("none" if "none" in self.schemes else self.schemes[0])
        return tuple(dict.fromkeys((first, *(name for name in self.schemes if name == "rope"))))

    @property
    def tested_groups(self) -> dict[str, tuple[str, ...]]:
        """The groups of tasks; none named: all tasks but the control, those with one metric together."""
        if self.groups:
            return self.groups
        by_metric: dict[str, tuple[str, ...]] = {}
        for task in self.tasks:
            if task.data != CONTROL:
                by_metric[task.metric] = (*by_metric.get(task.metric, ()), task.name)
        whole = {metric: "all tasks" if len(by_metric) == 1 else metric.replace("_", " ") for metric in by_metric}
        return {names[0] if len(names) == 1 else whole[metric]: names for metric, names in by_metric.items()}

    @property
    def lengths(self) -> tuple[int, ...]:
        """At how many tokens models are tested."""
        return self.test_lengths or (self.train_length,)

    @property
    def home_length(self) -> int:
        """The tested length that is the train length, or the next one to it."""
        return min((length for length in self.lengths if length >= self.train_length), default=self.lengths[-1])

    def train_examples_of(self, task: Task) -> int | None:
        """Number of training examples; None: all that there are."""
        return task.train_examples or self.train_examples or (20_000 if task.is_generated else None)

    def test_examples_of(self, task: Task) -> int | None:
        """Number of test examples per part and length; None: all that there are."""
        return self.test_examples or (400 if task.is_generated else None)

    def options_of(self, task: Task) -> dict[str, Any]:
        """The options of `hf-posenc train` for a task, without scheme, seed, data and folder."""
        fields: dict[str, Any] = {
            "eval_strategy": "no",
            "save_strategy": "steps",
            "save_steps": 0.25,  # an interrupted run loses a quarter at most
            "save_total_limit": 1,
            "logging_strategy": "steps",
            "logging_steps": 0.05,
        }
        options: dict[str, Any] = {"max_length": self.train_length, "validation_share": 0.0, "bf16": False}
        if self.pretrained is None:
            fields["max_position_embeddings"] = self.train_length
        if self.pretrained is None or self.size != "tiny":  # `train` refuses a size of a checkpoint
            options["size"] = self.size
        if not task.is_generated and (count := self.train_examples_of(task)) is not None:
            options["max_rows"] = count
        layers = [*([_OF_GENERATED] if task.is_generated else []), self.options, task.options]
        options = merged_options({**options, "set": fields}, *layers)
        if self.until_flat is not None:
            options.pop("epochs", None)
        return options

    def ending_of(self, task: Task) -> dict[str, Any]:
        """The options of a training that ends when it is flat."""
        if (rule := self.until_flat) is None:
            return {}
        fields = {
            **self.options_of(task)["set"],
            **dict.fromkeys(("eval_strategy", "save_strategy"), "steps"),
            **dict.fromkeys(("eval_steps", "save_steps"), rule.every),
            "metric_for_best_model": task.metric,
        }
        return {"max_steps": rule.most, "patience": rule.patience, "validation_share": VALIDATION_SHARE, "set": fields}

    def data_options(self, task: Task) -> Options:
        """The options of a task, with its data.

        Raises:
            UserError: an option of the plan doesn't exist, or a value isn't accepted.
        """
        data = {} if task.is_generated else {"data": resolve_data(task.data)}
        return Options.of(**self.options_of(task), **data)

    def checkpoint(self, scheme: str) -> str:
        """The checkpoint that a scheme starts from."""
        return str(self.pretrained).replace("{scheme}", scheme)

    def settings(self, task: Task) -> dict[str, Any]:
        """Settings that runs of a task share if they compare: all but the lists that may grow."""
        plan = replace(self, tasks=(task,)).recorded()
        values = {name: value for name, value in plan.to_dict().items() if name not in _GROW}
        return {**values, "task": _compact(asdict(plan.tasks[0]))}

    def recorded(self) -> "Plan":
        """The plan as a folder of results keeps it: without the folders of this machine that absolute paths name."""
        kept, of_options = partial(without_folders, keep_relative=True), partial(recorded, keep_relative=True)
        return replace(
            self,
            tasks=tuple(replace(task, data=kept(task.data), options=of_options(task.options)) for task in self.tasks),
            pretrained=kept(self.pretrained),
            scheme_files=kept(self.scheme_files),
            options=of_options(self.options),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `plan.json`; `read_plan` takes them."""
        return _compact({**asdict(self), "tasks": [_compact(asdict(task)) for task in self.tasks]})

    def extended(self, new: "Plan", folder: str) -> "Plan":
        """Joins another plan: the tasks, schemes and seeds of both.

        Raises:
            UserError: they differ in anything else, so that their runs don't compare; the message names it.
        """
        tasks, different = {task.name: task for task in self.tasks}, []
        for task in new.tasks:
            before, now = self.settings(tasks.setdefault(task.name, task)), new.settings(task)
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            different += [f"{name} ({before.get(name)!r} there, {now.get(name)!r} here)" for name in names]
        both = self.scheme_kwargs.keys() | new.scheme_kwargs.keys()
        for scheme in sorted(both.intersection(self.schemes, new.schemes)):
            there = self.scheme_kwargs.get(scheme)
            here = new.scheme_kwargs.get(scheme)
            different += [f"scheme_kwargs of {scheme} ({there!r} there, {here!r} here)"] if there != here else []
        if new.margin not in (None, self.margin):
            different.append(f"margin ({self.margin!r} there, {new.margin!r} here), which is fixed before the runs")
        changed = [name for name, digest in new.inputs.items() if self.inputs.get(name, digest) != digest]
        different += [f"{name}, which has changed since the first runs" for name in changed]
        if different:
            raise UserError(
                f"{folder!r} holds another plan: it differs in {', '.join(dict.fromkeys(different))}. Runs of both "
                "don't compare: name a new folder, or give the plan and the data that the folder has."
            )
        return replace(
            new,
            tasks=tuple(tasks.values()),
            groups={**self.groups, **new.groups},
            reference=new.reference or self.reference,
            margin=self.margin,
            schemes=tuple(dict.fromkeys((*self.schemes, *new.schemes))),
            seeds=tuple(dict.fromkeys((*self.seeds, *new.seeds))),
            scheme_kwargs={**self.scheme_kwargs, **new.scheme_kwargs},
            scheme_files=tuple(dict.fromkeys((*self.scheme_files, *new.scheme_files))),
            inputs={**self.inputs, **new.inputs},
        )


@dataclass(frozen=True)
class PlannedRun:
    """One model."""

    task: Task
    scheme: str
    seed: int
    factor: float | None = None
    """Multiplies the learning rate of a trial; None: no trial."""

    @property
    def name(self) -> str:
        """The name of its files."""
        trial = "" if self.factor is None else f"-rate{self.factor:g}x"
        return f"{self.task.name}-{self.scheme}{trial}-seed{self.seed}"


def merged_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `train`, those of later layers in place of earlier ones: of `set` field by field.

    A run's length is epochs or steps: the later layer's.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if any(layer.get(name) is not None for name in _LENGTHS):
            merged = {name: value for name, value in merged.items() if name not in _LENGTHS}
        fields = layer.get("set")
        both = {**(merged.get("set") or {}), **fields} if isinstance(fields, Mapping) else fields
        merged |= layer
        if both is not None:
            merged["set"] = both
    return merged


def _compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that are None or empty, as if the field weren't there."""
    return {name: value for name, value in values.items() if value or isinstance(value, bool | int | float)}


def resolve_data(name: str) -> str:
    """Where data is: a file or folder, a folder in the one that HF_POSENC_DATA names, or a name of the Hub."""
    folder = Path(os.environ.get(DATA_VARIABLE, "")) / name
    return str(folder) if folder.is_dir() and not Path(name).exists() else name
