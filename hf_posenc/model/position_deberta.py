"""`deberta`: disentangled attention, content attending to relative positions and back."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_distance import gather_by_distance
from .scheme_math import one_of, positive, require, whole
from .unpadding import Tokens


class DebertaPosition(PositionScheme):
    """Content attends to distances and back: b(i, j) = (q_i . K_r[i - j] + k_j . Q_r[i - j]) / sqrt(s d).

    K_r = R W_K, Q_r = R W_Q.
    He et al. 2020, arXiv 2006.03654: content to position (c2p) and position to content (p2c) beside content to
    content, all divided by sqrt(s d), s one more than the number of added terms. R holds one vector for each distance,
    clipped to [-max_distance, max_distance), shared by all layers; W_K and W_Q are each layer's own. (The
    paper writes Q_r[j - i]; its code, and so every published weight, has i - j. DeBERTa-v2 may share the content's
    projections instead, and bucket distances logarithmically.)

    Costs, in each layer, products of q and k with 2 k vectors and a gather of (B, H, S, S) for each term; 2 k D + L
    (terms) (D^2 + D) weights; takes any length: all far distances look alike.

    Args:
        hidden_size, num_heads, num_layers (int): D, H, L.
        terms (str): `c2p`, `p2c` or `both`.
        max_distance (int): k; farther pairs share the last vector of their side.
        std (float): standard deviation of the initial R. In a model it defaults to that of the token embeddings.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "deberta"
    shift_invariant = True
    token_scaled = "std"

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        num_layers: int,
        terms: str = "both",
        max_distance: int = 128,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        require("terms", terms, one_of("c2p", "p2c", "both"))
        self.num_heads = num_heads
        self.max_distance = require("max_distance", max_distance, whole(most=2**20))
        self.std = 0.0 if std == 0 else require("std", std, positive(", or 0"))
        self.query_scale = (1 + (2 if terms == "both" else 1)) ** -0.5
        self.embedding = nn.Embedding(2 * max_distance, hidden_size)
        layers = range(num_layers)
        self.keys = nn.ModuleList([nn.Linear(hidden_size, hidden_size) for _ in layers]) if terms != "p2c" else None
        self.queries = nn.ModuleList([nn.Linear(hidden_size, hidden_size) for _ in layers]) if terms != "c2p" else None

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        """c2p and p2c logits: q and k (B, H, S, d) -> (B, H, S, S)."""
        limit = self.max_distance
        max_distance = limit if tokens.max_distance is None else tokens.max_distance
        index = torch.arange(2 * limit, device=q.device)
        if max_distance < limit:  # nothing is clipped: the vectors in reach alone
            index = index[limit - max_distance : limit + max_distance + 1]
        relative = self.embedding(index)
        bias = None
        if self.keys is not None:
            # Each query's row by j - i, which grows as the vectors' i - j falls.
            keys = self._heads(self.keys[layer](relative)).flip(-1)
            bias = self._gather(torch.matmul(q, keys), tokens, max_distance, 1)
        if self.queries is not None:
            queries = self._heads(self.queries[layer](relative))
            p2c = self._gather(torch.matmul(k, queries), tokens, max_distance, 0).transpose(-1, -2)
            bias = p2c if bias is None else bias + p2c
        assert bias is not None
        return bias * (self.query_scale * q.shape[-1] ** -0.5)

    def _gather(self, logits: Tensor, tokens: Tokens, max_distance: int, least: int) -> Tensor:
        """(B, H, S, R) by distance -> (B, H, S, S); where clipped, columns start at `least` - max_distance."""
        limit = self.max_distance
        if max_distance < limit:
            return gather_by_distance(logits, tokens, max_distance)
        place = tokens.distances().clamp(least - limit, least + limit - 1) + limit - least
        return logits.gather(-1, place.unsqueeze(1).expand(*logits.shape[:2], -1, -1))

    def _heads(self, vectors: Tensor) -> Tensor:
        """(R, D) -> (H, d, R)."""
        return vectors.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)

    def init_weights(self, std: float) -> None:
        """Normal, R with the scheme's own standard deviation."""
        init.normal_(self.embedding.weight, std=self.std)
