"""`cable`: a bias on how much lies between two tokens, which the tokens between them say."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype
from .unpadding import Tokens


class CablePosition(PositionScheme):
    """Distance that depends on the words: b_h(i, j) = -max(l_ih - l_jh, 0) - max(r_jh - r_ih, 0).

    l_ih = sum over t <= i of softplus(u_h . x_t + a_h), and r_ih the same with weights of its own, x_t being what the
    layer's q and k are projected from. So a token adds its own share to the distance of all pairs that it stands
    between, and `alibi` is the case of equal shares. Veisi et al. 2025 (CABLE), arXiv 2503.08067; the sum over forget
    gates of Lin et al. 2025, arXiv 2503.02130, is the same function. In an encoder the symmetric form, r = l,
    -|l_ih - l_jh|, hardly tells left from right, so each side has its own weights. They start near `alibi`:
    softplus(a_h) = 2^(-8h/H), h from 1 to H, to the right in the opposite order of heads.

    Costs, in each layer, an (H, S, S) bias of each sequence, two while it is computed; 2 L H (D + 1) weights; any
    length. The sums are float32 whatever the model's dtype. A compiled or exported model takes no `position_ids`.

    Args:
        hidden_size, num_heads, num_layers (int): D, H, L.
        directional (bool): own weights to the left and to the right.

    Raises:
        ValueError: `directional` is neither True nor False.
    """

    name = "cable"
    shift_invariant = True
    position_rate = 10.0

    def __init__(self, *, hidden_size: int, num_heads: int, num_layers: int, directional: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.directional = directional
        self.shares = nn.ModuleList([nn.Linear(hidden_size, (1 + directional) * num_heads) for _ in range(num_layers)])
        self.init_weights(0.02)

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        """-max(l_i - l_j, 0) - max(r_j - r_i, 0): (1 or B, H, S, S)."""
        assert tokens.hidden_states is not None
        share = self.shares[layer](tokens.hidden_states)
        share = nn.functional.softplus(share.to(accumulation_dtype(share)))  # (B, S, 2 H)
        place = tokens.from_order(tokens.in_order(share).cumsum(1)).transpose(1, 2)  # l and then r, (B, 2 H, S)
        left, right = place[:, : self.num_heads], place[:, -self.num_heads :]
        left_of = (left[..., :, None] - left[..., None, :]).clamp(min=0)
        return -left_of - (right[..., None, :] - right[..., :, None]).clamp(min=0)

    def init_weights(self, std: float) -> None:
        """Normal, and in a_h the inverse softplus of 2^(-8h/H)."""
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.num_heads + 1, dtype=torch.float64, device="cpu") / self.num_heads)
        sides = torch.cat((slopes, slopes.flip(0))) if self.directional else slopes
        for name, weight in self.shares.named_parameters():
            if name.endswith("weight"):
                init.normal_(weight, std=std)
            else:
                init.copy_(weight, sides.expm1().log().to(weight.dtype))
