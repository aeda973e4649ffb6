"""Kernels that are faster than plain PyTorch: oneDNN's linear layers, 16-bit dropout, a bias's gradient, rotations.

And FlashAttention with ALiBi's slopes. Only the package's own models use it; a checkpoint's code never does. Each
computes the same as PyTorch's own, and is left out where an operation that PyTorch doesn't promise to keep is missing
or fails. `HF_POSENC_KERNELS=0` in the environment, or `set_enabled(False)`, turns all of it off.
"""

from ..model.seam import kernels
from .attention import attend, gains_from_fusion
from .dropout import Dropout
from .flash import check_slopes, make_attention
from .linear import apply_linear
from .rotation import rotate
from .switch import set_enabled

kernels.register(Dropout=Dropout, apply_linear=apply_linear, attend=attend, rotate=rotate)
kernels.register(check_bias=check_slopes, make_attention=make_attention)

__all__ = ["Dropout", "apply_linear", "attend", "gains_from_fusion", "rotate", "set_enabled"]
