"""`t5`: a learned bias for each bucket of distances, buckets growing with the distance."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_distance import DistanceBias
from .scheme_math import positive, require, whole


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of p_j - p_i, bidirectional: half of the buckets for each side.

    On each side, half of its buckets hold one distance each; the others grow logarithmically up to `max_distance`, and
    what is farther falls into the last.
    """
    side = num_buckets // 2
    exact = side // 2
    far = distance.abs()
    # float32 as in T5: a distance on a border falls on the same side of it.
    grown = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (side - exact)
    bucket = torch.where(far < exact, far, (exact + grown.long()).clamp(max=side - 1))
    return bucket + (distance > 0).long() * side


class T5Position(DistanceBias):
    """Learned bias per bucket of distances: b_h(i, j) = E[bucket(j - i), h].

    Raffel et al. 2020 (T5), arXiv 1910.10683. Distances 0 to 7 on each side have a bucket each (for 32 buckets),
    farther ones share logarithmically growing buckets up to `max_distance`. T5 doesn't divide q.k by sqrt(d); this
    encoder does, for all schemes alike.

    Costs one (H, S, S) bias per forward, computed for the 2 S - 1 distances and gathered; num_buckets x H weights
    (times the layers if `per_layer`); any length: all far distances look alike.

    Args:
        num_heads, num_layers (int): H, L.
        num_buckets (int): an even number of buckets, at least 4.
        max_distance (int): from here on all distances share the last bucket of their side.
        per_layer (bool): a table of its own for each layer, instead of one for all as in T5.
        initial_std (float): standard deviation of E at the start. At 1, attention sees positions from the first
            step; at T5's own hidden_size^-0.5, made for logits that aren't divided, a short training from scratch may
            never find them.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "t5"
    position_rate = 30.0

    def __init__(
        self,
        *,
        num_heads: int,
        num_layers: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        per_layer: bool = False,
        initial_std: float = 1.0,
    ) -> None:
        super().__init__()
        require("max_distance", max_distance, whole())
        if require("num_buckets", num_buckets, whole()) < 4 or num_buckets % 2 or num_buckets > 2**16:
            raise ValueError(f"num_buckets={num_buckets!r} is out of range. It must be even, from 4 to {2**16}.")
        if max_distance <= num_buckets // 4:
            raise ValueError(
                f"max_distance={max_distance!r} is out of range. With num_buckets={num_buckets} it must be more than "
                f"{num_buckets // 4}."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.per_layer = per_layer
        self.initial_std = require("initial_std", initial_std, positive())
        self.tables = nn.ModuleList(
            [nn.Embedding(num_buckets, num_heads) for _ in range(num_layers if per_layer else 1)]
        )
        self.init_weights(0.02)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """E[bucket(distance)]: (R,) -> (R, H)."""
        return self.tables[layer](t5_bucket(distance, self.num_buckets, self.max_distance))

    def init_weights(self, std: float) -> None:
        """Normal, with the scheme's own standard deviation."""
        for weight in self.tables.parameters():
            init.normal_(weight, std=self.initial_std)
