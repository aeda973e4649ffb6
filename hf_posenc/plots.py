"""Positional schemes as pictures: see `hf_posenc.schemes.plots`."""

from .schemes.plots import *  # noqa: F403
