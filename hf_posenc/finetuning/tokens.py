"""Training a token classifier: a label for each word, such as its part of speech or the entity it belongs to."""

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from datasets import DatasetDict
from rich.console import Console
from transformers import DataCollatorForTokenClassification

from ..data.options import DataArguments
from ..data.splits import load_splits
from ..data.words import Words
from ..errors import UserError
from ..training.arguments import ClassificationTrainingArguments, ModelArguments
from ..training.assess import assess_words
from ..training.baseline import word_label_answers
from ..training.progress import without_bars
from ..training.run import Run, TrainingResult
from ..training.trainer import RunTrainer, add_callbacks_and_schedule, carry_out
from ..training.word_metrics import WordMetrics, answers_and_losses, marks_spans, word_scores
from .prediction import label_words
from .start import check_best_metric, introduce, make_model_and_encode, make_tokenizer, prepare_start


@without_bars()
def train_tokens(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    *,
    rows: DatasetDict | None = None,
    console: Console | None = None,
) -> TrainingResult:
    """Trains, evaluates and predicts as `train_classifier` does, with a list of words and a list of labels in each row.

    The first piece of a word carries its label. Metrics are of words: accuracy and macro F1, and where labels are
    marked as B-, I- and O also precision, recall and F1 of whole spans (`span_f1`), micro-averaged as conlleval does.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    started = time.time()
    console = console or Console()
    run, encoded, words = _set_up(data, model, training, rows)
    headline = "span_f1" if marks_spans(words.labels.names) else "accuracy"
    baselines = _baselines(words) if training.baseline and training.do_train else {}
    introduce(run, console, baselines, headline)
    measure = WordMetrics(words.labels.names)
    trainer = RunTrainer(
        run,
        encoded,
        console,
        data_collator=DataCollatorForTokenClassification(run.tokenizer),
        compute_metrics=measure,
        preprocess_logits_for_metrics=answers_and_losses,
    )
    add_callbacks_and_schedule(trainer)

    def score(metrics: dict[str, float]) -> str | None:
        learned = list(trainer.state.log_history)
        scored = (("validation", "eval", training.do_eval), ("test", "test", training.do_predict))
        for split, prefix, is_wanted in scored:
            if is_wanted and words.read[split][1] is not None:
                metrics |= trainer.evaluate(cast(Any, encoded[split]), metric_key_prefix=prefix)
                run.assessment = assess_words(
                    split,
                    *measure.last,
                    words.labels.names,
                    headline,
                    metrics,
                    baselines,
                    history=learned,
                    **run.start,
                )
        if not training.do_predict:
            return None
        answers = label_words(run.model, run.tokenizer, words.read["test"][0])
        lines = ({"index": row, "labels": labels} for row, (_, labels) in enumerate(answers))
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    return carry_out(trainer, score, started, console)


def _set_up(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    rows: DatasetDict | None,
) -> tuple[Run, Mapping[str, Any], Words]:
    _check_options(data, training)
    resume_from, config = prepare_start(model, training, "ForTokenClassification")
    with training.main_process_first(desc="reading the data"):
        words = Words(load_splits(data, model.token, model.cache_dir) if rows is None else rows, data, training)
        trained = None if training.do_train else [config.id2label[number] for number in sorted(config.id2label)]
        labels = words.number_labels(trained)
        words.choose_rows()
        tokenizer = make_tokenizer(model, data, words.texts(), resume_from)
    if not tokenizer.is_fast:
        raise UserError("The tokenizer doesn't say which characters a token has. Name a fast one: --tokenizer_name.")
    span_names = ["span_precision", "span_recall", "span_f1"] if marks_spans(labels.names) else []
    check_best_metric(training, ["accuracy", "macro_f1", *span_names])
    return *make_model_and_encode(words, model, config, tokenizer, resume_from), words


def _check_options(data: DataArguments, training: ClassificationTrainingArguments) -> None:
    for given, option in (
        (data.streaming, "--streaming"),
        (training.class_weights, "--class_weights"),
        (training.label_smoothing_factor, "--label_smoothing_factor"),
        (data.text_column_delimiter, "--text_column_delimiter"),
        (data.label_delimiter, "--label_delimiter"),
    ):
        if given:
            raise UserError(f"{option} {given} is for labels of texts, --task tokens labels words. Leave it out.")


def _baselines(data: Words) -> dict[str, dict[str, float]]:
    """Metrics of `word_label_answers` on validation and test words."""
    (words, tags), names = data.read["train"], data.labels.names
    found: dict[str, dict[str, float]] = {}
    for split, prefix in (("validation", "eval"), ("test", "test")):
        asked, right = data.read.get(split, ((), None))
        if tags is not None and right is not None:
            for name, said in word_label_answers(words, tags, asked).items():
                scores = {f"{prefix}_{key}": value for key, value in word_scores(names, right, said).items()}
                found.setdefault(name, {}).update(scores)
    return found
