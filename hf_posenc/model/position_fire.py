"""`fire`: functional interpolation, a learned function of the distance relative to the position."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_math import positive, require, whole
from .scheme_network import init_unit_scale, input_dtype
from .unpadding import Tokens


class FirePosition(PositionScheme):
    """Network on the distance relative to the position: b_h(i, j) = MLP(s(j - i) psi(|j - i|) / psi(max(T, p)))_h.

    psi(x) = log(c x + 1). Li et al. 2023, arXiv 2310.04418: the distance is divided by the position, so that longer
    inputs are interpolated between distances that training showed. c and the threshold T are learned, the MLP has one
    hidden layer of ReLUs.

    For an encoder: published with p = i, the query's position, and j <= i. Here keys lie on both sides, so p = max(i,
    j), which bounds the ratio by 1, depends on nothing but the pair (never on how long the batch is), and s, the sign
    of j - i, tells the sides apart.

    Costs one (H, S, S) bias per forward through a small network for each of the S^2 pairs; W (H + 2) + H + 2 weights;
    takes any length.

    Args:
        num_heads (int): H.
        intermediate_size (int): W, hidden width of the network; 32 as published.
        threshold (float): initial T: shorter inputs aren't interpolated.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "fire"
    position_rate = 10.0

    def __init__(self, *, num_heads: int, intermediate_size: int = 32, threshold: float = 64.0) -> None:
        super().__init__()
        require("intermediate_size", intermediate_size, whole(most=2**16))
        self.threshold = require("threshold", threshold, positive(f", at most {2**24}", most=2**24))
        self.scales = nn.Embedding(2, 1)
        self.up = nn.Linear(1, intermediate_size)
        self.down = nn.Linear(intermediate_size, num_heads)
        self.init_weights(0.02)

    def bias(self, tokens: Tokens) -> Tensor:
        """MLP of the signed ratio: (1 or B, H, S, S)."""
        positions, distance = tokens.positions, tokens.distances()
        # Learned as logarithms, so that c and T stay positive; float32, for they meet positions.
        c, threshold = self.scales(torch.arange(2, device=positions.device)).float().exp()
        place = torch.maximum(positions[:, None, :], positions[:, :, None]).float()
        ratio = torch.log1p(c * distance.abs()) / torch.log1p(c * torch.maximum(place, threshold))
        x = (distance.sign() * ratio).unsqueeze(-1).to(input_dtype(self.up))
        return self.down(torch.relu(self.up(x))).permute(0, 3, 1, 2)

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """The published start: c = 0.1, T as given, and a network of unit-scale inputs."""
        start = torch.tensor([[math.log(0.1)], [math.log(self.threshold)]], device=self.scales.weight.device)
        init.copy_(self.scales.weight, start.to(self.scales.weight.dtype))
        init_unit_scale(self.up, self.down)
