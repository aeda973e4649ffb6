"""Two schemes of a user's own, which exercise the hooks in other ways than the published ones."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme


class Slope(PositionScheme):
    """A fixed bias per head: -2^-h |i-j|, and 1 towards each sequence's first token."""

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def bias(self, positions: Tensor, is_first: Tensor) -> Tensor:
        distance = (positions[:, None, :] - positions[:, :, None]).abs().float()
        slopes = 2.0 ** -torch.arange(self.num_heads, device=positions.device, dtype=torch.float32)
        return is_first[:, None, None, :].float() - slopes[:, None, None] * distance[:, None]


class LayerDistance(PositionScheme):
    """A learned vector per clipped distance and layer, dotted with the query: the shape of relative_key."""

    reach = 4
    shift_invariant = True

    def __init__(self, *, head_dim: int, num_layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(2 * self.reach + 1, head_dim) for _ in range(num_layers)])

    def layer_bias(self, q: Tensor, k: Tensor, positions: Tensor, layer: int) -> Tensor:
        distance = (positions[:, None, :] - positions[:, :, None]).clamp(-self.reach, self.reach) + self.reach
        return torch.einsum("bhqd,bqkd->bhqk", q, self.tables[layer](distance)) / q.shape[-1] ** 0.5
