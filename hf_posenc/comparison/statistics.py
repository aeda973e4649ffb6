"""What runs allow one to say: means, intervals over seeds and examples, differences from a baseline.

The runs of one scheme differ by seed, and all are tested on the same examples: both were drawn, and both vary. The
mean of n seeds has the variance

    s^2 / n + v,

s^2 being that of the seeds' values, and v that over test units (examples, or groups of them) of the mean over seeds,
from a bootstrap whose draws are the same for every scheme. Intervals are mean +- t sqrt(s^2 / n + v), with Student's
t for the degrees of freedom of Welch and Satterthwaite (1946): n - 1 where seeds alone vary, many where examples do.
(Percentiles of a bootstrap over 2 to 5 seeds would hold the truth in 60 to 87 % of cases, not in 95 %.)

Whether two schemes differ is asked by the same rule of their differences per seed. Where s^2 is less than its median
over all differences of the family, it is moved halfway there, with 2 (n - 1) degrees of freedom, a moderated t-test
(Smyth 2004): probes are learned or not, so that few seeds agree by chance, and their own spread is no measure then.
(The median, so that one scheme whose seeds differ much doesn't decide what is said of the others.) The p-values of a
family are corrected by Holm's step-down rule (1979). What isn't found says little without what would have been:
`smallest_gap`. Whether a single run knows more than chance is asked by `learned`.
"""

import functools
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import special, stats

from .outcomes import Outcome

DRAWS = 2000
LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
LEARNED = 0.001
"""Significance level of `learned`."""
NO_EVIDENCE = "no evidence of a difference"

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
    error: float = np.nan
    """The standard error of the mean difference."""
    freedom: float = np.nan
    """Its degrees of freedom."""
    widest: float = np.inf
    """The greatest difference that the metric allows."""
    gap: float | None = None
    """The least true difference that the test finds in 80 % of cases, after correction; see `smallest_gap`."""

    @property
    def is_found(self) -> bool:
        """Whether the schemes differ, by the corrected p-value."""
        return self.corrected is not None and self.corrected < ALPHA

    def verdict(self, lower_is_better: bool = False) -> str:
        """`better`, `worse`, or that there is no evidence of a difference."""
        if self.corrected is None:
            return "one seed: can't be said"
        if not self.is_found:
            return NO_EVIDENCE
        return "better" if (self.interval.mean > 0) != lower_is_better else "worse"


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

    @classmethod
    def of(cls, outcomes: Scores) -> "Sample":
        """The means over tests, which are the same for all seeds."""
        seeds = sorted(outcomes)
        tests = sorted(outcomes[seeds[0]])
        if any(sorted(outcomes[seed]) != tests for seed in seeds):
            raise ValueError("The seeds have different tests.")
        values = np.array([np.mean([outcomes[seed][test].value() for test in tests]) for seed in seeds], np.float64)
        drawn = np.zeros((DRAWS, len(seeds)))
        for test in tests:
            weights = unit_weights(test, len(outcomes[seeds[0]][test].units))
            drawn += np.stack([outcomes[seed][test].scores(weights) for seed in seeds], axis=1)
        return cls(seeds, values, drawn / len(tests), outcomes[seeds[0]][tests[0]].bounds)

    def minus(self, other: "Sample") -> "Sample":
        """The differences at the seeds that both have."""
        seeds = [seed for seed in self.seeds if seed in other.seeds]
        own_rows, other_rows = ([sample.seeds.index(seed) for seed in seeds] for sample in (self, other))
        return Sample(
            seeds,
            self.values[own_rows] - other.values[other_rows],
            self.drawn[:, own_rows] - other.drawn[:, other_rows],
        )


@functools.lru_cache(maxsize=4)
def unit_weights(test: str, units: int) -> np.ndarray:
    """How often each unit of a test is drawn: (B, U), the same for every scheme and seed."""
    seed = int.from_bytes(hashlib.sha256(f"{test} {units}".encode()).digest()[:8])
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, units, (DRAWS, units)) + units * np.arange(DRAWS)[:, None]  # a row's own numbers
    return np.bincount(drawn.ravel(), minlength=DRAWS * units).reshape(DRAWS, units).astype(np.float32)


def interval(sample: Sample) -> Interval:
    """The mean over seeds with its interval."""
    return _interval(sample)[0]


def _interval(sample: Sample, others: float = 0.0) -> tuple[Interval, float, float]:
    """The interval, the variance of the mean, and its degrees of freedom; for `others` see `paired`."""
    values = sample.values
    count, mean = len(values), float(values.mean())
    if count < 2:
        return Interval(mean, None, None, count), np.nan, np.nan
    own = values.var(ddof=1)
    is_borrowed = others > own
    over_seeds = ((own + others) / 2 if is_borrowed else own) / count
    freedom = (count - 1) * (2 if is_borrowed else 1)
    variance = over_seeds + sample.drawn.mean(1).var()
    # Equal to the last digit in every seed and draw: what is left is the rounding of float64.
    if variance < 1e-24:
        return Interval(mean, mean, mean, count), 0.0, freedom
    freedom *= (variance / max(over_seeds, 1e-12 * variance)) ** 2
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance)
    low, high = np.clip([mean - half, mean + half], *sample.bounds)
    return Interval(mean, float(low), float(high), count), float(variance), float(min(freedom, 1e9))


def paired(family: Mapping[Name, tuple[Sample, Sample]]) -> dict[Name, Difference]:
    """The differences of a family: the first of each pair minus the second, seed by seed; p-values as they are.

    Pairs without a common seed are left out. A spread below the family's median is moved halfway there.
    """
    shared = {name: pair for name, pair in family.items() if set(pair[0].seeds) & set(pair[1].seeds)}
    differences = {name: sample.minus(other) for name, (sample, other) in shared.items()}
    spreads = [difference.values.var(ddof=1) for difference in differences.values() if len(difference.seeds) > 1]
    others = float(np.median(spreads)) if spreads else 0.0
    return {name: _test(difference, others, shared[name][0].bounds) for name, difference in differences.items()}


def _test(difference: Sample, others: float, bounds: tuple[float, float]) -> Difference:
    """Whether the mean of the seeds' differences is 0: a t-test; where nothing varies, any difference counts."""
    mean, variance, freedom = _interval(difference, others)
    if mean.seeds < 2:
        return Difference(mean, None)
    error = float(np.sqrt(variance))
    if error == 0:
        p = 0.0 if abs(mean.mean) > 1e-12 else 1.0
    else:
        p = float(2 * stats.t.sf(abs(mean.mean) / error, freedom))
    return Difference(mean, p, error=error, freedom=freedom, widest=bounds[1] - bounds[0])


def holm(differences: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The same with corrected p-values: the k-th smallest of m, times m - k + 1, never falling.

    One that isn't a number (a scheme whose training diverged) is no evidence, and hides none. Where r are found, each
    of the others would have been at p < ALPHA / (m - r): for that level they get their smallest gap.
    """
    tested = [(name, difference.p) for name, difference in differences.items() if difference.p is not None]
    tested = sorted(((name, 1.0 if np.isnan(p) else p) for name, p in tested), key=lambda entry: entry[1])
    corrected: dict[Name, float] = {}
    largest = 0.0
    for rank, (name, p) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        corrected[name] = largest
    missed = sum(p >= ALPHA for p in corrected.values())
    return {
        name: replace(
            difference,
            corrected=corrected.get(name),
            gap=smallest_gap(difference, ALPHA / missed) if corrected.get(name, 0.0) >= ALPHA else None,
        )
        for name, difference in differences.items()
    }


def smallest_gap(difference: Difference, level: float) -> float | None:
    """The least true difference that a test finds in 80 % of cases, given the spread that was measured.

    The test finds what exceeds c standard errors e, c = t_{f, 1 - level / 2}. With a true difference of g the ratio
    has Student's noncentral t distribution with f degrees of freedom and noncentrality g / e, so g solves

        P(T_f(g / e) > c) = 0.8.

    None where there is no spread to go by: one seed, a score that is no number, or the same difference at every seed.
    """
    if np.isnan(difference.error) or difference.error == 0:
        return None
    critical = stats.t.isf(level / 2, difference.freedom)
    return float(difference.error * special.nctdtrinc(difference.freedom, 1 - POWER, critical))


def learned(outcome: Outcome) -> bool:
    """Whether a run knows more than chance, of units that are pairs of examples with the same words and two answers.

    One right and one wrong is what the same answer to both gives, and says nothing. Of the other pairs a model that
    guesses has as many with two right as with none: an exact binomial test, one-sided, p < LEARNED.
    """
    both, neither = (int((outcome.units[:, 0] == right).sum()) for right in (2, 0))
    return bool(stats.binom.sf(both - 1, both + neither, 0.5) < LEARNED)
