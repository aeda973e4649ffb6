"""BiPE: a learned vector for the place within a segment, a linear bias for the distance between segments."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens
from hf_posenc.model.scheme_math import require, whole


class Bipe(PositionScheme):
    """x_i + E[p_i - start of its segment], and b_h(i, j) = -2^(-8 (h + 1) / H) |segment of i - segment of j|.

    He et al. 2024, arXiv 2401.16421, BiPE-ALiBi. A segment ends with the token `separator_id`.
    """

    name = "bipe"
    shift_invariant = True

    def __init__(self, *, hidden_size: int, num_heads: int, max_positions: int, separator_id: int = 102) -> None:
        super().__init__()
        self.max_length = max_positions
        self.num_heads = num_heads
        self.separator_id = require("separator_id", separator_id, whole(0))
        self.table = nn.Embedding(max_positions, hidden_size)

    def embed(self, x: Tensor, tokens: Tokens) -> Tensor:
        within, _ = self._places(tokens)
        return x + self.table(within).to(x.dtype)

    def bias(self, tokens: Tokens) -> Tensor:
        _, segment = self._places(tokens)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.num_heads + 1, device=segment.device) / self.num_heads)
        far = (segment[:, None, :] - segment[:, :, None]).abs()
        return -slopes[:, None, None] * far[:, None]

    def _places(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Each token's place in its segment, and its segment's number in the sequence."""
        if tokens.input_ids is None:
            raise ValueError("bipe finds segments by their separator: give input_ids, not inputs_embeds.")
        ends = tokens.input_ids == self.separator_id
        p, ends = tokens.in_order(torch.stack((tokens.positions.expand_as(ends), ends.long()), -1)).unbind(-1)
        index = torch.arange(p.shape[1], device=p.device)
        begins = torch.where(index == 0, 1, ends.roll(1, -1))
        start = torch.where(begins == 1, index, 0).cummax(1)[0]  # the exporter to ONNX knows no .values
        within, segment = p - p.gather(1, start), begins.cumsum(1)
        return tokens.from_order(torch.stack((within, segment), -1)).unbind(-1)

    def init_weights(self, std: float) -> None:
        nn.init.normal_(self.table.weight, std=std)
