"""(e) BiPE-like: sinusoid of the position in a segment, ALiBi on the distance in segments."""

import math

import torch
from torch import Tensor

from hf_posenc import PositionScheme, Tokens


class Segments(PositionScheme):
    """x_i += sin/cos(position in its segment); b_h(i, j) = -slope_h |segment_j - segment_i|."""

    name = "segments"
    shift_invariant = True

    def __init__(self, *, hidden_size: int, num_heads: int, separators: list[int] = [2]) -> None:  # noqa: B006
        super().__init__()
        self.hidden_size, self.num_heads, self.separators = hidden_size, num_heads, tuple(separators)

    def segments(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """The number of each token's segment in its row, and the position where that segment starts."""
        if tokens.input_ids is None:
            raise ValueError("segments needs input_ids: inputs_embeds don't say where segments end")
        ids = tokens.input_ids
        sequence, positions = tokens.sequence.expand(ids.shape), tokens.positions.expand(ids.shape)
        order, back = in_order(sequence, positions)
        separators = torch.tensor(self.separators, device=ids.device)
        ends = (ids.gather(-1, order)[..., None] == separators).any(-1)
        ordered = sequence.gather(-1, order)
        place = torch.arange(ids.shape[-1], device=ids.device).expand(ids.shape)
        starts = ends.roll(1, -1) | (ordered.roll(1, -1) != ordered) | (place == 0)
        first = torch.where(starts, place, 0).cummax(dim=-1)[0]
        start = positions.gather(-1, order).gather(-1, first)
        return starts.long().cumsum(dim=-1).gather(-1, back), start.gather(-1, back)

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        within = tokens.positions - self.segments(tokens)[1]
        half = self.hidden_size // 2
        frequency = torch.exp(-math.log(10000.0) * torch.arange(half, device=within.device).float() / half)
        angle = within[..., None].float() * frequency
        return hidden_states + torch.cat((angle.sin(), angle.cos()), dim=-1).to(hidden_states.dtype)

    def bias(self, tokens: Tokens) -> Tensor:
        segment = self.segments(tokens)[0]
        distance = (segment[:, None, :] - segment[:, :, None]).abs().float()  # (B, S, S)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.num_heads + 1, device=distance.device) / self.num_heads)
        return -slopes[:, None, None] * distance[:, None]


def in_order(sequence: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Indices that sort each row by sequence (padding, -1, comes first) and position, and those that undo it."""
    order = (sequence * (positions.max() + 1) + positions).argsort(dim=-1)
    return order, order.argsort(dim=-1)
