"""Schemes that rotate queries and keys: chooses a basis of each head in which little of q.k rotates fast."""

from typing import Any

import torch
from torch import Tensor

from ..model.position_base import PositionScheme
from ..schemes.hooks import rotated_units


def _turning_order(turned: Tensor) -> Tensor:
    """A head's dimensions from slow to fast, pairs together, measured by rotating unit vectors to position 1."""
    head_dim = len(turned)
    cosine = turned.diagonal()
    sine = (turned - torch.diag(cosine)).abs()
    partner = torch.where(sine.amax(-1) > 1e-9, sine.argmax(-1), torch.arange(head_dim))
    order: list[int] = []
    for place in cosine.argsort(descending=True, stable=True).tolist():
        if place not in order:
            order.append(place)
            if int(partner[place]) not in order:
                order.append(int(partner[place]))
    return torch.tensor(order)


def choose_basis(attention: Any, part: PositionScheme, inputs: Tensor, layer: int) -> None:
    """q A and k A^-T per head, such that the directions that hold most of q.k turn slowest; q.k itself is unchanged."""
    size = attention.head_dim
    heads = attention.query.out_features // size
    turned = rotated_units(part, heads, size, 2, layer)[:, 1].expand(heads, -1, -1)
    x = inputs.flatten(0, 1).double()
    biased = attention.query.bias is not None
    x = torch.cat((x, x.new_ones(len(x), 1)), -1) if biased else x  # the biases are part of q and k
    second = x.T @ x / len(x)
    values, vectors = torch.linalg.eigh(second)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    full = [
        (torch.cat((linear.weight, linear.bias[:, None]), -1) if biased else linear.weight)
        .double()
        .unflatten(0, (-1, size))
        for linear in (attention.query, attention.key)
    ]
    for head, (q, k) in enumerate(zip(*full, strict=True)):  # (d, D + 1) both, without biases (d, D)
        # (q root)^T (k root) has rank d: its singular vectors, by two thin decompositions.
        _, qr = torch.linalg.qr((q @ root).T)
        _, kr = torch.linalg.qr((k @ root).T)
        u, s, vh = torch.linalg.svd(qr @ kr.T)
        if s[-1] < 1e-9 * s[0]:
            continue
        # q' root = S^1/2 U^T Qq^T, so q' = A q with A = S^1/2 U^T qr^-T.
        a = s.sqrt()[:, None] * torch.linalg.solve(qr, u).T
        b = s.sqrt()[:, None] * torch.linalg.solve(kr, vh.T).T
        order = _turning_order(turned[head])
        q[order], k[order] = a @ q, b @ k
    for linear, matrix in zip((attention.query, attention.key), full, strict=True):
        flat = matrix.flatten(0, 1).to(linear.weight.dtype)
        linear.weight.copy_(flat[:, : linear.in_features])
        if biased:
            linear.bias.copy_(flat[:, -1])
