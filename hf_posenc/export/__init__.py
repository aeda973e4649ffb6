"""Checkpoints for other runtimes: a folder without code that a server or a library of another kind loads.

- `run`: the entry; refuses first, writes the folder whole or not at all, says what it did.
- `native`: Transformers' own classes, by other names of the same weights.
- `graph`: ONNX and OpenVINO, by `transformers.exporters`.
- `parity`: compares what was written with PyTorch, on real texts.
- `folder`: what lies beside the graph: configuration, tokenizer, a sentence-transformer's modules, README.md.

The package is the function too: `hf_posenc.export(checkpoint, out, "onnx")` is `export.run.export`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .run import TARGETS, ExportReport, export

__all__ = ["TARGETS", "ExportReport", "export"]

__getattr__ = lazy_names(__name__, __file__)


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> "ExportReport":
        from .run import export

        return export(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
