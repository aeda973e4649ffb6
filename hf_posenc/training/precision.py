"""Which precision a machine computes fastest in, and numbers that are none."""

from collections.abc import Iterable

import torch


def best_dtype(device: torch.device | str | None = None) -> torch.dtype:
    """bfloat16 for mixed precision where the hardware multiplies it: AVX512-BF16, AMX, or a GPU that has it.

    Elsewhere float32: emulated, bfloat16 is slower.

    Args:
        device: where the model runs. None: a GPU if there is one.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.device(device).type
    if kind == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        supported = kind == "cpu" and any(getattr(torch.cpu, name, bool)() for name in asked)
    return torch.bfloat16 if supported else torch.float32


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of those that hold NaN or infinity."""
    return [
        name for name, value in tensors if value.is_floating_point() and not bool(value.detach().isfinite().all().cpu())
    ]
