"""What the pictures show, as numbers: see `hf_posenc.schemes.panels`."""

from .schemes.panels import *  # noqa: F403
