"""Two schemes of a user's own, which exercise the hooks in other ways than the published ones."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens


class Slope(PositionScheme):
    """A fixed bias per head: -2^-h |i-j|, and 1 towards each sequence's first token."""

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def bias(self, tokens: Tokens) -> Tensor:
        distance = tokens.distances().abs().float()
        slopes = 2.0 ** -torch.arange(self.num_heads, device=tokens.positions.device, dtype=torch.float32)
        return tokens.is_first[:, None, None, :].float() - slopes[:, None, None] * distance[:, None]


class LayerDistance(PositionScheme):
    """A learned vector per clipped distance and layer, dotted with the query: the shape of relative_key."""

    reach = 4
    shift_invariant = True

    def __init__(self, *, head_dim: int, num_layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(2 * self.reach + 1, head_dim) for _ in range(num_layers)])

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        distance = tokens.distances().clamp(-self.reach, self.reach) + self.reach
        return torch.einsum("bhqd,bqkd->bhqk", q, self.tables[layer](distance)) / q.shape[-1] ** 0.5


class TurnedHeads(PositionScheme):
    """A rotation by head: its rotary state has an axis of heads. In odd heads slow pairs are first."""

    shift_invariant = True

    def __init__(self, *, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.speeds = [
            [10.0 ** -(i if h % 2 == 0 else head_dim // 2 - 1 - i) for i in range(head_dim // 2)]
            for h in range(num_heads)
        ]

    def rotary(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        speeds = torch.tensor(self.speeds, device=tokens.positions.device)
        angles = tokens.positions[..., None, None] * speeds  # (..., H, d / 2)
        return angles.cos(), angles.sin()

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        return self._turned(q, *state), self._turned(k, *state)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Gate(PositionScheme):
    """A bias that isn't linear in the query: -|i - j| where q's first entry is positive, else 0."""

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        distance = tokens.distances().abs().float()
        return -distance[:, None] * (q[..., :1] > 0)


class TakesRopeParameters(PositionScheme):
    """Adds the position over the `rope_theta` of the config's `rope_parameters`."""

    def __init__(self, *, head_dim: int, rope_parameters: dict | None = None) -> None:
        super().__init__()
        self.theta = (rope_parameters or {}).get("rope_theta", 10000.0)

    def embed(self, x: Tensor, tokens: Tokens) -> Tensor:
        return x + (tokens.positions / self.theta).unsqueeze(-1).to(x.dtype)
