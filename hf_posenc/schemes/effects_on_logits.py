"""Panels of a bias on the logits: one that doesn't depend on the words, or one that depends on queries and keys."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .hooks import one_text
from .panel_types import (
    DEFAULT_POSITIONS,
    Effect,
    Lines,
    Maps,
    Panel,
    colour_limits,
    curves,
    from_three_positions,
    pair_map,
    signed_distances,
    to_numpy,
)
from .sources import Subject, size_of

_MOST_MAPS = 12

_DRAWS = 2

_MEASURED = 256
"""Number of random queries and keys over which a bias that isn't linear in them is measured."""


def _by_distance(bias: Tensor) -> Tensor:
    """The last row and the first of a matrix, joined: (..., S, S) -> (..., R), all of it where distance decides."""
    return torch.cat((bias[..., -1, :-1], bias[..., 0, :]), -1)


def _by_pairs(values: Tensor) -> Tensor:
    """The matrix of which `_by_distance` gives these values: (..., R) -> (..., S, S)."""
    length = (values.shape[-1] + 1) // 2
    positions = torch.arange(length)
    return values[..., positions[None, :] - positions[:, None] + length - 1]


def _distance_decides(bias: Tensor) -> bool:
    rebuilt = _by_pairs(_by_distance(bias))
    return bool((bias - rebuilt).abs().max() <= 1e-5 * bias.abs().max() + 1e-9)


def _heads(values: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Rows by head, or one where all heads are alike."""
    if bool(torch.isclose(values, values[:1], rtol=1e-5, atol=1e-8).all()):
        return values[:1], ("all heads",)
    return values, tuple(map(str, range(len(values))))


def _by_head(title: str, x: np.ndarray, values: Tensor, y_label: str, limits: Any = (None, None)) -> Lines:
    """A curve for each head of (H, N), or one where all are alike."""
    return curves(title, x, *_heads(values), group="head", y_label=y_label, limits=limits)


def _all_pairs(bias: Tensor, limits: tuple[float, float], where: str) -> Maps:
    """The bias of each head, (H, S, S), or of one where all are alike."""
    maps, names = _heads(bias)
    shown = f", the first {_MOST_MAPS} of {len(names)} heads" if len(names) > _MOST_MAPS else ""
    return Maps(
        title=f"Bias of each pair of positions{shown}{where}",
        values=to_numpy(maps[:_MOST_MAPS]),
        names=tuple(f"head {name}" for name in names[:_MOST_MAPS]),
        x_label="key position j",
        y_label="query position i",
        value_label="bias (logit)",
        limits=limits,
    )


def bias_effect(bias: Tensor, kind: str, where: str) -> Effect:
    """Panels of (H or 1, S, S)."""
    length = bias.shape[-1]
    middle, label, limits = length // 2, "bias (logit)", colour_limits(bias)
    from_middle = np.arange(length) - middle
    title = f"Attention among equal tokens, i = {middle}"
    attention = _by_head(title, from_middle, bias[:, middle].softmax(-1), "attention weight", (0, None))
    if _distance_decides(bias):
        distances = signed_distances(length)
        profile = _by_head(f"Bias against distance{where}", distances, _by_distance(bias), label)
        by_head = Maps(
            title=f"The same by head{where}",
            values=profile.y[None],
            y_label="head",
            value_label=label,
            limits=limits,
            x_start=distances[0],
        )
        panels: tuple[Panel, ...] = (profile, *([by_head] if len(profile.names) > 1 else []), attention)
    else:
        profile = _by_head(f"Bias from position {middle}{where}", from_middle, bias[:, middle], label)
        several = from_three_positions(f"Head 0 from several positions{where}", bias[0], y_label=label)
        panels = (profile, several, attention, _all_pairs(bias, limits, where))
    mean = bias.mean(0)
    return Effect(kind, panels, pair_map("Bias, mean of heads", mean, label, colour_limits(mean), logits=True), profile)


def layer_bias_effect(subject: Subject, length: int, layer: int) -> Effect:
    """Panels of a bias of one layer: with vectors for q and k if they matter."""
    heads = size_of(subject, "num_heads", lambda config: config.num_attention_heads)
    head_dim = size_of(subject, "head_dim", lambda config: config.hidden_size // config.num_attention_heads)

    def bias(q: Tensor, k: Tensor, state: float = 0.0) -> Tensor:
        """q and k (n, H, d), the same at every place, hidden states of equal entries -> (n, H, S, S)."""
        q, k = (t[:, :, None].expand(-1, -1, length, -1) for t in (q, k))
        try:
            x = torch.full((len(q), length, heads * head_dim), state)
            biases = subject.scheme.layer_bias(q, k, one_text(length, x), layer)
        except IndexError as error:
            raise UserError(f"layer={layer!r} is out of range: the scheme has no such layer.") from error
        if biases is None:
            return q.new_zeros(len(q), heads, length, length)
        return biases.float().expand(q.shape[0], heads, -1, -1)

    where = f", layer {layer}"
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, _DRAWS, heads, head_dim, generator=generator)
    draws = bias(q, k)
    if not torch.allclose(bias(q[:1], k[:1], state=1.0), draws[:1]):
        where += ", hidden states of 0"
    if torch.allclose(draws[0], draws[1], rtol=1e-5, atol=1e-8):
        return bias_effect(draws[0], "layer bias", where)
    vectors, constant = _vectors(bias, heads, head_dim)
    foretold = constant + torch.einsum("nhd,hrd->nhr", q, vectors[0]) + torch.einsum("nhd,hrd->nhr", k, vectors[1])
    if torch.allclose(foretold, _by_distance(draws), rtol=1e-3, atol=1e-4 * float(draws.abs().max())):
        spread = vectors.square().sum((0, 3)).sqrt()
        alike = vectors[:, 0].transpose(0, 1).flatten(1)
        what = "Cosine of the distances' vectors"
    else:  # no sum of products: what it does to many drawn q and k
        count = _MEASURED if length <= DEFAULT_POSITIONS else _MEASURED // 8
        q, k = torch.randn(2, count, heads, head_dim, generator=generator)
        many = torch.cat([_by_distance(bias(q[n : n + 1], k[n : n + 1])) for n in range(count)])  # (n, H, R)
        spread = many.std(0)
        alike = (many - many.mean(0))[:, 0].T
        what = f"Correlation of distances over {count} draws"
    return _content_effect(draws, spread, alike, what, where)


def first_biased_layer(subject: Subject) -> int:
    """The first layer that has a `layer_bias`; 0 where none has."""
    heads = size_of(subject, "num_heads", lambda config: config.num_attention_heads)
    head_dim = size_of(subject, "head_dim", lambda config: config.hidden_size // config.num_attention_heads)
    none, two = torch.zeros(1, heads, 2, head_dim), one_text(2, torch.zeros(1, 2, heads * head_dim))
    layers = range(size_of(subject, "num_layers", lambda config: config.num_hidden_layers))
    return next((n for n in layers if subject.scheme.layer_bias(none, none, two, n) is not None), 0)


def _vectors(bias: Callable[[Tensor, Tensor], Tensor], heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """The factors on q and k of a bias that is linear in them, (2, H, R, d), and its constant term, (H, R).

    Measured on unit vectors one entry at a time: all at once would take (d, H, S, S).
    """
    zero = torch.zeros(1, heads, head_dim)
    nothing = _by_distance(bias(zero, zero))[0]
    entries = []
    for unit in torch.eye(head_dim):
        e = unit.expand_as(zero)
        entries.append(torch.stack([_by_distance(answer)[0] - nothing for answer in (bias(e, zero), bias(zero, e))]))
    return torch.stack(entries, -1), nothing


def _content_effect(draws: Tensor, spread: Tensor, alike: Tensor, what: str, where: str) -> Effect:
    """Panels of a bias that depends on q and k.

    Args:
        draws: (n, H, S, S), the bias of random q and k.
        spread: (H, R), its deviation by distance.
        alike: (R, N), a row for each distance, whose cosines are shown.
        what: what those cosines are.
        where: the layer.
    """
    length = draws.shape[-1]
    distances = signed_distances(length)
    title = f"Deviation of the bias over random q, k{where}"
    size = _by_head(title, distances, spread, "deviation (logit)", (0, None))
    unit = torch.nn.functional.normalize(alike, dim=-1)
    cosine = Maps(
        title=f"{what}, {'all heads' if len(size.names) == 1 else 'head 0'}",
        values=to_numpy(unit @ unit.T)[None],
        y_label="distance j - i (tokens)",
        value_label=what.split()[0].lower(),
        limits=(-1, 1),
        x_start=distances[0],
        y_start=distances[0],
    )
    title, shown = f"Bias of {_DRAWS} random q, k (unit variance), head 0", _by_distance(draws[:, 0])
    examples = curves(title, distances, shown, range(_DRAWS), group="draw", y_label="bias (logit)")
    deviations = _by_pairs(_heads(spread)[0].mean(0))
    matrix = pair_map("Deviation, mean of heads", deviations, "logit", (0.0, float(deviations.max())), logits=True)
    return Effect("layer bias", (size, cosine, examples), matrix, size)
