"""Do longer inputs pay? Long texts, read cut, in windows or whole, by all-MiniLM-L6-v2 as converted.

    python -m model_cards.studies.long_inputs --data FOLDER --minilm FOLDER --bf16 --output runs/long_inputs_1000.json
    python -m model_cards.studies.long_inputs --table

`SET/WAY/SEED` is one fine-tuning, by the default recipe for pretrained weights but for its rate and 250 steps of 8
texts, so that all ways take the same steps, and which test rows it gets right. `SET/WAY/rate/R` tries a rate
with cut texts and one seed, for all ways that start from the same weights, and scores it on the last training rows
(200, of few rows a fifth), which no trial learns. Models that read 512 tokens are scored on texts that are cut, and by
`windows="mean"` on windows of 512 tokens and of 256, which overlap by half. `heal/rope` swaps `rope` in and heals it as
the study of passkeys does. `PLANNED` are all comparisons that are tested. Each part is written as it ends; a study that
was stopped goes on with the next one. --rows and --tests take fewer rows (the first ones); --work
keeps the healed model.
"""

import argparse
import ctypes
import functools
import gc
import io
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from scipy.stats import binomtest

from hf_posenc.comparison.statistics import ABOVE_MAJORITY, mean_over_seeds
from hf_posenc.comparison.tables import difference, ends
from hf_posenc.conversion import convert
from hf_posenc.data.tables import Table, as_table
from hf_posenc.errors import run_script
from hf_posenc.finetuning.train import TrainingResult, fine_tune
from hf_posenc.inference.logits import logits_of
from hf_posenc.inference.windows import Windows
from hf_posenc.markdown import markdown_table
from hf_posenc.options import Options
from hf_posenc.training.baselines import fit_words
from model_cards.studies.parts import (
    Parts,
    data_folder,
    find_minilm,
    options_of,
    paired_interval,
    read_rows,
    run_study,
    signed,
)
from model_cards.studies.passkey import TRAINED, check_healed, heal_rope

DATA = {
    "imdb": ("train_long", ("test_long",)),
    "review_polarity": ("train", ("test",)),
    "hyperpartisan": ("train", ("validation", "test")),
}
"""The split of each set to learn, and those to test."""
SEEDS, RATES, HELD_OUT, STEPS = range(5), (5e-5, 1e-4, 2e-4), 200, 250
WINDOWS = {"windows": TRAINED, "windows of 256": 256}
"""Tokens of a window, at most, by what a part calls its score."""
HEALED = "heal/rope"


@dataclass(frozen=True)
class Way:
    """How a model reads a long text: the weights it starts from, how they were lengthened, and its longest input."""

    source: str
    extension: str | None = None
    longest: int = TRAINED


WAYS = {
    "cut": Way("learned"),
    "tile": Way("learned", "tile", 1536),
    "interpolate": Way("learned", "interpolate", 1536),
    "rope-cut": Way("rope"),
    "rope-dynamic": Way("rope", "dynamic", 2048),
    "rope-dynamic-1536": Way("rope", "dynamic", 1536),
}
TRIED = {"learned": "cut", "rope": "rope-cut"}
"""The way whose rate all take that start from the same weights."""
ROWS = {
    "word pairs": "TF-IDF of words and word pairs, a linear model",
    "cut": "its own table, texts cut at 512",
    "cut, windows": "the same, mean over windows of 512",
    "cut, windows of 256": "the same, mean over windows of 256",
    "tile": "its own table repeated to 1,536",
    "interpolate": "its own table stretched to 1,536",
    "rope-cut": "healed `rope`, texts cut at 512",
    "rope-cut, windows": "the same, mean over windows of 512",
    "rope-cut, windows of 256": "the same, mean over windows of 256",
    "rope-dynamic": "healed `rope`, `dynamic` to 2,048",
    "rope-dynamic-1536": "healed `rope`, `dynamic` to 1,536",
}
"""What the table shows."""
PLANNED = [
    (name, row)
    for name in ("imdb", "hyperpartisan")
    for row in (
        *("tile", "cut, windows", "cut, windows of 256"),
        *("rope-cut", "rope-dynamic-1536", "rope-cut, windows", "rope-cut, windows of 256"),
    )
]
"""What is tested with 1,000 rows: more of a text against cutting it, and `rope` against the table."""


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.source, self.data = find_minilm(options.minilm), data_folder(options)
        self.rows, self.tests, self.bf16 = options.rows, options.tests, options.bf16
        self.sets, self.ways, self.seeds = options.sets, options.ways, range(options.seeds)
        self.rope, self.parts = Path(options.work) / "rope", Parts(options)

    def run(self) -> None:
        """All parts, set by set: what has to be beaten, the rates, then seed by seed."""
        measure = functools.partial(self.parts.measure, rows=self.rows, tests=self.tests, bf16=self.bf16, steps=STEPS)
        sources = {WAYS[way].source for way in self.ways}
        if "rope" in sources:
            if HEALED in self.parts.read()["parts"]:
                check_healed(self.parts, HEALED, self.rope)
            measure(HEALED, functools.partial(heal_rope, self.source, self.rope, self.data, 0))
            self.parts.wait()
        for name in self.sets:
            measure(f"{name}/word pairs", functools.partial(self.linear, name))
            for way in (tried for source, tried in TRIED.items() if source in sources):
                for rate in RATES:
                    trial = functools.partial(self.fine_tune, name, way, 1_000_000, rate)
                    measure(f"{name}/{way}/rate/{rate:g}", trial)
            self.parts.wait()
            for seed in self.seeds:
                for way in self.ways:
                    measure(f"{name}/{way}/{seed}", functools.partial(self.fine_tune, name, way, seed))

    def start(self, way: Way, folder: str) -> None:
        """Writes the weights that a way starts from."""
        is_healed = way.source == "rope"
        convert(
            check_healed(self.parts, HEALED, self.rope) if is_healed else self.source,
            folder,
            head="feature-extraction",
            measure=False,
            seed=0,
            extension=way.extension,
            max_position_embeddings=None if way.extension is None else way.longest,
        )

    def splits(self, name: str, *, trial: bool) -> tuple[Table, Table]:
        """Training and test rows; a trial's test are the last training rows."""
        split, tested = DATA[name]
        rows = read_rows(self.data, name, split)
        tests = [row for part in tested for row in read_rows(self.data, name, part)]
        if trial:
            held = min(HELD_OUT, len(rows) // 5)
            rows, tests = rows[:-held], rows[-held:]
        known, asked = (
            as_table(Dataset.from_dict({key: [row[key] for row in kept] for key in ("text", "label")}), split)
            for split, kept in (("train", rows[: self.rows]), ("test", tests[: self.tests]))
        )
        return known, asked

    def linear(self, name: str) -> dict[str, Any]:
        """The linear model on words and word pairs, and the share of the most frequent label."""
        known, asked = self.splits(name, trial=False)
        fitted = fit_words([known.cells("text")], known.cells("label"), "word pairs")
        labels = asked.cells("label")
        majority = Counter(labels).most_common(1)[0][1] / len(labels)
        return {**_scored({"accuracy": fitted.predict([asked.cells("text")])}, labels), "majority": majority}

    def fine_tune(self, name: str, way: str, seed: int, rate: float | None = None) -> dict[str, Any]:
        """One model, trained and scored; with a rate a trial of it."""
        (known, asked), chosen, trial = self.splits(name, trial=rate is not None), WAYS[way], rate is not None
        texts, labels = asked.cells("text"), asked.cells("label")
        _forget_peak()
        with tempfile.TemporaryDirectory() as folder:
            self.start(chosen, f"{folder}/start")
            options = Options.of(
                output=f"{folder}/run",
                pretrained=f"{folder}/start",
                max_length=chosen.longest,
                max_steps=STEPS,
                batch_size=8,
                learning_rate=rate or best_rate(self.parts.read(), name, way),
                seed=seed,
                validation_share=0.0,
                bf16=self.bf16,
                set={"save_strategy": "no"},
            )
            started = time.process_time()
            trained = fine_tune(options, tables={"train": known}, baselines=False, console=Console(file=io.StringIO()))
        answers = {"accuracy": predicted(trained, texts, chosen.longest)}
        result = {"rate": options.learning_rate}
        result |= {"core_seconds": round(time.process_time() - started, 1), "gigabytes": _peak()}
        if chosen.longest == TRAINED and not trial:
            answers |= {kind: predicted(trained, texts, size, Windows("mean")) for kind, size in WINDOWS.items()}
        return {**_scored(answers, labels), **result}


def predicted(
    trained: TrainingResult, texts: Sequence[str], longest: int, windows: Windows | None = None
) -> Sequence[str]:
    """The label of each text: of its first tokens, or of windows of so many."""
    trained.tokenizer.model_max_length = longest
    names: Any = trained.model.config.id2label
    answers = logits_of(trained.model, trained.tokenizer, texts, 16, windows=windows)
    return [names[int(logits.argmax())] for logits in answers]


def _scored(answers: dict[str, Sequence[str]], labels: Sequence[str]) -> dict[str, Any]:
    """Accuracies, and which answers are right: a 1 or 0 for each text."""
    right = {
        kind: "".join(str(int(answer == label)) for answer, label in zip(given, labels, strict=True))
        for kind, given in answers.items()
    }
    shares = {kind: each.count("1") / len(each) for kind, each in right.items()}
    return {**shares, "right": right, "examples": len(labels)}


def _forget_peak() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif (counters := Path("/proc/self/clear_refs")).exists():
        ctypes.CDLL(None).malloc_trim(0)
        counters.write_text("5")


def _peak() -> float | None:
    """The most memory since `_forget_peak`, in GB: the GPU's, or the process's where Linux tells it."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 1e9, 2)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((round(int(line.split()[1]) * 1024 / 1e9, 2) for line in lines if line.startswith("VmHWM")), None)


def scores(results: dict[str, Any], name: str, row: str) -> dict[int, float]:
    """The accuracy of each seed; of the linear model one."""
    return {seed: part[kind] for seed, part, kind in _runs(results, name, row) if kind in part}


def _runs(results: dict[str, Any], name: str, row: str) -> list[tuple[int, dict[str, Any], str]]:
    """A row's seeds, their parts, and what those call its score."""
    way, _, windowed = row.partition(", ")
    keys = {seed: f"{name}/{way}/{seed}" for seed in SEEDS} if way in WAYS else {0: f"{name}/{row}"}
    return [(seed, results["parts"].get(key, {}), windowed or "accuracy") for seed, key in keys.items()]


def own_cut(row: str) -> str:
    """The row of texts that are cut, for the same weights."""
    return TRIED[WAYS[row.partition(", ")[0]].source]


def table(results: dict[str, Any]) -> str:
    """Means over seeds with 95 % intervals, gains over cutting on the mean of the sets, time and memory of a run."""
    measured = [name for name in DATA if scores(results, name, "cut")]
    head = ("", *measured, "gain over cutting, mean", "with the same weights", "core-minutes a run", "GB")
    rows = []
    for row, what in ROWS.items():
        cells = [_cell(results, name, row) for name in measured]
        if not any(cells):
            continue
        cuts = ["", ""] if row == "word pairs" else ["cut", own_cut(row)]
        gains = [_gain(results, measured, row, cut) for cut in cuts]
        rows.append((what, *cells, *gains, *_cost(results, measured, row)))
    return markdown_table(head, rows, "l" + "r" * (len(head) - 1))


def _cost(results: dict[str, Any], names: Sequence[str], row: str) -> tuple[str, str]:
    """Core-minutes and memory of a run; of windows nothing, which are read after the same training."""
    runs = [part for name in names for _, part, _ in _runs(results, name, row) if "core_seconds" in part]
    if not runs or row not in WAYS:
        return "", ""
    memory = min((run["gigabytes"] or 0) for run in runs)  # a process keeps what earlier runs left
    return f"{fmean(run['core_seconds'] for run in runs) / 60:.1f}", f"{memory:.1f}" if memory else ""


def _gain(results: dict[str, Any], names: Sequence[str], row: str, cut: str) -> str:
    """The mean difference from a row of cut texts, of the seeds that both have; nothing where a set lacks them."""
    pairs = []
    for own, other in ((scores(results, name, row), scores(results, name, cut)) for name in names):
        pairs.append([own[seed] - other[seed] for seed in own if seed in other])
    return difference(mean_over_seeds(*pairs)) if row != cut and all(pairs) else ""


def _cell(results: dict[str, Any], name: str, row: str) -> str:
    """The mean, its interval over the seeds, and how many seeds learned where some are no better than the majority."""
    values, baseline = [*scores(results, name, row).values()], results["parts"].get(f"{name}/word pairs", {})
    if not values:
        return ""
    cell = f"{fmean(values):.3f} {ends(mean_over_seeds(values))}".strip()
    if "majority" not in baseline:  # of a file of before
        return cell
    tests, majority = baseline["examples"], baseline["majority"]
    chances = [binomtest(round(value * tests), tests, majority, alternative="greater").pvalue for value in values]
    learned = sum(chance < ABOVE_MAJORITY for chance in chances)
    return cell + (f"; {learned} of {len(values)} learned" if learned < len(values) else "")


def test_table(results: dict[str, Any]) -> str:
    """Each planned row minus its own cut, `rope-cut` minus `cut`, on the same texts: `paired_interval` over seeds."""
    sets = list(dict.fromkeys(name for name, _ in PLANNED))
    rows = []
    for row in dict.fromkeys(row for _, row in PLANNED):
        cut = "cut" if row == "rope-cut" else own_cut(row)
        cells = []
        for name in sets:
            own, other = (_right(results, name, each) for each in (row, cut))
            pairs = [(own[seed], other[seed]) for seed in own if seed in other]
            cells.append(signed(paired_interval(pairs, len(PLANNED)), 3) if pairs else "")
        rows += [(f"{row} minus {cut}", *cells)] * any(cells)
    return markdown_table(("", *sets), rows, "l" + "r" * len(sets)) if rows else ""


def rate_table(results: dict[str, Any]) -> str:
    """The accuracy of each trial, that of the rate that was taken in bold."""
    sets, rows = list(dict.fromkeys(name for name, _ in PLANNED)), []
    for name, (source, way) in itertools.product(sets, TRIED.items()):
        tried = {rate: results["parts"].get(f"{name}/{way}/rate/{rate:g}", {}).get("accuracy") for rate in RATES}
        if None not in tried.values():
            taken = best_rate(results, name, way)
            cells = [f"**{score:.3f}**" if rate == taken else f"{score:.3f}" for rate, score in tried.items()]
            rows.append((name, "its own table" if source == "learned" else "healed `rope`", *cells))
    head = ("set", "weights", *(f"rate {rate:g}" for rate in RATES))
    return markdown_table(head, rows, "ll" + "r" * len(RATES)) if rows else ""


def best_rate(results: dict[str, Any], name: str, way: str) -> float:
    """The rate whose trial was best; of two the one in the middle, or the smaller."""
    tried = TRIED[WAYS[way].source]
    in_order = (RATES[1], RATES[0], RATES[2])
    scores = {rate: results["parts"][f"{name}/{tried}/rate/{rate:g}"]["accuracy"] for rate in in_order}
    return max(scores, key=lambda rate: scores[rate])


def _right(results: dict[str, Any], name: str, row: str) -> dict[int, str]:
    return {
        seed: part["right"][kind] for seed, part, kind in _runs(results, name, row) if kind in part.get("right", {})
    }


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "long_inputs")
    parser.add_argument("--work", default="runs/long_inputs", help="folder of the healed model")
    parser.add_argument("--sets", nargs="+", choices=DATA, default=list(dict.fromkeys(name for name, _ in PLANNED)))
    ways = [way for way in WAYS if way == "cut" or any(row == way for _, row in PLANNED)]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=ways, help="how long texts are read")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision")
    parser.add_argument("--rows", type=int, default=1000, help="training rows of each set")
    parser.add_argument("--tests", type=int, default=1400, help="test rows of each set")
    run_study(parser.parse_args(), Study, table, test_table, rate_table)


if __name__ == "__main__":
    run_script(main)
