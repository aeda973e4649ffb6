"""What a mean over seeds and test examples varies by, and what follows: its interval, p-values, and power.

A mean of n seeds, all tested on the same examples, has two sources of error:

- seeds: s^2 / n, s being the standard deviation over seeds, with n - 1 degrees of freedom;
- examples: v, the variance of the mean over these n seeds when examples are drawn anew. A part u of it is shared by
  all seeds (an example is hard for all of them), the rest, v - u, is in s^2 / n already.

At a level a (.05 for 95 % intervals), with the two-sided quantiles t of Student's distribution and z of the normal
one, the interval of a mean m is m +- h,

    h^2 = max(t^2 (s^2 / n + f) + z^2 u, z^2 v),    f = (m / n)^2 or 0.

Each part has its own quantile (Graybill and Wang 1980), so that seeds that agree by chance never pass for many degrees
of freedom, as they do in Welch's approximation; and no interval is narrower than the examples alone allow. The p-value
is the level at which |m| = h.

f counts for a difference of two schemes where learning was all or none: some of their runs learned and others didn't.
Then few runs agree by chance (5 of 5 learned), and s is no measure. f is what the mean could have changed by if one
run of n had shown no difference. Where all runs of one scheme learned and none of the other's, t is at most n, and p at
least .095 for 3 seeds, .0075 for 5 and .0001 for 8: what Fisher's exact test says too (.1, .0079, .0002).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special, stats

POWER = 0.8
MOST_SEEDS = 100
"""So many seeds at most are proposed."""
_TINY = 1e-24
"""Variances below are the rounding of float64."""
_SMALLEST_P = 1e-100


@dataclass(frozen=True)
class Spread:
    """The variances of a mean over seeds."""

    seeds: int
    over_seeds: float
    """s^2, of the seeds' values."""
    over_examples: float
    """v, of the mean over these seeds."""
    shared: float
    """u, the part of it that all seeds share."""
    all_or_none: bool = False
    """Whether f counts."""

    @classmethod
    def of(cls, values: np.ndarray, drawn: np.ndarray, all_or_none: bool = False) -> "Spread":
        """From the values (n,) of at least two seeds and those with resampled examples (B, n)."""
        seeds = len(values)
        over_examples = float(drawn.mean(1).var())
        shared = (seeds * over_examples - float(drawn.var(0).mean())) / (seeds - 1)
        parts = (float(values.var(ddof=1)), over_examples, shared)
        over_seeds, over_examples, shared = (part if part > _TINY else 0.0 for part in parts)
        return cls(seeds, over_seeds, over_examples, shared, all_or_none)

    def with_seeds(self, seeds: int) -> "Spread":
        """The same with another number of seeds."""
        own = (self.over_examples - self.shared) * self.seeds / seeds
        return replace(self, seeds=seeds, over_examples=self.shared + own)

    def half_width(self, level: float, mean: float = 0.0) -> float:
        """h, see above."""
        student, normal = _quantiles(level, self.seeds)
        changed = (mean / self.seeds) ** 2 if self.all_or_none else 0.0
        both = student**2 * (self.over_seeds / self.seeds + changed) + normal**2 * self.shared
        return math.sqrt(max(both, normal**2 * self.over_examples))

    def p_value(self, mean: float) -> float:
        """Of the hypothesis that the mean is 0. Where nothing varies, any difference counts."""
        if math.isnan(mean):
            return math.nan
        if abs(mean) < 1e-12:
            return 1.0

        def beyond(exponent: float) -> float:
            return abs(mean) - self.half_width(10**exponent, mean)

        lowest = math.log10(_SMALLEST_P)
        return 0.0 if beyond(lowest) > 0 else float(10 ** optimize.brentq(beyond, lowest, 0.0))

    def power(self, gap: float, level: float, pilot: int | None = None) -> float:
        """The share of experiments of this size that find a true difference `gap`.

        The true deviation over seeds isn't known: it was measured as s with `pilot` seeds (None: these), and may be
        s / r, r^2 having the distribution of chi^2_f / f with f = pilot - 1. The result is the mean over r.
        """
        student, normal = _quantiles(level, self.seeds)
        shrunk = 1 - (student / self.seeds) ** 2 if self.all_or_none else 1.0
        if shrunk <= 0:
            return 0.0
        true = self.over_seeds / _chi((pilot or self.seeds) - 1)[:, None] / self.seeds  # (r, 1)
        measured = true * _chi(self.seeds - 1)  # (r, s): what s^2 / n will be
        both = (student**2 * measured + normal**2 * self.shared) / shrunk
        threshold = np.sqrt(np.maximum(both, normal**2 * self.over_examples))
        error = np.sqrt(np.maximum(true + self.shared, _TINY))
        return float(special.ndtr((gap - threshold) / error).mean())

    def smallest_gap(self, level: float) -> float | None:
        """The least true difference that is found in 80 % of cases; infinite where none is.

        None where there is no spread to go by: the same difference at every seed, or a score that is no number.
        """
        scale = math.sqrt(self.over_seeds / self.seeds + self.over_examples)
        if not scale > 0:
            return None
        if self.power(1e9 * scale, level) < POWER:
            return math.inf
        return scale * 10 ** _root(lambda exponent: self.power(scale * 10**exponent, level) - POWER, -1.0, 9.0)

    def seeds_to_find(self, gap: float, level: float) -> float:
        """The least number of seeds with which a true difference `gap` is found in 80 % of cases.

        Infinite where it takes more than `MOST_SEEDS`, or more examples.
        """

        def finds(seeds: int) -> bool:
            return self.with_seeds(seeds).power(abs(gap), level, pilot=self.seeds) >= POWER

        if math.isnan(gap) or not finds(MOST_SEEDS):
            return math.inf
        low, high = 1, MOST_SEEDS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if finds(middle) else (middle, high)
        return high


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return low if function(low) > 0 else float(optimize.brentq(function, low, high, xtol=1e-4))


@functools.lru_cache(maxsize=4096)
def _quantiles(level: float, seeds: int) -> tuple[float, float]:
    """t and z, two-sided."""
    return -float(special.stdtrit(seeds - 1, level / 2)), -float(special.ndtri(level / 2))


@functools.lru_cache(maxsize=256)
def _chi(freedom: int) -> np.ndarray:
    """chi^2_f / f at 40 quantiles of equal weight."""
    return stats.chi2.ppf((np.arange(40) + 0.5) / 40, freedom) / freedom
