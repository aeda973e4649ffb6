"""The PosEnc encoder, top to bottom: embeddings, attention, layer, model, heads.

The positional scheme is one module (`model.position`) that the encoder calls in three places: at the input (`embed`),
on queries and keys (`rotary`, `rotate`) and on the attention logits (`bias`, `layer_bias`). Nothing here knows which
scheme it is. `kernels` are PyTorch's own parts; where hf_posenc is imported, faster ones (see `seam.py`).
"""

import copy
import functools
import math
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, modeling_outputs
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .attention import ForwardAttention, backend_of, check_bias, choose_attention, dropout_of, eager_attention_forward
from .configuration_posenc import PosEncConfig
from .losses import cross_entropy, sequence_classification_loss, whole_numbers
from .scheme_base import PositionScheme, check_length
from .scheme_factory import independent_generator, make_scheme
from .scheme_math import accumulation_dtype, linear_dtype
from .scheme_table import AUGMENTATIONS, EMBEDDING_STEPS
from .seam import kernels
from .unpadding import TokenLayout, Tokens, check_input, check_shape

logger = logging.get_logger(__name__)
Outputs = tuple[Tensor | None, Tensor]

PLACES = ("attention_mask", "position_ids", "seq_idx", "cu_seq_lens_q")
OPTIONS = {*PLACES, "token_type_ids", "num_items_in_batch", "output_attentions", "output_hidden_states"}
OPTIONS |= {"max_length_q", "max_length_k", "cu_seq_lens_k"}
"""What a call takes besides its input: where tokens are, and more; flash attention's collators give keys' lengths."""


def make_norm(config: PosEncConfig, width: int) -> nn.Module:
    """The norm of vectors of a width, of the configuration's type."""
    norm = nn.RMSNorm if config.norm_type == "rms_norm" else nn.LayerNorm
    return norm(width, eps=config.layer_norm_eps)


def make_head_dropout(config: PosEncConfig) -> nn.Module:
    """The dropout before the last layer of a classifier."""
    probability = config.classifier_dropout
    return kernels.Dropout(config.hidden_dropout_prob if probability is None else probability)


class PosEncEmbeddings(nn.Module):
    """Token, type and added positional embeddings, perhaps normalised: input layout -> token layout."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.Identity() if config.norm_position == "pre_only" else make_norm(config, width)
        self.dropout = kernels.Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(width, config.hidden_size) if config.embedding_size is not None else None
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        self.mask_token = config.token_dropout

    def forward(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        token_type_ids: Tensor | None,
        layout: TokenLayout,
        embed: Callable[[Tensor, Tokens], Tensor],
    ) -> Tensor:
        """Token ids (B, S), or embeddings (B, S, E), and types (B, S) -> hidden states in token layout."""
        # In input layout, for what hooks into the word embeddings: NEFTune's noise, attributions.
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        hidden_states = layout.unpad(words)
        if self.scale != 1.0:
            hidden_states = hidden_states * self.scale
        if self.mask_token is not None and input_ids is not None:
            hidden_states = EMBEDDING_STEPS["token_dropout"](hidden_states, layout.tokens, self.mask_token)
        if self.token_type_embeddings is not None:
            # Through the module, not its weight: accelerate loads offloaded weights when a module is called.
            types = layout.tokens.positions.new_zeros(1)
            if token_type_ids is not None:
                types = token_type_ids.expand(layout.shape[0], -1)
                types = layout.unpad(check_shape("token_type_ids", types, layout.shape, "Give (B, S) or (1, S)."))
            hidden_states = hidden_states + self.token_type_embeddings(types)
        if layout.index is None:  # zero at padding, so that no NaN there meets a weight of zero in attention or pooling
            hidden_states = layout.pad(hidden_states)
        hidden_states = embed(hidden_states, layout.tokens)
        if hidden_states is None:
            raise ValueError("The scheme's embed returns None. Give the hidden states back, with positions added.")
        hidden_states = self.dropout(self.norm(hidden_states))
        return hidden_states if self.projection is None else kernels.apply_linear(self.projection, hidden_states)


class PosEncAttention(nn.Module):
    """Multi-head self-attention: project, attend, dense. `attention.py` has `attend`."""

    is_causal = False

    def __init__(self, config: PosEncConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_number = layer_idx  # PEFT renumbers `layer_idx` in replicas, which use their origin's position
        self.head_dim = config.hidden_size // config.num_attention_heads
        size, bias = config.hidden_size, config.attention_bias
        self.query, self.key, self.value, self.dense = (nn.Linear(size, size, bias=bias) for _ in range(4))
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)  # of the probabilities; `attend` reads it

    def forward(self, hidden_states: Tensor, attend: ForwardAttention) -> tuple[Tensor, Tensor | None]:
        """Hidden states in token layout -> the same, and the probabilities (n, H, L, L) if they were asked for."""
        x = hidden_states.to(linear_dtype(hidden_states))  # once: autocast would do it for each of the three
        projections = (kernels.apply_linear(layer, x) for layer in (self.query, self.key, self.value))
        q, k, v = (t.view(*t.shape[:-1], -1, self.head_dim) for t in projections)
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(attend.name, eager_attention_forward)
        out, weights = attend(self, interface, q, k, v, hidden_states)
        return kernels.apply_linear(self.dense, out.flatten(-2)), weights


class PosEncLayer(GradientCheckpointingLayer):
    """One encoder layer: attention and a feed-forward network, each with dropout, a residual and a norm.

    Pre-norm: x + f(norm(x)), with or without the very first norm. Post-norm (BERT): norm(x + f(x)).
    """

    def __init__(self, config: PosEncConfig, layer_idx: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_position != "post"
        self.attention = PosEncAttention(config, layer_idx)
        skips = config.norm_position == "pre_but_first" and not layer_idx  # the embeddings are normalised
        self.attention_norm = nn.Identity() if skips else make_norm(config, config.hidden_size)
        size, width, gated = config.hidden_size, config.intermediate_size, config.mlp_gated
        self.intermediate = nn.Linear(size, width, bias=config.mlp_bias and not gated)
        self.up = nn.Linear(size, width, bias=False) if gated else None
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(width, size, bias=config.mlp_bias)
        self.output_norm = make_norm(config, config.hidden_size)
        self.dropout = kernels.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, attend: ForwardAttention) -> tuple[Tensor, Tensor | None]:
        """Hidden states in token layout -> the same, and the attention probabilities or None."""
        if self.pre_norm:
            attended, weights = self.attention(self.attention_norm(hidden_states), attend)
            hidden_states = self._residual(hidden_states, attended)
            return self._residual(hidden_states, self._feed_forward(self.output_norm(hidden_states))), weights
        attended, weights = self.attention(hidden_states, attend)
        hidden_states = self.attention_norm(self._residual(hidden_states, attended))
        return self.output_norm(self._residual(hidden_states, self._feed_forward(hidden_states))), weights

    def _residual(self, hidden_states: Tensor, update: Tensor) -> Tensor:
        update = self.dropout(update)
        # Under autocast their dtypes differ. A GPU adds them in one pass, but a CPU is slow at that.
        casts_itself = update.is_cuda and hidden_states.dtype == torch.float32
        return hidden_states + (update if casts_itself else update.to(hidden_states.dtype))

    def _feed_forward(self, hidden_states: Tensor) -> Tensor:
        inner = self.activation(kernels.apply_linear(self.intermediate, hidden_states))
        return kernels.apply_linear(
            self.output, inner if self.up is None else inner * kernels.apply_linear(self.up, hidden_states)
        )


class PosEncPreTrainedModel(PreTrainedModel):
    """Base of all PosEnc models: initialisation, saving, the attention backends."""

    config_class = PosEncConfig
    config: PosEncConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["PosEncEmbeddings", "PosEncLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    # The losses here average over `num_items_in_batch` where the Trainer gives it.
    accepts_loss_kwargs = True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The attention that runs for a request; transformers asks when a model is built and when it is changed."""
        backend_of(requested_attention or "eager")  # refuses with a reason
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        function = kwargs.get("gradient_checkpointing_func", functools.partial(checkpoint))
        if function.keywords.get("use_reentrant"):
            logger.warning_once("Layers share a bias, so checkpointing isn't reentrant. The gradients are the same.")
        kwargs["gradient_checkpointing_func"] = functools.partial(function, use_reentrant=False)
        super()._set_gradient_checkpointing(*args, **kwargs)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialises what wasn't loaded; the scheme last, with a separate random generator.

        Transformers never calls `_init_weights` on a module without direct parameters, so a scheme made of children
        couldn't initialise itself there. The separate generator makes all other weights equal whatever the scheme.
        """
        if not isinstance(self.base_model, PosEncModel):
            raise ValueError(f"{type(self).__name__} has no PosEncModel in self.model. Give its encoder that name.")
        scheme = cast(PositionScheme, self.base_model.position)
        pending = not getattr(scheme, "_is_hf_initialized", False)
        for module in scheme.modules():
            module._is_hf_initialized = True  # type: ignore[assignment]
        super().initialize_weights()
        if pending:
            with independent_generator():
                for module in scheme.modules():  # a scheme without init_weights is initialised as everything else
                    self._init_weights(module)
            with independent_generator(), init.guard_torch_init_functions():
                scheme.init_weights(self.config.initializer_range)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads a checkpoint; one with a custom scheme needs `trust_remote_code=True`.

        Only safetensors are read: other weights are pickles, which run code. `use_safetensors=False` reads them.

        Raises:
            ValueError: the checkpoint's scheme is code that isn't trusted, or a file is damaged.
            OSError: it has no safetensors, or doesn't exist; or what else transformers raises.
        """
        kwargs.setdefault("use_safetensors", True)
        with cls.config_class.support.loading(str(pretrained_model_name_or_path), kwargs, of_model=True):
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Writes weights and config, and with the config the code, including that of a custom scheme.

        Raises:
            ValueError: the code can't travel, or with the changed config the weights would compute something else.
        """
        self.config.support.check_saving(self)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _encode(self, **inputs: Any) -> tuple[Tensor, TokenLayout, dict[str, Any]]:
        """Runs the encoder for a head: hidden states (B, S, D), where their tokens are, and what else is returned."""
        layout = self.model.make_layout(**inputs)
        outputs = self.model(**inputs, layout=layout, return_dict=True)
        optional_outputs = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
        return outputs.last_hidden_state, layout, optional_outputs


class PosEncModel(PosEncPreTrainedModel):
    """The bare encoder: token ids to hidden states."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        config.check()  # it may have been changed since it was made
        with independent_generator():
            position = make_scheme(config)  # first: it may refuse its arguments
        self.embeddings = PosEncEmbeddings(config)
        self.layers = nn.ModuleList([PosEncLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = make_norm(config, config.hidden_size) if config.norm_position != "post" else None
        self.position = position
        self._config_when_built = copy.deepcopy(config)
        kernels.check_bias(check_bias, config._attn_implementation, self.position)
        self.gradient_checkpointing = False
        self.post_init()

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
        layout: TokenLayout | None = None,
        **kwargs: Any,
    ) -> modeling_outputs.BaseModelOutput:
        """Runs the encoder on tokens.

        Args:
            input_ids (Tensor): token ids (B, S).
            attention_mask (Tensor): (B, S), 1 at tokens and 0 at padding, on either side. None: all are tokens.
            token_type_ids (Tensor): (B, S). None: all 0.
            position_ids (Tensor): (B, S), (1, S) or (S,), 0-based. None: counted over the mask's ones. A row of several
                aranges from its smallest position, as 0 1 2 0 1 or 2 3 4 2 3, is packed; any other is one sequence.
            inputs_embeds (Tensor): (B, S, E) instead of `input_ids`.
            seq_idx (Tensor): (B, S), the sequence of each token in packed rows.
            cu_seq_lens_q (Tensor): (n + 1,), borders of the sequences packed into a row, without `seq_idx`.
            max_length_q (int): the longest of these; with it a GPU's host doesn't wait for the borders, nor checks
                them, unless it waits for a mask or positions.
            layout (TokenLayout): what `make_layout` has made of the same arguments: a head, which needs it for its own
                outputs, hands it on by this keyword, so that the tokens are found once. None: it is made here.
            output_hidden_states (bool): return the embeddings' and each layer's hidden states too, padded; each is a
                part of the graph, and costs a copy or two.
            output_attentions (bool): return each layer's probabilities (B, H, S, S) too; they are computed with
                padding, by eager attention.

        Returns:
            BaseModelOutput: `last_hidden_state` (B, S, D), zero at padding; `hidden_states` and `attentions` if asked.

        Raises:
            ValueError: shapes don't fit, an argument isn't taken, or a position is past the end of the scheme's table.
        """
        wants_attentions = self._is_requested("output_attentions", kwargs)
        wants_hidden = self._is_requested("output_hidden_states", kwargs)
        if layout is None:
            where = {"attention_mask": attention_mask, "position_ids": position_ids, "seq_idx": seq_idx}
            layout = self.make_layout(input_ids, inputs_embeds, **where, cu_seq_lens_q=cu_seq_lens_q, **kwargs)
        hidden_states = self.embeddings(input_ids, inputs_embeds, token_type_ids, layout, self.position.embed)
        has_dropout = dropout_of(self.layers[0].attention) > 0
        attend = choose_attention(self.config, self.position, layout, hidden_states, has_dropout, wants_attentions)
        all_hidden_states: list[Tensor] = []
        attentions = []
        for layer in self.layers:
            if wants_hidden:  # the next layer continues from what is returned, so that gradients reach it
                all_hidden_states.append(layout.pad(hidden_states))
                hidden_states = layout.unpad(all_hidden_states[-1])
            hidden_states, weights = layer(hidden_states, attend)
            attentions.append(weights)
        hidden_states = layout.pad(hidden_states if self.norm is None else self.norm(hidden_states))
        all_hidden_states.append(hidden_states)
        return modeling_outputs.BaseModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(all_hidden_states) if wants_hidden else None,
            attentions=tuple(attentions) if wants_attentions else None,
        )

    def make_layout(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> TokenLayout:
        """Finds where the tokens of an input are: see `TokenLayout.from_batch`. Checks it before a kernel runs.

        The arguments are those of `forward`, and so are the errors.
        """
        self.config.check_padding()
        padding = self.config.pad_token_id
        for words in self.embeddings.word_embeddings.modules():  # those that PEFT wraps, too
            if getattr(words, "padding_idx", padding) != padding:  # else the one of before would never be trained
                words.padding_idx = padding  # type: ignore[assignment]
        x = check_input(input_ids, inputs_embeds, self.config.embedding_width)
        for name, value in kwargs.items():
            if name not in OPTIONS and value is not None and value is not False:
                known = "Leave it out; help(PosEncModel.forward) lists those that are taken."
                raise ValueError(f"PosEncModel takes no {name!r} and would ignore it. {known}")
        # Attention probabilities are (B, H, S, S), so they are computed on the padded tokens.
        unpad = self.config.unpad_inputs or backend_of(self.config._attn_implementation or "eager").takes_tokens
        unpad = unpad and not self._is_requested("output_attentions", kwargs)
        by_sample = "opacus" in sys.modules and unpad and self.training
        if by_sample and any(hasattr(weight, "grad_sample") for weight in self.parameters()):
            raise ValueError("Gradients of each sample (opacus) need a batch axis: set unpad_inputs=False.")
        unpad = self.config.support.may_unpad(self, unpad)
        where = {name: kwargs.get(name) for name in PLACES}
        layout = TokenLayout.from_batch(x, **where, max_length=kwargs.get("max_length_q"), unpad=unpad)
        tokens = layout.tokens
        places = tokens.position_range or (None if tokens.may_be_packed else (0, layout.shape[1] - 1))
        if places is not None:  # the length of a traced row that may be packed says nothing
            check_length(self.position, *places)
        augment = AUGMENTATIONS.get(self.config.position_augmentation)
        # Positions that the caller gave are left alone.
        if self.training and augment is not None and tokens.positions_are_aranges:
            layout.tokens = augment(tokens, self.config.augmentation_length)
        return layout

    def _is_requested(self, output: str, options: dict[str, Any]) -> bool:
        return bool(getattr(self.config, output) if options.get(output) is None else options[output])


class PosEncHead(PosEncPreTrainedModel):
    """A head with `labels`: `_outputs` makes loss and logits of the hidden states; of each token by `_scores`."""

    output_class: Any
    _scores: Any

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
        **kwargs: Any,
    ) -> Any:
        """Encodes and predicts; the arguments are those of `PosEncModel`, and the labels.

        `labels`: of texts (B,), or of several classes or numbers (B, C); of tokens (B, S), -100: none. The loss is None
        without labels; logits are (B, C), or of tokens (B, S, C), zero at padding; of packed rows, one per sequence.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds, "seq_idx": seq_idx}
        hidden_states, layout, optional_outputs = self._encode(**inputs, cu_seq_lens_q=cu_seq_lens_q, **kwargs)
        loss, logits = self._outputs(hidden_states, layout, labels, kwargs.get("num_items_in_batch"))
        return self.output_class(loss=loss, logits=logits, **optional_outputs)

    def _outputs(self, hidden_states: Tensor, layout: TokenLayout, labels: Tensor | None, count: Any) -> Outputs:
        """Hidden states (B, S, D), labels, and by how many to divide the loss -> loss or None, and logits.

        Here of each token, with labels (B, S), which don't count at padding.
        """
        logits = self._scores(layout.unpad(hidden_states))
        if labels is None:
            return None, layout.pad(logits)
        check_shape("labels", labels, layout.shape, "Give one label per token, -100 where it doesn't count.")
        if layout.mask is not None:
            labels = labels.to(layout.mask.device).masked_fill(~layout.mask, -100)
        loss = cross_entropy(logits.flatten(0, 1), layout.unpad(labels).flatten(), count)
        return loss, layout.pad(logits)


class PosEncClassificationHead(nn.Module):
    """Perhaps a dense layer and a norm; dropout and a linear layer on pooled sequences: (N, D) -> (N, outputs).

    One module, under the name `classifier`: PEFT saves what has that name, and nothing beside it.
    """

    def __init__(self, config: PosEncConfig, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if config.classifier_hidden_act else None
        self.activation = ACT2FN[config.classifier_hidden_act] if config.classifier_hidden_act else None
        self.layer_norm = make_norm(config, config.hidden_size) if config.classifier_norm else nn.Identity()
        self.dropout = make_head_dropout(config)
        self.out_proj = nn.Linear(config.hidden_size, outputs)

    def forward(self, pooled: Tensor) -> Tensor:
        """Scores each sequence."""
        if self.dense is not None and self.activation is not None:
            pooled = self.layer_norm(self.activation(self.dense(pooled)))
        return self.out_proj(self.dropout(pooled))


class PosEncPooledHead(PosEncHead):
    """The encoder with a classification head on the pooled sequence."""

    def __init__(self, config: PosEncConfig, outputs: int) -> None:
        super().__init__(config)
        self.num_labels = outputs
        self.model = PosEncModel(config)
        self.classifier = PosEncClassificationHead(config, outputs)
        self.post_init()

    def _outputs(self, hidden_states: Tensor, layout: TokenLayout, labels: Tensor | None, count: Any) -> Outputs:
        """No loss, and the classifier's scores of each sequence (N, outputs)."""
        return None, self.classifier(layout.pool(hidden_states, self.config.classifier_pooling))


class PosEncForSequenceClassification(PosEncPooledHead):
    """The encoder with a classifier (or a regressor) on each pooled sequence."""

    output_class = modeling_outputs.SequenceClassifierOutput

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, cast(int, config.num_labels))

    def _outputs(self, hidden_states: Tensor, layout: TokenLayout, labels: Tensor | None, count: Any) -> Outputs:
        """Classifies each sequence.

        Args:
            hidden_states, layout, count: see `PosEncHead`.
            labels (Tensor): (B,) whole numbers: one of C classes; (B, C) real numbers: several of C classes at once;
                (B,) or (B, C) real numbers with `problem_type="regression"` or one label. For packed rows, one label
                per sequence (N, ...).

        Returns:
            loss, and logits (B, C), or (N, C) for rows that hold N sequences in all; of a regression in the units of
            the data.
        """
        _, logits = super()._outputs(hidden_states, layout, None, count)
        if self.config.problem_type == "regression":  # in float32: bfloat16 has no number between 2000 and 2008
            logits = logits.to(accumulation_dtype(logits)) * self.config.label_scale + self.config.label_mean
        loss = None if labels is None else sequence_classification_loss(logits, labels, self.config, count)
        return loss, logits


class PosEncForMultipleChoice(PosEncPooledHead):
    """The encoder with one score per choice, softmax over the choices.

    Inputs have an axis of choices, (B, C, S); `labels` (B,) hold the number of the right one; logits are (B, C).
    """

    output_class = modeling_outputs.MultipleChoiceModelOutput

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config, 1)

    def _encode(self, **inputs: Any) -> tuple[Tensor, TokenLayout, dict[str, Any]]:
        """Runs the encoder with a row for each choice: hidden states (B, C, S, D).

        Raises:
            ValueError: the input has no axis of choices, or is packed.
        """
        x, axes = (inputs["inputs_embeds"], 4) if inputs["input_ids"] is None else (inputs["input_ids"], 3)
        if x is None or x.dim() != axes:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"Multiple choice takes input_ids (B, C, S) or inputs_embeds (B, C, S, D), not {shape}.")
        flat = {name: t.flatten(0, 1) if isinstance(t, Tensor) and t.dim() > 2 else t for name, t in inputs.items()}
        hidden_states, layout, optional_outputs = super()._encode(**flat)
        if layout.packed:
            raise ValueError("Multiple choice can't take packed rows: give each choice a row of its own.")
        return hidden_states.unflatten(0, x.shape[:2]), layout, optional_outputs

    def _outputs(self, hidden_states: Tensor, layout: TokenLayout, labels: Tensor | None, count: Any) -> Outputs:
        """Scores the choices: loss, and logits (B, C)."""
        _, scores = super()._outputs(hidden_states.flatten(0, 1), layout, None, count)
        logits = scores.view(hidden_states.shape[:2])
        return None if labels is None else cross_entropy(logits, labels, count), logits


class PosEncLMHead(nn.Module):
    """A dense layer, a norm and the decoder: hidden states (..., D) -> logits (..., V)."""

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = ACT2FN[config.hidden_act]
        self.layer_norm = make_norm(config, width)
        self.decoder = nn.Linear(width, config.vocab_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Predicts the token at each place."""
        hidden_states = self.activation(kernels.apply_linear(self.dense, hidden_states))
        return kernels.apply_linear(self.decoder, self.layer_norm(hidden_states))


class PosEncForMaskedLM(PosEncHead):
    """The encoder with BERT's masked-language-model head; the decoder shares the token embedding."""

    output_class = modeling_outputs.MaskedLMOutput
    _tied_weights_keys = {"lm_head.decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        self.model = PosEncModel(config)
        self.lm_head = PosEncLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The decoder."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replaces the decoder."""
        self.lm_head.decoder = new_embeddings  # type: ignore[assignment]

    def _scores(self, hidden_states: Tensor) -> Tensor:
        return self.lm_head(hidden_states)


class PosEncForTokenClassification(PosEncHead):
    """The encoder with a classifier on each token."""

    output_class = modeling_outputs.TokenClassifierOutput

    def __init__(self, config: PosEncConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = PosEncModel(config)
        self.dropout = make_head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    def _scores(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.dropout(hidden_states))


class PosEncForQuestionAnswering(PosEncPreTrainedModel):
    """The encoder with two scores per token: for the start and for the end of the answer."""

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
        **kwargs: Any,
    ) -> modeling_outputs.QuestionAnsweringModelOutput:
        """Scores the start and end of the answer; the arguments are those of `PosEncModel`, and the right ones.

        Args:
            start_positions (Tensor): (B,), place of the answer's first token in its row; past the end: no answer. For
                packed rows: (N,), place in its sequence.
            end_positions (Tensor): the same of its last token.

        Returns:
            QuestionAnsweringModelOutput: `start_logits` and `end_logits` (B, S), as low as can be at padding; for
            packed rows (N, L), one row per sequence; `loss`, the mean of the two cross-entropies.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds, "seq_idx": seq_idx}
        hidden_states, layout, optional_outputs = self._encode(**inputs, cu_seq_lens_q=cu_seq_lens_q, **kwargs)
        scores = self.qa_outputs(hidden_states)
        scores = layout.by_sequence(scores, fill=torch.finfo(scores.dtype).min)
        start_logits, end_logits = (t.squeeze(-1).contiguous() for t in scores.split(1, dim=-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, target in ((start_logits, start_positions), (end_logits, end_positions)):
                target = whole_numbers(target.view(-1, 1), logits.device)
                # Past the end of the row, or at its padding: the answer was truncated away, and is ignored.
                outside = (target < 0) | (target >= logits.shape[-1])
                outside |= logits.gather(-1, target.masked_fill(outside, 0)) <= torch.finfo(logits.dtype).min
                losses.append(cross_entropy(logits, target.masked_fill(outside, -100).squeeze(-1), None))
            loss = (losses[0] + losses[1]) / 2
        scores = {"start_logits": start_logits, "end_logits": end_logits}
        return modeling_outputs.QuestionAnsweringModelOutput(loss=loss, **scores, **optional_outputs)
