"""`none`: no positions at all, the control."""

from torch import Tensor, nn

from .scheme_base import PositionScheme
from .scheme_math import PROBABILITY, require
from .unpadding import Tokens


class NoPosition(PositionScheme):
    """No positions, the control: x'_i = x_i, and attention sees a set.

    The encoder is then permutation-equivariant: permuted tokens give the same hidden states, permuted, and equal
    pooled vectors. Any task that word order alone decides stays at chance: the control of a comparison.

    Costs nothing, has no weights and takes any length. (Causal decoders without positions do learn order, Haviv et al.
    2022, arXiv 2203.16634; an encoder has no causal mask to learn it from.)

    Args:
        dropout (float): dropout on the embeddings, as the added schemes have it.
    """

    name = "none"
    shift_invariant = True
    order_blind = True

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(require("dropout", dropout, PROBABILITY))

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """Returns the hidden states, after dropout."""
        return self.dropout(hidden_states)
