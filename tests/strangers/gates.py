"""(i) GAPE-like: a product of two small gates, one of the query, one of the key."""

from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens


class Gates(PositionScheme):
    """b_h(i, j) = tanh(A q_i) . tanh(B k_j), of `width` entries. Knows no positions: use it beside another scheme."""

    name = "gates"
    order_blind = True

    def __init__(self, *, head_dim: int, num_layers: int, width: int = 4) -> None:
        super().__init__()
        self.of_q = nn.ModuleList(nn.Linear(head_dim, width) for _ in range(num_layers))
        self.of_k = nn.ModuleList(nn.Linear(head_dim, width) for _ in range(num_layers))

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        gate_q, gate_k = self.of_q[layer](q).tanh(), self.of_k[layer](k).tanh()
        return gate_q @ gate_k.transpose(-1, -2)
