"""What the package means to reach on a GPU: measured, and judged pass or fail."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .run import run_benchmark

ROPE, MODERNBERT = "rope", "modernbert:varlen"
LONG, LONGER = "1x8192", "1x32768"

GROUPS: tuple[dict[str, Any], ...] = (
    {
        "works": ("sst2", "mixed"),
        "contenders": (
            *(ROPE, "rope:pure", "none", "learned", "bert", MODERNBERT, f"{MODERNBERT}:pure", f"{MODERNBERT}:global"),
            *("modernbert", "modernbert:flash_attention_2", "rope:flash_attention_2"),
        ),
    },
    {
        "works": ("4x8192",),
        "contenders": (
            *(ROPE, "rope:pure", "none:flex_attention", "alibi:flex_attention", "t5:flex_attention"),
            *("kerple:flex_attention", MODERNBERT, f"{MODERNBERT}:global"),
        ),
    },
    {"works": (LONG, "1x16384", LONGER), "contenders": (ROPE,)},
)
"""Which contenders meet on which batches. All train, in bfloat16 and without dropout."""


@dataclass(frozen=True)
class Target:
    """A number that is measured, and its bound."""

    name: str
    value: Callable[[dict[tuple[str, str], dict[str, Any]]], float]
    """Of the rows by work and contender; KeyError where one wasn't measured."""
    bound: float
    at_most: bool = False


def _faster(work: str, name: str, other: str) -> Callable[[dict[tuple[str, str], dict[str, Any]]], float]:
    """How many times as fast the first is on a work."""
    return lambda rows: rows[work, name]["ratio"] / rows[work, other]["ratio"]


def _memory_beside_linear(rows: dict[tuple[str, str], dict[str, Any]]) -> float:
    grows = rows[LONGER, ROPE]["peak_mb"] / rows[LONG, ROPE]["peak_mb"]
    return grows / (int(LONGER.split("x")[1]) / int(LONG.split("x")[1]))


TARGETS = (
    *(
        Target(f"`{ROPE}` / `{other}`, tokens per second, {work}", _faster(work, ROPE, other), least)
        for other, least in ((MODERNBERT, 1.0), ("bert", 2.0))
        for work in ("sst2", "mixed")
    ),
    *(
        Target(f"`{name}` / `{ROPE}`, tokens per second, 4x8192", _faster("4x8192", name, ROPE), 0.8)
        for name in ("alibi:flex_attention", "t5:flex_attention", "kerple:flex_attention")
    ),
    Target(f"peak memory of `{ROPE}`, {LONGER} / {LONG}, over the ratio of tokens", _memory_beside_linear, 1.1, True),
)


def judge(
    rows: Iterable[dict[str, Any]], targets: Iterable[Target] = TARGETS, mode: str = "training"
) -> list[dict[str, Any]]:
    """Judges each target.

    Args:
        rows: of `run_benchmark`.
        targets: what is wanted.
        mode: of the rows that count.

    Returns:
        `target`, `value` (None: not measured), `bound` and `outcome` (`pass`, `fail`, `not measured`) of each.
    """
    measured = {(row["work"], row["contender"]): row for row in rows if row["mode"] == mode}
    judged = []
    for target in targets:
        bound = f"{'<=' if target.at_most else '>='} {target.bound}"
        try:
            value: float | None = round(target.value(measured), 3)
        except (KeyError, TypeError):  # no such row, or no figure of memory or accuracy in it
            value = None
        outcome = "not measured"
        if value is not None:
            outcome = "pass" if (value <= target.bound if target.at_most else value >= target.bound) else "fail"
        judged.append({"target": target.name, "value": value, "bound": bound, "outcome": outcome})
    return judged


def run_targets(
    size: str = "base",
    rounds: int = 20,
    *,
    device: str | None = None,
    profile: bool = False,
    report: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], Any] = lambda results: None,
) -> dict[str, Any]:
    """Measures `GROUPS` and judges `TARGETS`.

    Args:
        size, rounds, device, profile, report, save: as in `run_benchmark`.

    Returns:
        What `run_benchmark` returns, of all groups together, and `targets` (see `judge`).

    Raises:
        UserError: as in `run_benchmark`.
    """
    results: dict[str, Any] = {}
    for group in GROUPS:
        part = run_benchmark(
            **group,
            sizes=(size,),
            modes=("training",),
            dtype="bfloat16",
            reference_dtype="bfloat16",
            dropout=False,
            rounds=rounds,
            device=device,
            profile=profile,
            report=report,
        )
        if not results:
            results = part
        else:
            results["rows"] += part["rows"]
            results["left_out"] += part["left_out"]
            for name in ("contenders", "works"):
                ours = results["settings"][name]
                ours += [value for value in part["settings"][name] if value not in ours]
        results["targets"] = judge(results["rows"])
        save(results)
    return results
