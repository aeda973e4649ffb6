"""Training a token classifier: a label for each word, such as its part of speech or the entity it belongs to."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from rich.console import Console
from transformers import DataCollatorForTokenClassification

from ..data.labels import TOKENS, Labels
from ..data.options import DataArguments
from ..data.prepared import Part, Use
from ..data.preparing import prepare
from ..errors import UserError
from ..options import refuse_given
from ..training.arguments import ClassificationTrainingArguments, ModelArguments
from ..training.baseline import word_label_answers
from ..training.loop import run_training
from ..training.metrics import MacroF1
from ..training.run import Setup, TrainingResult
from ..training.word_metrics import WordMetrics, answers_and_losses, uses_bio_tags, word_scores
from .loading import WORD_CLASSIFIER
from .prediction import label_words
from .start import begin, choose_metric, make_setup, make_tokenizer


def train_tokens(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any],
    console: Console | None = None,
) -> TrainingResult:
    """Trains, evaluates and predicts as `train_classifier` does, with a list of words and a list of labels in each row.

    The first piece of a word carries its label. Metrics are of words: accuracy and macro F1, and where labels are
    marked as B-, I- and O also precision, recall and F1 of whole spans (`span_f1`), micro-averaged as conlleval does.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    return run_training(partial(_set_up, data, model, training, splits), training, console)


def _set_up(
    data: DataArguments,
    arguments: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any],
) -> Setup:
    why = "is for labels of texts, --task tokens labels words"
    refuse_given(data, ("text_column_delimiter", "label_delimiter"), why)
    refuse_given(training, ("class_weights", "label_smoothing_factor"), why)
    config = begin(arguments, training, WORD_CLASSIFIER)
    training.do_predict = training.do_predict or "test" in splits
    id2label = {} if training.do_train else config.id2label
    trained = [id2label[number] for number in sorted(id2label)] or None
    use = Use(training.do_train, training.do_eval, training.do_predict, label_names=trained, problem_type=TOKENS)
    prepared = prepare(splits, data, use)
    tokenizer = make_tokenizer(arguments, training.resume_from_checkpoint, prepared, data.max_seq_length)
    if not tokenizer.is_fast:
        raise UserError("The tokenizer doesn't say which characters a token has. Name a fast one: --tokenizer-name.")
    names = cast(Labels, prepared.labels).names
    metrics, best, metric = ["accuracy", "macro_f1"], MacroF1.key, "accuracy"
    if uses_bio_tags(names):
        metrics += ["span_precision", "span_recall", "span_f1"]
        best = metric = "span_f1"
    choose_metric(training, metrics, best)
    setup = make_setup(
        prepared,
        data,
        arguments,
        training,
        config,
        tokenizer,
        collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=WordMetrics(names),
        metric=metric,
        reduce_logits=answers_and_losses,
    )
    if training.do_predict:
        setup.answer_test = partial(_answers, setup, prepared.splits["test"])
    if training.baseline and training.do_train:
        setup.baselines = _baselines(prepared.splits["train"], setup.examples, names)
    return setup


def _answers(setup: Setup, test: Part) -> list[dict[str, Any]]:
    """The labels of each test row."""
    return [{"labels": labels} for _, labels in label_words(setup.model, setup.tokenizer, test.texts[0])]


def _baselines(train: Part, examples: Mapping[str, Part], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Metrics of `word_label_answers` on validation and test words."""
    baselines: dict[str, dict[str, float]] = {}
    for prefix, part in examples.items():
        trained, labels = (_label_names(rows.labels or (), names) for rows in (train, part))
        for name, answers in word_label_answers(train.texts[0], trained, part.texts[0]).items():
            scores = word_scores(names, labels, answers)
            baselines.setdefault(name, {}).update({f"{prefix}_{key}": value for key, value in scores.items()})
    return baselines


def _label_names(rows: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[str]]:
    return [[names[number] for number in row] for row in rows]
