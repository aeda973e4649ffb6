"""(a) A learned bias per head and clipped distance."""

from torch import Tensor, nn

from hf_posenc import DistanceBias


class ClippedTable(DistanceBias):
    """b_h(i, j) = T[clip(p_j - p_i, -reach, reach), h]."""

    name = "clipped_table"
    learning_rate_factor = 30.0

    def __init__(self, *, num_heads: int, reach: int = 16) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Embedding(2 * reach + 1, num_heads)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        return self.table(distance.clamp(-self.reach, self.reach) + self.reach)

    def init_weights(self, std: float) -> None:
        nn.init.normal_(self.table.weight, std=1.0)
