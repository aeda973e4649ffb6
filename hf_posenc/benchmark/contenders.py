"""What is measured: schemes of ours and encoders of transformers, their variants, and what a turn does with a batch."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_posenc.errors import UserError
from hf_posenc.kernels import apply_linear, switch
from hf_posenc.model.modeling_posenc import PosEncForSequenceClassification
from hf_posenc.model.package_config import PosEncConfig

from .modernbert import UnpaddedModernBert
from .work import VOCAB_SIZE

SIZES = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Dimensions of the encoders; MiniLM's are those of all-MiniLM-L6-v2, base's those of bert-base."""

PEERS = {"bert": "Bert", "roformer": "RoFormer", "modernbert": "ModernBert", "nomic_bert": "NomicBert"}
"""Encoders of transformers, with their default dropouts; and what the names of their classes begin with."""

BACKENDS = ("eager", "sdpa", "flex_attention", "flash_attention_2")

VARIANTS = {
    **dict.fromkeys(BACKENDS, "of any contender: how attention runs"),
    "pure": "of any contender: weights in its dtype in training too, without autocast",
    "equal_dropout": "of a peer: no attention dropout, as ours",
    "varlen": "of modernbert: real tokens alone, in PyTorch's varlen attention; needs a GPU and half precision",
    "global": "of modernbert: every layer attends to all tokens",
    "frozen_words": "of a scheme: its word embeddings aren't trained",
    "plain": "of a scheme: PyTorch's own operations alone, as in a checkpoint without this package",
}
"""What may follow a contender's name after a colon, as often as there are differences: `modernbert:varlen:global`."""

MODES = ("inference", "training", "step")
"""Forward; forward and backward; those with clipped gradients and fused AdamW, as the Trainer does it."""


def variants_of(name: str) -> tuple[str, list[str]]:
    """The scheme or peer, and its variants.

    Raises:
        UserError: it has no such variant.
    """
    encoder, *variants = name.split(":")
    kinds = {"any contender", "a peer" if encoder in PEERS else "a scheme", encoder}
    known = [variant for variant, about in VARIANTS.items() if about.split(":")[0].removeprefix("of ") in kinds]
    if not set(variants) <= set(known):
        choices = ", ".join(f"{encoder}:{variant}" for variant in known)
        raise UserError(f"{name!r} is unknown. Variants are {choices}.")
    return encoder, variants


def build_model(
    name: str, size: str, max_positions: int = 512, device: torch.device | str = "cpu", *, dropout: bool = True
) -> torch.nn.Module:
    """A classifier of two labels with random weights: a scheme of ours, or one of `PEERS`, and its `VARIANTS`.

    Args:
        name: of the contender.
        size: see `SIZES`.
        max_positions: the longest input.
        device: where to put it.
        dropout: False: none anywhere. True: each has its own defaults.

    Raises:
        UserError: the size or the name is unknown.
    """
    if size not in SIZES:
        raise UserError(f"size={size!r} is unknown. Choose one of {', '.join(SIZES)}.")
    torch.manual_seed(0)
    encoder, variants = variants_of(name)
    options: dict[str, Any] = {**SIZES[size], "vocab_size": VOCAB_SIZE, "max_position_embeddings": max_positions}
    options["num_labels"] = 2
    backends = [variant for variant in variants if variant in BACKENDS]
    if backends:
        options["attn_implementation"] = backends[-1]
    if "equal_dropout" in variants:
        options["attention_dropout" if encoder == "modernbert" else "attention_probs_dropout_prob"] = 0.0
    if encoder == "modernbert":
        for number, token in enumerate(("pad", "bos", "eos", "cls", "sep")):  # its own lie past this vocabulary
            options[f"{token}_token_id"] = number
        if "global" in variants:
            options["layer_types"] = ["full_attention"] * options["num_hidden_layers"]
    kind: Any
    config: Any
    if encoder in PEERS:
        config = getattr(transformers, f"{PEERS[encoder]}Config")(**options)
        kind = getattr(transformers, f"{PEERS[encoder]}ForSequenceClassification")
    else:
        config = PosEncConfig(**options, position_embedding_type=encoder)
        kind = PosEncForSequenceClassification
    if not dropout:
        for field, value in config.to_dict().items():
            if "dropout" in field and isinstance(value, int | float):
                setattr(config, field, 0.0)
    model = kind(config)
    if "frozen_words" in variants:
        model.get_input_embeddings().requires_grad_(False)
    return (UnpaddedModernBert(model) if "varlen" in variants else model).to(device)


def make_step(
    model: torch.nn.Module, mode: str, dtype: torch.dtype = torch.float32, variants: list[str] | tuple[str, ...] = ()
) -> Callable[[dict[str, Tensor]], None]:
    """What one turn does with a batch: see `MODES`.

    Args:
        model: the contender's.
        mode: see `MODES`.
        dtype: the weights' in inference, autocast's in training.
        variants: with `pure` it is the weights' in training too; with `plain` this package's kernels are off.
    """
    if mode not in MODES:
        raise UserError(f"mode={mode!r} is unknown. Choose one of {', '.join(MODES)}.")
    kind = next(model.parameters()).device.type
    weights_too = mode == "inference" or "pure" in variants
    in_float32 = weights_too or dtype == torch.float32
    model.train(mode != "inference")
    if weights_too:
        model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if mode == "step" else None

    def step(batch: dict[str, Tensor]) -> None:
        if mode == "inference":
            with torch.no_grad():
                model(**batch)
            return
        with torch.autocast(kind, dtype, enabled=not in_float32):
            loss = model(**batch).loss
        loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return _without_kernels(step) if "plain" in variants else step


def _without_kernels(step: Callable[[dict[str, Tensor]], None]) -> Callable[[dict[str, Tensor]], None]:
    def plain_step(batch: dict[str, Tensor]) -> None:
        enabled = switch._enabled
        switch.set_enabled(False)
        try:
            step(batch)
        finally:
            switch.set_enabled(enabled)

    return plain_step


def linear_shapes(model: torch.nn.Module) -> tuple[tuple[int, int], ...]:
    """(in, out) of each linear layer that an encoder applies to every token, gated ones included."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    stack = max(stacks, key=lambda layers: sum(p.numel() for p in layers.parameters()))  # the encoder's layers
    linear = (module for module in stack.modules() if isinstance(module, torch.nn.Linear))
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


def count_flops(model: torch.nn.Module, batch: dict[str, Tensor], mode: str) -> float:
    """Floating-point operations of the encoder's matrix products on the real tokens.

    Forward: 2 T sum(in out) of the linear layers, and 4 D in each layer for each pair of tokens that attend to each
    other: of n tokens n^2, or with a window of w to each side n (2 w + 1) - w (w + 1). Backward: twice that.
    """
    config: Any = model.config
    lengths = batch["attention_mask"].sum(-1).tolist()
    flops = 2.0 * sum(lengths) * sum(width * inner for width, inner in linear_shapes(model))
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    for kind in kinds:
        window = config.sliding_window if kind == "sliding_attention" else max(lengths)
        flops += 4.0 * config.hidden_size * sum(_pairs(length, window) for length in lengths)
    return flops * (1 if mode == "inference" else 3)


def _pairs(length: int, window: int) -> int:
    return length**2 if window >= length else length * (2 * window + 1) - window * (window + 1)
