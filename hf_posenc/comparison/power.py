"""What a plan can find: the smallest gap of each family of comparisons, and the seeds that open ones would take."""

from collections.abc import Mapping
from dataclasses import dataclass

from .plan import Task
from .statistics import ALPHA, Difference
from .study import Study


@dataclass(frozen=True)
class Power:
    """What the comparisons with one scheme could find, by the spread that was measured."""

    task: Task
    length: int
    other: str
    """The scheme that the others are compared with."""
    compared: int
    """How many schemes are."""
    undecided: int
    """How many of them weren't told from it."""
    gaps: dict[str, float]
    """By scheme, the least true difference that is found in 80 % of cases, at Holm's strictest level.

    A scheme that showed no spread is left out; infinite where so few seeds find none.
    """
    seeds: dict[str, float]
    """By scheme that wasn't told from it, the seeds that would find the difference measured; may be infinite."""
    widest: float
    """The greatest difference that the metric allows."""


def power(study: Study) -> list[Power]:
    """The power of each family that the report shows: a task at its train length or longest inputs, one other scheme.

    Empty where there is one seed.
    """
    rows = []
    for task in study.tasks:
        for length in dict.fromkeys((study.home_length(task), study.lengths(task)[-1])):
            for other in study.contrasts_of(task):
                differences = study.differences(task, length, other=other)
                if gaps := _gaps(differences):
                    seeds = {name: value.seeds for name, value in differences.items() if value.seeds is not None}
                    widest = max(value.widest for value in differences.values())
                    undecided = sum(not value.is_found for value in differences.values())
                    rows.append(Power(task, length, other, len(differences), undecided, gaps, seeds, widest))
    return rows


def _gaps(differences: Mapping[str, Difference]) -> dict[str, float]:
    level = ALPHA / max(len(differences), 1)
    spreads = {scheme: value.spread for scheme, value in differences.items() if value.spread is not None}
    gaps = {scheme: spread.smallest_gap(level) for scheme, spread in spreads.items()}
    return {scheme: gap for scheme, gap in gaps.items() if gap is not None}
