"""Tools of schemes that add vectors: sinusoids, and the scale of a network. Your own scheme may import it."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_math import constant, positive, require, whole


def sinusoidal_table(positions: Tensor, dim: int, base: float = 10000.0) -> Tensor:
    """Sine and cosine of the position at geometrically growing wavelengths, in float32.

    PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(p / base^(2i/dim)). For an odd `dim` the last column is a
    sine. Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

    Args:
        positions: any integers or reals (...).
        dim: number of columns.
        base: the longest wavelength is 2 pi base.

    Returns:
        float32 (..., dim).

    Raises:
        ValueError: `dim` or `base` isn't positive.
    """
    require("dim", dim, whole())
    require("base", base, positive("; 10000 is usual"))
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse_frequencies(dim, base, positions.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :dim]


def inverse_frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/dim) for i = 0 .. ceil(dim/2)-1, float32, each rounded once from float64."""
    return constant(tuple(math.pow(base, -2 * i / dim) for i in range((dim + 1) // 2)), device)


@torch.no_grad()
def centre_and_scale(last: nn.Linear, hidden: Tensor) -> None:
    """Scales a network's last layer, and sets its bias, so that its outputs have mean 0 and root mean square 1.

    For schemes whose network would otherwise start with nearly the same output at all positions. Leaves loaded weights
    alone.

    Args:
        last: the layer (W -> D).
        hidden: its inputs at the positions that count, float32 (P, W).
    """
    if getattr(last.weight, "_is_hf_initialized", False) or getattr(last.bias, "_is_hf_initialized", False):
        return
    added = (hidden - hidden.mean(0)) @ last.weight.float().T
    gain = 1 / added.square().mean().sqrt().clamp(min=1e-12)
    init.copy_(last.weight, last.weight * gain.to(last.weight.dtype))
    init.copy_(last.bias, -(hidden.mean(0) @ last.weight.float().T).to(last.bias.dtype))
