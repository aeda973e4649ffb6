"""Do longer inputs pay? Long film reviews, read cut, in windows or whole, by all-MiniLM-L6-v2 as converted.

    python -m model_cards.studies.long_inputs --data FOLDER --minilm FOLDER
    python -m model_cards.studies.long_inputs --table
    python -m model_cards.studies.long_inputs --rows 1000 --seeds 3 --bf16 --sets imdb hyperpartisan \
        --ways cut tile rope-cut rope-dynamic-1536 --output runs/long_inputs.json --work runs/long_inputs_1000

`SET/WAY/SEED` is one fine-tuning, by the default recipe for pretrained weights but for its rate, two epochs and the
batch of 8 texts, so that all ways take the same steps. `SET/WAY/rate/R` tries a rate with cut texts, for all ways that
start from the same weights, and scores it on the last training rows (200, of few rows a fifth), which no trial learns.
Models that read 512 tokens are scored on texts that are cut and on windows: the mean of their probabilities over as few
windows of 512 tokens, and of 256, as hold the text. `heal/rope` swaps `rope` in and heals it on unlabelled reviews at
up to 512 tokens. Each
part is written as it ends; a study that was stopped goes on with the next one. --rows and --tests take fewer rows (the
first ones); --work keeps the models to start from.
"""

import argparse
import ctypes
import functools
import gc
import io
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from scipy.special import softmax
from scipy.stats import binomtest

from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.comparison.statistics import ABOVE_MAJORITY, mean_over_seeds
from hf_posenc.comparison.tables import difference, ends
from hf_posenc.conversion import Healing, convert
from hf_posenc.data.tables import Table, as_table
from hf_posenc.errors import run_script
from hf_posenc.finetuning.train import TrainingResult, fine_tune
from hf_posenc.inference.logits import logits_of
from hf_posenc.markdown import markdown_table
from hf_posenc.options import Options
from hf_posenc.training.baselines import fit_words
from model_cards.studies.parts import NAME, Parts, data_folder, find_minilm, options_of, read_rows, run_study
from model_cards.studies.passkey import TRAINED, windows

DATA = {
    "imdb": ("train_long", "test_long"),
    "review_polarity": ("train", "test"),
    "hyperpartisan": ("train", "test"),
}
"""The splits of each set."""
SEEDS, RATES, HELD_OUT = range(5), (5e-5, 1e-4, 2e-4), 200
WINDOWS = {"windows": TRAINED, "windows of 256": 256}
"""Tokens of a window, at most, by what a part calls its score."""
HEALING_STEPS = 300


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


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.source, self.data = find_minilm(options.minilm), data_folder(options)
        self.rows, self.tests, self.bf16 = options.rows, options.tests, options.bf16
        self.sets, self.ways, self.seeds = options.sets, options.ways, range(options.seeds)
        self.work, self.parts = Path(options.work), Parts(options)

    def run(self) -> None:
        """All parts, set by set: what has to be beaten, the rates, then seed by seed."""
        measure = functools.partial(self.parts.measure, rows=self.rows, tests=self.tests, bf16=self.bf16)
        sources = {WAYS[way].source for way in self.ways}
        if "rope" in sources:
            measure("heal/rope", self.heal)
            self.parts.wait()
        for way in self.ways:
            self.start(WAYS[way])  # here, for whoever measures parts at the same time
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

    def heal(self) -> dict[str, Any]:
        """Swaps `rope` in, and heals it on the training reviews of imdb, short and long ones."""
        texts = [row["text"] for split in ("train", "train_long") for row in read_rows(self.data, "imdb", split)[:1400]]
        healing = Healing(texts, max_steps=HEALING_STEPS, batch_tokens=8 * TRAINED, max_length=TRAINED)
        options: dict[str, Any] = {"head": "feature-extraction", "overwrite": True, "seed": 0}
        report = convert(self.source, self.work / "rope", scheme="rope", healing=healing, **options).report
        return {name: value for name, value in report.to_dict().items() if name != "keys"} | {"source": NAME}

    def start(self, way: Way) -> Path:
        """The folder of the weights that a way starts from."""
        if way.source == "rope" and not (self.work / "rope/config.json").is_file():
            self.heal()  # another machine did
        source = self.work / "rope" if way.source == "rope" else self.source
        folder = self.work / f"{way.source}-{way.extension}-{way.longest}"
        if not (folder / "config.json").is_file():
            longest = None if way.extension is None else way.longest
            convert(
                source,
                folder,
                head="feature-extraction",
                measure=False,
                seed=0,
                extension=way.extension,
                max_position_embeddings=longest,
            )
        return folder

    def splits(self, name: str, *, trial: bool) -> dict[str, Table]:
        """Training and test rows; a trial's test are the last training rows."""
        rows, tests = (read_rows(self.data, name, split) for split in DATA[name])
        if trial:
            held = min(HELD_OUT, len(rows) // 5)
            rows, tests = rows[:-held], rows[-held:]
        rows, tests = rows[: self.rows], tests[: self.tests]
        return {
            split: as_table(Dataset.from_dict({key: [row[key] for row in kept] for key in ("text", "label")}), split)
            for split, kept in (("train", rows), ("test", tests))
        }

    def linear(self, name: str) -> dict[str, Any]:
        """The linear model on words and word pairs."""
        known, asked = self.splits(name, trial=False).values()
        fitted = fit_words([known.cells("text")], known.cells("label"), "word pairs")
        return {"accuracy": float(np.mean(fitted.predict([asked.cells("text")]) == np.asarray(asked.cells("label"))))}

    def fine_tune(self, name: str, way: str, seed: int, rate: float | None = None) -> dict[str, Any]:
        """One model, trained and scored; with a rate a trial of it."""
        tables, chosen, trial = self.splits(name, trial=rate is not None), WAYS[way], rate is not None
        start = self.start(chosen)
        _forget_peak()
        with tempfile.TemporaryDirectory() as folder:
            options = Options.of(
                output=f"{folder}/run",
                pretrained=str(start),
                max_length=chosen.longest,
                epochs=2,
                batch_size=8,
                learning_rate=rate or self.best_rate(name, way),
                seed=seed,
                validation_share=0.0,
                bf16=self.bf16,
                set={"save_strategy": "no"},
            )
            started = time.process_time()
            trained = fine_tune(options, tables=tables, baselines=False, console=Console(file=io.StringIO()))
        result = {"accuracy": trained.report.metrics["test_accuracy"], "rate": options.learning_rate}
        result |= {"examples": len(tables["test"])}
        result |= {"core_seconds": round(time.process_time() - started, 1), "gigabytes": _peak()}
        if chosen.longest == TRAINED and not trial:
            asked = tables["test"].cells("text"), tables["test"].cells("label")
            result |= {name: in_windows(trained, *asked, size) for name, size in WINDOWS.items()}
        return result

    def best_rate(self, name: str, way: str) -> float:
        """The rate whose trial was best; of two the one in the middle, or the smaller."""
        parts, tried = self.parts.read()["parts"], TRIED[WAYS[way].source]
        scores = {rate: parts[f"{name}/{tried}/rate/{rate:g}"]["accuracy"] for rate in (RATES[1], RATES[0], RATES[2])}
        return max(scores, key=lambda rate: scores[rate])


def in_windows(trained: TrainingResult, texts: Sequence[str], labels: Sequence[str], size: int = TRAINED) -> float:
    """The accuracy of the mean of the probabilities over the windows of each text, of at most so many tokens."""
    tokenizer = open_tokenizer(trained.tokenizer.name_or_path)
    tokenizer.model_max_length = 10**6
    parts = [windows(tokenizer, tokenizer(text)["input_ids"], size) for text in texts]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for text in parts for ids in text]
    answers = softmax(np.stack(list(logits_of(trained.model, trained.tokenizer, rows, 16))), -1)
    ends_at = np.cumsum([len(text) for text in parts])
    means = [answer.mean(0) for answer in np.split(answers, ends_at[:-1])]
    names: Any = trained.model.config.id2label
    return float(np.mean([names[int(mean.argmax())] == label for mean, label in zip(means, labels, strict=True)]))


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


def scores(results: dict[str, Any], name: str, row: str) -> list[float]:
    """The accuracy of each seed; of the linear model one."""
    way, _, windowed = row.partition(", ")
    keys = [f"{name}/{way}/{seed}" for seed in SEEDS] if row in WAYS or windowed else [f"{name}/{row}"]
    parts = (results["parts"].get(key, {}) for key in keys)
    kind = windowed or "accuracy"
    return [part[kind] for part in parts if kind in part]


def table(results: dict[str, Any]) -> str:
    """Means over seeds with 95 % intervals, the gain over cutting on the mean of the sets, time and memory of a run."""
    measured = [name for name in DATA if scores(results, name, "cut")]
    gains = f"gain over cutting{['', ', mean of both', ', mean of all'][len(measured) - 1]}"
    head = ("", *measured, gains, "core-minutes a run", "GB")
    rows = []
    for row, what in ROWS.items():
        of_sets = {name: scores(results, name, row) for name in measured}
        if not all(of_sets.values()):
            continue
        counts = {name: results["parts"][f"{name}/cut/0"].get("examples", results["tests"]) for name in measured}
        cells = [_cell(values, counts[name]) for name, values in of_sets.items()]
        pairs = [
            [own - cut for own, cut in zip(values, scores(results, name, "cut"), strict=False)]
            for name, values in of_sets.items()
        ]
        gain = "" if row in ("cut", "word pairs") else difference(mean_over_seeds(*pairs))
        keys = [f"{name}/{row}/{seed}" for name in measured for seed in SEEDS]
        runs = [part for key in keys if "core_seconds" in (part := results["parts"].get(key, {}))]
        cost = ("", "")
        if runs:
            memory = min((run["gigabytes"] or 0) for run in runs)  # a process keeps what earlier runs left
            cost = (f"{fmean(run['core_seconds'] for run in runs) / 60:.1f}", f"{memory:.1f}" if memory else "")
        rows.append((what, *cells, gain, *cost))
    return markdown_table(head, rows, "l" + "r" * (len(head) - 1))


def _cell(values: list[float], tests: int) -> str:
    """The mean, its interval over the seeds, and how many seeds learned where some are no better than chance."""
    chances = [binomtest(round(value * tests), tests, 0.5, alternative="greater").pvalue for value in values]
    learned = sum(chance < ABOVE_MAJORITY for chance in chances)
    said = f"; {learned} of {len(values)} learned" if learned < len(values) else ""
    return f"{fmean(values):.3f} {ends(mean_over_seeds(values))}".strip() + said


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "long_inputs")
    parser.add_argument("--work", default="runs/long_inputs", help="folder of the models to start from")
    parser.add_argument("--sets", nargs="+", choices=DATA, default=["imdb", "review_polarity"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS][:-1], help="how long texts are read")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision")
    parser.add_argument("--rows", type=int, default=1400, help="training rows of each set")
    parser.add_argument("--tests", type=int, default=1400, help="test rows of each set")
    run_study(parser.parse_args(), Study, table)


if __name__ == "__main__":
    run_script(main)
