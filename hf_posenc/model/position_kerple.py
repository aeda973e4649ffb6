"""`kerple`: a bias from a conditionally positive definite kernel of the distance, with learned shape."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_distance import DistanceBias
from .scheme_math import one_of, require


class KerplePosition(DistanceBias):
    """Log or power kernel of the distance: b_h(i, j) = -r_1 log(1 + r_2 |i - j|) (log), or -r_1 |i - j|^r_2 (power).

    Chi et al. 2022, arXiv 2205.09921; r_1 and r_2 are learned for each head, r_1, r_2 > 0 (and r_2 <= 2 for power).
    Published for causal decoders. The kernels are symmetric, so that an encoder tells left from right only by the
    distances to tokens such as [CLS] and [SEP]; so there are r_1 and r_2 for each side, those to the right starting as
    those to the left in the opposite order of heads. ALiBi is power with r_2 = 1. Positivity is kept by r = exp(a), and
    r_2 = 2 sigmoid(a) for power, instead of clamping.

    Costs one (H, S, S) bias per forward, computed for the 2 S - 1 distances and gathered; 4 H weights (2 H if not
    directional); any length.

    Args:
        num_heads (int): H.
        kernel (str): `log` (the paper's best) or `power`.
        directional (bool): own r_1 and r_2 to the left and to the right; False: the published form.

    Raises:
        ValueError: `kernel` is unknown.
    """

    name = "kerple"
    position_rate = 30.0

    def __init__(self, *, num_heads: int, kernel: str = "log", directional: bool = True) -> None:
        super().__init__()
        self.kernel = require("kernel", kernel, one_of("log", "power"))
        self.directional = directional
        self.shape = nn.Embedding(4 if directional else 2, num_heads)
        self.init_weights(0.0)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """The kernel, float32: (R,) -> (R, H)."""
        rows = self.shape(torch.arange(4 if self.directional else 2, device=distance.device)).float()
        far = distance.unsqueeze(-1).abs().float()
        left, right = self._kernel(far, *rows[:2]), self._kernel(far, *rows[-2:])
        return torch.where(distance.unsqueeze(-1) < 0, left, right)

    def _kernel(self, far: Tensor, first: Tensor, second: Tensor) -> Tensor:
        if self.kernel == "log":
            return -first.exp() * torch.log1p(second.exp() * far)
        # 0^r has no finite gradient in r: distance 0 gives 0 whatever r is.
        return -first.exp() * torch.where(far > 0, far.clamp(min=1) ** (2 * second.sigmoid()), 0.0)

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """r_1 and r_2 spread evenly over the heads, where the authors' code draws them at random.

        (0, 2] and (0, 1] for log, (0, 1] and (0, 2] for power; large r_1 with small r_2.
        """
        weight = self.shape.weight
        heads = weight.shape[1]
        spread = (torch.arange(heads, dtype=torch.float32, device=weight.device) + 1) / heads
        if self.kernel == "log":
            start = (2 * spread).log(), spread.flip(0).log()
        else:  # r_2 = 2 is out of a sigmoid's reach
            start = spread.log(), torch.logit(0.95 * spread.flip(0))
        left = torch.stack(start)
        init.copy_(weight, torch.cat([left, left.flip(1)])[: len(weight)].to(weight.dtype))
