"""`mlp_bias`: a bias that a small network computes from the log-spaced distance."""

import math

import torch
from torch import Tensor, nn

from .scheme_distance import DistanceBias
from .scheme_math import require, whole
from .scheme_network import init_unit_scale, input_dtype


class MLPBiasPosition(DistanceBias):
    """Network on the log-spaced distance: b_h(i, j) = MLP(s(j - i) log2(1 + |j - i|) / log2(1 + R))_h.

    R is a reference distance. Liu et al. 2021 (Swin Transformer V2, log-spaced continuous position bias), arXiv
    2111.09883, in one dimension: two linear layers with a ReLU between them. A smooth function of the distance instead
    of a table, so distances that training didn't show get a value near those of their neighbours.

    Costs one (H, S, S) bias per forward: the network runs on the 2 S - 1 distances, and is gathered; W (H + 2) + H
    weights; takes any length.

    Args:
        num_heads (int): H.
        intermediate_size (int): W, hidden width of the network.
        reference_distance (int): R, the distance that the network sees as 1.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "mlp_bias"
    position_rate = 10.0

    def __init__(self, *, num_heads: int, intermediate_size: int = 64, reference_distance: int = 128) -> None:
        super().__init__()
        for name, value in (("intermediate_size", intermediate_size), ("reference_distance", reference_distance)):
            require(name, value, whole())
        self.reference = math.log2(1 + reference_distance)
        self.up = nn.Linear(1, intermediate_size)
        self.down = nn.Linear(intermediate_size, num_heads)
        self.init_weights(0.02)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """The network: (R,) -> (R, H)."""
        x = distance.sign() * torch.log2(1 + distance.abs().float()) / self.reference
        return self.down(torch.relu(self.up(x.unsqueeze(-1).to(input_dtype(self.up)))))

    def init_weights(self, std: float) -> None:
        """Inputs of unit scale, outputs of about unit scale."""
        init_unit_scale(self.up, self.down)
