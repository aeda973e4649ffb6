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
        separators = torch.tensor(self.separators, device=tokens.input_ids.device)
        ends = (tokens.input_ids[..., None] == separators).any(-1).long()
        ends, positions = tokens.in_order(torch.stack((ends, tokens.positions.expand_as(ends)), -1)).unbind(-1)
        place = torch.arange(ends.shape[1], device=ends.device)
        starts = (ends.roll(1, -1) == 1) | (place == 0)
        first = torch.where(starts, place, 0).cummax(dim=-1)[0]
        found = torch.stack((starts.long().cumsum(dim=-1), positions.gather(-1, first)), -1)
        return tokens.from_order(found).unbind(-1)

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
