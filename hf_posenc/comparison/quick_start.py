"""The quick start: the plan `quickstart` with one seed, its report, and a model in a process without hf_posenc."""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from hf_posenc.errors import UserError
from hf_posenc.isolated_load import IsolatedLoadFailed, load_isolated
from hf_posenc.quiet import silence
from hf_posenc.training.inference import logits_of
from hf_posenc.training.metrics import probabilities_from_logits

from .executor import duration, execute
from .plan import Plan
from .plan_file import check_folder, read_plan
from .report import PICTURES_NAME, write_report
from .results_folder import run_folder
from .run import MODEL_NAME
from .study import Study

PAIR = ("it's herself who karla saw.", "it's herself who saw karla.")
"""An acceptable and an unacceptable sentence of the test split (BLiMP's principle_A_reconstruction)."""
SCHEMES = ("none", "learned", "rope")
"""Of those of the plan; the more, the longer it takes."""
SECONDS = 70
"""What an encoder takes on two CPU cores."""


def quickstart(
    output_dir: str | Path = "quickstart",
    schemes: Sequence[str] = SCHEMES,
    seed: int = 0,
    *,
    options: dict[str, Any] | None = None,
    console: Console | None = None,
) -> Study:
    """Compares schemes on sentences that word order alone decides, and loads the last model without hf_posenc.

    Both sentences of a pair hold the same words, so without positions both get the same answer and accuracy is one
    half. What is done already isn't done again: the same call resumes, and another seed is added.

    Args:
        output_dir: the results, as `compare` writes them, with each run's model.
        schemes: those to compare; the last one's model is loaded without hf_posenc.
        seed: of the weights and the order of the examples.
        options: options of `train` that differ from its defaults.
        console: where it is shown. None: standard output.

    Returns:
        The numbers.

    Raises:
        UserError: a scheme is unknown, the folder holds something else, or a run failed.
        Interrupted: Ctrl-C; the same call resumes.
        RuntimeError: the model gives other logits in a process without hf_posenc.
    """
    folder, console, started = Path(output_dir), console or Console(), time.time()
    plan = read_plan("quickstart", schemes=schemes, seeds=[seed], options=options)
    check_folder(folder)
    count = len(plan.schemes)
    text = f"{count} encoders of 2 layers, about {duration(SECONDS * count)} on two CPU cores. Ctrl-C is safe."
    console.print(text, highlight=False)
    failed = execute(plan, folder, console=console, keep_models=True).failed
    if failed:
        raise UserError(f"{len(failed)} of {count} runs failed: {next(iter(failed.values()))}")
    study = Study.read(folder)
    models = {run.scheme: run_folder(folder, run) / MODEL_NAME for run in plan.runs()}
    logits = {scheme: _logits(model) for scheme, model in models.items()}
    _show(study, logits, models, console)
    last = plan.schemes[-1]
    load_elsewhere(models[last], logits[last], console)
    try:
        with silence():
            page = write_report(folder)
        console.print(
            f"As a picture: {folder / PICTURES_NAME / f'{plan.tasks[0].name}-ranking.png'}; all of it: {page}"
        )
    except ImportError as error:
        console.print(f"No picture: {error}", markup=False)
    _next_steps(plan, models[last], time.time() - started, console)
    return study


def _logits(model: Path) -> np.ndarray:
    """The logits of `PAIR`: (2, 2)."""
    with silence():
        loaded = AutoModelForSequenceClassification.from_pretrained(model)
        return np.stack(list(logits_of(loaded, AutoTokenizer.from_pretrained(model), PAIR)))


def load_elsewhere(checkpoint: Path, logits: np.ndarray, console: Console) -> None:
    """Loads a checkpoint where hf_posenc isn't, and compares the logits of `PAIR`.

    Raises:
        RuntimeError: it can't be loaded there, or gives others.
    """
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
    text = f"{checkpoint} in a process without hf_posenc: the same logits (largest difference {difference:.1e})."
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _show(study: Study, logits: dict[str, np.ndarray], models: dict[str, Path], console: Console) -> None:
    """A row for each scheme and baseline: its accuracy, and what it says of `PAIR`."""
    (task,) = study.tasks
    table = Table(title="Sentences with the same words, in an acceptable order and in another")
    for name in ("positions", "parameters for them", "test accuracy", *(f'P(acceptable)\n"{text}"' for text in PAIR)):
        table.add_column(name, justify="left" if name == "positions" else "right")
    for name, score in study.rows(task, study.home_length(task)):
        if name not in logits:
            table.add_row(name, "", f"{score.mean:.3f}", style="dim")
            continue
        positional = study.runs(task, name)[0]["positional_parameters"]
        shown = probabilities_from_logits(logits[name], "single_label_classification")
        labels = AutoConfig.from_pretrained(models[name]).label2id
        chosen = shown[:, labels["acceptable"]]
        table.add_row(name, f"{positional:,}", f"{score.mean:.3f}", *(f"{value:.3f}" for value in chosen))
    console.print(table)
    console.print(
        "The first sentence is acceptable, the second isn't. Without positions they are the same bag of words. "
        "Word pairs: a linear model on words and pairs of neighbouring words; words: on words alone. What isn't above "
        "word pairs may have learned no more of order than which words are neighbours."
    )


def _next_steps(plan: Plan, model: Path, seconds: float, console: Console) -> None:
    scheme, task = plan.schemes[-1], plan.tasks[0]
    command = (
        f"hf-posenc train -o runs/{scheme} --data {task.data} --scheme {scheme} --seed {plan.seeds[0]} "
        f"--max-length {plan.train_length} --validation-share 0 --no-bf16"
    )
    console.print(f"\n{duration(seconds)} in all. [bold]Next[/bold]", highlight=False)
    steps = {
        "Your own file with columns text and label, from pretrained weights": (
            "hf-posenc train -o runs/mine --data mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2"
        ),
        f"What ran here for {scheme!r}, to change": command,
        "Elsewhere, without hf_posenc": (
            f'AutoModelForSequenceClassification.from_pretrained("{model}", trust_remote_code=True)'
        ),
    }
    for about, line in steps.items():
        console.print(f"- {about}:\n    {line}", soft_wrap=True, markup=False, highlight=False)
