"""Where a step's time goes, by PyTorch's profiler."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .work import on_gpu

PARTS = {
    "linear layers": ("OneDNNLinear", "_linear_pointwise", "aten::linear", "AddmmBackward", "MmBackward"),
    "attention": (
        *("BiasedAttention", "scaled_dot_product", "ScaledDotProduct", "oftmax", "aten::bmm", "aten::matmul"),
        *("BmmBackward", "varlen_attn", "flash_attn", "flash_fwd", "flash_bwd", "flash::", "fmha", "flex_attention"),
        *("FlexAttention", "triton_tem_"),  # a Triton template: flex_attention is the only one that runs here
    ),
    "rotation": ("addcmul", "Addcmul"),
    "dropout": ("Dropout", "dropout", "bernoulli"),
    "layer norms": ("layer_norm", "LayerNorm"),
    "activation": ("gelu", "Gelu"),
    "embeddings": ("embedding", "Embedding"),
    "optimizer": ("Optimizer.step", "_foreach_norm", "clip", "linalg_vector_norm", "_foreach_mul"),
}
"""Parts of a step, and what the names of their operations or kernels hold; the outermost operation that fits one
decides, and of a kernel whose operations fit none its own name."""


def profile_parts(step: Callable[[Any], Any], batch: Any, repeats: int = 3) -> dict[str, float]:
    """Milliseconds of a step by what they go into: `PARTS`, and `other` (residuals, moving tokens, Python between).

    On a GPU the parts are the time of their kernels. Measured with PyTorch's profiler, which slows small operations
    down.
    """
    step(batch)
    on_cuda = on_gpu(batch)
    activities = {torch.profiler.ProfilerActivity.CPU}
    if on_cuda:
        activities.add(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        started = time.perf_counter()
        for _ in range(repeats):
            step(batch)
        if on_cuda:
            torch.cuda.synchronize()
        total = (time.perf_counter() - started) * 1000 / repeats
    spent = {part: value / repeats for part, value in sum_parts(profiler.events() or (), on_cuda).items()}
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {part: round(value, 2) for part, value in spent.items()}


def sum_parts(events: Iterable[Any], on_cuda: bool) -> dict[str, float]:
    """Milliseconds of each of `PARTS` in a profiler's events.

    Each stretch of time counts once: on a CPU an operation's own, without those it called; on a GPU a kernel's, found
    at the operation that launched it. The profiler lists kernels a second time as events of the device, beside the
    ranges of annotations, which hold kernels: those events have none of their own.
    """
    spent = dict.fromkeys(PARTS, 0.0)
    for event in events:
        own = ((k.name, k.duration) for k in event.kernels) if on_cuda else [("", event.self_cpu_time_total)]
        for kernel, microseconds in own:
            names = [*_callers(event), kernel]
            part = next((p for name in names for p, words in PARTS.items() if any(w in name for w in words)), None)
            if part is not None:
                spent[part] += microseconds / 1000
    return spent


def _callers(event: Any) -> list[str]:
    """The names of an operation and of those that called it, the outermost first."""
    names: list[str] = []
    while event is not None:
        names.insert(0, event.name)
        event = event.cpu_parent
    return names
