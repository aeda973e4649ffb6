"""What a trained bias scheme loses when `cosine_bias` is fitted to its bias, so that FlashAttention can run it.

    python -m model_cards.studies.cosine_fit --data FOLDER --output model_cards/results/cosine_fit.json
    python -m model_cards.studies.cosine_fit --table

`SET/SCHEME/SEED` is an encoder that `hf-posenc train` makes without options but the scheme and the seed, and the same
encoder under `hf-posenc convert --position-embedding-type cosine_bias`, fitted for inputs of 64 and of 512 tokens, with
16 and with 32 frequencies: the test accuracy of each, how many answers change, and the report's `attention_moved`.
Nothing is trained after the conversion. The texts have at most 64 tokens.
Each part is written as it ends; a study that was stopped goes on with the next one.
"""

import functools
import io
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from tqdm import tqdm
from transformers import AutoTokenizer

from hf_posenc import PosEncForSequenceClassification
from hf_posenc.conversion import convert
from hf_posenc.data.table import Table
from hf_posenc.errors import run_script
from hf_posenc.finetuning import fine_tune
from hf_posenc.finetuning.options import make_arguments
from hf_posenc.markdown import markdown_table
from hf_posenc.training.inference import logits_of
from model_cards.studies.parts import Parts, data_folder, options_of
from model_cards.studies.recipe import splits

SETS = {"blimp_order": None, "trec": None}
"""How many training rows; None: all."""
SCHEMES = ("alibi", "kerple", "mlp_bias")
FITS = tuple(itertools.product((64, 512), (16, 32)))
"""The longest input that the fit is for, and the number of frequencies."""


def measure(data: Path, name: str, scheme: str, seed: int) -> dict[str, Any]:
    """Trains, converts, and answers the test rows with each of the models."""
    tables = splits(data, name, SETS[name])
    with tempfile.TemporaryDirectory() as folder:
        options = {"position_embedding_type": scheme, "seed": seed, "do_train": True, "do_eval": True}
        arguments = make_arguments(output_dir=f"{folder}/trained", dataset_name=name, score_test=True, **options)
        trained = fine_tune(*arguments, splits=tables, console=Console(file=io.StringIO())).output_dir
        before = is_right(PosEncForSequenceClassification.from_pretrained(trained), trained, tables["test"])
        measured: dict[str, Any] = {"rows": len(before), "accuracy": round(float(before.mean()), 5)}
        for length, count in FITS:
            model, report = convert(
                trained,
                position_embedding_type="cosine_bias",
                position_embedding_kwargs={"num_frequencies": count},
                max_position_embeddings=length,
                measure=False,
            )
            after = is_right(model, trained, tables["test"])
            (fit,) = [line for line in report.carried if "attention_moved" in line]
            measured[f"{length}/{count}"] = {
                "accuracy": round(float(after.mean()), 5),
                "gained": int((after & ~before).sum()),
                "lost": int((before & ~after).sum()),
                "attention_moved": fit["attention_moved"],
            }
    return measured


def is_right(model: Any, folder: Path, test: Table) -> np.ndarray:
    """Whether each answer is right: bool (rows,)."""
    columns = test.columns
    logits = logits_of(model, AutoTokenizer.from_pretrained(folder), columns["text"])
    ids = {str(label): number for number, label in model.config.id2label.items()}
    return np.array([row.argmax() == ids[label] for row, label in zip(logits, columns["label"], strict=True)])


def fit_table(results: dict[str, Any]) -> str:
    """Accuracies before, and what each fit changes, over the seeds, as markdown."""
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for key, run in results["parts"].items():
        runs.setdefault(tuple(key.split("/")[:2]), []).append(run)
    rows = []
    for (name, scheme), seeds in runs.items():
        accuracy = np.mean([run["accuracy"] for run in seeds])
        rows.append(
            (name, f"`{scheme}`", f"{accuracy:.3f}", *(_change(seeds, f"{length}/{count}") for length, count in FITS))
        )
    return markdown_table(
        ("set", "bias", "accuracy", *(f"{length} tokens, K = {count}" for length, count in FITS)), rows
    )


def _change(seeds: list[dict[str, Any]], fit: str) -> str:
    """The change in points, with the 95 % interval of paired answers: those that change tell how much is chance."""
    rows = sum(run["rows"] for run in seeds)
    gained, lost = (sum(run[fit][what] for run in seeds) / rows for what in ("gained", "lost"))
    change, error = gained - lost, (gained + lost - (gained - lost) ** 2) ** 0.5
    half = 1.96 * error / rows**0.5
    return f"{100 * change:+.2f} [{100 * (change - half):+.2f}, {100 * (change + half):+.2f}]"


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "cosine_fit")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    parts = Parts(options.output, options.parts)
    if options.table:
        print(fit_table(parts.read()))
        return
    names = [(name, scheme, seed) for seed in range(options.seeds) for name in SETS for scheme in SCHEMES]
    for name, scheme, seed in tqdm(names, unit="part"):
        parts.measure(f"{name}/{scheme}/{seed}", functools.partial(measure, data_folder(options), name, scheme, seed))


if __name__ == "__main__":
    run_script(main)
