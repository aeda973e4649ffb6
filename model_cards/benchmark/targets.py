"""Measures what the package means to reach on a GPU, and says pass or fail of each target.

python -m model_cards.benchmark.targets
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from hf_posenc.errors import run_script
from hf_posenc.files import write_json

from .run import Settings, run_benchmark
from .tables import JUDGED, SPEED, output_of, rows_table, show

ROPE, MODERNBERT = "rope", "modernbert:varlen"
SHORT, SHORT_MANY, MIXED = "sst2", "sst2:256", "mixed"
LONG, LONGER = "1x8192", "1x32768"
BIASED = ("8x512", "4x2048")

GROUPS: tuple[dict[str, Any], ...] = (
    {
        "sizes": ("base", "minilm"),
        "contenders": (ROPE, f"{ROPE}:compiled", "bert", "bert:compiled", MODERNBERT),
        "works": (SHORT, SHORT_MANY),
    },
    {"contenders": (ROPE, "none", "learned", "bert", "modernbert", MODERNBERT), "works": (SHORT, MIXED)},
    {"contenders": (ROPE, "none", "rope+window", MODERNBERT), "works": ("4x8192",)},
    {"contenders": ("deberta:v3", "deberta-v2", "t5", ROPE), "works": BIASED},
    {"contenders": (ROPE,), "works": (LONG, LONGER)},
)
"""Which contenders meet on which batches, of base size where no other is named. All train, in bfloat16 and without
dropout. `compiled` is the slowest to start, so short texts alone have it."""

Rows = dict[tuple[str, str], dict[str, Any]]
"""What was measured, by work (with its size, unless it is base) and contender."""


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
        Target(f"`{name}` / `{other}`, tokens per second, {work}", faster(work, name, other), least)
        for work, name, other, least in (
            (SHORT, ROPE, "bert", 1.0),
            (f"{SHORT}, minilm", ROPE, "bert", 1.0),
            (SHORT, f"{ROPE}:compiled", "bert:compiled", 1.0),
            (SHORT_MANY, ROPE, "bert", 1.5),
            (MIXED, ROPE, "bert", 2.0),
            (SHORT, ROPE, MODERNBERT, 1.0),
            (MIXED, ROPE, MODERNBERT, 1.1),
            *((work, "deberta:v3", "deberta-v2", 1.0) for work in BIASED),
        )
    ),
    Target(f"peak memory of `{ROPE}`, {LONGER} / {LONG}, over the ratio of tokens", _memory_beside_linear, 1.1, True),
)


def _place(row: dict[str, Any]) -> str:
    size = row.get("size", "base")
    return row["work"] if size == "base" else f"{row['work']}, {size}"


def judge(rows: Iterable[dict[str, Any]], targets: Iterable[Target] = TARGETS) -> list[dict[str, Any]]:
    """Judges each target.

    Args:
        rows: what was measured.
        targets: what is wanted.

    Returns:
        `target`, `value` (None: not measured), `bound` and `outcome` (`pass`, `fail`, `not measured`) of each.
    """
    measured = {(_place(row), row["contender"]): row for row in rows}
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


def run_targets(output: str | None = None, **options: Any) -> dict[str, Any]:
    """Measures `GROUPS`, with these `Settings` for all of them, and judges `TARGETS`.

    Args:
        output: a JSON file, written after each group with what there is.
        **options: fields of `Settings`.

    Returns:
        What `run_benchmark` returns, of all groups together, and `targets` (see `judge`).
    """
    half: dict[str, Any] = {"dtype": "bfloat16", "reference_dtype": "bfloat16", "sizes": ("base",)}
    results: dict[str, Any] = {"rows": [], "left_out": []}
    for group in tqdm(GROUPS, desc="groups", disable=None):
        measured = run_benchmark(Settings(**half | {"modes": ("training",), "dropout": False} | group | options))
        results = {**measured, **{kind: results[kind] + measured[kind] for kind in ("rows", "left_out")}}
        results["settings"] = {**measured["settings"], "groups": GROUPS}
        results["targets"] = judge(results["rows"])
        if output is not None:
            write_json(output, results)
    return results


def main() -> None:
    """The command; the exit code is 0 if all targets pass."""
    output = output_of(__doc__).parse_args().output
    results = run_targets(output, rounds=20, device="cuda")
    show(results, [rows_table(results["rows"], SPEED), rows_table(results["targets"], JUDGED)], output)
    if any(row["outcome"] != "pass" for row in results["targets"]):
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)
