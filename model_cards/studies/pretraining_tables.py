"""The tables of the pretraining study, of the parts that there are so far."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from hf_posenc import PosEncConfig
from hf_posenc.markdown import code, markdown_table
from hf_posenc.schemes.describe import position_rates
from model_cards.studies.pretraining_contrasts import (
    BLIMP,
    CONTRASTED,
    contrast,
    first_below,
    measured_runs,
    smallest_difference,
    values_of,
    verdict_sentences,
    verdicts,
)
from model_cards.studies.pretraining_plan import (
    EPOCHS,
    FINE_TUNED_FIRST,
    FINE_TUNING_RATES,
    GATE_SCHEMES,
    MILLION,
    PATIENCE,
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

BIGRAMS = "bigrams"
NOT_YET = "Not trained yet."


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; without rows, that there are none yet."""
    return markdown_table(header, rows) if rows else NOT_YET


def text_table(results: Results) -> str:
    """The sizes of the text, and the loss of unigrams in the blocks that are reported."""
    facts = results.text
    rows = (
        ("trained on", "train", ""),
        ("for choices", "dev", ""),
        ("reported", "test", "unigrams"),
        ("of these, in curves", "curve", "unigrams_of_curves"),
    )
    cells = [
        (name, f"{facts[f'{split}_tokens']:,}", _number(facts.get(f"{split}_masked")), _number(facts.get(unigrams)))
        for name, split, unigrams in rows
    ]
    return markdown_table(("", "tokens", "of these masked", "loss of unigrams"), cells)


def _number(value: float | None) -> str:
    """A count whole, a loss with two decimals, nothing where there is none."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


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


def differences_table(results: Results) -> str:
    """In what the schemes' models differ: parameters, rates, and the time of a thread."""
    rows, reported, usual = [], results.reported(), None
    for scheme in SCHEMES:
        parts = [part for part in reported if part["scheme"] == scheme]
        if parts:
            usual = parts[0]["parameters"] if usual is None else usual  # of `none`, the first
            rates = position_rates(PosEncConfig(position_embedding_type=scheme))
            own = ", ".join(f"{rate:g}" for rate in rates.values() if rate != 1)
            seconds = statistics.fmean(part["cpu_seconds_per_million"] for part in parts)
            more = f"{parts[0]['parameters'] - usual:,}"
            rows.append((code(scheme), more, f"{parts[0]['rate']:g}", own, f"{seconds:.0f}"))
    header = ("scheme", "more parameters", "rate", "times that for its own weights", "seconds a million tokens")
    return _table(header, rows)


def curve_table(results: Results) -> str:
    """Held-out loss of each scheme on its way, and when it left the plateau."""
    rows, plateau, reported = [], results.unigrams - PLATEAU, results.reported()
    for scheme in SCHEMES:
        parts = [part for part in reported if part["scheme"] == scheme]
        if not parts:
            continue
        left = ", ".join(first_below(part["curve"], plateau) for part in parts)
        losses = [[loss for part in parts for loss in _loss_at(part["curve"], tokens)] for tokens in (2.5, 5, 10)]
        rows.append((code(scheme), len(parts), left, *map(mean_and_spread, losses)))
    header = ("scheme", "seeds", "left the plateau (million)", "loss at 2.6", "at 5.1", "at 10.2")
    return _table(header, rows)


def _loss_at(curve: list[dict[str, float]], millions: float) -> list[float]:
    """The loss at the first evaluation from so many million tokens on; none where the run has ended or diverged."""
    return [p["test"] for p in curve if p["tokens"] >= millions * MILLION and p["test"] is not None][:1]


def long_table(results: Results) -> str:
    """Whether curves meet: the loss of the runs that go on, seed by seed."""
    rows = []
    for part in results.longer():
        losses = (_loss_at(part["curve"], tokens) for tokens in (10, 20, 30))
        rows.append((code(part["scheme"]), part["seed"], *(f"{loss[0]:.3f}" if loss else "" for loss in losses)))
    return _table(("scheme", "seed", "loss at 10.2", "at 20.5", "at 30.7"), rows)


def check_table(results: Results) -> str:
    """The schemes whose rate was chosen on the plateau, with the other rates."""
    rows = []
    for part, is_chosen in results.checks():
        left = first_below(part["curve"], results.unigrams - PLATEAU)
        losses = [f"{loss:.3f}" for loss in _loss_at(part["curve"], 10)] or ["diverged"]
        rows.append((code(part["scheme"]), f"{part['rate']:g}" + ", chosen" * is_chosen, left, *losses))
    return _table(("scheme", "rate", "left the plateau (million)", "loss at 10.2"), rows)


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
            stayed, diverged = of_scheme["left the plateau at"].str.startswith("not").sum(), of_scheme["diverged"].sum()
            columns = ("loss at 128", "loss at 1,024", BLIMP, "fine-tuned")
            values = [values_of(runs, scheme, column) for column in columns]
            seeds = f"{len(of_scheme)}, {diverged} diverged" if diverged else f"{len(of_scheme)}"
            cost = of_scheme["cpu_seconds_per_million"].mean()
            measured = "/".join(str(len(of_column)) for of_column in values)
            cells = map(mean_and_spread, values)
            rows.append((code(scheme), seeds, measured, stayed, *cells, _within(runs, scheme), f"{cost:.0f}"))
    header = ("scheme", "seeds", "measured", "on the plateau", "loss at 128", "loss at 1,024", BLIMP, "fine-tuned")
    return _table((*header, f"as {code(REFERENCE)} within the margin", "seconds a million"), rows)


def _within(runs: pd.DataFrame, scheme: str) -> str:
    """The columns in which a scheme is as good as the reference, by five seeds or more."""
    return ", ".join(column for column in CONTRASTED if "within" in verdicts(runs, scheme, column))


def length_table(results: Results) -> str:
    """The loss at each length, mean and standard deviation over seeds."""
    runs = measured_runs(results)
    columns = [f"loss at {length}" for length in ("128", "256", "512", "1,024")]
    rows = [
        (code(scheme), *(mean_and_spread(values_of(runs, scheme, column)) for column in columns))
        for scheme in SCHEMES
        if len(runs) and values_of(runs, scheme, columns[0])
    ]
    return _table(("scheme", *columns), rows)


def fine_tuning_table(results: Results) -> str:
    """The mean validation accuracy over tasks of development models, by rate of fine-tuning."""
    by_rate = results.tuned_with
    rows = [
        (code(scheme), *(f"{by_rate[r][scheme]:.3f}" if scheme in by_rate[r] else "" for r in FINE_TUNING_RATES))
        for scheme in FINE_TUNED_FIRST
    ]
    header = ("mean validation accuracy", *(f"rate {rate:g}" for rate in FINE_TUNING_RATES))
    return _table(header, [row for row in rows if any(row[1:])])


def task_table(results: Results) -> str:
    """Test accuracy in each task, beside linear models on words, and how many runs ended at the cap of epochs."""
    runs, linear = measured_runs(results), results.baselines.get("linear", {})
    rows: list[tuple[Any, ...]] = []
    for kind in next(iter(linear.values()), {}):
        scores = [linear[task][kind] for task in linear]
        scores.append(statistics.fmean(scores))
        rows.append((kind.replace("_", " "), "", *(f"{score:.3f}" for score in scores), ""))
    for scheme in SCHEMES if len(runs) else ():
        measured = (values for (name, _), values in results.measured.items() if name == scheme)
        tuned = [values["fine_tuned"] for values in measured if "fine_tuned" in values]
        if tuned:
            cells = [mean_and_spread(values_of(runs, scheme, column)) for column in (*linear, "fine-tuned")]
            capped = sum(score["epoch"] > EPOCHS - PATIENCE for scores in tuned for score in scores.values())
            rows.append((code(scheme), len(tuned), *cells, f"{capped} of {sum(map(len, tuned))}"))
    return _table(("", "seeds", *linear, "mean", "still rising"), rows)


def contrast_table(results: Results) -> str:
    """Each scheme minus `rope`, Welch on seeds, with intervals for all contrasts at once; verdicts with 5 seeds."""
    runs, found = measured_runs(results), "found in 4 of 5 cases"
    others = [scheme for scheme in SCHEMES if scheme != REFERENCE and len(runs)]
    rows = [(code(scheme), *(contrast(runs, scheme, column) for column in CONTRASTED)) for scheme in others]
    rows.append((found, *(smallest_difference(runs, column) for column in CONTRASTED)))
    return _table((f"minus {code(REFERENCE)}", *CONTRASTED), [row for row in rows if any(row[1:])])


def paradigm_table(results: Results) -> str:
    """The mean score over seeds on the pairs of each of BLiMP's paradigms, beside that of bigrams."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    models = {**results.measured, (BIGRAMS, 0): results.baselines.get("bigrams", {})}
    for (model, _), measured in models.items():
        of_pairs = measured.get("blimp_paradigms", {})
        for paradigm, score in (of_pairs | {"all": measured["blimp"]} if of_pairs else {}).items():
            scores[paradigm][model].append(score)
    columns = (*SCHEMES, BIGRAMS)
    rows = [
        (code(paradigm), *(f"{statistics.fmean(of_model[m]):.2f}" if m in of_model else "" for m in columns))
        for paradigm, of_model in scores.items()
    ]
    return _table(("BLiMP's pairs", *map(code, SCHEMES), BIGRAMS), rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "text": text_table,
    "starts": start_table,
    "gate": gate_table,
    "rates": rate_table,
    "differences": differences_table,
    "curves": curve_table,
    "longer": long_table,
    "checks": check_table,
    "schemes": scheme_table,
    "lengths": length_table,
    "tuning": fine_tuning_table,
    "tasks": task_table,
    "contrasts": contrast_table,
    "verdicts": verdict_sentences,
    "paradigms": paradigm_table,
}
"""By the name of its mark in model_cards/pretraining.md."""
