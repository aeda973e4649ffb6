"""A classifier's scores beside baselines and by class, its calibration, and warnings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix, precision_recall_fscore_support

from ..markdown import plain
from .metrics import METRICS, predictions_from_logits, probabilities_from_logits

MOST_CLASSES_SHOWN = 12
"""Tables in the terminal and in the card have this many classes at most; results.json has all."""
MOST_CLASSES_DRAWN = 30
LOWER_IS_BETTER = ("mse",)
CLASS_HEAD = ("class", "precision", "recall", "f1", "examples")
_BINS = 15
PREFIXES = {"validation": "eval", "test": "test"}
"""Prefixes of the metrics of each scored split."""
_WORDS = {"words": "words", "word_pairs": "words and word pairs"}
"""What each linear baseline sees."""

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
        from matplotlib.figure import Figure

        self.picture = "confusion_matrix.png"
        names = [short(row["label"], 24).replace("$", r"\$") for row in self.classes]
        side = 2.2 + 0.45 * len(names)
        figure = Figure(figsize=(side + 0.6, side), layout="constrained")
        shown = ConfusionMatrixDisplay(np.array(self.confusion), display_labels=names)
        shown.plot(ax=figure.add_subplot(title=f"{self.split} data"), cmap="Blues", colorbar=False, xticks_rotation=45)
        figure.savefig(folder / self.picture, dpi=120)

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
    """
    predicted, metric = predictions_from_logits(logits, problem_type), METRICS[problem_type][0].key
    key = f"{PREFIXES[split]}_{metric}"
    others = {name: scores[key] for name, scores in baselines.items() if key in scores}
    assessment = Assessment(split, metric, float(score), others)
    if problem_type != "regression":
        assessment.classes = _classes(labels.astype(int), predicted, names)
    if problem_type == "single_label_classification":
        assessment.confusion = confusion_matrix(labels, predicted, labels=range(len(names))).tolist()
    assessment.warnings = _warnings(assessment, predicted, names)
    return assessment


def _classes(right: Any, predicted: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Scores of each class; None where it has no examples, for there is nothing to be right about."""
    columns = precision_recall_fscore_support(right, predicted, labels=range(len(names)), zero_division=0)
    scores = ("precision", "recall", "f1")
    return [
        {"label": name}
        | {score: float(value) if count else None for score, value in zip(scores, values, strict=True)}
        | {"examples": int(count)}
        for name, *values, count in zip(names, *columns, strict=True)
    ]


def _warnings(assessment: Assessment, predicted: np.ndarray, names: Sequence[str]) -> list[str]:
    """Where one label is always predicted, or a constant or a linear model on words does as well."""
    score, metric, baselines = assessment.score, assessment.metric, assessment.baselines
    split, examples, warnings = assessment.split, len(predicted), []
    sign = -1 if metric in LOWER_IS_BETTER else 1
    chance = baselines.get("majority")
    if assessment.confusion and len(names) > 1 and len(np.unique(predicted)) == 1:
        warnings.append(f"It predicts {names[int(predicted[0])]!r} for all {examples:,} {split} examples.")
    elif chance is not None:
        margin = 2 * math.sqrt(chance * (1 - chance) / examples) if sign > 0 else 0.0
        if sign * score <= sign * chance + margin:
            constant = "the most frequent answer" if sign > 0 else "the mean"
            warnings.append(
                f"It isn't clearly better than always {constant}: {metric} {digits(score, 3)} and {digits(chance, 3)} "
                f"({examples:,} {split} examples)."
            )
    linear = max((name for name in _WORDS if name in baselines), key=lambda name: sign * baselines[name], default=None)
    if linear is not None and sign * score < sign * baselines[linear]:
        warnings.append(
            f"A linear model on {_WORDS[linear]} is better: {metric} {digits(baselines[linear], 3)}; this model has "
            f"{digits(score, 3)}."
        )
    return warnings


def digits(score: float, places: int = 4) -> str:
    """A score with so many decimals; a small one with three digits."""
    return f"{score:.{places}f}" if score == 0 or abs(score) >= 0.001 else f"{score:.3g}"


def short(text: str, length: int) -> str:
    """Text of one line, cut to a length."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
