"""Makes one run of a plan: trains a model and tests it at every length."""

import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from hf_posenc.errors import UserError
from hf_posenc.finetuning.loading import position_limit
from hf_posenc.finetuning.train import TrainingResult, train
from hf_posenc.machine import commit, processor
from hf_posenc.options import Options
from hf_posenc.training.inference import logits_of
from hf_posenc.training.recipe import default_learning_rate
from hf_posenc.training.run_folder import OPTIONS_NAME, checkpoints

from .checkpoints import hidden_size
from .plan import Plan, PlannedRun
from .tasks import test_parts, training_options

_TEST_TOKENS = 16_384
"""Tokens of a test batch, padding included: longer inputs come in smaller batches."""


def run_one(
    plan: Plan, run: PlannedRun, work: Path, data_folder: Path, learning_rate: float | None = None
) -> dict[str, Any]:
    """Trains and tests one model; returns what its JSON holds. An interrupted training resumes.

    Args:
        plan: all that its runs have in common.
        run: task, scheme and seed.
        work: the folder of its checkpoints, then of its model.
        data_folder: where generated data lies.
        learning_rate: what was found for it. None: the plan's, or the default.

    Raises:
        Interrupted: Ctrl-C; the checkpoint is in `work`.
        UserError: something is wrong with the data or the options.
    """
    started, code = time.time(), commit()
    options = {**_options(plan, run, data_folder), "output": str(work)}
    rate = options["learning_rate"] = learning_rate or default_rate(plan, run, data_folder)
    options["resume"] = (work / OPTIONS_NAME).is_file() and bool(checkpoints(work))
    if not options["resume"]:
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    # The baselines are measured once for all runs of a task.
    trained = train(Options.of(**options), baselines=False, console=Console(file=io.StringIO()))
    rows = list(_test(plan, run, trained, None if run.factor is None else data_folder))
    if not rows:
        raise UserError(
            f"No test example of {run.task.name!r} is of one of the lengths {list(plan.lengths)}. "
            "Give longer test_lengths, or lengths: cut."
        )
    return {
        "rows": rows,
        "steps": max((entry.get("step", 0) for entry in trained.report.history), default=0),
        "seconds": round(time.time() - started, 1),
        "parameters": trained.report.parameters,
        "rate": rate,
        "commit": (code or "")[:12],
        "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
    }


def _options(plan: Plan, run: PlannedRun, data_folder: Path) -> dict[str, Any]:
    """The options of `hf-posenc train`, without the learning rate and the folder."""
    options = {**plan.options_of(run.task), **training_options(plan, run, data_folder), "seed": run.seed}
    if plan.pretrained is not None:
        return {**options, "pretrained": str(plan.checkpoint(run.scheme, data_folder))}
    return {**options, "scheme": run.scheme, "scheme_kwargs": plan.scheme_kwargs.get(run.scheme)}


def default_rate(plan: Plan, run: PlannedRun, data_folder: Path) -> float:
    """The learning rate of the plan, else the one that `train` gives the model; of a trial times its factor.

    To 6 digits.
    """
    options = plan.options_of(run.task)
    rate = options.get("learning_rate")
    if rate is None:
        width = hidden_size(plan, run, data_folder)
        rate = default_learning_rate(plan.pretrained is not None, width, bool(options.get("lora")))
    return float(f"{float(rate) * (run.factor or 1):.6g}")


def _test(
    plan: Plan, run: PlannedRun, trained: TrainingResult, development: Path | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of the results; one without a score where the inputs are longer than the scheme's table."""
    model, report = trained.model.eval(), trained.report
    limit, metric = position_limit(model), run.task.metric
    for part in test_parts(plan, run.task, trained.tokenizer, report.labels, report.problem_type, development):
        if limit is not None and part.longest > limit:
            yield {**part.score(metric, np.asarray(part.dataset["labels"])), "score": None}
            continue
        inputs, size = part.dataset.remove_columns("labels"), max(1, _TEST_TOKENS // part.longest)
        logits = np.stack(list(logits_of(model, trained.tokenizer, inputs, size)))  # (n, C)
        yield part.score(metric, logits.argmax(-1))
