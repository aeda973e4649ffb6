"""`cosine_bias` from another scheme: least squares over all distances, for each layer and head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.position_base import PositionScheme
from ..model.position_cosine_bias import cut_bias, fit_cosines, geometric_frequencies

_ROUGH = 0.1
"""A fit that moves more than this share of attention is reported as rough."""
_COUNTS = (8, 16, 32, 64)
"""Numbers of frequencies whose fit is reported beside the scheme's own."""


def has_other_waves(name: str, old: Any, new: Any) -> bool:
    """Whether two schemes of this name are cosines of other frequencies, so that coefficients can't be copied."""
    return name == "cosine_bias" and old.frequencies != new.frequencies


def check_extension(parts: dict[str, PositionScheme], length: int, before: int) -> None:
    """Raises where inputs are to become longer than the cosines reach: nothing is known of their bias there.

    Args:
        parts: the new schemes by name.
        length: the new `max_position_embeddings`.
        before: the source's.

    Raises:
        UserError: `cosine_bias` ends before it.
    """
    limit = parts["cosine_bias"].max_length if "cosine_bias" in parts else None
    if limit is not None and before < length > limit:
        raise UserError(
            f"max_position_embeddings={length} is past the {limit} positions of 'cosine_bias', which no conversion "
            "extends. Convert the checkpoint that it was fitted to, with that max_position_embeddings, or train anew."
        )


def carry_biases(
    part: Any, gone: dict[str, PositionScheme], layers: int, effect: Callable[[], Tensor]
) -> dict[str, Any]:
    """Fits `cosine_bias` to the biases that it replaces, and says how near it comes.

    Schemes that are functions of the distance (`alibi`, `t5`, `kerple`, `mlp_bias`) are read exactly, up to
    `max_length`. In place of others it is fitted to their mean effect at near distances, held constant beyond them.

    Args:
        part: the new scheme.
        gone: the schemes that it replaces, by name.
        layers: L.
        effect: gives the mean effect of the old schemes by distance, (L, H, 2 R + 1).

    Returns:
        A line of the report: `largest_error` and `mean_error` in logits, of the bias cut at 12 below its largest
        value; `attention_moved`, the largest total variation between attention with the old and the new bias, of equal
        tokens at the first, middle and last position; and the same for other numbers of frequencies.

    Raises:
        UserError: the old bias is one of cosines that end before `max_length`.
    """
    distance = torch.arange(1 - part.max_length, part.max_length)
    acting = {name: old for name, old in gone.items() if any(map(old.uses, ("rotate", "bias", "layer_bias")))}
    if acting and all(hasattr(old, "of_distance") for old in acting.values()):
        source = f"the bias of {' and '.join(acting)}"
        wanted = torch.stack([_total(acting, distance, layer) for layer in range(layers)])
    else:
        measured = effect()
        reach = (measured.shape[-1] - 1) // 2
        source = f"the old effect by distance, constant from {reach} on"
        wanted = measured[..., distance.clamp(-reach, reach) + reach].double()
    return _fit(part, wanted, source)


def _total(parts: dict[str, Any], distance: Tensor, layer: int) -> Tensor:
    """The sum of old biases in one layer, float64 (H, R)."""
    length = int(distance.max()) + 1
    for name, old in parts.items():
        if old.max_length is not None and old.max_length < length:
            raise UserError(
                f"max_length={length} is past the {old.max_length} positions of the source's {name!r}, beyond which "
                f"nothing is known of it. Give at most {old.max_length}."
            )
    biases = [old.of_distance(distance, layer if old.per_layer else 0) for old in parts.values()]
    return torch.stack(torch.broadcast_tensors(*(bias.double().T for bias in biases))).sum(0)


def _fit(part: Any, wanted: Tensor, source: str) -> dict[str, Any]:
    """Fits to biases (L, H, R), to their mean over layers where the scheme has one for all; a line of the report."""
    wanted = cut_bias(wanted.expand(-1, part.num_heads, -1))
    targets = wanted if part.per_layer else cut_bias(wanted.mean(0, keepdim=True))
    moved, own = {}, len(part.frequencies)
    for count in sorted({*_COUNTS, own}):
        fits = [fit_cosines(target, geometric_frequencies(count, part.max_length)) for target in targets]
        fitted = torch.stack([bias for _, bias in fits])
        moved[count] = float(_attention_moved(wanted, fitted).max())
        if count == own:
            error = (fitted - wanted).abs()
            for table, (coefficients, _) in zip(part.coefficients, fits, strict=True):
                table.weight.copy_(coefficients)
    what = f"fitted to {source}" if wanted.any() else "starts without effect"
    if moved[own] > _ROUGH:
        what = f"only roughly {what}: more num_frequencies, or a smoother bias, may be met closer"
    others = {str(count): round(value, 4) for count, value in moved.items() if count != own}
    return {
        "scheme": part.name,
        "what": what,
        "max_length": part.max_length,
        "num_frequencies": own,
        "largest_error": float(error.max()),
        "mean_error": float(error.mean()),
        "attention_moved": moved[own],
        "attention_moved_by_num_frequencies": others,
    }


def _attention_moved(old: Tensor, new: Tensor) -> Tensor:
    """Total variation between softmax of two biases (..., R), at the first, middle and last position: (3, ...)."""
    length = (old.shape[-1] + 1) // 2
    moved = []
    for i in (0, length // 2, length - 1):
        row = slice(length - 1 - i, 2 * length - 1 - i)
        moved.append((old[..., row].softmax(-1) - new[..., row].softmax(-1)).abs().sum(-1) / 2)
    return torch.stack(moved)
