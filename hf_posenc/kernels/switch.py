"""Switch of the kernels, and the test for tensors that they take."""

import os

import torch
from torch import Tensor
from torch.autograd import forward_ad

_enabled = os.environ.get("HF_POSENC_KERNELS", "1") != "0"


def set_enabled(enabled: bool) -> None:
    """Turns the kernels on or off in this process: for debugging, and to compare with PyTorch's own."""
    global _enabled
    _enabled = enabled


def is_enabled() -> bool:
    """True unless the kernels are turned off."""
    return _enabled


def takes(x: Tensor) -> bool:
    """True where the kernels are on, and `x` is an ordinary tensor on the CPU.

    So not in a compiler, tracing, a function transform or a dispatch mode; nor where this PyTorch can't say: its own
    operations work in all of them.
    """
    if not _enabled or x.device.type != "cpu" or type(x) is not Tensor:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    try:
        transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        return not transformed and not torch._C._len_torch_dispatch_stack()
    except AttributeError:
        return False
