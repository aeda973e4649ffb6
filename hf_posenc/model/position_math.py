"""What schemes compute with: sinusoids, distances, gathers, and checks of numbers. Your own scheme may import it."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from transformers import initialization as init


def require_positive(name: str, value: float, hint: str = "", least: float = 0.0, most: float = math.inf) -> float:
    """The value, if it is a positive, finite number from `least` to `most`; else a ValueError that says so."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not (number and least <= value <= most):
        raise ValueError(f"{name}={value!r} is out of range. It must be a positive number{hint}.")
    return float(value)


def require_size(name: str, value: int, most: int = 2**24) -> int:
    """The value, if it is a whole number from 1 to `most`; else a ValueError that says so."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r} is out of range. It must be a whole number from 1 to {most}.")
    return value


def require_probability(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1; else a ValueError that says so."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} is out of range. A probability lies between 0 and 1.")
    return float(value)


def sinusoid(positions: Tensor, dim: int, base: float = 10000.0) -> Tensor:
    """Sine and cosine of the position at geometrically growing wavelengths, in float32.

    PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(p / base^(2i/dim)). For an odd `dim` the last column is a
    sine. Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

    Args:
        positions: any integers or reals (...).
        dim: number of columns.
        base: the longest wavelength is 2 pi base.

    Returns:
        float32 (..., dim).
    """
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse_frequencies(dim, base, positions.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :dim]


def inverse_frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/dim) for i = 0 .. ceil(dim/2)-1, float32, each rounded once from float64."""
    return torch.tensor(
        [math.pow(base, -2 * i / dim) for i in range((dim + 1) // 2)], dtype=torch.float32, device=device
    )


def per_distinct_position(function: Callable[[Tensor], Tensor], positions: Tensor) -> Tensor:
    """`function(positions)`, computed once for each distinct position and gathered: (...) -> (..., D).

    A batch repeats its positions many times. Where shapes are fixed, as in a traced graph, the function runs on all
    positions.
    """
    if have_fixed_shapes(positions):
        return function(positions)
    distinct, index = positions.unique(return_inverse=True)
    return nn.functional.embedding(index, function(distinct))


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


def outside_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Turns autocast off on a device: what is computed from positions needs float32."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def tracing() -> bool:
    """Whether the code is being compiled or exported."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed(x: Tensor) -> bool:
    """Whether a function transform of `torch.func` (grad, jvp, vmap) runs on x; fused kernels have no such rules."""
    return not torch.compiler.is_compiling() and debug_unwrap(x) is not x


def have_fixed_shapes(*tensors: Tensor | None) -> bool:
    """Whether shapes must not depend on what these tensors hold: in a traced graph, or under `torch.func`."""
    return tracing() or any(is_transformed(x) for x in tensors if x is not None)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The dtype to accumulate in: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def input_dtype(layer: nn.Linear) -> torch.dtype:
    """The dtype of inputs that a linear layer takes: its weights', or float32 where they are quantised to int8."""
    return layer.weight.dtype if isinstance(layer.weight, Tensor) else torch.float32


def relative_positions(positions: Tensor) -> Tensor:
    """p_j - p_i for query i and key j: int64 (1 or B, S) -> (1 or B, S, S)."""
    return positions[:, None, :] - positions[:, :, None]


def are_consecutive(positions: Tensor) -> bool:
    """Whether all rows of positions (1 or B, S) are alike, each one more than the last. Not where shapes are fixed."""
    return not have_fixed_shapes(positions) and positions.shape[0] == 1 and bool((positions.diff() == 1).all())


def gather_by_distance(x: Tensor, positions: Tensor, reach: int) -> Tensor:
    """Takes, of each query's row, the column of each key's distance: (B, H, S, R) -> (B, H, S, S).

    Args:
        x: columns hold distances p_j - p_i from -reach to reach, R = 2 reach + 1.
        positions: padded layout (1 or B, S).
        reach: at least the largest distance.
    """
    length = x.shape[-2]
    if not tracing() and x.shape[-1] == 2 * length - 1 > 1 and are_consecutive(positions):
        # Each row starts one column left of the row above. In rows that are shorter by one, all start at the same.
        return x.flatten(-2)[..., length - 1 : -1].unflatten(-1, (length, 2 * length - 2))[..., :length]
    index = (relative_positions(positions) + reach).unsqueeze(1)
    return x.gather(-1, index.expand(*x.shape[:2], -1, -1))


def per_distinct_distance(function: Callable[[Tensor], Tensor], positions: Tensor) -> Tensor:
    """`function(p_j - p_i)`, computed once for each distinct distance and gathered.

    L tokens have 2 L - 1 distances, not L^2 pairs. Learned biases evaluate their network or table on the
    distances alone, and their gradient is summed by distance in one pass, along diagonals where positions are
    consecutive.

    Args:
        function: int64 (R,) -> (R, H).
        positions: padded layout (1 or B, S).

    Returns:
        (1 or B, H, S, S).
    """
    if have_fixed_shapes(positions):
        distance = relative_positions(positions)
        return function(distance.flatten()).unflatten(0, distance.shape).permute(0, 3, 1, 2)
    if are_consecutive(positions):
        reach = positions.shape[1] - 1
        table = function(torch.arange(-reach, reach + 1, device=positions.device))
        # Row i holds columns j - i + S - 1 for j = 0 .. S - 1: each window of S columns, from the last to the first.
        return table.T.unfold(1, positions.shape[1], 1).flip(1).unsqueeze(0)
    reach = int(positions.max() - positions.min())
    distance = relative_positions(positions)
    if 2 * reach + 1 > distance.numel():  # few positions, far apart, as a random sample is
        distinct, index = distance.unique(return_inverse=True)
        return nn.functional.embedding(index, function(distinct)).permute(0, 3, 1, 2)
    table = function(torch.arange(-reach, reach + 1, device=positions.device)).T.contiguous()
    flat = table.index_select(1, (distance + reach).flatten())
    return flat.unflatten(1, distance.shape).transpose(0, 1)
