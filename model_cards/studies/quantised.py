"""What PyTorch's dynamic int8 quantisation costs and gives: accuracy, speed and size of trained classifiers on a CPU.

    python -m model_cards.studies.quantised --output model_cards/results/quantised.json

trains the quick start's classifiers on its real sentences (four minutes), quantises their linear layers (weights to
int8 once, inputs in each call), and scores and times both on the test split: in turns, on the same batches, with one
thread. Embeddings, norms and attention stay in float32.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hf_posenc.data import example_data, read_table
from hf_posenc.errors import UserError, run_script
from hf_posenc.files import write_json
from hf_posenc.finetuning.classification import train_classifier
from hf_posenc.finetuning.options import make_arguments
from hf_posenc.machine import versions
from hf_posenc.markdown import markdown_table

SCHEMES = ("learned", "lspe", "rope")
"""A table, a network and a rotation, all of which learn the quick start's task."""
WORKS = {"one text": 1, "batches of 32": 32}
"""Texts in a call."""


def quantise(model: nn.Module) -> nn.Module:
    """A copy whose linear layers have int8 weights, by `torch.ao.quantization.quantize_dynamic`."""
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torchao is to take over
        return quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)


def megabytes(model: nn.Module) -> float:
    """What the weights take in a file."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell() / 1e6


def measure(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    labels: Tensor,
    *,
    rounds: int,
    timed: int,
) -> dict[str, Any]:
    """Float and int8 side by side.

    Args:
        model: a classifier; it isn't changed.
        tokenizer: its own.
        texts: n texts.
        labels (Tensor): (n,) right classes.
        rounds (int): turns of each; times are medians of them.
        timed (int): how many of the texts are timed.
    """
    models = {"float32": model.eval(), "int8": quantise(model)}
    found: dict[str, Any] = {name: {"megabytes": megabytes(each)} for name, each in models.items()}
    logits = {}
    for name, each in models.items():
        logits[name] = torch.cat([_logits(each, batch) for batch in _batches(tokenizer, texts, 64)])
        found[name]["accuracy"] = (logits[name].argmax(-1) == labels).double().mean().item()
    found["same_answer"] = (logits["float32"].argmax(-1) == logits["int8"].argmax(-1)).double().mean().item()
    found["largest_difference_of_logits"] = (logits["float32"] - logits["int8"]).abs().max().item()
    for work, size in WORKS.items():
        batches = _batches(tokenizer, texts[:timed], size)
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(rounds + 1):
            for name, each in models.items():
                start = time.perf_counter()
                for batch in batches:
                    _logits(each, batch)
                if turn:  # the first warms up
                    times[name].append((time.perf_counter() - start) / timed)
        for name in models:
            found[name][f"milliseconds per text, {work}"] = 1000 * statistics.median(times[name])
        found[f"times as fast, {work}"] = statistics.median(
            one / other for one, other in zip(times["float32"], times["int8"], strict=True)
        )
    return found


def _batches(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], size: int) -> list[Any]:
    return [
        tokenizer(list(texts[start : start + size]), padding=True, truncation=True, return_tensors="pt")
        for start in range(0, len(texts), size)
    ]


@torch.no_grad()
def _logits(model: nn.Module, batch: Any) -> Tensor:
    return model(**batch).logits


def study(
    schemes: Sequence[str] = SCHEMES,
    presets: Sequence[str] = ("tiny",),
    *,
    seed: int = 0,
    rounds: int = 5,
    timed: int = 256,
    options: dict[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Trains a classifier for each scheme and size and measures it: what the command writes.

    Args:
        schemes: positional schemes.
        presets: sizes of the encoder.
        seed (int): of weights and order.
        rounds (int): turns of the timing.
        timed (int): texts that are timed.
        options (dict, optional): options of `run_classification.py` that differ from the quick start's.
        console: where the trainings' summaries are printed. None: standard error.

    Raises:
        UserError: a scheme or preset is unknown.
    """
    console = console or Console(stderr=True)
    test = read_table(f"{example_data()}/test.jsonl.gz").columns
    found: dict[str, Any] = {
        "options": {"dataset_name": "blimp_order", **(options or {}), "seed": seed},
        "versions": versions(),
        "runs": {},
    }
    for preset in presets:
        for scheme in schemes:
            # What the Trainer prints isn't the result.
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
                trained = train_classifier(
                    *make_arguments(
                        **{
                            "dataset_name": "blimp_order",
                            "config_preset": preset,
                            "eval_strategy": "no",
                            "save_strategy": "no",
                            "use_cpu": True,
                            "disable_tqdm": True,
                            **(options or {}),
                            "position_embedding_type": scheme,
                            "output_dir": folder,
                            "seed": seed,
                            "do_train": True,
                        }
                    ),
                    console=console,
                )
            names = list(trained.summary.labels)
            labels = torch.tensor([names.index(str(label)) for label in test["label"]])
            run = measure(trained.model, trained.tokenizer, test["text"], labels, rounds=rounds, timed=timed)
            found["runs"][f"{scheme}, {preset}"] = run
            console.print(f"{scheme}, {preset}: {run}", markup=False, highlight=False)
    return found


def table(found: dict[str, Any]) -> str:
    """The results as docs/speed.md shows them."""
    rows = []
    for name, run in found["runs"].items():
        plain, small = run["float32"], run["int8"]
        cells = [f"{plain['accuracy']:.3f}", f"{small['accuracy']:.3f}", f"{run['same_answer']:.3f}"]
        cells += [f"{plain['megabytes']:.1f}", f"{small['megabytes']:.1f}"]
        cells += [f"{run[f'times as fast, {work}']:.2f}" for work in WORKS]
        scheme, preset = name.split(", ")
        rows.append((f"`{scheme}`, {preset}", *cells))
    head = ("", "accuracy", "int8", "same answer", "MB", "int8", *(f"faster, {work}" for work in WORKS))
    return markdown_table(head, rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="A .json file for the results.")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--presets", nargs="+", default=["tiny"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.output is not None and not chosen.output.endswith(".json"):
        raise UserError(f"--output {chosen.output!r} doesn't end in .json.")
    if chosen.rounds < 1:
        raise UserError(f"--rounds {chosen.rounds} is out of range. Give 1 or more.")
    torch.set_num_threads(1)
    found = study(chosen.schemes, chosen.presets, seed=chosen.seed, rounds=chosen.rounds)
    if chosen.output is not None:
        write_json(Path(chosen.output), found)
    print(table(found))


if __name__ == "__main__":
    run_script(main)
