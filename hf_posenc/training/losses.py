"""The loss of classification, with class weights and label smoothing, and what is measured with it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..data.labels import Labels
from ..errors import UserError
from ..options import json_object
from .metrics import score_logits


class ClassificationLoss:
    """The Trainer's `compute_loss_func`: cross-entropy, binary cross-entropy or squared error.

    The sum over a batch is divided by `num_items_in_batch`, the number of labels in all accumulated batches of all
    processes, so that neither accumulation nor the number of processes changes the gradient. Class weights are scaled
    to a mean of 1 over the training examples for the same reason: dividing by the batch's own weights would not add up.

    Args:
        problem_type: the task.
        weights: (C,) how much a label counts: its examples for one label per text, its presence for several.
        label_smoothing: share of the target that is spread over all labels; one label per text only.
        label_scale: the model's; the squared error is ((logits - labels) / label_scale)^2, in units of any data alike.
    """

    def __init__(
        self,
        problem_type: str,
        weights: Tensor | None = None,
        label_smoothing: float = 0.0,
        label_scale: float = 1.0,
    ) -> None:
        self.problem_type = problem_type
        self.weights = weights
        self.label_smoothing = label_smoothing
        self.label_scale = label_scale

    def sentences(self, names: Sequence[str]) -> list[str]:
        """The class weights in a sentence; none where there are none."""
        if self.weights is None:
            return []
        weights = (f"{name} {weight:.3g}" for name, weight in zip(names, self.weights.tolist(), strict=True))
        return [f"Class weights: {', '.join(weights)}."]

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
    value = loss((torch.from_numpy(logits).double(),), torch.from_numpy(labels))
    return {"loss": value.item(), **score_logits(logits, labels, loss.problem_type)}


def make_loss(
    labels: Labels, train_labels: list[Any] | None, class_weights: str | dict[str, Any] | None, smoothing: float
) -> ClassificationLoss:
    """The loss that the options ask for.

    `--class-weights balanced` weighs a label by n / (C n_c), n examples of which n_c have it (King and Zeng 2001, as in
    scikit-learn); with several labels per text its presence by (n - n_c) / n_c.

    Raises:
        UserError: weights for a regression, for unknown labels, or not positive; label smoothing for another task.
    """
    if smoothing and labels.problem_type != "single_label_classification":
        raise UserError(f"--set label_smoothing_factor={smoothing} needs one label per text. Leave it out.")
    if class_weights is None or train_labels is None:
        return ClassificationLoss(labels.problem_type, None, smoothing)
    if labels.problem_type == "regression":
        raise UserError(f"--class-weights {class_weights!r} is for classes, not numbers. Leave it out.")
    several = labels.problem_type == "multi_label_classification"
    target = torch.tensor(train_labels)
    counts = target.sum(0) if several else torch.bincount(target, minlength=labels.num_labels).float()
    if class_weights == "balanced":
        present = counts.clamp(min=1)
        weights = (len(target) - counts) / present if several else len(target) / (labels.num_labels * present)
    else:
        given = json_object("class_weights", class_weights) or {}
        numbers = [weight for weight in given.values() if isinstance(weight, int | float) and 0 < weight < math.inf]
        if set(given) != set(labels.names) or len(numbers) < len(given):
            raise UserError(
                f"--class-weights {class_weights!r}: give balanced, or a positive number for each of "
                f"{', '.join(labels.names)}."
            )
        weights = torch.tensor([float(given[label]) for label in labels.names])
    if not several:
        weights = weights * len(target) / (weights * counts).sum()
    return ClassificationLoss(labels.problem_type, weights, smoothing)
