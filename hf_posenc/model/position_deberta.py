"""`deberta`: disentangled attention, content attending to relative positions and back."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_base import PositionScheme
from .scheme_math import PROBABILITY, one_of, positive, require, whole
from .unpadding import Tokens


def deberta_bucket(distance: Tensor, position_buckets: int, max_distance: int) -> Tensor:
    """The bucket of p_i - p_j, odd: up to half of `position_buckets` the distance, then its logarithm, rounded up."""
    middle = position_buckets // 2
    far = distance.abs()
    # float32, both logarithms, as in DeBERTa: a distance on a border falls on the same side of it.
    most = torch.full((), (max_distance - 1) / middle, dtype=torch.float32, device=distance.device)
    share = torch.log(far.clamp(min=middle).float() / middle) / torch.log(most)
    grown = torch.ceil(share * (middle - 1)).long() + middle
    return torch.where(far <= middle, distance, grown * distance.sign())


class DebertaPosition(PositionScheme):
    """Content attends to distances and back: b(i, j) = (q_i . K_r[i - j] + k_j . Q_r[i - j]) / sqrt(s d).

    K_r = R W_K, Q_r = R W_Q.
    He et al. 2020, arXiv 2006.03654: content to position (c2p) and position to content (p2c) beside content to
    content, all divided by sqrt(s d), s one more than the number of added terms. R holds one vector for each distance,
    clipped to [-k, k), shared by all layers; W_K and W_Q are each layer's own. (The paper writes Q_r[j - i]; its code,
    and so every published weight, has i - j.) DeBERTa-v3 (He et al. 2021, arXiv 2111.09543) is
    `position_buckets=256, max_distance=512, share_att_key=True, norm_eps=1e-7`.

    Costs, in each layer, products of q and k with 2 k vectors, or as many as are in reach, and a gather of (B, H, S, S)
    for each term; 2 k D + L (terms) (D^2 + D) weights; takes any length: all far distances look alike.

    Args:
        hidden_size, num_heads, num_layers (int): D, H, L.
        terms (str): `c2p`, `p2c` or `both`.
        max_distance (int): k; farther pairs share the last vector of their side.
        position_buckets (int): k, where distances past its half share logarithmically growing buckets up to
            `max_distance`, as in DeBERTa-v2. None: each distance has a vector.
        share_att_key (bool): W_K and W_Q are the content's own, as in DeBERTa-v2, and no weights are added.
        norm_eps (float): epsilon of a LayerNorm on R, as in DeBERTa-v2. None: none.
        dropout (float): on R, drawn anew in each layer.
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
        position_buckets: int | None = None,
        share_att_key: bool = False,
        norm_eps: float | None = None,
        dropout: float = 0.0,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.terms = require("terms", terms, one_of("c2p", "p2c", "both"))
        self.num_heads = num_heads
        least = 1 if position_buckets is None else 3  # else no number of buckets fits
        self.max_distance = require("max_distance", max_distance, whole(least, 2**20))
        self.position_buckets = position_buckets
        if position_buckets is not None:  # with more, no distance below the largest would have a logarithm
            require("position_buckets", position_buckets, whole(2, 2 * max_distance - 4))
        self.span = position_buckets or max_distance
        self.std = float(require("std", std, positive(", or 0", 0.0)))
        self.query_scale = (1 + (2 if terms == "both" else 1)) ** -0.5
        self.embedding = nn.Embedding(2 * self.span, hidden_size)
        self.norm = None if norm_eps is None else nn.LayerNorm(hidden_size, require("norm_eps", norm_eps, positive()))
        self.dropout = nn.Dropout(require("dropout", dropout, PROBABILITY))
        self.share_att_key = share_att_key
        sizes = [(hidden_size, hidden_size)] * (0 if share_att_key else num_layers)
        self.keys = nn.ModuleList([nn.Linear(*size) for size in sizes]) if terms != "p2c" and sizes else None
        self.queries = nn.ModuleList([nn.Linear(*size) for size in sizes]) if terms != "c2p" and sizes else None

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor:
        """c2p and p2c logits: q and k (B, H, S, d) -> (B, H, S, S)."""
        vectors, place = self._reachable(tokens)
        content: Any = tokens.projections
        total: Any = 0
        if self.terms != "p2c":
            to_key = content[1] if self.keys is None else self.keys[layer]
            total = self._gather(q, to_key(vectors), place)
        if self.terms != "c2p":
            to_query = content[0] if self.queries is None else self.queries[layer]
            # The key's row holds what it gives each query's distance, i - j.
            total = total + self._gather(k, to_query(vectors), place.transpose(-1, -2)).transpose(-1, -2)
        return total * (self.query_scale * q.shape[-1] ** -0.5)

    def _reachable(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """The vectors of the distances in reach, (R, D), and which of them each pair has, int64 (1 or B, S, S)."""
        reach = self.span if tokens.max_distance is None else self._reach(tokens.max_distance)
        least = self.span - reach
        most = min(self.span + reach, 2 * self.span - 1)
        vectors = self.embedding(torch.arange(least, most + 1, device=tokens.positions.device))
        if self.norm is not None:
            vectors = self.norm(vectors)
        place = (self._bucket(-tokens.distances()) + self.span).clamp(least, most) - least
        return self.dropout(vectors), place

    def _reach(self, distance: int) -> int:
        """The largest bucket up to a distance, or one more: the last digit of a logarithm may differ."""
        middle = self.span // 2
        if self.position_buckets is None or distance <= middle:
            return min(distance, self.span)
        grown = math.log(distance / middle) / math.log((self.max_distance - 1) / middle) * (middle - 1)
        return min(middle + math.ceil(grown) + 1, self.span)

    def _bucket(self, distance: Tensor) -> Tensor:
        buckets = self.position_buckets
        return distance if buckets is None else deberta_bucket(distance, buckets, self.max_distance)

    def _gather(self, content: Tensor, vectors: Tensor, place: Tensor) -> Tensor:
        """The product of each place's content, (B, H, S, d), with its pairs' vectors, of (R, D): (B, H, S, S)."""
        logits = torch.matmul(content, vectors.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0))
        return logits.gather(-1, place.unsqueeze(1).expand(*logits.shape[:2], -1, -1))

    def init_weights(self, std: float) -> None:
        """Normal, R with the scheme's own standard deviation."""
        init.normal_(self.embedding.weight, std=self.std)
