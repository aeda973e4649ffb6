"""Fits a new scheme to an old one without any text: added vectors, rotations of queries and keys, and biases.

- **Added vectors.** A trained table isn't centred: its mean is a constant that every later layer has learned to expect.
  It moves into the token-type embedding (or, without types, into the token embedding). What is special about position 0
  moves into the token embedding of [CLS], which occurs at no other position. The new scheme is fitted to the rest.
- **Rotations** keep q.k where pairs rotate slowly. Per head, q and k have a free choice of basis (q A, k A^-T give
  the same q.k); the directions with the most of q.k go to the slowest pairs, those with the least to the fastest.
- **Biases** are fitted to the old scheme's mean effect at each distance: on random tokens, the mean difference between
  log attention probabilities with it and without any.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..model.scheme_base import PositionScheme
from ..schemes.hooks import one_text, rotated_units

_FITTED_LENGTH = 128
"""Sentence encoders see mostly positions below this, so fits weigh these most."""
_STEPS = 300
_NO_EFFECT = 1e-8
_MASKED = 1e3
"""A bias that goes so far below its mean hides tokens."""
_LINEAR_IN = {"learned": "embedding", "sinusoidal": "alpha", "lspe": "down", "fourier": "down"}
"""The child in whose weights what a scheme adds is linear: a table of positions, a factor, a network's last layer."""
_RIDGE = {"lspe": 0.1}
"""Ridge of the fit of such a layer, relative to its inputs' mean square, where it isn't 1e-6. Sigmoids are positive and
similar. With a smaller ridge their weights are fifty times larger and cancel each other: the fit is hardly better, and
the first steps of training change all positions."""
_GRID = 512
"""Positions at which a bias is fitted that depends on more than distances."""
_Queries = tuple[Tensor, Tensor, list[tuple[nn.Module, nn.Module]]]


def descend(part: nn.Module, function: Callable[[], Tensor], wanted: Tensor, weight: Tensor, lr: float = 3e-3) -> float:
    """Fits a scheme's weights to given numbers (n, ...) by Adam, keeps the best weights, and returns R^2."""
    weight = weight.view(-1, *[1] * (wanted.dim() - 1)) / weight.sum()
    best = math.inf
    kept = deepcopy(part.state_dict())
    size = wanted.square().mean().clamp(min=1e-6)
    with torch.enable_grad():
        optimizer = torch.optim.Adam(part.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
        for _ in range(_STEPS):
            loss = (weight * (function() - wanted).square()).sum() / size
            if loss.item() < best:
                best = loss.item()
                kept = deepcopy(part.state_dict())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
    part.load_state_dict(kept)
    return _r2(function(), wanted, weight)


def _r2(fitted: Tensor, wanted: Tensor, weight: Tensor) -> float:
    weight = weight.view(-1, *[1] * (wanted.dim() - 1))
    left, size = ((weight * part.square()).sum() for part in (wanted - fitted, wanted))
    return 1 - float(left.detach() / size.clamp(min=1e-30))


# ---- added vectors --------------------------------------------------------------------------------------------------


def is_additive(part: PositionScheme) -> bool:
    """True where a scheme adds a vector that depends on the position alone."""
    return hasattr(part, "encodings") and getattr(part, "applies_to", "positions") == "positions"


def vectors_of(part: PositionScheme, length: int) -> Tensor:
    """Vectors that a scheme adds at each of the first positions: float32 (length, D)."""
    return part.encodings(torch.arange(length)).float()  # type: ignore[operator]


@torch.no_grad()
def added_vectors(parts: dict[str, PositionScheme], config: Any) -> Tensor | None:
    """Vectors that the schemes add to the embeddings at each position, (P, D); None if nothing."""
    additive = [part for part in parts.values() if is_additive(part)]
    length = min([part.max_length or config.max_position_embeddings for part in additive], default=0)
    return sum(vectors_of(part, length) for part in additive) if additive else None  # type: ignore[return-value]


def _mean_vector(vectors: Tensor) -> Tensor:
    """The mean over the positions that texts have, without the first one, which is [CLS]'s."""
    return vectors[1:_FITTED_LENGTH].mean(0) if len(vectors) > 1 else vectors[0]


def centred(vectors: Tensor) -> Tensor:
    """Vectors (P, D) minus their mean, without the first one where there are others."""
    return vectors[1:] - _mean_vector(vectors) if len(vectors) > 1 else vectors


def zero_output(part: PositionScheme) -> bool:
    """Sets a weight so that the scheme adds nothing at the start; False if no weight can do that."""
    last = getattr(part, _LINEAR_IN.get(part.name, ""), None)
    for parameter in () if last is None else last.parameters():
        parameter.zero_()
    return last is not None


def fit_vectors(part: PositionScheme, table: Tensor) -> dict[str, float]:
    """Fits what a scheme adds to given vectors (P, D), P its first positions; returns R^2, up to a constant.

    A table takes the vectors themselves. A network is fitted by least squares in its last layer, then as a whole by
    Adam, kept if that is better; a scale isn't fitted.
    """
    length = len(table)
    last = getattr(part, _LINEAR_IN.get(part.name, ""), None)
    weight = 1 / (1 + torch.arange(length) / _FITTED_LENGTH)  # low positions count more: every text has them
    if isinstance(last, nn.Embedding) and last.num_embeddings == part.max_length:
        last.weight.copy_(extended_table(table, last.num_embeddings, "tile"))
        return {"r2": 1.0}
    wanted = table - _mean_vector(table)
    if isinstance(last, nn.Embedding):
        # A scale of fixed sines, which have other directions than the old table: the best one is about 0, and the
        # model would be blind to order. They start at the old table's size instead.
        last.weight.fill_(1.0)
        return {"r2": _r2(vectors_of(part, length), wanted, weight)}
    if isinstance(last, nn.Linear):
        _least_squares(part, last, wanted, weight)

    def moved() -> Tensor:
        vectors = vectors_of(part, length)
        return vectors - _mean_vector(vectors)

    if any(True for _ in part.parameters()):
        return {"r2": descend(part, moved, wanted, weight)}
    return {"r2": _r2(moved(), wanted, weight)}


def _least_squares(part: Any, last: nn.Linear, wanted: Tensor, weight: Tensor) -> None:
    inputs: list[Tensor] = []
    handle = last.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    vectors_of(part, len(wanted))
    handle.remove()
    hidden = inputs[0].double()
    mean = (weight[:, None] * hidden).sum(0) / weight.sum()
    size = (weight[:, None] * (hidden - mean).square()).sum(0).mean()
    ridge = Ridge(_RIDGE.get(part.name, 1e-6) * float(size), solver="cholesky")
    ridge.fit(hidden, (wanted / getattr(part, "scale", 1.0)).double(), weight)
    last.weight.copy_(torch.from_numpy(ridge.coef_))
    last.bias.copy_(torch.from_numpy(ridge.intercept_))


def fold_constants(base: Any, left: Tensor, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Moves the mean of the old vectors, and what is special about position 0, into an encoder's embeddings."""
    embeddings = base.embeddings
    mean = _mean_vector(left)
    words, types = embeddings.word_embeddings.weight, embeddings.token_type_embeddings
    cls = None if tokenizer is None else tokenizer.cls_token_id
    if cls is not None:
        words[cls] += (left[0] - mean) / embeddings.scale
    if types is not None:
        types.weight.add_(mean)
    else:
        words.add_(mean / embeddings.scale)
    where = "token-type embedding" if types is not None else "token embedding"
    line = {"what": f"the old vectors' mean is in the {where}", "norm": float(mean.norm())}
    return line | ({"position 0": "in the embedding of [CLS]"} if cls is not None else {})


def extended_table(table: Tensor, length: int, extension: str) -> Tensor:
    """A table of positions for another number of them: (P, D) -> (length, D).

    Fewer: the first ones. More, by `extension`: `tile` repeats the rows from 1 on (row 0 is [CLS]'s alone), so
    that texts of up to P tokens keep their outputs; `interpolate` stretches the rows, so that every row but the first
    changes.
    """
    old = len(table)
    if length <= old:
        return table[:length].clone()
    places = torch.arange(length)
    if extension == "tile":
        return table[torch.where(places < old, places, 1 + (places - 1) % max(old - 1, 1))]
    columns = table.reshape(1, old, -1).mT
    stretched = nn.functional.interpolate(columns, length, mode="linear", align_corners=True)
    return stretched.mT.reshape(length, *table.shape[1:])


# ---- rotations ------------------------------------------------------------------------------------------------------


def _turning_order(turned: Tensor) -> Tensor:
    """A head's dimensions from slow to fast, pairs together, measured by rotating unit vectors to position 1."""
    cosine = turned.diagonal()
    sine = (turned - torch.diag(cosine)).abs()
    partner = torch.where(sine.amax(-1) > 1e-9, sine.argmax(-1), torch.arange(len(turned)))
    order: dict[int, None] = {}  # a set that keeps the order
    for place in cosine.argsort(descending=True, stable=True).tolist():
        order |= {place: None, int(partner[place]): None} if place not in order else {}
    return torch.tensor(list(order))


def choose_basis(attention: Any, part: PositionScheme, inputs: Tensor, layer: int) -> None:
    """q A and k A^-T per head, such that the directions that hold most of q.k turn slowest; q.k itself is unchanged."""
    size = attention.head_dim
    heads = attention.query.out_features // size
    turned = rotated_units(part, heads, size, 2, layer)[:, 1].expand(heads, -1, -1)
    x = inputs.flatten(0, 1).double()
    biased = attention.query.bias is not None
    x = torch.cat((x, x.new_ones(len(x), 1)), -1) if biased else x  # the biases are part of q and k
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    full = [
        (torch.cat((linear.weight, linear.bias[:, None]), -1) if biased else linear.weight)
        .double()
        .unflatten(0, (-1, size))
        for linear in (attention.query, attention.key)
    ]
    for head, (q, k) in enumerate(zip(*full, strict=True)):  # (d, D + 1) both, without biases (d, D)
        # (q root)^T (k root) has rank d: its singular vectors, by two thin decompositions.
        _, qr = torch.linalg.qr((q @ root).T)
        _, kr = torch.linalg.qr((k @ root).T)
        u, s, vh = torch.linalg.svd(qr @ kr.T)
        if s[-1] < 1e-9 * s[0]:
            continue
        # q' root = S^1/2 U^T Qq^T, so q' = A q with A = S^1/2 U^T qr^-T.
        a = s.sqrt()[:, None] * torch.linalg.solve(qr, u).T
        b = s.sqrt()[:, None] * torch.linalg.solve(kr, vh.T).T
        order = _turning_order(turned[head])
        q[order], k[order] = a @ q, b @ k
    for linear, matrix in zip((attention.query, attention.key), full, strict=True):
        flat = matrix.flatten(0, 1).to(linear.weight.dtype)
        linear.weight.copy_(flat[:, : linear.in_features])
        if biased:
            linear.bias.copy_(flat[:, -1])


# ---- biases ---------------------------------------------------------------------------------------------------------


def layer_input(base: Any, hidden: Tensor, index: int) -> Tensor:
    """The inputs of a layer's attention, by the hidden states before it."""
    layer = base.layers[index]
    return layer.attention_norm(hidden) if layer.pre_norm else hidden


def fit_biases(
    model: Any, original: Any, biased: dict[str, PositionScheme], rows: Tensor, is_tied: bool
) -> list[dict[str, Any]]:
    """Fits biases to the old scheme's mean effect at each distance; see the module.

    Several biases are fitted in turn, each to what the ones before it leave. Where the old scheme stays (`is_tied`), or
    had no effect, they are brought as near to 0 as possible.
    """
    lines: list[dict[str, Any]] = []
    effect = _effect_by_distance(model, original, rows)  # (L, H, 2 R + 1)
    is_silent = is_tied or bool(effect.square().mean() < _NO_EFFECT)
    effect = torch.zeros_like(effect) if is_silent else effect
    reach = effect.shape[-1] // 2
    for name, part in sorted(biased.items(), key=lambda item: not item[1].uses("bias")):
        shared = part.uses("bias")
        size = reach + 1
        if not any(p.requires_grad for p in part.parameters()):
            fixed = _by_distance(_biases(part, size)) if shared else None
            # What a mask or a window cuts off no other bias brings back.
            is_left_out = fixed is None or bool(fixed.abs().max() > _MASKED)
            lines += [{"scheme": name, "what": "its fixed biases come on top"}] * (is_silent or is_left_out)
            effect = effect if fixed is None or is_left_out else effect - fixed
            continue
        if shared and part.shift_invariant is False:
            size = min(model.config.max_position_embeddings, part.max_length or _GRID, _GRID)
        queries = None if shared else _sample_queries(model, original, rows, size)
        with torch.no_grad():
            count = len(_biases(part, size, queries))
        target = effect.mean(0, keepdim=True) if shared else effect
        places = torch.arange(size)
        distance = (places - places[:, None]).clamp(-reach, reach) + reach
        wanted = target[..., distance].repeat_interleave(count // len(target), 0)  # (L x samples, H, S, S)
        wanted = wanted - wanted.mean(-1, keepdim=True)

        def bias(part: Any = part, size: int = size, queries: Any = queries) -> Tensor:
            pairs = _biases(part, size, queries)
            return pairs - pairs.mean(-1, keepdim=True)

        r2 = descend(part, bias, wanted, torch.ones(count), lr=3e-2 if size == reach + 1 else 1e-2)
        fitted = {"what": "fitted to the old effect by distance", "r2": r2}
        lines.append(
            {"scheme": name, **({"what": "starts as nearly without effect as it can"} if is_silent else fitted)}
        )
        with torch.no_grad():
            left = _by_distance(_biases(part, reach + 1, queries))
            effect = effect - left.unflatten(0, (len(target), -1)).mean(1)
    return lines


def _biases(part: PositionScheme, size: int, queries: _Queries | None = None) -> Tensor:
    """A scheme's biases: (1, H, S, S), or with `queries` (L x samples, H, S, S); H is 1 where heads are alike."""
    if queries is None:
        return part.bias(one_text(size))  # type: ignore[return-value]
    biases = [
        part.layer_bias(q, k, replace(one_text(size, q.transpose(1, 2).flatten(-2)), projections=projections), layer)
        for layer, (q, k, projections) in enumerate(zip(*queries, strict=True))
    ]
    return torch.cat([bias for bias in biases if bias is not None])


def _by_distance(matrices: Tensor) -> Tensor:
    """Biases (n, H, S, S) at each distance, without their mean: (n, H, 2 S - 1)."""
    return _centred(torch.cat((matrices[:, :, -1, :-1], matrices[:, :, 0, :]), -1))


def _centred(effect: Tensor) -> Tensor:
    """An effect by distance (..., 2 R + 1) without its mean; near pairs are more, and count more."""
    count = effect.shape[-1]
    pairs = (count + 1 - (torch.arange(count) - count // 2).abs()).float()  # about how many have each distance
    return effect - ((effect * pairs).sum(-1) / pairs.sum()).unsqueeze(-1)


def _effect_by_distance(model: Any, original: Any, rows: Tensor) -> Tensor:
    """Mean difference of log attention probabilities, original minus a model without the new biases: (L, H, 2R + 1)."""
    base = model.base_model
    bare = PositionScheme()  # without biases and rotations; vectors added to embeddings stay
    scheme, base.position = base.position, bare
    bare.embed, bare.query_scale = scheme.embed, scheme.query_scale  # type: ignore[method-assign]
    plain = base(rows, output_attentions=True).attentions
    base.position = scheme
    theirs = original.base_model(rows, output_attentions=True).attentions
    inner = slice(1, -1) if rows.shape[1] > 4 else slice(None)  # without [CLS] and [SEP]
    reach = len(range(rows.shape[1])[inner]) // 2  # few pairs are far apart
    lines = []
    for with_, without in zip(theirs, plain, strict=True):
        change = (with_.clamp(min=1e-9).log() - without.clamp(min=1e-9).log())[:, :, inner, inner]
        change = (change - change.mean(-1, keepdim=True)).mean(0)  # (H, S, S)
        lines.append(torch.stack([change.diagonal(at, 1, 2).mean(-1) for at in range(-reach, reach + 1)], -1))
    return _centred(torch.stack(lines))


def _sample_queries(model: Any, original: Any, rows: Tensor, length: int) -> _Queries:
    """Each layer's query and key of 24 tokens, repeated at every position, (L, 24, H, length, d) both, and projections.

    For biases that depend on the token: fitted to one mean token, they would be noise for all others.
    """
    samples: tuple[list[Tensor], list[Tensor]] = ([], [])
    projections = []
    hidden = original.base_model(rows, output_hidden_states=True).hidden_states
    for index, layer in enumerate(model.base_model.layers):
        x = layer_input(model.base_model, hidden[index], index).flatten(0, 1)
        x = x[torch.randint(len(x), (24,))]
        attention = layer.attention
        projections.append(
            (deepcopy(attention.query).requires_grad_(False), deepcopy(attention.key).requires_grad_(False))
        )
        for kept, linear in zip(samples, projections[-1], strict=True):
            heads = linear(x).view(len(x), -1, 1, attention.head_dim)
            kept.append(heads.expand(-1, -1, length, -1))
    return torch.stack(samples[0]), torch.stack(samples[1]), projections
