"""A plan: the tasks, schemes and seeds of a comparison, as plain data, and the runs that follow from them.

```yaml
tasks: [probes, halves, {data: cola, metric: matthews_correlation}]
schemes: [none, learned, rope, mine]    # or: all
scheme_files: [mine.py]                 # custom schemes
seeds: 5                                # 0 to 4, or a list
baseline: none
train_length: 64
test_lengths: [64, 128, 256, 512]
```

A run is one task, one scheme and one seed. All that differs between the runs of a task and seed is the scheme.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_posenc.errors import UserError

DATA_VARIABLE = "HF_POSENC_DATA"

GENERATED_KINDS = ("probes", "halves")
"""Tasks whose data are generated."""
GENERATED: dict[str, Any] = {"epochs": 1, "set": {"classifier_pooling": "cls"}}
"""Options of `hf-posenc train` for generated tasks: a mean over all tokens would hide order, and no example is seen
twice."""

SEARCH_FACTORS = (0.3, 1.0, 3.0)
"""What `compare --search` multiplies the learning rate with."""
DEVELOPMENT_SEED = 1_000_000
"""The seed on which learning rates are chosen; it is never reported."""


@dataclass(frozen=True)
class Task:
    """What a model learns, and what it is tested on. None: as the plan says."""

    name: str
    kind: str
    data: str | None = None
    """A file, of which a tenth is the test; a folder of split files, one of those in the folder that HF_POSENC_DATA
    names, or a data set of the Hub."""
    sha256: str | None = None
    """Of the file's content, where `data` is a file. Runs after an edit don't compare with earlier ones."""
    metric: str = "accuracy"
    """`accuracy` or, for text, `matthews_correlation`."""
    lengths: str = "cut"
    """What a test length is: `cut`, all examples, cut to that many tokens; `buckets`, those that are as long as that or
    shorter, and longer than the next smaller test length."""
    extra_tests: tuple[str, ...] = ()
    """More test files in the folder, such as test_long.jsonl.gz: with `cut` each is a part of its own, in `buckets`
    they are more examples."""
    group_column: str | None = None
    """A column with the group of each test example: intervals resample groups."""
    probes: tuple[str, ...] = ()
    """Which probes; none named: all."""
    train_length: int | None = None
    test_lengths: tuple[int, ...] | None = None
    train_examples: int | None = None
    test_examples: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`, before those of the plan."""

    @property
    def is_generated(self) -> bool:
        """Whether its data are generated."""
        return self.kind in GENERATED_KINDS


@dataclass(frozen=True)
class SchemeFile:
    """A Python file with schemes of the user's own, as it was when the plan was read."""

    path: str
    sha256: str
    """Of its content. Runs after an edit don't compare with earlier ones."""
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
    """Files with custom schemes; in YAML their paths."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `hf-posenc train`."""
    search: tuple[float, ...] = ()
    """Factors of the learning rate that are tried for each task and scheme, on a seed and on data that aren't reported;
    the best one is used. None: one rate for all."""
    threads: int | None = None
    """Processor threads of each run. None: PyTorch's number."""
    chosen_baseline: bool = field(default=True, compare=False)
    """Whether the baseline was given; else it is the first scheme, or that of the results folder."""

    def runs(self) -> list["PlannedRun"]:
        """Every run, seed by seed, so that early results already compare all schemes."""
        return [PlannedRun(task, scheme, seed) for seed in self.seeds for task in self.tasks for scheme in self.schemes]

    def trials(self, task: Task, scheme: str) -> list["PlannedRun"]:
        """The runs that choose the learning rate of a task and scheme."""
        return [PlannedRun(task, scheme, DEVELOPMENT_SEED, factor) for factor in self.search]

    def work(self) -> list["PlannedRun"]:
        """Every run, each after the trials that it needs."""
        every = (each for run in self.runs() for each in (*self.trials(run.task, run.scheme), run))
        return list({run.name: run for run in every}.values())

    def train_length_of(self, task: Task) -> int:
        """How many tokens a training input has at most."""
        return task.train_length or self.train_length

    def test_lengths_of(self, task: Task) -> tuple[int, ...]:
        """At how many tokens a task is tested."""
        return task.test_lengths or self.test_lengths

    def train_examples_of(self, task: Task) -> int | None:
        """How many training examples; None: all that there are."""
        return task.train_examples or self.train_examples or (20_000 if task.is_generated else None)

    def test_examples_of(self, task: Task) -> int | None:
        """How many test examples per part and length; None: all that there are."""
        return task.test_examples or self.test_examples or (400 if task.is_generated else None)

    def options_of(self, task: Task) -> dict[str, Any]:
        """The options of `hf-posenc train` for a task, without scheme, seed, data and folder.

        What a model learns by (sizes, rates, batches, epochs) has the defaults of `train`.
        """
        fields: dict[str, Any] = {
            "eval_strategy": "no",
            "save_strategy": "steps",
            "save_steps": 0.25,  # an interrupted run loses a quarter at most
            "save_total_limit": 1,
            "logging_strategy": "steps",
            "logging_steps": 0.05,
        }
        options: dict[str, Any] = {"max_length": self.train_length_of(task), "validation_share": 0.0, "bf16": False}
        if self.pretrained is None:
            options["size"] = self.preset
            fields["max_position_embeddings"] = self.table_length or self.train_length_of(task)
        layers = [*([GENERATED] if task.is_generated else []), self.options, task.options]
        for layer in layers:
            fields |= layer.get("set") or {}
            options |= layer
        return {**options, "set": fields}

    def checkpoint(self, scheme: str, data_folder: Path) -> Path:
        """The checkpoint that a scheme starts from."""
        assert self.pretrained is not None
        if "{scheme}" in self.pretrained:
            return Path(self.pretrained.format(scheme=scheme))
        return data_folder / "converted" / scheme

    def settings(self, scheme: str = "", task: Task | None = None) -> dict[str, Any]:
        """What comparable runs share: all fields but the lists that may grow; the task; a scheme's own code."""
        grow = ("tasks", "schemes", "seeds", "baseline", "chosen_baseline", "scheme_files")
        values = {name: value for name, value in asdict(self).items() if name not in grow}
        values["task"] = {} if task is None else compact({**asdict(task), "data": None})  # it may lie elsewhere
        values["scheme_code"] = {name: digest for name, digest in self.code().items() if name in scheme.split("+")}
        return compact(values)

    def code(self) -> dict[str, str]:
        """SHA-256 of the defining file, for each scheme that isn't built in."""
        return {name: file.sha256 for file in self.scheme_files for name in file.schemes}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `plan.json`; `read_plan` takes them."""
        values = {**asdict(self), "tasks": [compact(asdict(task)) for task in self.tasks], "chosen_baseline": None}
        return compact(json.loads(json.dumps(values)))


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
        """The name of its folder."""
        trial = "" if self.factor is None else f"-rate{self.factor:g}x"
        return f"{self.task.name}-{self.scheme}{trial}-seed{self.seed}"


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those that are None or empty, as if the field weren't there."""
    return {name: value for name, value in values.items() if value or isinstance(value, bool | int | float)}


def _same_content(first: Task, second: Task) -> bool:
    """Whether two tasks are the same, however the paths of their data are spelled."""

    def place(task: Task) -> str | None:
        path = Path(resolve_data(task.data or ""))
        return None if task.sha256 else str(path.resolve()) if task.data and path.exists() else task.data

    return replace(first, data=place(first)) == replace(second, data=place(second))


def resolve_data(name: str) -> str:
    """Where data is: a file or folder, a folder in the one that HF_POSENC_DATA names, or a name of the Hub."""
    if Path(name).exists() or not os.environ.get(DATA_VARIABLE):
        return name
    folder = Path(os.environ[DATA_VARIABLE]) / name
    return str(folder) if folder.is_dir() else name


def extend(old: Plan, new: Plan) -> Plan:
    """Joins two plans: the tasks, schemes and seeds of both.

    Raises:
        UserError: they differ in anything else, so that their runs don't compare; the message names it.
    """
    before, now = old.settings(), new.settings()
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    tasks = {task.name: task for task in old.tasks}
    for task in new.tasks:
        if task.name in tasks and not _same_content(tasks[task.name], task):
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
