"""Higher learning rates for parameters that the encoder's learning rate would hardly change."""

from typing import Any, cast

import torch
from torch import nn

_DONE = "has_position_rates"


def scale_position_learning_rates(
    optimizer: torch.optim.Optimizer, model: nn.Module, position_rate: float | None = None, word_rate: float = 1.0
) -> None:
    """Multiplies the learning rate of each scheme's parameters by its `position_rate`, in place.

    AdamW changes a number by about the learning rate in a step. That is much for an entry of a matrix, and next to
    nothing for a bias on attention logits or the logarithm of a slope, whose size is about 1. These parameters get no
    weight decay either: 0 isn't a neutral value for them.

    Args:
        optimizer: of the model, which hasn't taken a step and has no schedule yet.
        model: any PosEnc model.
        position_rate: replaces that of all schemes.
        word_rate: the same for the word embeddings, whose weight decay stays.

    Raises:
        ValueError: the optimizer has been used, has a schedule, or went through here before; or a rate is no number
            from 0.
    """
    for name, value in (("position_rate", position_rate), ("word_rate", word_rate)):
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value!r} is out of range. Give 0 or a positive number.")
    # Some have a state when they are built (Adagrad, APOLLO): of a step that was taken, all but SGD count.
    is_used = any(state.get("step") or "momentum_buffer" in state for state in optimizer.state.values())
    if is_used or any({"initial_lr", _DONE} & group.keys() for group in optimizer.param_groups):
        raise ValueError("The optimizer is in use, or has these rates. Call this once, before any schedule is made.")
    wanted = {  # rate, and whether it decays
        parameter: (rate_of_module if position_rate is None else position_rate, False)
        for module in model.modules()  # parts after the whole that they are parts of
        if (rate_of_module := getattr(module, "position_rate", None)) is not None
        for parameter in module.parameters()
    }
    if word_rate != 1.0:
        wanted[cast(Any, model).get_input_embeddings().weight] = (word_rate, True)
    for group in list(optimizer.param_groups):
        group[_DONE] = True
        present = {wanted[parameter] for parameter in group["params"] if parameter in wanted}
        for times, decays in sorted(rate for rate in present if rate[0] != 1.0):
            faster = [parameter for parameter in group["params"] if wanted.get(parameter) == (times, decays)]
            group["params"] = [parameter for parameter in group["params"] if wanted.get(parameter) != (times, decays)]
            decay = group["weight_decay"] if decays else 0.0
            optimizer.param_groups.append({**group, "params": faster, "lr": group["lr"] * times, "weight_decay": decay})
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
