"""Attention on tokens without padding: sequence by sequence on a CPU.

PyTorch's fused CPU kernel works on one sequence as well as on a padded batch of them, so nothing is re-padded, no
padding attends to padding, and no mask is merged with the bias. And a learned bias stays on that kernel, which PyTorch
leaves when the mask needs a gradient; its gradient is computed here, block by block.
"""

from typing import Any

import torch
from torch import Tensor

from .linear import onednn_is_faster, product
from .position_base import plain

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
