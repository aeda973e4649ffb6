"""Every scheme by its name, what `config.position_embedding_type` accepts; and what few models use beside it.

A checkpoint's file of this name is written by `save_pretrained`, and has those of its configuration alone.
"""

from .augmentation import sample_positions, shift_positions
from .position_alibi import AlibiPosition
from .position_cable import CablePosition
from .position_deberta import DebertaPosition
from .position_dual_triangle import DualTrianglePosition
from .position_fire import FirePosition
from .position_fourier import FourierPosition
from .position_kerple import KerplePosition
from .position_learned import LearnedPosition
from .position_lspe import LSPEPosition
from .position_mlp_bias import MLPBiasPosition
from .position_none import NoPosition
from .position_pope import PoPEPosition
from .position_relative_key import RelativeKeyPosition, RelativeKeyQueryPosition
from .position_rope import RotaryPosition
from .position_sinusoidal import SinusoidalPosition
from .position_t5 import T5Position
from .position_toeplitz import ToeplitzPosition
from .position_tupe import TupePosition
from .position_window import WindowPosition
from .scheme_base import PositionScheme
from .token_dropout import drop_mask_tokens

SCHEMES: dict[str, type[PositionScheme]] = {
    "none": NoPosition,
    "sinusoidal": SinusoidalPosition,
    "learned": LearnedPosition,
    "lspe": LSPEPosition,
    "fourier": FourierPosition,
    "rope": RotaryPosition,
    "alibi": AlibiPosition,
    "t5": T5Position,
    "toeplitz": ToeplitzPosition,
    "kerple": KerplePosition,
    "fire": FirePosition,
    "mlp_bias": MLPBiasPosition,
    "tupe": TupePosition,
    "relative_key": RelativeKeyPosition,
    "relative_key_query": RelativeKeyQueryPosition,
    "deberta": DebertaPosition,
    "cable": CablePosition,
    "pope": PoPEPosition,
    "window": WindowPosition,
    "dual_triangle": DualTrianglePosition,
}

AUGMENTATIONS = {"shift": shift_positions, "random": sample_positions}

EMBEDDING_STEPS = {"token_dropout": drop_mask_tokens}
"""By the field of the configuration that asks for it."""
