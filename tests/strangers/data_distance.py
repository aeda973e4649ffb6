"""(b) CABLE-like: a distance that depends on the words."""

from torch import Tensor, nn
from torch.nn import functional as F

from hf_posenc import PositionScheme, Tokens
from hf_posenc.model.position_math import outside_autocast


class DataDistance(PositionScheme):
    """b_h(i, j) = -|C_i - C_j| with C = cumsum softplus(w_h x)."""

    name = "data_distance"
    learning_rate_factor = 10.0

    def __init__(self, *, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(hidden_size, num_heads) for _ in range(num_layers))

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        x = tokens.hidden_states  # (B, S, D)
        with outside_autocast(x.device):
            step = F.softplus(self.steps[layer](x).float())  # (B, S, H)
            before = (tokens.distances() <= 0) & (tokens.sequence[:, :, None] == tokens.sequence[:, None, :])
            c = (before.float() @ step).transpose(1, 2)  # (B, H, S): the sum over tokens with p_j <= p_i
            return -(c[..., :, None] - c[..., None, :]).abs()

    def init_weights(self, std: float) -> None:
        for step in self.steps:
            nn.init.normal_(step.weight, std=std)
            nn.init.constant_(step.bias, -2.0)
