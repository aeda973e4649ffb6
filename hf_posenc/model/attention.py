"""Attention: softmax(scale q k^T + bias) v by one of the backends below, chosen once per forward.

`choose_attention` takes what `config.attn_implementation` names:

- `eager`, `sdpa` and any attention that was registered with transformers run on padded rows with a mask.
- Of an unpadded batch, `sdpa` takes runs of like lengths on a CPU, and is PyTorch's varlen attention on a GPU that can.
- FlashAttention runs on the unpadded tokens.

To add a backend: write a function like those at the end of this file, and a line in `BACKENDS`.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers.utils import logging

from .scheme_base import PositionScheme
from .scheme_math import accumulation_dtype, is_transformed, linear_dtype, outside_autocast, tracing
from .seam import kernels
from .unpadding import Movable, Rows, Runs, TokenLayout

logger = logging.get_logger(__name__)

Result = tuple[Tensor, Tensor | None]
Qkv = list[Tensor]
Masks = list[Tensor | None]

HALF = (torch.bfloat16, torch.float16)
HALF_FROM = 512
"""On a CPU, gradients of shorter sequences are computed in float32: in half precision they take twice the time."""


class ForwardAttention(Movable):
    """One forward's attention, the same call in every layer. Made by `choose_attention`."""

    def __init__(self, name: str, backend: "AttentionBackend", scheme: PositionScheme, layout: TokenLayout) -> None:
        self.name, self.backend, self.scheme, self.layout = name, backend, scheme, layout
        self.runs: Any = None  # how tokens become rows, for a backend that wants them: Rows or Runs
        self.cu_seqlens: Any = None  # of an unpadded batch, for a backend that wants tokens
        self.row_tokens: Any = None  # `Tokens` in padded layout, for a scheme with a bias
        self.bias: Tensor | None = None  # of all layers, in padded layout
        self.masks: Masks = []  # for each run: whom tokens attend to, plus that bias
        self.state: Any = None  # of the scheme's `rotate`
        self.dtype = torch.float32  # of q, k and v
        self.wants_weights = False

    def __call__(self, layer: Any, interface: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Result:
        """One layer's attention on q, k and v, projected from x. Token layout: (1 or B, T, H, d) -> the same."""
        if tracing() and isinstance(self.runs, Runs):
            return self._padded()(layer, interface, q, k, v, x)  # each number of runs would be a new graph
        scheme, attention = self.scheme, self
        dropout = dropout_of(layer)
        turned = scheme.rotate(q, k, self.state, layer.layer_number) if scheme.uses("rotate") else (q, k)
        width = turned[0].shape[-1]
        has_kernel = width <= 192 or 224 < width <= 256  # between these, gradients need an A100 or an H100
        if self.backend is BACKENDS["varlen"] and (width % 8 or not has_kernel or dropout):
            attention = self._padded()
        masks = attention.masks
        if scheme.uses("layer_bias") and not attention.backend.takes_tokens:
            row_q, row_k = (attention.row_tokens._laid_out(t).transpose(1, 2) for t in (q, k))
            tokens = replace(attention.row_tokens, _hidden=x, projections=(layer.query, layer.key))
            bias = scheme.layer_bias(row_q, row_k, tokens, layer.layer_number)
            _check_axes(scheme, "layer_bias", bias, *row_q.shape[1:3])
            masks = add_bias(masks, attention.runs, bias, self.dtype)
        q, k = turned
        wider = q.shape[-1] - layer.head_dim
        if wider > 0:  # a rotation may change the width of q and k; most kernels want one width for all three
            v = nn.functional.pad(v, (0, wider))
        elif wider < 0:
            q, k = (nn.functional.pad(t, (0, -wider)) for t in (q, k))
        options = {"dropout": dropout, "scaling": layer.head_dim**-0.5 * scheme.query_scale}
        qkv = [t if t.dtype == self.dtype else t.to(self.dtype) for t in (q, k, v)]
        # Autocast has nothing to cast where there is no mask: kernels for tokens take q, k and v as they are.
        with nullcontext() if attention.backend.takes_tokens else outside_autocast(q.device):
            out, weights = attention.backend.run(attention, functools.partial(interface, layer), qkv, masks, **options)
        out = out if out.dtype == v.dtype else out.to(v.dtype)
        return out[..., : layer.head_dim] if wider > 0 else out, weights if self.wants_weights else None

    def _padded(self) -> "ForwardAttention":
        """The same on a padded batch: for a layer that is compiled alone, or heads and dropout that no kernel takes."""
        padded = ForwardAttention(self.name, backend_of(self.name), self.scheme, self.layout)
        # One by one: the compiler takes what a copy holds for other tensors, and compiles once more for their sizes.
        padded.row_tokens, padded.bias, padded.state, padded.dtype = self.row_tokens, self.bias, self.state, self.dtype
        padded.runs = Rows(self.layout)
        if self.runs is None and _is_biased(self.scheme):  # whose bias is windows, and reads positions alone
            padded.row_tokens = padded.runs.tokens()
            padded.bias = self.scheme.bias(padded.row_tokens)
        padded.masks = add_bias(padded.runs.masks, padded.runs, padded.bias, self.dtype)
        return padded


def choose_attention(
    config: Any, scheme: PositionScheme, layout: TokenLayout, x: Tensor, has_dropout: bool, wants_weights: bool
) -> ForwardAttention:
    """Chooses the backend of this forward, and computes what all its layers share: mask, bias and rotary state.

    The scheme's `rotary` and `bias` are called here, once, with x, what layer 0 gets, in token layout.

    Raises:
        ValueError: the backend can't take the scheme's bias.
    """
    name = config._attn_implementation or "eager"
    kernels.check_bias(check_bias, name, scheme)
    needs_mask = layout.index is None and (layout.mask is not None or layout.packed)
    if wants_weights or is_transformed(x):
        name = "eager"
    elif backend_of(name).takes_tokens and (tracing() or needs_mask):  # a traced graph is padded
        name = "sdpa"
    backend, on_cpu = backend_of(name), x.device.type == "cpu"
    if name == "sdpa" and _runs_varlen(scheme, layout, x, has_dropout, config.num_hidden_layers):
        backend = BACKENDS["varlen"]
    attention = kernels.make_attention(ForwardAttention, name, backend, scheme, layout)
    name, backend = attention.name, attention.backend  # which may be a kernel's
    attention.wants_weights = wants_weights
    if backend.takes_tokens and layout.index is not None:
        attention.cu_seqlens = layout.cu_seqlens()  # here: a layer that is compiled alone would break its graph
    trains_in_half = not tracing() and torch.is_grad_enabled() and linear_dtype(x) in HALF
    if not (name == "sdpa" and on_cpu and trains_in_half and layout.tokens.longest < HALF_FROM):
        attention.dtype = linear_dtype(x)
    with outside_autocast(x.device):  # what is computed from positions is float32
        if scheme.uses("rotary"):
            attention.state = scheme.rotary(replace(layout.tokens, _hidden=x))
        if not backend.takes_tokens:
            rows = Rows(layout)
            if _is_biased(scheme):
                attention.row_tokens = rows.tokens()
            if scheme.uses("bias"):
                attention.bias = scheme.bias(replace(attention.row_tokens, _hidden=x))
                shape = config.num_attention_heads, attention.row_tokens.positions.shape[-1]
                _check_axes(scheme, "bias", attention.bias, *shape)
            several = name == "sdpa" and on_cpu and layout.index is not None
            attention.runs = runs = Runs(layout.counts) if several and layout.counts is not None else rows
            attention.masks = add_bias(runs.masks, runs, attention.bias, attention.dtype)
    if not tracing():
        _log_backend_once(attention, x.device.type)
    return attention


def dropout_of(layer: Any) -> float:
    """The share of probabilities that an attention layer drops now."""
    return layer.dropout.p if layer.dropout.training else 0.0


def _log_backend_once(attention: ForwardAttention, device: str) -> None:
    """Says once how attention runs, and what an attention that isn't ours must do."""
    name, backend = attention.name, attention.backend
    layout_name = "tokens without padding" if backend.takes_tokens else "padded rows"
    layout_name = "runs of like lengths" if isinstance(attention.runs, Runs) else layout_name
    logger.info_once(f"Attention: attn_implementation={name!r} on {device}, {layout_name}.")
    if backend is BACKENDS["registered"] and attention.masks != [None]:
        logger.warning_once(
            f"attn_implementation={name!r} must heed attention_mask, True where a token attends: this batch has "
            "padding or packing. If it doesn't, results are wrong: use 'sdpa' or 'eager'."
        )


def add_bias(masks: Masks, runs: Rows | Runs, bias: Tensor | None, dtype: torch.dtype) -> Masks:
    """Adds a bias (1 or n, 1 or H, L, L) to the boolean or additive mask of each run; what is masked stays masked.

    On a CPU it stays float32 where q and k are half precision: their kernel takes that.
    """
    if bias is None:
        return masks
    if bias.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    added: Masks = []
    bias = bias.to(dtype).contiguous() if bias.is_cuda else bias.to(dtype)  # a GPU's kernels take no other
    for mask, run_bias in zip(masks, runs.pick(bias), strict=True):
        if mask is None:
            added.append(run_bias)
        elif mask.dtype == torch.bool:
            added.append(run_bias.masked_fill(~mask, torch.finfo(dtype).min))
        else:
            added.append(mask + run_bias)
    return added


def _check_axes(scheme: PositionScheme, hook: str, bias: Tensor | None, heads: int, length: int) -> None:
    axes = () if bias is None or tracing() else tuple(bias.shape)
    if axes and (len(axes) != 4 or axes[1] not in (1, heads) or not {*axes[2:]} <= {1, length}):
        raise ValueError(f"{scheme.name!r}: {hook} returns {axes}. Give (1 or B, {heads} or 1, S, S), S = {length}.")


def check_bias(name: str | None, scheme: PositionScheme) -> None:
    """Raises where a backend would silently drop the scheme's bias.

    Raises:
        ValueError: the backend takes no bias, or is refused.
    """
    if not backend_of(name or "eager").takes_bias and _is_biased(scheme):
        raise ValueError(
            f"attn_implementation={name!r} takes no bias, and position_embedding_type={scheme.name!r} is a bias on the "
            "logits. Use attn_implementation='sdpa' or 'eager', or a scheme without bias, such as 'rope'."
        )


def _is_biased(scheme: PositionScheme) -> bool:
    return scheme.uses("bias") or scheme.uses("layer_bias")


# ---- on padded rows, with a mask ------------------------------------------------------------------------------------


def eager_attention_forward(
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling q k^T + mask) v, written out.

    Args:
        module: the layer, which other attention functions of transformers need.
        query, key, value: (B, H, S, d).
        attention_mask: bool, True where a query attends, or floating-point to add: (1 or B, 1 or H, 1 or S, S).
        scaling: factor on q k^T.
        dropout: on the probabilities.

    Returns:
        (B, S, H, d), and the probabilities (B, H, S, S).
    """
    logits = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
    elif attention_mask is not None:
        logits = logits + attention_mask
    weights = nn.functional.softmax(logits, dim=-1, dtype=accumulation_dtype(logits)).to(query.dtype)
    if dropout:
        weights = nn.functional.dropout(weights, p=dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _on_rows(attention: ForwardAttention, interface: Any, qkv: Qkv, masks: Masks, **options: float) -> Result:
    if any(map(is_transformed, (*qkv, *(mask for mask in masks if mask is not None)))):
        interface = functools.partial(eager_attention_forward, None)
    elif attention.name == "sdpa":
        interface = functools.partial(kernels.attend, interface)
    outs, weights = [], None
    for *parts, mask in zip(*map(attention.runs.split, qkv), masks, strict=True):
        out, weights = interface(*(t.transpose(1, 2) for t in parts), mask, **options)
        outs.append(out)
    if tracing():  # the exporter may replace attention by operations whose result has another memory layout
        outs = [out.clone(memory_format=torch.contiguous_format) for out in outs]
    return attention.runs.join(outs), weights


# ---- on tokens without padding --------------------------------------------------------------------------------------


def _flash(attention: ForwardAttention, interface: Any, qkv: Qkv, masks: Masks, **options: float) -> Result:
    layout, arrangement = attention.layout, {}
    if layout.index is not None:
        cuts, longest = attention.cu_seqlens, layout.tokens.longest
        arrangement = {"cu_seq_lens_q": cuts, "cu_seq_lens_k": cuts, "max_length_q": longest, "max_length_k": longest}
    return interface(*(t.transpose(1, 2) for t in qkv), None, is_causal=False, **options, **arrangement)[0], None


def _runs_varlen(scheme: PositionScheme, layout: TokenLayout, x: Tensor, has_dropout: bool, layers: int) -> bool:
    """True where varlen attention takes this: unpadded halves on an A100 or newer, windows as the only bias."""
    has_windows = all(scheme.windows(layer) is not None for layer in range(layers))
    windowed = layout.tokens.positions_are_aranges and has_windows
    fits = x.is_cuda and layout.index is not None and not has_dropout and (windowed or not _is_biased(scheme))
    fits = fits and linear_dtype(x) in HALF and not tracing()
    return fits and torch.cuda.get_device_capability(x.device) >= (8, 0)


def _varlen(attention: ForwardAttention, interface: Any, qkv: Qkv, masks: Masks, **options: float) -> Result:
    cuts, longest = attention.cu_seqlens, attention.layout.tokens.longest
    rows = [t.squeeze(0) for t in qkv]  # whose gradient is a view, that of t[0] a copy
    parts = []
    for heads, window in attention.scheme.windows(interface.args[0].layer_number) or [(slice(None), (-1, -1))]:
        q, k, v = rows if heads == slice(None) else [t[:, heads] for t in rows]
        parts.append(varlen_attn(q, k, v, cuts, cuts, longest, longest, scale=options["scaling"], window_size=window))
    out: Any = parts[0] if len(parts) == 1 else torch.cat(parts, 1)  # type: ignore[arg-type]
    return out.unsqueeze(0), None


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionBackend:
    """One way to run attention, and what it takes.

    `run(attention, interface, (q, k, v), masks, dropout=, scaling=)` returns the result and, where it has them, the
    probabilities. q, k, v and the result are in token layout (1 or B, T, H, d); `masks` has a boolean mask, or an
    additive one with the bias in it, (m, 1 or H, 1 or w, w) or None, for each run of `attention.runs`. `interface` is
    the function that the config names: (q, k, v, mask, dropout=, scaling=) -> result, probabilities.
    """

    run: Callable[..., Result]
    takes_bias: bool = False
    takes_tokens: bool = False
    """It wants the unpadded tokens, not padded rows."""


BACKENDS = {
    "eager": AttentionBackend(_on_rows, takes_bias=True),
    "sdpa": AttentionBackend(_on_rows, takes_bias=True),
    "varlen": AttentionBackend(_varlen, takes_tokens=True),
    "flash": AttentionBackend(_flash, takes_tokens=True),
    "registered": AttentionBackend(_on_rows),
}
"""The backends by `attn_implementation`. `flash` is FlashAttention: transformers' `flash_attention_2` to `_4`, and
kernels of the Hub, `owner/name` with "flash" in it. `registered` is any other that was registered with transformers: it
gets a boolean mask and must heed it, and is refused for a scheme with a bias."""

REFUSED = {
    "flex_attention": "isn't supported: use 'sdpa', which takes every scheme.",
    "vllm": "isn't supported: vLLM ignores masks, so padding would be attended to and a bias dropped. Serve a native "
    "export, see `hf-posenc export --to native`.",
}


def backend_of(name: str) -> AttentionBackend:
    """The backend that an `attn_implementation` names.

    Raises:
        ValueError: it is refused.
    """
    if name in REFUSED:
        raise ValueError(f"attn_implementation={name!r} {REFUSED[name]}")
    is_flash = name in {f"flash_attention_{version}" for version in (2, 3, 4)} or ("/" in name and "flash" in name)
    return BACKENDS["flash" if is_flash else name if name in ("eager", "sdpa") else "registered"]
