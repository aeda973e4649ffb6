"""The PosEnc encoder, top to bottom: embeddings, attention, layer, model, heads.

The positional scheme is one module (`model.position`) that the encoder asks in three places: the input (`embed`),
queries and keys (`rotary`, `rotate`) and the attention logits (`bias`, `layer_bias`). Nothing here knows which scheme
it is.
"""

import copy
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .attention import TokenAttention, check_backend, takes_tokens, token_attention
from .configuration_posenc import PosEncConfig
from .cpu_kernels import Dropout, apply_linear, attend_by_sequence, runs_by_sequence
from .position_base import PositionScheme, check_length
from .position_math import tracing, transformed
from .positions import GIVEN, POSITIONS, independent_generator, make_position, own_code, resolve_position_config
from .scheme_code import load_classes, loading_from
from .unpadding import Layout, augment_positions, make_layout

logger = logging.get_logger(__name__)


class PosEncEmbeddings(nn.Module):
    """Token, type and added positional embeddings, normalised: input layout -> token layout."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(width, config.hidden_size) if config.embedding_size is not None else None
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0

    def forward(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        token_type_ids: Tensor | None,
        layout: Layout,
        embed: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """(B, S) token numbers, or (B, S, E) embeddings, to hidden states (1, T, D) or (B, S, D)."""
        if inputs_embeds is None:
            assert input_ids is not None
            x = self.word_embeddings(layout.take(input_ids))
        else:
            x = layout.take(inputs_embeds)
        if self.scale != 1.0:
            x = x * self.scale
        if self.token_type_embeddings is not None:
            # Through the module, not its weight: accelerate loads offloaded weights when a module is called.
            if token_type_ids is None:
                types = layout.positions.new_zeros(1)
            elif token_type_ids.dim() != 2 or any(
                given not in (1, wanted) for given, wanted in zip(token_type_ids.shape, layout.shape, strict=True)
            ):
                raise ValueError(
                    f"token_type_ids of shape {tuple(token_type_ids.shape)} don't fit an input of shape "
                    f"{layout.shape}. Give (B, S)."
                )
            else:
                types = layout.take(token_type_ids.expand(layout.shape))
            x = x + self.token_type_embeddings(types)
        if not layout.unpadded:  # zero at padding, so that no NaN there meets a weight of zero in attention or pooling
            x = layout.put_back(x)
        x = self.dropout(self.norm(embed(x, layout.positions)))
        return x if self.projection is None else apply_linear(self.projection, x)


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
    weights = nn.functional.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class PosEncAttention(nn.Module):
    """Multi-head self-attention on any layout: softmax(q k^T / sqrt(d) + bias) v.

    The linear layers and the rotation see tokens, the logits see the grid. A backend of another kind (varlen, flex)
    takes its place between `to_grid` and `from_grid`.
    """

    is_causal = False

    def __init__(self, config: PosEncConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, x: Tensor, mask: Tensor | None, layout: Layout, hooks: "AttentionHooks", *rotary: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states in token layout -> the same, and the probabilities (n, H, L, L) if they were asked for."""
        projections = (apply_linear(layer, x) for layer in (self.query, self.key, self.value))
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in projections)
        layer_bias = None
        if hooks.layer_bias is not None:
            plain_q, plain_k = (layout.to_grid(t).transpose(1, 2) for t in (q, k))
            layer_bias = hooks.layer_bias(plain_q, plain_k, layout.grid_positions(), self.layer_idx)
        if hooks.rotate is not None:
            q, k = hooks.rotate(q, k, tree_unflatten(rotary, hooks.rotary_tree), self.layer_idx)
        scale = self.head_dim**-0.5 * hooks.query_scale
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        if hooks.attend is not None:
            out = hooks.attend(self, q, k, v, scale, dropout)
            if out is not None:
                return self.dense(out.flatten(-2)), None
        if hooks.lengths is not None:
            if runs_by_sequence(q):
                bias = add_bias(mask, layer_bias, torch.promote_types(q.dtype, torch.float32))
                q, k, v = (t.flatten(0, 1) for t in (q, k, v))
                out = attend_by_sequence(q, k, v, bias, hooks.lengths, scale)
                return apply_linear(self.dense, out.view(*x.shape[:-1], -1)), None
            mask = add_bias(layout.attention_mask(), mask, q.dtype)
        if layout.grid_index is None:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        else:
            grid = layout.to_grid(torch.stack((q, k, v), dim=2))
            q, k, v = (grid[:, :, i].transpose(1, 2) for i in range(3))
        backend = "eager" if hooks.output_attentions else self.config._attn_implementation
        if transformed():
            backend = "eager"
        elif takes_tokens(backend):  # a traced graph, which is padded
            backend = "sdpa"
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            backend, eager_attention_forward
        )
        out, weights = attend(
            self,
            q,
            k,
            v,
            add_bias(mask, layer_bias, q.dtype),
            dropout=dropout,
            scaling=scale,
        )
        if tracing():  # the exporter may replace attention by operations whose result lies in memory in another order
            out = out.clone(memory_format=torch.contiguous_format)
        out = layout.from_grid(out.reshape(out.shape[0], out.shape[1], -1))
        return apply_linear(self.dense, out), weights if hooks.output_attentions else None


class AttentionHooks:
    """What every layer asks of the scheme, as plain functions: a module here would be moved by accelerate's hooks."""

    def __init__(
        self,
        scheme: PositionScheme,
        rotary: Any,
        lengths: list[int] | None,
        attend: TokenAttention | None,
        output_attentions: bool,
    ) -> None:
        # Gradient checkpointing sees tensors only as arguments of their own, so that a tuple is passed in parts.
        self.rotary_leaves, self.rotary_tree = tree_flatten(rotary)
        self.rotate = scheme.rotate if scheme.uses("rotate") else None
        self.layer_bias = scheme.layer_bias if scheme.uses("layer_bias") else None
        self.query_scale = scheme.query_scale
        # Tokens of each sequence, where attention goes sequence by sequence: the mask is then the bias alone.
        self.lengths = lengths
        self.attend = attend
        self.output_attentions = output_attentions


def add_bias(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """One additive mask of a boolean or additive mask and a bias; what is masked stays masked."""
    if bias is None:
        return mask
    bias = bias.to(dtype)
    if mask is None:
        return bias
    return bias.masked_fill(~mask, torch.finfo(dtype).min) if mask.dtype == torch.bool else mask + bias


@functools.cache
def _log(line: str) -> None:
    logger.info(line)


def _say_once(backend: str | None, attend: TokenAttention | None, layout: Layout) -> None:
    """One log line for each way in which attention runs."""
    if tracing():
        return
    how = "tokens without padding" if attend is not None else "a grid of sequences"
    if attend is None and backend == "sdpa" and layout.unpadded and layout.positions.device.type == "cpu":
        how = "one sequence after the other"
    _log(f"Attention: attn_implementation={backend!r} on {layout.positions.device.type}, {how}.")


class PosEncLayer(GradientCheckpointingLayer):
    """One encoder layer: attention and a feed-forward network, each with dropout, a residual and a LayerNorm.

    Pre-norm: x + f(norm(x)). Post-norm (BERT): norm(x + f(x)).
    """

    def __init__(self, config: PosEncConfig, layer_idx: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.attention = PosEncAttention(config, layer_idx)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, x: Tensor, mask: Tensor | None, layout: Layout, hooks: AttentionHooks, *rotary: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states in token layout -> the same, and the attention probabilities or None."""
        if self.pre_norm:
            attended, weights = self.attention(self.attention_norm(x), mask, layout, hooks, *rotary)
            x = self._add(x, attended)
            return self._add(x, self._feed_forward(self.output_norm(x))), weights
        attended, weights = self.attention(x, mask, layout, hooks, *rotary)
        x = self.attention_norm(self._add(x, attended))
        return self.output_norm(self._add(x, self._feed_forward(x))), weights

    def _add(self, x: Tensor, new: Tensor) -> Tensor:
        return x + self.dropout(new).to(x.dtype)  # under autocast they differ, and the sum of unequal dtypes is slow

    def _feed_forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.output, self.activation(apply_linear(self.intermediate, x)))


# What a model is built with and a loader can't tell from its weights: with another value it loads, as nonsense.
_BUILT_WITH = (
    "type_vocab_size",
    "tie_word_embeddings",
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "norm_position",
    "scale_embeddings",
    "classifier_hidden_act",
    "position_embedding_type",
    "position_embedding_kwargs",
    "rope_parameters",
)


def _check_index(folder: Path) -> None:
    """Refuses the index of a folder's shards if it names anything but files beside it."""
    for path in folder.glob("*.index*.json") if folder.is_dir() else ():
        try:
            shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
            outside = [name for name in shards if name != Path(name).name]
        except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is damaged ({error!r:.200}). Save the model anew.") from error
        if outside:
            raise ValueError(f"{str(path)!r} names {outside[0]!r}, which isn't a file beside it. Save the model anew.")


class PosEncPreTrainedModel(PreTrainedModel):
    """What all PosEnc models share: initialisation, saving, the attention backends."""

    config_class = PosEncConfig
    config: PosEncConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["PosEncEmbeddings", "PosEncLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    # The losses here average over `num_items_in_batch` where the Trainer gives it.
    accepts_loss_kwargs = True

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialises what wasn't loaded; the scheme last, by itself and from a generator of its own.

        Transformers never calls `_init_weights` on a module without direct parameters, so a scheme made of children
        couldn't say how it starts; and with one seed all other weights are equal whatever the scheme.
        """
        scheme = self._scheme
        pending = not getattr(scheme, "_is_hf_initialized", False)
        for module in scheme.modules():
            module._is_hf_initialized = True  # type: ignore[assignment]
        super().initialize_weights()
        if pending:
            with independent_generator():
                for module in scheme.modules():  # a scheme that doesn't say how it starts starts as everything else
                    self._init_weights(module)
            with independent_generator(), init.guard_torch_init_functions():
                scheme.init_weights(self.config.initializer_range)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads a checkpoint; one with a scheme of its author's own needs `trust_remote_code=True`.

        Only safetensors are read: other weights are pickles, which run code. `use_safetensors=False` reads them.

        Raises:
            ValueError: the checkpoint's scheme is code that isn't trusted, or its weights are damaged, or its index
                names files elsewhere.
            OSError: it has no safetensors, or isn't there; or what else transformers raises.
        """
        kwargs.setdefault("use_safetensors", True)
        _check_index(Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or ""))
        with loading_from(pretrained_model_name_or_path, kwargs.get("trust_remote_code"), kwargs):
            try:
                return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
            except Exception as error:
                if type(error).__name__ != "SafetensorError":  # of a package that this file doesn't import
                    raise
                raise ValueError(
                    f"The weights of {str(pretrained_model_name_or_path)!r} are damaged ({error}). Save them anew, or "
                    "download them anew with from_pretrained(..., force_download=True)."
                ) from error

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Writes weights, config and code, the code of a scheme of the user's own too.

        Raises:
            ValueError: that code can't travel, or the config was changed to what the model wasn't built with; the
                message says why and what to do. Nothing is written then.
        """
        body = cast(Any, self.base_model)
        for name, built in {**body.built_with, "num_hidden_layers": len(body.layers)}.items():
            if getattr(self.config, name) != built:
                raise ValueError(
                    f"config.{name}={getattr(self.config, name)!r} isn't what this model was built with, {built!r}: "
                    f"loaded again, the weights would compute something else. Set it back to {built!r}; where another "
                    f"value is wanted, give it on loading: from_pretrained(..., {name}=...)."
                )
        own_code(self.config)
        super().save_pretrained(save_directory, *args, **kwargs)

    @property
    def _scheme(self) -> PositionScheme:
        return cast(PositionScheme, self.base_model.position)

    def _encode(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        token_type_ids: Tensor | None,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
        **arrangement: Any,
    ) -> tuple[BaseModelOutput, Layout]:
        """A head's call of its encoder: hidden states in token layout, and the layout that says what they are."""
        layout = self._make_layout(input_ids, inputs_embeds, output_attentions, **arrangement)
        outputs = self.model(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            layout=layout,
            return_dict=True,
        )
        return outputs, layout

    def _make_layout(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, output_attentions: bool | None, **kwargs: Any
    ) -> Layout:
        """The layout of a call's input: see `make_layout`. Checks the input before a kernel runs."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids (B, S) and inputs_embeds (B, S, D).")
        given: Tensor = inputs_embeds if input_ids is None else input_ids  # type: ignore[assignment]
        if given.dim() != (3 if input_ids is None else 2):
            name, axes = ("inputs_embeds", "(B, S, D)") if input_ids is None else ("input_ids", "(B, S)")
            raise ValueError(f"{name} has shape {tuple(given.shape)}; give {axes}. For one text: tensor.unsqueeze(0).")
        if not tracing() and 0 in given.shape[:2]:
            raise ValueError(f"The input of shape {tuple(given.shape)} holds no token. Leave empty batches out.")
        # Attention probabilities are (B, H, S, S), so they are computed on the padded batch.
        unpad = self.config.unpad_inputs or takes_tokens(self.config._attn_implementation)
        unpad = unpad and not self._wants_attentions(output_attentions)
        layout = make_layout(given.shape[0], given.shape[1], given.device, unpad=unpad, **kwargs)
        self._check_length(layout, kwargs.get("position_ids") is not None)
        # Positions of the caller's own are left alone.
        if self.training and self.config.position_augmentation != "none" and layout.counted:
            layout = augment_positions(layout, self.config.position_augmentation, self.config.augmentation_length)
        return layout

    def _check_length(self, layout: Layout, given: bool) -> None:
        scheme = self._scheme
        longest = layout.longest if layout.unpadded else layout.shape[1]
        if scheme.max_length is None or (not given and longest <= scheme.max_length) or layout.positions.numel() == 0:
            return
        if tracing():
            check_length(scheme, 0, layout.shape[1] - 1)
            return
        positions = layout.positions
        if not layout.unpadded and layout.mask is not None:
            positions = positions[layout.mask]
        first, last = (int(value) for value in positions.aminmax())
        check_length(scheme, first, last)

    def _wants_attentions(self, output_attentions: bool | None) -> bool:
        return bool(self.config.output_attentions if output_attentions is None else output_attentions)


class PosEncModel(PosEncPreTrainedModel):
    """The bare encoder: token numbers to hidden states."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        # A config may have been changed since it was checked, and what is built must be what is saved.
        config.validate_sizes()
        load_classes(config, POSITIONS)
        resolve_position_config(config)
        vars(config).pop(GIVEN)  # from here on its arguments are those of weights
        self.embeddings = PosEncEmbeddings(config)
        self.layers = nn.ModuleList([PosEncLayer(config, index) for index in range(config.num_hidden_layers)])
        pre_norm = config.norm_position == "pre"
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre_norm else None
        with independent_generator():
            self.position = make_position(config)
        self.built_with = {name: copy.deepcopy(getattr(config, name)) for name in _BUILT_WITH}
        check_backend(config._attn_implementation, self.position)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the token embedding."""
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    def _lengths_by_sequence(self, x: Tensor, bias: Tensor | None, layout: Layout) -> list[int] | None:
        """Tokens of each sequence if attention can go sequence by sequence, and gains by it; else None."""
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        if self.config._attn_implementation != "sdpa" or dropout or not runs_by_sequence(x):
            return None
        if layout.counts is not None:
            return layout.counts.tolist()
        learned = self._scheme.uses("layer_bias") or (bias is not None and bias.requires_grad)
        half = x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")
        padded = layout.mask is not None or layout.packed
        if padded or not (torch.is_grad_enabled() and (learned or half)):
            return None
        return [layout.shape[1]] * layout.shape[0]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        layout: Layout | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encodes a batch.

        Args:
            input_ids (Tensor): token numbers (B, S).
            attention_mask (Tensor): (B, S), 1 at tokens and 0 at padding, on either side. None: all are tokens.
            token_type_ids (Tensor): (B, S). None: all 0.
            position_ids (Tensor): (B, S), 0-based. None: counted from the mask. A row of several aranges from 0 is
                packed (see `padding_free.make_layout`).
            inputs_embeds (Tensor): (B, S, E) instead of `input_ids`.
            seq_idx (Tensor): (B, S), the sequence of each token in packed rows.
            cu_seq_lens_q (Tensor): (n + 1,), borders of the sequences packed into a batch of one row.
            output_hidden_states (bool): return the embeddings' and each layer's hidden states too.
            output_attentions (bool): return each layer's probabilities (B, H, S, S) too.
            layout (Layout): set by the heads; hidden states then come back in token layout.

        Returns:
            BaseModelOutput: `last_hidden_state` (B, S, D), zero at padding; `hidden_states` and `attentions` if asked.

        Raises:
            ValueError: shapes don't fit, or a position is past the end of the scheme's table.
        """
        wants_attentions = self._wants_attentions(output_attentions)
        wants_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        in_tokens = layout is not None
        if layout is None:
            layout = self._make_layout(
                input_ids,
                inputs_embeds,
                output_attentions,
                attention_mask=attention_mask,
                position_ids=position_ids,
                seq_idx=seq_idx,
                cu_seq_lens_q=cu_seq_lens_q,
            )
        scheme = self.position
        x = self.embeddings(input_ids, inputs_embeds, token_type_ids, layout, scheme.embed)
        backend = self.config._attn_implementation
        check_backend(backend, scheme)
        attend = None if wants_attentions or tracing() else token_attention(backend, layout, scheme)
        _say_once(backend, attend, layout)
        bias = None
        if scheme.uses("bias") and not (attend is not None and scheme.uses("score_mod")):
            bias = scheme.bias(layout.grid_positions(), layout.grid_is_first())
        sequences = None if wants_attentions else self._lengths_by_sequence(x, bias, layout)
        mask = bias if sequences is not None else add_bias(layout.attention_mask(), bias, x.dtype)
        rotary = scheme.ask("rotary", layout.positions, lengths=layout.lengths) if scheme.uses("rotary") else None
        hooks = AttentionHooks(scheme, rotary, sequences, attend, wants_attentions)

        hidden_states, attentions = [x], []
        for layer in self.layers:
            x, weights = layer(x, mask, layout, hooks, *hooks.rotary_leaves)
            if wants_hidden:
                hidden_states.append(x)
            attentions.append(weights)
        if self.norm is not None:
            x = self.norm(x)
            hidden_states[-1] = x if len(hidden_states) > 1 else hidden_states[-1]
        return BaseModelOutput(
            last_hidden_state=x if in_tokens else layout.put_back(x),
            hidden_states=tuple(layout.put_back(state) for state in hidden_states) if wants_hidden else None,
            attentions=tuple(attentions) if wants_attentions else None,
        )


class PosEncPooledHead(PosEncPreTrainedModel):
    """Dropout, an optional dense layer and a linear layer on the pooled sequence."""

    def __init__(self, config: PosEncConfig, outputs: int | None) -> None:
        super().__init__(config)
        assert outputs is not None  # PreTrainedConfig always has labels
        self.num_labels = outputs
        self.model = PosEncModel(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if config.classifier_hidden_act else None
        self.activation = ACT2FN[config.classifier_hidden_act] if config.classifier_hidden_act else None
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, outputs)
        self.post_init()

    def _classify(self, hidden: Tensor | None, layout: Layout) -> Tensor:
        assert hidden is not None
        pooled = layout.pool(hidden, self.config.classifier_pooling)
        if self.dense is not None and self.activation is not None:
            pooled = self.activation(self.dense(pooled))
        return self.classifier(self.dropout(pooled))


class PosEncForSequenceClassification(PosEncPooledHead):
    """The encoder with a classifier (or a regressor) on each pooled sequence."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Classifies each sequence; the arguments are those of `PosEncModel`, and `labels`.

        Args:
            labels (Tensor): (B,) whole numbers: one of C classes; (B, C) real numbers: several of C classes at once;
                (B,) or (B, C) real numbers with `problem_type="regression"` or one label. For packed rows, one label
                per sequence (N, ...).

        Returns:
            SequenceClassifierOutput: `logits` (B, C), or (N, C) for rows that hold N sequences in all; `loss`.
        """
        outputs, layout = self._encode(
            input_ids,
            inputs_embeds,
            token_type_ids,
            output_hidden_states,
            output_attentions,
            attention_mask=attention_mask,
            position_ids=position_ids,
            seq_idx=seq_idx,
            cu_seq_lens_q=cu_seq_lens_q,
        )
        logits = self._classify(outputs.last_hidden_state, layout)
        loss = None
        if labels is not None:
            loss = sequence_classification_loss(logits, labels, self.config, kwargs.get("num_items_in_batch"))
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class PosEncForMultipleChoice(PosEncPooledHead):
    """The encoder with one score per choice, softmax over the choices."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Scores each choice; inputs have an axis of choices: (B, C, S).

        Args:
            labels (Tensor): (B,), the number of the right choice.

        Returns:
            MultipleChoiceModelOutput: `logits` (B, C); `loss`.

        Raises:
            ValueError: the input has no axis of choices, or is packed.
        """
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.dim() != (3 if input_ids is not None else 4):
            shape = None if given is None else tuple(given.shape)
            raise ValueError(
                f"Multiple choice takes input_ids (B, C, S) or inputs_embeds (B, C, S, D), this is {shape}."
            )
        choices = given.shape[1]
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds = (
            t.flatten(0, 1) if t is not None and t.dim() > 2 else t
            for t in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
        outputs, layout = self._encode(
            input_ids,
            inputs_embeds,
            token_type_ids,
            output_hidden_states,
            output_attentions,
            attention_mask=attention_mask,
            position_ids=position_ids,
            seq_idx=kwargs.get("seq_idx"),
            cu_seq_lens_q=kwargs.get("cu_seq_lens_q"),
        )
        if layout.packed:
            raise ValueError("Multiple choice can't take packed rows: give each choice a row of its own.")
        logits = self._classify(outputs.last_hidden_state, layout).view(-1, choices)
        loss = None
        if labels is not None:
            loss = cross_entropy(logits, labels, kwargs.get("num_items_in_batch"))
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class PosEncForMaskedLM(PosEncPreTrainedModel):
    """The encoder with BERT's masked-language-model head; the decoder shares the token embedding."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        width = config.embedding_width
        self.model = PosEncModel(config)
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = ACT2FN[config.hidden_act]
        # Not `norm`: the loader takes a head's child named like the encoder's own for the encoder's.
        self.head_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The decoder."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replaces the decoder."""
        self.decoder = new_embeddings  # type: ignore[assignment]

    def predict_tokens(self, hidden_states: Tensor) -> Tensor:
        """The head alone: last hidden states (..., D) -> logits (..., V)."""
        hidden_states = self.activation(apply_linear(self.dense, hidden_states))
        return apply_linear(self.decoder, self.head_norm(hidden_states))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predicts tokens; the arguments are those of `PosEncModel`, and `labels`.

        Args:
            labels (Tensor): (B, S), the right token number, or -100 where there is nothing to predict.

        Returns:
            MaskedLMOutput: `logits` (B, S, V), zero at padding; `loss`.
        """
        outputs, layout = self._encode(
            input_ids,
            inputs_embeds,
            token_type_ids,
            output_hidden_states,
            output_attentions,
            attention_mask=attention_mask,
            position_ids=position_ids,
            seq_idx=seq_idx,
            cu_seq_lens_q=cu_seq_lens_q,
        )
        assert outputs.last_hidden_state is not None
        logits = self.predict_tokens(outputs.last_hidden_state)
        loss = token_loss(logits, labels, layout, kwargs.get("num_items_in_batch"))
        return MaskedLMOutput(
            loss=loss,
            logits=layout.put_back(logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class PosEncForTokenClassification(PosEncPreTrainedModel):
    """The encoder with a classifier on each token."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = PosEncModel(config)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Classifies each token; the arguments are those of `PosEncModel`, and `labels`.

        Args:
            labels (Tensor): (B, S), the class of each token, or -100 where it doesn't count.

        Returns:
            TokenClassifierOutput: `logits` (B, S, C), zero at padding; `loss`.
        """
        outputs, layout = self._encode(
            input_ids,
            inputs_embeds,
            token_type_ids,
            output_hidden_states,
            output_attentions,
            attention_mask=attention_mask,
            position_ids=position_ids,
            seq_idx=seq_idx,
            cu_seq_lens_q=cu_seq_lens_q,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = token_loss(logits, labels, layout, kwargs.get("num_items_in_batch"))
        return TokenClassifierOutput(
            loss=loss,
            logits=layout.put_back(logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class PosEncForQuestionAnswering(PosEncPreTrainedModel):
    """The encoder with two scores per token: the answer starts here, the answer ends here."""

    # The Trainer counts `labels`, which this head doesn't have, so it must divide the loss itself.
    accepts_loss_kwargs = False

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        self.model = PosEncModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Scores the borders of the answer; the arguments are those of `PosEncModel`, and the right borders.

        Args:
            start_positions (Tensor): (B,), place of the answer's first token in its row; past the end: no answer. For
                packed rows: (N,), place in its sequence.
            end_positions (Tensor): the same of its last token.

        Returns:
            QuestionAnsweringModelOutput: `start_logits` and `end_logits` (B, S), as low as can be at padding; for
            packed rows (N, L), one row per sequence; `loss`, the mean of the two cross-entropies.
        """
        outputs, layout = self._encode(
            input_ids,
            inputs_embeds,
            token_type_ids,
            output_hidden_states,
            output_attentions,
            attention_mask=attention_mask,
            position_ids=position_ids,
            seq_idx=seq_idx,
            cu_seq_lens_q=cu_seq_lens_q,
        )
        scores = self.qa_outputs(outputs.last_hidden_state)
        scores = layout.by_sequence(scores, fill=torch.finfo(scores.dtype).min)
        start_logits, end_logits = (t.squeeze(-1).contiguous() for t in scores.split(1, dim=-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, target in ((start_logits, start_positions), (end_logits, end_positions)):
                target = target.view(-1).to(logits.device)
                # Past the end of the row means that the answer was truncated away: it doesn't count.
                target = target.masked_fill((target < 0) | (target >= logits.shape[-1]), -100)
                # Nor does a place that holds padding in this row and would hold a token in a longer one.
                chosen = logits.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
                target = target.masked_fill(chosen <= torch.finfo(logits.dtype).min, -100)
                losses.append(cross_entropy(logits, target, None))
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _classifier_dropout(config: PosEncConfig) -> float:
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


def cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Mean cross-entropy of (n, C) against (n,), ignoring -100; the sum over `num_items_in_batch` where that is given.

    The mean over no label at all is 0, not NaN.
    """
    labels = labels.to(device=logits.device, dtype=torch.int64)
    total = nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum"
    )
    count = (labels != -100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(logits.device) if isinstance(count, Tensor) else count)


def token_loss(
    logits: Tensor, labels: Tensor | None, layout: Layout, num_items_in_batch: Tensor | int | None
) -> Tensor | None:
    """Cross-entropy of logits in token layout against labels (B, S); labels at padding don't count."""
    if labels is None:
        return None
    if tuple(labels.shape) != layout.shape:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} don't fit an input of shape {layout.shape}. Give one label per "
            "token, -100 where it doesn't count."
        )
    if layout.mask is not None:
        labels = labels.to(layout.mask.device).masked_fill(~layout.mask, -100)
    return cross_entropy(logits.flatten(0, 1), layout.take(labels).flatten(), num_items_in_batch)


def sequence_classification_loss(
    logits: Tensor, labels: Tensor, config: PosEncConfig, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """The loss that `config.problem_type` names; where it is None, the labels decide and it is set.

    regression: mean squared error; single_label_classification: cross-entropy; multi_label_classification: binary
    cross-entropy.

    Raises:
        ValueError: labels don't fit the logits.
    """
    labels = labels.to(logits.device)
    classes = logits.shape[-1]
    if config.problem_type is None:
        if classes == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    expected = logits.shape[0] if config.problem_type == "single_label_classification" else logits.numel()
    if labels.numel() != expected:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} don't fit {logits.shape[0]} sequences and {classes} outputs "
            f"(problem_type={config.problem_type!r}). Give one whole number per sequence for a single label, "
            f"{classes} real numbers per sequence otherwise."
        )
    if config.problem_type == "single_label_classification":
        return cross_entropy(logits, labels.reshape(-1), num_items_in_batch)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    target = labels.reshape(logits.shape).to(precise.dtype)
    if config.problem_type == "regression":
        loss = nn.functional.mse_loss(precise, target, reduction="sum")
    else:
        loss = nn.functional.binary_cross_entropy_with_logits(precise, target, reduction="sum")
    count = max(target.numel(), 1) if num_items_in_batch is None else num_items_in_batch
    return loss / (count.to(loss.device) if isinstance(count, Tensor) else count)


PosEncModel.register_for_auto_class("AutoModel")
PosEncForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
PosEncForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
PosEncForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
PosEncForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
PosEncForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
