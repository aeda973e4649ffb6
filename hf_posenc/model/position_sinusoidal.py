"""`sinusoidal`: fixed sines and cosines, added to the embeddings."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_added import AddedPosition
from .scheme_math import positive, require, whole
from .scheme_vectors import sinusoidal_table


class SinusoidalPosition(AddedPosition):
    """Fixed sines and cosines, added to the embeddings: x'_i = x_i + s PE(p_i).

    PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)); an odd D ends on a sine.
    Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.

    PE has a root mean square of sqrt(1/2), 35 times that of token embeddings at their start; added as it is, it would
    make the hidden states 97 % position. So s = rms / sqrt(1/2), where `rms` is the token embeddings' own in a model
    (`position_embedding_kwargs={"rms": None}` gives the formula as published: s = 1).

    With `learned_scale` s is multiplied by a trained number alpha that starts at 1, as in Li et al. 2018
    (Transformer-TTS), arXiv 1809.08895: a factor on s, so that a step of the optimiser changes it by as much whatever
    the tokens' scale is.

    Costs one addition per token; no weights (one with `learned_scale`); any length, any start.

    Args:
        hidden_size (int): D.
        rms (float, optional): root mean square of what is added. None: sqrt(1/2), the formula as published.
        base (float): the longest wavelength is 2 pi base.
        learned_scale (bool): train a factor on s.
        dropout: see `AddedPosition`.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "sinusoidal"
    position_rate = 30.0
    token_scaled = "rms"

    def __init__(
        self,
        *,
        hidden_size: int,
        rms: float | None = None,
        base: float = 10000.0,
        learned_scale: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dropout=dropout)
        self.hidden_size = require("hidden_size", hidden_size, whole())
        self.base = require("base", base, positive("; 10000 is usual"))
        rms = None if rms is None else require("rms", rms, positive(", or None for the published formula"))
        self.scale = 1.0 if rms is None else rms / 0.5**0.5
        self.alpha = nn.Embedding(1, 1) if learned_scale else None
        self.init_weights(0.0)

    def encodings(self, positions: Tensor) -> Tensor:
        """s PE(positions), times alpha if learned, float32: (...) -> (..., D)."""
        table = sinusoidal_table(positions, self.hidden_size, self.base) * self.scale
        if self.alpha is None:
            return table
        return table * self.alpha(torch.zeros((), dtype=torch.int64, device=positions.device)).float()

    def init_weights(self, std: float) -> None:
        """alpha = 1."""
        if self.alpha is not None:
            init.ones_(self.alpha.weight)
