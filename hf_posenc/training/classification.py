"""Training a text classifier (or regressor): from options to a checkpoint, through the stock Trainer."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict
from rich.console import Console
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from . import checkpoints
from .arguments import ClassificationTrainingArguments, DataArguments, ModelArguments, RunArguments, as_dict
from .data import Columns, Labels, encode, find_columns, hold_out, load_splits, number_labels, texts
from .errors import Interrupted, UserError
from .losses import ClassificationLoss, make_loss
from .metrics import compute_metrics_for, predictions_from_logits, probabilities_from_logits
from .model import check_resumed_model, default_learning_rate, hub_options, input_length, load_config, make_model
from .report import Summary, display_name, model_card, summarize, versions
from .tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer

logger = logging.get_logger(__name__)


@dataclass
class Setup:
    """All that a training loop needs, made from the options by `set_up`."""

    data: DataArguments
    arguments: ModelArguments
    training: ClassificationTrainingArguments
    encoded: dict[str, Dataset]
    """The splits as token numbers and, where there are labels, `labels`."""
    columns: Columns
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    collator: DataCollatorWithPadding
    loss: ClassificationLoss
    compute_metrics: Callable[[EvalPrediction], dict[str, float]]
    summary: Summary
    resume_from: Path | None = None


@dataclass
class ClassificationResult:
    """What a run leaves: also in `results.json` in its folder."""

    output_dir: Path
    metrics: dict[str, float]
    """`train_...`, `eval_...` (validation) and `test_...` numbers."""
    summary: Summary
    history: list[dict[str, Any]] = field(default_factory=list)
    """What was logged, in order: losses, learning rates, training and validation metrics of each epoch."""
    model: PreTrainedModel = field(kw_only=True, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(kw_only=True, repr=False)


def set_up(data: DataArguments, arguments: ModelArguments, training: ClassificationTrainingArguments) -> Setup:
    """Reads the data, numbers the labels, makes tokenizer, model, loss and metrics; checks all before any training.

    Raises:
        UserError: something in the options or the data is wrong.
    """
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do_train, --do_eval, --do_predict.")
    if not training.do_train and arguments.model_name_or_path is None:
        raise UserError("Without --do_train there is no model. Name a trained one with --model_name_or_path.")
    resume_from = prepare_output_dir(training)
    config = load_config(arguments)
    with training.main_process_first(desc="reading the data"):
        splits = wanted_splits(load_splits(data, arguments.token, arguments.cache_dir), data, training)
        columns = find_columns(next(iter(splits.values())), data)
        labels, numbers = number_labels(
            splits,
            columns,
            do_regression=data.do_regression,
            delimiter=data.label_delimiter,
            given=_trained_labels(config),
            given_problem_type=None if config is None else config.problem_type,
        )
        tokenizer = make_tokenizer(arguments, data, splits, columns, resume_from)
    loss = make_loss(labels, numbers.get("train"), training)
    set_seed(training.seed)
    model = make_model(arguments, data, config, tokenizer, labels)
    if resume_from is not None:
        check_resumed_model(resume_from, model)
    if training.learning_rate is None:
        training.learning_rate = default_learning_rate(arguments, model.config)
    max_length = input_length(data, model, tokenizer)
    with training.main_process_first(desc="tokenizing"):
        encoded = {
            split: encode(
                dataset,
                numbers[split],
                tokenizer,
                columns,
                max_length,
                labels.problem_type,
                split=split,
                num_proc=data.preprocessing_num_workers,
                overwrite_cache=data.overwrite_cache,
            )
            for split, dataset in splits.items()
        }
    return Setup(
        data=data,
        arguments=arguments,
        training=training,
        encoded=encoded,
        columns=columns,
        labels=labels,
        tokenizer=tokenizer,
        model=model,
        collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training.fp16 else None),
        loss=loss,
        compute_metrics=compute_metrics_for(labels.problem_type),
        summary=summarize(model, labels, encoded, max_length, len(tokenizer), training.train_batch_size),
        resume_from=resume_from,
    )


def prepare_output_dir(training: RunArguments) -> Path | None:
    """Checks the output folder and finds the checkpoint to resume from, also set in `training`; deletes nothing.

    Raises:
        UserError: the folder holds another run, can't be written to, or has nothing to resume from.
    """
    output_dir = str(training.output_dir)
    checkpoints.check_output_dir(
        output_dir,
        overwrite=training.overwrite_output_dir,
        resume=bool(training.resume_from_checkpoint),
        training=training.do_train,
    )
    resume_from = checkpoints.find_resume_point(output_dir, training.resume_from_checkpoint)
    if training.resume_from_checkpoint and resume_from is None:
        logger.warning(f"No complete checkpoint in {output_dir!r}: training starts at the beginning.")
    training.resume_from_checkpoint = None if resume_from is None else str(resume_from)
    if training.device.type == "cpu":
        training.dataloader_pin_memory = False  # pinned memory is for copies to an accelerator
    return resume_from


def wanted_splits(splits: DatasetDict, data: DataArguments, training: ClassificationTrainingArguments) -> DatasetDict:
    """The splits that this run uses, cut to the sizes that were asked for."""
    if training.do_train and "train" not in splits:
        raise UserError(f"--do_train needs training data, there is {', '.join(splits)}. Give --train_file.")
    if training.do_predict and "test" not in splits:
        raise UserError(f"--do_predict needs test data, there is {', '.join(splits)}. Give --test_file.")
    if training.do_eval and "validation" not in splits:
        if "train" not in splits:
            raise UserError(f"--do_eval needs validation data, there is {', '.join(splits)}. Give --validation_file.")
        splits = hold_out(splits, data.validation_split_percentage)
        logger.warning(
            f"There is no validation data: {len(splits['validation'])} training examples were set aside for it "
            "(--validation_split_percentage)."
        )
    wanted = {
        "train": (training.do_train, data.max_train_samples),
        "validation": (training.do_eval, data.max_eval_samples),
        "test": (training.do_predict, data.max_predict_samples),
    }
    chosen = {}
    for split, (used, most) in wanted.items():
        if not used:
            continue
        if most is not None and most < 1:
            raise UserError(f"The most examples of the {split} data must be positive, not {most}.")
        dataset = splits[split]
        chosen[split] = dataset if most is None else dataset.select(range(min(most, len(dataset))))
        if len(chosen[split]) == 0:
            raise UserError(f"The {split} data has no rows. Give data with at least one example.")
    return DatasetDict(chosen)


def _trained_labels(config: Any) -> list[str] | None:
    """The label names of a trained classifier; None where they are only placeholders."""
    if config is None or not config.id2label:
        return None
    names = [config.id2label[number] for number in sorted(config.id2label)]
    return None if all(str(name).startswith("LABEL_") for name in names) else names


def make_tokenizer(
    arguments: ModelArguments,
    data: DataArguments,
    splits: DatasetDict,
    columns: Columns,
    resume_from: Path | None,
) -> PreTrainedTokenizerBase:
    """The tokenizer that is named, the model's or the resumed run's own, or one trained on the training text."""
    name = arguments.tokenizer_name or arguments.model_name_or_path or (str(resume_from) if resume_from else None)
    if name is not None:
        options = hub_options(arguments)
        if arguments.tokenizer_name is None and arguments.model_name_or_path is None:
            options["revision"] = "main"
        return load_tokenizer(name, **options)
    return train_tokenizer(
        texts(splits["train"], columns),
        arguments.tokenizer_type,
        arguments.vocab_size,
        model_max_length=data.max_seq_length or arguments.max_position_embeddings or DEFAULT_MAX_LENGTH,
        do_lower_case=arguments.do_lower_case,
    )


def train_classifier(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    *,
    console: Console | None = None,
) -> ClassificationResult:
    """Trains, evaluates and predicts, as `training.do_train`, `do_eval` and `do_predict` say, with the stock Trainer.

    `training.output_dir` then holds the checkpoint (weights, code, tokenizer, label names, README), `results.json` and,
    with `do_predict`, `predictions.jsonl`; while training, `checkpoint-<step>` folders to resume from.

    Args:
        data: which text and labels.
        model: which model.
        training: transformers' TrainingArguments and a few more.
        console: where the summary is printed. None: standard output.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    started = time.time()
    setup = set_up(data, model, training)
    if training.process_index == 0:
        setup.summary.show(console)
    trainer = make_trainer(setup)
    metrics: dict[str, float] = {}
    with checkpoints.disk_errors(str(training.output_dir)):
        if training.do_train:
            metrics |= run_trainer(trainer, training)
        if training.do_eval:
            metrics |= trainer.evaluate(setup.encoded["validation"])
        logits = None
        if training.do_predict:
            output = trainer.predict(cast(Any, setup.encoded["test"]), metric_key_prefix="test")
            metrics |= output.metrics or {}
            logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
        history = trainer.state.log_history
        save_run(setup, metrics, history, logits, time.time() - started, trainer.save_model)
    return ClassificationResult(
        Path(str(training.output_dir)),
        metrics,
        setup.summary,
        history,
        model=setup.model,
        tokenizer=setup.tokenizer,
    )


def make_trainer(setup: Setup) -> Trainer:
    """The stock Trainer for a setup."""
    training = setup.training
    trainer = Trainer(
        model=setup.model,
        args=training,
        train_dataset=cast(Any, setup.encoded.get("train")),
        eval_dataset=cast(Any, setup.encoded.get("validation")),
        processing_class=setup.tokenizer,
        data_collator=setup.collator,
        compute_loss_func=setup.loss,
        compute_metrics=setup.compute_metrics,
    )
    trainer.add_callback(EpochMetrics(trainer, setup))
    add_schedule_and_stopping(trainer, training)
    return trainer


def add_schedule_and_stopping(trainer: Trainer, training: RunArguments) -> None:
    """What the options add to a stock Trainer: early stopping, the one-cycle schedule.

    Raises:
        UserError: early stopping without validation data.
    """
    trainer.add_callback(EvaluationLeavesNoTrace())
    if training.early_stopping_patience is not None:
        if trainer.eval_dataset is None:
            raise UserError("--early_stopping_patience needs --do_eval and validation data.")
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience, training.early_stopping_threshold))
    if training.one_cycle and training.do_train:
        trainer.lr_scheduler = cast(
            Any, one_cycle_schedule(trainer.create_optimizer(), training, len(trainer.get_train_dataloader()))
        )


def one_cycle_schedule(
    optimizer: torch.optim.Optimizer, training: RunArguments, batches_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """PyTorch's one-cycle policy (Smith and Topin 2017, arXiv 1708.07120), its rise as long as the warm-up."""
    steps = training.max_steps
    if steps <= 0:
        updates = math.ceil(batches_per_epoch / training.gradient_accumulation_steps)
        steps = math.ceil(training.num_train_epochs * updates)
    rise = training.warmup_steps if training.warmup_steps < 1 else training.warmup_steps / steps
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=training.learning_rate,  # type: ignore[arg-type]
        # One step more than is taken: the Trainer advances the schedule after the last one too.
        total_steps=steps + 1,
        pct_start=min(max(rise, 1 / steps), 1.0),
    )


def run_trainer(trainer: Trainer, training: RunArguments) -> dict[str, float]:
    """Trains, from `training.resume_from_checkpoint` where that is set; on Ctrl-C a checkpoint is saved first.

    Raises:
        Interrupted: Ctrl-C; the message says how to go on.
    """
    if training.overwrite_output_dir and training.resume_from_checkpoint is None:
        with training.main_process_first(desc="removing the earlier run"):
            if training.process_index == 0:
                checkpoints.remove_earlier_run(str(training.output_dir))
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    try:
        with stop.listening(alone=training.world_size == 1):
            output = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_what_is_left(training)) from interrupt
    if stop.pressed:
        raise Interrupted(_what_is_left(training))
    return output.metrics


def _what_is_left(training: RunArguments) -> str:
    last = checkpoints.last_complete_checkpoint(str(training.output_dir))
    if last is None:
        return "no checkpoint had been saved."
    return f"the newest checkpoint is {str(last)!r}. Go on with --resume_from_checkpoint true."


class StopOnInterrupt(TrainerCallback):
    """On Ctrl-C, finishes the step, saves a checkpoint and stops; on the second, stops at once."""

    def __init__(self) -> None:
        self.pressed = False
        self._previous: Any = None

    def listening(self, alone: bool) -> "StopOnInterrupt":
        """A context in which Ctrl-C is heard. With several processes each would stop at another step: left alone."""
        self._listen = alone and threading.current_thread() is threading.main_thread()
        return self

    def __enter__(self) -> "StopOnInterrupt":
        if self._listen:
            self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listen:
            signal.signal(signal.SIGINT, self._previous)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
        logger.warning("Finishing this step and saving a checkpoint. Ctrl-C again stops at once.")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Asks the Trainer to save and stop."""
        if self.pressed:
            control.should_save = True
            control.should_training_stop = True
        return control


class EvaluationLeavesNoTrace(TrainerCallback):
    """Gives torch's random numbers back after an evaluation, whose data loader draws one.

    Otherwise a checkpoint saved before the evaluation of its step resumes with other dropout than the undisturbed run.
    """

    def __init__(self) -> None:
        self._state: Any = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keeps the state of the step."""
        self._state = torch.get_rng_state()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restores it."""
        if self._state is not None:
            torch.set_rng_state(self._state)


class EpochMetrics(TrainerCallback):
    """Logs `train_...` metrics of each epoch, from the predictions made while training (dropout on, weights moving)."""

    def __init__(self, trainer: Trainer, setup: Setup) -> None:
        self.trainer = trainer
        self.setup = setup

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Logs the metrics of the epoch's predictions, of all processes."""
        wanted = control.should_log
        metrics = epoch_metrics(self.setup)
        if metrics:
            self.trainer.log(metrics)
            # Logging answers the Trainer's own request to log, which still has the loss to report.
            control.should_log = wanted


def epoch_metrics(setup: Setup) -> dict[str, float]:
    """`train_...` metrics of the predictions since the last call, of all processes; empty if there were none."""
    seen = setup.loss.take_seen()
    gathered: list[Any] = gather_object([seen]) if setup.training.world_size > 1 else [seen]
    parts = [part for part in gathered if part is not None]
    if not parts:
        return {}
    logits, labels = (np.concatenate([part[index].numpy() for part in parts]) for index in range(2))
    found = setup.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))
    return {f"train_{name}": value for name, value in found.items()}


def save_run(
    setup: Setup,
    metrics: dict[str, float],
    history: list[dict[str, Any]],
    test_logits: np.ndarray | None,
    seconds: float,
    save_model: Callable[[str], None],
) -> None:
    """Writes the checkpoint with its README, the results and the predictions: all of them or, if that fails, none.

    All processes call it; `save_model(folder)` saves weights, code and tokenizer.
    """
    training = setup.training
    is_main = training.process_index == 0
    metrics = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    with checkpoints.replaced_together(str(training.output_dir), is_main) as folder:
        if training.do_train:
            save_model(str(folder))
        if not is_main:
            return
        if training.do_train:
            checkpoints.write_text(folder / "README.md", _card(setup, metrics))
        if test_logits is not None:
            checkpoints.write_text(folder / checkpoints.PREDICTIONS_NAME, _predictions(test_logits, setup.labels))
        checkpoints.write_json(
            folder / checkpoints.RESULTS_NAME,
            {
                "metrics": metrics,
                "problem_type": setup.labels.problem_type,
                "labels": list(setup.labels.names),
                "summary": setup.summary.to_dict(),
                "history": history,
                "seconds": round(seconds, 1),
                "processes": training.world_size,
                "versions": versions(),
                "arguments": {
                    "data": as_dict(setup.data),
                    "model": as_dict(setup.arguments),
                    "training": as_dict(training),
                },
            },
        )


def dataset_name(data: DataArguments) -> str:
    """What the data is called in reports: its Hub name, or the name of the folder or file, without the path."""
    name = data.dataset_name or data.train_file or data.validation_file or data.test_file or "unknown"
    return Path(name).name if Path(name).exists() else name


def hub_name(name: str | None) -> str | None:
    """A model's name for a model card: None for a folder of this machine, which means nothing elsewhere."""
    return None if name is None or Path(name).exists() else name


def _card(setup: Setup, metrics: dict[str, float]) -> str:
    training = setup.training
    shown = {
        "learning_rate": training.learning_rate,
        "num_train_epochs": training.num_train_epochs if training.max_steps <= 0 else None,
        "max_steps": training.max_steps if training.max_steps > 0 else None,
        "batch size": training.train_batch_size * training.world_size * training.gradient_accumulation_steps,
        "schedule": "one-cycle" if training.one_cycle else str(getattr(training.lr_scheduler_type, "value", "")),
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "class_weights": training.class_weights,
        "max_seq_length": setup.summary.max_length,
        "seed": training.seed,
        "parameters": f"{setup.summary.parameters:,}, positional {setup.summary.positional_parameters:,}",
    }
    return model_card(
        name=display_name(str(training.output_dir)),
        model=setup.model,
        labels=setup.labels,
        columns=setup.columns,
        dataset=dataset_name(setup.data),
        metrics=metrics,
        hyperparameters={name: value for name, value in shown.items() if value is not None},
        license=training.license,
        base_model=hub_name(setup.arguments.model_name_or_path),
    )


def _predictions(logits: np.ndarray, labels: Labels) -> str:
    """One JSON line per test example: its label or labels with probabilities, or its number."""
    predicted = predictions_from_logits(logits, labels.problem_type)
    if labels.problem_type == "regression":
        return "".join(
            json.dumps({"index": row, "prediction": float(value)}) + "\n" for row, value in enumerate(predicted)
        )
    lines = []
    for row, (choice, shares) in enumerate(
        zip(predicted, probabilities_from_logits(logits, labels.problem_type), strict=True)
    ):
        several = labels.problem_type == "multi_label_classification"
        label: Any = (
            [name for name, chosen in zip(labels.names, choice, strict=True) if chosen]
            if several
            else labels.names[int(choice)]
        )
        probabilities = {name: round(float(share), 6) for name, share in zip(labels.names, shares, strict=True)}
        lines.append(
            json.dumps({"index": row, "label": label, "probabilities": probabilities}, ensure_ascii=False) + "\n"
        )
    return "".join(lines)
