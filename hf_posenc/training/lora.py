"""`--lora`: low-rank changes of trained weights (Hu et al. 2021, arXiv 2106.09685), through PEFT.

Saved weights are merged, during training too: an ordinary checkpoint.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError

_TARGETS = ["query", "key", "value", "dense"]
_MARK = ".base_layer."


def add_lora(model: PreTrainedModel, rank: int) -> None:
    """Adds trainable changes of that rank, and freezes all else but the positional scheme and the classifier.

    Raises:
        UserError: PEFT isn't installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError("--lora needs PEFT, which isn't installed: pip install 'hf-posenc[lora]'.")
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=_TARGETS,
        # The head and the scheme's own matrices (tupe has some of these names) are trained whole.
        exclude_modules=r"(.*\.)?position\..*|classifier\..*",
    )
    inject_adapter_in_model(config, model)
    model.register_load_state_dict_pre_hook(_merge_first)
    for name, parameter in model.named_parameters():
        if name.startswith("classifier.") or ".position." in name:
            parameter.requires_grad_(True)


def _merge_first(model: nn.Module, weights: dict[str, Tensor], *_: Any) -> None:
    """Merges the changes before the weights of a checkpoint are loaded, which have none."""
    if not any(".lora_" in name for name in weights):
        merge(model)


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "get_delta_weight"))


def has_lora(model: nn.Module) -> bool:
    """Whether a model has unmerged changes."""
    return any(True for _ in _adapted(model))


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The merged weights under the ordinary model's names; `model` isn't changed."""
    weights = {name: value for name, value in model.state_dict().items() if ".lora_" not in name}
    for name, module in _adapted(model):
        own = f"{name}{_MARK}weight"
        weights[own] = weights[own] + module.get_delta_weight("default").to(weights[own])
    return {name.replace(_MARK, "."): value for name, value in weights.items()}


def merge(model: nn.Module) -> None:
    """Merges the changes into the model."""
    adapted = list(_adapted(model))
    for name, module in adapted:
        parent, _, leaf = name.rpartition(".")
        module.merge()
        setattr(model.get_submodule(parent), leaf, module.get_base_layer())
    if adapted:
        model.requires_grad_(True)
