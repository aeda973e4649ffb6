"""The loss of each problem type, and metrics that need no Hub (`evaluate.Metric`s on scikit-learn and scipy)."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import evaluate
import numpy as np
import torch
from datasets import Features, List, Value
from scipy.special import expit, softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_squared_error
from torch import Tensor
from torch.nn import functional

from ..data.labels import Labels, name_in_memory, one_form
from ..errors import UserError
from ..options import json_object


class _Metric(evaluate.Metric):
    """Base of the metrics. `config_name="multilabel"`: predictions and references are rows of 0 and 1."""

    key = ""
    function: Callable[..., Any]
    """Of references and predictions."""
    real_valued = False

    def _info(self) -> evaluate.MetricInfo:
        value: Any = Value("float64") if self.real_valued else Value("int64")
        if self.config_name == "multilabel":
            value = List(Value("int64"))
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description="predictions: what the model says; references: what is right.",
            features=Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {self.key: self.of(references, predictions)}

    @classmethod
    def of(cls, references: Any, predictions: Any) -> float:
        """The value; 0 of a correlation where nothing varies, of which scikit-learn and scipy warn."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(np.nan_to_num(cls.function(references, predictions)))


def _correlation(function: Callable[..., Any], references: Any, predictions: Any) -> float:
    return function(predictions, references).statistic if len(predictions) > 1 else 0.0


def _macro_f1(references: Any, predictions: Any) -> float:
    # scikit-learn takes one column of 0 and 1 for two classes
    average = "binary" if np.shape(references)[1:] == (1,) else "macro"
    return f1_score(references, predictions, average=average, zero_division=0)


def _metric(key: str, function: Callable[..., Any], description: str, *, real_valued: bool = False) -> type[_Metric]:
    return type(
        key,
        (_Metric,),
        {"__doc__": description, "key": key, "function": staticmethod(function), "real_valued": real_valued},
    )


Accuracy = _metric(
    "accuracy", accuracy_score, "Share of examples that are right; with several labels, those in which all labels are."
)
MacroF1 = _metric(
    "macro_f1",
    _macro_f1,
    "Mean over the labels of F1 = 2 precision recall / (precision + recall); 0 for a label never predicted.",
)
Matthews = _metric(
    "matthews_correlation",
    matthews_corrcoef,
    "Correlation of predicted and right labels, 0 for guessing whatever the balance (Matthews 1975; Gorodkin 2004).",
)
MSE = _metric("mse", mean_squared_error, "Mean squared error.", real_valued=True)
Pearson = _metric(
    "pearson", partial(_correlation, pearsonr), "Linear correlation; 0 where either doesn't vary.", real_valued=True
)
Spearman = _metric(
    "spearman", partial(_correlation, spearmanr), "Correlation of ranks; 0 where either doesn't vary.", real_valued=True
)

METRICS: dict[str, tuple[type[_Metric], ...]] = {
    "single_label_classification": (Accuracy, MacroF1, Matthews),
    "multi_label_classification": (Accuracy, MacroF1),
    "regression": (MSE, Pearson, Spearman),
}
"""The metrics of each problem type; the first is the one to quote."""


def predictions_from_logits(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Predictions from logits (n, C): class numbers (n,), rows of 0 and 1 (n, C), or numbers (n,)."""
    if problem_type == "single_label_classification":
        return logits.argmax(-1)
    if problem_type == "multi_label_classification":
        return (logits > 0).astype(np.int64)
    return logits.reshape(-1)


def probabilities_from_logits(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Probabilities (n, C) of logits (n, C): softmax for one label, the sigmoid for several."""
    logits = logits.astype(np.float64)
    return expit(logits) if problem_type == "multi_label_classification" else softmax(logits, axis=-1)


def answers_from_logits(
    logits: np.ndarray, names: Sequence[str], problem_type: str, *, threshold: float = 0.5, top_k: int | None = None
) -> list[dict[str, Any]]:
    """Answers from logits (n, C), one for each example, for JSON.

    `label` (for several labels per text a list: those with a probability above `threshold`), `confidence`, the highest
    probability, and `probabilities`, highest first; for a regression `prediction`, or `predictions` by name where there
    are several.

    Args:
        logits: (n, C) for C labels, (n, 1) for a regression.
        names: of the labels.
        problem_type: of `METRICS`.
        threshold: for several labels per text alone.
        top_k: how many probabilities are given. None: all.
    """
    if problem_type == "regression":
        if logits.size == len(logits):  # one number; it has no name in training
            return [{"prediction": _digits(value)} for value in logits.reshape(-1)]
        return [{"predictions": dict(zip(names, map(_digits, row), strict=True))} for row in logits]
    answers = []
    for row in probabilities_from_logits(logits, problem_type):
        order = np.argsort(-row, kind="stable")
        label: Any = names[order[0]]
        if problem_type == "multi_label_classification":
            label = [names[number] for number in order if row[number] > threshold]
        shares = {names[number]: _digits(row[number]) for number in order[:top_k]}
        answers.append({"label": label, "confidence": _digits(row.max()), "probabilities": shares})
    return answers


def _digits(value: Any) -> float:
    """A number with nine digits, by which all float32 numbers differ."""
    return float(f"{value:.9g}")


def compute_metrics(predictions: Any, references: Any, problem_type: str) -> dict[str, float]:
    """Computes the `METRICS` of a problem type, without the Arrow table that evaluate makes of the examples."""
    kind = np.float64 if problem_type == "regression" else np.int64
    predictions, references = (np.asarray(values).astype(kind) for values in (predictions, references))
    if problem_type == "regression":
        predictions, references = predictions.ravel(), references.ravel()
    return {metric.key: metric.of(references, predictions) for metric in METRICS[problem_type]}


@dataclass(eq=False)
class ClassificationLoss:
    """The Trainer's `compute_loss_func`: cross-entropy, binary cross-entropy or squared error.

    The sum over a batch is divided by `num_items_in_batch`, the number of labels in all accumulated batches of all
    processes, so that neither accumulation nor the number of processes changes the gradient. Class weights are scaled
    to a mean of 1 over the training examples for the same reason: dividing by the batch's own weights would not add up.

    Attributes:
        problem_type: a key of `METRICS`.
        weights: (C,) how much a label counts: its examples for one label per text, its presence for several.
        label_smoothing: share of the target that is spread over all labels; one label per text only.
        label_scale: the model's; the squared error is ((logits - labels) / label_scale)^2, in units of any data alike.
    """

    problem_type: str
    weights: Tensor | None = None
    label_smoothing: float = 0.0
    label_scale: float = 1.0

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a model's outputs."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = None if self.weights is None else self.weights.to(precise)
        if self.problem_type == "single_label_classification":
            total = functional.cross_entropy(
                precise, labels, weight=weights, reduction="sum", label_smoothing=self.label_smoothing
            )
        elif self.problem_type == "multi_label_classification":
            total = functional.binary_cross_entropy_with_logits(
                precise, labels.to(precise.dtype), pos_weight=weights, reduction="sum"
            )
        else:
            error = (precise.reshape(-1) - labels.reshape(-1).to(precise.dtype)) / self.label_scale
            total = error.square().sum()
        if num_items_in_batch is None:
            return total / max(labels.numel(), 1)
        if isinstance(num_items_in_batch, Tensor):
            # DataParallel: one count per replica; the Trainer multiplies the loss by their number.
            num_items_in_batch = num_items_in_batch.sum().to(total.device)
        return total / num_items_in_batch


@torch.no_grad()
def loss_and_metrics(loss: ClassificationLoss, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """`loss` and the metrics of logits (n, C) against labels in the model's form, each example counting once.

    The Trainer's own `eval_loss` averages over batches, which differs if batches differ in size or if examples are
    repeated to fill the last one.
    """
    plain = replace(loss, label_smoothing=0.0)  # so that losses compare, whatever was trained on
    value = plain((torch.from_numpy(logits).double(),), torch.from_numpy(labels))
    predictions = predictions_from_logits(logits, loss.problem_type)
    return {"loss": value.item(), **compute_metrics(predictions, labels, loss.problem_type)}


def make_loss(
    labels: Labels, train_labels: list[Any], class_weights: str | dict[str, Any] | None, smoothing: float
) -> ClassificationLoss:
    """The loss that the options ask for.

    `balanced` class weights weigh a label by n / (C n_c), n examples of which n_c have it (King and Zeng 2001, as in
    scikit-learn); with several labels per text its presence by (n - n_c) / n_c.

    Raises:
        UserError: weights for a regression, for unknown labels, or not positive; smoothing for several labels.
    """
    if smoothing and labels.problem_type != "single_label_classification":
        needed = "needs one label per text. Leave it out."
        raise UserError(needed, parameter="set.label_smoothing_factor", value=smoothing)
    if class_weights is None:
        return ClassificationLoss(labels.problem_type, None, smoothing)
    if labels.problem_type == "regression":
        needed = "is for classes, not numbers. Leave it out."
        raise UserError(needed, parameter="class_weights", value=class_weights)
    several = labels.problem_type == "multi_label_classification"
    target = torch.tensor(train_labels)
    counts = target.sum(0) if several else torch.bincount(target, minlength=labels.num_labels).float()
    if class_weights == "balanced":
        present = counts.clamp(min=1)
        weights = (len(target) - counts) / present if several else len(target) / (labels.num_labels * present)
    else:
        weights = _given_weights(class_weights, labels.names)
    if not several:
        weights = weights * len(target) / (weights * counts).sum()
    return ClassificationLoss(labels.problem_type, weights, smoothing)


def _given_weights(class_weights: str | dict[str, Any], names: Sequence[str]) -> Tensor:
    """The weight of each label, by name; refuses those of other labels, and what is no positive number."""
    said = json_object("class_weights", class_weights) or {}
    given = {name_in_memory(label): weight for label, weight in said.items()}
    numbers = [weight for weight in given.values() if isinstance(weight, int | float) and 0 < weight < math.inf]
    if set(given) != set(map(one_form, names)) or len(numbers) < len(said):
        wanted = f": give balanced, or a positive number for each of {', '.join(names)}."
        raise UserError(wanted, parameter="class_weights", value=class_weights)
    return torch.tensor([float(given[one_form(label)]) for label in names])
