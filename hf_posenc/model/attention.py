"""Attention backends that take tokens without padding as they are: FlashAttention, flex_attention, PyTorch's varlen.

`attn_implementation` names them, and `sdpa` becomes varlen on a GPU where it can. eager and sdpa proper take a grid and
a mask, and are called by the encoder itself; on a CPU sdpa goes sequence by sequence (`attention_kernels`).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .position_base import PositionScheme
from .position_math import plain
from .unpadding import Layout

TokenAttention = Callable[..., Tensor | None]
"""(attention module, q, k, v, scale, dropout) -> the result, in token layout (1 or B, T, H, d) as q, k and v are.

None: this backend can't, for the dtype say, and a grid serves."""


def takes_tokens(name: str | None) -> bool:
    """Whether a backend needs the batch unpadded: FlashAttention of any version, and flex_attention."""
    return name is not None and ("flash" in name or name == "flex_attention")


def check_backend(name: str | None, scheme: PositionScheme) -> None:
    """Raises where a backend would drop the scheme's bias without a word.

    Raises:
        ValueError: FlashAttention and any bias, or flex_attention and a bias that has no `score_mod`.
    """
    if name is None or not takes_tokens(name) or not (scheme.uses("bias") or scheme.uses("layer_bias")):
        return
    if "flash" in name or not scheme.uses("score_mod"):
        what = "takes no bias" if "flash" in name else "computes entry by entry, which this bias isn't made for"
        raise ValueError(
            f"attn_implementation={name!r} {what}, and position_embedding_type={scheme.name!r} is a bias on the "
            "attention logits. Use attn_implementation='sdpa' or 'eager', or a scheme without bias, such as 'rope'."
        )


def token_attention(name: str | None, layout: Layout, scheme: PositionScheme) -> TokenAttention | None:
    """The backend for a batch, where it takes tokens as they are; None: a grid with a mask."""
    if name is not None and "flash" in name:
        return _flash(name, layout)
    if name == "flex_attention":
        return _flex(layout, scheme)
    biased = scheme.uses("bias") or scheme.uses("layer_bias")
    if name == "sdpa" and layout.unpadded and not biased and runs_varlen(layout.positions):
        return _varlen(layout)
    return None


def borders(layout: Layout) -> Tensor:
    """int32 (n + 1,): where each sequence of an unpadded batch starts, and where the last one ends."""
    assert layout.counts is not None
    return nn.functional.pad(layout.counts.cumsum(0), (1, 0)).to(torch.int32)


def _flash(name: str, layout: Layout) -> TokenAttention:
    arrangement: dict[str, Any] = {}
    if layout.unpadded:
        cuts = borders(layout)
        arrangement = {"cu_seq_lens_q": cuts, "cu_seq_lens_k": cuts}
        arrangement |= {"max_length_q": layout.longest, "max_length_k": layout.longest}
    attend = ALL_ATTENTION_FUNCTIONS[name]

    def run(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return attend(module, q, k, v, None, dropout=dropout, scaling=scale, is_causal=False, **arrangement)[0]

    return run


def _flex(layout: Layout, scheme: PositionScheme) -> TokenAttention:
    from torch.nn.attention.flex_attention import create_block_mask

    mask = None
    if layout.unpadded and layout.sequence is not None:
        document, length = layout.sequence[0], layout.sequence.shape[1]

        def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return document[q] == document[k]

        mask = create_block_mask(same, None, None, length, length, device=document.device)

    def run(module: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
        if dropout:
            raise ValueError(
                f"attn_implementation='flex_attention' has no dropout, and attention_probs_dropout_prob={dropout}. "
                "Set it to 0, or use attn_implementation='sdpa'."
            )
        score_mod = scheme.score_mod(layout.positions, module.layer_idx) if scheme.uses("score_mod") else None
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attend = _compiled_flex() if q.is_cuda else _plain_flex()
        return attend(q, k, v, score_mod=score_mod, block_mask=mask, scale=scale).transpose(1, 2)

    return run


def _plain_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(_plain_flex(), dynamic=True)


def runs_varlen(tokens: Tensor) -> bool:
    """Whether PyTorch has variable-length attention for tensors on this device: CUDA, torch >= 2.11 or so."""
    if not tokens.is_cuda or not plain(tokens):
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"scale", "window_size"} <= set(inspect.signature(varlen_attn).parameters)


def _varlen(layout: Layout) -> TokenAttention:
    cuts, longest = borders(layout), layout.longest

    def run(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor | None:
        from torch.nn.attention.varlen import varlen_attn

        if q.dtype not in (torch.float16, torch.bfloat16) or dropout:
            return None
        q, k, v = (t[0].contiguous() for t in (q, k, v))
        return varlen_attn(q, k, v, cuts, cuts, longest, longest, scale=scale).unsqueeze(0)  # type: ignore[union-attr]

    return run
