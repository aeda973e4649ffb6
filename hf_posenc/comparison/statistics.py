"""Statistics of a comparison: means with intervals, and few planned tests.

Every run of a task is tested on the same examples, so that intervals and verdicts are about these test rows, for seeds
like those that ran.

- **A mean** over n seeds has the interval of Student's t, with n - 1 degrees of freedom.
- **A contrast** compares two schemes on a group of T tasks, by Welch's test (1947) on seeds. In each task a scheme has
  n scores with the standard deviation s. Over the group

      difference = sum(mean of one scheme - mean of the other) / T      over tasks
      v = sum(s^2 / n) / T^2                                            over tasks and both schemes
      degrees of freedom = (sum s^2 / n)^2 / sum((s^2 / n)^2 / (n - 1))      (Satterthwaite 1946)

  and difference / sqrt(v) is compared with Student's t. Tasks of the same data share a seed's rows: they are averaged
  by seed first, and are one task. There is no test where no score varies, nor with fewer than 5 seeds where some runs
  of the two aren't above the majority: where learning is all or none, few runs agree by chance.
- **One correction** for tests, intervals and equivalence, over the m contrasts that are planned: Bonferroni. A p-value
  is multiplied by m, an interval has the level 1 - .05 / m. So all intervals hold at once in 95 % of reports, and a
  scheme is better or worse exactly where its interval excludes 0.
- **Equivalence**: a scheme is within a margin, which the plan fixes, where its interval lies inside of it.
- **What can be found**: the true difference that such a test of two schemes finds in 80 % of cases, for one spread of
  all schemes: the pooled one of the runs, or before them in units of it.
- **k of n**: how many runs are above the majority's answers. For an accuracy by the binomial test, for a Matthews
  correlation R of N examples by R sqrt(N), which is about normal for the majority; one-sided, p < .001.

How far to trust it, by 20,000 simulated reports each (10 schemes that are alike, 17 contrasts, 3, 5 and 8 seeds, 1 to 3
tasks): a report has a false finding in 2 to 4 % where tasks have one spread or one task's is 25 times another's, in 2
to 6 % where one scheme's spread is 25 times another's, in 3 to 5 % where each run learns a task or stays at chance, in
half of the cases each (5 and 8 seeds; with 3 in up to 30 %, which is why they aren't tested).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from ..data.tables import counted
from ..errors import UserError
from .plan import MAJORITY, Plan

ALPHA, POWER = 0.05, 0.8
ABOVE_MAJORITY = 0.001
"""The level of "above the majority"."""
FEW_SEEDS = 5
"""With fewer, schemes aren't compared where some of their runs aren't above the majority."""
LARGEST_GAP = 4.0
"""A plan has to find some difference of so many standard deviations."""
ONE_SEED = "no test: one seed"
NOTHING_VARIES = "no test: no score varies"
UNLEARNED = f"no test: fewer than {FEW_SEEDS} seeds, and not all learned"
_DRAWS = 4000
"""Of spreads, by which power is computed."""
_TINY = 1e-12
"""Errors below are the rounding of float64."""

Scores = Mapping[int, float]
"""The scores of a scheme in a task, by seed."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and the ends of its interval; None where there is none."""

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
    """For all contrasts of the report."""
    margin: float | None = None
    """Of equivalence."""
    untested: str = ""
    """Why there is no test."""

    @property
    def is_found(self) -> bool:
        """True where the two differ."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def is_within(self) -> bool:
        """True where the two differ by less than the margin."""
        ends = (self.interval.low, self.interval.high)
        if self.margin is None or self.untested:
            return False
        return all(end is not None and abs(end) < self.margin for end in ends)

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `within` the margin, or both, `not decided`, or why there is no test."""
        if self.untested:
            return self.untested
        words = [("better" if self.interval.mean > 0 else "worse")] if self.is_found else []
        words += [f"within {self.margin:g}"] if self.is_within else []
        return ", ".join(words) or "not decided"

    def reversed(self) -> "Contrast":
        """The reference minus the scheme."""
        ends = (None if end is None else -end for end in (self.interval.high, self.interval.low))
        return replace(
            self, scheme=self.reference, reference=self.scheme, interval=Interval(-self.interval.mean, *ends)
        )

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


def count_tests(plan: Plan) -> int:
    """The number of planned contrasts, for which tests and intervals are corrected."""
    return len(plan.tested_groups) * len(tested_lengths(plan)) * len(pairs(plan))


def contrasts(plan: Plan, table: pd.DataFrame) -> list[Contrast]:
    """The planned contrasts of a comparison, corrected together."""
    made = []
    for (group, tasks), length in product(plan.tested_groups.items(), tested_lengths(plan)):
        scored = _scored(plan, table, tasks, length)
        for scheme, reference in pairs(plan):
            first, second = ([[*of_task.values()] for of_task in scored[name]] for name in (scheme, reference))
            compared = [*first, *second]
            if not all(compared):
                continue
            interval, p = welch(first, second, ALPHA / count_tests(plan))
            counts = (above_majority(table, *where, length) for where in product(tasks, (scheme, reference)))
            untested = ""
            if min(map(len, compared)) < 2:
                untested = ONE_SEED
            elif p is None:
                untested = NOTHING_VARIES
            elif min(map(len, compared)) < FEW_SEEDS and any(k is not None and k[0] < k[1] for k in counts):
                untested = UNLEARNED
                interval = Interval(interval.mean, None, None)
                p = None
            corrected = None if p is None else min(1.0, p * count_tests(plan))
            made.append(Contrast(group, length, scheme, reference, interval, p, corrected, plan.margin, untested))
    return made


def samples(plan: Plan, table: pd.DataFrame, tasks: Sequence[str], scheme: str, length: int) -> list[Scores]:
    """The scores of a scheme in each task; of tasks that share their data the means by seed, as of one task."""
    if _share_data(plan, tasks):
        return [group_scores(table, tasks, scheme, length)]
    return [scores(table, task, scheme, length) for task in tasks]


def _scored(plan: Plan, table: pd.DataFrame, tasks: Sequence[str], length: int) -> dict[str, list[Scores]]:
    """The samples of each scheme."""
    return {scheme: samples(plan, table, tasks, scheme, length) for scheme in plan.schemes}


def _share_data(plan: Plan, tasks: Sequence[str]) -> bool:
    """True where a seed's runs of several tasks aren't independent, so that they count as one."""
    data = [task.data for task in plan.tasks if task.name in tasks]
    return len(set(data)) < len(data)


def mean_over_seeds(*tasks: Sequence[float]) -> Interval:
    """The mean of scores over seeds, and over tasks, with its 95 % interval."""
    return _tested(fmean(map(fmean, tasks)), tasks, len(tasks), ALPHA)[0]


def welch(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], level: float = ALPHA
) -> tuple[Interval, float | None]:
    """One scheme minus another with its interval and p-value; no p-value with one seed, or where nothing varies.

    Args:
        first, second: the scores of each scheme over seeds, for each task of the group.
        level: of the interval, which holds the truth in all but this share of cases.
    """
    mean = fmean(map(fmean, first)) - fmean(map(fmean, second))
    return _tested(mean, [*first, *second], len(first), level)


def _tested(mean: float, samples: Sequence[Sequence[float]], tasks: int, level: float) -> tuple[Interval, float | None]:
    """The mean over tasks, whose error comes from the samples, with its interval and p-value."""
    if min(map(len, samples)) < 2:
        return Interval(mean, None, None), None
    seeds = np.array([len(values) for values in samples])
    error, freedom = _error(np.array([np.var(values, ddof=1) for values in samples]) / seeds, seeds, tasks)
    if error < _TINY:
        return Interval(mean, mean, mean), None
    half = float(stats.t.ppf(1 - level / 2, freedom)) * error
    return Interval(mean, mean - half, mean + half), float(2 * stats.t.sf(abs(mean) / error, freedom))


def _error(parts: np.ndarray, seeds: Any, tasks: int) -> tuple[Any, Any]:
    """The standard error of a mean over tasks, and its degrees of freedom.

    Args:
        parts: the variance of each sample's mean, in the last axis.
        seeds: how many each sample has, or all.
        tasks: how many the mean is over.
    """
    total = parts.sum(-1)
    with np.errstate(invalid="ignore"):  # where nothing varies
        return np.sqrt(total) / tasks, total**2 / (parts**2 / (seeds - 1)).sum(-1)


def smallest_gaps(plan: Plan, table: pd.DataFrame | None = None) -> dict[tuple[str, int], float]:
    """The true difference that a test with all seeds finds in 80 % of cases, by group and length; empty without tests.

    Args:
        plan: with two seeds or more.
        table: the results, whose spread in each task is pooled over schemes. None: in standard deviations.
    """
    gaps: dict[tuple[str, int], float] = {}
    if not count_tests(plan):
        return gaps
    for (group, tasks), length in product(plan.tested_groups.items(), tested_lengths(plan)):
        if table is None:
            variances = [1.0] * (1 if _share_data(plan, tasks) else len(tasks))
        else:
            variances = _pooled(_scored(plan, table, tasks, length))
        if any(variances):
            gaps[group, length] = smallest_gap([variances, variances], len(plan.seeds), count_tests(plan))
    return gaps


def _pooled(scored: Mapping[str, Sequence[Scores]]) -> list[float]:
    """The variance in each task, pooled over the schemes that vary there."""
    variances = []
    for of_schemes in zip(*scored.values(), strict=True):
        samples = [[*values.values()] for values in of_schemes]
        varying = [sample for sample in samples if len(sample) > 1 and np.var(sample) > _TINY**2]
        below = sum(len(sample) - 1 for sample in varying)
        variances.append(sum(float(np.var(s, ddof=1)) * (len(s) - 1) for s in varying) / below if below else 0.0)
    return variances


def smallest_gap(variances: Sequence[Sequence[float]], seeds: int, tests: int) -> float:
    """The true difference that one of so many tests finds in 80 % of cases.

    Args:
        variances: of both schemes, in each task.
        seeds: of each.
        tests: that are corrected together.
    """
    tasks = len(variances[0])
    spreads = np.concatenate(variances) / seeds
    error = math.sqrt(spreads.sum()) / tasks
    # A mean doesn't depend on the spread that its sample has: that of scores is drawn, and the rest is computed.
    drawn = np.random.default_rng(0).chisquare(seeds - 1, (_DRAWS, len(spreads))) / (seeds - 1) * spreads
    errors, freedom = _error(drawn, seeds, tasks)
    bars = stats.t.ppf(1 - ALPHA / tests / 2, freedom) * errors
    return float(
        optimize.brentq(lambda gap: stats.norm.sf((bars - gap) / error).mean() - POWER, 0, bars.max() + 10 * error)
    )


def what_can_be_found(plan: Plan) -> str:
    """A sentence on what so many seeds can find, before anything is run."""
    tests = count_tests(plan)
    seeds = len(plan.seeds)
    if not tests:
        return "Nothing is compared."
    if seeds < 2:
        return "One seed gives no intervals and no tests: give 2 seeds or more."
    gaps = {group: gap for (group, _), gap in smallest_gaps(plan).items()}
    of_groups = ", ".join(f"{gap:.1f} on {group}" for group, gap in gaps.items()) if len(gaps) > 1 else ""
    least = of_groups or f"{min(gaps.values()):.1f}"
    return (
        f"With {seeds} seeds and {tests} {'test' if tests == 1 else 'tests'} a difference must exceed {least} standard "
        f"deviations (of a scheme's scores in a task, over seeds) to be found in 4 of 5 cases."
    )


def check_power(plan: Plan) -> None:
    """Refuses a plan that could find nothing; one of one seed, which has no tests, says so itself.

    Raises:
        UserError: naming the seeds that it needs.
    """
    if len(plan.seeds) < 2 or not count_tests(plan):
        return
    gap = min(smallest_gaps(plan).values())
    if gap <= LARGEST_GAP:
        return
    needed = len(plan.seeds)
    while min(smallest_gaps(replace(plan, seeds=tuple(range(needed)))).values()) > LARGEST_GAP:
        needed += 1
    raise UserError(
        f"is too few for {counted(count_tests(plan), 'test')}: no difference below {gap:.1f} standard deviations of a "
        f"scheme's scores would be found. Give {needed} seeds, fewer schemes, or 1 seed, which gives no tests.",
        parameter="seeds",
        value=len(plan.seeds),
    )
