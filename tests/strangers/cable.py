"""CABLE: how far apart two tokens are is learned from the tokens between them."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens
from hf_posenc.model.position_math import outside_autocast


class Cable(PositionScheme):
    """b_h(i, j) = -|c_ih - c_jh|, c_ih the sum of softplus(w_h . x_t + a_h) over the tokens t up to i.

    After Veisi et al. 2025, arXiv 2503.08067; symmetric, for an encoder.
    """

    name = "cable"
    shift_invariant = True
    learning_rate_factor = 10.0

    def __init__(self, *, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.gates = nn.ModuleList([nn.Linear(hidden_size, num_heads) for _ in range(num_layers)])

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        x, positions, sequence = tokens.hidden_states, tokens.positions, tokens.sequence
        gate = nn.functional.softplus(self.gates[layer](x).float())  # (B, S, H)
        up_to = positions[:, None, :] <= positions[:, :, None]
        up_to = up_to & (sequence[:, None, :] == sequence[:, :, None])
        with outside_autocast(x.device):  # a sum of hundreds of gates
            place = torch.matmul(up_to.float(), gate).transpose(1, 2)  # (B, H, S)
        return -(place[..., None, :] - place[..., :, None]).abs()

    def init_weights(self, std: float) -> None:
        for gate in self.gates:
            nn.init.normal_(gate.weight, std=std)
            nn.init.constant_(gate.bias, -2.0)
