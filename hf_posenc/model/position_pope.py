"""`pope`: RoPE whose angles don't depend on the content."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype, positive, require
from .unpadding import Tokens


class PoPEPosition(PositionScheme):
    """RoPE whose angles ignore the content: q'_i . k'_j = sum_c softplus(q_ic) softplus(k_jc) cos((j - i) f_c + a_hc).

    f_c = theta^(-c / d). Each of the d entries of q and k becomes a vector in a plane, its length softplus of the entry
    and its angle p f_c, to which keys add a learned a_hc. In `rope` what a pair of entries holds turns the pair too, so
    that content moves the distance that it looks at; here content is lengths alone. Gopalakrishnan et al. 2025, arXiv
    2509.10534, whose a_hc lies between -2 pi and 0: the same angles. There it is a decoder's. With a = 0 an encoder's
    heads see left and right alike, so a starts at random.

    Costs twice the entries of q, k and v in each layer, which FlashAttention takes up to 256; L H d weights; any
    length. Lengths and angles are float32 whatever the model's dtype.

    Args:
        head_dim, num_heads, num_layers (int): d, H, L.
        theta (float): base of the frequencies.

    Raises:
        ValueError: theta is out of range.
    """

    name = "pope"
    shift_invariant = True
    rotates_alone = True
    """In a combination no other scheme may rotate: q and k must come as they are projected, and stay as they leave."""
    position_rate = 10.0

    def __init__(self, *, head_dim: int, num_heads: int, num_layers: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.theta = require("theta", theta, positive("; 10000 is usual"))
        self.phases = nn.ModuleList([nn.Embedding(num_heads, head_dim) for _ in range(num_layers)])
        self.init_weights(0.02)

    def rotary(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """cos and sin of p f_c, with an axis for the heads: two float32 (..., 1, d)."""
        cos, sin = tokens.map_positions(self._cos_sin).unsqueeze(-2).chunk(2, -1)
        return cos, sin

    def _cos_sin(self, positions: Tensor) -> Tensor:
        power = torch.arange(self.head_dim, device=positions.device, dtype=torch.float32) / -self.head_dim
        angle = positions.to(torch.float32).unsqueeze(-1) * self.theta**power
        return torch.cat((angle.cos(), angle.sin()), -1)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        """Each entry's two coordinates: q and k (..., H, d) -> (..., H, 2 d)."""
        cos, sin = state
        phase = self.phases[layer](torch.arange(self.num_heads, device=q.device)).float()
        a, b = phase.cos(), phase.sin()
        return _polar(q, cos, sin), _polar(k, cos * a - sin * b, sin * a + cos * b)

    def init_weights(self, std: float) -> None:
        """Phases anywhere in a turn."""
        for phase in self.phases.parameters():
            init.uniform_(phase, -torch.pi, torch.pi)


def _polar(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    length = nn.functional.softplus(x.to(accumulation_dtype(x)))
    return torch.cat((length * cos, length * sin), -1).to(x.dtype)
