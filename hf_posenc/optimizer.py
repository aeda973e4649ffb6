"""Learning rates of their own for parameters that a body's learning rate would hardly move."""

import torch
from torch import nn

_DONE = "has_position_rates"


def speed_up_positions(optimizer: torch.optim.Optimizer, model: nn.Module, factor: float | None = None) -> None:
    """Multiplies the learning rate of each scheme's parameters by its `learning_rate_factor`, in place.

    AdamW moves a number by about the learning rate in a step. That is a lot for an entry of a matrix, and nothing for a
    bias on attention logits or the logarithm of a slope, which are of size 1 and have to move by as much. They don't
    decay to 0 either, which is no neutral value for them.

    Args:
        optimizer: of the model, without any state or schedule yet.
        model: any PosEnc model.
        factor: this one instead, for the parameters of every scheme.

    Raises:
        ValueError: the optimizer has been used, has a schedule, or went through here before; or `factor` is no number
            from 0.
    """
    if factor is not None and not 0 <= factor < float("inf"):
        raise ValueError(f"factor={factor!r} is out of range. Give 0 or a positive number, or None.")
    if optimizer.state or any({"initial_lr", _DONE} & group.keys() for group in optimizer.param_groups):
        raise ValueError("The optimizer is in use, or has these rates. Call this once, before any schedule is made.")
    factors = {
        parameter: own if factor is None else factor
        for module in model.modules()  # parts after the whole that they are parts of
        if (own := getattr(module, "learning_rate_factor", None)) is not None
        for parameter in module.parameters()
    }
    for group in list(optimizer.param_groups):
        group[_DONE] = True
        for times in sorted({factors.get(parameter, 1.0) for parameter in group["params"]} - {1.0}):
            faster = [parameter for parameter in group["params"] if factors.get(parameter) == times]
            group["params"] = [parameter for parameter in group["params"] if factors.get(parameter) != times]
            optimizer.param_groups.append({**group, "params": faster, "lr": group["lr"] * times, "weight_decay": 0.0})
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
