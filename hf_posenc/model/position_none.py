"""`none`: no positions at all, the control."""

from torch import Tensor

from .position_base import PositionScheme


class NoPosition(PositionScheme):
    """No positions: x'_i = x_i, and attention sees a set.

    The encoder is then permutation-equivariant: permuted tokens give the same hidden states, permuted, and equal
    pooled vectors. Any task that word order alone decides stays at chance: the control of a comparison.

    Costs nothing, has no weights and takes any length. (Causal decoders without positions do learn order, Haviv et al.
    2022, arXiv 2203.16634; an encoder has no causal mask to learn it from.)
    """

    name = "none"

    def forward(self, x: Tensor, positions: Tensor | None = None, *, start: int = 0) -> Tensor:
        """Returns x (B, S, D) as it is, so that it can stand in for any added scheme."""
        return x
