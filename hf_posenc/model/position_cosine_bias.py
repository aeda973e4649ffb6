"""`cosine_bias`: a learned bias on the distance, a sum of cosines that q.k computes in a few more dimensions."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .position_base import PositionScheme
from .position_math import constant, require, whole
from .unpadding import Tokens

_LEAST = -12.0
_RIDGE = 1e-4
"""On squared coefficients. Slow cosines are nearly alike: without it their coefficients reach 10^7, and cancel."""


def geometric_frequencies(count: int, length: int) -> tuple[float, ...]:
    """From pi / length, whose half period is the longest input, to pi, the fastest that whole positions can tell."""
    steps = max(count - 1, 1)
    return tuple(math.pi / length * length ** (k / steps) for k in range(count))


def cut_bias(bias: Tensor) -> Tensor:
    """A bias by distance (..., R) less its largest value, and no lower than -12: the rest gets hardly any attention."""
    return (bias.double() - bias.double().amax(-1, keepdim=True)).clamp(min=_LEAST)


def fit_cosines(bias: Tensor, frequencies: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Least squares over all distances, weighted by exp(bias / 2): what gets most attention counts most.

    Args:
        bias: from `cut_bias`, float64 (H, 2 S - 1) at the distances 1 - S to S - 1, on the CPU.
        frequencies: K of them.

    Returns:
        a and then b, (2 K, H); and the bias that they give, up to a constant for each head, (H, 2 S - 1).
    """
    length = (bias.shape[-1] + 1) // 2
    distance = torch.arange(1 - length, length, dtype=torch.float64, device="cpu")
    angle = distance.unsqueeze(-1) * torch.tensor(frequencies, dtype=torch.float64, device="cpu")
    waves = torch.cat((angle.cos(), angle.sin(), torch.ones_like(angle[:, :1])), -1)  # with the constant
    weight = bias.exp()  # of squares
    ridge = torch.full_like(waves[0], _RIDGE)
    ridge[-1] = 0
    products = torch.stack([waves.T @ (row.unsqueeze(-1) * waves) for row in weight])  # (H, 2 K + 1, 2 K + 1)
    solution = torch.linalg.solve(products + ridge.diag(), (weight * bias) @ waves)
    return solution[:, :-1].T, solution @ waves.T


class CosineBiasPosition(PositionScheme):
    """Sum of cosines of the distance: b_h(i, j) = sum_k a_hk cos(w_k (j - i)) + b_hk sin(w_k (j - i)).

    It is a product of vectors, so no (S, S) matrix is made: at position p, each head's q gets the 2 K more entries
    sqrt(d) (a cos(w p) - b sin(w p), a sin(w p) + b cos(w p)), and k gets (cos(w p), sin(w p)). Every kernel of q.k
    computes the bias with them, FlashAttention too. Wu et al. 2025 (FlashBias), arXiv 2505.12044, write biases as such
    products. Here a and b are learned, and the K frequencies w are fixed, from pi / max_length to pi in geometric
    steps; 0 would add a constant, which softmax ignores. They start as near as they come to the penalties of `alibi`:
    from 0, or at random, a short training learned less about word order with some seeds.

    Costs 2 K more entries of q, k and v in each layer, and zeros up to a multiple of 8; 2 K H weights (times the layers
    if `per_layer`); inputs longer than max_length are an error: past half its period the slowest cosine turns back, so
    that far tokens would look near. Angles are float32 whatever the model's dtype; in bfloat16 the bias is rounded as
    q.k is.

    Args:
        head_dim, num_heads, num_layers, max_positions (int): d, H, L, and `max_length` where that isn't given.
        num_frequencies (int): K.
        max_length (int, optional): the longest input, up to 131,072. It sets the frequencies, so it stays what training
            had.
        per_layer (bool): coefficients of its own for each layer, instead of one set for all.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "cosine_bias"
    shift_invariant = True
    conversion_kwargs = {"num_frequencies": 32, "per_layer": True}
    learning_rate_factor = 30.0
    total_query_scale = 1.0
    """`query_scale` of all schemes that it is combined with, which set it: it acts on what is appended, too."""

    def __init__(
        self,
        *,
        head_dim: int,
        num_heads: int,
        num_layers: int = 1,
        max_positions: int = 512,
        num_frequencies: int = 16,
        max_length: int | None = None,
        per_layer: bool = False,
    ) -> None:
        super().__init__()
        require("num_frequencies", num_frequencies, whole(most=2**10))
        self.max_length: int = require(
            "max_length", max_positions if max_length is None else max_length, whole(2, 2**17)
        )
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.per_layer = per_layer
        self.frequencies = geometric_frequencies(num_frequencies, self.max_length)
        self.coefficients = nn.ModuleList(
            [nn.Embedding(2 * num_frequencies, num_heads) for _ in range(num_layers if per_layer else 1)]
        )
        self.init_weights(0.02)

    def waves(self, positions: Tensor) -> Tensor:
        """cos(w p) and then sin(w p), float32: (...) -> (..., 2 K)."""
        angle = positions.to(torch.float32).unsqueeze(-1) * constant(self.frequencies, positions.device)
        return torch.cat((angle.cos(), angle.sin()), -1)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """The bias at each distance p_j - p_i, as `DistanceBias` has it: int64 (R,) -> (R, H)."""
        rows = self._coefficients(layer, distance.device)
        return self.waves(distance) @ rows.flatten(0, 1)

    def rotary(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """What q and k get: the waves, (..., 1, 2 K); and those turned by all layers' coefficients, (..., H, 2 K)."""
        waves = tokens.at_each(self.waves).unsqueeze(-2)
        return waves, None if self.per_layer else self._turned(waves, 0)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, Tensor | None], layer: int) -> tuple[Tensor, Tensor]:
        """Appends 2 K entries, and zeros up to a multiple of 8: q and k (..., H, d) -> (..., H, d + 2 K + zeros)."""
        waves, turned = state
        return _append(q, self._turned(waves, layer) if turned is None else turned), _append(k, waves)

    def _turned(self, waves: Tensor, layer: int) -> Tensor:
        """(a cos - b sin, a sin + b cos), times what logits are divided by: (..., 1, 2 K) -> (..., H, 2 K)."""
        scale = math.sqrt(self.head_dim) / self.total_query_scale
        a, b = scale * self._coefficients(layer, waves.device).transpose(-1, -2)
        cos, sin = waves.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def _coefficients(self, layer: int, device: torch.device) -> Tensor:
        """a and b, float32: (2, K, H)."""
        table = self.coefficients[layer if self.per_layer else 0]
        return table(torch.arange(2 * len(self.frequencies), device=device)).float().unflatten(0, (2, -1))

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """As near as they come to ALiBi's penalties, those to the right in the opposite order of heads."""
        far = torch.arange(1 - self.max_length, self.max_length, dtype=torch.float64, device="cpu")
        left = 2.0 ** (-8.0 * torch.arange(1, self.num_heads + 1, dtype=torch.float64, device="cpu") / self.num_heads)
        penalty = left.outer(far.clamp(max=0)) - left.flip(0).outer(far.clamp(min=0))
        start, _ = fit_cosines(cut_bias(penalty), self.frequencies)
        for weight in self.coefficients.parameters():
            init.copy_(weight, start.to(weight.dtype))


def _append(x: Tensor, entries: Tensor) -> Tensor:
    entries = nn.functional.pad(entries, (0, -(x.shape[-1] + entries.shape[-1]) % 8))
    return torch.cat((x, entries.to(x.dtype).expand(*x.shape[:-1], -1)), -1)
