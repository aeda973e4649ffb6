"""`alibi`: attention with linear biases, a penalty that grows with distance."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_distance import DistanceBias
from .scheme_math import constant


def alibi_slopes(num_heads: int) -> list[float]:
    """The published slopes: 2^(-8h/H) for H a power of two.

    Otherwise those of the next lower power of two P, then every other one of the 2P slopes, as in the authors' code:
    for 12 heads the eight of 8 heads, then .7071, .3536, .1768, .0884.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    finer = [2.0 ** (-8.0 * (head + 1) / (2 * power)) for head in range(2 * power)]
    return slopes + finer[::2][: num_heads - power]


class AlibiPosition(DistanceBias):
    """Linear bias on distance, with a slope for each side: b_h(i, j) = -m_h max(i - j, 0) - n_h max(j - i, 0).

    Press et al. 2021, arXiv 2108.12409. Published for causal decoders, with fixed slopes m. In an encoder the symmetric
    form, n = m, tells left from right only by the distances to tokens such as [CLS] and [SEP], so the slopes to the
    right, n, start as those to the left in the opposite order of heads; and the published slopes of few heads are flat
    (1/16 and 1/256 for two), so they are trained. `directional=False, learned=False` gives the published -m_h |i - j|.
    Nothing is added to the embeddings.

    Costs one (H, S, S) bias per forward, shared by all layers unless `per_layer`, and none where FlashAttention takes
    the slopes: of the symmetric form, without a gradient, with hf_posenc and flash_attn installed; 2 H weights (H if
    not directional, none if not learned, times the layers if `per_layer`); any length: the penalty goes on growing
    with the distance.

    Args:
        num_heads, num_layers (int): H, L.
        directional (bool): own slopes to the left and to the right.
        learned (bool): train the slopes (their logarithms) from the published ones.
        per_layer (bool): learned slopes of its own for each layer.

    Raises:
        ValueError: `per_layer` without `learned`.
    """

    name = "alibi"
    position_rate = 30.0

    def __init__(
        self,
        *,
        num_heads: int,
        num_layers: int = 1,
        directional: bool = True,
        learned: bool = True,
        per_layer: bool = False,
    ) -> None:
        super().__init__()
        if per_layer and not learned:
            raise ValueError("per_layer=True has no effect with learned=False. Leave one of them out.")
        self.directional = directional
        self.per_layer = per_layer
        left = alibi_slopes(num_heads)
        self.slopes = [left, left[::-1]] if directional else [left]
        self.log_slopes = (
            nn.Embedding(len(self.slopes) * (num_layers if per_layer else 1), num_heads) if learned else None
        )
        self.init_weights(0.0)

    def slopes_of(self, layer: int, device: torch.device) -> Tensor:
        """m and n, float32: (2, H), or (1, H) where they are the same."""
        if self.log_slopes is None:
            return torch.stack([constant(tuple(side), device) for side in self.slopes])
        first, sides = layer * len(self.slopes), len(self.slopes)
        return self.log_slopes(torch.arange(first, first + sides, device=device)).float().exp()

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """The penalty, float32: (R,) -> (R, H)."""
        slopes = self.slopes_of(layer, distance.device)
        far = distance.unsqueeze(-1).float()
        return slopes[0] * far.clamp(max=0) - slopes[-1] * far.clamp(min=0)

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """The published slopes."""
        if self.log_slopes is not None:
            weight = self.log_slopes.weight
            published = torch.tensor(self.slopes, device=weight.device).log().to(weight.dtype)
            init.copy_(weight, published.repeat(len(weight) // len(published), 1))
