"""Makes one run of a plan: trains a model, tests it at every length, and writes one JSON file."""

import io
import json
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel

from hf_posenc.errors import UserError
from hf_posenc.files import finite, write_bytes, write_text
from hf_posenc.finetuning.loading import position_limit
from hf_posenc.finetuning.train import TrainingResult, train
from hf_posenc.machine import commit, processor, versions
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.options import Options
from hf_posenc.training.inference import logits_of
from hf_posenc.training.metrics import score_logits
from hf_posenc.training.recipe import default_learning_rate
from hf_posenc.training.run_folder import OPTIONS_NAME, checkpoints

from .checkpoints import hidden_size, source_of
from .outcomes import classification_outcome
from .plan import Plan, PlannedRun
from .tasks import TestPart, test_parts, training_options

RUN_NAME = "run.json"
PICTURE_NAME = "learned.png"
MODEL_NAME = "model"
"""In the folder of a run: its checkpoints while it trains; then, where models are kept, its model."""
_TEST_TOKENS = 16_384
"""Tokens of a test batch, padding included: longer inputs come in smaller batches."""


def run_one(
    plan: Plan, run: PlannedRun, folder: Path, data_folder: Path, chosen: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Trains and tests one model; returns what its JSON holds. An interrupted training resumes.

    Args:
        plan: all that its runs have in common.
        run: task, scheme and seed.
        folder: of the run; checkpoints lie in `model` in it until it is done.
        data_folder: where generated data lies.
        chosen: `learning_rate` and how it was found, where it was searched for.

    Raises:
        Interrupted: Ctrl-C; the checkpoint is in `model`.
        UserError: something is wrong with the data or the options.
    """
    started, code = time.time(), commit()
    work = folder / MODEL_NAME
    resumed = (work / OPTIONS_NAME).is_file() and bool(checkpoints(work))
    if not resumed:
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    options = {**_options(plan, run, work, data_folder), "resume": resumed}
    options["learning_rate"] = learning_rate(plan, run, data_folder) if chosen is None else chosen["learning_rate"]
    start = None if plan.pretrained is None else source_of(plan.checkpoint(run.scheme, data_folder))
    # The baselines are measured by the report, once for all runs of a task.
    trained = train(Options.of(**options), baselines=False, console=Console(file=io.StringIO()))
    model = trained.model.eval()
    trained_seconds = time.time() - started
    tests = list(_test(plan, run, trained, None if run.factor is None else data_folder))
    if not tests:
        raise UserError(
            f"No test example of {run.task.name!r} is of one of the lengths {list(plan.test_lengths_of(run.task))}. "
            "Give longer test_lengths, or lengths: cut."
        )
    if run.seed == plan.seeds[0] and run.factor is None:
        _draw(model, folder / PICTURE_NAME)
    return {
        "task": run.task.name,
        "scheme": run.scheme,
        "seed": run.seed,
        "status": "done",
        "settings": plan.settings(run.scheme, run.task),
        "learning_rate": options["learning_rate"],
        **(chosen or {}),
        "tests": tests,
        "loss": [[entry["step"], round(entry["loss"], 5)] for entry in trained.history if "loss" in entry],
        "parameters": trained.report.parameters,
        "positional_parameters": trained.report.positional_parameters,
        "max_length": position_limit(model),
        "steps": max((entry.get("step", 0) for entry in trained.history), default=0),
        "seconds": round(time.time() - started, 1),
        "test_seconds": round(time.time() - started - trained_seconds, 1),
        "resumed": resumed,
        "train_examples": trained.report.examples.get("train"),
        **({} if start is None else {"source_sha256": start}),
        "config": _config(model),
        "versions": versions(),
        "commit": code,
        "machine": machine(),
    }


def _options(plan: Plan, run: PlannedRun, work: Path, data_folder: Path) -> dict[str, Any]:
    """The options of `hf-posenc train`, without the learning rate."""
    options = {
        **plan.options_of(run.task),
        **training_options(plan, run, data_folder),
        "output": str(work),
        "seed": run.seed,
    }
    if plan.pretrained is not None:
        return {**options, "pretrained": str(plan.checkpoint(run.scheme, data_folder))}
    options["scheme"] = run.scheme
    if run.scheme in plan.scheme_arguments:
        options["scheme_kwargs"] = plan.scheme_arguments[run.scheme]
    return options


def learning_rate(plan: Plan, run: PlannedRun, data_folder: Path) -> float:
    """The learning rate of the plan, else the one that `train` gives the model; of a trial times its factor.

    To 6 digits.
    """
    options = plan.options_of(run.task)
    rate = options.get("learning_rate")
    if rate is None:
        width = hidden_size(plan, run, data_folder)
        rate = default_learning_rate(plan.pretrained is not None, width, bool(options.get("lora")))
    return float(f"{float(rate) * (run.factor or 1):.6g}")


def _config(model: PreTrainedModel) -> dict[str, Any]:
    """The config's values that differ from the defaults: enough to rebuild the model."""
    skipped = ["auto_map", "architectures", "id2label", "label2id", "task_specific_params"]
    skipped += ["transformers_version", "dtype", "_name_or_path"]
    values = cast(PosEncConfig, model.config).to_diff_dict()
    return {name: value for name, value in values.items() if name not in skipped}


def _test(
    plan: Plan, run: PlannedRun, trained: TrainingResult, development: Path | None = None
) -> Iterator[dict[str, Any]]:
    limit = position_limit(trained.model)
    report = trained.report
    for part in test_parts(plan, run.task, trained.tokenizer, report.labels, report.problem_type, development):
        entry = part.entry()
        if limit is not None and part.longest > limit:
            yield {**entry, "skipped": f"{run.scheme} has {limit} positions"}
            continue
        started = time.time()
        inputs, size = part.dataset.remove_columns("labels"), max(1, _TEST_TOKENS // part.longest)
        logits = np.stack(list(logits_of(trained.model, trained.tokenizer, inputs, size)))  # (n, C)
        seconds = time.time() - started
        scores = _score(run.task.metric, part, logits, report.problem_type)
        yield {**entry, **scores, "seconds": round(seconds, 2)}


def _score(metric: str, part: TestPart, logits: np.ndarray, problem_type: str) -> dict[str, Any]:
    """The metrics of a part, and the counts that the statistics need."""
    labels = np.asarray(part.dataset["labels"])
    outcome = classification_outcome(metric, labels, logits.argmax(-1), logits.shape[-1], part.groups)
    metrics = score_logits(logits, labels, problem_type)
    return {"metric": metric, "value": outcome.value(), "metrics": metrics, "units": outcome.to_dict()}


def _draw(model: PreTrainedModel, path: Path) -> None:
    """Draws what the trained scheme does, where matplotlib is installed; a failure doesn't stop the run."""
    from hf_posenc.schemes.plots import drawing, plot_position, small_png

    with drawing(f"the positions of {path.parent.name}"):
        limit = position_limit(model)
        shown = 64 if limit is None else min(64, limit)
        figure = plot_position(cast(Any, model), max_positions=shown)
        write_bytes(path, small_png(figure, "what a trained scheme does"))


def finish(folder: Path, result: dict[str, Any], keep_model: bool = False) -> None:
    """Writes a run's JSON, whole or not at all, and removes its model; first, if the disk is full.

    Args:
        folder: of the run.
        result: what its JSON holds.
        keep_model: leave the model that was trained.
    """
    try:
        write_text(folder / RUN_NAME, to_json(result))
    except OSError:
        if keep_model:
            raise
        shutil.rmtree(folder / MODEL_NAME, ignore_errors=True)
        write_text(folder / RUN_NAME, to_json(result))
    if not keep_model:
        shutil.rmtree(folder / MODEL_NAME, ignore_errors=True)


def to_json(value: dict[str, Any]) -> str:
    """JSON with a line per field and per test, for readers and for diffs."""
    lines = []
    for name, item in finite(value).items():
        if name == "tests":
            inner = ",\n".join(f"  {json.dumps(test, ensure_ascii=False)}" for test in item)
            lines.append(f' "tests": [\n{inner}\n ]')
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(item, ensure_ascii=False, default=str)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def machine() -> dict[str, Any]:
    """Device, threads and system, on which a run's seconds depend."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    return {"device": name, "threads": torch.get_num_threads(), "system": platform.system()}
