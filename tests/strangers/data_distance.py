"""(b) CABLE-like: a distance that depends on the words."""

from torch import Tensor, nn
from torch.nn import functional as F

from hf_posenc import PositionScheme, Tokens


class DataDistance(PositionScheme):
    """b_h(i, j) = -|C_i - C_j| with C = cumsum softplus(w_h x)."""

    name = "data_distance"
    learning_rate_factor = 10.0

    def __init__(self, *, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(hidden_size, num_heads) for _ in range(num_layers))

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        step = F.softplus(self.steps[layer](tokens.hidden_states).float())  # (B, S, H)
        c = tokens.from_order(tokens.in_order(step).cumsum(1)).transpose(1, 2)  # (B, H, S)
        return -(c[..., :, None] - c[..., None, :]).abs()

    def init_weights(self, std: float) -> None:
        for step in self.steps:
            nn.init.normal_(step.weight, std=std)
            nn.init.constant_(step.bias, -2.0)
