"""What heads attend to early: attention by distance after .4 million tokens, in models of the pretraining study.

    python -m model_cards.studies.early_attention --data FOLDER --work FOLDER --output PARTS

Each scheme is trained for 200 steps with its chosen rate and a development seed. Then the attention in held-out novels
is measured: the mean weight that a token gives to the one at a distance j - i, by layer, over heads and places.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hf_posenc import PosEncForMaskedLM
from hf_posenc.errors import run_script
from hf_posenc.files import write_json
from hf_posenc.markdown import code, markdown_table
from model_cards.studies.parts import data_folder
from model_cards.studies.pretraining import BATCH, Training, options_of_study
from model_cards.studies.pretraining_plan import DEVELOPMENT_SEEDS, SCHEMES, Part, Results, main_parts
from model_cards.studies.pretraining_text import CONTENT, Text

STEPS = 200
FARTHEST = 24
"""Distances that are kept, on both sides."""
NEAR = 3
"""Distances that count as near, on both sides."""


def attention_by_distance(model: PosEncForMaskedLM, windows: torch.Tensor) -> list[list[float]]:
    """The mean weight in each layer at each distance from -`FARTHEST` to `FARTHEST`, in windows (B, S)."""
    distances = range(-FARTHEST, FARTHEST + 1)
    with torch.no_grad():
        layers = model.eval().model(input_ids=windows, output_attentions=True).attentions
    return [[float(weights.diagonal(distance, -2, -1).mean()) for distance in distances] for weights in layers]


def measure(part: Part, text: Text, folder: Path) -> dict[str, Any]:
    """The attention of a part's model before its first step and after so many."""
    training, windows = Training(part, text, folder), text.dev.unflatten(1, (-1, CONTENT)).flatten(0, 1)[: 4 * BATCH]
    before = attention_by_distance(training.model, windows)
    training.model.train()
    losses = [training.train_step() for _ in range(STEPS)]
    after = attention_by_distance(training.model, windows)
    return {"rate": part.rate, "train": statistics.fmean(losses[-20:]), "before": before, "after": after}


def read_measured(folder: Path) -> dict[str, Any]:
    """What is measured so far, by scheme."""
    path = folder / "early_attention.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def run(options: argparse.Namespace) -> None:
    """Measures the schemes that aren't there yet; their rates have been chosen."""
    work, output = Path(options.work), Path(options.output)
    torch.set_num_threads(1)
    text, measured = Text(data_folder(options), work), read_measured(output)
    for part in main_parts(Results(output))[: len(SCHEMES)]:
        if part.scheme not in measured:
            early = replace(part, seed=DEVELOPMENT_SEEDS[0])
            measured[part.scheme] = measure(early, text, work / "early_attention")
            write_json(output / "early_attention.json", measured)
            print(part.scheme, flush=True)


def near_table(measured: dict[str, Any]) -> str:
    """The share of attention that goes to near tokens, mean of the layers, before training and after so many steps."""
    rows = [
        (code(scheme), *(f"{_near_share(measured[scheme][moment]):.2f}" for moment in ("before", "after")))
        for scheme in SCHEMES
        if scheme in measured
    ]
    header = (f"attention within {NEAR} tokens", "before training", f"after {STEPS} steps")
    return markdown_table(header, rows) if rows else "Not measured yet."


def _near_share(layers: list[list[float]]) -> float:
    return statistics.fmean(sum(weights[FARTHEST - NEAR : FARTHEST + NEAR + 1]) for weights in layers)


def main() -> None:
    """The command."""
    run(options_of_study(__doc__).parse_args())


if __name__ == "__main__":
    run_script(main)
