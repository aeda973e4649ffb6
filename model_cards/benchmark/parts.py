"""Where a step's time goes on a CPU, by PyTorch's profiler."""

import time
from typing import Any

import torch

from .work import Step

PARTS = {
    "linear layers": ("OneDNNLinear", "_linear_pointwise", "aten::linear", "AddmmBackward", "MmBackward"),
    "attention": (
        *("BiasedAttention", "scaled_dot_product", "ScaledDotProduct", "oftmax", "aten::bmm", "aten::matmul"),
        "BmmBackward",
    ),
    "rotation": ("addcmul", "Addcmul"),
    "dropout": ("Dropout", "dropout", "bernoulli"),
    "layer norms": ("layer_norm", "LayerNorm"),
    "activation": ("gelu", "Gelu"),
    "embeddings": ("embedding", "Embedding"),
    "optimizer": ("Optimizer.step", "_foreach_norm", "clip", "linalg_vector_norm", "_foreach_mul"),
}
"""Parts of a step, and what the names of their operations hold; the outermost operation that fits one decides."""


def profile_parts(step: Step, batch: dict[str, torch.Tensor], repeats: int = 3) -> dict[str, float]:
    """Milliseconds of a step by what they go into: `PARTS`, and `other` (residuals, moving tokens, Python between).

    Measured with PyTorch's profiler, which slows small operations down. Each stretch of time counts once: an
    operation's own, without those it called.
    """
    step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        for _ in range(repeats):
            step(batch)
        total = time.perf_counter() - started
    spent = dict.fromkeys(PARTS, 0.0)
    for event in profiler.events() or ():
        names = _callers(event)
        part = next((p for name in names for p, words in PARTS.items() if any(w in name for w in words)), None)
        if part is not None:
            spent[part] += event.self_cpu_time_total / 1e6
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {part: round(seconds * 1000 / repeats, 2) for part, seconds in spent.items()}


def _callers(event: Any) -> list[str]:
    """The names of an operation and of those that called it, the outermost first."""
    names: list[str] = []
    while event is not None:
        names.insert(0, event.name)
        event = event.cpu_parent
    return names
