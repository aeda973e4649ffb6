"""The road from a file to a checkpoint: read, prepare, start, encode, train, report."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from accelerate import PartialState
from datasets import Dataset
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.modelcard import extract_hyperparameters_from_trainer
from transformers.utils import logging

from .. import files
from ..checkpoints.files import TRAINED_ON
from ..checkpoints.keeper import OutputFolder
from ..checkpoints.loading import input_length
from ..data.columns import note, remember_columns
from ..data.preparing import encode, labels_of, prepare, texts_of
from ..data.reading import DELIMITERS, Dialect
from ..data.sources import read
from ..data.tables import Table
from ..errors import UserError, spell, user_errors
from ..inference.logits import check_token_types, take_off_autocast
from ..options import Options
from ..progress import ProgressConsole, Stop
from ..quiet import without_bars
from ..training import run_folder
from ..training.baselines import baseline_scores
from ..training.evaluations import last_weights_note
from ..training.metrics import ClassificationLoss, make_loss
from ..training.recipe import Recipe, check_memory, make_recipe, trains_on_cpu
from ..training.report import PREFIXES, TrainingReport, begin_report, calibrate
from ..training.trainer import RunTrainer, make_trainer, merge_lora
from .start import check_start, start

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run."""

    output: Path
    report: TrainingReport
    """Also in `results.json` in the folder."""
    model: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    trained_on: frozenset[int] = field(repr=False)
    """The marks of the training texts."""


@without_bars()
def fine_tune(
    options: Options,
    *,
    tables: Mapping[str, Table] | None = None,
    baselines: bool = True,
    console: Console | None = None,
    ending: Mapping[str, Any] = {},
) -> TrainingResult:
    """Trains a classifier or a regressor, scores it, and writes the checkpoint with its results and its card.

    While it trains, `checkpoint-N` folders to resume from lie in the output folder; at its end all of the run's files
    appear together, in the place of those of a run that it replaces.

    Args:
        options: what is read, what is trained, and how.
        tables: the splits, where they have been read: any of `train`, `validation`, `test`.
        baselines: score the majority and linear models on words first.
        console: where progress and results are printed. None: standard output.
        ending: `least_gain` and `least_steps` of the recipe.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    if options.output is None:
        raise UserError("is missing. Name a folder for the checkpoint, such as runs/mine.", parameter="output")
    if options.overwrite and options.resume:
        contradiction = f"begins anew, {spell('resume', True)} goes on. Give one of them."
        raise UserError(contradiction, parameter="overwrite", value=True)
    # Said here that it is a CPU: else accelerate takes each of several processes for the only one.
    process = PartialState(cpu=trains_on_cpu(options))
    console = (console or ProgressConsole()) if process.is_main_process else Console(quiet=True)
    asked = {"overwrite": options.overwrite, "resume": options.resume}
    with run_folder.folder_of_a_run(options.output, process, **asked) as output:
        return _train(options, output, process, tables, baselines, console, ending)


def _train(
    options: Options,
    output: OutputFolder,
    process: PartialState,
    tables: Mapping[str, Table] | None,
    baselines: bool,
    console: Console,
    ending: Mapping[str, Any],
) -> TrainingResult:
    """Trains into a folder that is locked; see `fine_tune`."""
    started = time.time()
    beginning = check_start(options)
    tables = read(options) if tables is None else tables
    if "train" not in tables:
        raise UserError(f"{options.data!r} has no split called train, but {', '.join(tables)}. Name a training file.")
    prepared = prepare(tables, options, beginning.known)
    parts = {split: (texts_of(part), labels_of(part) or []) for split, part in prepared.splits.items()}
    begun_with = {**asdict(options), run_folder.DIGEST: _digest(prepared.labels.names, parts)}
    resumed = run_folder.resume_point(output, begun_with) if options.resume else None
    set_seed(options.seed)
    tokenizer, model, notes = start(options, prepared, beginning)
    remember_columns(model.config, prepared.columns, _dialect(options, tables["train"]))
    tokenizer.model_max_length = input_length(model, tokenizer, options.max_length)
    encoded, cut = encode(prepared, tokenizer, tokenizer.model_max_length)
    check_token_types(model, encoded["train"][:1])
    recipe = make_recipe(options, model, tokenizer, encoded, ending)
    loss = make_loss(prepared.labels, parts["train"][1], options.class_weights, recipe.label_smoothing_factor)
    loss.label_scale = model.config.label_scale
    notes += last_weights_note(recipe, options) + _class_weights_note(loss, prepared.labels.names)
    is_chosen = options.batch_size is not None or recipe.auto_find_batch_size
    notes += check_memory(model, [*map(len, encoded["train"]["input_ids"])], recipe, chosen=is_chosen)
    scores: dict[str, dict[str, float]] = {}
    if baselines and process.is_main_process:
        tests = {PREFIXES[split]: part for split, part in parts.items() if split != "train"}
        scores, said = baseline_scores(parts["train"], tests, prepared.labels.problem_type)
        notes += said
    with run_folder.guarded(output.path), user_errors():
        trainer = make_trainer(model, tokenizer, encoded, recipe, loss, console)
        process.wait_for_everyone()  # all have seen where it goes on
        notes += _begin(output, begun_with, resumed)
    known = {"notes": notes, "baselines": scores, "processes": process.num_processes}
    report = begin_report(model, prepared, encoded, cut, options, tokenizer, beginning.checkpoint, **known)
    report.show_start(console)
    report = _score(_fit(trainer, report, recipe, resumed), trainer, encoded)
    report = replace(report, seconds=None if resumed else round(time.time() - started, 1))
    if report.calibration is not None:
        note(model.config, temperature=report.calibration.temperature)
    report = save_run(output, report, partial(_save, trainer), prepared.trained_on)
    report.show(console)
    return TrainingResult(output.path, report, model, tokenizer, prepared.trained_on)


def _digest(names: tuple[str, ...], parts: Mapping[str, Any]) -> str:
    """A number for labels and texts, by which a run that goes on knows its data; training rows stand first."""
    others = {split: part for split, part in parts.items() if split != "train"}
    content = json.dumps([names, *parts["train"], others])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _class_weights_note(loss: ClassificationLoss, names: tuple[str, ...]) -> list[str]:
    """A sentence where labels have weights."""
    if loss.weights is None:
        return []
    weights = zip(names, loss.weights.tolist(), strict=True)
    return [f"Class weights: {', '.join(f'{name} {weight:.3g}' for name, weight in weights)}."]


def _begin(output: OutputFolder, begun_with: dict[str, Any], resumed: Path | None) -> list[str]:
    """Begins a run in its folder, or goes on; a sentence on what was there."""
    if resumed is not None:
        return [f"Goes on from {resumed.name}."]
    deleted = run_folder.begin_run(output, begun_with) if output.is_main else []
    return [f"Deleted of the run that is replaced: {', '.join(deleted)}."] if deleted else []


def _dialect(options: Options, table: Table) -> Dialect | None:
    """Dialect by which the training rows' file was read, where an option says so."""
    is_said = table.kind in DELIMITERS and (options.delimiter or options.quoting)
    return Dialect(table.kind, options.delimiter, options.quoting) if is_said else None


def _fit(trainer: RunTrainer, report: TrainingReport, recipe: Recipe, resumed: Path | None) -> TrainingReport:
    """Trains; the report with how, what was logged and which weights were kept.

    Raises:
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    trainer.add_callback(stop := Stop(trainer.accelerator))
    trainer.has_ended = resumed is not None and run_folder.has_ended(resumed)
    with run_folder.guarded(Path(str(recipe.output_dir))), stop:
        trained = trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    merge_lora(cast(Any, trainer.model))
    report = replace(
        report,
        recipe=_hyperparameters(trainer, recipe),
        metrics={**trained.metrics} if resumed is None else {},  # else they are of the steps since then alone
        history=trainer.state.log_history,
        best=_best(trainer, recipe),
    )
    take_off_autocast(trainer.accelerator, cast(Any, trainer.model))
    return report


def _best(trainer: RunTrainer, recipe: Recipe) -> dict[str, Any] | None:
    """Where the kept weights are from; see `TrainingReport`."""
    step = trainer.state.best_global_step
    if step is None or not recipe.load_best_model_at_end:
        return None
    metric = f"eval_{str(recipe.metric_for_best_model).removeprefix('eval_')}"
    epoch = next(entry["epoch"] for entry in trainer.state.log_history if entry["step"] == step and metric in entry)
    return {"metric": metric, "value": trainer.state.best_metric, "step": step, "epoch": epoch}


def _hyperparameters(trainer: RunTrainer, recipe: Recipe) -> dict[str, Any]:
    """Collects what it was trained with, for results.json and the card."""
    values = extract_hyperparameters_from_trainer(trainer)
    if recipe.auto_find_batch_size:  # which may have found another size than the recipe's
        size = cast(int, trainer.state.train_batch_size)
        total = size * recipe.world_size * recipe.gradient_accumulation_steps
        values |= {"train_batch_size": size} | ({"total_train_batch_size": total} if total != size else {})
    values |= {name: getattr(recipe, name) for name in ("position_rate", "word_rate", "weight_decay")}
    if recipe.one_cycle:
        values["lr_scheduler_type"] = "one-cycle"
    if recipe.bf16:
        values["precision"] = "bfloat16 mixed, scores in float32"
    return values


def save_run(
    output: OutputFolder, report: TrainingReport, save_model: Any, trained_on: frozenset[int]
) -> TrainingReport:
    """Writes checkpoint, card, results and the marks of the training texts: all or, if that fails, none.

    Args:
        output: the folder.
        report: of the run.
        save_model: called with a folder by all processes, saves weights, code and tokenizer there.
        trained_on: the marks of the training texts.

    Returns:
        The report, with its picture.
    """
    left = partial(run_folder.after_a_failure, output.path)
    with run_folder.guarded(output.path), output.replaced(left) as new:
        save_model(str(new))
        if output.is_main:
            report = report.draw(new)
            files.write_text(new / "README.md", report.card())
            np.save(new / TRAINED_ON, np.array(sorted(trained_on), dtype=np.uint64))
            files.write_json(new / run_folder.RESULTS_NAME, report.to_dict())
    if output.is_main:
        run_folder.delete_run(output.path)
    return report


def _score(report: TrainingReport, trainer: RunTrainer, encoded: Mapping[str, Dataset]) -> TrainingReport:
    """The report with the metrics of validation and test rows, and for the last of them where it stands."""
    metrics = {**report.metrics}
    answers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split, prefix in PREFIXES.items():
        if split not in encoded:
            continue
        output = trainer.predict(cast(Any, encoded[split]), metric_key_prefix=prefix)
        metrics |= {name: float(value) for name, value in (output.metrics or {}).items()}
        answers[split] = cast(Any, (output.predictions, output.label_ids))
    report = replace(report, metrics=metrics)
    if not answers:
        return report
    last = list(answers)[-1]
    report = report.assess(last, *answers[last])
    if report.problem_type != "single_label_classification" or "validation" not in answers:
        return report
    return replace(report, calibration=calibrate(answers["validation"], answers[last], last))


def _save(trainer: RunTrainer, folder: str) -> None:
    if trainer.is_fsdp_enabled:  # with sharded checkpoints the Trainer would save no model
        cast(Any, trainer.accelerator.state).fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(folder, _internal_call=True)
