"""Linear layers in oneDNN, where it is faster than PyTorch's choice, MKL."""

import functools
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .switch import takes


@functools.cache
def onednn_is_faster() -> bool:
    """True where float32 products run better in oneDNN than in MKL: on AMD processors with AVX-512.

    There MKL keeps to AVX2. Measured on EPYCs with two threads: Zen 5, 200 GFLOP/s by MKL and 350 to 480 by oneDNN; Zen
    4, 190 and 210. False where PyTorch has no such operation, or one that gives other numbers.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")):
        return False
    try:
        maker = Path("/proc/cpuinfo").read_text()
    except OSError:
        maker = platform.processor()
    return "AuthenticAMD" in maker and _gives_the_product()


def _gives_the_product() -> bool:
    """Tries the operation once: it isn't a public one."""
    x, weight, bias = torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([4.0])
    try:
        return bool((_product(x, weight, bias) == 10).all())
    except Exception:  # whatever it raises: PyTorch's own linear layer stands in
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of dense matrices, transposed or not: for other strides oneDNN has only a slow reference."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """y = x W^T + b: (..., K), (N, K), (N,) -> (..., N), forward and backward in oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        # A gradient that will be differentiated again is computed by ordinary operations.
        multiply = functional.linear if torch.is_grad_enabled() else _product
        rows, by_row = x.flatten(0, -2), gradient.flatten(0, -2)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight.t()) if wants_x else None,
            multiply(by_row.t(), rows.t()) if wants_weight else None,
            by_row.sum(0) if wants_bias else None,
        )


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)` of a linear layer, (..., in_features) -> (..., out_features), in the faster library.

    Anything but a plain `nn.Linear` is called as it is: a quantised or adapted layer, or one with hooks.
    """
    if not takes(x) or type(layer) is not nn.Linear or not _fits(x, layer.weight, layer.bias) or _is_watched(layer):
        return layer(x)
    x = x.contiguous()
    if torch.is_grad_enabled():
        return _OneDNNLinear.apply(x, layer.weight, layer.bias)
    return _product(x, layer.weight, layer.bias)


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return bool(
        x.dtype == weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and x.numel() > 0
        and type(weight) in (Tensor, nn.Parameter)
        and weight.is_contiguous()
        and (bias is None or bias.dtype == torch.float32)
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and onednn_is_faster()
    )


def _is_watched(layer: nn.Module) -> bool:
    """True where calling the layer does more than its product; True where this PyTorch can't say."""
    try:
        from torch.nn.modules.module import _has_any_global_hook

        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
        return bool("forward" in vars(layer) or any(hooks) or _has_any_global_hook())
    except (ImportError, AttributeError):
        return True
