"""`relative_key` and `relative_key_query`: a learned vector per distance, dotted with queries (and keys)."""

import torch
from torch import Tensor, nn

from .scheme_base import PositionScheme
from .scheme_distance import gather_by_distance
from .unpadding import Tokens


class RelativeKeyPosition(PositionScheme):
    """A vector per distance, multiplied with queries: b(i, j) = q_i . E[i - j] / sqrt(d).

    E has shape (2 max_positions - 1, d) in each layer.
    Shaw et al. 2018, arXiv 1803.02155 (the key side), in the form of Huang et al. 2020, arXiv 2009.13658,
    and with the weights that BERT's `position_embedding_type="relative_key"` had up to transformers 4.57: one table
    for all heads in each layer, distances as query minus key. (Shaw's value-side term isn't here: it adds to what
    attention returns, which no fused kernel offers.)

    Costs a product of q with the 2 S - 1 vectors in reach and a gather of (B, H, S, S) in each layer; L (2
    max_positions - 1) d weights; inputs longer than max_positions are an error.

    Args:
        head_dim, num_layers, max_positions (int): d, L, and the number of positions.
    """

    name = "relative_key"
    shift_invariant = True
    position_rate = 10.0
    with_keys = False

    def __init__(self, *, head_dim: int, num_layers: int, max_positions: int = 512) -> None:
        super().__init__()
        self.max_length = max_positions
        self.tables = nn.ModuleList([nn.Embedding(2 * max_positions - 1, head_dim) for _ in range(num_layers)])

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        """q.E (+ k.E), over sqrt(d): q and k (B, H, S, d) -> (B, H, S, S)."""
        limit = self.max_length or 0
        max_distance = limit - 1 if tokens.max_distance is None else tokens.max_distance
        # From the largest distance i - j to the least, so that j - i grows along the columns.
        distances = torch.arange(max_distance, -max_distance - 1, -1, device=q.device)
        vectors = self.tables[layer](distances + limit - 1)
        bias = gather_by_distance(torch.matmul(q, vectors.T), tokens, max_distance)
        if self.with_keys:
            keys = torch.matmul(k, vectors.flip(0).T)
            bias = bias + gather_by_distance(keys, tokens, max_distance).transpose(-1, -2)
        return bias / q.shape[-1] ** 0.5


class RelativeKeyQueryPosition(RelativeKeyPosition):
    """A vector per distance, multiplied with queries and keys: b(i, j) = (q_i . E[i - j] + k_j . E[i - j]) / sqrt(d).

    Huang et al. 2020, "Improve Transformer Models with Better Relative Position Embeddings", arXiv 2009.13658, method
    4, with the weights of BERT's `relative_key_query` up to transformers 4.57. See `relative_key`.

    Costs twice the products and gathers of `relative_key`, and the same weights; inputs longer than max_positions are
    an error.

    Args:
        head_dim, num_layers, max_positions (int): d, L, and the number of positions.
    """

    name = "relative_key_query"
    with_keys = True
