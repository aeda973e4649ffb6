"""Pretrained weights of the BERT family under another positional scheme: convert, heal, extend, and back again."""

from .convert import convert
from .export import export_bert
from .families import FAMILIES, TASKS
from .fine_tune import fine_tune
from .report import Accounting, Agreement, ConversionReport

__all__ = ["FAMILIES", "TASKS", "Accounting", "Agreement", "ConversionReport", "convert", "export_bert", "fine_tune"]
