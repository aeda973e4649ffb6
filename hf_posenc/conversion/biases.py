"""Schemes that are a bias on the logits: fitted to the old scheme's mean effect at each distance."""

import functools
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from transformers import PreTrainedModel

from ..model.position_base import PositionScheme
from ..schemes.hooks import one_text
from .fitting import base_of, descend

_NO_EFFECT = 1e-8
_MASKED = 1e3
"""A bias that goes so far below its mean hides tokens."""


def fit_biases(
    model: PreTrainedModel,
    original: PreTrainedModel,
    biased: dict[str, PositionScheme],
    rows: Tensor,
    is_tied: bool,
) -> list[dict[str, Any]]:
    """Fits biases to the old scheme's mean effect at each distance; see the module.

    Several biases are fitted in turn, each to what the ones before it leave. Where the old scheme stays (`is_tied`), or
    had no effect, they are brought as near to 0 as possible.
    """
    lines: list[dict[str, Any]] = []
    effect = _effect_by_distance(model, original, rows, is_tied)  # (L, H, 2 R + 1)
    is_silent = bool(effect.square().mean() < _NO_EFFECT)
    if is_silent:
        effect = torch.zeros_like(effect)
    reach = (effect.shape[-1] - 1) // 2
    distance = torch.arange(-reach, reach + 1)
    weight = (rows.shape[1] - distance.abs()).float()
    # Heads are put in order once, and before anything is fitted to them.
    for number, (name, part) in enumerate(sorted(biased.items(), key=lambda item: not item[1].uses("bias"))):
        shared = part.uses("bias")
        if shared and not is_silent and number == 0:
            order = _slots(part, effect, weight)
            for index, layer in enumerate(base_of(model).layers):
                reorder_heads(layer.attention, order[index])
                effect[index] = effect[index, order[index]]
            lines.append({"scheme": name, "what": "heads of all layers in one order, by their old effect"})
        if not any(p.requires_grad for p in part.parameters()):
            fixed = _bias_by_distance(part, torch.arange(reach + 1)[None], None, weight) if shared else None
            # What a mask or a window cuts off no other bias brings back.
            is_left_out = fixed is None or bool(fixed.abs().max() > _MASKED)
            lines += [{"scheme": name, "what": "its fixed biases come on top"}] * (is_silent or is_left_out)
            if fixed is not None and not is_left_out:
                effect = effect - fixed.permute(1, 2, 0)
            continue
        if shared and part.shift_invariant is False:  # depends on more than distances: fit all pairs
            r2 = _fit_grid(part, effect.mean(0), model.config.max_position_embeddings)
            lines.append({"scheme": name, **_fitted(r2, is_silent)})
            effect = effect - effect.mean(0)
            continue
        target = effect.mean(0, keepdim=True) if shared else effect
        positions = torch.arange(reach + 1)[None]
        queries = None if shared else _sample_queries(model, original, rows, reach + 1)
        bias = functools.partial(_bias_by_distance, part, positions, queries, weight)
        with torch.no_grad():
            wanted = target.permute(2, 0, 1).repeat_interleave(len(bias()[0]) // len(target), dim=1)
        descend(part, bias, wanted, weight, steps=300, lr=3e-2)
        left = (weight[:, None, None] * (bias() - wanted).square()).sum()
        r2 = 1 - float(left / (weight[:, None, None] * wanted.square()).sum().clamp(min=1e-30))
        lines.append({"scheme": name, **_fitted(r2, is_silent)})
        with torch.no_grad():
            effect = effect - bias().unflatten(1, (len(target), -1)).mean(2).permute(1, 2, 0)
    return lines


def _fitted(r2: float, is_silent: bool) -> dict[str, Any]:
    if is_silent:
        return {"what": "starts as nearly without effect as it can"}
    if r2 < 0:
        return {"what": "can't meet the old effect by distance: no bias would be nearer", "r2": r2}
    return {"what": "fitted to the old effect by distance", "r2": r2}


def _fit_grid(part: PositionScheme, effect: Tensor, length: int, steps: int = 150) -> float:
    """Fits a bias that depends on positions, not on distances alone, on a grid of up to 512; returns R^2."""
    positions = torch.arange(min(length, part.max_length or length, 512))[None]
    reach = (effect.shape[-1] - 1) // 2
    distance = (positions - positions.T).clamp(-reach, reach) + reach
    wanted = effect[:, distance]  # (H, S, S)
    wanted = wanted - wanted.mean(-1, keepdim=True)

    def bias() -> Tensor:
        pairs = part.bias(one_text(positions.shape[1]))
        assert pairs is not None
        return pairs[0] - pairs[0].mean(-1, keepdim=True)

    descend(part, bias, wanted, torch.ones(len(wanted)), steps, lr=1e-2)
    return 1 - float((bias() - wanted).square().sum() / wanted.square().sum().clamp(min=1e-30))


def _bias_by_distance(
    part: PositionScheme, positions: Tensor, queries: tuple[Tensor, Tensor] | None, weight: Tensor
) -> Tensor:
    """A scheme's biases without their mean: (2 R + 1, L x samples, H), or (2 R + 1, 1, H) where `queries` is None.

    H is 1 for a scheme with one bias for all heads.
    """
    length = positions.shape[1]
    if queries is None:
        biases = [part.bias(one_text(length))]
    else:
        biases = [
            part.layer_bias(q, k, one_text(length, q.transpose(1, 2).flatten(-2)), layer)
            for layer, (q, k) in enumerate(zip(*queries, strict=True))
        ]
    matrices = torch.cat([bias for bias in biases if bias is not None])  # (L x samples, H or 1, S, S)
    line = torch.cat((matrices[:, :, -1, :-1], matrices[:, :, 0, :]), -1)
    return (line - _mean(line, weight).unsqueeze(-1)).permute(2, 0, 1)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum(-1) / weight.sum()


def _slots(part: PositionScheme, effect: Tensor, weight: Tensor) -> Tensor:
    """Which head of each layer stands where, for a bias that all layers share: (L, H).

    A fixed bias is assigned to the heads whose old effect it resembles most. A trainable one is fitted to the mean
    effect of the heads at each place, so heads are ordered by how local they are, as its own are.
    """
    own = _bias_by_distance(part, torch.arange(len(weight) // 2 + 1)[None], None, weight)[:, 0].T
    own = own.expand(effect.shape[1], -1)  # (place, 2 R + 1)
    if not any(p.requires_grad for p in part.parameters()):
        cost = (weight * (own[:, None] - effect[:, None]).square()).sum(-1)  # (L, place, head)
        return torch.stack([torch.from_numpy(linear_sum_assignment(layer)[1]) for layer in cost.double().numpy()])
    away = (torch.arange(len(weight)) - len(weight) // 2).abs().float()
    away = weight * (_mean(away, weight) - away)
    places = (own * away).sum(-1).argsort(descending=True, stable=True)
    order = torch.empty(effect.shape[:2], dtype=torch.long)
    order[:, places] = (effect * away).sum(-1).argsort(descending=True, stable=True)
    return order


def reorder_heads(attention: Any, heads: Tensor) -> None:
    """Head `heads[i]` becomes head i; the output of attention doesn't change."""
    size = attention.head_dim
    rows = (heads[:, None] * size + torch.arange(size)).flatten()
    for linear in (attention.query, attention.key, attention.value):
        linear.weight.copy_(linear.weight[rows])
        if linear.bias is not None:
            linear.bias.copy_(linear.bias[rows])
    attention.dense.weight.copy_(attention.dense.weight[:, rows])


def _effect_by_distance(model: PreTrainedModel, original: PreTrainedModel, rows: Tensor, is_tied: bool) -> Tensor:
    """Mean difference of log attention probabilities, original minus a model without the new biases: (L, H, 2R + 1).

    0 where `is_tied`: the scheme that had the effect stays.
    """
    with _without_positions(model):
        plain = base_of(model)(rows, output_attentions=True).attentions
    theirs = base_of(original)(rows, output_attentions=True).attentions
    inner = slice(1, -1) if rows.shape[1] > 4 else slice(None)  # without [CLS] and [SEP]
    size = len(range(rows.shape[1])[inner])
    index = torch.arange(size)
    distance = index[None, :] - index[:, None] + size - 1
    lines = []
    for with_, without in zip(theirs, plain, strict=True):
        change = (with_.clamp(min=1e-9).log() - without.clamp(min=1e-9).log())[:, :, inner, inner]
        change = (change - change.mean(-1, keepdim=True)).mean(0)  # (H, S, S)
        total = change.new_zeros(change.shape[0], 2 * size - 1)
        total.index_add_(1, distance.flatten(), change.flatten(1))
        count = torch.zeros(2 * size - 1).index_add_(0, distance.flatten(), torch.ones(size * size))
        lines.append(total / count)
    effect = torch.stack(lines)
    # Few pairs are far apart: only distances up to half the length are reliable.
    reach = max(1, size // 2)
    effect = effect[..., size - 1 - reach : size + reach]
    weight = (rows.shape[1] - torch.arange(-reach, reach + 1).abs()).float()
    return torch.zeros_like(effect) if is_tied else effect - _mean(effect, weight).unsqueeze(-1)


class _without_positions:
    """Turns a model's biases and rotations off while entered; vectors added to embeddings stay."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.base = base_of(model)
        self.scheme = self.base.position

    def __enter__(self) -> None:
        added = PositionScheme()
        embed = self.scheme.embed
        added.embed = lambda x, positions: embed(x, positions)  # type: ignore[method-assign, assignment]
        added.query_scale = self.scheme.query_scale
        self.base.position = added

    def __exit__(self, *_: object) -> None:
        self.base.position = self.scheme


def _sample_queries(
    model: PreTrainedModel, original: PreTrainedModel, rows: Tensor, length: int, count: int = 24
) -> tuple[Tensor, Tensor]:
    """Each layer's query and key of some tokens, repeated at every position: (L, count, H, length, d) both.

    For biases that depend on the token: fitted to one mean token, they would be noise for all others.
    """
    samples: list[list[Tensor]] = [[], []]
    hidden = base_of(original)(rows, output_hidden_states=True).hidden_states
    for index, layer in enumerate(base_of(model).layers):
        x = layer.attention_norm(hidden[index]) if layer.pre_norm else hidden[index]
        x = x.flatten(0, 1)
        x = x[torch.randint(len(x), (count,))]
        for place, linear in enumerate((layer.attention.query, layer.attention.key)):
            heads = linear(x).view(count, -1, 1, layer.attention.head_dim)
            samples[place].append(heads.expand(-1, -1, length, -1))
    return torch.stack(samples[0]), torch.stack(samples[1])
