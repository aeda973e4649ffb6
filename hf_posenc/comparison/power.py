"""What a plan can find: the smallest gap of each family of comparisons, and the seeds that open ones would take."""

from collections.abc import Mapping
from dataclasses import dataclass

from .plan import Task
from .statistics import ALPHA, Difference
from .study import Parts, Study


@dataclass(frozen=True)
class Power:
    """What the comparisons with one scheme could find, by the spread that was measured."""

    task: str
    length: int
    other: str
    """The scheme that the others are compared with."""
    gaps: dict[str, float]
    """By scheme, the least true difference that is found in 80 % of cases, were none of the others found.

    A scheme that showed no spread is left out; infinite where so few seeds find none.
    """
    seeds: dict[str, float]
    """By scheme that wasn't told from `other`, the seeds that would find the difference measured; may be infinite."""


def power(study: Study) -> list[Power]:
    """The power of every comparison that the report makes: for each task at its train length and its longest inputs.

    Empty where there is one seed.
    """
    rows = []
    for task in study.tasks:
        for length in dict.fromkeys((study.home_length(task), study.lengths(task)[-1])):
            for other in study.contrasts_of(task):
                rows.append(power_at(study, task, length, other=other))
    return [row for row in rows if row.gaps]


def power_at(study: Study, task: Task, length: int, part: Parts = None, other: str | None = None) -> Power:
    """The same of one family: the schemes at a length against `other` (None: the baseline)."""
    differences = study.differences(task, length, part, other)
    return Power(task.name, length, other or study.plan.baseline, _gaps(differences), _seeds(differences))


def _gaps(differences: Mapping[str, Difference]) -> dict[str, float]:
    level = ALPHA / max(len(differences), 1)
    spreads = {scheme: value.spread for scheme, value in differences.items() if value.spread is not None}
    gaps = {scheme: spread.smallest_gap(level) for scheme, spread in spreads.items()}
    return {scheme: gap for scheme, gap in gaps.items() if gap is not None}


def _seeds(differences: Mapping[str, Difference]) -> dict[str, float]:
    return {scheme: value.seeds for scheme, value in differences.items() if value.seeds is not None}
