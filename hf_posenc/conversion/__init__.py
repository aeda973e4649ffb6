"""Pretrained weights of the BERT family under another positional scheme: convert, heal, extend, and back again."""

from .convert import convert
from .families import FAMILIES, TASKS
from .fine_tune import fine_tune
from .report import Accounting, Agreement, ConversionReport
from .to_bert import export_bert

__all__ = ["FAMILIES", "TASKS", "Accounting", "Agreement", "ConversionReport", "convert", "export_bert", "fine_tune"]
