"""Training a token classifier: a label for each word, such as its part of speech or the entity it belongs to."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import ClassLabel, Dataset, DatasetDict, List
from rich.console import Console
from sklearn.metrics import accuracy_score, f1_score
from transformers import DataCollatorForTokenClassification, EvalPrediction, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

from ..errors import UserError
from .arguments import ClassificationTrainingArguments, DataArguments, ModelArguments
from .assessment import assess_words, to_beat
from .baseline import word_label_answers
from .data.columns import Columns, require_columns
from .data.in_memory import InMemory
from .data.labels import Labels
from .data.splits import load_splits
from .model import TOKENS, check_resumed, input_length, load_config, make_model, require_head
from .prediction import label_words, word_pieces
from .progress import without_bars
from .recipe import fill_in
from .report import summarize
from .run import (
    Run,
    RunTrainer,
    TrainingResult,
    add_callbacks_and_schedule,
    check_best_metric,
    check_task,
    ending_clearly,
    finish,
    make_tokenizer,
    prepare_output_dir,
    run_trainer,
)

logger = logging.get_logger(__name__)

_WORDS = ("tokens", "words")
_TAGS = ("ner_tags", "tags", "labels", "pos_tags", "label")
IGNORED = -100
"""The label of what isn't counted: all pieces of a word but its first, and special tokens."""


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
    _check_options(data, model, training)
    resume_from = prepare_output_dir(training)
    config = load_config(model)
    if not training.do_train:
        require_head(config, str(model.model_name_or_path), "ForTokenClassification")
    with training.main_process_first(desc="reading the data"):
        found = load_splits(data, model.token, model.cache_dir) if rows is None else rows
        source = InMemory(found, data, training, _find_columns)
        columns = source.columns
        training.do_predict = training.do_predict or "test" in source.splits
        read = {split: _read(dataset, columns, split) for split, dataset in source.splits.items()}
        labels = _labels(source.splits, read, columns, config, training.do_train)
        source.choose_rows()
        read = {split: _select(read[split if split in read else "train"], rows) for split, rows in source.rows.items()}
        texts = (" ".join(words) for words in read.get("train", ([],))[0])
        tokenizer = make_tokenizer(model, data, texts, resume_from)
    if not tokenizer.is_fast:
        raise UserError("The tokenizer doesn't say which characters a token has. Name a fast one: --tokenizer_name.")
    span_names = ["span_precision", "span_recall", "span_f1"] if _marks_spans(labels.names) else []
    headline = "span_f1" if span_names else "accuracy"
    check_best_metric(training, ["accuracy", "macro_f1", *span_names])
    set_seed(training.seed)
    network = make_model(model, data, config, tokenizer, labels)
    max_length = input_length(data, network, tokenizer)
    encoded = {
        split: encode_words(words, tags, tokenizer, labels, max_length, split) for split, (words, tags) in read.items()
    }
    summary = summarize(network, labels, encoded, max_length, len(tokenizer), training.train_batch_size)
    fill_in(training, model, summary, network.config.hidden_size)
    if resume_from is not None:
        check_resumed(resume_from, network, training, data)
    run = Run(
        data=data,
        arguments=model,
        training=training,
        columns=columns,
        labels=labels,
        tokenizer=tokenizer,
        model=network,
        summary=summary,
    )
    baselines = _baselines(read, labels.names) if training.baseline and training.do_train else {}
    console = console or Console()
    if training.process_index == 0:
        run.summary.show(console)
        if "majority" in baselines:
            console.print(to_beat(baselines, headline), highlight=False)
    measure = WordMetrics(labels.names)
    trainer = RunTrainer(
        run=run,
        console=console,
        model=network,
        args=training,
        train_dataset=cast(Any, encoded.get("train")),
        eval_dataset=cast(Any, encoded.get("validation")),
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=measure,
        preprocess_logits_for_metrics=cast(Any, answers_and_losses),
    )
    add_callbacks_and_schedule(trainer, run)
    metrics: dict[str, float] = {}
    lines = None
    with ending_clearly(training, is_lora=model.lora):
        if training.do_train:
            metrics |= run_trainer(trainer, run, console)
        scored = (("validation", "eval", training.do_eval), ("test", "test", training.do_predict))
        learned = list(trainer.state.log_history)
        for split, prefix, is_wanted in scored:
            if is_wanted and read[split][1] is not None:
                metrics |= trainer.evaluate(cast(Any, encoded[split]), metric_key_prefix=prefix)
                run.assessment = assess_words(
                    split,
                    *measure.last,
                    labels.names,
                    headline,
                    metrics,
                    baselines,
                    history=learned,
                    pretrained=model.model_name_or_path is not None,
                )
        if training.do_predict:
            lines = "".join(
                json.dumps({"index": row, "labels": answer}, ensure_ascii=False) + "\n"
                for row, answer in enumerate(label_words(network, tokenizer, read["test"][0]))
            )
        if run.assessment is not None and training.process_index == 0:
            run.assessment.show(console)
        finish(trainer, metrics, lines, time.time() - started)
    return TrainingResult(
        Path(str(training.output_dir)),
        metrics,
        run.summary,
        trainer.state.log_history,
        assessment=run.assessment,
        model=network,
        tokenizer=tokenizer,
        run=run,
    )


def _check_options(data: DataArguments, model: ModelArguments, training: ClassificationTrainingArguments) -> None:
    check_task(model, training)
    for given, option in (
        (data.streaming, "--streaming"),
        (training.class_weights, "--class_weights"),
        (training.label_smoothing_factor, "--label_smoothing_factor"),
        (data.text_column_delimiter, "--text_column_delimiter"),
        (data.label_delimiter, "--label_delimiter"),
    ):
        if given:
            raise UserError(f"{option} {given} is for labels of texts, --task tokens labels words. Leave it out.")


# ---- data -----------------------------------------------------------------------------------------------------------


def _find_columns(dataset: Dataset, data: DataArguments) -> Columns:
    names = dataset.column_names
    words = data.text_column_names or next((name for name in _WORDS if name in names), _WORDS[0])
    tags = data.label_column_name or next((name for name in _TAGS if name in names), _TAGS[0])
    require_columns(dataset, [words], "--text_column_names")
    return Columns((words,), tags)


def _read(dataset: Dataset, columns: Columns, split: str) -> tuple[list[list[str]], list[list[Any]] | None]:
    """The words and labels of each row; None for labels that a test split lacks.

    Raises:
        UserError: a row has no lists, or lists of different lengths.
    """
    name = columns.text[0]
    words = list(dataset[name])
    unlabelled = columns.label not in dataset.column_names and split == "test"
    if not unlabelled:
        require_columns(dataset, [columns.label], "--label_column_name", split)
    tags: list[Any] = [None] * len(words) if unlabelled else list(dataset[columns.label])
    for row, (word_list, tag_list) in enumerate(zip(words, tags, strict=True), start=1):
        if not isinstance(word_list, list) or not all(isinstance(word, str) for word in word_list):
            raise UserError(
                f"The {split} data has {word_list!r:.60} in column {name!r}, row {row}. --task tokens needs a list of "
                'words in each row: {"tokens": ["Ada", "sang"], "tags": ["B-PER", "O"]}, as .json, .jsonl or .parquet.'
            )
        if not unlabelled and (not isinstance(tag_list, list) or len(tag_list) != len(word_list)):
            raise UserError(
                f"The {split} data has {len(word_list)} words and {tag_list!r:.60} in column {columns.label!r}, row "
                f"{row}. Give a list with one label for each word."
            )
    return words, None if unlabelled else tags


def _select(read: tuple[list[Any], list[Any] | None], rows: Sequence[int]) -> tuple[list[Any], list[Any] | None]:
    words, tags = read
    return [words[row] for row in rows], None if tags is None else [tags[row] for row in rows]


def _labels(
    splits: Mapping[str, Dataset], read: Mapping[str, Any], columns: Columns, config: Any, is_training: bool
) -> Labels:
    """The labels of the training words, or of the model that is evaluated; turns labels into names.

    Raises:
        UserError: a label is missing, or unknown in training.
    """
    names: Sequence[str] | None = None
    for split, dataset in splits.items():
        tags = read[split][1]
        feature: Any = dataset.features.get(columns.label)
        inner = feature.feature if isinstance(feature, List) else None
        for row in tags or ():
            for place, tag in enumerate(row):
                if tag is None:
                    raise UserError(f"The {split} data has a word without a label: {row!r:.60}. Give each word one.")
                row[place] = inner.names[tag] if isinstance(inner, ClassLabel) else str(tag)
        if names is None and isinstance(inner, ClassLabel):
            names = inner.names
    if not is_training:
        names = [config.id2label[number] for number in sorted(config.id2label)]
    elif names is None:
        seen = {tag for row in read["train"][1] for tag in row}
        names = sorted(seen, key=int) if all(name.isdecimal() for name in seen) else sorted(seen)
    for split, (_, tags) in read.items():
        if unknown := sorted({tag for row in tags or () for tag in row} - set(names)):
            raise UserError(
                f"The {split} data has the label {unknown[0]!r}, which training never saw. It knows "
                f"{', '.join(names[:10])}."
            )
    if len(names) < 2:
        raise UserError(f"All words have the label {', '.join(names)!r}. Give examples of at least two labels.")
    return Labels(TOKENS, tuple(names))


def encode_words(
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str]] | None,
    tokenizer: PreTrainedTokenizerBase,
    labels: Labels,
    max_length: int,
    split: str,
) -> Dataset:
    """Token numbers, and with `tags` a label for the first piece of each word, -100 elsewhere."""
    numbers = labels.numbers()
    encoded: dict[str, list[Any]] = {}
    cut = 0
    for row, sentence in enumerate(words):
        tokens, firsts = word_pieces(tokenizer, sentence, max_length)
        for name in tokens:
            encoded.setdefault(name, []).append(tokens[name])
        if tags is not None:
            aligned = [IGNORED] * len(tokens["input_ids"])
            for word, place in firsts.items():
                aligned[place] = numbers[tags[row][word]]
            encoded.setdefault("labels", []).append(aligned)
        cut += len(sentence) - len(firsts)
    if cut:
        logger.warning(
            f"{cut} {split} words have no token, or are beyond {max_length} tokens, and aren't counted. Raise "
            "--max_seq_length to keep long rows whole."
        )
    return Dataset.from_dict(encoded)


# ---- metrics and predictions ----------------------------------------------------------------------------------------


@torch.no_grad()
def answers_and_losses(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    """What is kept of logits (B, S, C): the answer and the loss of each token, (B, S, 2)."""
    scores = (logits[0] if isinstance(logits, tuple) else logits).double()
    losses = torch.nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return torch.stack((scores.argmax(-1).double(), losses), -1)


class WordMetrics:
    """`compute_metrics` of the Trainer: loss and metrics of words, each word counting once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.last: tuple[list[str], list[str]] = ([], [])
        """The right and the predicted label of each word of the last evaluation."""

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """The numbers of one evaluation."""
        right = np.asarray(prediction.label_ids)
        answers, losses = np.moveaxis(np.asarray(prediction.predictions), -1, 0)
        counted = right != IGNORED
        known, said = (
            [[self.names[int(number)] for number in row[mask]] for row, mask in zip(rows, counted, strict=True)]
            for rows in (right, answers)
        )
        self.last = _joined(known), _joined(said)
        return {"loss": float(losses[counted].mean()), **word_scores(self.names, known, said)}


def word_scores(
    names: Sequence[str], right: Sequence[Sequence[str]], said: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Accuracy and macro F1 of words; precision, recall and F1 of spans where `names` mark spans."""
    known, answers = _joined(right), _joined(said)
    found = {
        "accuracy": float(accuracy_score(known, answers)),
        "macro_f1": float(f1_score(known, answers, average="macro", zero_division=0)),
    }
    return found | span_scores(right, said) if _marks_spans(names) else found


def _joined(rows: Sequence[Sequence[str]]) -> list[str]:
    return [label for row in rows for label in row]


def _baselines(
    read: Mapping[str, tuple[list[list[str]], list[list[str]] | None]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Metrics of labels without context, of the validation and the test words: see `word_label_answers`."""
    words, tags = read["train"]
    found: dict[str, dict[str, float]] = {}
    for split, prefix in (("validation", "eval"), ("test", "test")):
        asked, right = read.get(split, ((), None))
        if tags is not None and right is not None:
            for name, said in word_label_answers(words, tags, asked).items():
                scores = {f"{prefix}_{key}": value for key, value in word_scores(names, right, said).items()}
                found.setdefault(name, {}).update(scores)
    return found


def _marks_spans(names: Sequence[str]) -> bool:
    return any(name[:2] in ("B-", "I-") for name in names)


def spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The spans of BIO labels (also BIOES, BILOU and the older IOB): kind, first word, word after the last.

    As conlleval reads them: an I- of another kind than the word before begins a span, too.
    """
    kind, start = None, 0
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        begins = mark in ("B", "S", "U") or (mark in ("I", "E", "L") and name != kind)
        if kind is not None and (begins or mark == "O"):
            yield kind, start, place
            kind = None
        if begins:
            kind, start = name, place
        if mark in ("E", "L", "S", "U") and kind is not None:
            yield kind, start, place + 1
            kind = None


def span_scores(right: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of spans over all sentences; 0 where there are none."""
    known, found = (
        {(row, *span) for row, tags in enumerate(sentences) for span in spans(tags)} for sentences in (right, said)
    )
    both = len(known & found)
    return {
        "span_precision": both / max(len(found), 1),
        "span_recall": both / max(len(known), 1),
        "span_f1": 2 * both / max(len(known) + len(found), 1),
    }
