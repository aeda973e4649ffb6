"""What runs allow one to say: means, intervals over seeds and examples, differences from a baseline.

The runs of one scheme differ by seed, and all are tested on the same examples: both were drawn, and both vary. So an
interval resamples both: each of B draws takes test units (examples, or groups of them) and seeds with replacement,
the same ones for every scheme. The seeds' part is stretched by sqrt(n / (n - 1)), without which a bootstrap of few
values is too narrow (Rao and Wu 1988). Intervals are the middle 95 % of the draws.

Whether two schemes differ is asked by a paired test on the difference d_s per seed:

    t = mean(d) / sqrt(sd(d)^2 / n + v),    n - 1 degrees of freedom,

v being the variance over test units of mean(d), from the bootstrap. With few seeds it is strict. The p-values of a
family of comparisons are corrected by Holm's step-down rule (1979).
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .outcomes import Outcome

DRAWS = 2000
LEVEL = 0.95
ALPHA = 0.05
NO_EVIDENCE = "no evidence of a difference"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and the interval of it; None where there is one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Difference:
    """A scheme minus the baseline, on the seeds that both have."""

    interval: Interval
    p: float | None
    """As it is; `holm` corrects a family. None where there is one seed."""
    corrected: float | None = None

    def verdict(self, lower_is_better: bool = False) -> str:
        """`better`, `worse`, or that there is no evidence; None seeds can't say."""
        if self.corrected is None:
            return "one seed: can't be said"
        if self.corrected >= ALPHA:
            return NO_EVIDENCE
        return "better" if (self.interval.mean > 0) != lower_is_better else "worse"


Scores = Mapping[int, Mapping[str, Outcome]]
"""By seed, and by test (a part at a length): what a scheme did there."""


class Sample:
    """The values of one scheme for a mean over tests: as measured, and in each bootstrap draw of the test units."""

    def __init__(self, outcomes: Scores) -> None:
        self.seeds = sorted(outcomes)
        tests = sorted(outcomes[self.seeds[0]])
        if any(sorted(outcomes[seed]) != tests for seed in self.seeds):
            raise ValueError("The seeds have different tests.")
        self.values = np.array(
            [np.mean([outcomes[seed][test].value() for test in tests]) for seed in self.seeds], dtype=np.float64
        )
        """(n,): one per seed."""
        self.bounds = outcomes[self.seeds[0]][tests[0]].bounds
        drawn = np.zeros((DRAWS, len(self.seeds)))
        for test in tests:
            units = len(outcomes[self.seeds[0]][test].units)
            weights = unit_weights(test, units)
            drawn += np.stack([outcomes[seed][test].scores(weights) for seed in self.seeds], axis=1)
        self.drawn = drawn / len(tests)
        """(B, n): the same with resampled units."""

    @classmethod
    def of_values(cls, values: Mapping[int, float], bounds: tuple[float, float]) -> "Sample":
        """Of runs whose examples aren't known: one value per seed, so that an interval is over seeds alone."""
        made = object.__new__(cls)
        made.seeds = sorted(values)
        made.values = np.array([values[seed] for seed in made.seeds], dtype=np.float64)
        made.drawn = np.broadcast_to(made.values, (DRAWS, len(made.seeds)))
        made.bounds = bounds
        return made

    def only(self, seeds: Sequence[int]) -> "Sample":
        """The same for some of the seeds."""
        chosen = [self.seeds.index(seed) for seed in seeds]
        other = object.__new__(Sample)
        other.seeds, other.values, other.drawn = list(seeds), self.values[chosen], self.drawn[:, chosen]
        other.bounds = self.bounds
        return other


@functools.lru_cache(maxsize=32)
def unit_weights(test: str, units: int) -> np.ndarray:
    """How often each unit of a test is drawn: (B, U), the same for every scheme and seed."""
    seed = int.from_bytes(hashlib.sha256(f"{test} {units}".encode()).digest()[:8])
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=DRAWS).astype(np.float64)


@functools.lru_cache(maxsize=32)
def _seed_weights(count: int) -> np.ndarray:
    """The share of each seed in each draw: (B, n)."""
    return np.random.default_rng(count).multinomial(count, np.full(count, 1 / count), size=DRAWS) / count


def interval(sample: Sample) -> Interval:
    """The mean over seeds with its interval."""
    return _interval(sample.values, sample.drawn, sample.bounds)


def _interval(values: np.ndarray, drawn: np.ndarray, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    count = len(values)
    mean = float(values.mean())
    if count < 2:
        return Interval(mean, None, None, count)
    centre = drawn.mean(1)
    chosen = (_seed_weights(count) * drawn).sum(1)
    stretched = centre + np.sqrt(count / (count - 1)) * (chosen - centre)
    # Stretched, a draw may leave the range of the metric.
    low, high = np.clip(np.quantile(stretched, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]), *bounds)
    return Interval(mean, float(low), float(high), count)


def difference(sample: Sample, baseline: Sample) -> Difference:
    """A scheme minus the baseline, seed by seed.

    Raises:
        ValueError: they have no seed in common.
    """
    common = [seed for seed in sample.seeds if seed in baseline.seeds]
    if not common:
        raise ValueError("The scheme and the baseline have no seed in common.")
    first, second = sample.only(common), baseline.only(common)
    values, drawn = first.values - second.values, first.drawn - second.drawn
    found = _interval(values, drawn)
    if len(common) < 2:
        return Difference(found, None)
    variance = values.var(ddof=1) / len(values) + drawn.mean(1).var()
    # Equal to the last digit in every seed and draw: what is left is the rounding of float64.
    if variance < 1e-24:
        return Difference(found, 0.0 if abs(found.mean) > 1e-12 else 1.0)
    p = 2 * stats.t.sf(abs(found.mean) / np.sqrt(variance), len(values) - 1)
    return Difference(found, float(p))


def holm(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same with corrected p-values: the k-th smallest of m, times m - k + 1, never falling."""
    tested = sorted((found.p, name) for name, found in differences.items() if found.p is not None)
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        corrected[name] = largest
    return {name: Difference(found.interval, found.p, corrected.get(name)) for name, found in differences.items()}
