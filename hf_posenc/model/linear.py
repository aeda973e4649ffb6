"""Linear layers through the faster of PyTorch's two CPU matrix libraries."""

import functools
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from .position_base import plain


@functools.cache
def onednn_is_faster() -> bool:
    """Whether float32 products run better in oneDNN than in MKL, PyTorch's choice: on AMD processors with AVX-512.

    There MKL keeps to AVX2. Measured on an EPYC of the Zen 5 generation: 200 GFLOP/s by MKL, 350 to 480 by oneDNN.
    """
    if not (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    ):
        return False
    try:
        maker = Path("/proc/cpuinfo").read_text()
    except OSError:
        maker = platform.processor()
    return "AuthenticAMD" in maker


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return bool(
        plain(x)
        and onednn_is_faster()
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() > 0
        and type(weight) in (Tensor, nn.Parameter)
        and weight.is_contiguous()
        and (bias is None or bias.dtype == torch.float32)
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of dense matrices, transposed or not: for other strides oneDNN has nothing but a slow reference."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """y = x W^T + b: (..., K), (N, K), (N,) -> (..., N), forward and backward in oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        # A gradient that is to be differentiated again is made of ordinary operations.
        multiply = functional.linear if torch.is_grad_enabled() else product
        rows, by_row = x.flatten(0, -2), gradient.flatten(0, -2)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight.t()) if wants_x else None,
            multiply(by_row.t(), rows.t()) if wants_weight else None,
            by_row.sum(0) if wants_bias else None,
        )


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)` of a linear layer, (..., in_features) -> (..., out_features), in the faster library.

    Anything but a plain `nn.Linear` is called as it is: a quantised or adapted layer, or one that somebody hooked.
    """
    if type(layer) is not nn.Linear or _is_watched(layer) or not _fits(x, layer.weight, layer.bias):
        return layer(x)
    if torch.is_grad_enabled():
        return _OneDNNLinear.apply(x.contiguous(), layer.weight, layer.bias)
    return product(x.contiguous(), layer.weight, layer.bias)


def _is_watched(layer: nn.Module) -> bool:
    return bool(
        "forward" in vars(layer)
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or _has_any_global_hook()
    )
