"""The positional schemes of this checkpoint, by name; and how training moves positions."""

from .position_rope import RotaryPosition

SCHEMES = {"rope": RotaryPosition}
AUGMENTATIONS = {}
