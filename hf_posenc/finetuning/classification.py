"""Training a text classifier (or regressor): from options to a checkpoint, through the stock Trainer."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from rich.console import Console
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from ..data.columns import remember_columns, remembered_columns
from ..data.labels import Labels
from ..data.options import DataArguments
from ..data.passes import Passes
from ..data.prepared import Part, PreparedData, Use
from ..training.arguments import ClassificationTrainingArguments, ModelArguments
from ..training.assess import assess
from ..training.baseline import MOST_CHARACTERS, MOST_ROWS, baseline_scores
from ..training.losses import ClassificationLoss, make_loss
from ..training.metrics import METRICS, MacroF1, compute_metrics_for, metrics_from_counts
from ..training.progress import main_console, without_bars, working
from ..training.run import Run, TrainingResult
from ..training.trainer import RunTrainer, add_callbacks_and_schedule, carry_out
from .start import Start, check_best_metric, check_streaming, introduce

_PREFIXES = {"validation": "eval", "test": "test"}
"""Prefixes of the metrics of each scored split."""


@dataclass
class Setup(Run):
    """All that a training loop needs; `set_up` makes it from the options."""

    training: ClassificationTrainingArguments
    labels: Labels
    encoded: Mapping[str, Dataset | Passes]
    """The splits as token ids and, where there are labels, `labels`; with `data.streaming` the training split has
    no end."""
    collator: DataCollatorWithPadding
    loss: ClassificationLoss
    compute_metrics: "LossAndMetrics"
    examples: dict[str, Part]
    """The rows of the scored splits, by the prefix of their metrics: `eval`, `test`."""
    baselines: dict[str, dict[str, float]]
    """Metrics of simpler models on these examples."""

    def assess(self, prefix: str, metrics: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> None:
        """Sets `assessment`, from the last evaluation, if its examples have labels.

        Args:
            prefix: of their metrics, `eval` or `test`.
            metrics: what was measured.
            history: what was logged.
        """
        if prefix not in self.examples or self.compute_metrics.last is None:
            return
        logits, labels = self.compute_metrics.last
        self.assessment = assess(
            split=next(split for split, own in _PREFIXES.items() if own == prefix),
            logits=logits,
            labels=labels,
            texts=self.examples[prefix].texts,
            rows=self.examples[prefix].places,
            names=self.labels.names,
            problem_type=self.labels.problem_type,
            metrics=metrics,
            baselines=self.baselines,
            history=history,
            errors_shown=self.training.errors_shown,
            **self.start,
        )


def set_up(
    data: DataArguments,
    arguments: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any] | None = None,
) -> Setup:
    """Reads the data, numbers the labels, makes tokenizer, model, loss and metrics. All checks come before training.

    Args:
        data: which text and labels.
        arguments: which model.
        training: transformers' TrainingArguments and a few more.
        splits: what `read_splits` gave, if it has been read; `data.dataset_name` is then only its name.

    Raises:
        UserError: something in the options or the data is wrong.
    """
    check_streaming(data, training)
    start = Start.check(data, arguments, training, "ForSequenceClassification")
    prepared = start.prepare(splits, _use_of(start))
    training.do_predict = "test" in prepared.splits
    tokenizer = start.make_tokenizer(prepared)
    labels = cast(Labels, prepared.labels)
    if training.chooses_metric and training.metric_for_best_model and labels.names:
        training.metric_for_best_model, training.greater_is_better = MacroF1.key, True
    check_best_metric(training, [metric.key for metric in METRICS[labels.problem_type]])
    train = prepared.splits.get("train")
    loss = make_loss(labels, None if train is None else train.labels, training)
    run, encoded = start.make_run(prepared, tokenizer)
    loss.label_std = getattr(run.model.config, "label_std", 1.0)
    if training.do_train:
        remember_columns(run.model.config, prepared.columns)
    scored = {prefix: prepared.splits[split] for split, prefix in _PREFIXES.items() if split in prepared.splits}
    examples = {prefix: part for prefix, part in scored.items() if part.labels is not None}
    return Setup(
        **vars(run),
        encoded=encoded,
        collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training.fp16 else None),
        loss=loss,
        compute_metrics=LossAndMetrics(loss, labels.problem_type),
        examples=examples,
        baselines=_baselines(training, prepared, examples),
    )


def _use_of(start: Start) -> Use:
    """What the options ask of the data, and what a trained model knows of it."""
    training, config = start.training, start.config
    return Use(
        train=training.do_train,
        validate=training.do_eval,
        test=training.do_predict,
        score_test=training.score_test,
        known=None if training.do_train else remembered_columns(config),
        label_names=_trained_labels(config),
        problem_type=None if config is None else config.problem_type,
        trained_on=start.texts_trained_on(),
    )


class LossAndMetrics:
    """`compute_metrics` of the Trainer: `loss` and the metrics of the task, each example counting once.

    The Trainer's own `eval_loss` averages over batches, which differs if batches differ in size or if examples are
    repeated to fill the last one.
    """

    def __init__(self, loss: ClassificationLoss, problem_type: str) -> None:
        self.loss = loss
        self.metrics = compute_metrics_for(problem_type)
        self.last: tuple[np.ndarray, np.ndarray] | None = None
        """Logits and labels of the last call."""

    @torch.no_grad()
    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """The numbers of one evaluation."""
        found = prediction.predictions
        self.last = np.asarray(found[0] if isinstance(found, tuple) else found), np.asarray(prediction.label_ids)
        logits, labels = map(torch.from_numpy, self.last)
        return {"loss": self.loss((logits.double(),), labels).item(), **self.metrics(prediction)}


def _baselines(
    training: ClassificationTrainingArguments, prepared: PreparedData, examples: Mapping[str, Part]
) -> dict[str, dict[str, float]]:
    """Scores of simpler models; none without training."""
    if not (training.baseline and training.do_train and examples) or training.process_index != 0:
        return {}
    train, streamed, labels = prepared.splits.get("train"), prepared.streamed, cast(Labels, prepared.labels)
    if streamed is not None:
        train = streamed.first(MOST_ROWS, MOST_CHARACTERS)
    texts, numbers = cast(Part, train).texts, cast(Part, train).labels or []
    tests = {prefix: (part.texts, part.labels or []) for prefix, part in examples.items()}
    return baseline_scores((texts, numbers), tests, labels.problem_type)


def _trained_labels(config: Any) -> list[str] | None:
    """The label names of a trained classifier; None if they are placeholders."""
    if config is None or not config.id2label:
        return None
    names = [config.id2label[number] for number in sorted(config.id2label)]
    return None if all(str(name).startswith("LABEL_") for name in names) else names


@without_bars()
def train_classifier(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    *,
    splits: Mapping[str, Any] | None = None,
    console: Console | None = None,
    controls: Mapping[str, dict[str, float]] | None = None,
    search: dict[str, Any] | None = None,
) -> TrainingResult:
    """Trains, evaluates and predicts, as `training.do_train`, `do_eval` and `do_predict` say, with the stock Trainer.

    `training.output_dir` then holds the checkpoint (weights, code, tokenizer, label names, README), `results.json` and,
    with `do_predict`, `predictions.jsonl`; while training, and with `keep_checkpoints` afterwards,
    `checkpoint-<step>` folders to resume from. A run that replaces another takes its place when it ends. Until then, or
    if it fails, the other's files stay as they were, and its checkpoints are in `.earlier`.

    Args:
        data: which text and labels.
        model: which model.
        training: transformers' TrainingArguments and a few more.
        splits: see `set_up`.
        console: where the summary is printed. None: standard output.
        controls: metrics of other models on the same data, by name, to set beside the baselines' (`none`).
        search: what `hf_posenc.finetuning.search` tried before, for `results.json`.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    started = time.time()
    console = main_console(training, console)
    with working("Preparing: data, tokenizer, model, what is to be beaten", console):
        setup = set_up(data, model, training, splits)
    setup.baselines |= controls or {}
    setup.search = search
    introduce(setup, console, setup.baselines, METRICS[setup.labels.problem_type][0].key)
    trainer = make_trainer(setup, console)

    def score(metrics: dict[str, float]) -> np.ndarray | None:
        learned = list(trainer.state.log_history)  # without the scores of the weights that were kept
        if training.do_eval:
            metrics |= trainer.evaluate(cast(Any, setup.encoded["validation"]))
            setup.assess("eval", metrics, learned)
        if not training.do_predict:
            return None
        output = trainer.predict(cast(Any, setup.encoded["test"]), metric_key_prefix="test")
        metrics |= output.metrics or {}
        setup.assess("test", metrics, learned)
        return output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions

    return carry_out(trainer, score, started, console)


def make_trainer(setup: Setup, console: Console | None = None) -> RunTrainer:
    """The Trainer of a setup."""
    trainer = RunTrainer(
        setup,
        setup.encoded,
        console,
        data_collator=setup.collator,
        compute_loss_func=setup.loss,
        compute_metrics=setup.compute_metrics,
    )
    trainer.add_callback(EpochMetrics(trainer, setup))
    add_callbacks_and_schedule(trainer)
    return trainer


class EpochMetrics(TrainerCallback):
    """Logs `train_...` metrics of each epoch, from the predictions made while training (dropout on, weights moving)."""

    def __init__(self, trainer: Trainer, setup: Setup) -> None:
        self.trainer = trainer
        self.setup = setup

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Logs the metrics since the last evaluation of a stream, which has no epochs."""
        if control.should_evaluate and not isinstance(self.setup.encoded["train"], Dataset):
            self._log(control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Logs the metrics of all processes' predictions since the last evaluation."""
        if round(state.epoch or 0) % args.epochs_together == 0:  # else evaluated together with the epochs that follow
            self._log(control)

    def _log(self, control: TrainerControl) -> None:
        wanted = control.should_log
        metrics = epoch_metrics(self.setup)
        if metrics:
            self.trainer.log(metrics)
            # Logging answers the Trainer's own request to log, which still has the loss to report.
            control.should_log = wanted


def epoch_metrics(setup: Setup) -> dict[str, float]:
    """`train_...` metrics of the predictions since the last call, of all processes; empty if there were none."""
    seen = setup.loss.take_counts()
    parts = gather_object([seen]) if setup.training.world_size > 1 else [seen]
    counts = [part for part in parts if part is not None]
    found = metrics_from_counts(torch.stack(counts).sum(0), setup.labels.problem_type) if counts else {}
    return {f"train_{name}": value for name, value in found.items()}
