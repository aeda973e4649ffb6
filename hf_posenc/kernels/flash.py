"""FlashAttention with ALiBi's slopes, by the functions of flash_attn: transformers' have no argument for them."""

from collections.abc import Callable
from typing import Any

import torch

from ..model.attention import BACKENDS, AttentionBackend, ForwardAttention
from ..model.position_alibi import AlibiPosition
from ..model.scheme_base import PositionScheme
from ..model.scheme_combined import CombinedPosition
from ..model.unpadding import TokenLayout
from .switch import is_enabled

WAY_OUT = "position_embedding_kwargs={'directional': False, 'learned': False}, or attn_implementation='sdpa'"


def check_slopes(plain: Callable[..., None], name: str | None, scheme: PositionScheme) -> None:
    """Refuses what `plain(name, scheme)` does, but for symmetric ALiBi, which flash_attn takes where it is installed.

    Raises:
        ValueError: the backend takes no bias, or one slope for both sides.
    """
    part = _alibi_of(scheme) if name == "flash_attention_2" and is_enabled() else None
    if part is None or not _is_installed():  # asked last: to look for a package that isn't there takes its time
        plain(name, scheme)
    elif part.directional:
        raise ValueError(f"attn_implementation={name!r} takes one ALiBi slope for both sides. Use {WAY_OUT}.")


def make_attention(
    plain: Callable[..., ForwardAttention],
    name: str,
    backend: AttentionBackend,
    scheme: PositionScheme,
    layout: TokenLayout,
) -> ForwardAttention:
    """`plain(name, backend, scheme, layout)`; FlashAttention gets ALiBi's slopes as its bias: (1 or L, H), by layer.

    Where positions don't count tokens, attention is sdpa's.

    Raises:
        ValueError: the slopes need a gradient.
    """
    part = _alibi_of(scheme) if backend is BACKENDS["flash"] else None
    if part is None:
        return plain(name, backend, scheme, layout)
    if not layout.tokens.positions_are_aranges:
        return plain("sdpa", BACKENDS["sdpa"], scheme, layout)
    layers = 1 if part.log_slopes is None else part.log_slopes.num_embeddings
    device = layout.tokens.positions.device
    slopes = torch.cat([part.slopes_of(layer, device) for layer in range(layers)])
    if slopes.requires_grad:
        way_out = f"To train, use {WAY_OUT}; else call the model under torch.no_grad()"
        raise ValueError(f"attn_implementation={name!r} gives ALiBi's slopes no gradient. {way_out}.")
    attention = plain(name, SLOPES, scheme, layout)
    attention.bias = slopes
    return attention


def _alibi_of(scheme: PositionScheme) -> AlibiPosition | None:
    """The scheme's only bias, if that is ALiBi: a subclass may compute another."""
    parts = scheme.parts.values() if isinstance(scheme, CombinedPosition) else [scheme]
    biased = [part for part in parts if part.uses("bias") or part.uses("layer_bias")]
    return biased[0] if [type(part) for part in biased] == [AlibiPosition] else None  # type: ignore[return-value]


def _is_installed() -> bool:
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:  # of FlashAttention 4 too, whose package has the same name
        return False
    return callable(flash_attn_varlen_func)


def _attend(attention: Any, interface: Any, qkv: Any, masks: Any, *, dropout: float, scaling: float) -> Any:
    """Softmax(scaling q k^T - m |i - j|) v on tokens, (1 or B, T, H, d) -> the same."""
    from flash_attn import flash_attn_func, flash_attn_varlen_func

    slopes = attention.bias[interface.args[0].layer_number if len(attention.bias) > 1 else 0]
    options = {"dropout_p": dropout, "softmax_scale": scaling, "alibi_slopes": slopes}
    options["deterministic"] = torch.are_deterministic_algorithms_enabled()
    if attention.layout.index is None:
        return flash_attn_func(*qkv, **options), None
    cuts, longest = attention.cu_seqlens, attention.layout.tokens.longest
    out = flash_attn_varlen_func(*(t.squeeze(0) for t in qkv), cuts, cuts, longest, longest, **options)
    return out.unsqueeze(0), None


SLOPES = AttentionBackend(_attend, takes_tokens=True)
