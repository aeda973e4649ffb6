"""Which evaluation's weights a run on few rows should keep: chosen by the loss, accuracy or macro F1 of 100 rows.

    python -m model_cards.studies.kept --data FOLDER --minilm FOLDER
    python -m model_cards.studies.kept --table

Each part, `SET/SEED`, is one training of all-MiniLM-L6-v2 on 1,000 rows that its seed draws, by the recipe of `train`:
a tenth is set aside, and 500 steps are evaluated each epoch. At each evaluation the rows set aside, 500 other
training rows and the test rows are scored, so that one training answers for every rule. A default is chosen on the
other training rows; the test rows say what it is worth. Each part is written as it ends.
"""

import argparse
import io
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from scipy.special import log_softmax
from scipy.stats import t
from sklearn.metrics import f1_score
from transformers import TrainerCallback, set_seed

from hf_posenc.data.preparing import encode, labels_of, prepare
from hf_posenc.data.tables import as_table
from hf_posenc.errors import run_script
from hf_posenc.finetuning.start import check_start, start
from hf_posenc.inference.logits import logits_of
from hf_posenc.markdown import markdown_table
from hf_posenc.options import Options
from hf_posenc.training.metrics import make_loss
from hf_posenc.training.recipe import make_recipe
from hf_posenc.training.trainer import make_trainer
from model_cards.studies.parts import Parts, data_folder, find_minilm, options_of, read_rows, run_study

SETS = ("sst2", "trec", "semeval2010_task8", "subj")
ROWS, OTHERS, TESTS = 1_000, 500, 1_000
"""Rows to train on, a tenth of them set aside; rows on which a default is chosen; test rows at most."""
OVER = 3
"""Evaluations whose mean is the smoothed form of a score: the one itself and those before it."""
Scores = dict[str, float]
Evaluations = list[dict[str, Scores]]
"""Of a run, in order: `validation`, `other` and `test`, each with its scores."""


def scores_of(logits: np.ndarray, labels: np.ndarray) -> Scores:
    """The loss, its mean over labels, accuracy and macro F1, of logits (N, C) and labels (N,)."""
    losses = -log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]
    answers = logits.argmax(axis=1)
    by_label = [losses[labels == label].mean() for label in np.unique(labels)]
    return {
        "loss": round(float(losses.mean()), 5),
        "balanced_loss": round(float(np.mean(by_label)), 5),
        "accuracy": round(float((answers == labels).mean()), 5),
        "macro_f1": round(float(f1_score(labels, answers, average="macro", zero_division=0)), 5),
    }


def _best(scores: list[float], *, least: bool) -> int:
    """The first of the best, as the Trainer keeps it."""
    return int(np.argmin(scores) if least else np.argmax(scores))


def _rule(score: str, over: int) -> Callable[[Evaluations], int]:
    """Chooses the evaluation with the best validation score, as a mean over the last `over` evaluations."""

    def choose(evaluations: Evaluations) -> int:
        scores = [evaluation["validation"][score] for evaluation in evaluations]
        means = [statistics.fmean(scores[max(0, end - over) : end]) for end in range(1, len(scores) + 1)]
        return _best(means, least=score.endswith("loss"))

    return choose


RULES: dict[str, Callable[[Evaluations], int]] = {
    "last": lambda evaluations: len(evaluations) - 1,
    **{
        score.replace("_", " ") + (f", mean of {over}" if over > 1 else ""): _rule(score, over)
        for score in ("loss", "balanced_loss", "accuracy", "macro_f1")
        for over in (1, OVER)
    },
}
"""The evaluation, from 0, whose weights are kept."""
DEFAULT = "macro f1"
"""The rule of `train` for one label per text."""
_SHOWN = (("other", "accuracy"), ("other", "macro_f1"), ("test", "accuracy"), ("test", "macro_f1"))


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.data, self.parts = data_folder(options), Parts(options)
        self.seeds, self.max_steps, self.minilm = options.seeds, options.max_steps, options.minilm

    def run(self) -> None:
        """All parts, seeds last."""
        for seed in range(self.seeds):
            for name in SETS:
                self.parts.measure(f"{name}/{seed}", partial(self._train, name, seed), max_steps=self.max_steps)

    def _splits(self, name: str, seed: int) -> dict[str, Dataset]:
        """Rows to train on and to choose a default on, drawn by the seed, and test rows: of labels that are trained."""
        rows = read_rows(self.data, name, "train")
        random.Random(seed).shuffle(rows)
        trained = {row["label"] for row in rows[:ROWS]}
        parts = {
            "train": rows[:ROWS],
            "other": rows[ROWS:][:OTHERS],
            "test": read_rows(self.data, name, "test")[:TESTS],
        }
        parts = {split: [row for row in part if row["label"] in trained] for split, part in parts.items()}
        columns = ("text", "label")
        return {
            split: as_table(Dataset.from_dict({name: [str(row[name]) for row in part] for name in columns}), split)
            for split, part in parts.items()
        }

    def _train(self, name: str, seed: int) -> dict[str, Any]:
        splits = self._splits(name, seed)
        # The road of `train`, of which the other rows are a second test split.
        with tempfile.TemporaryDirectory() as folder:
            options = Options.of(
                pretrained=str(find_minilm(self.minilm)), seed=seed, max_steps=self.max_steps, output=folder
            )
            prepared = prepare({split: splits[split] for split in ("train", "test")}, options)
            others = prepare({"train": splits["train"], "test": splits["other"]}, options)
            set_seed(seed)
            tokenizer, model, _ = start(options, prepared, check_start(options))
            encoded, _ = encode(prepared, tokenizer, tokenizer.model_max_length)
            encoded["other"] = encode(others, tokenizer, tokenizer.model_max_length)[0]["test"]
            recipe = make_recipe(options, model, tokenizer, encoded)
            loss = make_loss(prepared.labels, labels_of(prepared.splits["train"]) or [], None, 0.0)
            trainer = make_trainer(model, tokenizer, encoded, recipe, loss, Console(file=io.StringIO()))
            scorer = _Scorer(tokenizer, {split: part for split, part in encoded.items() if split != "train"})
            trainer.add_callback(scorer)
            trainer.train()
        return {"labels": len(prepared.labels.names), "evaluations": scorer.evaluations}


class _Scorer(TrainerCallback):
    """Scores all splits at each evaluation."""

    def __init__(self, tokenizer: Any, splits: dict[str, Dataset]) -> None:
        self.tokenizer, self.splits, self.evaluations = tokenizer, splits, Evaluations()

    def on_evaluate(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Called by the Trainer after its own evaluation."""
        scores = {}
        for split, part in self.splits.items():
            inputs = part.remove_columns("labels").to_list()
            logits = np.stack([*logits_of(model, self.tokenizer, inputs)])
            scores[split] = scores_of(logits, np.asarray(part["labels"][:]))
        self.evaluations.append(scores)


def table(results: dict[str, Any]) -> str:
    """What each rule's weights score on other rows and on test rows, means over sets and seeds, as markdown.

    Behind a mean stands its difference from the default's, with a 95 % interval over the runs (t, of pairs).
    """
    runs = [part["evaluations"] for part in results["parts"].values()]
    rows = []
    for name, choose in RULES.items():
        epochs = statistics.fmean(choose(run) + 1 for run in runs)
        cells = [_against_default(runs, choose, split, score) for split, score in _SHOWN]
        rows.append((name, f"{epochs:.1f}", *cells))
    header = [f"{split} rows: {score.replace('_f1', ' F1')}" for split, score in _SHOWN]
    return markdown_table(("kept by", "epoch", *header), rows)


def _against_default(runs: list[Evaluations], choose: Callable[[Evaluations], int], split: str, score: str) -> str:
    """The mean score of the weights that a rule keeps, and its difference from that of the default's."""
    scores = np.array([run[choose(run)][split][score] for run in runs])
    differences = scores - [run[RULES[DEFAULT](run)][split][score] for run in runs]
    mean = f"{scores.mean():.3f}"
    if len(runs) < 2 or not differences.any():
        return mean
    half = t.ppf(0.975, len(runs) - 1) * differences.std(ddof=1) / math.sqrt(len(runs))
    return f"{mean} ({differences.mean():+.3f} ± {half:.3f})"


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-steps", type=int, help="a shorter run, to try the study")
    run_study(parser.parse_args(), Study, table)


if __name__ == "__main__":
    run_script(main)
