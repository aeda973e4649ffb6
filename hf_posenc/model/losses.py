"""The losses of the heads, each a mean over the labels of the batch, or of all batches that a step accumulates."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .configuration_posenc import PosEncConfig
from .scheme_math import accumulation_dtype
from .unpadding import check_shape

logger = logging.get_logger(__name__)


def whole_numbers(labels: Tensor, device: torch.device) -> Tensor:
    """Numbers of classes or places, int64.

    Raises:
        ValueError: they are real numbers, which would be cut.
    """
    if labels.is_floating_point():
        raise ValueError(
            f"Labels of {labels.dtype} can't be numbers of classes or places. Give whole numbers (int64). For real "
            "numbers per sequence set config.problem_type='regression', or 'multi_label_classification' for (B, C)."
        )
    return labels.to(device=device, dtype=torch.int64)


def cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Mean cross-entropy of (n, C) against (n,), ignoring -100; the sum over `num_items_in_batch` where that is given.

    The mean over no label at all is 0, not NaN.
    """
    if logits.shape[-1] == 1:
        logger.warning_once(
            "With one class the cross-entropy is always 0, so nothing is learned. Set num_labels to 2 or more; for one "
            "number per sequence problem_type='regression', for yes or no 'multi_label_classification'."
        )
    labels = whole_numbers(labels, logits.device)
    total = nn.functional.cross_entropy(logits.to(accumulation_dtype(logits)), labels, reduction="sum")
    return _mean(total, (labels != -100).sum(), num_items_in_batch)


def _mean(total: Tensor, count: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    count = count if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


def sequence_classification_loss(
    logits: Tensor, labels: Tensor, config: PosEncConfig, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """The loss that `config.problem_type` names; where it is None, the labels decide and it is set.

    regression: mean of ((logits - labels) / label_scale)^2; single_label_classification: cross-entropy;
    multi_label_classification: binary cross-entropy.

    Raises:
        ValueError: labels have another shape, or are real numbers where classes are wanted.
    """
    classes, kind = logits.shape[-1], config.problem_type
    if kind is None:
        several = labels.shape == logits.shape and (labels.is_floating_point() or labels.dtype == torch.bool)
        kind = "multi_label_classification" if several else "single_label_classification"
        kind = "regression" if classes == 1 else kind
    is_one_each = kind == "single_label_classification" or classes == 1
    labels = labels.reshape(-1) if is_one_each and labels.numel() == len(logits) else labels
    way_out = f"config.problem_type={kind!r} wants these; for 0 or 1 of each class it is 'multi_label_classification'."
    check_shape("labels", labels, tuple(logits.shape[:1] if is_one_each else logits.shape), way_out)
    if kind == "single_label_classification":
        loss = cross_entropy(logits, labels, num_items_in_batch)
    else:
        loss_of: Any = nn.functional.binary_cross_entropy_with_logits
        precise = logits.to(accumulation_dtype(logits))
        target = labels.reshape(logits.shape).to(precise)
        if kind == "regression":
            loss_of, precise, target = nn.functional.mse_loss, precise / config.label_scale, target / config.label_scale
        loss = _mean(loss_of(precise, target, reduction="sum"), target.numel(), num_items_in_batch)
    config.problem_type = kind  # not before the labels have been found to fit
    return loss
