"""Assesses the predictions of a trained classifier: scores by class, the most confident errors, warnings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from .assessment import LOWER_IS_BETTER, TEXT_SHOWN, Assessment, short
from .metrics import METRICS, predictions_from_logits, probabilities_from_logits

FEW_EXAMPLES = 30
"""With fewer examples no model can be told from chance."""


def assess(
    *,
    split: str,
    logits: np.ndarray,
    labels: np.ndarray,
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    problem_type: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    rows: Sequence[int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    errors_shown: int = 10,
    pretrained: bool = False,
    positions: bool = True,
) -> Assessment:
    """Assesses the predictions on one split.

    Args:
        split: `validation` or `test`.
        logits: (n, C).
        labels: the right answers, in the model's form.
        texts: `(first,)`, or `(first, second)` for pairs.
        names: of the classes.
        problem_type: the task.
        metrics: of the run, with prefixes `eval_` and `test_`.
        baselines: the same of each baseline.
        rows: the number of each text in its file. None: counted from 1.
        history: what the Trainer logged while training.
        errors_shown: how many errors are listed.
        pretrained: whether it began with trained weights; if not, warnings suggest that.
        positions: whether it has positions; if not, warnings suggest those first.
    """
    found = _standing(split, METRICS[problem_type][0].key, metrics, baselines)
    predicted = predictions_from_logits(logits, problem_type)
    if problem_type != "regression":
        found.classes = _classes(labels.astype(int), predicted, range(len(names)), names)
    if problem_type == "single_label_classification":
        found.confusion = confusion_matrix(labels, predicted, labels=range(len(names))).tolist()
    numbers = range(1, len(labels) + 1) if rows is None else rows
    found.errors = _errors(logits, labels, texts, numbers, names, problem_type, errors_shown)
    try_this = _ways_out(history, pretrained, positions)
    found.warnings = _warnings(found, predicted, len(labels), names, problem_type, history, try_this)
    return found


def assess_words(
    split: str,
    right: Sequence[str],
    predicted: Sequence[str],
    names: Sequence[str],
    metric: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    *,
    history: Sequence[Mapping[str, Any]] = (),
    pretrained: bool = False,
    positions: bool = True,
) -> Assessment:
    """Assesses the labels of words, (n,) each; the other arguments are those of `assess`."""
    found = _standing(split, metric, metrics, baselines)
    found.classes = _classes(right, predicted, names, names)
    found.confusion = confusion_matrix(right, predicted, labels=names).tolist()
    said = np.array([names.index(name) for name in predicted])
    try_this = _ways_out(history, pretrained, positions)
    found.warnings = _warnings(
        found, said, len(right), names, "single_label_classification", history, try_this, units="words"
    )
    return found


def _standing(
    split: str, metric: str, metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]
) -> Assessment:
    key = f"{'test' if split == 'test' else 'eval'}_{metric}"
    others = {name: scores[key] for name, scores in baselines.items() if key in scores}
    return Assessment(split=split, metric=metric, score=float(metrics[key]), baselines=others)


def _classes(right: Any, predicted: Any, labels: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    columns = precision_recall_fscore_support(right, predicted, labels=labels, zero_division=0)
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f), "examples": int(n)}
        for name, p, r, f, n in zip(names, *columns, strict=True)
    ]


def _errors(
    logits: np.ndarray,
    labels: np.ndarray,
    texts: Sequence[Sequence[str]],
    numbers: Sequence[int],
    names: Sequence[str],
    problem_type: str,
    most: int,
) -> list[dict[str, Any]]:
    """The wrong answers with the highest probability; for numbers the largest errors."""
    right: list[Any]
    said: list[Any]
    if problem_type == "regression":
        said, right = logits.reshape(-1).tolist(), labels.reshape(-1).tolist()
        sure = np.abs(logits.reshape(-1) - labels.reshape(-1))
    else:
        chances = probabilities_from_logits(logits, problem_type)
        predicted = predictions_from_logits(logits, problem_type)
        if problem_type == "single_label_classification":
            sure = np.where(predicted == labels, 0.0, chances.max(-1))
            right, said = ([names[int(n)] for n in column] for column in (labels, predicted))
        else:  # the most confident of the labels that are wrongly given or wrongly missing
            sure = np.where(predicted == labels, 0.0, np.maximum(chances, 1 - chances)).max(-1)
            right, said = (
                [[names[n] for n in np.flatnonzero(row).tolist()] for row in rows] for rows in (labels, predicted)
            )
    found = []
    for row in np.argsort(-sure, kind="stable")[:most]:
        if sure[row] <= 0:
            break
        error = {"row": numbers[row], "text": short(texts[0][row], TEXT_SHOWN)}
        if len(texts) > 1:
            error["text_pair"] = short(texts[1][row], TEXT_SHOWN)
        error |= {"label": right[row], "predicted": said[row]}
        if problem_type != "regression":
            error["probability"] = round(float(sure[row]), 4)
        found.append(error)
    return found


def _warnings(
    found: Assessment,
    predicted: np.ndarray,
    examples: int,
    names: Sequence[str],
    problem_type: str,
    history: Sequence[Mapping[str, Any]],
    try_this: str,
    units: str = "examples",
) -> list[str]:
    """Why the scores may not mean much, in words."""
    one_class = problem_type == "single_label_classification" and len(np.unique(predicted)) == 1
    if one_class and len(names) > 1:
        label = names[int(predicted[0])]
        useless = [f"It predicts {label!r} for all {examples:,} {found.split} {units}. {try_this}"]
    else:
        useless = _no_better_than_majority(found, examples, units, try_this)
    order = [] if useless else _no_better_with_order(found, examples)
    return [*useless, *_below_words(found, "" if useless else try_this), *order, *_still_falling(history)]


def _no_better_than_majority(found: Assessment, examples: int, units: str, try_this: str) -> list[str]:
    chance, score = found.baselines.get("majority"), found.score
    if chance is None:
        return []
    if found.metric in LOWER_IS_BETTER:
        if score >= chance:
            return [f"It is no better than always the mean: {found.metric} {score:.4g} and {chance:.4g}. {try_this}"]
        return []
    if score > chance + 2 * math.sqrt(chance * (1 - chance) / examples):
        return []
    if examples < FEW_EXAMPLES and score > chance:
        return [
            f"{examples} {found.split} {units} are too few to tell {found.metric} {score:.3f} from chance "
            f"({chance:.3f})."
        ]
    return [
        f"It isn't clearly better than chance: {found.metric} {score:.3f}; always the most frequent answer: "
        f"{chance:.3f} ({examples:,} {units}). {try_this}"
    ]


def _below_words(found: Assessment, try_this: str) -> list[str]:
    """Warns where a linear model on words does better."""
    said, score, others = [], found.score, found.baselines
    lower = found.metric in LOWER_IS_BETTER
    if "word_pairs" in others and (score > others["word_pairs"] if lower else score < others["word_pairs"]):
        said.append(
            f"It is {'worse than' if lower else 'below'} word pairs: {found.metric} {score:.3f}, and a linear model on "
            f"words and word pairs has {others['word_pairs']:.3f}. {try_this}".rstrip()
        )
    if "word_labels" in others and score < others["word_labels"]:
        said.append(
            f"It is below the most frequent label of each word, which knows no context: {found.metric} {score:.3f} and "
            f"{others['word_labels']:.3f}. {try_this}".rstrip()
        )
    return said


def _no_better_with_order(found: Assessment, examples: int) -> list[str]:
    none, score = found.baselines.get("none"), found.score
    lower = found.metric in LOWER_IS_BETTER
    margin = 0.0 if lower else 2 * math.sqrt(max(score * (1 - score), 1e-4) / examples)
    if none is None or (score < none if lower else score - margin > none):
        return []
    return [
        f"The same encoder without positions is as good, within chance: {found.metric} {none:.3f}. "
        "This data hardly needs word order."
    ]


def _ways_out(history: Sequence[Mapping[str, Any]], pretrained: bool, positions: bool) -> str:
    """What may help; training longer only while the validation loss hasn't risen."""
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    weights = "" if pretrained else "start from pretrained weights (--pretrained), "
    longer = "train longer, " if not losses or losses[-1] <= 1.1 * min(losses) else ""
    order = "" if positions else "choose a scheme that knows word order (--position-embedding-type), "
    sentence = f"{order}{weights}{longer}or give more rows.".removeprefix("or ")
    return sentence[0].upper() + sentence[1:]


def _still_falling(history: Sequence[Mapping[str, Any]]) -> list[str]:
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    if len(losses) < 2 or losses[-1] > min(losses) or losses[-1] >= 0.97 * losses[-2]:
        return []
    return [
        f"The validation loss was still falling ({losses[-2]:.3f}, {losses[-1]:.3f}). Train longer: --num-train-epochs."
    ]
