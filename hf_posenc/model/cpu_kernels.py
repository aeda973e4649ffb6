"""What makes a CPU fast: linear layers in oneDNN, dropout by 16 bits, attention one sequence after the other.

Each computes the same as PyTorch's own. `HF_POSENC_CPU_KERNELS=0` in the environment, or `set_enabled(False)`,
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

from .position_math import plain, wide

_enabled = os.environ.get("HF_POSENC_CPU_KERNELS", "1") != "0"


def set_enabled(enabled: bool) -> None:
    """Turns the kernels of this file on or off in this process: for debugging, and to compare with PyTorch's own."""
    global _enabled
    _enabled = enabled


def _allowed(x: Tensor) -> bool:
    """Whether the kernels are on, and take such a tensor: an ordinary eager one."""
    return _enabled and plain(x)


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
        _allowed(x)
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
    """x W^T + b of dense matrices, transposed or not: for other strides oneDNN has only a slow reference."""
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
        # A gradient that will be differentiated again is computed by ordinary operations.
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

    Anything but a plain `nn.Linear` is called as it is: a quantised or adapted layer, or one with hooks.
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
        fits = x.device.type == "cpu" and x.is_floating_point() and _allowed(x) and not self.inplace
        if fits and self.training and 1 / STEPS <= self.p < 1:
            return _Dropout.apply(x, self.p)
        return super().forward(x)


# ---- attention ------------------------------------------------------------------------------------------------------

BLOCK = 2**18
"""Logits that the gradient of a bias handles at a time (at least one head's), so that they stay in cache."""

HALF_FROM = 512
"""From this many tokens on, gradients run in half precision; in shorter sequences that is up to ten times slower."""


def runs_by_sequence(q: Tensor) -> bool:
    """Whether `attend_by_sequence` can take these queries: ordinary floating-point tensors on a CPU."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    return _allowed(q) and q.device.type == "cpu" and q.dtype in dtypes


def attend_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: list[int], scale: float
) -> Tensor:
    """softmax(scale q k^T + bias) v within each sequence: (T, H, d) three times -> (T, H, d).

    Args:
        q, k, v: queries, keys and values of n sequences one after the other, T tokens in all.
        bias: (1 or n, 1 or H, L, L); of a sequence of l tokens the first l rows and columns count. It may need a
            gradient, and so may what it was made of. None: no bias.
        lengths: tokens of each sequence, none of them empty.
        scale: factor on q k^T.
    """
    dtype = q.dtype
    half = dtype in (torch.bfloat16, torch.float16)
    if half and max(lengths) < HALF_FROM and torch.is_grad_enabled():
        q = q.float()
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k.to(q.dtype), v.to(q.dtype)))
    if bias is not None:  # a bias that broadcasts to (n, H, L, L) may be smaller
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        bias = bias.expand(-1, -1, max(lengths), max(lengths))
        if bias.dtype != torch.float32 or q.dtype == torch.float64:
            bias = bias.to(q.dtype)  # the kernel adds float32 to half precision, and equal dtypes
    return _BySequence.apply(q, k, v, bias, lengths, scale).to(dtype)


def _runs(lengths: list[int]) -> list[tuple[int, int]]:
    """Neighbours of equal length go together, as (how many, tokens of each), as far as their logits fit a block."""
    runs: list[tuple[int, int]] = []
    for length in lengths:
        count = runs[-1][0] + 1 if runs and runs[-1][1] == length else 1
        if count > 1 and count * length**2 <= BLOCK:
            runs[-1] = (count, length)
        else:
            runs.append((1, length))
    return runs


class _BySequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, lengths: list[int], scale: float
    ) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        runs = _runs(lengths)
        outs, sums = [], []
        for *one, mask in zip(*(_split(t, runs) for t in (q, k, v)), _split_bias(bias, runs), strict=True):
            out, log_sum = kernel(*one, 0.0, False, attn_mask=mask, scale=scale)
            outs.append(out)
            sums.append(log_sum)
        out = _join(outs)
        ctx.save_for_backward(q, k, v, bias, out, *sums)
        ctx.runs, ctx.scale = runs, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v, bias, out, *log_sums = ctx.saved_tensors
        runs, scale = ctx.runs, ctx.scale
        if torch.is_grad_enabled():  # a gradient that will be differentiated again is computed by ordinary operations
            pairs = list(zip((q, k, v, bias, None, None), ctx.needs_input_grad, strict=True))
            with torch.autocast("cpu", enabled=False):
                out = _ordinary(q, k, v, bias, runs, scale)
                found = torch.autograd.grad(out, [t for t, needed in pairs if needed], gradient, create_graph=True)
            rest = iter(found)
            return tuple(next(rest) if needed else None for _, needed in pairs)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        bias_gradient = None
        if bias is not None and ctx.needs_input_grad[3]:
            bias_gradient = torch.zeros_like(bias, dtype=wide(bias))
        gradients: tuple[list[Tensor], ...] = ([], [], [])
        split = (_split(t, runs) for t in (gradient, q, k, v, out))
        biases = (_split_bias(t, runs) for t in (bias, bias_gradient))
        for *one, log_sum, mask, total in zip(*split, log_sums, *biases, strict=True):
            if total is None:
                parts = kernel(*one, log_sum, 0.0, False, attn_mask=mask, scale=scale)
            else:
                parts = _gradients(one, log_sum, mask, total, scale)
            for all_of_them, part in zip(gradients, parts, strict=True):
                all_of_them.append(part)
        if bias_gradient is not None:
            bias_gradient = bias_gradient.to(bias.dtype)
        return *(_join(parts) for parts in gradients), bias_gradient, None, None


def _ordinary(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, runs: list[tuple[int, int]], scale: float
) -> Tensor:
    """What `_BySequence` gives, from operations that can be differentiated any number of times."""
    attend = torch.ops.aten._scaled_dot_product_attention_math
    split = zip(*(_split(t, runs) for t in (q, k, v)), _split_bias(bias, runs), strict=True)
    return _join([attend(*one, attn_mask=mask, scale=scale)[0] for *one, mask in split])


def _split(x: Tensor, runs: list[tuple[int, int]]) -> list[Tensor]:
    """(T, H, d) -> (m, H, l, d) for each run of m sequences of l tokens, without a copy."""
    parts = x.split([count * length for count, length in runs])
    return [part.unflatten(0, run).transpose(1, 2) for part, run in zip(parts, runs, strict=True)]


def _join(parts: list[Tensor]) -> Tensor:
    """(m, H, l, d) of each run -> (T, H, d)."""
    return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])


def _split_bias(bias: Tensor | None, runs: list[tuple[int, int]]) -> list[Tensor | None]:
    """(1 or n, 1 or H, L, L) -> (1 or m, 1 or H, l, l) for each run, without a copy."""
    if bias is None:
        return [None] * len(runs)
    rows = bias.split([count for count, _ in runs]) if bias.shape[0] > 1 else [bias] * len(runs)
    return [row[:, :, :length, :length] for row, (_, length) in zip(rows, runs, strict=True)]


def _gradients(one: list[Tensor], log_sum: Tensor, bias: Any, total: Any, scale: float) -> list[Tensor]:
    """Gradients of one run's q, k and v; that of the bias is added to `total`, a block of heads at a time.

    With P = exp(scale q k^T + bias - log_sum) and dS = P (dO v^T - rowsum(dO O)): dq = scale dS k, dk = scale dS^T q,
    dv = P^T dO, dbias = dS. `one` holds dO, q, k, v and O, each (m, H, l, d).
    """
    gradients = [torch.empty_like(t) for t in one[1:4]]
    count, heads, length = one[0].shape[:3]
    size = max(1, BLOCK // (count * length**2))
    with torch.autocast("cpu", enabled=False):
        for first in range(0, heads, size):
            block = slice(first, first + size)
            shared = block if total.shape[1] > 1 else slice(None)
            d_out, q, k, v, out = (t[:, block].to(wide(t)).contiguous() for t in one)
            q = q * scale
            p = _matmul(q, k.transpose(-1, -2)).add_(bias[:, shared])
            p = p.sub_(log_sum[:, block].unsqueeze(-1)).exp_()
            ds = _matmul(d_out, v.transpose(-1, -2))
            ds = ds.sub_((d_out * out).sum(-1, keepdim=True)).mul_(p)
            total[:, shared] += ds.sum_to_size(total[:, shared].shape)
            parts = (_matmul(ds, k) * scale, _matmul_t(ds, q), _matmul_t(p, d_out))
            for gradient, part in zip(gradients, parts, strict=True):
                gradient[:, block] = part
    return gradients


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """(m, h, l, k) (m, h, k, n) -> (m, h, l, n)."""
    one = a.shape[0] == a.shape[1] == 1
    if one and max(a.shape[2:]) >= 256 and a.dtype == torch.float32 and onednn_is_faster():
        return product(a[0, 0], b[0, 0].t())[None, None]
    return torch.matmul(a, b)


def _matmul_t(a: Tensor, b: Tensor) -> Tensor:
    """a^T b of (m, h, k, l) and (m, h, k, n), as (b^T a)^T: what oneDNN makes contiguous is then the smaller one."""
    return _matmul(b.transpose(-1, -2), a).transpose(-1, -2)
