"""`learned`: a table with one trained vector per position, as in BERT."""

from torch import Tensor, nn
from transformers import initialization as init

from .scheme_added import AddedPosition
from .scheme_math import positive, require, whole


class LearnedPosition(AddedPosition):
    """A trained vector per position, added, as in BERT: x'_i = x_i + E[p_i], with E of shape (max_positions, D).

    Gehring et al. 2017, arXiv 1705.03122; Devlin et al. 2018 (BERT), arXiv 1810.04805.

    Costs one gather and one addition per token, and max_positions x D weights. Inputs longer than the table are an
    error, and positions that training didn't show stay random.

    Args:
        hidden_size (int): D.
        max_positions (int): number of positions.
        std (float): standard deviation of the initial table. In a model it defaults to that of the token embeddings.
        dropout: see `AddedPosition`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "learned"
    token_scaled = "std"

    def __init__(self, *, hidden_size: int, max_positions: int = 512, std: float = 0.02, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.max_length = require("max_positions", max_positions, whole())
        self.std = float(require("std", std, positive(", or 0", 0.0)))
        self.embedding = nn.Embedding(max_positions, require("hidden_size", hidden_size, whole()))
        nn.init.normal_(self.embedding.weight, std=self.std)

    def encodings(self, positions: Tensor) -> Tensor:
        """E[positions]: (...) -> (..., D)."""
        return self.embedding(positions)

    def init_weights(self, std: float) -> None:
        """Normal with the scheme's own standard deviation."""
        init.normal_(self.embedding.weight, std=self.std)
