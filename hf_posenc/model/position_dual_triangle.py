"""`dual_triangle`: half of the heads look back, the others ahead."""

import torch
from torch import Tensor

from .scheme_distance import DistanceBias


class DualTrianglePosition(DistanceBias):
    """Half of the heads look left, half right: b_h(i, j) = 0 where j <= i (left) or j >= i (right), else -10000.

    A head that looks back can count what stands before, so order needs no positions, as in a causal decoder: Haviv et
    al. 2022, arXiv 2203.16634. Hallee and Gleghorn 2026, arXiv 2604.18603, give a side to each half of a head; here
    whole heads take sides. Stands alone, or beside another scheme: `rope+dual_triangle`. Beside `tupe` the first token
    sees all tokens and is seen by all, as TUPE unties it from positions.

    Costs one (H, S, S) bias per forward, shared by all layers, and none where PyTorch's varlen attention runs, in half
    precision on a GPU; no weights; any length. With an odd number of heads one
    more looks ahead.

    Args:
        num_heads (int): H, at least 2.

    Raises:
        ValueError: there is one head alone, which would see one side.
    """

    name = "dual_triangle"

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        if num_heads < 2:
            raise ValueError(
                f"dual_triangle gives each side heads of its own, and num_attention_heads is {num_heads}. "
                "Raise it to 2 or more."
            )
        self.num_heads = num_heads

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """0 or -10000, float32: (R,) -> (R, H). A number, as in padding all is masked; its exponential is 0."""
        looks_ahead = torch.arange(self.num_heads, device=distance.device) >= self.num_heads // 2
        hidden_side = 1 - 2 * looks_ahead.to(distance.dtype)  # ONNX Runtime has no torch.where of booleans
        is_hidden = distance.unsqueeze(-1) * hidden_side > 0
        return is_hidden.to(torch.float32) * -1e4

    def windows(self, layer: int) -> list[tuple[slice, tuple[int, int]]]:
        """All to the left, and all to the right."""
        looking_back = self.num_heads // 2
        return [(slice(looking_back), (-1, 0)), (slice(looking_back, None), (0, -1))]
