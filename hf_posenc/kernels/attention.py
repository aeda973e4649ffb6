"""Attention with a bias that needs a gradient, to which PyTorch's fused CPU kernel gives none."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .switch import takes

BLOCK = 2**18
"""Logits that the backward pass handles at a time (at least one head's), so that they stay in cache."""


def gains_from_fusion(q: Tensor, bias: Tensor | None, dropout: float) -> bool:
    """True where `attend` computes this itself: a bias that needs a gradient, no dropout, ordinary tensors on a CPU."""
    return bias is not None and bias.requires_grad and not dropout and torch.is_grad_enabled() and takes(q)


def attend(
    interface: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, dropout: float, scaling: float
) -> tuple[Tensor, Tensor | None]:
    """softmax(scaling q k^T + mask) v: (m, H, l, d) three times -> (m, l, H, d), and None for the probabilities.

    Args:
        interface: transformers' sdpa, for all that isn't faster here.
        q, k, v: queries, keys and values.
        mask: (1 or m, 1 or H, l, l), in the dtype of q or in float32; or whatever `interface` takes.
        dropout: on the probabilities.
        scaling: factor on q k^T.
    """
    if mask is None or not gains_from_fusion(q, mask, dropout):
        return interface(q, k, v, mask, dropout=dropout, scaling=scaling)
    return _BiasedAttention.apply(q, k, v, mask, scaling).transpose(1, 2), None


class _BiasedAttention(torch.autograd.Function):
    """The forward pass is PyTorch's fused one; the backward pass computes the probabilities again, block by block.

    With P = softmax(scale q k^T + bias) and dS = P (dO v^T - rowsum(dO O)): dq = scale dS k, dk = scale dS^T q,
    dv = P^T dO, dbias = dS.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        mask = bias.detach()
        out = scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), attn_mask=mask, scale=scale)
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient that will be differentiated again is computed by ordinary operations
            return *_differentiable(ctx, (q, k, v, bias), gradients[0]), None
        dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
        dbias = torch.zeros_like(bias)
        size = max(1, BLOCK // (q.shape[0] * q.shape[2] ** 2))
        with torch.autocast("cpu", enabled=False):
            for first in range(0, q.shape[1], size):
                block = slice(first, first + size)
                shared = block if bias.shape[1] > 1 else slice(None)
                wide = torch.promote_types(q.dtype, torch.float32)
                one_q, one_k, one_v, d_out = (t[:, block].to(wide).contiguous() for t in (q, k, v, gradients[0]))
                p = torch.matmul(one_q * ctx.scale, one_k.transpose(-1, -2)).add_(bias[:, shared]).softmax(-1)
                ds = torch.matmul(d_out, one_v.transpose(-1, -2))
                ds = ds.sub_((d_out * out[:, block].to(wide)).sum(-1, keepdim=True)).mul_(p)
                dbias[:, shared] += ds.sum_to_size(dbias[:, shared].shape)
                dq[:, block] = torch.matmul(ds, one_k).mul_(ctx.scale)
                dk[:, block] = torch.matmul(ds.transpose(-1, -2), one_q).mul_(ctx.scale)
                dv[:, block] = torch.matmul(p.transpose(-1, -2), d_out)
        return dq, dk, dv, dbias, None


def _differentiable(ctx: Any, inputs: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, bias = inputs
    wanted = ctx.needs_input_grad[:4]
    with torch.autocast("cpu", enabled=False):
        logits = torch.matmul(q * ctx.scale, k.transpose(-1, -2)) + bias
        out = torch.matmul(logits.softmax(-1).to(v.dtype), v)
        chosen = [t for t, wants in zip(inputs, wanted, strict=True) if wants]
        gradients = iter(torch.autograd.grad(out, chosen, gradient, create_graph=True))
    return tuple(next(gradients) if wants else None for wants in wanted)
