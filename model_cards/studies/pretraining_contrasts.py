"""What the pretraining study compares with `rope`: a frame of the runs, intervals, verdicts."""

import statistics
from collections import defaultdict

import pandas as pd

from hf_posenc.comparison.statistics import Interval, smallest_gap, welch
from hf_posenc.markdown import code
from model_cards.studies.pretraining_plan import (
    CONTRASTS,
    MARGINS,
    NO_RISE,
    PLATEAU,
    REFERENCE,
    SCHEMES,
    SEEDS,
    Results,
)

RISE, BLIMP = "rise to 1,024", "BLiMP"
CONTRASTED = {
    "loss at 128": MARGINS["loss"],
    RISE: MARGINS["loss"],
    BLIMP: MARGINS["accuracy"],
    "fine-tuned": MARGINS["accuracy"],
}
"""The columns that are compared with `rope`, and the margin of equivalence."""
NOTES = {
    RISE: "A model that is worse at 128 has less to lose: see the losses at each length.",
    BLIMP: "Below one half for most, as for bigrams: higher isn't better here.",
}
"""What has to be known of a column's verdicts."""


def measured_runs(results: Results) -> pd.DataFrame:
    """A row for each main part, empty where it isn't measured yet: what the other tables are made of."""
    rows, reported = [], results.reported()
    facts = ("scheme", "seed", "rate", "tokens", "diverged", "parameters", "cpu_seconds_per_million", "commit")
    for part in reported:
        measured = results.measured.get((part["scheme"], part["seed"]), {})
        losses = {f"loss at {int(length):,}": loss for length, loss in measured.get("lengths", {}).items()}
        tasks = {task: score["accuracy"] for task, score in measured.get("fine_tuned", {}).items()}
        left = first_below(part["curve"], results.unigrams - PLATEAU)
        rows.append(
            {name: part[name] for name in facts}
            | {"left the plateau at": left}
            | losses
            | {BLIMP: measured.get("blimp"), **tasks}
            | {"fine-tuned": statistics.fmean(tasks.values()) if tasks else None}
        )
    runs = pd.DataFrame(rows)
    if rows and "loss at 1,024" in runs:
        runs[RISE] = runs["loss at 1,024"] - runs["loss at 128"]
    return runs.sort_values(["seed", "scheme"]) if rows else runs


def first_below(curve: list[dict[str, float]], loss: float) -> str:
    """The million tokens after which a held-out loss was first below a number, in words."""
    tokens = [point["tokens"] for point in curve if point["test"] is not None and point["test"] < loss]
    return f"{tokens[0] / 1e6:.1f}" if tokens else f"not by {curve[-1]['tokens'] / 1e6:.1f}"


def values_of(runs: pd.DataFrame, scheme: str, column: str) -> list[float]:
    """A column's values of a scheme's seeds; a table of positions has none at longer lengths."""
    return list(runs.loc[runs["scheme"] == scheme, column].dropna()) if column in runs else []


def contrast(runs: pd.DataFrame, scheme: str, column: str) -> str:
    """A difference with its interval, and a verdict where there are five seeds."""
    found = _difference(runs, scheme, column)
    if found is None:
        return ""
    text = f"{found.mean:+.3f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:+.3f}, {found.high:+.3f}]"
    named = {"within": f"within {CONTRASTED[column]:g}"}
    words = ", ".join(named.get(word, word) for word in verdicts(runs, scheme, column))
    return f"{text} {words}".rstrip()


def _difference(runs: pd.DataFrame, scheme: str, column: str) -> Interval | None:
    """A scheme minus the reference, with an interval for all contrasts at once; None where that isn't planned."""
    first, second = (values_of(runs, name, column) for name in (scheme, REFERENCE))
    planned = scheme != REFERENCE and not (column == RISE and scheme in NO_RISE)
    if not first or not second or not planned:
        return None
    return welch([first], [second], 0.05 / CONTRASTS)[0]


def verdicts(runs: pd.DataFrame, scheme: str, column: str) -> list[str]:
    """Higher or lower than the reference, and within the margin; nothing before there are five seeds of both."""
    found = _difference(runs, scheme, column)
    seeds = [len(values_of(runs, name, column)) for name in (scheme, REFERENCE)]
    if found is None or found.low is None or found.high is None or min(seeds) < len(SEEDS):
        return []
    words = ["higher"] if found.low > 0 else ["lower"] if found.high < 0 else []
    words += ["within"] if max(-found.low, found.high) < CONTRASTED[column] else []
    return words or ["not decided"]


def smallest_difference(runs: pd.DataFrame, column: str) -> str:
    """The true differences that five seeds find in 4 of 5 cases: least and most over the column's contrasts."""
    gaps = []
    for scheme in SCHEMES:
        if verdicts(runs, scheme, column):
            variances = [statistics.variance(values_of(runs, name, column)) for name in (scheme, REFERENCE)]
            if any(variances):
                gaps.append(smallest_gap([[variance] for variance in variances], len(SEEDS), CONTRASTS))
    return f"{min(gaps):.3f} to {max(gaps):.3f}" if gaps else ""


def verdict_sentences(results: Results) -> str:
    """For each column which schemes are below `rope`, above, within the margin or undecided, with the difference."""
    runs, sentences, too_few = measured_runs(results), [], f"fewer than {len(SEEDS)} seeds"
    for column, margin in CONTRASTED.items():
        schemes: dict[str, list[str]] = defaultdict(list)
        for scheme in SCHEMES:
            if (found := _difference(runs, scheme, column)) is not None:
                for word in verdicts(runs, scheme, column) or [too_few]:
                    schemes[word].append(code(scheme) + (f" ({found.mean:+.3f})" if word != too_few else ""))
        words = {word: word for word in ("lower", "higher", "within", "not decided", too_few)}
        words["within"] = f"within {margin:g}"
        told = [f"{name.capitalize()}: {', '.join(schemes[word])}." for word, name in words.items() if schemes[word]]
        told = told or ["Not measured yet."]
        sentences.append(" ".join([f"- **{column}.**", *told, NOTES.get(column, "")]).rstrip())
    return "\n".join(sentences)
