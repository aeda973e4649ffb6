"""`lspe`: learnable sinusoidal positional encoding, a feed-forward network on top of the sinusoid."""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .scheme_added import AddedPosition
from .scheme_math import one_of, positive, require, whole
from .scheme_network import input_dtype
from .scheme_vectors import centre_and_scale, sinusoidal_table
from .unpadding import Tokens


class LSPEPosition(AddedPosition):
    """A small network on the sinusoids, added: x'_i = x_i + s FFN(PE(p_i)), FFN(u) = sigma(u W1 + b1) W2 + b2.

    PE is the sinusoid of `sinusoidal` (D columns), sigma the sigmoid. Wang et al., Findings of AACL 2022, have s = 1.

    With the usual initial weights all positions look alike (sigmoids are near 1/2, so sum(W2)/2 is common to all: mean
    pairwise cosine .98). Here W1 gives pre-activations of about unit variance, b2 cancels the mean over positions, and
    W2 is scaled so that FFN has a root mean square of 1 over the first 512 positions; s = `rms` brings that to the
    scale of the tokens. (A factor, not smaller weights: Adam's steps don't shrink with the weights, and would overturn
    small ones before anything is learned.)

    Costs one small network per distinct position (not per token) and 2 D W + D + W weights, W the hidden width; takes
    any length, though what the network gives past the trained positions was never learned.

    Args:
        hidden_size (int): D.
        intermediate_size (int, optional): W. None: D.
        activation (str): sigma, a name of `transformers.activations.ACT2FN`; `sigmoid` as published.
        rms (float, optional): s, the root mean square of what is added at the start. In a model it defaults to that of
            the token embeddings. None: 1, the formula as published.
        base (float): the sinusoid's longest wavelength is 2 pi base.
        applies_to (str): `positions`: FFN(PE(p)), a function of the position alone. `embeddings`: x + s FFN(x + PE(p)),
            a variant that sends the tokens through the network too, at a cost per token.
        dropout: see `AddedPosition`.

    Raises:
        ValueError: an argument is out of range; `encodings` is asked for where `applies_to="embeddings"`.
    """

    name = "lspe"
    token_scaled = "rms"

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int | None = None,
        activation: str = "sigmoid",
        rms: float | None = None,
        base: float = 10000.0,
        applies_to: str = "positions",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dropout=dropout)
        width = hidden_size if intermediate_size is None else intermediate_size
        self.hidden_size = require("hidden_size", hidden_size, whole(most=2**20))
        self.intermediate_size = require("intermediate_size", width, whole(most=2**20))
        if activation not in ACT2FN:
            raise ValueError(
                f"activation={activation!r} is no activation of transformers. Choose sigmoid, gelu, relu, silu, tanh."
            )
        self.base = require("base", base, positive("; 10000 is usual"))
        self.scale = 1.0 if rms is None else require("rms", rms, positive(", or None for the published formula"))
        self.applies_to = require("applies_to", applies_to, one_of("positions", "embeddings"))
        self.up = nn.Linear(hidden_size, width)
        self.activation = ACT2FN[activation]
        self.down = nn.Linear(width, hidden_size)
        if self.up.weight.device.type != "meta":
            self.init_weights(0.02)

    def _ffn(self, u: Tensor) -> Tensor:
        return self.scale * self.down(self.activation(self.up(u)))

    def _sinusoid(self, positions: Tensor) -> Tensor:
        return sinusoidal_table(positions, self.hidden_size, self.base)

    def encodings(self, positions: Tensor) -> Tensor:
        """s FFN(PE(positions)): (...) -> (..., D), in the weights' dtype."""
        if self.applies_to == "embeddings":
            raise ValueError(
                "With applies_to='embeddings' what is added depends on the token as well as on the position, so there "
                "are no encodings to read. Use applies_to='positions', or call the module on embeddings."
            )
        return self._ffn(self._sinusoid(positions).to(input_dtype(self.up)))

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """x + s FFN(PE(p)), or x + s FFN(x + PE(p)) with `applies_to="embeddings"`."""
        if self.applies_to == "positions":
            return super().embed(hidden_states, tokens)
        x, encoded = hidden_states, tokens.map_positions(self._sinusoid)
        return self.dropout(x + self._ffn((x + encoded.to(x.dtype)).to(input_dtype(self.up))).to(x.dtype))

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """Makes positions differ from the start: see the class. Leaves loaded weights alone."""
        up, down = self.up, self.down
        # A sinusoid has mean square 1/2, so this gives u W1 about unit variance.
        init.normal_(up.weight, std=(2 / self.hidden_size) ** 0.5)
        init.zeros_(up.bias)
        init.normal_(down.weight, std=self.hidden_size**-0.5)
        init.zeros_(down.bias)
        encoded = self._sinusoid(torch.arange(512, device=up.weight.device))
        centre_and_scale(down, self.activation(encoded @ up.weight.float().T + up.bias.float()))
