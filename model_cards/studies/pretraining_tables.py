"""The tables of the pretraining study, of the parts that there are so far."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hf_posenc.comparison.statistics import Interval, welch
from hf_posenc.markdown import code, markdown_table
from model_cards.studies.pretraining_plan import (
    CONTRASTS,
    GATE_SCHEMES,
    MARGINS,
    MILLION,
    PLATEAU,
    RATES,
    REFERENCE,
    SCHEMES,
    START_SCHEMES,
    STARTS,
    TOKENS,
    Part,
    Results,
    chosen_start,
    gate,
    spread_over_gap,
    starts,
    trials,
)

NOT_YET = "Not trained yet."


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; without rows, that there are none yet."""
    return markdown_table(header, rows) if rows else NOT_YET


def start_table(results: Results) -> str:
    """The loss in the development novels after 2 million tokens, by what a model starts with."""
    parts = {(part.scheme, part.start): part for part in starts()}
    rows = [
        (code(scheme), *(_dev_loss(results, parts.get((scheme, start))) for start in STARTS))
        for scheme in START_SCHEMES
    ]
    names = ("scale .02", ".05", ".0884", ".05, `rope_theta` 200")
    return _table(("dev loss at 2.0 million", *names), rows)


def gate_table(results: Results) -> str:
    """The loss in the development novels of the gate's seeds, and their spread over the gap between its schemes."""
    if not all(map(results.has, starts())):
        return NOT_YET
    rows, start = [], chosen_start(results)
    for tokens in TOKENS:
        parts = gate(tokens, start)
        if not all(map(results.has, parts)):
            break
        losses = [
            ", ".join(_dev_loss(results, part) for part in parts if part.scheme == scheme) for scheme in GATE_SCHEMES
        ]
        rows.append((f"{tokens / 1e6:.1f}", *losses, f"{spread_over_gap(results, tokens, start):.2f}"))
    return _table(("million tokens", *map(code, GATE_SCHEMES), "spread of seeds / gap"), rows)


def rate_table(results: Results) -> str:
    """The loss in the development novels after 5 million tokens, by learning rate; the best one is bold."""
    if not all(map(results.has, starts())):
        return NOT_YET
    start, rows = chosen_start(results), []
    for scheme in SCHEMES:
        cells = [_dev_loss(results, part) for part in trials(scheme, start)]
        best = min(cells) if all(cells) else None
        if any(cells):
            rows.append((code(scheme), *(f"**{cell}**" if cell == best else cell for cell in cells)))
    return _table(("dev loss at 5.1 million", *(f"rate {rate:g}" for rate in RATES)), rows)


def _dev_loss(results: Results, part: Part | None) -> str:
    """A part's loss at its tokens; empty where it isn't there."""
    return f"{results.loss(part, 'dev'):.3f}" if part is not None and results.has(part) else ""


def first_below(curve: list[dict[str, float]], loss: float) -> str:
    """The million tokens after which a held-out loss was first below a number, in words."""
    tokens = [point["tokens"] for point in curve if point["test"] is not None and point["test"] < loss]
    return f"{tokens[0] / 1e6:.1f}" if tokens else f"not by {curve[-1]['tokens'] / 1e6:.1f}"


def curve_table(results: Results) -> str:
    """Held-out loss of each scheme on its way, and when it left the plateau."""
    rows, plateau = [], results.unigrams - PLATEAU
    for scheme in SCHEMES:
        parts = [part for part in results.reported() if part["scheme"] == scheme]
        if not parts:
            continue
        left = ", ".join(first_below(part["curve"], plateau) for part in parts)
        losses = [[_loss_at(part["curve"], tokens) for part in parts] for tokens in (2.5, 5, 10)]
        cost = statistics.fmean(part["cpu_seconds"] / part["tokens"] * 1e6 for part in parts)
        rows.append((code(scheme), len(parts), left, *map(mean_and_spread, losses), f"{cost:.0f}"))
    header = ("scheme", "seeds", "left the plateau (million)", "loss at 2.6", "at 5.1", "at 10.2", "seconds a million")
    return _table(header, rows)


def _loss_at(curve: list[dict[str, float]], millions: float) -> float:
    """The loss at the first evaluation from so many million tokens on."""
    return next((point["test"] for point in curve if point["tokens"] >= millions * MILLION), math.nan)


def mean_and_spread(values: Sequence[float | None]) -> str:
    """The mean and the standard deviation over seeds."""
    present = _present(values)
    if not present:
        return ""
    spread = f" ± {statistics.stdev(present):.3f}" if len(present) > 1 else ""
    return f"{statistics.fmean(present):.3f}{spread}"


def _present(values: Iterable[float | None]) -> list[float]:
    """The values that there are: a table of positions has none at longer lengths."""
    return [value for value in values if value is not None and not math.isnan(value)]


Measured = dict[str, Any]
CONTRASTED: dict[str, tuple[Callable[[Measured], float | None], float]] = {
    "loss at 128": (lambda m: m["lengths"]["128"], MARGINS["loss"]),
    "rise to 1,024": (lambda m: m["lengths"].get("1024", math.nan) - m["lengths"]["128"], MARGINS["loss"]),
    "BLiMP": (lambda m: m["blimp"], MARGINS["accuracy"]),
    "fine-tuned": (lambda m: _fine_tuned(m.get("fine_tuned", {})), MARGINS["accuracy"]),
}
"""What is compared with `rope`, and the margin of equivalence."""


def _fine_tuned(tasks: dict[str, dict[str, Any]]) -> float:
    """The mean accuracy; no number before a model is fine-tuned."""
    return statistics.fmean(task["accuracy"] for task in tasks.values()) if tasks else math.nan


def contrast_table(results: Results) -> str:
    """Each scheme minus `rope`, Welch on seeds, with intervals for all contrasts at once; verdicts with 5 seeds."""
    rows, measured = [], results.measured
    for scheme in (name for name in SCHEMES if name != REFERENCE):
        cells = []
        for value, margin in CONTRASTED.values():
            names = (scheme, REFERENCE)
            present = [_present(value(m) for m in measured if m["scheme"] == name) for name in names]
            cells.append(_contrast(present[0], present[1], margin) if all(present) else "")
        if any(cells):
            rows.append((code(scheme), *cells))
    return _table((f"minus {code(REFERENCE)}", *CONTRASTED), rows)


def _contrast(first: list[float], second: list[float], margin: float) -> str:
    """A difference with its interval, and a verdict where there are five seeds."""
    interval, _ = welch([first], [second], 0.05 / CONTRASTS)
    text = f"{interval.mean:+.3f}"
    if interval.low is None or interval.high is None:
        return text
    text += f" [{interval.low:+.3f}, {interval.high:+.3f}]"
    return text if min(len(first), len(second)) < 5 else f"{text} {_verdict(interval, margin)}".rstrip()


def _verdict(interval: Interval, margin: float) -> str:
    low, high = interval.low or 0.0, interval.high or 0.0
    words = ["differs"] if low > 0 or high < 0 else []
    words += [f"within {margin:g}"] if max(abs(low), abs(high)) < margin else []
    return ", ".join(words) or "not decided"


def scheme_table(results: Results) -> str:
    """What each scheme has after equal pretraining, mean and standard deviation over its seeds."""
    rows = []
    for scheme in SCHEMES:
        measured = [m for m in results.measured if m["scheme"] == scheme]
        if measured:
            values = ([value(m) for m in measured] for value, _ in CONTRASTED.values())
            rows.append((code(scheme), len(measured), *(mean_and_spread([*of_scheme]) for of_scheme in values)))
    return _table(("scheme", "seeds", *CONTRASTED), rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "starts": start_table,
    "gate": gate_table,
    "rates": rate_table,
    "curves": curve_table,
    "schemes": scheme_table,
    "contrasts": contrast_table,
}
"""By the name of its mark in model_cards/pretraining.md."""
