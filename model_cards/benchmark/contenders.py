"""What is measured: schemes of ours and encoders of transformers, their variants, and what a turn does with a batch."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_posenc.errors import UserError
from hf_posenc.kernels import apply_linear, switch

from .modernbert import UnpaddedModernBert
from .work import VOCAB_SIZE, Step

SIZES = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Dimensions of the encoders; MiniLM's are those of all-MiniLM-L6-v2, base's those of bert-base."""

PEERS = ("bert", "roformer", "modernbert", "nomic_bert", "deberta-v2", "esm")
"""Encoders of transformers, with their default dropouts; ESM-2 has none."""
_DEBERTA_V3 = {"relative_attention": True, "position_buckets": 256, "pos_att_type": "p2c|c2p", "share_att_key": True}
_DEBERTA_V3 |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
"""Fields of the published versions 3."""
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ESM = {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 103, **_NO_DROPOUT}
"""Fields of the published ESM-2, with the number that [MASK] has here."""
_LIKE_ESM = {"norm_position": "pre_only", "token_dropout": 103, "type_vocab_size": 0, **_NO_DROPOUT}
_LIKE_ESM |= {"classifier_pooling": "cls", "classifier_hidden_act": "tanh"}

VARIANTS = {
    "equal_dropout": "of bert: no attention dropout, as ours",
    "esm2": "of rope: what ESM-2 becomes by conversion",
    "v3": "of deberta: with the arguments of DeBERTa-v3",
    "varlen": "of modernbert: real tokens alone, in PyTorch's varlen attention; needs a GPU and half precision",
    "compiled": "each layer compiled, for any number of tokens",
    "frozen_words": "of a scheme: its word embeddings aren't trained",
    "plain": "of a scheme: PyTorch's own operations alone, as in a checkpoint without this package",
}
"""What may follow a contender's name after a colon: `rope:plain`."""

MODES = ("inference", "training", "step")
"""Forward; forward and backward; those with clipped gradients and fused AdamW, as the Trainer does it."""


def build_model(
    name: str, size: str, max_positions: int = 512, device: str = "cpu", *, dropout: bool = True
) -> torch.nn.Module:
    """A classifier of two labels with random weights: a scheme of ours, or one of `PEERS`, and its `VARIANTS`.

    Args:
        name: of the contender.
        size: see `SIZES`.
        max_positions: the longest input.
        device: where to put it.
        dropout: False: none anywhere. True: each has its own defaults.

    Raises:
        UserError: there is no such variant.
    """
    torch.manual_seed(0)
    encoder, *variants = name.split(":")
    if not set(variants) <= set(VARIANTS):
        raise UserError(f"{name!r} is unknown. Variants are {', '.join(VARIANTS)}.")
    options: dict[str, Any] = {**SIZES[size], "vocab_size": VOCAB_SIZE, "max_position_embeddings": max_positions}
    options |= {"num_labels": 2, "pad_token_id": 0}
    if encoder not in PEERS:
        options["position_embedding_type"] = encoder
    if encoder == "deberta-v2":
        options |= _DEBERTA_V3
    if encoder == "esm":
        options |= _ESM
    if "esm2" in variants:
        options |= _LIKE_ESM
    if "v3" in variants:
        arguments = {"max_distance": 512, "position_buckets": 256, "share_att_key": True, "norm_eps": 1e-7}
        options["position_embedding_kwargs"] = arguments
    if "equal_dropout" in variants:
        options["attention_probs_dropout_prob"] = 0.0
    config = AutoConfig.for_model(encoder if encoder in PEERS else "posenc", **options)
    if not dropout:
        for field, value in config.to_dict().items():
            if "dropout" in field and type(value) in (int, float):
                setattr(config, field, 0.0)
    model = AutoModelForSequenceClassification.from_config(config)
    if "frozen_words" in variants:
        model.get_input_embeddings().requires_grad_(False)
    if "compiled" in variants:
        for layer in encoder_layers(model):
            layer.compile(dynamic=True)
    return (UnpaddedModernBert(model) if "varlen" in variants else model).to(device)


def make_step(
    model: torch.nn.Module, mode: str, dtype: torch.dtype = torch.float32, *, with_kernels: bool = True
) -> Step:
    """What one turn does with a batch.

    Args:
        model: the contender's.
        mode: see `MODES`.
        dtype: the weights' in inference, autocast's in training.
        with_kernels: False: without those of this package.

    Raises:
        UserError: there is no such mode.
    """
    if mode not in MODES:
        raise UserError(f"mode={mode!r} is unknown. Choose one of {', '.join(MODES)}.")
    kind = next(model.parameters()).device.type
    model.train(mode != "inference")
    if mode == "inference":
        model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if mode == "step" else None

    def step(batch: dict[str, Tensor]) -> None:
        with contextlib.nullcontext() if with_kernels else _without_kernels():
            if mode == "inference":
                with torch.no_grad():
                    model(**batch)
                return
            with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
                loss = model(**batch).loss
            loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


@contextlib.contextmanager
def _without_kernels() -> Iterator[None]:
    enabled = switch._enabled
    switch.set_enabled(False)
    try:
        yield
    finally:
        switch.set_enabled(enabled)


def encoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The list of modules that holds most of a model."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(stacks, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def linear_shapes(model: torch.nn.Module) -> tuple[tuple[int, int], ...]:
    """(in, out) of each linear layer that an encoder applies to every token, gated ones included."""
    linear = (module for module in encoder_layers(model).modules() if isinstance(module, torch.nn.Linear))
    return tuple((module.in_features, module.out_features) for module in linear)


class LinearLayers(torch.nn.Module):
    """An encoder's linear layers alone, on a batch's real tokens: what its matrix products themselves take."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], most_tokens: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*shape) for shape in shapes])
        widths = sorted({width for width, _ in shapes})
        self.inputs = torch.nn.ParameterDict({str(width): torch.randn(most_tokens, width) for width in widths})

    def forward(self, **batch: Tensor) -> Any:
        """Each layer once; a loss that reaches all of them and their inputs."""
        tokens = int(batch["attention_mask"].sum())
        inputs = {n: rows[:tokens].detach().requires_grad_(self.training) for n, rows in self.inputs.items()}
        outs = [apply_linear(layer, inputs[str(layer.in_features)]) for layer in self.layers]
        return SimpleNamespace(loss=sum(out[0, 0] for out in outs))
