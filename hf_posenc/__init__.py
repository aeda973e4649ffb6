"""hf_posenc: a BERT-style encoder whose positional encoding is one config value.

Importing it registers `posenc` with the Auto classes, so that PosEnc checkpoints load without `trust_remote_code`.
The command line prints its help before PyTorch is imported, so there the models' module registers when it is needed.
"""

import ast
import contextlib
import importlib
import logging
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import is_main_process

if TYPE_CHECKING:
    from .conversion.convert import convert
    from .conversion.heal import Healing
    from .conversion.report import Conversion, ConversionReport
    from .exporting.run import ExportReport, export
    from .finetuning.estimator import PosEncClassifier, PosEncRegressor, fit, load
    from .model.modeling_posenc import (
        PosEncForMaskedLM,
        PosEncForMultipleChoice,
        PosEncForQuestionAnswering,
        PosEncForSequenceClassification,
        PosEncForTokenClassification,
        PosEncModel,
        PosEncPreTrainedModel,
    )
    from .model.package_config import PRESETS, PosEncConfig
    from .model.position_added import AddedPosition
    from .model.position_base import PositionScheme
    from .model.position_distance import DistanceBias
    from .model.position_rotated import RotatedPosition
    from .model.position_vectors import sinusoidal_table
    from .model.scheme_factory import make_scheme
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
    from .model.unpadding import Tokens
    from .optimizer import scale_position_learning_rates
    from .schemes.conformance import SCHEME_CHECKS, CheckReport, CheckResult, check_scheme
    from .schemes.rotary import apply_rotary
    from .schemes.scheme_file import register_scheme

if not is_main_process():  # the first one's notices are enough
    logging.getLogger(__name__).setLevel(logging.ERROR)

# As the build reads it: importing the module would import PyTorch.
_source = Path(__file__).with_name("model") / "configuration_posenc.py"
__version__ = re.findall(r'^POSENC_VERSION = "(.+)"', _source.read_text(encoding="utf-8"), re.MULTILINE)[0]

# Type checkers and Python go by one list, the imports above: a module is imported when a name of it is first used.
_BLOCK: Any = next(node for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body if type(node) is ast.If)
_MODULES = {alias.asname or alias.name: (node.module, alias.name) for node in _BLOCK.body for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_MODULES)
    if name in _MODULES:
        module, attribute = _MODULES[name]
        return globals().setdefault(name, getattr(importlib.import_module(f".{module}", __name__), attribute))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)


def _register_adapters(constants: ModuleType) -> None:
    """PEFT's default targets: those of BERT, whose names ours are but for the feed-forward network's last layer."""
    for name, targets in vars(constants).items():
        if name.endswith(("_TARGET_MODULES_MAPPING", "_FEEDFORWARD_MODULES_MAPPING")) and "bert" in targets:
            targets.setdefault("posenc", [target.removesuffix(".dense") for target in targets["bert"]])


with contextlib.suppress(ImportError):  # a GPU image in which nothing was installed has no PEFT either
    import wrapt

    wrapt.register_post_import_hook(_register_adapters, "peft.utils.constants")

if [Path(program).stem for program in sys.argv[:1]] != ["hf-posenc"]:  # a program that embeds Python may name none
    from . import model as model
