"""Dropout by 16 random bits for each number, where PyTorch draws 64: a tenth of a training step on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn

from .switch import takes

STEPS = 2**16
"""Probabilities are multiples of 1 / STEPS; what is kept is scaled by the one used, as nearly as x's dtype can."""


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = min(round(p * STEPS), STEPS - 1)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        drawn = words.view(torch.int16)[: x.numel()].view(x.shape)
        mask = torch.ge(drawn, dropped - STEPS // 2, out=torch.empty_like(x))
        mask.mul_(STEPS / (STEPS - dropped))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0] * mask, None


class Dropout(nn.Dropout):
    """`nn.Dropout` with other masks for the same seed: x m / (1 - p), m from {0, 1} (arXiv 1207.0580)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        if self.training and 1 / STEPS <= self.p < 1 and not self.inplace and x.is_floating_point() and takes(x):
            return _Dropout.apply(x, self.p)
        return super().forward(x)
