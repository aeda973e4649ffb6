"""`learned`: a table with one trained vector per position, as in BERT."""

from torch import Tensor, nn
from transformers import initialization as init

from .position_base import AddedPosition


class LearnedPosition(AddedPosition):
    """A table of trained vectors: x'_i = x_i + E[p_i], with E of shape (max_positions, D).

    Gehring et al. 2017, arXiv 1705.03122; Devlin et al. 2018 (BERT), arXiv 1810.04805.

    Costs one gather and one addition per token, and max_positions x D weights. Inputs longer than the table are an
    error, and positions that training didn't show stay random.

    Args:
        hidden_size (int): D.
        max_positions (int): number of positions.
        std (float): standard deviation of the initial table. In a model it defaults to that of the token embeddings.
        dropout, batch_first: see `AddedPosition`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "learned"

    def __init__(
        self,
        *,
        hidden_size: int,
        max_positions: int = 512,
        std: float = 0.02,
        dropout: float = 0.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__(dropout=dropout, batch_first=batch_first)
        for name, value in (("hidden_size", hidden_size), ("max_positions", max_positions)):
            if not 1 <= value <= 2**24:
                raise ValueError(f"{name}={value!r} is out of range. It must be a whole number from 1 to {2**24}.")
        if not std >= 0:
            raise ValueError(f"std={std!r} is out of range. A standard deviation is zero or positive.")
        self.max_length = max_positions
        self.std = std
        self.embedding = nn.Embedding(max_positions, hidden_size)
        nn.init.normal_(self.embedding.weight, std=std)

    def encodings(self, positions: Tensor) -> Tensor:
        """E[positions]: (...) -> (..., D)."""
        return self.embedding(positions)

    def init_weights(self, std: float) -> None:
        """Normal with the scheme's own standard deviation."""
        init.normal_(self.embedding.weight, std=self.std)
