"""Measures what the package means to reach on a GPU, and says pass or fail of each target.

python -m model_cards.benchmark.targets
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import run_script

from .run import Settings, run_benchmark
from .tables import JUDGED, SPEED, output_of, rows_table, show

ROPE, MODERNBERT = "rope", "modernbert:varlen"
LONG, LONGER = "1x8192", "1x32768"

GROUPS: tuple[dict[str, Any], ...] = (
    {"contenders": (ROPE, "none", "learned", "bert", "modernbert", MODERNBERT), "works": ("sst2", "mixed", "4x8192")},
    {"contenders": (ROPE,), "works": (LONG, LONGER)},
)
"""Which contenders meet on which batches. All train, in bfloat16 and without dropout."""

Rows = dict[tuple[str, str], dict[str, Any]]
"""What was measured, by work and contender."""


@dataclass(frozen=True)
class Target:
    """A number that is measured, and its bound."""

    name: str
    value: Callable[[Rows], float]
    """KeyError where a contender wasn't measured."""
    bound: float
    at_most: bool = False


def faster(work: str, name: str, other: str) -> Callable[[Rows], float]:
    """How many times as fast the first is on a work."""
    return lambda rows: rows[work, name]["ratio"] / rows[work, other]["ratio"]


def _memory_beside_linear(rows: Rows) -> float:
    grows = rows[LONGER, ROPE]["peak_mb"] / rows[LONG, ROPE]["peak_mb"]
    return grows / (int(LONGER.split("x")[1]) / int(LONG.split("x")[1]))


TARGETS = (
    *(
        Target(f"`{ROPE}` / `{other}`, tokens per second, {work}", faster(work, ROPE, other), least)
        for other, least in ((MODERNBERT, 1.0), ("bert", 2.0))
        for work in ("sst2", "mixed")
    ),
    Target(f"peak memory of `{ROPE}`, {LONGER} / {LONG}, over the ratio of tokens", _memory_beside_linear, 1.1, True),
)


def judge(rows: Iterable[dict[str, Any]], targets: Iterable[Target] = TARGETS) -> list[dict[str, Any]]:
    """Judges each target.

    Args:
        rows: what was measured.
        targets: what is wanted.

    Returns:
        `target`, `value` (None: not measured), `bound` and `outcome` (`pass`, `fail`, `not measured`) of each.
    """
    measured = {(row["work"], row["contender"]): row for row in rows}
    judged = []
    for target in targets:
        bound = f"{'<=' if target.at_most else '>='} {target.bound}"
        try:
            value: float | None = round(target.value(measured), 3)
        except KeyError:
            value = None
        outcome = "not measured"
        if value is not None:
            outcome = "pass" if (value <= target.bound if target.at_most else value >= target.bound) else "fail"
        judged.append({"target": target.name, "value": value, "bound": bound, "outcome": outcome})
    return judged


def run_targets(**options: Any) -> dict[str, Any]:
    """Measures `GROUPS`, with these `Settings` for all of them, and judges `TARGETS`.

    Returns:
        What `run_benchmark` returns, of all groups together, and `targets` (see `judge`).
    """
    half: dict[str, Any] = {"dtype": "bfloat16", "reference_dtype": "bfloat16"}
    results, *others = [
        run_benchmark(Settings(**group, **half, modes=("training",), dropout=False, **options)) for group in GROUPS
    ]
    for other in others:
        results["rows"] += other["rows"]
        results["left_out"] += other["left_out"]
        results["settings"]["works"] += other["settings"]["works"]
    results["targets"] = judge(results["rows"])
    return results


def main() -> None:
    """The command; the exit code is 0 if all targets pass."""
    output = output_of(__doc__).parse_args().output
    results = run_targets(sizes=("base",), rounds=20, device="cuda")
    show(results, [rows_table(results["rows"], SPEED), rows_table(results["targets"], JUDGED)], output)
    if any(row["outcome"] != "pass" for row in results["targets"]):
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)
