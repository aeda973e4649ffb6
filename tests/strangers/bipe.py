"""BiPE: a learned vector for the place within a segment, a linear bias for the distance between segments."""

import torch
from torch import Tensor, nn

from hf_posenc import PositionScheme, Tokens
from hf_posenc.model.position_math import require, whole


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
        within, _ = self._places(tokens.positions, tokens.input_ids, tokens.sequence)
        return x + self.table(within).to(x.dtype)

    def bias(self, tokens: Tokens) -> Tensor:
        _, segment = self._places(tokens.positions, tokens.input_ids, tokens.sequence)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.num_heads + 1, device=segment.device) / self.num_heads)
        far = (segment[:, None, :] - segment[:, :, None]).abs()
        return -slopes[:, None, None] * far[:, None]

    def _places(self, positions: Tensor, input_ids: Tensor | None, sequence: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's place in its segment, and its segment's number, counted over the batch."""
        if input_ids is None:
            raise ValueError("bipe finds segments by their separator: give input_ids, not inputs_embeds.")
        shape, positions = sequence.shape, positions.expand(sequence.shape).flatten()
        order = (sequence.flatten() * (positions.max() + 1) + positions).argsort()
        of, p, ends = sequence.flatten()[order], positions[order], (input_ids.flatten() == self.separator_id)[order]
        starts = torch.cat((torch.ones_like(ends[:1]), ends[:-1] | (of[1:] != of[:-1])))
        index = torch.arange(order.shape[0], device=order.device)
        start = torch.where(starts, index, 0).cummax(0)[0]  # the exporter to ONNX knows no .values
        back = order.argsort()
        return (p - p[start])[back].view(shape), starts.cumsum(0)[back].view(shape)

    def init_weights(self, std: float) -> None:
        nn.init.normal_(self.table.weight, std=std)
