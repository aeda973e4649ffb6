"""Checks of numbers, and what a tensor is: its dtype, whether it is traced. Your own scheme may import it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap

Check = tuple[Callable[[Any], bool], str]
"""Whether a value fits, and the words that follow `name=value` in the error if it doesn't."""


def _is_number(least: float, most: float, kind: Any = (int, float)) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most


def whole(least: int = 1, most: int = 2**24) -> Check:
    """A whole number in a range, at most by default the last position that float32, which computes angles, holds."""
    return _is_number(least, most, Integral), f"is out of range. It must be a whole number from {least} to {most}."


def positive(hint: str = "", least: float = 1e-30, most: float = 1e30) -> Check:
    """A positive number from `least` to `most`, by default what float32 can compute with; the error says `hint`."""
    words = f"is out of range. It must be a positive number{hint} ({least:g} to {most:g})."
    return _is_number(least, most), words


def one_of(*choices: str) -> Check:
    """One of some words."""
    return choices.__contains__, f"is unknown. Choose one of {', '.join(choices)}."


PROBABILITY: Check = (_is_number(0, 1), "is out of range. A probability lies between 0 and 1.")


def require(name: str, value: Any, check: Check) -> Any:
    """The value, if it fits; else a ValueError that names it and says what does."""
    if not check[0](value):
        raise ValueError(f"{name}={value!r:.80} {check[1]}")
    return value


_constants: dict[Any, Tensor] = {}


def constant(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """These numbers as float32. On a GPU they are kept: a copy makes the host wait for all that the GPU has to do."""
    made = None if tracing() else _constants.get((numbers, device))
    if made is None:
        with nullcontext() if tracing() else torch.inference_mode(False):  # for a later training too
            made = torch.tensor(numbers, dtype=torch.float32, device=device)
        if device.type == "cuda" and type(made) is Tensor and not tracing() and not is_transformed(made):
            _constants[numbers, device] = made
    return made


def outside_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Turns autocast off on a device: what is computed from positions needs float32."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def tracing() -> bool:
    """Tells whether the code is being compiled or exported."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed(x: Tensor) -> bool:
    """Tells whether a transform of `torch.func` (grad, jvp, vmap) runs on x; fused kernels have no such rules."""
    return not torch.compiler.is_compiling() and debug_unwrap(x) is not x


def have_fixed_shapes(*tensors: Any) -> bool:
    """Tells whether shapes must not depend on what these tensors hold: in a graph, or under `torch.func`."""
    return tracing() or any(is_transformed(x) for x in tensors if isinstance(x, Tensor))


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The dtype to accumulate in: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def linear_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which linear layers give their results."""
    kind = x.device.type
    if x.dtype == torch.float64 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return x.dtype  # autocast leaves float64 alone
    return torch.get_autocast_dtype(kind)
