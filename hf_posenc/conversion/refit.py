"""Refitting: the linear layers of a swapped model are fitted, in closed form, to bring it where the original is.

Layer by layer, on some text. With x' what a linear layer of the swapped model reads, x what the original's reads at the
same tokens, and W its weights so far (biases go with them),

- query, key, value and the first feed-forward layer are to say of x' what they said of x: min |W' x' - W x|^2;
- the last layer of attention and of the feed-forward network is to bring the residual stream where the original's is:
  min |r' + W' x' - (r + W x)|^2, r being the stream that it is added to.

Least squares with a ridge towards the weights that there are, so that directions which the text doesn't show stay.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class _Seen(Exception):
    """Ends a forward pass of which enough was seen."""


@torch.no_grad()
def refit(
    model: PreTrainedModel, original: PreTrainedModel, batches: list[dict[str, Tensor]], *, ridge: float = 1e-2
) -> None:
    """Fits the linear layers of a model, in place; see the module.

    Args:
        model: the swapped model, in evaluation mode.
        original: the model before the swap, with as many layers and in evaluation mode.
        batches: inputs of both, `input_ids` and the like (B, S) each: ten thousand tokens together, or more.
        ridge: weight of staying as it is, as a share of the mean square of what is read.
    """
    layers = zip(cast(Any, model.base_model).layers, cast(Any, original.base_model).layers, strict=True)
    for mine, other in layers:
        x, stream, context = _read(original, other, batches)
        added = stream + other.attention.dense(context)
        middle = _middle(other, added)
        wanted = _stream_of_network(other, added, middle) + other.output(other.activation(other.intermediate(middle)))

        mine_x, *_ = _read(model, mine, batches)
        for linear in (mine.attention.query, mine.attention.key, mine.attention.value):
            _fit(linear, mine_x, linear(x), ridge)
        _, stream, context = _read(model, mine, batches)
        _fit(mine.attention.dense, context, added - stream, ridge)
        added = stream + mine.attention.dense(context)
        mine_middle = _middle(mine, added)
        _fit(mine.intermediate, mine_middle, mine.intermediate(middle), ridge)
        inner = mine.activation(mine.intermediate(mine_middle))
        _fit(mine.output, inner, wanted - _stream_of_network(mine, added, mine_middle), ridge)


def _middle(layer: Any, added: Tensor) -> Tensor:
    """What the feed-forward network reads, where attention and what it is added to are `added`."""
    return cast(Tensor, (layer.output_norm if layer.pre_norm else layer.attention_norm)(added))


def _stream_of_network(layer: Any, added: Tensor, middle: Tensor) -> Tensor:
    """What the feed-forward network is added to."""
    return added if layer.pre_norm else middle


def _read(model: PreTrainedModel, layer: Any, batches: list[dict[str, Tensor]]) -> list[Tensor]:
    """At real tokens, (tokens, D) each: what the query reads, what attention is added to, what its end reads."""
    attention = layer.attention
    watched = [attention.query, layer.attention_norm if layer.pre_norm else attention.query, attention.dense]
    seen: list[list[Tensor]] = [[] for _ in watched]

    def note(place: int) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[place].append(inputs[0])
            if place == len(watched) - 1:
                raise _Seen

        return hook

    handles = [module.register_forward_hook(note(place)) for place, module in enumerate(watched)]
    try:
        for batch in batches:
            try:
                model.base_model(**batch)
            except _Seen:
                continue
    finally:
        for handle in handles:
            handle.remove()
    return [
        torch.cat([_real(tensor, batch["attention_mask"].bool()) for tensor, batch in zip(found, batches, strict=True)])
        for found in seen
    ]


def _real(hidden: Tensor, mask: Tensor) -> Tensor:
    """(tokens, D) of (B, S, D), or of what has no padding already."""
    return hidden[mask] if hidden.shape[:2] == mask.shape else hidden.flatten(0, -2)


def _fit(linear: Any, x: Tensor, wanted: Tensor, ridge: float) -> None:
    """min |W x + b - wanted|^2 + ridge mean(x^2) |(W, b) - (W0, b0)|^2 per token, from x (n, K) and wanted (n, N)."""
    left = wanted - linear(x)
    x = torch.cat((x, x.new_ones(len(x), 1)), -1)
    gram = (x.T @ x).double() / len(x)
    gram.diagonal().add_(ridge * float(gram.diagonal().mean()))
    change = torch.linalg.solve(gram, (x.T @ left).double() / len(x)).T.to(linear.weight.dtype)
    linear.weight.add_(change[:, :-1])
    linear.bias.add_(change[:, -1])
