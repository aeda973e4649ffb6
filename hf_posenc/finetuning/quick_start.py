"""The quick start: the same tiny encoder under several positional schemes, on data that word order alone decides.

    hf-posenc quickstart -o quickstart

`model_cards/studies/quick_start.py` in the repository measures mean and spread over seeds.
"""

import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hf_posenc.model.package_config import scheme_class

from ..errors import Interrupted, UserError, about_options, dashed
from ..isolated_load import IsolatedLoadFailed, load_isolated
from ..training.inference import logits_of
from ..training.metrics import probabilities_from_logits
from ..training.output_folder import check_output_dir
from ..training.run import TrainingResult
from .classification import train_classifier
from .options import make_arguments

SCHEMES = ("none", "sinusoidal", "learned", "lspe", "rope")

OPTIONS: dict[str, Any] = {"dataset_name": "blimp_order"}
"""Options of `hf-posenc train`: its defaults."""

PAIR = ("it's herself who karla saw.", "it's herself who saw karla.")
"""An acceptable and an unacceptable sentence of the test split (BLiMP's principle_A_reconstruction)."""


@dataclass(frozen=True)
class SchemeResult:
    """What the quick start found for one scheme."""

    scheme: str
    accuracy: float
    """Share of the test sentences judged rightly."""
    probabilities: tuple[float, ...]
    """Probability of `acceptable` for each sentence of `PAIR`."""
    positional_parameters: int
    checkpoint: Path


def quickstart(
    output_dir: str | Path = "quickstart",
    schemes: Sequence[str] = SCHEMES,
    seed: int = 0,
    *,
    overwrite_output_dir: bool = False,
    options: dict[str, Any] | None = None,
    console: Console | None = None,
) -> list[SchemeResult]:
    """Trains one encoder per scheme, shows what each learned, and loads the last one without hf_posenc.

    Data, sizes, seed and schedule are the same for all schemes. Both sentences of a pair hold the same words, so
    without positions both get the same answer and accuracy is one half.

    Args:
        output_dir: each scheme's checkpoint goes into a folder in it.
        schemes: names of positional schemes; the last one is loaded in a process of its own.
        seed: of the weights and the order of the examples.
        overwrite_output_dir: replace checkpoints that are there.
        options: options of `run_classification.py` that differ from `OPTIONS`.
        console: where tables are printed. None: standard output.

    Returns:
        One result per scheme, in order.

    Raises:
        UserError: a scheme is unknown, or a folder holds another run.
        Interrupted: Ctrl-C; the message is the command that trains the encoders that are left.
        RuntimeError: the checkpoint gives other logits in a process without hf_posenc.
    """
    if not schemes:
        raise UserError("schemes is empty. Name at least one, such as rope.")
    for scheme in schemes:  # all, before the first is trained
        with about_options():
            scheme_class(scheme)
        check_output_dir(Path(output_dir) / scheme, overwrite=overwrite_output_dir, resume=False)
    console = console or Console()
    started, word_pairs = time.time(), 0.0
    results: list[SchemeResult] = []
    for scheme in schemes:
        console.rule(f"{scheme} ({len(results) + 1} of {len(schemes)})")
        chosen = {
            **OPTIONS,
            "eval_strategy": "no",
            "save_strategy": "no",
            "baseline": not results,  # the same for all
            **(options or {}),
            "position_embedding_type": scheme,
            "output_dir": str(Path(output_dir) / scheme),
            "overwrite_output_dir": overwrite_output_dir,
            "seed": seed,
            "do_train": True,
            "do_predict": True,
        }
        try:
            trained = train_classifier(*make_arguments(**chosen), console=console)
        except Interrupted as interrupt:
            left = ",".join(schemes[len(results) :])
            raise Interrupted(
                f"{len(results)} of {len(schemes)} encoders are trained. Train the others with hf-posenc quickstart -o "
                f"{shlex.quote(str(output_dir))} --schemes {left} --seed {seed} --overwrite-output-dir"
            ) from interrupt
        if not results and trained.assessment is not None:
            word_pairs = trained.assessment.baselines.get("word_pairs", 0.0)
        logits = np.stack(list(logits_of(trained.model, trained.tokenizer, PAIR)))
        results.append(_result(scheme, trained, logits))
    console.rule("What they learned")
    _show(results, word_pairs, console)
    load_elsewhere(results[-1].checkpoint, logits, console)
    _next_steps(results[-1], seed, time.time() - started, console)
    return results


def _result(scheme: str, trained: TrainingResult, logits: np.ndarray) -> SchemeResult:
    """What is shown of a training, and of its logits of `PAIR`."""
    acceptable = trained.summary.labels.index("acceptable")
    probabilities = probabilities_from_logits(logits, "single_label_classification")[:, acceptable]
    return SchemeResult(
        scheme,
        trained.metrics["test_accuracy"],
        tuple(probabilities.tolist()),
        trained.summary.positional_parameters,
        trained.output_dir,
    )


def load_elsewhere(checkpoint: Path, logits: np.ndarray, console: Console) -> None:
    """Loads a checkpoint where hf_posenc isn't, and compares the logits of `PAIR`.

    Raises:
        RuntimeError: it can't be loaded there, or gives others.
    """
    console.print(f"Loading [bold]{checkpoint}[/bold] in a new process that can't import hf_posenc ...")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_MODULES_CACHE": folder}
        model, place = "AutoModelForSequenceClassification", Path(folder)
        try:
            answer = load_isolated(place, str(checkpoint.absolute()), model, texts=PAIR, environment=environment)
        except IsolatedLoadFailed as error:
            raise RuntimeError(f"{checkpoint} can't be loaded without hf_posenc: {error}") from error
    difference = np.abs(answer.output.numpy() - logits).max()
    if not difference < 1e-4:
        raise RuntimeError(f"{checkpoint} gives logits that differ by {difference} where hf_posenc isn't installed.")
    console.print(
        f"Same logits there (largest difference {difference:.1e}), through AutoModelForSequenceClassification."
    )


def _show(results: Sequence[SchemeResult], word_pairs: float, console: Console) -> None:
    table = Table(
        title="Test accuracy on pairs of sentences with the same words, in an acceptable order and in another"
    )
    table.add_column("positions")
    table.add_column("parameters for them", justify="right")
    table.add_column("test accuracy", justify="right")
    for sentence in PAIR:
        table.add_column(f'P(acceptable)\n"{sentence}"', justify="right")
    if word_pairs:
        table.add_row("word pairs", "", f"{word_pairs:.3f}", *("" for _ in PAIR), style="dim", end_section=True)
    for result in results:
        table.add_row(
            result.scheme,
            f"{result.positional_parameters:,}",
            f"{result.accuracy:.3f}",
            *(f"{probability:.3f}" for probability in result.probabilities),
        )
    console.print(table)
    console.print(
        "The first sentence is acceptable, the second isn't. Without positions they are the same bag of words. "
        "Word pairs: a linear model on words and pairs of neighbouring words. What isn't above it may have learned no "
        "more of order than which words are neighbours."
    )


def _next_steps(last: SchemeResult, seed: int, seconds: float, console: Console) -> None:
    options = {**OPTIONS, "position_embedding_type": last.scheme, "seed": seed}
    options |= {"do_eval": "false", "bf16": "false"}
    command = " ".join(f"{dashed(name)} {value}" for name, value in options.items())
    console.print(f"\n[bold]Checkpoint[/bold]: {last.checkpoint} (README.md, results.json). {seconds:.0f} s in all.")
    console.print("[bold]Next[/bold]")
    console.print("- Your own file with columns text and label, from pretrained weights:")
    console.print(
        "    hf-posenc train -o runs/mine --train-file mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2",
        soft_wrap=True,
    )
    console.print(f"- What ran here for {last.scheme!r}, to change:")
    console.print(f"    hf-posenc train -o runs/{last.scheme} {command}", soft_wrap=True)
    console.print("- Elsewhere, without hf_posenc:")
    console.print(
        f'    AutoModelForSequenceClassification.from_pretrained("{last.checkpoint}", trust_remote_code=True)',
        soft_wrap=True,
        markup=False,
    )
