"""`fourier`: learnable Fourier features of the position and a small network on top of them."""

from statistics import NormalDist

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .scheme_added import AddedPosition
from .scheme_math import constant, positive, require, whole
from .scheme_network import input_dtype
from .scheme_vectors import centre_and_scale


class FourierPosition(AddedPosition):
    """Learnable Fourier features and a small network, added: x'_i = x_i + s FFN(r(p_i)).

    r(p) = [cos(p f) || sin(p f)] / sqrt(2M), FFN(r) = GELU(r W1 + b1) W2 + b2.
    Li et al. 2021, "Learnable Fourier Features for Multi-Dimensional Spatial Positional Encoding", arXiv 2106.02795, in
    one dimension, with s = 1. The M frequencies f start as a sample of N(0, 1/gamma^2), which makes r(p) . r(q) about
    exp(-(p - q)^2 / (2 gamma^2)) / 2: positions up to about gamma apart look alike.

    What is learned is the shift of each frequency, f = f0 + delta / R, and not f itself: f0 are the evenly spaced
    quantiles of the normal distribution (without their signs, which change nothing), constants in float32, and delta,
    in radians at position R, starts at 0. A frequency stored in bfloat16 would be off by 1/512 of itself, 8 f radians
    at position 4,000, and no angle there would mean anything; a delta of 1 is off by 1/512 radian at position R. It
    also lets Adam, whose steps are of equal size for all weights, turn far positions by about as much as it moves
    other weights.

    The network starts as that of `lspe` does, so that positions differ from the start: pre-activations of about unit
    variance, b2 cancels the mean over positions, W2 is scaled to a root mean square of 1 over the first 512 positions,
    and the factor s = `rms` brings that to the scale of the tokens.

    Costs one small network per distinct position (not per token) and M + 2 M W + W D + W + D weights, W the hidden
    width; takes any length, though what positions past the trained ones look like was never learned.

    Args:
        hidden_size (int): D.
        num_frequencies (int, optional): M. None: D/2.
        intermediate_size (int, optional): W. None: D.
        gamma (float): distance, in positions, up to which positions look alike at the start.
        reference_length (int): R, the position at which a delta of 1 turns by one radian.
        rms (float, optional): s, the root mean square of what is added at the start. In a model it defaults to that of
            the token embeddings. None: 1, the formula as published.
        dropout: see `AddedPosition`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "fourier"
    token_scaled = "rms"

    def __init__(
        self,
        *,
        hidden_size: int,
        num_frequencies: int | None = None,
        intermediate_size: int | None = None,
        gamma: float = 4.0,
        reference_length: int = 512,
        rms: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dropout=dropout)
        require("hidden_size", hidden_size, whole(most=2**20))
        count = max(hidden_size // 2, 1) if num_frequencies is None else num_frequencies
        width = hidden_size if intermediate_size is None else intermediate_size
        self.num_frequencies = require("num_frequencies", count, whole(most=2**20))
        self.intermediate_size = require("intermediate_size", width, whole(most=2**20))
        self.gamma = require("gamma", gamma, positive())
        self.reference_length = require("reference_length", reference_length, whole())
        self.scale = 1.0 if rms is None else require("rms", rms, positive(", or None for the published formula"))
        normal = NormalDist(sigma=1 / gamma)
        self.quantiles = tuple(normal.inv_cdf(0.5 + (i + 0.5) / (2 * count)) for i in range(count))
        self.shifts = nn.Embedding(1, count)
        self.up = nn.Linear(2 * count, width)
        self.activation = ACT2FN["gelu"]
        self.down = nn.Linear(width, hidden_size)
        if self.up.weight.device.type != "meta":
            self.init_weights(0.02)

    def features(self, positions: Tensor) -> Tensor:
        """r(positions), float32: (...) -> (..., 2M)."""
        count, base = self.num_frequencies, constant(self.quantiles, positions.device)
        shift = self.shifts(torch.zeros((), dtype=torch.int64, device=positions.device)).to(torch.float32)
        p = positions.to(torch.float32).unsqueeze(-1)
        angle = p * base + p / self.reference_length * shift
        return torch.cat((angle.cos(), angle.sin()), -1) * (2 * count) ** -0.5

    def encodings(self, positions: Tensor) -> Tensor:
        """s times the network of r(positions): (...) -> (..., D), in the weights' dtype."""
        features = self.features(positions).to(input_dtype(self.up))
        return self.scale * self.down(self.activation(self.up(features)))

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """Makes positions differ from the start: see the class. Leaves loaded weights alone."""
        init.zeros_(self.shifts.weight)
        # r has a mean square sum of 1/2, so this gives r W1 about unit variance.
        init.normal_(self.up.weight, std=2**0.5)
        init.zeros_(self.up.bias)
        init.normal_(self.down.weight, std=self.intermediate_size**-0.5)
        init.zeros_(self.down.bias)
        features = self.features(torch.arange(512, device=self.up.weight.device))
        hidden = self.activation(features @ self.up.weight.float().T + self.up.bias.float())
        centre_and_scale(self.down, hidden)
