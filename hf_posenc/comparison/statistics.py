"""What runs allow one to say: means, intervals over seeds and examples, differences, and which runs learned.

The runs of one scheme differ by seed, and all are tested on the same examples: both were drawn, and both vary. How they
make an interval and a p-value is said in `spread`. The part of the examples comes from a bootstrap whose draws are the
same for every scheme.

Whether two schemes differ is asked of their differences per seed, by those two schemes alone: which others are in the
plan decides nothing but the number of comparisons. The p-values of a family are corrected by Holm's step-down rule
(1979). What isn't found says little without what would have been: `Difference.gap`, and how many seeds the difference
that was measured would take: `Difference.seeds`.

How far to trust it, from the simulations in tests/comparison/test_comparison_simulation.py (3, 5 and 8 seeds, 100 to
2,000 examples, spreads as in the committed results):

- Where runs vary about one level, 95 % intervals of means and differences hold the truth in 94 to 99 % of cases; those
  of a Matthews correlation in 93 to 99 % (3 and 5 seeds, 527 examples, 70 % of them of one class).
- Where a run learns with probability q and else stays at chance, intervals of differences of two such schemes hold it
  in 95 % or more. An interval of a *mean* doesn't, nor one of a difference from a scheme that can't learn (`none`):
  when all runs learned, as they do in q^n of cases, nothing in them shows that others may not. For q = .5, .8 and .95
  these hold the truth in 75, 73 and 92 % of cases with 3 seeds, in 94, 67 and 87 % with 5, and in 93, 83 and 86 % with
  8 (250 pairs of examples). They are intervals for seeds like those that ran. Beside them stands `Learned`, k of n
  runs, whose exact interval (Clopper and Pearson 1934) holds q in at least 95 % of cases.
- A family of up to 14 schemes that are all alike has a false finding in at most 5 % of cases, however they learn.
- The gap that is named as found in 80 % of cases is found in 75 to 90 %, where runs vary about one level. Where
  learning is all or none it is rough (50 to 90 %): the spread changes with the share of runs that learn.
"""

import functools
import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import stats

from .outcomes import Outcome, weighted_sums
from .spread import Spread

DRAWS = 2000
ALPHA = 0.05
LEARNED = 0.001
"""Significance level of `has_learned`."""
UNDECIDED = "not decided"

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and the interval of it; None where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def ends(self) -> tuple[float, float]:
        """Its ends; the mean twice where there is one seed."""
        return (self.mean, self.mean) if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Difference:
    """A scheme minus the baseline, on the seeds that both have."""

    interval: Interval
    p: float | None
    """As it is; `holm` corrects a family. None where there is one seed."""
    corrected: float | None = None
    spread: Spread | None = None
    """None where there is one seed."""
    widest: float = np.inf
    """The greatest difference that the metric allows."""
    gap: float | None = None
    """The least true difference that the test finds in 80 % of cases, after correction; None where it found one."""
    seeds: float | None = None
    """How many seeds would find the difference that was measured; infinite where too many. None where it was found."""

    @property
    def is_found(self) -> bool:
        """Whether the schemes differ, by the corrected p-value."""
        return self.corrected is not None and self.corrected < ALPHA

    def verdict(self) -> str:
        """`better`, `worse` or `not decided`."""
        if self.corrected is None:
            return "one seed: can't be said"
        if not self.is_found:
            return UNDECIDED
        return "better" if self.interval.mean > 0 else "worse"


Scores = Mapping[int, Mapping[str, Outcome]]
"""By seed, and by test (a part at a length): what a scheme did there."""


@dataclass(frozen=True)
class Sample:
    """The values of one scheme for a mean over tests: as measured, and in each bootstrap draw of the test units."""

    seeds: list[int]
    values: np.ndarray
    """(n,): one per seed."""
    drawn: np.ndarray
    """(B, n): the same with resampled units."""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    """The least and the greatest value that there can be."""
    learned: np.ndarray | None = None
    """(n, T): which tests each run learned, see `has_learned`. None where that isn't left to chance, or isn't known."""

    @classmethod
    def of(cls, outcomes: Scores, learned: np.ndarray | None = None) -> "Sample":
        """The means over tests, which are the same for all seeds."""
        seeds = sorted(outcomes)
        tests = sorted(outcomes[seeds[0]])
        if any(sorted(outcomes[seed]) != tests for seed in seeds):
            raise ValueError("The seeds have different tests.")
        values = np.array([np.mean([outcomes[seed][test].value() for test in tests]) for seed in seeds], np.float64)
        drawn = np.zeros((DRAWS, len(seeds)))
        for test in tests:
            weights = unit_weights(test, len(outcomes[seeds[0]][test].units))
            of_test = [outcomes[seed][test] for seed in seeds]
            units = np.concatenate([outcome.units for outcome in of_test], axis=1)
            sums = weighted_sums(weights, units)  # one product for all seeds
            ends = np.cumsum([outcome.units.shape[1] for outcome in of_test])[:-1]
            parts = zip(of_test, np.split(sums, ends, axis=1), strict=True)
            drawn += np.stack([outcome.metric_of(part) for outcome, part in parts], axis=1)
        return cls(seeds, values, drawn / len(tests), outcomes[seeds[0]][tests[0]].bounds, learned)

    def at(self, seeds: Sequence[int]) -> "Sample":
        """The same of some of the seeds."""
        rows = [self.seeds.index(seed) for seed in seeds]
        learned = None if self.learned is None else self.learned[rows]
        return replace(self, seeds=list(seeds), values=self.values[rows], drawn=self.drawn[:, rows], learned=learned)


@functools.lru_cache(maxsize=8)  # a mean over six parts needs as many for each scheme
def unit_weights(test: str, units: int) -> np.ndarray:
    """How often each unit of a test is drawn: (B, U), the same for every scheme and seed."""
    seed = int.from_bytes(hashlib.sha256(f"{test} {units}".encode()).digest()[:8])
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, units, (DRAWS, units)) + units * np.arange(DRAWS)[:, None]  # a row's own numbers
    return np.bincount(drawn.ravel(), minlength=DRAWS * units).reshape(DRAWS, units).astype(np.float32)


def interval(sample: Sample) -> Interval:
    """The mean over seeds with its interval."""
    spread = Spread.of(sample.values, sample.drawn) if len(sample.values) > 1 else None
    return _interval(float(sample.values.mean()), spread, len(sample.values), sample.bounds)


def _interval(
    mean: float, spread: Spread | None, seeds: int, bounds: tuple[float, float] = (-np.inf, np.inf)
) -> Interval:
    if spread is None:
        return Interval(mean, None, None, seeds)
    half = spread.half_width(ALPHA, mean)
    low, high = np.clip([mean - half, mean + half], *bounds)
    return Interval(mean, float(low), float(high), seeds)


def paired(family: Mapping[Name, tuple[Sample, Sample]]) -> dict[Name, Difference]:
    """The differences of a family: the first of each pair minus the second, seed by seed; p-values as they are.

    Pairs without a common seed are left out.
    """
    return {
        name: _difference(sample.at(seeds), other.at(seeds))
        for name, (sample, other) in family.items()
        if (seeds := [seed for seed in sample.seeds if seed in other.seeds])
    }


def _difference(sample: Sample, other: Sample) -> Difference:
    """Of two samples of the same seeds."""
    values, drawn = sample.values - other.values, sample.drawn - other.drawn
    mean, widest = float(values.mean()), sample.bounds[1] - sample.bounds[0]
    spread = Spread.of(values, drawn, _is_all_or_none(sample, other)) if len(values) > 1 else None
    p = None if spread is None else spread.p_value(mean)
    return Difference(_interval(mean, spread, len(values)), p, spread=spread, widest=widest)


def _is_all_or_none(sample: Sample, other: Sample) -> bool:
    """Whether some runs of the two learned a test and others didn't."""
    if sample.learned is None or other.learned is None:
        return False
    share = np.concatenate([sample.learned, other.learned]).mean(0)
    return bool(((share > 0) & (share < 1)).any())


def holm(differences: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The same with corrected p-values: the k-th smallest of m, times m - k + 1, never falling.

    One that isn't a number (a scheme whose training diverged) is no finding, and hides none. Where r are found, each of
    the others would have been at p < ALPHA / (m - r): for that level they get their smallest gap and number of seeds.
    """
    tested = [(name, difference.p) for name, difference in differences.items() if difference.p is not None]
    tested = sorted(((name, 1.0 if np.isnan(p) else p) for name, p in tested), key=lambda entry: entry[1])
    corrected: dict[Name, float] = {}
    largest = 0.0
    for rank, (name, p) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        corrected[name] = largest
    missed = sum(p >= ALPHA for p in corrected.values())
    return {name: _with(difference, corrected.get(name), missed) for name, difference in differences.items()}


def _with(difference: Difference, corrected: float | None, missed: int) -> Difference:
    """The same with its corrected p-value and, where it wasn't found, what finding it takes."""
    spread, mean = difference.spread, difference.interval.mean
    gap = seeds = None
    if spread is not None and corrected is not None and corrected >= ALPHA:
        gap = spread.smallest_gap(ALPHA / missed)
        seeds = None if gap is None else spread.seeds_to_find(mean, ALPHA / missed)
    return replace(difference, corrected=corrected, gap=gap, seeds=seeds)


@dataclass(frozen=True)
class Learned:
    """How many runs of how many learned a test."""

    runs: int
    of: int

    @property
    def ends(self) -> tuple[float, float]:
        """The exact 95 % interval of the probability that a run learns it (Clopper and Pearson 1934)."""
        low, high = stats.binomtest(self.runs, self.of).proportion_ci(1 - ALPHA, method="exact")
        return float(low), float(high)


def has_learned(outcome: Outcome, chance: Outcome | None) -> bool | None:
    """Whether a run knows more than the majority's answers to the same units; None where that can't be said.

    Of a probe `chance` is what the usual form of its question alone reaches (`references.USUAL_FORM`).

    For accuracies a sign test of the units in which one of the two has more right, one-sided, p < LEARNED. Where units
    are pairs of examples with the same words and two answers, it asks whether more pairs have two right than none: one
    right and one wrong is what the same answer to both gives. For a Matthews correlation R, which is 0 for the
    majority, R sqrt(N) is compared with the normal distribution (R^2 N is Pearson's chi^2 of two classes).
    """
    if outcome.metric == "matthews_correlation":
        return bool(stats.norm.sf(outcome.value() * np.sqrt(outcome.units.sum())) < LEARNED)
    if chance is None:
        return None
    ahead = outcome.units[:, 0] - chance.units[:, 0]
    more, less = (int((ahead * sign > 0).sum()) for sign in (1, -1))
    return bool(_at_least(more, more + less) < LEARNED)


@functools.lru_cache(maxsize=4096)
def _at_least(heads: int, tosses: int) -> float:
    """The probability of so many heads, or more."""
    return float(stats.binom.sf(heads - 1, tosses, 0.5))
