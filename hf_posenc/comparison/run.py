"""Makes one run of a plan: trains a model, and tests it at every length. Refuses schemes that can't be run."""

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from ..checkpoints.loading import position_limit
from ..checkpoints.tokenizers import check_ids
from ..checkpoints.trainer_checkpoints import checkpoints
from ..conversion.loading import load_source
from ..errors import Diverged, UserError, user_errors
from ..finetuning.start import check_start
from ..finetuning.train import TrainingResult, fine_tune
from ..inference.logits import logits_of
from ..machine import processor, short_commit
from ..model.scheme_factory import make_scheme
from ..options import Options
from ..schemes.names import require_scheme
from ..schemes.scheme_file import register_scheme
from ..training.recipe import default_learning_rate
from ..training.report import TrainingReport
from ..training.run_folder import OPTIONS_NAME
from .plan import Plan, PlannedRun, UntilFlat
from .statistics import above_majority
from .tasks import TaskData

_TEST_TOKENS = 16_384
"""Tokens of a test batch, padding included: longer inputs come in smaller batches."""
RISEN = 1.05
"""The loss has risen where the mean over the last twentieth of the steps is so many times that over the first one."""
LEAST_STEPS = 40
"""In shorter runs these are the losses of single steps, which rise by chance."""
NOT_FINITE = "a loss that isn't finite"
HAS_RISEN = "a training loss above its start"


def run_options(plan: Plan, run: PlannedRun) -> dict[str, Any]:
    """The options of `hf-posenc train`, without the learning rate that was found, the data and the folder."""
    options = {**plan.options_of(run.task), "seed": run.seed}
    options |= {"scheme": run.scheme, "scheme_kwargs": plan.scheme_kwargs.get(run.scheme), **plan.ending_of(run.task)}
    return options | ({} if plan.pretrained is None else {"pretrained": plan.checkpoint(run.scheme)})


def register_files(plan: Plan) -> None:
    """Registers the plan's scheme files in this process."""
    for path in plan.scheme_files:
        with user_errors():
            register_scheme(path, "+".join(dict.fromkeys("+".join(plan.schemes).split("+"))))


def check_schemes(plan: Plan) -> None:
    """Registers the plan's scheme files, and refuses schemes that can't be built, or started, as it says.

    Raises:
        UserError: a file, a scheme, its arguments or the checkpoint can't be.
    """
    register_files(plan)
    started_from: dict[str, Options] = {}
    for scheme in plan.schemes:
        require_scheme(scheme, plan.scheme_kwargs.get(scheme), parameter="schemes")
        options = Options.of(**run_options(plan, PlannedRun(plan.tasks[0], scheme, 0)))
        beginning = check_start(options)
        if beginning.checkpoint is None:
            with user_errors(), torch.device("meta"):
                make_scheme(beginning.config)
            continue
        # A checkpoint for all is converted, one for each must be what it is called.
        has = getattr(beginning.config, "position_embedding_type", None)
        if "{scheme}" in str(plan.pretrained) and has != scheme:
            raise UserError(f"{plan.checkpoint(scheme)!r} has the scheme {has!r}, not {scheme!r}.")
        started_from[plan.checkpoint(scheme)] = options
    for checkpoint, options in started_from.items():
        _read_whole(checkpoint, options)


def _read_whole(checkpoint: str, options: Options) -> None:
    """Reads a checkpoint with its tokenizer, so that a damaged one is refused before a plan is recorded."""
    if options.trust_remote_code:  # its class is known when it is trained
        return
    loaded = load_source(checkpoint, task="feature-extraction", revision=options.revision)
    if loaded.tokenizer is not None:
        folder = loaded.source.folder
        check_ids(loaded.tokenizer, folder, checkpoint, allowed=options.allow_other_tokens, is_saved=True)


def run_one(
    data: TaskData,
    run: PlannedRun,
    work: Path,
    tokenizer: Path,
    learning_rate: float | None = None,
    majority: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Trains and tests one model; returns its rows of the results. An interrupted training resumes.

    A run that diverged has the majority's rows, and says so: with a loss that isn't finite, or with one that ended
    above its start (see `RISEN`) where no score is above the majority's.

    Args:
        data: of the task, for all runs of the plan.
        run: task, scheme and seed.
        work: the folder of its checkpoints, then of its model.
        tokenizer: the folder of the one of generated data.
        learning_rate: what was found for it. None: the plan's, or the default.
        majority: the majority's rows of the results of the task. A trial has none.

    Raises:
        Interrupted: Ctrl-C; the checkpoint is in `work`.
        UserError: something is wrong with the data or the options.
    """
    started = time.time()
    plan = data.plan
    options = {**run_options(plan, run), "output": str(work)}
    if run.task.is_generated:
        options["tokenizer"] = str(tokenizer)
    rate = options["learning_rate"] = learning_rate or rate_of_run(plan, run)
    options["resume"] = (work / OPTIONS_NAME).is_file() and bool(checkpoints(work))
    if not options["resume"]:
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    rows = data.training_splits(run)
    ending = {"least_gain": plan.until_flat.gain, "least_steps": plan.until_flat.least} if plan.until_flat else {}
    shared: dict[str, Any] = {
        "task": run.task.name,
        "scheme": run.scheme,
        "seed": run.seed,
        "rate": rate,
        "commit": short_commit(),
        "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
    }
    try:
        # The baselines are measured once for all runs of a task.
        trained = fine_tune(
            Options.of(**options), tables=rows, baselines=False, console=Console(quiet=True), ending=ending
        )
    except Diverged:
        return _diverged(majority, {**shared, "seconds": _seconds(started, options)}, NOT_FINITE)
    tested = list(_test(data, run, trained))
    losses = [entry["loss"] for entry in trained.report.history if "loss" in entry]
    shared |= {
        **_ending(plan, run.task.metric, trained.report),
        "seconds": _seconds(started, options),
        "parameters": trained.report.parameters,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
    }
    made = [{**shared, **row} for row in tested]
    has_risen = shared["steps"] >= LEAST_STEPS and losses and losses[-1] > RISEN * losses[0]
    if has_risen and majority and not _is_above(made, majority, plan.home_length):
        return _diverged(majority, shared, HAS_RISEN)
    return made


def _seconds(started: float, options: dict[str, Any]) -> float | None:
    """The seconds since a run's start; None of one that goes on: what it took before isn't known."""
    return None if options["resume"] else round(time.time() - started, 1)


def _ending(plan: Plan, metric: str, report: TrainingReport) -> dict[str, Any]:
    """The steps of a run; of one that ends when it is flat also those of its weights, and whether it still rose."""
    steps = max((entry.get("step", 0) for entry in report.history), default=0)
    if (rule := plan.until_flat) is None:
        return {"steps": steps}
    scores = [entry[key] for entry in report.history if (key := f"eval_{metric}") in entry]
    kept = (report.best or {}).get("step", steps)
    return {"steps": steps, "kept_step": kept, "rising": int(is_rising(scores, rule))}


def is_rising(scores: Sequence[float], rule: UntilFlat) -> bool:
    """True where a run's scores on validation rows say that it would have gone on."""
    best, waited = -math.inf, 0
    for score in scores:
        waited = 0 if score - best > rule.gain else waited + 1
        best = max(best, score)
    return waited < rule.patience


def _diverged(majority: Sequence[dict[str, Any]], shared: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    """The majority's rows as those of a run; of a trial, which has none, one without a score."""
    return [{**row, **shared, "diverged": reason} for row in majority or ({"score": None},)]


def _is_above(made: list[dict[str, Any]], majority: Sequence[dict[str, Any]], length: int) -> bool:
    """True where a run is above the majority's answers at a length."""
    counted = above_majority(pd.DataFrame([*majority, *made]), made[0]["task"], made[0]["scheme"], length)
    return counted is None or counted[0] > 0


def rate_of_run(plan: Plan, run: PlannedRun) -> float:
    """The learning rate of the plan, else the one that `train` gives the model; of a trial times its factor.

    To 6 digits.
    """
    options = Options.of(**run_options(plan, run))
    rate = options.learning_rate
    if rate is None:
        rate = default_learning_rate(
            options.pretrained is not None, check_start(options).config.hidden_size, options.lora
        )
    return float(f"{rate * (run.factor or 1):.6g}")


def _test(data: TaskData, run: PlannedRun, trained: TrainingResult) -> Iterator[dict[str, Any]]:
    """The rows of the results; one without a score where the inputs are longer than the scheme's table."""
    model, report = trained.model.eval(), trained.report
    limit, metric = position_limit(model), run.task.metric
    for part in data.test_parts(trained.tokenizer, report.labels, trial=run.factor is not None):
        if limit is not None and part.longest > limit:
            yield {**part.row(metric, np.asarray(part.dataset["labels"])), "score": None}
            continue
        inputs, size = part.dataset.remove_columns("labels"), max(1, _TEST_TOKENS // part.longest)
        logits = np.stack(list(logits_of(model, trained.tokenizer, inputs, size)))  # (n, C)
        yield part.row(metric, logits)
