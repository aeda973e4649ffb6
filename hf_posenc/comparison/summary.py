"""The results of a comparison in numbers: columns of scores, their intervals and the tests."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import pandas as pd

from ..files import expanded
from ..markdown import code, plain
from . import statistics
from .baselines import BASELINES
from .plan import Plan
from .results import load_plan, read_failures, read_table, read_trials, unnamed_schemes
from .statistics import Interval


@dataclass(frozen=True)
class Column:
    """A column of the table of scores: some tasks at a length, or one part of a task."""

    title: str
    tasks: tuple[str, ...]
    length: int
    part: str | None
    scores: dict[str, dict[int, float]]
    """By scheme or baseline, by seed; of several tasks for the seeds that all have."""
    means: dict[str, float]
    """Over seeds, then over tasks, as in the tests; the best first."""


class Summary:
    """The results of a folder, as tables and sentences.

    Attributes:
        folder: where the results are.
        plan: what was compared.
        table: the results; a scheme has those seeds that were run.
        missing: the runs of the plan that are missing, by their names.
        failed: those of them that failed, and trials that did, with the reason.
        unnamed: schemes that the folder has runs of, and the plan doesn't name.
        contrasts: the tests.
        baselines: those that were measured.
        order: the schemes, the best mean first.
    """

    def __init__(self, folder: Path, plan: Plan, table: pd.DataFrame, missing: list[str]) -> None:
        """Takes all results of a folder."""
        self.folder = folder
        self.plan = plan
        self.table = table
        self.missing = missing
        self.failed = read_failures(folder, plan)
        self.unnamed = unnamed_schemes(folder, plan)
        self.contrasts = statistics.contrasts(self.plan, self.table)
        self.baselines = [name for name in BASELINES if (self.table["scheme"] == name).any()]
        tasks = next(iter(self.plan.tested_groups.values()), (self.plan.tasks[0].name,))
        ranked = self.column("", tasks, self.plan.home_length).means
        self.order = [name for name in dict.fromkeys((*ranked, *self.plan.schemes)) if name in self.plan.schemes]

    @classmethod
    def of(cls, folder: str | Path) -> "Summary":
        """Reads a folder of `compare`.

        Raises:
            UserError: it holds no results, or damaged ones.
        """
        return cls(Path(expanded(folder)), load_plan(folder), *read_table(folder))

    @property
    def has_runs(self) -> bool:
        """True where there is a run."""
        return bool(self.table["seed"].notna().any())

    @property
    def diverged(self) -> list[str]:
        """The runs that diverged, by scheme, task and reason, in words."""
        rows = self.table.dropna(subset="diverged").drop_duplicates(["task", "scheme", "seed"])
        counts = rows.groupby(["scheme", "task", "diverged"], sort=False).size()
        return [f"{code(scheme)} on {plain(task)} ({n} with {why})" for (scheme, task, why), n in counts.items()]

    @property
    def mixed_rates(self) -> list[str]:
        """The schemes of which the seeds of a task ran at different rates, in words."""
        rates = self.table.dropna(subset="rate").groupby(["scheme", "task"], sort=False)["rate"].unique()
        return [
            f"{code(scheme)} on {plain(task)} ({', '.join(f'{rate:g}' for rate in several)})"
            for (scheme, task), several in rates.items()
            if len(several) > 1
        ]

    @cached_property
    def tried(self) -> pd.DataFrame:
        """The scores by which rates were chosen, and `C` of linear models; see `read_trials`."""
        return read_trials(self.folder)

    def rates_at_the_edge(self) -> str:
        """The schemes whose chosen rate is the least or the highest one that was tried for a task, in words."""
        tried = self.tried
        chosen = self.table.dropna(subset="rate")
        options_of = {task.name: {**self.plan.options, **task.options} for task in self.plan.tasks}
        where: dict[str, list[str]] = {}
        for (task, scheme), rates in chosen.groupby(["task", "scheme"], sort=False)["rate"]:
            grid = tried[(tried["task"] == task) & (tried["scheme"] == scheme)]["rate"].tolist()
            if not grid and "learning_rate" in options_of[task]:  # of a table without its trials
                grid = [options_of[task]["learning_rate"] * factor for factor in self.plan.search]
            if grid and any(math.isclose(rates.iloc[0], edge, rel_tol=1e-5) for edge in (min(grid), max(grid))):
                where.setdefault(scheme, []).append(task)
        return ", ".join(f"{code(scheme)} on {len(tasks)} of {len(self.plan.tasks)}" for scheme, tasks in where.items())

    def column(self, title: str, tasks: tuple[str, ...], length: int, part: str | None = None) -> Column:
        """The mean over some tasks at a length, or one part of a task."""
        table = self.table if part is None else self.table[self.table["part"] == part]
        names = (*self.baselines, *self.plan.schemes)
        samples = {name: statistics.samples(self.plan, table, tasks, name, length) for name in names}
        means = {
            name: fmean(fmean(of_seed.values()) for of_seed in each) for name, each in samples.items() if all(each)
        }
        scores = {name: statistics.group_scores(table, tasks, name, length) for name in means}
        return Column(title, tasks, length, part, scores, dict(sorted(means.items(), key=lambda item: -item[1])))

    def columns(self, length: int) -> list[Column]:
        """The columns of the table at a length: tasks, and groups of several; of a task with parts these, too."""
        columns = []
        for task in self.plan.tasks:
            rows = self.table[(self.table["task"] == task.name) & (self.table["length"] == length)]
            parts = list(dict.fromkeys(rows["part"]))
            columns += [self.column(part, (task.name,), length, part) for part in parts if len(parts) > 1]
            if parts:
                title = task.name if len(parts) == 1 else f"mean of {task.name}"
                columns.append(self.column(title, (task.name,), length))
        groups = {name: tasks for name, tasks in self.plan.tested_groups.items() if len(tasks) > 1}
        return columns + [self.column(f"mean: {name}", tasks, length) for name, tasks in groups.items()]

    def longer_columns(self) -> list[Column]:
        """Every task at the lengths that aren't the train length."""
        lengths = [length for length in self.plan.lengths if length != self.plan.home_length]
        made = [self.column(f"{t.name}, {n:,} tokens", (t.name,), n) for t in self.plan.tasks for n in lengths]
        return [column for column in made if column.scores]

    def interval(self, column: Column, name: str) -> Interval | None:
        """The mean over seeds with its interval; None: there is no score."""
        if name not in column.scores:
            return None
        metric = next(task.metric for task in self.plan.tasks if task.name == column.tasks[0])
        made = statistics.mean_over_seeds([*column.scores[name].values()])
        least = 0.0 if metric == "accuracy" else -1.0
        within = (None if end is None else min(max(end, least), 1.0) for end in (made.low, made.high))
        return Interval(made.mean, *within)
