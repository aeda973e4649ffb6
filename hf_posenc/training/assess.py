"""Assesses the predictions of a trained classifier: scores by class, warnings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from .assessment import LOWER_IS_BETTER, Assessment

FEW_EXAMPLES = 30
"""With fewer examples no model can be told from chance."""
_OF_WORDS = (
    ("words", "words", "a linear model on words"),
    ("word_pairs", "word pairs", "a linear model on words and word pairs"),
)


def assess(
    *,
    split: str,
    labels: np.ndarray,
    predicted: np.ndarray,
    names: Sequence[str],
    problem_type: str,
    metric: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    history: Sequence[Mapping[str, Any]] = (),
    pretrained: bool = False,
    positions: bool = True,
) -> Assessment:
    """Assesses the predictions on one split.

    Args:
        split: `validation` or `test`.
        labels: the right answers: numbers (n,), or rows of 0 and 1 (n, C).
        predicted: the predictions, in the same form.
        names: of the classes.
        problem_type: the task.
        metric: the one to quote.
        metrics: of the run, with prefixes `eval_` and `test_`.
        baselines: the same of each baseline.
        history: what the Trainer logged while training.
        pretrained: whether it began with trained weights; if not, warnings suggest that.
        positions: whether it has positions; if not, warnings suggest those first.
    """
    key = f"{'test' if split == 'test' else 'eval'}_{metric}"
    others = {name: scores[key] for name, scores in baselines.items() if key in scores}
    assessment = Assessment(split=split, metric=metric, score=float(metrics[key]), baselines=others)
    numbers = range(len(names))
    if problem_type != "regression":
        assessment.classes = _classes(labels.astype(int), predicted, numbers, names)
    if problem_type == "single_label_classification":
        assessment.confusion = confusion_matrix(labels, predicted, labels=numbers).tolist()
    examples = len(labels)
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    try_this = _remedies(losses, pretrained, positions)
    if assessment.confusion and len(names) > 1 and len(np.unique(predicted)) == 1:
        label = names[int(predicted[0])]
        useless = [f"It predicts {label!r} for all {examples:,} {split} examples. {try_this}"]
    else:
        useless = _no_better_than_majority(assessment, examples, try_this)
    below = _below_word_baselines(assessment, "" if useless else try_this)
    assessment.warnings = [*useless, *below, *_still_falling(losses)]
    return assessment


def _classes(right: Any, predicted: Any, labels: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Scores of each class; None where it has no examples, for there is nothing to be right about."""
    columns = precision_recall_fscore_support(right, predicted, labels=labels, zero_division=0)
    scores = ("precision", "recall", "f1")
    return [
        {"label": name}
        | {score: float(value) if count else None for score, value in zip(scores, values, strict=True)}
        | {"examples": int(count)}
        for name, *values, count in zip(names, *columns, strict=True)
    ]


def _no_better_than_majority(assessment: Assessment, examples: int, try_this: str) -> list[str]:
    chance, score = assessment.baselines.get("majority"), assessment.score
    if chance is None:
        return []
    if assessment.metric in LOWER_IS_BETTER:
        if score >= chance:
            return [
                f"It is no better than always the mean: {assessment.metric} {score:.4g} and {chance:.4g}. {try_this}"
            ]
        return []
    if score > chance + 2 * math.sqrt(chance * (1 - chance) / examples):
        return []
    if examples < FEW_EXAMPLES and score > chance:
        return [
            f"{examples} {assessment.split} examples are too few to tell {assessment.metric} {score:.3f} from chance "
            f"({chance:.3f})."
        ]
    return [
        f"It isn't clearly better than chance: {assessment.metric} {score:.3f}; always the most frequent answer: "
        f"{chance:.3f} ({examples:,} examples). {try_this}"
    ]


def _below_word_baselines(assessment: Assessment, try_this: str) -> list[str]:
    """Warns where a linear model on words does better; the better one is named."""
    score, lower = assessment.score, assessment.metric in LOWER_IS_BETTER
    known = [row for row in _OF_WORDS if row[0] in assessment.baselines]
    if not known:
        return []
    baseline, name, what = (min if lower else max)(known, key=lambda row: assessment.baselines[row[0]])
    other = assessment.baselines[baseline]
    if not (score > other if lower else score < other):
        return []
    relation = "worse than" if lower else "below"
    sentence = f"It is {relation} {name}: {assessment.metric} {score:.3f}, and {what} has {other:.3f}."
    return [f"{sentence} {try_this}".rstrip()]


def _remedies(losses: Sequence[float], pretrained: bool, positions: bool) -> str:
    """What may help; training longer only while the validation loss hasn't risen."""
    weights = "" if pretrained else "start from pretrained weights (--pretrained), "
    longer = "train longer, " if not losses or losses[-1] <= 1.1 * min(losses) else ""
    order = "" if positions else "choose a scheme that knows word order (--position-embedding-type), "
    sentence = f"{order}{weights}{longer}or give more rows.".removeprefix("or ")
    return sentence[0].upper() + sentence[1:]


def _still_falling(losses: Sequence[float]) -> list[str]:
    if len(losses) < 2 or losses[-1] > min(losses) or losses[-1] >= 0.97 * losses[-2]:
        return []
    return [
        f"The validation loss was still falling ({losses[-2]:.3f}, {losses[-1]:.3f}). Train longer: --num-train-epochs."
    ]
