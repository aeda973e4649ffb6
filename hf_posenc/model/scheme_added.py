"""`AddedPosition`: the base of schemes that add a vector to each token's embedding."""

from torch import Tensor, nn

from .scheme_base import PositionScheme
from .scheme_math import PROBABILITY, require
from .unpadding import Tokens


class AddedPosition(PositionScheme):
    """A scheme that adds `encodings(positions)` to the embeddings: x'_i = x_i + e(p_i).

    Args:
        dropout (float): dropout on the sum, as in Vaswani et al. 2017.
    """

    shift_invariant = False

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(require("dropout", dropout, PROBABILITY))

    def encodings(self, positions: Tensor) -> Tensor:
        """Returns what is added at each position: int64 (...) -> (..., D)."""
        raise NotImplementedError

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """hidden_states + e(positions), in the dtype of the hidden states."""
        width = hidden_states.shape[-1]

        def encodings(positions: Tensor) -> Tensor:
            added = self.encodings(positions)
            if not isinstance(added, Tensor) or added.dim() != positions.dim() + 1 or added.shape[-1] != width:
                raise ValueError(f"{type(self).__name__}.encodings must return (..., {width}) for positions (...).")
            return added

        return self.dropout(hidden_states + tokens.map_positions(encodings).to(hidden_states.dtype))
