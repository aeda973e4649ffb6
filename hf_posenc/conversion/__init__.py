"""Pretrained weights of the BERT family under another positional scheme.

`convert` reads a checkpoint through its own class (`sources`, `loading`), changes its scheme (`swap`, with
`added_vectors`, `biases` and `rotations`) or extends its tables (`tables`), and heals it on text (`heal`).
`hf_posenc.export` goes back.
"""

from ..tasks import TASKS
from .convert import convert
from .families import FAMILIES
from .report import Accounting, Agreement, ConversionReport

__all__ = ["FAMILIES", "TASKS", "Accounting", "Agreement", "ConversionReport", "convert"]
