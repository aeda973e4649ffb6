"""Panels of the vectors that a scheme adds to the embeddings, and of its rotation of queries and keys."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.position_base import PositionScheme
from hf_posenc.model.positions import make_position

from .effects_on_logits import bias_effect
from .hooks import appended_bias, one_text, rotated_units
from .panel_types import (
    Effect,
    Maps,
    Note,
    curves,
    from_three_positions,
    pair_map,
    short_number,
    signed_distances,
    to_numpy,
)
from .sources import Subject, initial_scheme, size_of

_MOST_ROWS = 128
_SIZES = (
    *("hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings"),
    "position_embedding_type",
)
"""The fields that a scheme's defaults depend on."""


def encodings_of(subject: Subject, length: int) -> Tensor:
    """What is added to embeddings of zero: (S, D)."""
    scheme = subject.scheme
    table = getattr(scheme, "embedding", None)
    if subject.config is None and isinstance(table, torch.nn.Embedding):
        width = table.embedding_dim
    elif subject.config is None and not hasattr(scheme, "hidden_size") and not hasattr(scheme, "encodings"):
        width = 1  # `none` adds nothing whatever the width
    else:
        width = size_of(subject, "hidden_size", lambda config: config.embedding_width)
    return scheme.embed(torch.zeros(1, length, width), one_text(length))[0].float()


def embedding_effect(encodings: Tensor) -> Effect:
    """Panels of what is added at each position, (S, D)."""
    width = encodings.shape[1]
    unit = torch.nn.functional.normalize(encodings, dim=-1)
    cosine = unit @ unit.T
    # A few outliers of a random table would make all other values pale; the colour bar's pointed ends show them.
    bound = float(np.quantile(np.abs(to_numpy(encodings)), 0.999))
    # More rows than pixels would show false patterns. Pairs, because a sine's neighbour is its cosine.
    starts = torch.linspace(0, width - 2, _MOST_ROWS // 2).long() // 2 * 2 if width > _MOST_ROWS else None
    shown = torch.arange(width) if starts is None else torch.stack((starts, starts + 1), 1).flatten()
    heat = Maps(
        title="What is added" + ("" if starts is None else f" ({_MOST_ROWS} of {width} dimensions)"),
        values=to_numpy(encodings.T[shown])[None],
        x_label="position",
        y_label="dimension",
        value_label="value",
        limits=(-bound, bound),
        y_names=tuple(str(int(row)) for row in shown),
    )
    matrix = pair_map("Cosine of positions", cosine, "cosine", (-1, 1))
    of_cosines: dict[str, Any] = {"y_label": "cosine", "limits": (-1.05, 1.05)}
    profile = from_three_positions("Cosine against distance", cosine, **of_cosines)
    moments = torch.stack((encodings.mean(-1), encodings.std(-1, unbiased=False)))
    by_position = [
        ("Cosine of neighbours", cosine.diagonal(1)[None], ["p and p + 1"], of_cosines),
        (f"Mean and deviation over {width} dimensions", moments, ["mean", "deviation"], {"y_label": "value"}),
        ("Norm", encodings.norm(dim=-1)[None], ["norm"], {"y_label": "Euclidean norm", "limits": (0, None)}),
    ]
    lines = [
        curves(title, np.arange(values.shape[1]), values, names, x_label="position", **words)
        for title, values, names, words in by_position
    ]
    return Effect("embeddings", (heat, matrix, profile, *lines), matrix, profile)


def _decay(turned: Tensor) -> Tensor:
    """R(0) x . R(p) x for unit vectors x: (H, S, d, d) -> (H, d, S)."""
    return torch.einsum("hab,hpab->hap", turned[:, 0], turned)


def _pairs(turned: Tensor) -> tuple[list[int], np.ndarray]:
    """The first entry of each turned pair of a head, the fastest first, and the pairs' wavelengths in tokens."""
    diagonal = turned.diagonal(dim1=1, dim2=2)
    # Entry a is paired with the one other entry that its rotation reaches; without one, it isn't rotated.
    reach = (turned - torch.diag_embed(diagonal)).abs().amax(0)
    partner = reach.argmax(-1)
    # One step of positions gives the speed.
    angle = torch.linalg.vector_norm(turned[1] - diagonal[1].diag(), dim=-1).atan2(diagonal[1])
    pairs = [a for a in range(len(reach)) if reach[a].max() > 0 and a < int(partner[a])]
    pairs.sort(key=lambda a: -float(angle[a]))
    return pairs, to_numpy(2 * torch.pi / angle[pairs])


def rotation_effect(subject: Subject, length: int, layer: int) -> Effect:
    """How one layer turns queries and keys at the first `length` positions, or the bias that it makes by them."""
    head_dim = size_of(subject, "head_dim", lambda config: config.hidden_size // config.num_attention_heads)
    heads = subject.config.num_attention_heads if subject.config else getattr(subject.scheme, "num_heads", 1)
    bias = appended_bias(subject.scheme, heads, head_dim, length, layer)
    if bias is not None:
        return bias_effect(bias, "appended", f", q = k = 0, layer {layer}")
    turned = rotated_units(subject.scheme, heads, head_dim, length, layer)
    return _rotation_effect(subject, turned, head_dim, heads, layer)


def _rotation_effect(subject: Subject, turned: Tensor, head_dim: int, heads: int, layer: int) -> Effect:
    """Panels of the rotated unit vectors (H or 1, S, d, d)."""
    length = turned.shape[1]
    if turned.shape[-1] != head_dim:
        text = f"{head_dim} entries of queries and keys become {turned.shape[-1]}:\nthere are no angles to draw."
        return Effect("queries", (Note("Queries and keys", text),), None, None)
    decay = _decay(turned)
    pairs_of_heads = [_pairs(head) for head in turned]
    pairs, wavelengths = pairs_of_heads[0]
    means = to_numpy(decay.mean(1))  # (H, S)
    # Above 1 where a scaling multiplies cos and sin by a factor.
    most = max(1.0, float(decay.abs().max()))
    names, group, where = ["this one"], "", ""
    shown, waves = means, [wavelengths]
    if len(turned) > 1:
        names, group, where = [str(head) for head in range(len(turned))], "head", ", head 0"
        longest = max(row.size for _, row in pairs_of_heads)
        waves = [np.pad(row, (0, longest - row.size), constant_values=np.nan) for _, row in pairs_of_heads]
    elif (default := _default_of(subject)) is not None:
        other = rotated_units(default, heads, head_dim, length, layer)
        other_means = to_numpy(_decay(other).mean(1))
        if other_means.shape == means.shape and not np.allclose(other_means, means, atol=1e-4):
            names, shown = ["as configured", "the default"], np.concatenate((means, other_means))
            waves = [row for row in (wavelengths, _pairs(other[0])[1]) if row.size == wavelengths.size]
    size, label = 2 * len(pairs), "q.k over q.k unturned"
    of_products: dict[str, Any] = {"group": group, "y_label": label, "limits": (-1.05 * most, 1.05 * most)}
    heat = Maps(
        title=f"q.k of each pair of entries{where}",
        values=to_numpy(decay[0][pairs])[None],
        y_label="wavelength of the pair (tokens)",
        value_label=label,
        limits=(-most, most),
        y_names=tuple(short_number(wave) for wave in wavelengths),
    )
    distances, both = np.arange(length), signed_distances(length)
    turned_entries = f", {size} of them turned" if size < head_dim else ""
    line = curves(f"Mean of {head_dim} entries{turned_entries}", distances, shown, names, **of_products)
    of_pairs = {"group": group, "x_label": "pair of entries, fastest first", "y_label": "tokens per turn"}
    places = np.arange(len(waves[0]))
    wave = curves("Wavelengths", places, np.stack(waves), names[: len(waves)], log=True, **of_pairs)
    products = means.mean(0)[np.abs(distances[:, None] - distances[None, :])]
    of_heads = ", mean of heads" if group else ""
    matrix = pair_map(f"Mean of rotated q.k{of_heads}", products, label, (-most, most))
    title, by_distance = "Mean of rotated q.k against distance", means[:, np.abs(both)]
    profile = curves(title, both, by_distance, names if group else ["q = k"], **of_products)
    # A head of which nothing is turned has no pair to show.
    return Effect("rotation", (*([heat] if pairs else []), line, *([wave] if len(places) else [])), matrix, profile)


def _default_of(subject: Subject) -> PositionScheme | None:
    """The scheme with its defaults, where the config doesn't have them."""
    if subject.config is None:
        return None
    config = subject.config
    arguments = (config.position_embedding_kwargs, config.rope_parameters)
    try:
        default = PosEncConfig(**{name: getattr(config, name) for name in _SIZES})
        with torch.device("meta"):
            make_position(default)  # it completes the arguments
    except ValueError:  # a scheme whose arguments have no defaults
        return None
    if arguments == (default.position_embedding_kwargs, default.rope_parameters):
        return None
    return initial_scheme(default)
