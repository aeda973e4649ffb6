"""Answers of a graph to many texts, and their scores on labelled data, which is read as training reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.preparing import encode, prepare
from ..data.reading import read_file
from ..errors import UserError
from ..finetuning.backends import Backend
from ..finetuning.loading import knowledge, text_problem_type
from ..options import Options
from ..tasks import task_of
from ..training.inference import Row
from ..training.metrics import predictions_from_logits
from ..training.metrics import score as task_score
from .parity import Batch, answers_tokens, input_names, make_batch

GATES = {
    "single_label_classification": "accuracy",
    "multi_label_classification": "accuracy",
    "regression": "pearson",
}
"""The metric of each task that int8 may lower: all are at most 1, and more is better."""
_BATCH = 32
_LONGEST = 512


@dataclass
class Questions:
    """Texts as batches of like lengths, and the right answers where they are known."""

    rows: Sequence[Row]
    """The token ids of each text, with what else the model takes."""
    batches: list[tuple[list[int], Batch]]
    """The numbers of its texts, and their inputs."""
    of_tokens: bool
    """Whether an answer has a row for each token."""
    problem_type: str | None
    """One of `GATES`; None where answers are no labels of texts."""
    labels: list[Any] | None = None
    """In the model's form. None: they aren't known."""


def problem_type_of(model: PreTrainedModel) -> str | None:
    """The task of a classifier of texts, one of `GATES`; None for other heads."""
    return text_problem_type(model.config) if task_of(type(model).__name__) == "text-classification" else None


def read_labelled(file: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Questions:
    """The texts and labels of a file, as `hf-posenc evaluate` reads them.

    Raises:
        UserError: the file can't be read, its labels aren't the model's, or the model doesn't label texts.
    """
    problem_type = problem_type_of(model)
    if problem_type is None:
        raise UserError(
            f"--evaluate {file!r} scores labels of texts, and a {type(model).__name__} gives none. Leave it out: "
            "agreement with float32 is measured all the same."
        )
    prepared = prepare({"test": read_file(file)}, Options(), knowledge(model.config, str(model.name_or_path)))
    rows = list(encode(prepared, tokenizer, tokenizer.model_max_length)[0]["test"])
    questions = _batched(rows, model, tokenizer)
    if "labels" not in rows[0]:
        raise UserError(f"--evaluate {file!r} has no labels. Give labelled data, or leave it out.")
    questions.labels = [row["labels"] for row in rows]
    return questions


def from_texts(
    texts: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, size: int = _BATCH
) -> Questions:
    """Texts without labels, in batches of `size`."""
    encoded = tokenizer(list(texts), truncation=True, max_length=min(tokenizer.model_max_length, _LONGEST))
    return _batched(
        [{name: encoded[name][row] for name in encoded} for row in range(len(texts))], model, tokenizer, size
    )


def _batched(
    rows: Sequence[Row], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, size: int = _BATCH
) -> Questions:
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"]))
    groups = [order[start : start + size] for start in range(0, len(rows), size)]
    names = input_names(model, tokenizer)
    rows = [{name: row[name] for name in names} for row in rows]
    batches = [(group, make_batch([rows[row] for row in group], model, tokenizer)) for group in groups]
    return Questions(rows, batches, answers_tokens(model), problem_type_of(model))


def answer(backend: Backend, questions: Questions) -> list[np.ndarray]:
    """The logits of each text, in order: (C,), or (S, C) of its tokens."""
    answers: dict[int, np.ndarray] = {}
    for numbers, batch in questions.batches:
        sizes = batch["attention_mask"].sum(-1)
        for number, size, logits in zip(numbers, sizes, backend.logits(batch), strict=True):
            answers[number] = logits[:size] if questions.of_tokens else logits
    return [answers[number] for number in range(len(answers))]


def score(answers: Sequence[np.ndarray], questions: Questions) -> dict[str, float]:
    """The task's metrics; none where the right answers aren't known."""
    if questions.labels is None:
        return {}
    kind = str(questions.problem_type)
    return task_score(predictions_from_logits(np.stack(list(answers)), kind), questions.labels, kind)


def agreement(answers: Sequence[np.ndarray], others: Sequence[np.ndarray], questions: Questions) -> float:
    """The share of equal labels, or the mean cosine of the answers where they are no labels."""
    pairs = list(zip(answers, others, strict=True))
    if questions.problem_type == "multi_label_classification":
        return float(np.mean([((first > 0) == (second > 0)).all() for first, second in pairs]))
    if questions.problem_type == "single_label_classification":
        return float(np.mean([first.argmax() == second.argmax() for first, second in pairs]))
    flat = [(first.ravel().astype(np.float64), second.ravel().astype(np.float64)) for first, second in pairs]
    return float(np.mean([a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12) for a, b in flat]))
