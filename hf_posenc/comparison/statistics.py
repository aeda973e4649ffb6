"""Statistics of a comparison: means with intervals, and few planned tests.

Every run of a task is tested on the same examples, so that intervals and verdicts are about these test rows, for seeds
like those that ran.

- **A mean** over n seeds has the interval of Student's t, with n - 1 degrees of freedom.
- **A contrast** compares two schemes on a group of T tasks. In each task the differences are paired by seed; s is their
  standard deviation and n their number. Over the group

      mean = sum(means of the tasks) / T
      v = sum(s^2 / n) / T^2
      degrees of freedom = (sum s^2 / n)^2 / sum((s^2 / n)^2 / (n - 1))      (Satterthwaite 1946)

  and mean / sqrt(v) is compared with Student's t. Each task keeps its own spread. There is no test where no difference
  varies, nor with fewer than 5 seeds where some runs of the two aren't above the majority: where learning is all or
  none, few runs agree by chance.
- **All contrasts of a report are one family**, corrected by Holm's step-down rule (1979).
- **What could have been found**: the true gap that the test finds in 80 % of cases at the level .05 / m, m being the
  number of contrasts, by the noncentral t; and how many seeds would find the gap that was measured.
- **k of n**: how many runs are above the majority's answers. For an accuracy by the binomial test, for a Matthews
  correlation R of N examples by R sqrt(N), which is about normal for the majority; one-sided, p < .001.

How far to trust it, by 20,000 simulated reports each (10 schemes that are alike, 17 contrasts, 3, 5 and 8 seeds, 1 to 3
tasks): a report has a false finding in 2 to 5 % where tasks have one spread, in 4 to 9 % where one task's spread is 25
times another's, in 3 to 4 % where each run learns a task or stays at chance, in half of the cases each (5 and 8 seeds).
95 % intervals of differences hold the truth in 94 to 98 % of cases.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from .plan import MAJORITY, Plan

ALPHA, POWER = 0.05, 0.8
ABOVE_MAJORITY = 0.001
"""The level of "above the majority"."""
FEW_SEEDS = 5
"""With fewer, schemes aren't compared where some of their runs aren't above the majority."""
MOST_SEEDS = 100
"""So many seeds at most are proposed."""
UNLEARNED = f"no test: fewer than {FEW_SEEDS} seeds, and not all learned"
_TINY = 1e-12
"""Errors below are the rounding of float64."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and the ends of its 95 % interval; None where there is one seed."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Contrast:
    """A scheme minus another on the mean over a group of tasks at a length."""

    group: str
    length: int
    scheme: str
    reference: str
    interval: Interval
    p: float | None = None
    """As it is; None: there is no test."""
    corrected: float | None = None
    """By Holm's rule, over all contrasts of the report."""
    gap: float | None = None
    """The true gap that is found in 80 % of cases."""
    seeds: int | None = None
    """How many seeds would find the gap that was measured; 101: more than 100."""

    @property
    def is_found(self) -> bool:
        """True where the two differ."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `not decided`, or why there is no test."""
        if self.corrected is None:
            if self.interval.low is None:
                return "no test: one seed"
            varies = self.interval.low < self.interval.mean
            return UNLEARNED if varies else "no test: no difference varies"
        return ("better" if self.interval.mean > 0 else "worse") if self.is_found else "not decided"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        interval = {"difference": self.interval.mean, "low": self.interval.low, "high": self.interval.high}
        where = {"tasks": self.group, "length": self.length, "scheme": self.scheme, "reference": self.reference}
        return {**where, **interval, "p": self.corrected, "verdict": self.verdict}


def scores(table: pd.DataFrame, task: str, scheme: str, length: int) -> dict[int, float]:
    """The mean over the parts of a task at a length, by seed; empty where it can't be tested there.

    A baseline has the seed -1.
    """
    rows = table[(table["task"] == task) & (table["scheme"] == scheme) & (table["length"] == length)]
    means = rows.groupby(rows["seed"].fillna(-1))["score"].agg(lambda values: values.mean(skipna=False)).dropna()
    return {int(seed): float(score) for seed, score in means.items()}


def group_scores(table: pd.DataFrame, tasks: Sequence[str], scheme: str, length: int) -> dict[int, float]:
    """The mean over tasks by seed, of the seeds that all of them have."""
    of_tasks = [scores(table, task, scheme, length) for task in tasks]
    seeds = sorted(set.intersection(*map(set, of_tasks)))
    return {seed: fmean(values[seed] for values in of_tasks) for seed in seeds}


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """The differences of scores by seed, of the seeds that both have."""
    return [first[seed] - second[seed] for seed in first if seed in second]


def above_majority(table: pd.DataFrame, task: str, scheme: str, length: int) -> tuple[int, int] | None:
    """Counts the runs above the majority's answers, in the mean over a task's parts, and all runs."""
    rows = table[(table["task"] == task) & (table["length"] == length)]
    majority, of_scheme = rows[rows["scheme"] == MAJORITY], rows[(rows["scheme"] == scheme) & rows["score"].notna()]
    if of_scheme.empty or majority.empty:
        return None
    chance, examples, metric = majority["score"].mean(), int(majority["examples"].sum()), majority["metric"].iloc[0]
    above = 0
    for score in of_scheme.groupby("seed")["score"].mean():
        if metric == "accuracy":
            p = stats.binomtest(round(score * examples), examples, min(chance, 1.0), alternative="greater").pvalue
        else:
            p = stats.norm.sf(score * math.sqrt(examples))
        above += bool(p < ABOVE_MAJORITY)
    return above, of_scheme["seed"].nunique()


def pairs(plan: Plan) -> list[tuple[str, str]]:
    """The schemes that are compared, each with each reference; two references once."""
    chosen = [(scheme, other) for other in plan.references for scheme in plan.schemes if scheme != other]
    return [pair for place, pair in enumerate(chosen) if pair[::-1] not in chosen[:place]]


def tested_lengths(plan: Plan) -> tuple[int, ...]:
    """The lengths at which schemes are compared: the train length, and the longest."""
    return tuple(dict.fromkeys((plan.home_length, plan.lengths[-1])))


def contrasts(plan: Plan, table: pd.DataFrame) -> list[Contrast]:
    """The planned contrasts of a comparison, corrected together."""
    made, tested = [], []
    for (group, tasks), length in product(plan.tested_groups.items(), tested_lengths(plan)):
        of_scheme = {scheme: [scores(table, task, scheme, length) for task in tasks] for scheme in plan.schemes}
        for scheme, reference in pairs(plan):
            differences = list(map(paired, of_scheme[scheme], of_scheme[reference]))
            if not all(differences):
                continue
            interval, p = mean_difference(differences)
            counts = (above_majority(table, *where, length) for where in product(tasks, (scheme, reference)))
            few = min(map(len, differences)) < FEW_SEEDS
            if few and any(count is not None and count[0] < count[1] for count in counts):
                p = None
            made.append(Contrast(group, length, scheme, reference, interval, p))
            tested.append(differences)
    level = ALPHA / max(1, sum(contrast.p is not None for contrast in made))
    for place, contrast in enumerate(made):
        if contrast.p is not None:
            gap, seeds = power(tested[place], level)
            made[place] = replace(contrast, gap=gap, seeds=seeds)
    return _corrected(made)


def mean_difference(differences: Sequence[Sequence[float]]) -> tuple[Interval, float | None]:
    """The mean of a group with its interval and p-value; no p-value with one seed, or where no difference varies.

    Args:
        differences: paired by seed, for each task of the group: a scheme's scores minus another's.
    """
    mean = fmean(map(fmean, differences))
    if min(map(len, differences)) < 2:
        return Interval(mean, None, None), None
    error, freedom = _error(differences)
    if error < _TINY:
        return Interval(mean, mean, mean), None
    half = float(stats.t.ppf(1 - ALPHA / 2, freedom)) * error
    return Interval(mean, mean - half, mean + half), float(2 * stats.t.sf(abs(mean) / error, freedom))


def power(differences: Sequence[Sequence[float]], level: float) -> tuple[float, int]:
    """The true gap that a test at a level finds in 80 % of cases, and the seeds that would find the measured one.

    More than 100 seeds count as 101.
    """
    mean = abs(fmean(map(fmean, differences)))
    seeds = bisect.bisect_left(
        range(MOST_SEEDS + 1), True, lo=2, key=lambda n: _gap(*_error(differences, n), level) <= mean
    )
    return _gap(*_error(differences), level), seeds


def _error(differences: Sequence[Sequence[float]], seeds: int | None = None) -> tuple[float, float]:
    """The standard error of a group's mean, and its degrees of freedom; with so many seeds (None: as many as ran)."""
    counts = [seeds or len(values) for values in differences]
    parts = [float(np.var(values, ddof=1)) / n for values, n in zip(differences, counts, strict=True)]
    below = sum(part**2 / (n - 1) for part, n in zip(parts, counts, strict=True))
    return math.sqrt(sum(parts)) / len(parts), sum(parts) ** 2 / below if below else math.nan


def _gap(error: float, freedom: float, level: float) -> float:
    """The true gap that a test at a level finds in 80 % of cases."""
    bar = stats.t.ppf(1 - level / 2, freedom)
    most = 10 * bar + 10
    return error * float(optimize.brentq(lambda gap: stats.nct.sf(bar, freedom, gap) - POWER, 0, most))


def _corrected(made: Sequence[Contrast]) -> list[Contrast]:
    """The same with corrected p-values: the k-th smallest of m, times m - k + 1, never falling."""
    tested = sorted((contrast for contrast in made if contrast.p is not None), key=lambda contrast: contrast.p or 0)
    largest, values = 0.0, {}
    for rank, contrast in enumerate(tested):
        largest = max(largest, min(1.0, (contrast.p or 0) * (len(tested) - rank)))
        values[id(contrast)] = largest
    return [replace(contrast, corrected=values.get(id(contrast))) for contrast in made]


def what_can_be_found(plan: Plan) -> str:
    """A sentence on what so many seeds can find, before anything is run."""
    tests, seeds = len(plan.tested_groups) * len(tested_lengths(plan)) * len(pairs(plan)), len(plan.seeds)
    if not tests:
        return "Nothing is compared."
    if seeds < 2:
        return "One seed gives no intervals and no tests: give 2 seeds or more."
    tasks = max(map(len, plan.tested_groups.values()))
    freedom = tasks * (seeds - 1)
    gap = _gap(1 / math.sqrt(seeds * tasks), freedom, ALPHA / tests)
    return (
        f"With {seeds} seeds and {tests} {'test' if tests == 1 else 'tests'} a gap must exceed {gap:.1f} standard "
        f"deviations{' of one task' if tasks > 1 else ''} to be found in 4 of 5 cases."
    )
