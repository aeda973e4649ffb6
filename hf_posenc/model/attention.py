"""How attention runs: softmax(scale q k^T + bias) v by one of the backends below, chosen once per forward.

`choose_attention` takes what `config.attn_implementation` names:

- `eager`, `sdpa` and any attention that was registered with transformers run on padded rows with a mask.
- Of an unpadded batch, `sdpa` takes runs of like lengths on a CPU, and is PyTorch's varlen attention on a GPU that can.
- FlashAttention and flex_attention run on the unpadded tokens; so does vLLM's, where vLLM runs the model.

To add a backend: write a function like those at the end of this file, and a line in `BACKENDS`.
"""

import copy
import functools
import importlib
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from transformers.utils import logging

from .position_base import PositionScheme
from .position_math import accumulation_dtype, is_transformed, outside_autocast, tracing
from .unpadding import Runs, Tokens

logger = logging.get_logger(__name__)

Interface = Callable[..., Any]
"""The attention function that the config names, of one layer: (q, k, v, mask, ...) -> result, probabilities."""


@dataclass(frozen=True)
class Call:
    """What a backend needs to know of a layer's call."""

    layer: Any
    interface: Interface
    scale: float
    dropout: float


# In the package: what makes a CPU faster, with the same results. A checkpoint has PyTorch's own operations alone.
kernels: Any = importlib.import_module("hf_posenc.kernels") if __package__ == "hf_posenc.model" else None

HALF = (torch.bfloat16, torch.float16)
HALF_FROM = 512
"""On a CPU, gradients of shorter sequences are computed in float32: in half precision they take twice the time."""


class Attention:
    """One forward's attention, the same call in every layer. Made by `choose_attention`."""

    def __init__(self, name: str, backend: "Backend", scheme: PositionScheme, tokens: Tokens) -> None:
        self.name, self.backend, self.scheme, self.tokens = name, backend, scheme, tokens
        self.rows: Tokens | Runs = tokens  # how tokens become rows, for a backend that wants them
        self.row_tokens: Tokens | None = None  # in padded layout, for a scheme with a bias
        self.bias: Tensor | None = None  # of all layers, in padded layout
        self.masks: list[Tensor | None] = []  # for each run of rows: whom tokens attend to, plus that bias
        self.state: Any = None  # of the scheme's `rotate`
        self.block_mask: Any = None  # of flex_attention: tokens attend to their own sequence. None: all
        self.score_mod: Any = None  # of flex_attention: the biases, where all layers have the same
        self.dtype = torch.float32  # of q, k and v
        self.wants_weights = False

    def to(self, *args: Any, **kwargs: Any) -> "Attention":
        """The same on another device (accelerate calls this between devices)."""
        moved = copy.copy(self)
        for name in ("tokens", "rows", "row_tokens", "bias", "masks", "state"):
            setattr(moved, name, _moved(getattr(self, name), *args, **kwargs))
        return moved

    def __call__(
        self, layer: Any, interface: Interface, q: Tensor, k: Tensor, v: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """One layer's attention on q, k and v, projected from x. Token layout: (1 or B, T, H, d) -> the same."""
        if tracing() and isinstance(self.rows, Runs):
            return self._padded()(layer, interface, q, k, v, x)  # each number of runs would be a new graph
        scheme, masks = self.scheme, self.masks
        if scheme.uses("layer_bias") and not self.backend.takes_tokens:
            row_q, row_k = (self.tokens.to_rows(t).transpose(1, 2) for t in (q, k))
            assert self.row_tokens is not None
            bias = scheme.layer_bias(row_q, row_k, replace(self.row_tokens, hidden=x), layer.layer_idx)
            masks = add_bias(masks, self.rows, bias, self.dtype)
        if scheme.uses("rotate"):
            q, k = scheme.rotate(q, k, self.state, layer.layer_idx)
        if self.backend is BACKENDS["varlen"] and (q.shape[-1] % 8 or q.shape[-1] > 256):
            padded = self._padded()
            return padded._attend(layer, interface, q, k, v, padded.masks)
        return self._attend(layer, interface, q, k, v, masks)

    def _attend(
        self, layer: Any, interface: Interface, q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """The same for rotated q and k, and a mask for each run."""
        wider = q.shape[-1] - layer.head_dim
        if wider > 0:  # a rotation may change the width of q and k; most kernels want one width for all three
            v = nn.functional.pad(v, (0, wider))
        elif wider < 0:
            q, k = (nn.functional.pad(t, (0, -wider)) for t in (q, k))
        scale = layer.head_dim**-0.5 * self.scheme.query_scale
        dropout = layer.config.attention_probs_dropout_prob if layer.training else 0.0
        call = Call(layer, interface, scale, dropout)
        with outside_autocast(q.device):
            out, weights = self.backend.run(self, call, *(t.to(self.dtype) for t in (q, k, v)), masks)
        out = out.to(v.dtype)
        return out[..., : layer.head_dim] if wider > 0 else out, weights if self.wants_weights else None

    def _padded(self) -> "Attention":
        """The same on a padded batch: for a layer that is compiled alone, or heads that a kernel doesn't take."""
        padded = Attention(self.name, backend_of(self.name), self.scheme, self.tokens)
        padded.row_tokens, padded.bias, padded.state, padded.dtype = self.row_tokens, self.bias, self.state, self.dtype
        padded.masks = add_bias(self.tokens.masks(), self.tokens, self.bias, self.dtype)
        return padded


def _moved(value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, *args, **kwargs) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item, *args, **kwargs) for key, item in value.items()}
    if isinstance(value, Runs):
        moved = copy.copy(value)
        vars(moved).update(_moved(vars(value), *args, **kwargs))
        return moved
    return value.to(*args, **kwargs) if hasattr(value, "to") else value


def choose_attention(
    config: Any, scheme: PositionScheme, tokens: Tokens, x: Tensor, training: bool, wants_weights: bool
) -> Attention:
    """Chooses the backend of this forward, and computes what all its layers share: mask, bias and rotary state.

    Args:
        config: names the backend.
        scheme: the positional scheme; its `rotary` and `bias` are called here, once.
        tokens: in token layout.
        x: their hidden states.
        training: whether there is dropout.
        wants_weights: whether the probabilities are wanted.

    Raises:
        ValueError: the backend can't take the scheme's bias, or dropout.
    """
    name = config._attn_implementation or "eager"
    check_bias(name, scheme)
    if wants_weights or is_transformed(x):
        name = "eager"
    elif tracing() and backend_of(name).takes_tokens and not backend_of(name).is_servers:  # a traced graph is padded
        name = "sdpa"
    dropout = config.attention_probs_dropout_prob if training else 0.0
    backend, on_cpu = backend_of(name), x.device.type == "cpu"
    if dropout and not backend.takes_dropout:
        raise ValueError(
            f"attn_implementation={name!r} has no dropout, and attention_probs_dropout_prob={dropout}. "
            "Set it to 0, or use attn_implementation='sdpa'."
        )
    if name == "sdpa" and _runs_varlen(scheme, tokens, x, dropout):
        backend = BACKENDS["varlen"]
    attention = Attention(name, backend, scheme, tokens)
    attention.wants_weights = wants_weights
    if name == "sdpa" and on_cpu and tokens.index is not None and tokens.counts is not None:
        attention.rows = Runs(tokens.counts)
    if not (name == "sdpa" and on_cpu and _is_slow_in_half(tokens, x)):
        attention.dtype = _dtype_of(x)
    with outside_autocast(x.device):  # what is computed from positions is float32
        if scheme.uses("rotary"):
            attention.state = scheme.rotary(tokens)
        if not backend.takes_tokens:
            if _is_biased(scheme):
                attention.row_tokens = tokens.rows()
            if attention.row_tokens is not None and scheme.uses("bias"):
                attention.bias = scheme.bias(attention.row_tokens)
            attention.masks = add_bias(attention.rows.masks(), attention.rows, attention.bias, attention.dtype)
        elif backend is BACKENDS["flex_attention"]:
            attention.block_mask = _block_mask(tokens)
            if not scheme.uses("layer_bias"):
                attention.score_mod = scheme.score_mod(tokens, 0)
    if not tracing():
        _tell(attention, x.device.type)
    return attention


def _tell(attention: Attention, device: str) -> None:
    """Says once how attention runs, and what an attention that isn't ours must do."""
    name, backend = attention.name, attention.backend
    how = "tokens without padding" if backend.takes_tokens else "padded rows"
    how = "runs of like lengths" if isinstance(attention.rows, Runs) else how
    logger.info_once(f"Attention: attn_implementation={name!r} on {device}, {how}.")
    if backend is BACKENDS["registered"] and attention.masks != [None]:
        logger.warning_once(
            f"attn_implementation={name!r} must heed attention_mask, True where a token attends: this batch has "
            "padding or packing. If it doesn't, results are wrong: use 'sdpa' or 'eager'."
        )


def _dtype_of(x: Tensor) -> torch.dtype:
    """The dtype in which linear layers give their results."""
    kind = x.device.type
    if x.dtype == torch.float64 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return x.dtype  # autocast leaves float64 alone
    return torch.get_autocast_dtype(kind)


def _is_slow_in_half(tokens: Tokens, x: Tensor) -> bool:
    """Whether gradients are wanted in half precision, of sequences that are short: see `HALF_FROM`."""
    return not tracing() and torch.is_grad_enabled() and _dtype_of(x) in HALF and tokens.longest < HALF_FROM


def add_bias(
    masks: list[Tensor | None], rows: Tokens | Runs, bias: Tensor | None, dtype: torch.dtype
) -> list[Tensor | None]:
    """Adds a bias (1 or n, 1 or H, L, L) to the boolean or additive mask of each run; what is masked stays masked.

    On a CPU it stays float32 where q and k are half precision: their kernel takes that.
    """
    if bias is None:
        return masks
    if bias.dim() != 4:
        raise ValueError(f"A bias has shape {tuple(bias.shape)}. Give (1 or B, H or 1, S, S), with every axis.")
    if bias.device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    added: list[Tensor | None] = []
    bias = _aligned(bias.to(dtype)) if bias.is_cuda else bias.to(dtype)
    for mask, own in zip(masks, rows.pick(bias), strict=True):
        if mask is None:
            added.append(own)
        elif mask.dtype == torch.bool:
            added.append(own.masked_fill(~mask, torch.finfo(dtype).min))
        else:
            added.append(mask + own)
    return added


def _aligned(bias: Tensor) -> Tensor:
    """With rows that start at multiples of 8: the memory-efficient kernel of a GPU takes no others."""
    return nn.functional.pad(bias, (0, -bias.shape[-1] % 8)).contiguous()[..., : bias.shape[-1]]


def check_bias(name: str | None, scheme: PositionScheme) -> None:
    """Raises where a backend would silently drop the scheme's bias.

    Raises:
        ValueError: the backend takes no bias, or takes one only as a `score_mod` and the scheme has none.
    """
    takes = backend_of(name or "eager").bias
    if takes == "added" or not _is_biased(scheme):
        return
    if takes == "none":
        raise _refused(name, "takes no bias", f"position_embedding_type={scheme.name!r} is a bias on the logits")
    if not scheme.uses("score_mod"):
        why = f"position_embedding_type={scheme.name!r} is a bias without one"
        raise _refused(name, "takes a bias only as a score_mod", why)


def check_head(config: Any) -> None:
    """Raises where a server would give other answers than a head on the pooled sequence: it has `classifier` alone.

    Raises:
        ValueError: the head pools something else than the first token, or has more than that layer.
    """
    plain = {"classifier_pooling": "cls", "classifier_hidden_act": None, "label_mean": 0.0, "label_scale": 1.0}
    others = [f"{name}={getattr(config, name)!r}" for name, value in plain.items() if getattr(config, name) != value]
    if others and backend_of(config._attn_implementation or "eager").is_servers:
        raise ValueError(
            f"attn_implementation={config._attn_implementation!r}: vLLM pools the first token and applies the last "
            f"layer alone, and {', '.join(others)}. Train with classifier_pooling='cls' and no classifier_hidden_act."
        )


def _is_biased(scheme: PositionScheme) -> bool:
    return scheme.uses("bias") or scheme.uses("layer_bias")


def _refused(name: str | None, what: str, why: str) -> ValueError:
    return ValueError(
        f"attn_implementation={name!r} {what}, and {why}. Use attn_implementation='sdpa' or 'eager', or a scheme "
        "without bias, such as 'rope'."
    )


# ---- on padded rows, with a mask ------------------------------------------------------------------------------------


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling q k^T + mask + bias) v, written out.

    Args:
        module: is in training mode where there is dropout.
        query, key, value: (B, H, S, d).
        attention_mask: bool, True where a query attends, or floating-point to add: (B, 1 or H, 1 or S, S). None: all.
        scaling: factor on q k^T.
        dropout: on the probabilities.
        position_bias: to add, (1 or B, 1 or H, S, S).

    Returns:
        (B, S, H, d), and the probabilities (B, H, S, S).
    """
    logits = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if position_bias is not None:
        logits = logits + position_bias
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
        else:
            logits = logits + attention_mask
    weights = nn.functional.softmax(logits, dim=-1, dtype=accumulation_dtype(logits))
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _on_rows(
    attention: Attention, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    eager = any(map(is_transformed, (q, k, v)))
    rows, outs, weights = attention.rows, [], None
    for *parts, mask in zip(*(rows.split(t) for t in (q, k, v)), masks, strict=True):
        one_q, one_k, one_v = (t.transpose(1, 2) for t in parts)
        eager = eager or (mask is not None and is_transformed(mask))
        if attention.name == "sdpa" and not eager and kernels and kernels.gains_from_fusion(one_q, mask, call.dropout):
            outs.append(kernels.attend_with_bias(one_q, one_k, one_v, mask, call.scale).transpose(1, 2))
            continue
        how: dict[str, Any] = {"dropout": call.dropout, "scaling": call.scale}
        if mask is not None and mask.dtype != torch.bool:  # the mask is in it
            how["position_bias"], mask = mask, None
        attend = functools.partial(eager_attention_forward, call.layer) if eager else call.interface
        out, weights = attend(one_q, one_k, one_v, mask, **how)
        outs.append(out)
    if tracing():  # the exporter may replace attention by operations whose result has another memory layout
        outs = [out.clone(memory_format=torch.contiguous_format) for out in outs]
    return rows.join(outs), weights


# ---- on tokens without padding --------------------------------------------------------------------------------------


def _flash(attention: Attention, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: Any) -> tuple[Tensor, None]:
    tokens, arrangement = attention.tokens, {}
    if tokens.index is not None:
        cuts, longest = tokens.cu_seqlens, tokens.longest
        arrangement = {"cu_seq_lens_q": cuts, "cu_seq_lens_k": cuts, "max_length_q": longest, "max_length_k": longest}
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    how = {"dropout": call.dropout, "scaling": call.scale, "is_causal": False}
    return call.interface(q, k, v, None, **how, **arrangement)[0], None


def _vllm(attention: Attention, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: Any) -> tuple[Tensor, None]:
    """It knows which tokens belong together, takes heads of the config's width alone, and scales by that width."""
    if q.shape[-1] != call.layer.head_dim:
        why = f"{attention.scheme.name!r} makes heads {q.shape[-1]} wide"
        raise _refused("vllm", f"takes heads of width {call.layer.head_dim}", why)
    shape, scale = q.shape, call.layer.head_dim**-0.5
    q, k, v = (t.transpose(1, 2) for t in (q * attention.scheme.query_scale, k, v))
    return call.interface(q, k, v, None, scaling=scale)[0].reshape(shape), None  # vLLM gives (T, H d)


def _flex(attention: Attention, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: Any) -> tuple[Tensor, None]:
    scheme, score_mod = attention.scheme, attention.score_mod
    if score_mod is None and scheme.uses("score_mod"):
        with outside_autocast(q.device):
            score_mod = scheme.score_mod(attention.tokens, call.layer.layer_idx)
    if score_mod is None and _is_biased(scheme):
        raise _refused("flex_attention", "needs a score_mod", f"the bias {scheme.name!r} gave none")
    if v.requires_grad and v.device.type == "cpu":
        raise ValueError(
            "attn_implementation='flex_attention' has no gradients on a CPU. Call the model inside torch.no_grad(), or "
            "use attn_implementation='sdpa'."
        )
    if q.is_cuda and q.shape[-1] < 16:
        raise ValueError(
            f"attn_implementation='flex_attention' takes heads of at least 16 entries on a GPU, these have "
            f"{q.shape[-1]}. Change num_attention_heads, or use attn_implementation='sdpa'."
        )
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    # Compiled for each kind of call: PyTorch runs what it has compiled eight times unfused from then on.
    kind = (getattr(score_mod, "__code__", None), q.dtype, v.requires_grad, attention.block_mask is None)
    attend: Any = _compiled(flex_attention, kind) if q.is_cuda else flex_attention
    out = attend(q, k, v, score_mod=score_mod, block_mask=attention.block_mask, scale=call.scale)
    return out.transpose(1, 2), None


def _block_mask(tokens: Tokens) -> Any:
    """For flex_attention: tokens of an unpadded batch attend to their own sequence. None: all."""
    if tokens.index is None:
        return None
    document, length = tokens.sequence[0], tokens.sequence.shape[1]

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return document[q] == document[k]

    # Compiled, it needs no (T, T) tensor.
    create: Any = _compiled(create_block_mask, None) if document.is_cuda else create_block_mask
    return create(same, None, None, length, length, device=document.device)


@functools.cache
def _compiled(function: Any, kind: Any) -> Any:
    """A compiled copy of a function, whose code is a new object: PyTorch counts what it compiles by that."""
    own = types.FunctionType(function.__code__.replace(), function.__globals__, None, function.__defaults__)
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, dynamic=True)


def _runs_varlen(scheme: PositionScheme, tokens: Tokens, x: Tensor, dropout: float) -> bool:
    """Whether variable-length attention takes this: unpadded halves on an A100 or newer, no bias, no dropout."""
    fits = x.is_cuda and tokens.index is not None and not _is_biased(scheme) and not dropout
    fits = fits and _dtype_of(x) in HALF and not tracing()
    return fits and torch.cuda.get_device_capability(x.device) >= (8, 0)


def _varlen(attention: Attention, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: Any) -> tuple[Tensor, None]:
    cuts, longest = attention.tokens.cu_seqlens, attention.tokens.longest
    q, k, v = (t[0].contiguous() for t in (q, k, v))
    return varlen_attn(q, k, v, cuts, cuts, longest, longest, scale=call.scale).unsqueeze(0), None  # type: ignore[union-attr]


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """One way to run attention, and what it takes.

    `run(attention, call, q, k, v, masks)` returns the result and, where it has them, the
    probabilities. q, k, v and the result are in token layout (1 or B, T, H, d); `masks` has a boolean mask, or an
    additive one with the bias in it, (m, 1 or H, 1 or w, w) or None, for each run of `attention.rows`.
    """

    run: Callable[..., tuple[Tensor, Tensor | None]]
    bias: str = "none"
    """`added` to the mask, as a `score_mod`, or `none`."""
    takes_tokens: bool = False
    """It wants the unpadded tokens, not padded rows."""
    takes_dropout: bool = True
    is_servers: bool = False
    """It belongs to the server that runs the model, which knows where sequences begin, and pools by itself."""


BACKENDS = {
    "eager": Backend(_on_rows, bias="added"),
    "sdpa": Backend(_on_rows, bias="added"),
    "varlen": Backend(_varlen, takes_tokens=True, takes_dropout=False),
    "flash": Backend(_flash, takes_tokens=True),
    "flex_attention": Backend(_flex, bias="score_mod", takes_tokens=True, takes_dropout=False),
    "vllm": Backend(_vllm, takes_tokens=True, takes_dropout=False, is_servers=True),
    "registered": Backend(_on_rows),
}
"""The backends by `attn_implementation`. `flash` is FlashAttention of any version, `registered` any other that was
registered with transformers: it gets a boolean mask and must heed it, and is refused for a scheme with a bias."""


def backend_of(name: str) -> Backend:
    """The backend that an `attn_implementation` names."""
    return BACKENDS["flash" if "flash" in name else name if name in BACKENDS else "registered"]
