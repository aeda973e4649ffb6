"""What the pretrained models of the study can do: loss at other lengths, BLiMP, fine-tuning.

    python -m model_cards.studies.pretrained_measures --data FOLDER --work FOLDER --output PARTS
    python -m model_cards.studies.pretrained_measures --table --output PARTS

Each main part of `pretraining` that is trained is measured: what takes minutes for all of them first, then the
fine-tunings. Each measurement is a file beside the parts, written as it ends. A model that is no longer in the folder
of the runs is trained again. Nothing here is chosen: the lengths, the tasks and the contrasts were fixed before the
first model was trained.
"""

import argparse
import tempfile
from collections import defaultdict
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from filelock import FileLock, Timeout

from hf_posenc import PosEncForMaskedLM, train
from hf_posenc.checkpoints.loading import position_limit
from hf_posenc.errors import run_script
from hf_posenc.files import write_json
from model_cards.studies.parts import Cluster, data_folder, read_rows
from model_cards.studies.pretraining import held_out_loss, options_of_study, train_and_write
from model_cards.studies.pretraining_plan import MILLION, Part, Results, main_parts
from model_cards.studies.pretraining_tables import TABLES
from model_cards.studies.pretraining_text import LENGTH, Text

LENGTHS = (128, 256, 512, 1024)
TASKS = ("sst2", "trec", "semeval2010_task8", "blimp_order")
FINE_TUNING = {
    "max_rows": 3_000,
    "max_length": LENGTH,
    "epochs": 30,
    "patience": 3,
    "schedule": "constant_with_warmup",
    "bf16": False,
    "set": {"metric_for_best_model": "accuracy"},
}
"""Until the validation accuracy is flat; 30 epochs are the cap."""
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


def blimp_of(model: PosEncForMaskedLM, text: Text, data: Path) -> dict[str, Any]:
    """The score on the pairs of BLiMP whose sentences hold the same words, and on those of each paradigm."""
    likelihoods: dict[str, dict[str, float]] = defaultdict(dict)
    paradigms: dict[str, list[str]] = defaultdict(list)
    for row in read_rows(data, "blimp_order", "test"):
        likelihoods[row["pair_id"]][row["label"]] = pseudo_likelihood(model, text.tokenizer, row["text"])
        paradigms[row["paradigm"]].append(row["pair_id"])
    points = blimp_points(likelihoods)
    by_paradigm = {name: round(fmean(points[pair] for pair in pairs), 4) for name, pairs in sorted(paradigms.items())}
    return {"blimp": fmean(points.values()), "blimp_paradigms": by_paradigm}


def fine_tuned(checkpoint: Path, data: Path, task: str, seed: int, **options: Any) -> dict[str, Any]:
    """Test accuracy after fine-tuning until it is flat on validation rows, and when the kept weights were reached."""
    files = {split: str(next((data / task).glob(f"{split}.jsonl*"))) for split in ("train", "validation", "test")}
    with tempfile.TemporaryDirectory() as folder:
        report = train(
            files["train"],
            Path(folder) / "run",
            validation=files["validation"],
            test=files["test"],
            pretrained=str(checkpoint),
            seed=seed,
            baselines=False,
            verbose=0,
            **FINE_TUNING | options,
        ).report
    best = report.best or {}
    return {"accuracy": report.metrics["test_accuracy"], "step": best.get("step"), "epoch": best.get("epoch")}


def as_it_is(part: Part, checkpoint: Path, text: Text, data: Path) -> dict[str, Any]:
    """What a trained part can do without more training."""
    model = PosEncForMaskedLM.from_pretrained(checkpoint).eval()
    return {"lengths": lengths_of(model, text), **blimp_of(model, text, data)}


def all_fine_tuned(part: Part, checkpoint: Path, text: Text, data: Path) -> dict[str, Any]:
    """What a trained part can do after fine-tuning."""
    return {"fine_tuned": {task: fine_tuned(checkpoint, data, task, part.seed) for task in TASKS}}


MEASUREMENTS = {"as_it_is": as_it_is, "fine_tuned": all_fine_tuned}


def run(options: argparse.Namespace) -> None:
    """Measures the main parts that are trained; one that diverged has no measurements."""
    output = Path(options.output)
    torch.set_num_threads(1)
    text, results = Text(data_folder(options), Path(options.work)), Results(output)
    for name, part in product(MEASUREMENTS, main_parts(results)):
        if not results.has(part) or results.parts[part.name]["diverged"]:
            continue
        folder, path = Path(options.work) / part.name, output / "measured" / f"{part.name}-{name}.json"
        folder.mkdir(exist_ok=True)
        try:
            with FileLock(folder / "part.lock", 0):
                if not path.is_file():
                    checkpoint = folder / f"model-{part.tokens // MILLION}M"
                    if not checkpoint.is_dir():
                        train_and_write(part, text, output, folder)
                    write_json(path, asdict(part) | MEASUREMENTS[name](part, checkpoint, text, data_folder(options)))
        except Timeout:
            continue  # another process has it


def main() -> None:
    """The command."""
    parser = options_of_study(__doc__)
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    options = parser.parse_args()
    if options.ray:
        Cluster().run_everywhere()
        return
    if not options.table:
        run(options)
        return
    results = Results(Path(options.output))
    print(*(table(results) for table in TABLES.values()), sep="\n\n")


if __name__ == "__main__":
    run_script(main)
