"""hf_posenc: a Transformers encoder whose positional scheme is one config value.

Importing it registers `posenc` with the Auto classes, so that PosEnc checkpoints load without `trust_remote_code`.
"""

from . import _ctrl_c as _ctrl_c

# isort: split
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .conformance import POSITION_CHECKS, CheckResult, PositionReport, check_position
from .conversion import ConversionReport, convert, export_bert
from .model.configuration_posenc import POSENC_VERSION, PRESETS, PosEncConfig
from .model.modeling_posenc import (
    PosEncForMaskedLM,
    PosEncForMultipleChoice,
    PosEncForQuestionAnswering,
    PosEncForSequenceClassification,
    PosEncForTokenClassification,
    PosEncModel,
    PosEncPreTrainedModel,
)
from .model.position_alibi import AlibiPosition
from .model.position_base import AddedPosition, PositionScheme
from .model.position_deberta import DebertaPosition
from .model.position_fire import FirePosition
from .model.position_fourier import FourierPosition
from .model.position_kerple import KerplePosition
from .model.position_learned import LearnedPosition
from .model.position_lspe import LSPEPosition
from .model.position_mlp_bias import MLPBiasPosition
from .model.position_none import NoPosition
from .model.position_relative_key import RelativeKeyPosition, RelativeKeyQueryPosition
from .model.position_rope import RotaryPosition, apply_rotary
from .model.position_sinusoidal import SinusoidalPosition, sinusoidal_table
from .model.position_t5 import T5Position
from .model.position_tupe import TupePosition
from .model.positions import POSITIONS, make_position, register_position
from .optimizer import speed_up_positions
from .scheme_file import register_scheme_file

__version__ = POSENC_VERSION

AutoConfig.register(PosEncConfig.model_type, PosEncConfig)
AutoModel.register(PosEncConfig, PosEncModel)
AutoModelForMaskedLM.register(PosEncConfig, PosEncForMaskedLM)
AutoModelForMultipleChoice.register(PosEncConfig, PosEncForMultipleChoice)
AutoModelForQuestionAnswering.register(PosEncConfig, PosEncForQuestionAnswering)
AutoModelForSequenceClassification.register(PosEncConfig, PosEncForSequenceClassification)
AutoModelForTokenClassification.register(PosEncConfig, PosEncForTokenClassification)

__all__ = [
    "POSITIONS",
    "POSITION_CHECKS",
    "PRESETS",
    "AddedPosition",
    "AlibiPosition",
    "CheckResult",
    "ConversionReport",
    "DebertaPosition",
    "FirePosition",
    "FourierPosition",
    "KerplePosition",
    "LSPEPosition",
    "LearnedPosition",
    "MLPBiasPosition",
    "NoPosition",
    "PosEncConfig",
    "PosEncForMaskedLM",
    "PosEncForMultipleChoice",
    "PosEncForQuestionAnswering",
    "PosEncForSequenceClassification",
    "PosEncForTokenClassification",
    "PosEncModel",
    "PosEncPreTrainedModel",
    "PositionReport",
    "PositionScheme",
    "RelativeKeyPosition",
    "RelativeKeyQueryPosition",
    "RotaryPosition",
    "SinusoidalPosition",
    "T5Position",
    "TupePosition",
    "apply_rotary",
    "check_position",
    "convert",
    "export_bert",
    "make_position",
    "register_position",
    "register_scheme_file",
    "sinusoidal_table",
    "speed_up_positions",
]
