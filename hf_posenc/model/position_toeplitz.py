"""`toeplitz`: a learned bias for each distance, up to a limit."""

from torch import Tensor, nn
from transformers import initialization as init

from .scheme_distance import DistanceBias
from .scheme_math import positive, require, whole


class ToeplitzPosition(DistanceBias):
    """Learned bias per distance: b_h(i, j) = T[clip(j - i, -max_distance, max_distance), h].

    The clipped distances of Shaw et al. 2018, arXiv 1803.02155, with a number for each head in the place of a vector,
    as in Raffel et al. 2020 (T5), arXiv 1910.10683, with a number for each distance in the place of buckets. The matrix
    of a head is a Toeplitz matrix. It assumes nothing about distances, so it is what any other bias has to beat.

    Costs one (H, S, S) bias per forward, read from 2 S - 1 distances and gathered; (2 max_distance + 1) H weights
    (times the layers if `per_layer`); any length: all farther distances look alike.

    Args:
        num_heads, num_layers (int): H, L.
        max_distance (int): all distances from here on share the last number of their side.
        per_layer (bool): a table of its own for each layer, instead of one for all.
        initial_std (float): standard deviation of T at the start; 1 as in `t5`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "toeplitz"
    position_rate = 30.0

    def __init__(
        self,
        *,
        num_heads: int,
        num_layers: int,
        max_distance: int = 32,
        per_layer: bool = False,
        initial_std: float = 1.0,
    ) -> None:
        super().__init__()
        self.max_distance = require("max_distance", max_distance, whole(most=2**16))
        self.per_layer = per_layer
        self.initial_std = require("initial_std", initial_std, positive())
        self.tables = nn.ModuleList(
            [nn.Embedding(2 * max_distance + 1, num_heads) for _ in range(num_layers if per_layer else 1)]
        )
        self.init_weights(0.02)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """T[clip(distance)]: (R,) -> (R, H)."""
        row: Tensor = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return self.tables[layer](row)

    def init_weights(self, std: float) -> None:
        """Normal, with the scheme's own standard deviation."""
        for weight in self.tables.parameters():
            init.normal_(weight, std=self.initial_std)
