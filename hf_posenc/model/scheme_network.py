"""Networks of schemes: what their linear layers take, and how they start. Your own scheme may import it."""

import torch
from torch import Tensor, nn
from transformers import initialization as init


def input_dtype(layer: nn.Linear) -> torch.dtype:
    """The dtype of inputs that a linear layer takes: its weights', or float32 where they are quantised to int8."""
    return layer.weight.dtype if isinstance(layer.weight, Tensor) else torch.float32


def init_unit_scale(up: nn.Linear, down: nn.Linear) -> None:
    """A network of one input: for inputs of unit scale its outputs are of about unit scale."""
    init.normal_(up.weight, std=1.0)
    init.uniform_(up.bias, -1.0, 1.0)
    init.normal_(down.weight, std=down.in_features**-0.5)
    init.zeros_(down.bias)
