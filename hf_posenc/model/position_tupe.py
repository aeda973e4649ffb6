"""`tupe`: untied positional attention, positions attending to positions by weights of their own."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_math import positive, require
from .unpadding import Tokens


class TupePosition(PositionScheme):
    """Positions attend to positions: b_h(i, j) = (n(E[p_i]) U_Q) . (n(E[p_j]) U_K) / sqrt(2 d).

    The tokens' q.k is divided by sqrt(2 d), too.
    Ke et al. 2020, "Rethinking Positional Encoding in Language Pre-training" (TUPE-A), arXiv 2006.15595: instead of
    adding positions to tokens, their correlation is computed apart, once for all layers, and added to the logits; n is
    a LayerNorm, as in the authors' code. The first token of each sequence ([CLS]) is untied from positions: its row of
    b is theta_1 and its column theta_2, one number per head each. With a T5 bias it is TUPE-R (`tupe+t5`): the first
    token is untied from the sum of both, and so from any other bias that is the same in all layers.

    Costs one (B, H, S, S) bias per forward, shared by all layers (from (S, D) products where rows have equal
    positions); max_positions D + 2 D^2 + 4 D + 2 H weights; inputs longer than max_positions are an error.

    Args:
        hidden_size, num_heads, max_positions (int): D, H, and the number of positions.
        reset_first (bool): untie the first token of each sequence.
        std (float): standard deviation of the initial table. In a model it defaults to that of the token embeddings.
    """

    name = "tupe"
    shift_invariant = False
    query_scale = 0.5**0.5
    token_scaled = "std"

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        max_positions: int = 512,
        reset_first: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.max_length = max_positions
        self.num_heads = num_heads
        self.std = float(require("std", std, positive(", or 0", 0.0)))
        self.embedding = nn.Embedding(max_positions, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.first = nn.Embedding(2, num_heads) if reset_first else None

    def bias(self, tokens: Tokens) -> Tensor:
        """The positions' own logits: (1 or B, H, S, S)."""
        p = self.norm(self.embedding(tokens.positions))
        q, k = (linear(p).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for linear in (self.query, self.key))
        bias = torch.matmul(q, k.transpose(-1, -2)) * (self.query_scale * q.shape[-1] ** -0.5)
        return self.untie_first(bias, tokens.is_first)

    def untie_first(self, bias: Tensor, is_first: Tensor) -> Tensor:
        """theta_1 in first tokens' rows, theta_2 in their columns, whatever else was added there.

        (1 or B, H, S, S), (1 or B, S) -> (1 or B, H, S, S). In a combination: of the sum of all schemes' `bias`.
        """
        if self.first is None:
            return bias
        row, column = self.first(torch.arange(2, device=bias.device))[:, None, :, None, None]
        bias = torch.where(is_first[:, None, None, :], column.to(bias.dtype), bias)
        return torch.where(is_first[:, None, :, None], row.to(bias.dtype), bias)

    def init_weights(self, std: float) -> None:
        """Normal, the table with the scheme's own standard deviation."""
        init.normal_(self.embedding.weight, std=self.std)
