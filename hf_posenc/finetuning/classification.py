"""Training a text classifier (or regressor): from options to a checkpoint, through the stock Trainer."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console
from transformers import DataCollatorWithPadding

from ..data.columns import remember_columns, remembered_columns
from ..data.options import DataArguments
from ..data.prepared import Part, PreparedData, Use
from ..data.preparing import prepare
from ..training.arguments import ModelArguments, RunArguments
from ..training.baseline import baseline_scores
from ..training.loop import run_training
from ..training.losses import LossAndMetrics, make_loss
from ..training.metrics import METRICS, MacroF1
from ..training.run import Setup, TrainingResult
from .start import begin, choose_metric, make_setup, make_tokenizer, read_data, texts_trained_on


def set_up(
    data: DataArguments,
    arguments: ModelArguments,
    training: RunArguments,
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
    config = begin(arguments, training)
    splits = read_data(data, arguments, training) if splits is None else splits
    prepared = prepare(splits, data, _use(training, arguments.model_name_or_path, config))
    training.do_predict = "test" in prepared.splits
    tokenizer = make_tokenizer(arguments, training.resume_from_checkpoint, prepared, data.max_seq_length)
    labels = prepared.labels
    metrics = METRICS[labels.problem_type]
    choose_metric(training, [metric.key for metric in metrics], MacroF1.key if labels.names else None)
    train = prepared.splits.get("train")
    loss = make_loss(labels, None if train is None else train.labels, training)
    setup = make_setup(
        prepared,
        data,
        arguments,
        training,
        config,
        tokenizer,
        collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training.fp16 else None),
        loss=loss,
        compute_metrics=LossAndMetrics(loss),
        metric=metrics[0].key,
    )
    loss.label_scale = getattr(setup.model.config, "label_scale", 1.0)
    if training.do_train:
        remember_columns(setup.model.config, prepared.columns)
        if training.baseline and setup.examples and training.process_index == 0:
            setup.baselines = _baselines(prepared, setup.examples)
    return setup


def _use(training: RunArguments, checkpoint: str | None, config: Any) -> Use:
    """What the options ask of the data, and what a trained model knows of it."""
    return Use(
        train=training.do_train,
        validate=training.do_eval,
        test=training.do_predict,
        score_test=training.score_test,
        known=None if training.do_train else remembered_columns(config),
        label_names=trained_labels(config),
        problem_type=None if config is None else config.problem_type,
        trained_on=frozenset() if training.do_train else texts_trained_on(checkpoint),
    )


def trained_labels(config: Any) -> list[str] | None:
    """The label names of a trained classifier."""
    if config is None or not config.id2label:
        return None
    return [config.id2label[number] for number in sorted(config.id2label)]


def _baselines(prepared: PreparedData, examples: Mapping[str, Part]) -> dict[str, dict[str, float]]:
    """Scores of simpler models."""
    train = prepared.splits["train"]
    tests = {prefix: (part.texts, part.labels or []) for prefix, part in examples.items()}
    return baseline_scores((train.texts, train.labels or []), tests, prepared.labels.problem_type)


def train_classifier(
    data: DataArguments,
    model: ModelArguments,
    training: RunArguments,
    *,
    splits: Mapping[str, Any] | None = None,
    console: Console | None = None,
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

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    return run_training(partial(set_up, data, model, training, splits), training, console)
