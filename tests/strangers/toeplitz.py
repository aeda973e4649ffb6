"""A Toeplitz table per layer: one learned number for each head and clipped distance."""

from torch import Tensor, nn

from hf_posenc import DistanceBias


class Toeplitz(DistanceBias):
    """b_h(i, j) = T_l[clip(j - i), h], a table T_l for each layer l."""

    name = "toeplitz"
    per_layer = True
    learning_rate_factor = 30.0

    def __init__(self, *, num_heads: int, num_layers: int, reach: int = 16) -> None:
        super().__init__()
        self.reach = reach
        self.tables = nn.ModuleList([nn.Embedding(2 * reach + 1, num_heads) for _ in range(num_layers)])

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        return self.tables[layer](distance.clamp(-self.reach, self.reach) + self.reach)
