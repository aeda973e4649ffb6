"""`DistanceBias`: the base of schemes whose bias is a function of head and distance; and gathers by distance."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .scheme_base import PositionScheme
from .scheme_math import outside_autocast
from .unpadding import Tokens


class DistanceBias(PositionScheme):
    """A scheme whose bias is a function of head and distance: b_h(i, j) = f_h(p_j - p_i).

    Subclass it and write `of_distance`, which runs once for each distinct distance: 2 S - 1 of S tokens, not S^2.

    Attributes:
        per_layer: each layer has a bias of its own. False: one for all, computed once per forward.
    """

    shift_invariant = True
    per_layer: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Gives up the windows that a class inherits, if its own bias is another: they wouldn't be that bias."""
        super().__init_subclass__(**kwargs)
        hooks = vars(cls).keys()
        if "windows" not in hooks and hooks & {"of_distance", "bias", "layer_bias"}:
            cls.windows = PositionScheme.windows  # type: ignore[method-assign]

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """f at each distance p_j - p_i: int64 (R,) -> (R, H or 1), floating-point. `layer` is 0 unless `per_layer`."""
        raise NotImplementedError

    def uses(self, hook: str) -> bool:
        """One bias for all layers, or one for each."""
        if hook in ("bias", "layer_bias"):
            return (hook == "layer_bias") == self.per_layer
        return super().uses(hook)

    def bias(self, tokens: Tokens) -> Tensor | None:
        """f(p_j - p_i): (1 or B, H, S, S); None if `per_layer`."""
        return None if self.per_layer else self._of_pairs(tokens, 0)

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """f(p_j - p_i) of one layer; None unless `per_layer`."""
        return self._of_pairs(tokens, layer) if self.per_layer else None

    def _of_pairs(self, tokens: Tokens, layer: int) -> Tensor:
        def function(distance: Tensor) -> Tensor:
            with outside_autocast(distance.device):
                values = self.of_distance(distance, layer)
            if values is None or values.dim() != 2 or values.shape[0] != distance.shape[0]:
                shape = None if values is None else tuple(values.shape)
                raise ValueError(
                    f"{type(self).__name__}.of_distance returns {shape} for {len(distance)} distances. "
                    "Give (R, H), or (R, 1) for the same in all heads."
                )
            return values

        return per_distinct_distance(function, tokens)


def per_distinct_distance(function: Callable[[Tensor], Tensor], tokens: Tokens) -> Tensor:
    """`function(p_j - p_i)`, computed once for each distance that occurs, and gathered.

    L tokens have 2 L - 1 distances, not L^2 pairs. Learned biases evaluate their network or table on the distances
    alone, and their gradient is summed by distance in one pass, along diagonals where positions are consecutive.

    Args:
        function: int64 (R,) -> (R, H).
        tokens: in padded layout, positions (1 or B, S).

    Returns:
        (1 or B, H, S, S).
    """
    max_distance, positions = tokens.max_distance, tokens.positions
    if max_distance is None:
        distance = tokens.distances()
        return function(distance.flatten()).unflatten(0, distance.shape).permute(0, 3, 1, 2)
    if share_positions(tokens):
        max_distance = positions.shape[1] - 1
        table = function(torch.arange(-max_distance, max_distance + 1, device=positions.device))
        # Row i holds columns j - i + S - 1 for j = 0 .. S - 1: each window of S columns, from the last to the first.
        return table.T.unfold(1, positions.shape[1], 1).flip(1).unsqueeze(0)
    distance = tokens.distances()
    if 2 * max_distance + 1 > distance.numel():  # few positions, far apart, as a random sample is
        distinct, index = distance.unique(return_inverse=True)
        return nn.functional.embedding(index, function(distinct)).permute(0, 3, 1, 2)
    table = function(torch.arange(-max_distance, max_distance + 1, device=positions.device)).T.contiguous()
    flat = table.index_select(1, (distance + max_distance).flatten())
    return flat.unflatten(1, distance.shape).transpose(0, 1)


def gather_by_distance(x: Tensor, tokens: Tokens, max_distance: int) -> Tensor:
    """Takes, of each query's row, the column of each key's distance: (B, H, S, R) -> (B, H, S, S).

    Args:
        x: columns hold distances p_j - p_i from -max_distance to max_distance, R = 2 max_distance + 1.
        tokens: in padded layout.
        max_distance: at least the largest distance.
    """
    length = x.shape[-2]
    if tokens.max_distance is not None and share_positions(tokens) and x.shape[-1] == 2 * length - 1 > 1:
        # Each row starts one column left of the row above. In rows that are shorter by one, all start at the same.
        return x.flatten(-2)[..., length - 1 : -1].unflatten(-1, (length, 2 * length - 2))[..., :length]
    index = (tokens.distances() + max_distance).unsqueeze(1)
    return x.gather(-1, index.expand(*x.shape[:2], -1, -1))


def share_positions(tokens: Tokens) -> bool:
    """True where all rows of padded layout have the positions 0, 1, 2, ... at all places; `positions` is one row."""
    is_one_row = tokens.positions.shape[0] == 1 and tokens.max_distance == tokens.positions.shape[1] - 1
    return tokens.positions_are_aranges and is_one_row
