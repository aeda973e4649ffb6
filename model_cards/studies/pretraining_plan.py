"""What the pretraining study trains: its parts, their order, and how choices are made.

1. Starts: four schemes with one development seed and each initial scale, 2 million tokens (a million is 500 steps,
   1.024 million). The scale with the least mean loss in `dev` is everybody's. At the usual scale, .02, small models are
   long on the plateau of the unigrams, and a table shows little but when they left it. `rope` is tried with its angles
   scaled to short texts, too, which decides nothing.
2. The gate: `rope` and `t5`, three development seeds, 10 million tokens. If the spread of the seeds is more than a
   quarter of the gap between the two, 20 million. Main parts have the number at which the spread is the smaller share.
3. Rates: each scheme with one development seed and five rates, 5 million tokens. The least loss in `dev` is taken.
4. Main parts: all nine schemes of a seed before those of the next, five seeds.
5. Long parts: `rope`, `alibi`, `learned`, 30 million tokens, two seeds, which go on from the main parts.
6. Checks: at all rates that were tried the schemes that add vectors, and `none`, were on the plateau after 5 million
   tokens or had just left it. They are trained at other rates, too, with a reported seed, which changes no choice.

Contrasts and margins were fixed before the first part; model_cards/pretraining.md says what was changed on the way.
"""

import json
import statistics
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

SCHEMES = ("none", "learned", "sinusoidal", "rope", "alibi", "t5", "rope+t5", "deberta", "pope")
REFERENCE = "rope"
SEEDS = range(5)
DEVELOPMENT_SEEDS = (100, 101, 102)
RATES = (0.000375, 0.00075, 0.0015, 0.003, 0.006)
"""Begun with the upper three, of which the lowest was best for all: lower ones were added until few took the lowest."""
GATE_SCHEMES, GATE_RATE = ("rope", "t5"), 0.003
SCALES = ("scale0.02", "scale0.05", "scale0.0884")
START_SCHEMES = ("learned", "rope", "alibi", "t5")
SHORT_ANGLES: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 200.0}}
STARTS: dict[str, dict[str, Any]] = {
    **{name: {"initializer_range": float(name.removeprefix("scale"))} for name in SCALES},
    "scale0.05-theta200": {"initializer_range": 0.05, **SHORT_ANGLES},
}
"""What a model starts with, by name. The widest scale is that of `train` from scratch: 1 / sqrt(hidden size)."""
MILLION = 1_024_000
"""500 steps of 2,048 tokens, for short."""
TOKENS = (10 * MILLION, 20 * MILLION)
ENOUGH = 0.25
"""Of the gap between the gate's two schemes, the most that the spread of their seeds may be."""
START_TOKENS, TRIAL_TOKENS, LONG_TOKENS = 2 * MILLION, 5 * MILLION, 30 * MILLION
LONG_SCHEMES, LONG_SEEDS = ("rope", "alibi", "learned"), (0, 1)
CHECKED_SCHEMES, CHECKED_RATES, CHECKED_SEED = ("none", "learned", "sinusoidal"), RATES[:3], 0
EPOCHS, PATIENCE, LEAST = 30, 6, 20
"""Of fine-tuning: the most epochs, those without a better validation score after which it ends, and the fewest."""
FINE_TUNING_RATES, FINE_TUNED_FIRST = (1e-4, 3e-4, 1e-3), ("rope", "alibi", "t5")
"""The rates of fine-tuning that are tried, and the schemes whose development models are tuned with them, for all."""
PLATEAU = 0.3
"""A model has left the plateau when its loss is so far below the unigrams'."""
CONTRASTS = 30
"""Against `rope`: loss (8), rise with length (6: not `NO_RISE`), BLiMP (8), fine-tuning (8)."""
NO_RISE = ("none", "learned")
"""Schemes whose rise with length isn't compared: one sees no length, the other takes none beyond its table."""
MARGINS = {"loss": 0.05, "accuracy": 0.02}
"""Of equivalence, in nats and as a share."""


@dataclass(frozen=True)
class Part:
    """One model: trained with a scheme, a seed, a rate and a start of `STARTS` to at least so many tokens."""

    scheme: str
    seed: int
    rate: float
    tokens: int
    start: str

    @property
    def name(self) -> str:
        """Of its file and folder. A longer run with the same name goes on from the shorter one."""
        return f"{self.scheme}-seed{self.seed}-rate{self.rate}-{self.start}"


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


class Results:
    """The parts that are written in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = {file.name.removesuffix(".json"): _read(file) for file in sorted(folder.glob("*-seed*.json"))}

    def has(self, part: Part) -> bool:
        """Whether a part has its tokens, or has diverged, which no more tokens change."""
        written = self.parts.get(part.name)
        return written is not None and (written["diverged"] or written["tokens"] >= part.tokens)

    def loss(self, part: Part, split: str) -> float:
        """The held-out loss of a part at the first evaluation with its tokens; infinite where it diverged before."""
        reached = [point[split] for point in self.parts[part.name]["curve"] if point["tokens"] >= part.tokens]
        return float("inf") if not reached or reached[0] is None else float(reached[0])

    def reported(self) -> list[dict[str, Any]]:
        """The main parts, each with its curve up to their number of tokens, also where it was trained for longer."""
        if not all(map(self.has, choosing_parts(self))):
            return []
        return [self._as_reported(part) for part in main_parts(self) if self.has(part)]

    def _as_reported(self, part: Part) -> dict[str, Any]:
        written = self.parts[part.name]
        curve = [point for point in written["curve"] if point["tokens"] <= part.tokens]
        seconds = written["cpu_seconds"] / written["tokens"] * 1e6
        return {**written, "tokens": curve[-1]["tokens"], "curve": curve, "cpu_seconds_per_million": round(seconds, 1)}

    def longer(self) -> list[dict[str, Any]]:
        """The main parts that were trained for longer."""
        if not self.reported():
            return []
        return [self.parts[part.name] for part in long_parts(main_parts(self)) if self.has(part)]

    def checks(self) -> list[tuple[dict[str, Any], bool]]:
        """The parts with other rates beside those with the chosen one, and which these are."""
        if not self.reported():
            return []
        main = [part for part in main_parts(self) if part.seed == CHECKED_SEED and part.scheme in CHECKED_SCHEMES]
        parts = sorted(main + check_parts(main), key=lambda part: (SCHEMES.index(part.scheme), part.rate))
        return [(self.parts[part.name], part in main) for part in parts if self.has(part)]

    @cached_property
    def measured(self) -> dict[tuple[str, int], dict[str, Any]]:
        """What was measured of the main parts, by scheme and seed."""
        of_parts: dict[tuple[str, int], dict[str, Any]] = {}
        for measured in map(_read, sorted((self.folder / "measured").glob("*.json"))):
            of_parts.setdefault((measured["scheme"], measured["seed"]), {}).update(measured)
        return of_parts

    @property
    def tuned_with(self) -> dict[float, dict[str, float]]:
        """The mean validation accuracy over tasks of each development model, by rate of fine-tuning and scheme."""
        by_rate: dict[float, dict[str, float]] = {rate: {} for rate in FINE_TUNING_RATES}
        for tried in map(_read, sorted((self.folder / "fine_tuning_rates").glob("*.json"))):
            scores = [score["validation"] for score in tried["fine_tuned"].values()]
            by_rate[tried["learning_rate"]][tried["scheme"]] = statistics.fmean(scores)
        return by_rate

    @property
    def fine_tuning_rate(self) -> float:
        """The rate with the best mean over the development models; all are there."""
        return max(FINE_TUNING_RATES, key=lambda rate: statistics.fmean(self.tuned_with[rate].values()))

    @property
    def baselines(self) -> dict[str, Any]:
        """What models without positions have: bigrams on BLiMP's pairs, and linear models on words in the tasks."""
        path = self.folder / "baselines.json"
        return dict(_read(path)) if path.is_file() else {}

    @property
    def text(self) -> dict[str, Any]:
        """The sizes of the text, and the loss of the training text's token frequencies in the held-out blocks."""
        return dict(_read(self.folder / "text.json"))

    @property
    def unigrams(self) -> float:
        """The loss of the training text's token frequencies in the blocks that curves are measured on."""
        return float(self.text["unigrams_of_curves"])

    def status(self) -> str:
        """What is there, and what comes next."""
        following = next_parts(self)
        ahead = f"next: {following[0].name} to {following[0].tokens // MILLION} million" if following else "all done"
        return f"{len(self.parts)} parts, {ahead}"


def starts() -> list[Part]:
    """The parts that choose the initial scale, and `rope` with other angles."""
    chosen = [(scheme, start) for start in STARTS for scheme in START_SCHEMES if start in SCALES or scheme == "rope"]
    return [Part(scheme, DEVELOPMENT_SEEDS[0], GATE_RATE, START_TOKENS, start) for scheme, start in chosen]


def chosen_start(results: Results) -> str:
    """The start of all that follows; the starts are there."""

    def mean_loss(start: str) -> float:
        return statistics.fmean(results.loss(part, "dev") for part in starts() if part.start == start)

    return min(SCALES, key=mean_loss)


def gate(tokens: int, start: str) -> list[Part]:
    """The parts that choose the number of tokens."""
    drawn = product(DEVELOPMENT_SEEDS, GATE_SCHEMES)
    return [Part(scheme, seed, GATE_RATE, tokens, start) for seed, scheme in drawn]


def trials(scheme: str, start: str) -> list[Part]:
    """The parts that choose a scheme's rate."""
    return [Part(scheme, DEVELOPMENT_SEEDS[0], rate, TRIAL_TOKENS, start) for rate in RATES]


def spread_over_gap(results: Results, tokens: int, start: str) -> float:
    """The pooled standard deviation of the gate's seeds, over the difference between its two schemes."""
    parts = gate(tokens, start)
    losses = [[results.loss(part, "dev") for part in parts if part.scheme == scheme] for scheme in GATE_SCHEMES]
    pooled = statistics.fmean(statistics.variance(of_scheme) for of_scheme in losses) ** 0.5
    return pooled / abs(statistics.fmean(losses[0]) - statistics.fmean(losses[1]))


def gate_tokens(results: Results, start: str) -> int:
    """The tokens to which the gate goes, as far as that can be told."""
    shortest, longest = TOKENS
    is_there = all(map(results.has, gate(shortest, start)))
    return longest if is_there and spread_over_gap(results, shortest, start) > ENOUGH else shortest


def chosen_tokens(results: Results, start: str) -> int:
    """The tokens of the main parts; the gate is there."""
    reached = [tokens for tokens in TOKENS if tokens <= gate_tokens(results, start)]
    return min(reached, key=lambda tokens: spread_over_gap(results, tokens, start))


def choosing_parts(results: Results) -> list[Part]:
    """The parts that choose what the main parts are; more where a choice waits for others."""
    if not all(map(results.has, starts())):
        return starts()
    start = chosen_start(results)
    return [
        *starts(),
        *gate(gate_tokens(results, start), start),
        *(part for scheme in SCHEMES for part in trials(scheme, start)),
    ]


def main_parts(results: Results) -> list[Part]:
    """The parts that are compared, in order; those that choose are there."""
    start = chosen_start(results)
    tokens = chosen_tokens(results, start)
    rates = {scheme: min(trials(scheme, start), key=lambda part: results.loss(part, "dev")).rate for scheme in SCHEMES}
    return [Part(scheme, seed, rates[scheme], tokens, start) for seed, scheme in product(SEEDS, SCHEMES)]


def long_parts(main: list[Part]) -> list[Part]:
    """Some of them with more tokens, so that it is seen whether curves meet."""
    chosen = (part for part in main if part.scheme in LONG_SCHEMES and part.seed in LONG_SEEDS)
    return [replace(part, tokens=LONG_TOKENS) for part in chosen]


def check_parts(main: list[Part]) -> list[Part]:
    """Other rates for the schemes whose rate was chosen on the plateau."""
    chosen = {part.scheme: part for part in main if part.seed == CHECKED_SEED}
    tried = product(CHECKED_SCHEMES, CHECKED_RATES)
    return [replace(chosen[scheme], rate=rate) for scheme, rate in tried if rate != chosen[scheme].rate]


def next_parts(results: Results) -> list[Part]:
    """What can be trained now, in order."""
    if missing := [part for part in choosing_parts(results) if not results.has(part)]:
        return missing
    main = main_parts(results)
    return [part for part in main + long_parts(main) + check_parts(main) if not results.has(part)]
