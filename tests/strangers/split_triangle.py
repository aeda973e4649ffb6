"""Dual triangle attention: one half of each head looks back, the other ahead."""

import torch
from torch import Tensor

from hf_posenc import PositionScheme, Tokens


class SplitTriangle(PositionScheme):
    """Logits of earlier keys from the first half of a head's q and k, of later keys from the second; both at i = j.

    After Hallee and Gleghorn 2026, arXiv 2604.18603; here one softmax over both triangles. No weights.
    For use alone: `layer_bias` gets unrotated q and k, so beside `rope` it doesn't cancel the other half's logits.
    """

    name = "split_triangle"
    shift_invariant = True

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        half, scale = q.shape[-1] // 2, q.shape[-1] ** -0.5
        back, ahead = (
            torch.matmul(q[..., part], k[..., part].transpose(-1, -2)) for part in (slice(half), slice(half, None))
        )
        side = tokens.distances().sign().unsqueeze(1)
        return -torch.where(side < 0, ahead, torch.where(side > 0, back, 0.0)) * scale
