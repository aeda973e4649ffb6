"""PoPE: what a head looks for is a magnitude, where it looks is an angle."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens


class Pope(PositionScheme):
    """q and k of d entries become 2 d: entry c has length softplus(q_c) and angle p f_c, in keys plus a learned a_c.

    Gopalakrishnan et al. 2025, arXiv 2509.10534: q_i . k_j = sum_c softplus(q_c) softplus(k_c) cos((j - i) f_c + a_c).
    """

    name = "pope"
    shift_invariant = True

    def __init__(self, *, head_dim: int, num_heads: int, num_layers: int, base: float = 10000.0) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.base = num_heads, head_dim, base
        self.phases = nn.ModuleList([nn.Embedding(num_heads, head_dim) for _ in range(num_layers)])

    def rotary(self, tokens: Tokens) -> Tensor:
        def angles(p: Tensor) -> Tensor:
            speed = torch.arange(self.head_dim, device=p.device, dtype=torch.float32) / self.head_dim
            return p.float().unsqueeze(-1) * self.base**-speed

        return tokens.at_each(angles).unsqueeze(-2)  # (..., 1, d)

    def rotate(self, q: Tensor, k: Tensor, state: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        phase = self.phases[layer](torch.arange(self.num_heads, device=q.device)).float()
        return self._polar(q, state), self._polar(k, state + phase)

    def _polar(self, x: Tensor, angle: Tensor) -> Tensor:
        far = nn.functional.softplus(x.float())
        return torch.cat((far * angle.cos(), far * angle.sin()), -1).to(x.dtype)

    def init_weights(self, std: float) -> None:
        for phase in self.phases:
            nn.init.zeros_(phase.weight)
