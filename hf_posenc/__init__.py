"""hf_posenc: a BERT-style encoder whose positional encoding is one config value.

Importing it registers `posenc` with the Auto classes, so that PosEnc checkpoints load without `trust_remote_code`.
"""

import contextlib
import importlib
import importlib.metadata
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import is_main_process

if TYPE_CHECKING:
    __version__: str

    from .comparison.compare import Comparison, compare
    from .conversion.convert import convert
    from .conversion.heal import Healing
    from .conversion.report import Conversion, ConversionReport
    from .errors import Diverged, Interrupted, UserError
    from .exporting.int8 import Int8Report
    from .exporting.run import ExportReport, export
    from .finetuning.estimator import PosEncClassifier, PosEncRegressor, fit, load
    from .finetuning.functions import evaluate, predict, train
    from .finetuning.train import TrainingResult
    from .hub.publishing import Publication, publish
    from .model.configuration_posenc import PosEncConfig
    from .model.modeling_posenc import (
        PosEncForMaskedLM,
        PosEncForMultipleChoice,
        PosEncForQuestionAnswering,
        PosEncForSequenceClassification,
        PosEncForTokenClassification,
        PosEncModel,
        PosEncPreTrainedModel,
    )
    from .model.scheme_added import AddedPosition
    from .model.scheme_base import PositionScheme
    from .model.scheme_distance import DistanceBias
    from .model.scheme_factory import make_scheme
    from .model.scheme_rotated import RotatedPosition
    from .model.scheme_table import (
        SCHEMES,
        AlibiPosition,
        CablePosition,
        DebertaPosition,
        DualTrianglePosition,
        FirePosition,
        FourierPosition,
        KerplePosition,
        LearnedPosition,
        LSPEPosition,
        MLPBiasPosition,
        NoPosition,
        PoPEPosition,
        RelativeKeyPosition,
        RelativeKeyQueryPosition,
        RotaryPosition,
        SinusoidalPosition,
        T5Position,
        ToeplitzPosition,
        TupePosition,
        WindowPosition,
    )
    from .model.scheme_vectors import sinusoidal_table
    from .model.unpadding import Tokens
    from .optimizer import scale_position_learning_rates
    from .plotting import plot
    from .schemes.conformance import SCHEME_CHECKS, CheckReport, CheckResult, check_scheme
    from .schemes.rotary import apply_rotary
    from .schemes.scheme_file import register_scheme
    from .schemes.support import SIZES
    from .training.report import TrainingReport

if not is_main_process():  # the first one's notices are enough
    logging.getLogger(__name__).setLevel(logging.ERROR)

# The same names as above: a module is imported when one of them is first used.
_NAMES = {
    "comparison.compare": "Comparison compare",
    "conversion.convert": "convert",
    "conversion.heal": "Healing",
    "conversion.report": "Conversion ConversionReport",
    "exporting.int8": "Int8Report",
    "exporting.run": "ExportReport export",
    "errors": "Diverged Interrupted UserError",
    "finetuning.estimator": "PosEncClassifier PosEncRegressor fit load",
    "finetuning.functions": "evaluate predict train",
    "finetuning.train": "TrainingResult",
    "hub.publishing": "Publication publish",
    "model.configuration_posenc": "PosEncConfig",
    "model.modeling_posenc": (
        "PosEncForMaskedLM PosEncForMultipleChoice PosEncForQuestionAnswering "
        "PosEncForSequenceClassification PosEncForTokenClassification PosEncModel PosEncPreTrainedModel"
    ),
    "model.scheme_added": "AddedPosition",
    "model.scheme_base": "PositionScheme",
    "model.scheme_distance": "DistanceBias",
    "model.scheme_factory": "make_scheme",
    "model.scheme_rotated": "RotatedPosition",
    "model.scheme_table": (
        "SCHEMES AlibiPosition CablePosition DebertaPosition DualTrianglePosition FirePosition "
        "FourierPosition KerplePosition LearnedPosition LSPEPosition MLPBiasPosition NoPosition "
        "PoPEPosition RelativeKeyPosition RelativeKeyQueryPosition RotaryPosition SinusoidalPosition "
        "T5Position ToeplitzPosition TupePosition WindowPosition"
    ),
    "model.scheme_vectors": "sinusoidal_table",
    "model.unpadding": "Tokens",
    "optimizer": "scale_position_learning_rates",
    "plotting": "plot",
    "schemes.conformance": "SCHEME_CHECKS CheckReport CheckResult check_scheme",
    "schemes.rotary": "apply_rotary",
    "schemes.scheme_file": "register_scheme",
    "schemes.support": "SIZES",
    "training.report": "TrainingReport",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("hf-posenc")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name))


def __dir__() -> list[str]:
    return __all__


def _register_adapters(constants: ModuleType) -> None:
    """PEFT's default targets: those of BERT, whose names ours are but for the feed-forward network's last layer."""
    for name, targets in vars(constants).items():
        if name.endswith(("_TARGET_MODULES_MAPPING", "_FEEDFORWARD_MODULES_MAPPING")) and "bert" in targets:
            targets.setdefault("posenc", [target.removesuffix(".dense") for target in targets["bert"]])


def _complete(model: ModuleType) -> None:
    """Brings in what registers itself at the seam of the model, which imports nothing of the package."""
    for name in ("kernels", "schemes.support"):
        importlib.import_module(f".{name}", __name__)


with contextlib.suppress(ImportError):  # a GPU image in which nothing was installed has no PEFT either
    import wrapt

    wrapt.register_post_import_hook(_register_adapters, "peft.utils.constants")
    wrapt.register_post_import_hook(_complete, f"{__name__}.model")


def _is_the_command() -> bool:
    """True where this process is `hf-posenc`, which prints its help before PyTorch is imported.

    It registers the model when it first needs it. A program that embeds Python may have no `sys.argv`.
    """
    return bool(sys.argv) and Path(sys.argv[0]).stem == "hf-posenc"


if not _is_the_command():
    from . import model as model  # which registers with the Auto classes

    _complete(model)
