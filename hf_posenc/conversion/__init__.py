"""Pretrained weights of the BERT family under another positional scheme.

`convert` reads a checkpoint through its own class (`sources`, `loading`, `families`), changes its scheme or extends it
(`swap`, `fitting`), and heals it on text (`heal`). `hf_posenc.export` goes back.
"""

from .convert import convert
from .heal import Healing

__all__ = ["Healing", "convert"]
