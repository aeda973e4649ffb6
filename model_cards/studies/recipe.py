"""How the defaults of training do on real and made sets, against word pairs and, from pretrained weights, stock BERT.

    python -m model_cards.studies.recipe --data FOLDER --minilm FOLDER --output model_cards/results/recipe.json
    python -m model_cards.studies.recipe --table

Each part is `hf-posenc train` without options but the scheme and the seed: `scratch/SET/ROWS/SCHEME/SEED` is a new
encoder, `pretrained/SET/ROWS/SCHEME/SEED` all-MiniLM-L6-v2 under `--pretrained`, `stock/SET/ROWS/bert/SEED` the same
weights in transformers' own BERT by the same recipe. `few/SET/ROWS/SMOOTHING/SEED` is a new encoder with `rope` and
that much label smoothing, scored on training rows that it isn't trained on: test rows don't choose a default. Each is
written as it ends; a study that was stopped goes on with the next one.
"""

import argparse
import io
import itertools
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console
from transformers import set_seed

from hf_posenc.checkpoints.loading import load_model, read_model_config
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.comparison.statistics import mean_over_seeds
from hf_posenc.comparison.tables import difference
from hf_posenc.data.preparing import encode, labels_of, prepare, texts_of
from hf_posenc.data.tables import as_table
from hf_posenc.errors import run_script
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.markdown import markdown_table
from hf_posenc.options import Options
from hf_posenc.training.baselines import baseline_scores
from hf_posenc.training.metrics import make_loss
from hf_posenc.training.recipe import make_recipe
from hf_posenc.training.trainer import make_trainer
from model_cards.studies.parts import Parts, data_folder, find_minilm, options_of, read_rows, run_study

COMPARISONS = "comparisons"
SCRATCH = {
    "blimp_order": None,
    COMPARISONS: 8000,
    "sst2": 5000,
    "trec": 1000,
    "cola": None,
    "cr": 3000,
    "subj": 1000,
}
"""Sets for new encoders, and how many of their rows; None: all."""
SCHEMES_OF = {
    "blimp_order": (
        *("alibi", "kerple", "t5", "fire", "mlp_bias", "fourier", "tupe"),
        *("relative_key", "relative_key_query", "deberta"),
    )
}
"""More schemes than rope, on the set where order alone decides; the quick start measures the others."""
PRETRAINED = dict.fromkeys(("sst2", "trec", "subj", "cola", "bshift_novels", "hans"), (1000, 5000)) | {
    COMPARISONS: (1000, 8000)
}
"""Sets for pretrained weights, and how many of their rows: few, then many."""
FEW, FEW_ROWS, SMOOTHED = ("trec", "sst2", "semeval2010_task8"), (1000, 3000), (0.0, 0.1)
"""Sets and rows on which label smoothing is compared."""
_PRETRAINED_KINDS = {
    ("stock", "bert"): "stock BERT",
    ("pretrained", "learned"): "`learned`",
    ("pretrained", "rope"): "`rope`",
}
_NAMES = {"majority": "majority", "words": "words", "word_pairs": "word pairs"}
"""What has to be beaten, as the tables name it."""
MOST_SCORED = {"validation": 500, "test": 2000}
DEVELOPMENT = 1800
"""The last of the shuffled training rows, to choose defaults on."""


def comparisons(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Pairs such as "tom is more careful than ann" / "ann is less careful than tom": does the second say the same?

    Degree and order of the names are drawn apart for both texts, so neither the words nor the pairs of words of a text,
    nor of both, say anything about the label.
    """
    draw = random.Random(seed)
    names = [first + last for first in "bdfklmnrst" for last in ("ana", "en", "iko", "olf", "ura", "ys")]
    words = ["bold", "calm", "careful", "clever", "eager", "fair", "fast", "firm", "gentle", "kind", "loud", "neat"]
    for _ in range(rows):
        people, word = draw.sample(names, 2), draw.choice(words)
        turned, degrees = draw.random() < 0.5, [draw.choice(("more", "less")) for _ in range(2)]
        second = people[::-1] if turned else people
        yield {
            "text": f"{people[0]} is {degrees[0]} {word} than {people[1]}",
            "text_pair": f"{second[0]} is {degrees[1]} {word} than {second[1]}",
            "label": "same" if (degrees[0] != degrees[1]) == turned else "other",
        }


def splits(data: Path, name: str, rows: int | None, *, develop: bool = False) -> dict[str, Dataset]:
    """Training rows drawn from a fixed seed, the first validation and test rows; to develop, other training rows."""
    if name == COMPARISONS:
        made = list(comparisons((rows or 8000) + 2500, seed=0))
        by_split = {"validation": made[:500], "test": made[500:2500], "train": made[2500:]}
    else:
        by_split = {split: read_rows(data, name, split) for split in ("train", "validation", "test")}
        random.Random(0).shuffle(by_split["train"])
        if develop:
            by_split["test"] = by_split["train"][-DEVELOPMENT:]
        by_split["train"] = by_split["train"][:rows]
        by_split |= {split: by_split[split][:most] for split, most in MOST_SCORED.items()}
    columns = ("text", "text_pair", "label")
    return {
        split: as_table(
            Dataset.from_dict({name: [str(row[name]) for row in kept] for name in columns if name in kept[0]}), split
        )
        for split, kept in by_split.items()
    }


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.data, self.parts = data_folder(options), Parts(options)
        self.seeds, self.changed, self.minilm = options.seeds, json.loads(options.options), options.minilm

    def run(self) -> None:
        """All parts, seeds last."""
        for seed in range(self.seeds):
            for name, size, smoothing in itertools.product(FEW, FEW_ROWS, SMOOTHED):
                self.part("few", name, size, f"{smoothing:g}", seed)
            for name, rows in SCRATCH.items():
                for scheme in ("rope", *SCHEMES_OF.get(name, ())):
                    self.part("scratch", name, rows, scheme, seed)
            for size, name in itertools.product(range(2), PRETRAINED):
                for kind, scheme in _PRETRAINED_KINDS:
                    self.part(kind, name, PRETRAINED[name][size], scheme, seed)

    def part(self, kind: str, name: str, rows: int | None, scheme: str, seed: int) -> None:
        """Trains and scores, unless that is written or not wanted."""
        key = f"{kind}/{name}/{rows or 'all'}/{scheme}/{seed}"
        self.parts.measure(key, lambda: self._train(kind, name, rows, scheme, seed), options=self.changed)

    def _train(self, kind: str, name: str, rows: int | None, scheme: str, seed: int) -> dict[str, Any]:
        options: dict[str, Any] = {"seed": seed, "data": name, **self.changed}
        if kind in ("pretrained", "stock"):
            options["pretrained"] = str(find_minilm(self.minilm))
        if kind == "few":
            options["set"] = {"label_smoothing_factor": float(scheme)}
        elif kind != "stock":
            options["scheme"] = scheme
        with tempfile.TemporaryDirectory() as folder:
            chosen, tables = Options.of(**options, output=folder), splits(self.data, name, rows, develop=kind == "few")
            if kind == "stock":
                metrics, baselines, epochs = _stock(chosen, tables)
            else:
                result = fine_tune(chosen, tables=tables, console=Console(file=io.StringIO()))
                metrics = result.report.metrics
                baselines = {name: scores["test_accuracy"] for name, scores in result.report.baselines.items()}
                epochs = result.report.history[-1]["epoch"]
        kept = ("accuracy", "macro_f1", "matthews_correlation", "loss")
        return {
            "test": {metric: round(metrics[f"test_{metric}"], 5) for metric in kept},
            "validation": {metric: round(metrics[f"eval_{metric}"], 5) for metric in kept},
            "baselines": {baseline: round(score, 5) for baseline, score in baselines.items()},
            "epochs": epochs,
        }


def _stock(options: Options, tables: dict[str, Dataset]) -> tuple[dict[str, float], dict[str, float], float]:
    """Metrics, baselines and epochs of the checkpoint in transformers' own class, by the recipe of `train`."""
    prepared = prepare(tables, options)
    set_seed(options.seed)
    tokenizer = open_tokenizer(str(options.pretrained))
    names = {"id2label": dict(enumerate(prepared.labels.names)), "label2id": prepared.labels.numbers()}
    checkpoint = open_checkpoint(str(options.pretrained))
    config = read_model_config(checkpoint)
    config.update(names)
    config.problem_type = prepared.labels.problem_type
    model = load_model(checkpoint, config, new_head=True)
    encoded, _ = encode(prepared, tokenizer, tokenizer.model_max_length)
    recipe = make_recipe(options, model, tokenizer, encoded)
    loss = make_loss(prepared.labels, [], None, 0.0)
    trainer = make_trainer(model, tokenizer, encoded, recipe, loss, Console(file=io.StringIO()))
    trainer.train()
    metrics: dict[str, float] = {}
    for split, prefix in (("validation", "eval"), ("test", "test")):
        metrics |= trainer.predict(encoded[split], metric_key_prefix=prefix).metrics or {}
    training, test = (
        (texts_of(part), labels_of(part) or []) for part in map(prepared.splits.__getitem__, ("train", "test"))
    )
    scores, _ = baseline_scores(training, {"test": test}, "single_label_classification")
    baselines = {name: score["test_accuracy"] for name, score in scores.items()}
    return metrics, baselines, recipe.num_train_epochs


def scratch_table(results: dict[str, Any]) -> str:
    """Test accuracies of new encoders, means over the seeds, as markdown."""
    rows = [
        (*_beside(key, runs), f"`{key[3]}`", _mean(runs), len(runs))
        for key, runs in _runs(results).items()
        if key[0] == "scratch"
    ]
    return markdown_table(("set", "rows", *_NAMES.values(), "scheme", "accuracy", "seeds"), rows)


def pretrained_table(results: dict[str, Any]) -> str:
    """Test accuracies of pretrained weights, means over the seeds, as markdown; a kind without any has no column."""
    runs, table = _runs(results), []
    measured = {(key[0], key[3]) for key in runs}
    names = {kind: name for kind, name in _PRETRAINED_KINDS.items() if kind in measured}
    sets = dict.fromkeys(key[1:3] for key in runs if key[0] in ("pretrained", "stock"))
    for name, rows in sorted(sets, key=lambda pair: (int(pair[1]), list(PRETRAINED).index(pair[0]))):
        cells = [runs.get((kind, name, rows, scheme), []) for kind, scheme in names]
        first = _beside(("", name, rows), next(filter(None, cells)))
        table.append((*first, *map(_mean, cells), max(map(len, cells))))
    return markdown_table(("set", "rows", *_NAMES.values(), *names.values(), "seeds"), table)


def few_table(results: dict[str, Any]) -> str:
    """What label smoothing gains on training rows that weren't trained on, with 95 % intervals, as markdown."""
    runs, rows = _runs(results), []
    gains: dict[str, list[dict[str, float]]] = {}
    for name, size in itertools.product(FEW, FEW_ROWS):
        keys = [("few", name, str(size), f"{smoothing:g}") for smoothing in SMOOTHED]
        cells = [runs.get(key, []) for key in keys]
        if all(cells):
            without, with_it = (_by_seed(results, key) for key in keys)
            gain = {seed: with_it[seed] - without[seed] for seed in without if seed in with_it}
            gains.setdefault(name, []).append(gain)
            rows.append(
                (name, f"{size:,}", *map(_mean, cells), difference(mean_over_seeds([*gain.values()])), len(gain))
            )
    if gains:  # trainings of a set with one seed have rows in common
        mean = mean_over_seeds(*map(_averaged, gains.values()))
        rows.append(("mean", "", "", "", difference(mean), ""))
    return markdown_table(("set", "rows", *(f"{s:g}" for s in SMOOTHED), "difference", "seeds"), rows)


def stock_gap(results: dict[str, Any]) -> str:
    """How far `learned` is from stock BERT: the mean over sets and sizes of the mean over their common seeds."""
    gaps: dict[str, list[float]] = {}
    for key, stock in results["parts"].items():
        kind, name, rows, _, seed = key.split("/")
        ours = results["parts"].get(f"pretrained/{name}/{rows}/learned/{seed}")
        if kind == "stock" and ours is not None:
            gaps.setdefault(f"{name}/{rows}", []).append(ours["test"]["accuracy"] - stock["test"]["accuracy"])
    means = [statistics.fmean(seeds) for seeds in gaps.values()]
    mean, error = round(statistics.fmean(means), 3) + 0.0, statistics.stdev(means) / len(means) ** 0.5  # no -0.000
    return (
        f"Over the {len(means)} rows, the accuracy of `learned` minus that of stock BERT is "
        f"{mean:+.3f} on average (standard error {error:.3f})."
    )


def _by_seed(results: dict[str, Any], key: Sequence[str]) -> dict[str, float]:
    """The accuracy of each seed of a kind, set, rows and scheme."""
    start = "/".join(key) + "/"
    parts = results["parts"].items()
    return {name.removeprefix(start): run["test"]["accuracy"] for name, run in parts if name.startswith(start)}


def _averaged(of_sizes: Sequence[dict[str, float]]) -> list[float]:
    """The mean over the sizes of each seed that all of them have."""
    seeds = [seed for seed in of_sizes[0] if all(seed in gain for gain in of_sizes)]
    return [statistics.fmean(gain[seed] for gain in of_sizes) for seed in seeds]


def _runs(results: dict[str, Any]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """The seeds of each kind, set, rows and scheme."""
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for key, run in results["parts"].items():
        runs.setdefault(tuple(key.split("/")[:4]), []).append(run)
    return runs


def _mean(runs: list[dict[str, Any]]) -> str:
    return f"{statistics.fmean(run['test']['accuracy'] for run in runs):.3f}" if runs else ""


def _beside(key: tuple[str, ...], runs: list[dict[str, Any]]) -> tuple[str, ...]:
    return key[1], key[2], *(f"{runs[0]['baselines'][name]:.3f}" for name in _NAMES)


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--options", default="{}", help="JSON: options of training to try, for another output")
    run_study(parser.parse_args(), Study, few_table, scratch_table, pretrained_table)


if __name__ == "__main__":
    run_script(main)
