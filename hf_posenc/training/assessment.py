"""A classifier's scores beside baselines and by class, its calibration, and warnings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from ..markdown import plain
from .metrics import METRICS, predictions_from_logits, probabilities_from_logits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_EXAMPLES = 30
"""With fewer examples no model can be told from chance."""
MOST_CLASSES_SHOWN = 12
"""Tables in the terminal and in the card have this many classes at most; results.json has all."""
MOST_CLASSES_DRAWN = 30
LOWER_IS_BETTER = ("mse",)
CLASS_HEAD = ("class", "precision", "recall", "f1", "examples")
_BINS = 15
_NAMES = {"majority": "majority", "words": "words", "word_pairs": "word pairs"}
PREFIXES = {"validation": "eval", "test": "test"}
"""Prefixes of the metrics of each scored split."""
_OF_WORDS = {"words": "a linear model on words", "word_pairs": "a linear model on words and word pairs"}

Row = tuple[str, ...]
Cell = Callable[[str], str]


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from shares of right answers, before and after they are divided by a temperature.

    The temperature T minimises the loss of softmax(logits / T) on the validation rows (Guo et al. 2017, arXiv
    1706.04599). The expected calibration error is the mean over the examples of |accuracy - confidence| in their bin,
    15 bins of equal width.
    """

    temperature: float
    before: float
    after: float
    split: str
    """Where the errors were measured: `test`, or `validation`, on which the temperature was fitted too."""

    def sentence(self) -> str:
        """In words."""
        where = "test rows" if self.split == "test" else "validation rows, on which it was fitted: no fair measure"
        worse = "" if self.after < self.before else ": leave --calibrated out"
        return (
            f"Calibration error {self.before:.3f}, with temperature {self.temperature:.2f} (`predict --calibrated`) "
            f"{self.after:.3f}, on the {where}{worse}."
        )


def calibrate(
    fitted: tuple[np.ndarray, np.ndarray], measured: tuple[np.ndarray, np.ndarray], split: str
) -> Calibration:
    """Fits a temperature to logits (n, C) and labels (n,), and measures it on others."""
    logits, labels = np.asarray(fitted[0], dtype=np.float64), fitted[1].astype(int)

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / math.exp(log_temperature), axis=1)[np.arange(len(labels)), labels].mean())

    temperature = round(math.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x), 4)
    before, after = (calibration_error(measured[0] / value, measured[1]) for value in (1.0, temperature))
    return Calibration(temperature, before, after, split)


def calibration_error(logits: np.ndarray, labels: np.ndarray) -> float:
    """The expected calibration error of logits (n, C) against labels (n,); see `Calibration`."""
    shares = probabilities_from_logits(logits, "single_label_classification")
    confidence, right = shares.max(1), shares.argmax(1) == labels
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(labels))


@dataclass
class Assessment:
    """What results say of a trained classifier beside its metrics; in `results.json` as a dictionary.

    Attributes:
        split: `validation` or `test`: the split that was assessed.
        metric: the one to quote.
        score: the model's.
        baselines: the same metric of `majority`, `words` and `word_pairs`.
        warnings: what to doubt.
        classes: `label`, `precision`, `recall`, `f1`, `examples` of each class, scores None without examples; empty for
            a regression.
        confusion: examples by right label (rows) and predicted label (columns); None for several labels and numbers.
        picture: file name of the confusion matrix's picture, beside the card.
    """

    split: str
    metric: str
    score: float
    baselines: dict[str, float]
    warnings: list[str] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    confusion: list[list[int]] | None = None
    picture: str | None = None

    def draw(self, folder: Path) -> None:
        """Draws the confusion matrix, if it has at most `MOST_CLASSES_DRAWN` classes and matplotlib is installed."""
        if self.confusion is None or len(self.classes) > MOST_CLASSES_DRAWN or find_spec("matplotlib") is None:
            return
        self.picture = "confusion_matrix.png"
        names = [short(row["label"], 24).replace("$", r"\$") for row in self.classes]
        _confusion_figure(np.array(self.confusion), names, self.split).savefig(folder / self.picture, dpi=120)

    def score_rows(self) -> list[Row]:
        """The model's score and those of the baselines."""
        lower = self.metric in LOWER_IS_BETTER
        names = {**_NAMES, "majority": "mean"} if lower else _NAMES
        scores = {"this model": self.score} | {names[name]: score for name, score in self.baselines.items()}
        return [(name, digits(score)) for name, score in scores.items()]

    def class_rows(self, cell: Cell | None = None) -> list[Row]:
        """Precision, recall, F1 and number of examples of the first classes; without examples a class has no scores."""

        def share(value: float | None) -> str:
            return "-" if value is None else f"{value:.3f}"

        cell = cell or (lambda label: plain(short(label, 160)))
        return [
            (cell(row["label"]), *map(share, (row["precision"], row["recall"], row["f1"])), f"{row['examples']:,}")
            for row in self.classes[:MOST_CLASSES_SHOWN]
        ]


def assess(
    logits: np.ndarray,
    labels: np.ndarray,
    *,
    split: str,
    names: Sequence[str],
    problem_type: str,
    score: float,
    baselines: Mapping[str, Mapping[str, float]],
    losses: Sequence[float] = (),
    advice: Sequence[str] = (),
) -> Assessment:
    """Assesses the predictions on one split.

    Args:
        logits: (n, C).
        labels: the right answers in the model's form: numbers (n,), or rows of 0 and 1 (n, C).
        split: `validation` or `test`.
        names: of the classes.
        problem_type: the task.
        score: the model's, by the task's first metric.
        baselines: the metrics of each baseline, with prefixes `eval_` and `test_`.
        losses: the validation losses while training, in order.
        advice: what may help, besides more rows and longer training.
    """
    predicted, metric = predictions_from_logits(logits, problem_type), METRICS[problem_type][0].key
    key = f"{PREFIXES[split]}_{metric}"
    others = {name: scores[key] for name, scores in baselines.items() if key in scores}
    assessment = Assessment(split, metric, float(score), others)
    numbers = range(len(names))
    if problem_type != "regression":
        assessment.classes = _classes(labels.astype(int), predicted, numbers, names)
    if problem_type == "single_label_classification":
        assessment.confusion = confusion_matrix(labels, predicted, labels=numbers).tolist()
    examples, try_this = len(labels), _remedies(losses, advice)
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
    chance, score, metric = assessment.baselines.get("majority"), assessment.score, assessment.metric
    if chance is None:
        return []
    if metric in LOWER_IS_BETTER:
        if score < chance:
            return []
        return [f"It is no better than always the mean: {metric} {score:.4g} and {chance:.4g}. {try_this}"]
    if score > chance + 2 * math.sqrt(chance * (1 - chance) / examples):
        return []
    if examples < FEW_EXAMPLES and score > chance:
        return [
            f"{examples} {assessment.split} examples are too few to tell {metric} {score:.3f} from chance "
            f"({chance:.3f})."
        ]
    return [
        f"It isn't clearly better than chance: {metric} {score:.3f}; always the most frequent answer: {chance:.3f} "
        f"({examples:,} examples). {try_this}"
    ]


def _below_word_baselines(assessment: Assessment, try_this: str) -> list[str]:
    """Warns where a linear model on words does better; the better one is named."""
    score, lower = assessment.score, assessment.metric in LOWER_IS_BETTER
    known = [name for name in _OF_WORDS if name in assessment.baselines]
    if not known:
        return []
    best = (min if lower else max)(known, key=lambda name: assessment.baselines[name])
    other = assessment.baselines[best]
    if not (score > other if lower else score < other):
        return []
    relation = "worse than" if lower else "below"
    sentence = f"It is {relation} {_NAMES[best]}: {assessment.metric} {digits(score, 3)}, and {_OF_WORDS[best]} has"
    return [f"{sentence} {digits(other, 3)}. {try_this}".rstrip()]


def _remedies(losses: Sequence[float], advice: Sequence[str]) -> str:
    """What may help; training longer only while the validation loss hasn't risen."""
    longer = ["train longer"] if not losses or losses[-1] <= 1.1 * min(losses) else []
    ways = [*advice, *longer, "give more rows"]
    sentence = f"{', '.join(ways[:-1])}{', or ' if ways[:-1] else ''}{ways[-1]}."
    return sentence[0].upper() + sentence[1:]


def _still_falling(losses: Sequence[float]) -> list[str]:
    if len(losses) < 2 or losses[-1] > min(losses) or losses[-1] >= 0.97 * losses[-2]:
        return []
    return [f"The validation loss was still falling ({losses[-2]:.3f}, {losses[-1]:.3f}). Train longer: --epochs."]


def digits(score: float, places: int = 4) -> str:
    """A score with so many decimals; a small one with three digits."""
    return f"{score:.{places}f}" if score == 0 or abs(score) >= 0.001 else f"{score:.3g}"


def short(text: str, length: int) -> str:
    """Text of one line, cut to a length."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def to_beat(baselines: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """One line with the baselines' scores, on the validation data if there is any."""
    key = next(f"{prefix}_{metric}" for prefix in ("eval", "test") if f"{prefix}_{metric}" in baselines["majority"])
    names = {**_NAMES, "majority": "mean"} if metric in LOWER_IS_BETTER else _NAMES
    scores = ", ".join(f"{names[name]} {digits(scores[key], 3)}" for name, scores in baselines.items())
    return f"To beat: {scores} ({'test' if key.startswith('test') else 'validation'} {metric})"


def _confusion_figure(counts: np.ndarray, names: Sequence[str], split: str) -> "Figure":
    """A heat map of counts; the colour is the share of the row."""
    from matplotlib.figure import Figure

    side = 2.2 + 0.45 * len(names)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set(xlabel="predicted", ylabel="right", title=f"Confusion matrix, {split} data")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    return figure
