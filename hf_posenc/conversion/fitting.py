"""Tools of a swap: a model's parts, the inputs of a layer, and a fit by Adam."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..model.hints import scheme_names
from ..model.position_base import PositionScheme


def base_of(model: PreTrainedModel) -> Any:
    """The encoder without its head."""
    return model.base_model


def parts_of(model: PreTrainedModel) -> dict[str, PositionScheme]:
    """The schemes of a model by name."""
    scheme = base_of(model).position
    names = scheme_names(model.config.position_embedding_type)
    return {names[0]: scheme} if len(names) == 1 else {name: getattr(scheme, name) for name in names}


def layer_input(model: PreTrainedModel, rows: Tensor, index: int) -> Tensor:
    """The inputs of a layer's attention: (rows, length, D)."""
    hidden = base_of(model)(rows, output_hidden_states=True).hidden_states[index]
    layer = base_of(model).layers[index]
    return layer.attention_norm(hidden) if layer.pre_norm else hidden


def descend(
    part: nn.Module, function: Callable[[], Tensor], wanted: Tensor, weight: Tensor, steps: int, lr: float = 3e-3
) -> None:
    """Fits a scheme's weights to given numbers by Adam; keeps the best weights."""
    weight = weight / weight.sum()
    parameters = [p for p in part.parameters() if p.requires_grad]
    best, kept = math.inf, [p.detach().clone() for p in parameters]
    size = wanted.square().mean().clamp(min=1e-6)
    with torch.enable_grad():
        optimizer = torch.optim.Adam(parameters, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            loss = (weight.view(-1, *[1] * (wanted.dim() - 1)) * (function() - wanted).square()).sum() / size
            if loss.item() < best:
                best, kept = loss.item(), [p.detach().clone() for p in parameters]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for parameter, value in zip(parameters, kept, strict=True):
        parameter.detach().copy_(value)
        parameter.grad = None
