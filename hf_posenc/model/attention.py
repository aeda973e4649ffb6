"""How attention runs: softmax(scale q k^T + bias) v by one of five ways, chosen once per forward.

`choose_attention` takes what `config.attn_implementation` names:

- `eager`, `sdpa` and any attention that was registered with transformers run on a grid of sequences with a mask.
- On a CPU `sdpa` runs one sequence after the other; on a GPU it becomes PyTorch's varlen attention if it can.
- FlashAttention and flex_attention run on the unpadded tokens.

To add a backend: write a function of the signature `Backend`, and a line in `choose_attention`.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._pytree import tree_flatten, tree_unflatten
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .cpu_kernels import attend_by_sequence, runs_by_sequence
from .position_base import PositionScheme
from .position_math import plain, tracing, transformed, wide
from .unpadding import AnyBatch, Unpadded

logger = logging.get_logger(__name__)

Backend = Callable[..., tuple[Tensor, Tensor | None]]
"""(attention, module, q, k, v, bias, scale, dropout) -> the result and, where it has them, the probabilities.

`attention` is the `Attention` of this forward, `module` the layer's. q, k, v and the result are in token layout,
(1 or B, T, H, d); the bias is in grid layout, (1 or n, 1 or H, L, L), or a boolean mask of that shape."""


class Attention:
    """One forward's attention, the same call in every layer. Made by `choose_attention`."""

    def __init__(
        self, run: Backend, name: str, scheme: PositionScheme, batch: AnyBatch, state: Any, wants_weights: bool
    ) -> None:
        self.run, self.name, self.scheme, self.batch, self.wants_weights = run, name, scheme, batch, wants_weights
        # Gradient checkpointing sees tensors only as arguments of their own, so the state is passed in parts.
        self.state, self._state_tree = tree_flatten(state)

    def to(self, *args: Any, **kwargs: Any) -> "Attention":
        """The same on another device (accelerate calls this between devices)."""
        moved = copy.copy(self)
        moved.batch = self.batch.to(*args, **kwargs)
        return moved

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor, bias: Tensor | None, *state: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One layer's attention on q, k and v, projected from x. Token layout: (1 or B, T, H, d) -> the same."""
        scheme, batch, layer = self.scheme, self.batch, module.layer_idx
        if scheme.uses("layer_bias"):
            own = scheme.ask(
                "layer_bias",
                *(batch.to_grid(t).transpose(1, 2) for t in (q, k)),
                batch.grid_positions(),
                layer,
                x=lambda: batch.to_grid(x),
                sequence=batch.grid_sequences,
            )
            bias = add_bias(bias, own, wide(q) if self.run is _by_sequence else q.dtype)
        if scheme.uses("rotate"):
            q, k = scheme.rotate(q, k, tree_unflatten(state, self._state_tree), layer) or (q, k)
        wider = q.shape[-1] - module.head_dim
        if wider > 0:  # a rotation may change the width of q and k; most kernels want one width for all three
            v = nn.functional.pad(v, (0, wider))
        elif wider < 0:
            q, k = (nn.functional.pad(t, (0, -wider)) for t in (q, k))
        scale = module.head_dim**-0.5 * scheme.query_scale
        dropout = module.config.attention_probs_dropout_prob if module.training else 0.0
        out, weights = self.run(self, module, q, k, v, bias, scale, dropout)
        return out[..., : module.head_dim] if wider > 0 else out, weights if self.wants_weights else None


def choose_attention(
    config: Any,
    scheme: PositionScheme,
    batch: AnyBatch,
    x: Tensor,
    input_ids: Tensor | None,
    training: bool,
    weights: bool,
) -> tuple[Attention, Tensor | None]:
    """Chooses the backend of this forward, and computes what is added to the logits of all its layers.

    Args:
        config: names the backend.
        scheme: the positional scheme; its `rotary` and `bias` are called here, once.
        batch: where tokens are.
        x: hidden states in token layout.
        input_ids: the same tokens in token layout, for schemes whose hooks name them.
        training: whether there is dropout.
        weights: whether the probabilities are wanted.

    Raises:
        ValueError: the backend can't take the scheme's bias, or dropout.
    """
    name = config._attn_implementation or "eager"
    check_backend(name, scheme)
    if weights or transformed():
        name = "eager"
    elif takes_tokens(name) and tracing():  # a traced graph is padded
        name = "sdpa"
    dropout = config.attention_probs_dropout_prob if training else 0.0
    bias, how = None, "tokens without padding"
    if "flash" in name:
        run: Backend = _flash
    elif name == "flex_attention":
        run = _flex
    elif name == "sdpa" and batch.unpadded and not _biased(scheme) and not dropout and runs_varlen(x):
        run = _varlen
    else:
        if scheme.uses("bias"):
            bias = scheme.ask(
                "bias",
                batch.grid_positions(),
                batch.grid_is_first(),
                input_ids=lambda: None if input_ids is None else batch.to_grid(input_ids),
                sequence=batch.grid_sequences,
            )
        if name == "sdpa" and not dropout and _gains_by_sequence(scheme, batch, x, bias):
            run, how = _by_sequence, "one sequence after the other"
        else:
            run, how = _on_grid, "a grid of sequences"
            bias = add_bias(batch.attention_mask(), bias, x.dtype)
    state = None
    if scheme.uses("rotary"):
        state = scheme.ask(
            "rotary", batch.positions, lengths=batch.lengths, sequence=batch.sequences, input_ids=lambda: input_ids
        )
    if not tracing():
        logger.info_once(f"Attention: attn_implementation={config._attn_implementation!r} on {x.device.type}, {how}.")
    return Attention(run, name, scheme, batch, state, weights), bias


def takes_tokens(name: str | None) -> bool:
    """Whether a backend needs the batch unpadded: FlashAttention of any version, and flex_attention."""
    return name is not None and ("flash" in name or name == "flex_attention")


def check_backend(name: str | None, scheme: PositionScheme) -> None:
    """Raises where a backend would silently drop the scheme's bias.

    Raises:
        ValueError: FlashAttention and any bias, or flex_attention and a bias that has no `score_mod`.
    """
    if name is None or not _biased(scheme):
        return
    if "flash" in name:
        raise _refused(name, "takes no bias", f"position_embedding_type={scheme.name!r} is a bias on the logits")
    if name == "flex_attention" and not scheme.uses("score_mod"):
        why = f"position_embedding_type={scheme.name!r} is a bias without one"
        raise _refused(name, "takes a bias only as a score_mod", why)


def _biased(scheme: PositionScheme) -> bool:
    return scheme.uses("bias") or scheme.uses("layer_bias")


def _refused(name: str, what: str, why: str) -> ValueError:
    return ValueError(
        f"attn_implementation={name!r} {what}, and {why}. Use attn_implementation='sdpa' or 'eager', or a scheme "
        "without bias, such as 'rope'."
    )


def add_bias(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Adds a bias to a boolean or additive mask; what is masked stays masked."""
    if bias is None:
        return mask
    bias = bias.to(dtype)
    if mask is None:
        return bias
    return bias.masked_fill(~mask, torch.finfo(dtype).min) if mask.dtype == torch.bool else mask + bias


# ---- on a grid, with a mask -----------------------------------------------------------------------------------------


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling q k^T + mask) v, written out: (B, H, S, d) -> (B, S, H, d) and the probabilities (B, H, S, S)."""
    logits = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
        else:
            logits = logits + attention_mask
    weights = nn.functional.softmax(logits, dim=-1, dtype=wide(logits))
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _on_grid(
    attention: Attention,
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    batch, name = attention.batch, attention.name
    if batch.unpadded and v.shape == q.shape:  # one scatter for all three
        grid = batch.to_grid(torch.stack((q, k, v), dim=2))
        q, k, v = (grid[:, :, i] for i in range(3))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
    if bias is not None and name not in ("eager", "sdpa"):
        _check_mask_counts(name, attend, module, q, bias, attention.scheme.name)
    out, weights = attend(module, q, k, v, bias, dropout=dropout, scaling=scale)
    if tracing():  # the exporter may replace attention by operations whose result has another memory layout
        out = out.clone(memory_format=torch.contiguous_format)
    return batch.from_grid(out), weights


_heeding: set[Any] = set()
"""What `_check_mask_counts` has tried, and found to heed a mask or a bias."""


def _check_mask_counts(name: str, attend: Any, module: nn.Module, q: Tensor, mask: Tensor, scheme: str) -> None:
    """Tries a registered attention, once, on two tokens: a bias that differs by head, or each token sees only itself.

    Raises:
        ValueError: the attention ignores the mask, so it would ignore padding or the scheme's bias; or it is traced
            before it has been tried.
    """
    heads, width = q.shape[1], q.shape[3]
    biased = mask.dtype != torch.bool
    if tracing():  # nothing can be tried here
        if (attend, biased) not in _heeding:
            raise ValueError(
                f"attn_implementation={name!r} hasn't shown yet that it heeds a mask or a bias. Call the model once "
                "before it is compiled or exported."
            )
        return
    case = (attend, heads, width, q.device, q.dtype, biased)
    if case in _heeding:
        return
    nothing, v = q.new_zeros(1, heads, 2, width), torch.eye(2, width, device=q.device, dtype=q.dtype)
    mask = torch.eye(2, device=q.device, dtype=torch.bool).view(1, 1, 2, 2)
    if biased:  # all numbers differ
        mask = torch.arange(4 * heads, device=q.device).view(1, heads, 2, 2).sin().to(q.dtype)
    given = (module, nothing, nothing, v.expand(1, heads, 2, width), mask)
    with torch.no_grad():
        out, expected = (one(*given, dropout=0.0, scaling=1.0)[0] for one in (attend, eager_attention_forward))
    if not torch.allclose(out, expected, atol=1e-2):
        if biased:
            raise _refused(name, "drops a bias, or a part of it", f"position_embedding_type={scheme!r} is a bias")
        raise ValueError(
            f"attn_implementation={name!r} ignores its attention_mask, and this batch has padding or packing. Use "
            "attn_implementation='sdpa' or 'eager'."
        )
    _heeding.update((case, (attend, biased)))


# ---- on a CPU, one sequence after the other -------------------------------------------------------------------------


def _gains_by_sequence(scheme: PositionScheme, batch: AnyBatch, x: Tensor, bias: Tensor | None) -> bool:
    """Whether attention can run sequence by sequence, and gains from it.

    Without padding it gains in training alone: with a learned bias, to which PyTorch's fused kernel gives no gradient,
    or in half precision, whose gradients are slow in short sequences (`cpu_kernels.HALF_FROM`).
    """
    if not runs_by_sequence(x):
        return False
    if batch.unpadded:
        return True
    learned = scheme.uses("layer_bias") or (bias is not None and bias.requires_grad)
    half = x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")
    padded = batch.mask is not None or batch.packed
    return not padded and torch.is_grad_enabled() and (learned or half)


def _by_sequence(
    attention: Attention,
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    if tracing():  # a layer that is compiled alone: each number of sequences would give another graph
        bias = add_bias(attention.batch.attention_mask(), bias, q.dtype)
        return _on_grid(attention, module, q, k, v, bias, scale, dropout)
    out = attend_by_sequence(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias, attention.batch.sizes, scale)
    return out.view(v.shape), None


# ---- on tokens without padding --------------------------------------------------------------------------------------


def _flash(
    attention: Attention, module: Any, q: Tensor, k: Tensor, v: Tensor, bias: None, scale: float, dropout: float
) -> tuple[Tensor, None]:
    batch = attention.batch
    arrangement: dict[str, Any] = {}
    if isinstance(batch, Unpadded):
        arrangement = {"cu_seq_lens_q": batch.cu_seqlens, "cu_seq_lens_k": batch.cu_seqlens}
        arrangement |= {"max_length_q": batch.longest, "max_length_k": batch.longest}
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    attend: Any = ALL_ATTENTION_FUNCTIONS[attention.name]
    return attend(module, q, k, v, None, dropout=dropout, scaling=scale, is_causal=False, **arrangement)[0], None


def _flex(
    attention: Attention, module: Any, q: Tensor, k: Tensor, v: Tensor, bias: None, scale: float, dropout: float
) -> tuple[Tensor, None]:
    scheme, batch = attention.scheme, attention.batch
    if dropout:
        raise ValueError(
            f"attn_implementation='flex_attention' has no dropout, and attention_probs_dropout_prob={dropout}. "
            "Set it to 0, or use attn_implementation='sdpa'."
        )
    score_mod = None
    if scheme.uses("score_mod"):
        score_mod = scheme.ask("score_mod", batch.positions, module.layer_idx, sequence=batch.sequences)
    if score_mod is None and _biased(scheme):
        raise _refused("flex_attention", "needs a score_mod", f"the bias {scheme.name!r} gave none")
    if v.requires_grad and v.device.type == "cpu":
        raise ValueError(
            "attn_implementation='flex_attention' has no gradients on a CPU. Call the model inside torch.no_grad(), or "
            "use attn_implementation='sdpa'."
        )
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    attend: Any = _compiled_flex() if q.is_cuda else flex_attention
    return attend(q, k, v, score_mod=score_mod, block_mask=batch.block_mask, scale=scale).transpose(1, 2), None


@functools.cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def _has_varlen() -> bool:
    """Whether PyTorch has variable-length attention that takes a scale: torch >= 2.11."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"scale", "window_size"} <= set(inspect.signature(varlen_attn).parameters)


def runs_varlen(x: Tensor) -> bool:
    """Whether variable-length attention takes such hidden states: half precision on CUDA."""
    if not x.is_cuda or not plain(x):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype in (torch.float16, torch.bfloat16) and _has_varlen()


def _varlen(
    attention: Attention, module: Any, q: Tensor, k: Tensor, v: Tensor, bias: None, scale: float, dropout: float
) -> tuple[Tensor, None]:
    from torch.nn.attention.varlen import varlen_attn

    assert isinstance(attention.batch, Unpadded)
    cuts, longest = attention.batch.cu_seqlens, attention.batch.longest
    q, k, v = (t[0].contiguous() for t in (q, k, v))
    return varlen_attn(q, k, v, cuts, cuts, longest, longest, scale=scale).unsqueeze(0), None  # type: ignore[union-attr]
