"""`window`: attention to near tokens alone, in all layers but every n-th."""

import torch
from torch import Tensor

from .scheme_distance import DistanceBias
from .scheme_math import require, whole
from .unpadding import Tokens

FAR = -1e4
"""Its exponential is 0, and in padding, where all is masked, it leaves a number."""


class WindowPosition(DistanceBias):
    """Local attention: b(i, j) = 0 where |j - i| <= w, else -10000, whose attention is exactly 0.

    Layers 0, n, 2n, ... attend to all tokens. Beltagy et al. 2020 (Longformer), arXiv 2004.05150; in alternate layers
    Warner et al. 2024, arXiv 2412.13663, whose ModernBERT is `rope+window`, with another theta of `rope` in local
    layers. For use beside another scheme: alone it tells near from far, and left from right not at all.

    Costs one (S, S) bias in each local layer, which is computed whole and then masked; PyTorch's varlen attention, in
    half precision on a GPU, computes the window alone. No weights; any length.

    Args:
        sliding_window (int): w, tokens on each side that a token attends to.
        global_attn_every_n_layers (int): n, at least 2.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "window"
    per_layer = True

    def __init__(self, *, sliding_window: int = 64, global_attn_every_n_layers: int = 3) -> None:
        super().__init__()
        self.sliding_window = require("sliding_window", sliding_window, whole())
        self.every: int = require("global_attn_every_n_layers", global_attn_every_n_layers, whole(least=2))

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """0 or -10000, float32: (R,) -> (R, 1)."""
        far = FAR if layer % self.every else 0.0
        return ((distance.abs() > self.sliding_window) * far).to(torch.float32).unsqueeze(-1)

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """0 or -10000 of each pair, (1 or B, 1, S, S); None where all attend to all."""
        return super().layer_bias(q, k, tokens, layer) if layer % self.every else None

    def windows(self, layer: int) -> list[tuple[slice, tuple[int, int]]]:
        """w on each side, or all, in all heads."""
        reach = self.sliding_window if layer % self.every else -1
        return [(slice(None), (reach, reach))]
