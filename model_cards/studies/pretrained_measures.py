"""What the pretrained models of the study can do: loss at other lengths, BLiMP, fine-tuning.

    python -m model_cards.studies.pretrained_measures --data FOLDER --work FOLDER --output PARTS
    python -m model_cards.studies.pretrained_measures --table --output PARTS

Each main part of `pretraining` that is trained is measured: what takes minutes for all of them first, then the
fine-tunings. Each measurement is a file beside the parts, written as it ends. A model that is no longer in the folder
of the runs is trained again, which changes nothing that is written. Lengths, tasks and contrasts were fixed before the
first model was trained; the rate of fine-tuning is chosen on validation rows, with models that aren't reported. What
needs no model of the study, bigrams and linear models on words, is measured once.
"""

import argparse
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from rich.console import Console

from hf_posenc import PosEncForMaskedLM
from hf_posenc.checkpoints.loading import position_limit
from hf_posenc.data.preparing import whole_pairs
from hf_posenc.errors import run_script
from hf_posenc.files import write_json
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.machine import commit, versions
from hf_posenc.options import Options
from hf_posenc.quiet import silence
from hf_posenc.training.baselines import STRENGTHS, fit_words, most_frequent
from model_cards.studies.parts import Cluster, data_folder, read_rows
from model_cards.studies.pretraining import Training, held_out_loss, options_of_study
from model_cards.studies.pretraining_plan import (
    DEVELOPMENT_SEEDS,
    EPOCHS,
    FINE_TUNED_FIRST,
    FINE_TUNING_RATES,
    LEAST,
    MILLION,
    PATIENCE,
    TRIAL_TOKENS,
    Part,
    Results,
    main_parts,
)
from model_cards.studies.pretraining_tables import TABLES
from model_cards.studies.pretraining_text import LENGTH, Text

LENGTHS = (128, 256, 512, 1024)
TASKS = ("sst2", "trec", "semeval2010_task8", "blimp_order")
EVALUATED = 2
"""Epochs from one evaluation to the next, which `train` derives from the number of epochs."""
BATCH, ROWS = 32, 3_000
FINE_TUNING: dict[str, Any] = {
    "max_rows": ROWS,
    "batch_size": BATCH,
    "max_length": LENGTH,
    "epochs": EPOCHS,
    "patience": PATIENCE // EVALUATED,
    "schedule": "constant_with_warmup",
    "bf16": False,
    "set": {"metric_for_best_model": "accuracy"},
}
"""Until the validation accuracy is flat, or the epochs are over."""
ENDING = {"least_steps": LEAST * math.ceil(ROWS / BATCH)}
TIE = 1e-4
"""Two sentences whose log-likelihoods differ by less are half right: models without order see them alike."""


def lengths_of(model: PosEncForMaskedLM, text: Text) -> dict[str, float]:
    """The loss in the reported novels at each length that the scheme takes: the same tokens and masks for all."""
    limit = position_limit(model) or max(LENGTHS)
    return {
        str(length): held_out_loss(model, text.tokenizer, text.test, length) for length in LENGTHS if length <= limit
    }


@torch.no_grad()
def pseudo_likelihood(model: PosEncForMaskedLM, tokenizer: Any, sentence: str) -> float:
    """The sum of the log-probabilities of a sentence's tokens, each masked alone (Salazar et al. 2020)."""
    ids = torch.tensor(tokenizer(sentence)["input_ids"])
    places = torch.arange(1, len(ids) - 1)
    inputs = ids.repeat(len(places), 1)
    inputs[torch.arange(len(places)), places] = tokenizer.mask_token_id
    hidden_states = model.model(input_ids=inputs).last_hidden_state[torch.arange(len(places)), places]
    log_probabilities = model.lm_head(hidden_states).double().log_softmax(-1)
    return float(log_probabilities[torch.arange(len(places)), ids[places]].sum())


def blimp_points(likelihoods: dict[str, dict[str, float]]) -> dict[str, float]:
    """For each pair 1 where the acceptable sentence is likelier, 0 where it isn't; a tie is half a point."""
    gaps = {name: pair["acceptable"] - pair["unacceptable"] for name, pair in likelihoods.items()}
    return {name: 0.5 if abs(gap) < TIE else float(gap > 0) for name, gap in gaps.items()}


def blimp_of(likelihood: Callable[[str], float], data: Path) -> dict[str, Any]:
    """The score on the pairs of BLiMP whose sentences hold the same words, and on those of each paradigm.

    Args:
        likelihood: the log-likelihood of a sentence.
        data: folder of the data sets.
    """
    likelihoods: dict[str, dict[str, float]] = defaultdict(dict)
    paradigms: dict[str, list[str]] = defaultdict(list)
    for row in read_rows(data, "blimp_order", "test"):
        likelihoods[row["pair_id"]][row["label"]] = likelihood(row["text"])
        paradigms[row["paradigm"]].append(row["pair_id"])
    points = blimp_points(likelihoods)
    by_paradigm = {name: round(fmean(points[pair] for pair in pairs), 4) for name, pairs in sorted(paradigms.items())}
    return {"blimp": fmean(points.values()), "blimp_paradigms": by_paradigm}


class Bigrams:
    """Bigrams of the training text, each with a tenth of the unigrams' probability: no sentence is impossible."""

    def __init__(self, text: Text) -> None:
        self.tokenizer, size = text.tokenizer, len(text.tokenizer)
        numbers = text.train[:, :-1] * size + text.train[:, 1:]
        counts = numbers.flatten().bincount(minlength=size * size).view(size, size).double()
        frequencies = text.train.flatten().bincount(minlength=size).double() + 1
        self.unigrams = frequencies / frequencies.sum()
        self.bigrams = 0.9 * counts / counts.sum(1, keepdim=True).clamp(min=1) + 0.1 * self.unigrams

    def likelihood(self, sentence: str) -> float:
        """The log-likelihood of a sentence, whose first token is drawn from the unigrams."""
        ids = torch.tensor(self.tokenizer(sentence, add_special_tokens=False)["input_ids"])
        return float(self.unigrams[ids[0]].log() + self.bigrams[ids[:-1], ids[1:]].log().sum())


def linear_models(data: Path, task: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The test accuracies of the majority and of linear models, on the rows that models are fine-tuned with.

    Their `C` is the best on the validation rows, as the rate of fine-tuning is; all that were tried come second.
    """
    splits = {split: read_rows(data, task, split) for split in ("train", "validation", "test")}
    texts = {split: [str(row["text"]) for row in rows] for split, rows in splits.items()}
    names = sorted({row["label"] for row in splits["train"]})
    labels = {split: np.array([names.index(row["label"]) for row in rows]) for split, rows in splits.items()}
    kept = whole_pairs((texts["train"],), FINE_TUNING["max_rows"])
    train = ([texts["train"][row] for row in kept],), labels["train"][kept]
    usual = most_frequent(train[1].tolist(), "single_label_classification")
    scores, tried = {"majority": float((labels["test"] == usual).mean())}, {}
    for sees in ("words", "word pairs"):
        models = {strength: fit_words(train[0], train[1].tolist(), sees, strength=strength) for strength in STRENGTHS}
        valid = {
            strength: float((model.predict((texts["validation"],)) == labels["validation"]).mean())
            for strength, model in models.items()
        }
        best = max(STRENGTHS, key=lambda strength: valid[strength])
        name = sees.replace(" ", "_")
        scores[name] = float((models[best].predict((texts["test"],)) == labels["test"]).mean())
        tried[name] = {f"{strength:g}": valid[strength] for strength in STRENGTHS}
    return scores, tried


def measure_baselines(text: Text, data: Path) -> dict[str, Any]:
    """What needs no model of the study."""
    made = {task: linear_models(data, task) for task in TASKS}
    return {
        "bigrams": blimp_of(Bigrams(text).likelihood, data),
        "linear": {task: scores for task, (scores, _) in made.items()},
        "linear_validation_by_C": {task: tried for task, (_, tried) in made.items()},
    }


def fine_tuned(checkpoint: Path, data: Path, task: str, seed: int, **options: Any) -> dict[str, Any]:
    """Test accuracy after fine-tuning until it is flat on validation rows, and when the kept weights were reached."""
    files = {split: str(next((data / task).glob(f"{split}.jsonl*"))) for split in ("train", "validation", "test")}
    with tempfile.TemporaryDirectory() as folder:
        chosen = Options.of(
            data=files["train"],
            output=str(Path(folder) / "run"),
            validation=files["validation"],
            test=files["test"],
            pretrained=str(checkpoint),
            seed=seed,
            **FINE_TUNING | options,
        )
        with silence():
            report = fine_tune(chosen, baselines=False, console=Console(quiet=True), ending=ENDING).report
    best = report.best or {}
    return {
        "accuracy": report.metrics["test_accuracy"],
        "validation": best.get("value"),
        "step": best.get("step"),
        "epoch": best.get("epoch"),
        "epochs": report.history[-1]["epoch"],
    }


class Measuring:
    """Measures trained parts, each measurement in a file of its own, which is written as it ends.

    Args:
        options: of the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.data, self.work, self.output = data_folder(options), Path(options.work), Path(options.output)
        self.text, self.results = Text(self.data, self.work), Results(self.output)
        self.code = {"commit": commit(Path(__file__).parent), "versions": versions()}
        folders = (self.output / "measured", self.output / "fine_tuning_rates")
        self.measured, self.rates = folders
        for folder in folders:
            folder.mkdir(exist_ok=True)

    def run(self) -> None:
        """Measures the main parts that are trained; one that diverged has no measurements."""
        with FileLock(self.work / "baselines.lock"):
            if not self.results.baselines:
                write_json(self.output / "baselines.json", measure_baselines(self.text, self.data))
        main = main_parts(self.results)
        trained = [p for p in main if self.results.has(p) and not self.results.parts[p.name]["diverged"]]
        for part in trained:
            self.write(part, self.measured / f"{part.name}-as_it_is.json", self.as_it_is)
        rate = self.choose_rate(main)
        for part in trained:
            measure = partial(self.fine_tuned, seed=part.seed, learning_rate=rate)
            self.write(part, self.measured / f"{part.name}-fine_tuned.json", measure)

    def write(self, part: Part, path: Path, measure: Callable[[Path], dict[str, Any]]) -> bool:
        """Measures a part, unless that is written or another process does; returns whether it is written."""
        folder = self.work / part.name
        folder.mkdir(exist_ok=True)
        try:
            with FileLock(folder / f"{path.stem}.lock", 0):
                if not path.is_file():
                    write_json(path, asdict(part) | measure(self.checkpoint(part)) | self.code)
        except Timeout:
            return False
        return True

    def checkpoint(self, part: Part) -> Path:
        """The folder of a part's model, which is trained again where it is missing."""
        folder = self.work / part.name
        with FileLock(folder / "part.lock"):
            model = folder / f"model-{part.tokens // MILLION}M"
            if not model.is_dir():
                Training(part, self.text, folder).run()
        return model

    def as_it_is(self, checkpoint: Path) -> dict[str, Any]:
        """What a trained part can do without more training."""
        model = PosEncForMaskedLM.from_pretrained(checkpoint).eval()
        likelihood = partial(pseudo_likelihood, model, self.text.tokenizer)
        return {"lengths": lengths_of(model, self.text), **blimp_of(likelihood, self.data)}

    def fine_tuned(self, checkpoint: Path, **options: Any) -> dict[str, Any]:
        """What a trained part can do after fine-tuning."""
        scores = {task: fine_tuned(checkpoint, self.data, task, **options) for task in TASKS}
        return {"learning_rate": options["learning_rate"], "fine_tuned": scores}

    def choose_rate(self, main: list[Part]) -> float:
        """The rate at which all parts are fine-tuned: the best of three on validation rows, with development models."""
        chosen = {part.scheme: part for part in main}
        models = [replace(chosen[s], seed=DEVELOPMENT_SEEDS[0], tokens=TRIAL_TOKENS) for s in FINE_TUNED_FIRST]
        trials = [(model, rate) for model in models for rate in FINE_TUNING_RATES]
        while [trial for trial in trials if not self._try(*trial)]:
            time.sleep(60)  # another process is at the last ones
        return self.results.fine_tuning_rate

    def _try(self, model: Part, rate: float) -> bool:
        measure = partial(self.fine_tuned, seed=model.seed, learning_rate=rate)
        return self.write(model, self.rates / f"{model.scheme}-{rate:g}.json", measure)


def main() -> None:
    """The command."""
    parser = options_of_study(__doc__)
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    options = parser.parse_args()
    if options.ray:
        Cluster().run_everywhere()
        return
    if not options.table:
        torch.set_num_threads(1)
        Measuring(options).run()
        return
    results = Results(Path(options.output))
    print(*(table(results) for table in TABLES.values()), sep="\n\n")


if __name__ == "__main__":
    run_script(main)
