"""Schemes that add vectors to the embeddings: the new scheme is fitted to the old vectors, whose mean is kept."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.position_base import PositionScheme
from .fitting import base_of, descend
from .tables import extended_table

_FITTED_LENGTH = 128
"""Sentence encoders see mostly positions below this, so the fit weighs these most."""


def is_additive(part: PositionScheme) -> bool:
    """Whether a scheme adds a vector that depends on the position alone."""
    return hasattr(part, "encodings") and getattr(part, "applies_to", "positions") == "positions"


def num_params(part: PositionScheme) -> int:
    """Number of weights of a scheme."""
    return sum(parameter.numel() for parameter in part.parameters())


def vectors_of(part: PositionScheme, length: int) -> Tensor:
    """What a scheme adds at each of the first positions: float32 (length, D)."""
    return part.encodings(torch.arange(length)).float()  # type: ignore[operator]


def _last_layer(part: PositionScheme) -> nn.Module | None:
    """The module whose weights those vectors are linear in."""
    name = getattr(part, "linear_in", None)
    return None if name is None else getattr(part, name)


def zero_output(part: PositionScheme) -> bool:
    """Sets a weight so that the scheme adds nothing at the start; False if no weight can do that."""
    last = _last_layer(part)
    for parameter in () if last is None else last.parameters():
        parameter.zero_()
    return last is not None


def added_vectors(parts: dict[str, PositionScheme], config: Any) -> Tensor | None:
    """What the schemes add to the embeddings at each position, (P, D); None if nothing."""
    additive = [part for part in parts.values() if is_additive(part)]
    if not additive:
        return None
    length = min([part.max_length or config.max_position_embeddings for part in additive])
    with torch.no_grad():
        return torch.stack([vectors_of(part, length) for part in additive]).sum(0)


def _mean_vector(vectors: Tensor) -> Tensor:
    """The mean over the positions that texts have, without the first one, which is [CLS]'s."""
    return vectors[1:_FITTED_LENGTH].mean(0) if len(vectors) > 1 else vectors[0]


def centred(vectors: Tensor) -> Tensor:
    """Vectors (P, D) minus their mean, without the first one where there are others."""
    return vectors[1:] - _mean_vector(vectors) if len(vectors) > 1 else vectors


def _r2(fitted: Tensor, wanted: Tensor, weight: Tensor) -> float:
    weight = weight / weight.sum()
    mean = (weight[:, None] * wanted).sum(0)
    left = (weight[:, None] * (wanted - fitted).square()).sum()
    return 1 - float(left / (weight[:, None] * (wanted - mean).square()).sum().clamp(min=1e-30))


def fit_vectors(part: PositionScheme, table: Tensor, steps: int = 300) -> dict[str, float]:
    """Fits what a scheme adds to given vectors (P, D), P its first positions; returns R^2, up to a constant.

    A table takes the vectors themselves. A network is fitted by least squares in its last layer, then as a whole by
    Adam, kept if that is better; a scale in closed form.
    """
    length = len(table)
    weight = 1 / (1 + torch.arange(length) / _FITTED_LENGTH)  # low positions count more: every text has them
    last = _last_layer(part)
    if isinstance(last, nn.Embedding) and last.num_embeddings == part.max_length:
        last.weight.copy_(extended_table(table, part.max_length, "tile"))
        return {"r2": 1.0}
    wanted = table - _mean_vector(table)
    if isinstance(last, nn.Embedding):
        last.weight.fill_(1.0)
        now = vectors_of(part, length)
        best = float((weight[:, None] * now * wanted).sum() / (weight[:, None] * now * now).sum())
        fitted = _r2(best * now, wanted, weight)
        # Fixed sines have other directions than the old table, so the best factor is about 0, and the model would be
        # blind to order. They start at the old table's size instead.
        if fitted > 0.5:
            last.weight.fill_(best)
        return {"r2": fitted, "best_factor": best, "factor": float(last.weight)}
    if isinstance(last, nn.Linear):
        _least_squares(part, last, wanted, weight)
    if steps and any(True for _ in part.parameters()):
        descend(part, lambda: vectors_of(part, length), wanted, weight, steps)
    vectors = vectors_of(part, length)
    return {"r2": _r2(vectors - _mean_vector(vectors), wanted, weight)}


def _least_squares(part: Any, last: nn.Linear, wanted: Tensor, weight: Tensor) -> None:
    inputs: list[Tensor] = []
    handle = last.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    vectors = vectors_of(part, len(wanted))
    handle.remove()
    hidden = inputs[0].double()
    factor = getattr(part, "scale", 1.0)
    mean = (weight[:, None] * hidden).sum(0) / weight.sum()
    root = weight.double().sqrt()[:, None]
    a = (hidden - mean) * root
    b = (wanted / factor).double() * root
    gram = a.T @ a
    gram += part.fit_ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    solution = torch.linalg.solve(gram, a.T @ b)
    last.weight.copy_(solution.T)
    last.bias.copy_(-(mean @ solution))
    assert vectors.shape == wanted.shape


def fold_constants(model: PreTrainedModel, left: Tensor, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Moves the mean of the old vectors, and what is special about position 0, into the embeddings."""
    embeddings = base_of(model).embeddings
    mean = _mean_vector(left)
    words = embeddings.word_embeddings.weight
    first = left[0] - mean
    cls = None if tokenizer is None else tokenizer.cls_token_id
    if cls is not None and cls < len(words):
        words[cls] += first / embeddings.scale
    if embeddings.token_type_embeddings is not None:
        embeddings.token_type_embeddings.weight.add_(mean)
        where = "token-type embedding"
    else:
        words.add_(mean / embeddings.scale)
        where = "token embedding"
    line = {"what": f"the old vectors' mean is in the {where}", "norm": float(mean.norm())}
    if cls is not None:
        line["position 0"] = "in the embedding of [CLS]"
    return line
