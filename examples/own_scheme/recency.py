"""`recency`: heads that look back, heads that look ahead, each with a reach that it learns."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_posenc import PositionScheme, Tokens


class Recency(PositionScheme):
    """A bias that falls off on one side of each token: b_h(i, j) = -exp(s_h) max(0, +-(j - i)).

    Even heads pay for keys after the query, odd heads for keys before it. Costs one (H, S, S) bias per forward and H
    weights; takes any length.

    Args:
        num_heads (int): H; filled from the config.
        slope (float): exp(s_h) at the start, in logits per token.
    """

    shift_invariant = True  # distances alone count: the checks hold it to that

    def __init__(self, *, num_heads: int, slope: float = 0.5) -> None:
        super().__init__()
        self.num_heads, self.slope = num_heads, slope
        self.log_slopes = nn.Embedding(num_heads, 1)  # in a child module, not a parameter of its own
        self.init_weights(0.02)  # for a scheme that is used alone; a model calls it again

    def bias(self, tokens: Tokens) -> Tensor:
        """-> (1 or B, H, S, S)."""
        ahead = tokens.distances()[:, None].float()
        heads = torch.arange(self.num_heads, device=ahead.device)
        side = (1.0 - 2.0 * (heads % 2))[:, None, None]
        return -self.log_slopes(heads).exp()[:, None] * (side * ahead).clamp(min=0)

    def init_weights(self, std: float) -> None:
        """The same slope for all heads."""
        init.constant_(self.log_slopes.weight, math.log(self.slope))
