"""Training a token classifier: a label for each word, such as its part of speech or the entity it belongs to."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.console import Console
from transformers import DataCollatorForTokenClassification

from ..data.labels import TOKENS, Labels
from ..data.options import DataArguments
from ..data.prepared import PreparedData, Use
from ..errors import UserError
from ..options import refuse_given
from ..training.arguments import ClassificationTrainingArguments, ModelArguments
from ..training.assess import assess_words
from ..training.baseline import word_label_answers
from ..training.metrics import MacroF1
from ..training.progress import main_console, without_bars
from ..training.run import Run, TrainingResult
from ..training.trainer import RunTrainer, add_callbacks_and_schedule, carry_out
from ..training.word_metrics import WordMetrics, answers_and_losses, marks_spans, word_scores
from .prediction import label_words
from .start import Start, check_best_metric, introduce, read_data


@without_bars()
def train_tokens(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    *,
    splits: Mapping[str, Any] | None = None,
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
    console = main_console(training, console)
    run, encoded, prepared = _set_up(data, model, training, splits)
    names = cast(Labels, prepared.labels).names
    headline = "span_f1" if marks_spans(names) else "accuracy"
    baselines = _baselines(prepared) if training.baseline and training.do_train else {}
    introduce(run, console, baselines, headline)
    measure = WordMetrics(names)
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
            if is_wanted and prepared.splits[split].labels is not None:
                metrics |= trainer.evaluate(cast(Any, encoded[split]), metric_key_prefix=prefix)
                run.assessment = assess_words(
                    split,
                    *measure.last,
                    names,
                    headline,
                    metrics,
                    baselines,
                    history=learned,
                    **run.start,
                )
        if not training.do_predict:
            return None
        answers = label_words(run.model, run.tokenizer, prepared.splits["test"].texts[0])
        numbered = zip(prepared.splits["test"].rows, answers, strict=True)
        lines = ({"index": row, "labels": answer} for row, (_, answer) in numbered)
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    return carry_out(trainer, score, started, console)


def _set_up(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any] | None,
) -> tuple[Run, Mapping[str, Any], PreparedData]:
    why = "is for labels of texts, --task tokens labels words"
    refuse_given(data, ("streaming", "text_column_delimiter", "label_delimiter"), why)
    refuse_given(training, ("class_weights", "label_smoothing_factor", "search", "compare_none"), why)
    start = Start.check(data, model, training, "ForTokenClassification")
    splits = read_data(data, model, training) if splits is None else splits
    id2label = {} if training.do_train else start.config.id2label
    trained = [id2label[number] for number in sorted(id2label)] or None
    test = training.do_predict or "test" in splits
    use = Use(training.do_train, training.do_eval, test, label_names=trained, problem_type=TOKENS)
    prepared = start.prepare(splits, use)
    training.do_predict = test
    tokenizer = start.make_tokenizer(prepared)
    names = cast(Labels, prepared.labels).names
    if not tokenizer.is_fast:
        raise UserError("The tokenizer doesn't say which characters a token has. Name a fast one: --tokenizer-name.")
    span_names = ["span_precision", "span_recall", "span_f1"] if marks_spans(names) else []
    if training.chooses_metric and training.metric_for_best_model:
        training.metric_for_best_model, training.greater_is_better = "span_f1" if span_names else MacroF1.key, True
    check_best_metric(training, ["accuracy", "macro_f1", *span_names])
    return *start.make_run(prepared, tokenizer), prepared


def _baselines(prepared: PreparedData) -> dict[str, dict[str, float]]:
    """Metrics of `word_label_answers` on validation and test words."""
    names = cast(Labels, prepared.labels).names
    found: dict[str, dict[str, float]] = {}
    train = prepared.splits["train"]
    for split, prefix in (("validation", "eval"), ("test", "test")):
        asked = prepared.splits.get(split)
        if asked is not None and train.labels is not None and asked.labels is not None:
            known, right = (_named(part.labels or (), names) for part in (train, asked))
            for name, said in word_label_answers(train.texts[0], known, asked.texts[0]).items():
                scores = {f"{prefix}_{key}": value for key, value in word_scores(names, right, said).items()}
                found.setdefault(name, {}).update(scores)
    return found


def _named(rows: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[str]]:
    return [[names[number] for number in row] for row in rows]
