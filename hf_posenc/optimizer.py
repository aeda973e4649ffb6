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
    nothing for a bias on attention logits or the logarithm of a slope, whose size is about 1. What has a rate of its
    own gets no weight decay either, whatever `position_rate` is: 0 isn't a neutral value for it.

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
    if _is_used(optimizer):
        raise ValueError("The optimizer is in use, or has these rates. Call this once, before any schedule is made.")
    rates = _rates_of_positions(model, position_rate)
    if word_rate != 1.0:
        rates[cast(Any, model).get_input_embeddings().weight] = (word_rate, True)
    faster = [part for group in optimizer.param_groups for part in _take_out(group, rates)]
    optimizer.param_groups[:] = [group for group in (*optimizer.param_groups, *faster) if group["params"]]


def _is_used(optimizer: torch.optim.Optimizer) -> bool:
    """True after a step, with a schedule, or with these rates."""
    if any({"initial_lr", _DONE} & group.keys() for group in optimizer.param_groups):
        return True
    # Some have a state when they are built (Adagrad, APOLLO): of a step that was taken, all but SGD count.
    return any(state.get("step") or "momentum_buffer" in state for state in optimizer.state.values())


def _rates_of_positions(model: nn.Module, position_rate: float | None) -> dict[Any, tuple[float, bool]]:
    """The rate of each parameter of a scheme, and whether it decays."""
    rates: dict[Any, tuple[float, bool]] = {}
    for module in model.modules():  # parts after the whole that they are parts of
        own_rate = getattr(module, "position_rate", None)
        if own_rate is not None:
            rate = own_rate if position_rate is None else position_rate
            rates.update(dict.fromkeys(module.parameters(), (rate, own_rate == 1.0)))
    return rates


def _take_out(group: dict[str, Any], rates: dict[Any, tuple[float, bool]]) -> list[dict[str, Any]]:
    """Moves the parameters with rates of their own out of a group, to groups by rate and decay, which are returned."""
    group[_DONE] = True
    parts: dict[tuple[float, bool], list[Any]] = {}
    for parameter in group["params"]:
        parts.setdefault(rates.get(parameter, (1.0, True)), []).append(parameter)
    group["params"] = parts.pop((1.0, True), [])
    return [
        {
            **group,
            "params": parts[times, decays],
            "lr": group["lr"] * times,
            "weight_decay": group["weight_decay"] if decays else 0.0,
        }
        for times, decays in sorted(parts)
    ]
