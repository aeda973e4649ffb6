"""What makes a CPU fast: linear layers in oneDNN, dropout by 16 bits, attention one sequence after the other.

Each has an ordinary form that gives the same. `HF_POSENC_CPU_KERNELS=0` in the environment, or `set_enabled(False)`,
turns all of them off.
"""

import functools
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from .position_math import plain as _untouched

_enabled = os.environ.get("HF_POSENC_CPU_KERNELS", "1") != "0"


def set_enabled(enabled: bool) -> None:
    """Turns the kernels of this file on or off, in this process: for debugging, and to compare with ordinary ones."""
    global _enabled
    _enabled = enabled


def plain(x: Tensor) -> bool:
    """Whether kernels may be called on a tensor directly: it is an ordinary eager one, and they aren't turned off."""
    return _enabled and _untouched(x)


# ---- linear layers --------------------------------------------------------------------------------------------------


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
    if type(layer) is not nn.Linear or not _fits(x, layer.weight, layer.bias) or _is_watched(layer):
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


# ---- dropout --------------------------------------------------------------------------------------------------------

STEPS = 2**16
"""Probabilities are multiples of 1 / STEPS; what is kept is scaled by the one used, as nearly as x's dtype can."""


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = min(round(p * STEPS), STEPS - 1)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        drawn = words.view(torch.int16)[: x.numel()].view(x.shape)
        mask = torch.ge(drawn, dropped - STEPS // 2, out=torch.empty_like(x))
        mask.mul_(STEPS / (STEPS - dropped))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0] * mask, None


class Dropout(nn.Dropout):
    """`nn.Dropout` with other masks for the same seed: x m / (1 - p), m from {0, 1} (arXiv 1207.0580)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        fits = x.device.type == "cpu" and x.is_floating_point() and plain(x) and not self.inplace
        if fits and self.training and 1 / STEPS <= self.p < 1:
            return _Dropout.apply(x, self.p)
        return super().forward(x)


# ---- attention ------------------------------------------------------------------------------------------------------

BLOCK = 2**18
"""Logits that the gradient of a bias works on at a time, or those of one head if there are more: they stay in cache."""

HALF_FROM = 512
"""Tokens from which the kernel is given half precision: in shorter sequences its backward is up to ten times slower."""


def runs_by_sequence(q: Tensor) -> bool:
    """Whether `attend_by_sequence` can take these queries: real numbers on a CPU that nobody traces or watches."""
    return (
        plain(q)
        and q.device.type == "cpu"
        and q.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    )


def attend_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: list[int], scale: float
) -> Tensor:
    """softmax(scale q k^T + bias) v within each sequence: (T, H, d) three times -> (T, H, d).

    Args:
        q, k, v: queries, keys and values of n sequences one after the other, T tokens in all.
        bias: (1 or n, 1 or H, L, L); of a sequence of l tokens the first l rows and columns count. It may need a
            gradient, and so may what it was made of. None: no bias.
        lengths: tokens of each sequence, at least one sequence of at least one token.
        scale: factor on q k^T.
    """
    if min(lengths, default=0) < 1:
        raise ValueError(f"lengths={lengths!r}: each sequence needs a token. Leave empty ones out.")
    dtype = q.dtype
    if dtype in (torch.bfloat16, torch.float16) and max(lengths) < HALF_FROM:
        q = q.float()
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k.to(q.dtype), v.to(q.dtype)))
    if bias is not None:  # what broadcasts to (n, H, L, L) may be smaller
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        bias = bias.expand(-1, -1, max(lengths), max(lengths))
    if bias is not None and (bias.dtype != torch.float32 or q.dtype == torch.float64):
        bias = bias.to(q.dtype)  # the kernel adds float32 to half precision, and equal dtypes
    return _BySequence.apply(q, k, v, bias, lengths, scale).to(dtype)


class _BySequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: list[int], scale: float
    ) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        outs, sums = [], []
        for place, (one_q, one_k, one_v) in enumerate(zip(*(_split(t, lengths) for t in (q, k, v)), strict=True)):
            mask = _of_sequence(bias, place, lengths)
            out, log_sum = kernel(one_q, one_k, one_v, 0.0, False, attn_mask=mask, scale=scale)
            outs.append(out)
            sums.append(log_sum)
        out = _join(outs)
        ctx.save_for_backward(q, k, v, bias, out, torch.cat(sums, -1))
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v, bias, out, log_sum = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient that is to be differentiated again is made of ordinary operations
            pairs = list(zip((q, k, v, bias, None, None), ctx.needs_input_grad, strict=True))
            with torch.autocast("cpu", enabled=False):
                out = _ordinary(q, k, v, bias, ctx.lengths, ctx.scale)
                found = torch.autograd.grad(out, [t for t, needed in pairs if needed], gradient, create_graph=True)
            rest = iter(found)
            return tuple(next(rest) if needed else None for _, needed in pairs)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        bias_gradient = None
        if bias is not None and ctx.needs_input_grad[3]:
            bias_gradient = torch.zeros_like(bias, dtype=torch.promote_types(bias.dtype, torch.float32))
        gradients: tuple[list[Tensor], ...] = ([], [], [])
        tensors = [_split(t, ctx.lengths) for t in (gradient, q, k, v, out)]
        for place, (*one, one_sum) in enumerate(zip(*tensors, log_sum.split(ctx.lengths, -1), strict=True)):
            mask = _of_sequence(bias, place, ctx.lengths)
            if bias_gradient is None:
                parts = kernel(*one, one_sum, 0.0, False, attn_mask=mask, scale=ctx.scale)
            else:
                total = _of_sequence(bias_gradient, place, ctx.lengths)
                parts = _gradients(one, one_sum, mask, total, ctx.scale)
            for all_of_them, part in zip(gradients, parts, strict=True):
                all_of_them.append(part)
        if bias_gradient is not None:
            bias_gradient = bias_gradient.to(bias.dtype)
        return *(_join(parts) for parts in gradients), bias_gradient, None, None


def _ordinary(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: list[int], scale: float) -> Tensor:
    """What `_BySequence` gives, from operations that can be differentiated any number of times."""
    outs = []
    for place, one in enumerate(zip(*(_split(t, lengths) for t in (q, k, v)), strict=True)):
        mask = _of_sequence(bias, place, lengths)
        outs.append(torch.ops.aten._scaled_dot_product_attention_math(*one, attn_mask=mask, scale=scale)[0])
    return _join(outs)


def _split(x: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
    """(T, H, d) -> (1, H, l, d) for each sequence, without a copy."""
    return x.transpose(0, 1).unsqueeze(0).split(lengths, 2)


def _join(parts: list[Tensor]) -> Tensor:
    """(1, H, l, d) of each sequence -> (T, H, d)."""
    return torch.cat([part.transpose(1, 2) for part in parts], 1)[0]


def _of_sequence(bias: Tensor | None, place: int, lengths: list[int]) -> Tensor | None:
    if bias is None:
        return None
    row = place if bias.shape[0] > 1 else 0
    return bias[row : row + 1, :, : lengths[place], : lengths[place]]


def _gradients(one: list[Tensor], log_sum: Tensor, bias: Any, total: Any, scale: float) -> list[Tensor]:
    """Gradients of one sequence's q, k and v; that of the bias is added to `total`, a block of heads at a time.

    With P = exp(scale q k^T + bias - log_sum) and dS = P (dO v^T - rowsum(dO O)): dq = scale dS k, dk = scale dS^T q,
    dv = P^T dO, dbias = dS. `one` holds dO, q, k, v and O, each (1, H, l, d).
    """
    gradients = [torch.empty_like(t) for t in one[1:4]]
    heads, length = one[0].shape[1:3]
    size = max(1, BLOCK // length**2)
    with torch.autocast("cpu", enabled=False):
        for first in range(0, heads, size):
            block = slice(first, first + size)
            shared = block if total.shape[1] > 1 else slice(None)
            d_out, q, k, v, out = (
                t[0, block].to(torch.promote_types(t.dtype, torch.float32)).contiguous() for t in one
            )
            q = q * scale
            p = _matmul(q, k.transpose(1, 2)).add_(bias[0, shared])
            p = p.sub_(log_sum[0, block].unsqueeze(-1)).exp_()
            ds = _matmul(d_out, v.transpose(1, 2))
            ds = ds.sub_((d_out * out).sum(-1, keepdim=True)).mul_(p)
            total[0, shared] += ds if total.shape[1] > 1 else ds.sum(0, keepdim=True)
            parts = (
                _matmul(ds, k) * scale,
                _matmul_t(ds, q),
                _matmul_t(p, d_out),
            )
            for gradient, part in zip(gradients, parts, strict=True):
                gradient[0, block] = part
    return gradients


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """(h, m, k) (h, k, n) -> (h, m, n)."""
    if a.shape[0] == 1 and max(a.shape[1:]) >= 256 and a.dtype == torch.float32 and onednn_is_faster():
        return product(a[0], b[0].t()).unsqueeze(0)
    return torch.matmul(a, b)


def _matmul_t(a: Tensor, b: Tensor) -> Tensor:
    """a^T b: (h, k, m) (h, k, n) -> (h, m, n), as (b^T a)^T: what oneDNN makes contiguous is then the smaller one."""
    return _matmul(b.transpose(1, 2), a).transpose(1, 2)
