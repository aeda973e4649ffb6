"""`cosine_bias` from another scheme: the attention that it gives is fitted, for each layer and head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.position_base import PositionScheme
from ..model.position_cosine_bias import cut_bias, fit_cosines, geometric_frequencies

_ROUGH = 0.1
"""A fit that moves more than this share of attention is reported as rough."""
_RIDGE = 1e-5
"""On squared coefficients, for each row of attention that is fitted."""
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

    Schemes that are functions of the distance (`alibi`, `t5`, `toeplitz`, `kerple`, `mlp_bias`) are read exactly, up to
    `max_length`. In place of others it is fitted to their mean effect at near distances, held constant beyond them.

    Args:
        part: the new scheme.
        gone: the schemes that it replaces, by name.
        layers: L.
        effect: gives the mean effect of the old schemes by distance, (L, H, 2 R + 1).

    Returns:
        A line of the report: `largest_error` and `mean_error` in logits, of the bias cut at 12 below its largest
        value; `attention_moved`, the largest total variation between attention with the old bias, uncut, and with the
        new, of equal tokens at the first, middle and last position; and the same for other numbers of frequencies.

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
    wanted = wanted.double().expand(-1, part.num_heads, -1)
    targets = wanted
    if not part.per_layer:  # cut, so that no layer's far tokens outweigh another's near ones
        is_shared = bool((wanted == wanted[:1]).all())
        targets = wanted[:1] if is_shared else cut_bias(wanted).mean(0, keepdim=True)
    moved, own = {}, len(part.frequencies)
    for count in sorted({*_COUNTS, own}):
        fits = [fit_attention(target, geometric_frequencies(count, part.max_length)) for target in targets]
        fitted = torch.stack([bias for _, bias in fits])
        moved[count] = float(_attention_moved(wanted, fitted).max())
        if count == own:
            error = (fitted - cut_bias(wanted)).abs()
            for table, (coefficients, _) in zip(part.coefficients, fits, strict=True):
                table.weight.copy_(coefficients)
    what = f"fitted to {source}" if cut_bias(wanted).any() else "starts without effect"
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


def fit_attention(bias: Tensor, frequencies: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Cosines whose softmax is nearest to the bias's: the least sum of KL(old, new), over rows of attention.

    Least squares, which `fit_cosines` gives to start from, errs by several logits where a learned bias falls steeply:
    far tokens, of hardly any weight each, then get most of the attention together. KL is convex in the coefficients,
    and Newton's method finds its minimum in some 10 steps.

    Args:
        bias: (H, 2 S - 1), float64, at the distances 1 - S to S - 1.
        frequencies: K of them.

    Returns:
        As `fit_cosines`: a and then b, (2 K, H); and the bias that they give, (H, 2 S - 1), with the constant that
        makes its mean the old one's, weighted by exp(bias).
    """
    start, _ = fit_cosines(cut_bias(bias), frequencies)
    length = (bias.shape[-1] + 1) // 2
    angle = torch.arange(1 - length, length, dtype=torch.float64).unsqueeze(-1) * bias.new_tensor(frequencies)
    waves = torch.cat((angle.cos(), angle.sin()), -1)
    solution = torch.stack([_descend(row, waves, first) for row, first in zip(bias, start.T, strict=True)])
    fitted = solution @ waves.T
    return solution.T, fitted + (bias.softmax(-1) * (cut_bias(bias) - fitted)).sum(-1, keepdim=True)


def _descend(bias: Tensor, waves: Tensor, start: Tensor, steps: int = 50) -> Tensor:
    """Newton's method with backtracking, for one head: (R,), (R, 2 K), (2 K,) -> (2 K,)."""
    rows = _rows((len(bias) + 1) // 2)
    wanted = torch.zeros_like(bias)
    for row in rows:
        wanted[row] += bias[row].softmax(-1)
    mean, ridge = wanted @ waves, _RIDGE * len(rows)

    def loss(x: Tensor) -> Tensor:
        logits = waves @ x
        return torch.stack([logits[row].logsumexp(-1) for row in rows]).sum() - mean @ x + ridge / 2 * x @ x

    x = start
    for _ in range(steps):
        logits, total, means = waves @ x, torch.zeros_like(bias), []
        for row in rows:
            share = logits[row].softmax(-1)
            total[row] += share
            means.append(share @ waves[row])
        of_rows = torch.stack(means)
        slope = of_rows.sum(0) - mean + ridge * x
        curvature = waves.T @ (total.unsqueeze(-1) * waves) - of_rows.T @ of_rows
        step = torch.linalg.solve(curvature + ridge * torch.eye(len(x), dtype=x.dtype), slope)
        gain, size = slope @ step, 1.0
        if gain < 1e-8:
            break
        while size > 1e-4 and loss(x - size * step) > loss(x) - 0.1 * size * gain:
            size /= 2
        x = x - size * step
    return x


def _rows(length: int) -> list[slice]:
    """The distances that the first, middle and last of n tokens see, for n the length, a quarter of it, ... down to 8.

    Short texts too: what is near counts there alone.
    """
    sizes = [length]
    while sizes[-1] // 4 >= 8:
        sizes.append(sizes[-1] // 4)
    return [slice(length - 1 - i, length - 1 - i + n) for n in sizes for i in (0, n // 2, n - 1)]


def _attention_moved(old: Tensor, new: Tensor) -> Tensor:
    """Total variation between softmax of two biases (..., R), at the first, middle and last position: (3, ...)."""
    length = (old.shape[-1] + 1) // 2
    moved = []
    for i in (0, length // 2, length - 1):
        row = slice(length - 1 - i, 2 * length - 1 - i)
        moved.append((old[..., row].softmax(-1) - new[..., row].softmax(-1)).abs().sum(-1) / 2)
    return torch.stack(moved)
