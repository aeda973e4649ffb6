"""The tables of the pretraining study, of the parts that there are so far."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from hf_posenc.comparison.statistics import Interval, smallest_gap, welch
from hf_posenc.markdown import code, markdown_table
from model_cards.studies.pretraining_plan import (
    CONTRASTS,
    GATE_SCHEMES,
    MARGINS,
    MILLION,
    NO_RISE,
    PLATEAU,
    RATES,
    REFERENCE,
    SCHEMES,
    SEEDS,
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
        losses = [[loss for part in parts for loss in _loss_at(part["curve"], tokens)] for tokens in (2.5, 5, 10)]
        rows.append((code(scheme), len(parts), left, *map(mean_and_spread, losses)))
    header = ("scheme", "seeds", "left the plateau (million)", "loss at 2.6", "at 5.1", "at 10.2")
    return _table(header, rows)


def _loss_at(curve: list[dict[str, float]], millions: float) -> list[float]:
    """The loss at the first evaluation from so many million tokens on, if there is one."""
    return [point["test"] for point in curve if point["tokens"] >= millions * MILLION][:1]


RISE = "rise to 1,024"
CONTRASTED = {
    "loss at 128": MARGINS["loss"],
    RISE: MARGINS["loss"],
    "BLiMP": MARGINS["accuracy"],
    "fine-tuned": MARGINS["accuracy"],
}
"""The columns that are compared with `rope`, and the margin of equivalence."""


def measured_runs(results: Results) -> pd.DataFrame:
    """A row for each main part, empty where it isn't measured yet: what the other tables are made of."""
    rows = []
    for part in results.reported():
        measured = results.measured.get((part["scheme"], part["seed"]), {})
        losses = {f"loss at {int(length):,}": loss for length, loss in measured.get("lengths", {}).items()}
        tasks = {task: score["accuracy"] for task, score in measured.get("fine_tuned", {}).items()}
        rows.append(
            {name: part[name] for name in ("scheme", "seed", "rate", "tokens", "diverged", "cpu_seconds", "commit")}
            | {"left the plateau at": first_below(part["curve"], results.unigrams - PLATEAU)}
            | losses
            | {"BLiMP": measured.get("blimp"), **tasks}
            | {"fine-tuned": statistics.fmean(tasks.values()) if tasks else None}
        )
    runs = pd.DataFrame(rows)
    if rows and "loss at 1,024" in runs:
        runs[RISE] = runs["loss at 1,024"] - runs["loss at 128"]
    return runs.sort_values(["seed", "scheme"]) if rows else runs


def _values(runs: pd.DataFrame, scheme: str, column: str) -> list[float]:
    """A column's values of a scheme's seeds; a table of positions has none at longer lengths."""
    return list(runs.loc[runs["scheme"] == scheme, column].dropna()) if column in runs else []


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean and the standard deviation over seeds."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def scheme_table(results: Results) -> str:
    """What each scheme has after equal pretraining, mean and standard deviation over its seeds."""
    rows, runs = [], measured_runs(results)
    for scheme in SCHEMES if len(runs) else ():
        of_scheme = runs[runs["scheme"] == scheme]
        if len(of_scheme):
            stayed = of_scheme["left the plateau at"].str.startswith("not").sum()
            cost = (of_scheme["cpu_seconds"] / of_scheme["tokens"]).mean() * 1e6
            columns = ("loss at 128", "loss at 1,024", "BLiMP", "fine-tuned")
            cells = (mean_and_spread(_values(runs, scheme, column)) for column in columns)
            rows.append((code(scheme), len(of_scheme), stayed, *cells, _within(runs, scheme), f"{cost:.0f}"))
    header = ("scheme", "seeds", "on the plateau", "loss at 128", "loss at 1,024", "BLiMP", "fine-tuned")
    return _table((*header, f"as {code(REFERENCE)} within the margin", "seconds a million"), rows)


def _within(runs: pd.DataFrame, scheme: str) -> str:
    """The columns in which a scheme is as good as the reference, by five seeds or more."""
    return ", ".join(column for column in CONTRASTED if _verdicts(runs, scheme, column)[-1:] == ["within"])


def contrast_table(results: Results) -> str:
    """Each scheme minus `rope`, Welch on seeds, with intervals for all contrasts at once; verdicts with 5 seeds."""
    runs, found = measured_runs(results), "found in 4 of 5 cases"
    others = [scheme for scheme in SCHEMES if scheme != REFERENCE and len(runs)]
    rows = [(code(scheme), *(_contrast(runs, scheme, column) for column in CONTRASTED)) for scheme in others]
    rows.append((found, *(_smallest_difference(runs, column) for column in CONTRASTED)))
    return _table((f"minus {code(REFERENCE)}", *CONTRASTED), [row for row in rows if any(row[1:])])


def _difference(runs: pd.DataFrame, scheme: str, column: str) -> Interval | None:
    """A scheme minus the reference, with an interval for all contrasts at once; None where that isn't planned."""
    first, second = (_values(runs, name, column) for name in (scheme, REFERENCE))
    planned = scheme != REFERENCE and not (column == RISE and scheme in NO_RISE)
    if not first or not second or not planned:
        return None
    return welch([first], [second], 0.05 / CONTRASTS)[0]


def _verdicts(runs: pd.DataFrame, scheme: str, column: str) -> list[str]:
    """Higher or lower than the reference, and within the margin; nothing before there are five seeds of both."""
    difference = _difference(runs, scheme, column)
    seeds = [len(_values(runs, name, column)) for name in (scheme, REFERENCE)]
    if difference is None or difference.low is None or difference.high is None or min(seeds) < len(SEEDS):
        return []
    words = ["higher"] if difference.low > 0 else ["lower"] if difference.high < 0 else []
    words += ["within"] if max(-difference.low, difference.high) < CONTRASTED[column] else []
    return words or ["not decided"]


def _contrast(runs: pd.DataFrame, scheme: str, column: str) -> str:
    """A difference with its interval, and a verdict where there are five seeds."""
    difference = _difference(runs, scheme, column)
    if difference is None:
        return ""
    text = f"{difference.mean:+.3f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    named = {"within": f"within {CONTRASTED[column]:g}"}
    verdicts = ", ".join(named.get(word, word) for word in _verdicts(runs, scheme, column))
    return f"{text} {verdicts}".rstrip()


def _smallest_difference(runs: pd.DataFrame, column: str) -> str:
    """The true difference that five seeds find in 4 of 5 cases, with the spread of seeds pooled over schemes."""
    values = [_values(runs, scheme, column) for scheme in SCHEMES]
    variances = [statistics.variance(of_scheme) for of_scheme in values if len(of_scheme) == len(SEEDS)]
    if not any(variances):
        return ""
    return f"{smallest_gap([statistics.fmean(variances)], len(SEEDS), CONTRASTS):.3f}"


def verdict_sentences(results: Results) -> str:
    """For each column which schemes are below `rope`, which above, which within the margin, which undecided."""
    runs, sentences, too_few = measured_runs(results), [], f"fewer than {len(SEEDS)} seeds"
    for column, margin in CONTRASTED.items():
        schemes: dict[str, list[str]] = defaultdict(list)
        for scheme in SCHEMES:
            if _difference(runs, scheme, column) is not None:
                for word in _verdicts(runs, scheme, column) or [too_few]:
                    schemes[word].append(code(scheme))
        words = {word: word for word in ("lower", "higher", "within", "not decided", too_few)}
        words["within"] = f"within {margin:g}"
        told = [f"{name.capitalize()}: {', '.join(schemes[word])}." for word, name in words.items() if schemes[word]]
        sentences.append(f"- **{column}.** {' '.join(told) or 'Not measured yet.'}")
    return "\n".join(sentences)


def paradigm_table(results: Results) -> str:
    """The mean score over seeds on the pairs of each of BLiMP's paradigms."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (scheme, _), measured in results.measured.items():
        for paradigm, score in measured.get("blimp_paradigms", {}).items():
            scores[paradigm][scheme].append(score)
    rows = [
        (code(paradigm), *(f"{statistics.fmean(of_scheme[s]):.2f}" if s in of_scheme else "" for s in SCHEMES))
        for paradigm, of_scheme in scores.items()
    ]
    return _table(("BLiMP's pairs", *map(code, SCHEMES)), rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "starts": start_table,
    "gate": gate_table,
    "rates": rate_table,
    "curves": curve_table,
    "schemes": scheme_table,
    "contrasts": contrast_table,
    "verdicts": verdict_sentences,
    "paradigms": paradigm_table,
}
"""By the name of its mark in model_cards/pretraining.md."""
