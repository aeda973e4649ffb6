"""`PosEncConfig`: everything that shapes a PosEnc encoder, checked before a weight is allocated."""

import importlib.metadata
import numbers
import re
from collections.abc import Callable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

POSENC_VERSION = "0.1.0"
"""The version of the code in this folder; recorded in every checkpoint as `posenc_version`."""

MINIMUM_TRANSFORMERS = "5.10.1"

MOST_LABELS = 2**20
"""A config names each label, so an unbounded number of labels would fill the memory of whoever loads it."""


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


# Before any import that an older transformers can't satisfy: its user gets one sentence instead of a traceback.
_installed_transformers = importlib.metadata.version("transformers")
if _release(_installed_transformers) < _release(MINIMUM_TRANSFORMERS):
    raise ImportError(
        f"PosEnc models need transformers >= {MINIMUM_TRANSFORMERS}, this is {_installed_transformers}. "
        f'Upgrade with: pip install -U "transformers>={MINIMUM_TRANSFORMERS}"'
    )

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .position_alibi import AlibiPosition
from .position_deberta import DebertaPosition
from .position_fire import FirePosition
from .position_fourier import FourierPosition
from .position_kerple import KerplePosition
from .position_learned import LearnedPosition
from .position_lspe import LSPEPosition
from .position_math import did_you_mean
from .position_mlp_bias import MLPBiasPosition
from .position_none import NoPosition
from .position_relative_key import RelativeKeyPosition, RelativeKeyQueryPosition
from .position_rope import RotaryPosition
from .position_sinusoidal import SinusoidalPosition
from .position_t5 import T5Position
from .position_tupe import TupePosition
from .positions import GIVEN, POSITIONS, own_arguments, own_code, resolve_position_config, scheme_classes
from .scheme_code import ATTRIBUTE, KEY, load_classes, loading_from, write_code

if TYPE_CHECKING:
    # Never run, but found by the code that copies a checkpoint's files. So a saved config alone can build a model, and
    # a transformers that is too old to copy the imports of imports gets as far as the check above.
    from .attention import Attention  # noqa: F401
    from .modeling_posenc import PosEncModel  # noqa: F401
    from .position_base import PositionScheme  # noqa: F401
    from .position_combined import CombinedPosition  # noqa: F401
    from .safe_loading import guarded_loading  # noqa: F401
    from .unpadding import Tokens  # noqa: F401

logger = logging.get_logger(__name__)

# The table of schemes. It stands in this file because a transformers older than MINIMUM_TRANSFORMERS copies only the
# direct imports of this file from a local folder: with the table elsewhere, it would fail before the check above.
POSITIONS.update(
    none=NoPosition,
    sinusoidal=SinusoidalPosition,
    learned=LearnedPosition,
    lspe=LSPEPosition,
    fourier=FourierPosition,
    rope=RotaryPosition,
    alibi=AlibiPosition,
    t5=T5Position,
    kerple=KerplePosition,
    fire=FirePosition,
    mlp_bias=MLPBiasPosition,
    tupe=TupePosition,
    relative_key=RelativeKeyPosition,
    relative_key_query=RelativeKeyQueryPosition,
    deberta=DebertaPosition,
)

MAX_POSITIONS = 2**24
"""Positions above this aren't exact in float32, in which angles and distances are computed."""

AUTO_MAP = {
    "AutoConfig": "configuration_posenc.PosEncConfig",
    "AutoModel": "modeling_posenc.PosEncModel",
    "AutoModelForMaskedLM": "modeling_posenc.PosEncForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_posenc.PosEncForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_posenc.PosEncForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_posenc.PosEncForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_posenc.PosEncForMultipleChoice",
}

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "small": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""The sizes of the BERT miniatures (Turc et al. 2019, arXiv 1908.08962) and of BERT base.

Their weights start with a standard deviation of hidden_size^-0.5, so that the logits of attention are of size 1 from
the start: with BERT's .02 a narrow encoder attends evenly to all tokens for most of a short training.
"""
for _preset in PRESETS.values():
    _preset["initializer_range"] = round(_preset["hidden_size"] ** -0.5, 4)

# What other model families call our fields. These names are spelled too differently for `did_you_mean` to find them.
_CALLED = {
    "hidden_size": "d_model dim n_embd hidden_dim",
    "num_hidden_layers": "num_layers n_layer n_layers",
    "num_attention_heads": "num_heads n_head n_heads",
    "intermediate_size": "ffn_dim dim_feedforward",
    "hidden_act": "activation activation_function hidden_activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
    "max_position_embeddings": "n_positions max_positions max_seq_len max_seq_length max_length max_len "
    "model_max_length",
    "num_labels": "num_classes n_labels",
    "vocab_size": "n_vocab",
    "embedding_size": "embed_dim",
    "unpad_inputs": "unpad",
    "pad_token_id": "padding_idx",
    "rope_theta": "rope_base",
    "initializer_range": "init_std",
    "classifier_pooling": "pooling pooling_mode",
    "norm_position": "pre_norm",
    "position_embedding_type": "position position_type pos_encoding positional_encoding position_encoding_type",
    "rope_parameters": "rope_scaling_factor",
}
_OTHER_NAMES = {other: name for name, others in _CALLED.items() for other in others.split()}

Check = tuple[Callable[[Any], bool], str]
"""Whether a value fits, and the words that follow `name=value` in the error if it doesn't. None always fits."""


def _whole(least: int, most: int) -> Check:
    def fits(value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= int(value) <= most

    return fits, f"is out of range. It must be a whole number from {least} to {most}."


def _one_of(*choices: str) -> Check:
    return choices.__contains__, f"is unknown. Choose one of {', '.join(choices)}."


def _typed(words: str, fits: Callable[[Any], bool]) -> Check:
    return fits, f"is of a wrong type. Give {words}, or leave it out."


_PROBABILITY: Check = (lambda value: 0 <= value <= 1, "is out of range. A probability lies between 0 and 1.")
_POSITIVE: Check = (lambda value: 0 < value < float("inf"), "is out of range. It must be a positive number.")
_FINITE: Check = (lambda value: abs(value) < float("inf"), "is out of range. It must be a finite number.")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DTYPE: Check = (lambda value: str(value).removeprefix("torch.") in _DTYPES, _one_of(*_DTYPES)[1])
_NAME = _typed("a string", lambda value: isinstance(value, str | dict))
_FLAG = _typed("true or false", lambda value: isinstance(value, bool))
_ROPE = _typed("an object such as {'rope_type': 'linear', 'factor': 2.0}", lambda value: isinstance(value, dict))


def _are_names(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(value is None or isinstance(value, str) for value in values)


def _is_map_of_code(value: Any) -> bool:  # a tokenizer has two classes, or one and None
    return isinstance(value, dict) and all(isinstance(one, str) or _are_names(one) for one in value.values())


def _is_quantization(value: Any) -> bool:
    return hasattr(value, "to_dict") or (isinstance(value, dict) and isinstance(value.get("quant_method"), str))


_UNCHECKED = (
    "_commit_hash", "_name_or_path", "custom_pipelines", "experts_implementation", "finetuning_task", "name_or_path",
    "partial_rotary_factor", "rope_theta", "task_specific_params", "tie_encoder_decoder", "use_cache",
)  # fmt: skip
_KEYWORDS: dict[str, Check | None] = {
    **dict.fromkeys(_UNCHECKED),
    "architectures": _typed("a list of names of classes", lambda value: _are_names(value) and None not in value),
    "attn_implementation": _NAME,
    "_attn_implementation": _NAME,
    "auto_map": _typed("an object of names of classes", _is_map_of_code),
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
    "gradient_checkpointing": _FLAG,
    "model_type": _typed("a string", lambda value: isinstance(value, str)),
    "num_labels": _whole(1, MOST_LABELS),
    "output_attentions": _FLAG,
    "quantization_config": _typed("an object with a quant_method", _is_quantization),
    "rope_parameters": _ROPE,
    "rope_scaling": _ROPE,
}
"""What PreTrainedConfig takes beyond our fields, and what it or the Hub writes into a config file. What transformers
looks into has a check: a wrong value would fail later, in words that name no field."""


def _require(name: str, value: Any, check: Check | None) -> None:
    if value is not None and check is not None and not check[0](value):
        raise ValueError(f"{name}={value!r:.80} {check[1]}")


def check_types(given: dict[str, Any]) -> None:
    """Checks the values that `_KEYWORDS` lists, and raises for one of a wrong type."""
    for name, check in _KEYWORDS.items():
        _require(name, given.get(name), check)


def _field(default: Any, check: Check) -> Any:
    return field(default=default, metadata={"check": check})


_ROPE_OF_TRAINING = ("rope_theta", "partial_rotary_factor")
_ROPE_NAMES = ("rope_parameters", *_ROPE_OF_TRAINING, "rope_scaling")


def _take_rope(values: dict[str, Any]) -> dict[str, Any]:
    """Removes RoPE's fields, older names included, from a config's values and returns them as one dict.

    Raises:
        ValueError: the names contradict each other.
    """
    said = {name: value for name in _ROPE_NAMES if (value := values.pop(name, None)) is not None}
    check_types(said)
    found: dict[str, Any] = {}
    for name, value in said.items():
        for key, given in ({name: value} if name in _ROPE_OF_TRAINING else value).items():
            if given is None:
                continue
            today = "rope_type" if key == "type" else key
            known = found.setdefault(today, given)
            if known is not given and known != given:
                together = ", ".join(f"{name}={value!r:.200}" for name, value in said.items())
                raise ValueError(
                    f"{today}={known!r} contradicts {key}={given!r} in {together}. Give rope_parameters alone."
                )
    return found


def _override_scheme(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Another scheme than the file's: the arguments and the code of the file's don't apply."""
    scheme = values.get("position_embedding_type")
    if given.get("position_embedding_type", scheme) != scheme:
        for name in ("position_embedding_kwargs", *_ROPE_NAMES):
            values.pop(name, None)
        values["auto_map"] = {key: value for key, value in (values.get("auto_map") or {}).items() if key != KEY}


def _override_rope(values: dict[str, Any], given: dict[str, Any]) -> None:
    """A new scaling replaces the file's. `rope_theta` and `partial_rotary_factor` stay unless they are given."""
    replaced = "rope_parameters" in given or given.get("rope_scaling") is not None
    new, old = _take_rope(given), _take_rope(values)
    kept = {name: value for name, value in old.items() if not replaced or name in _ROPE_OF_TRAINING}
    values["rope_parameters"] = {**kept, **new} or None


def _override_labels(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Labels given as names, or as another number of them, replace the file's."""
    if given.get("num_labels", 0) is None:
        del given["num_labels"]
    count, names = given.get("num_labels"), values.get("id2label") or values.get("label2id")
    other_count = count is not None and isinstance(names, dict) and len(names) != count
    if other_count or {"id2label", "label2id"} & given.keys():
        for name in ("id2label", "label2id", "num_labels"):
            values.pop(name, None)


def _warn_of_other_version(unknown: dict[str, Any], written_by: Any) -> None:
    if unknown:
        logger.warning(
            f"PosEncConfig {POSENC_VERSION} doesn't know {', '.join(map(repr, unknown))} in this configuration; "
            "kept, without effect. If a newer hf_posenc wrote it, upgrade hf_posenc."
        )
    if isinstance(written_by, str) and _release(written_by) > _release(POSENC_VERSION):
        logger.warning(
            f"This checkpoint was written by hf_posenc {written_by}, the code here is {POSENC_VERSION}: results "
            "may differ. Upgrade hf_posenc, or load with the checkpoint's own code (trust_remote_code=True in a "
            "process that doesn't import hf_posenc)."
        )


def _names(field: str, labels: Any) -> list[str]:
    """The names in a map of labels, in the order of their numbers."""
    pairs = labels.items() if isinstance(labels, dict) else ()
    numbered = {str(n): name for n, name in pairs} if field == "id2label" else {str(n): name for name, n in pairs}
    names = [numbered.get(str(number)) for number in range(len(pairs))]
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"{field}={labels!r:.80} doesn't number labels from 0 on without a gap, each with a name of its own. "
            "Give id2label={0: 'no', 1: 'yes'}, and label2id={'no': 0, 'yes': 1} or none."
        )
    return names  # type: ignore[return-value]


@strict
class PosEncConfig(PreTrainedConfig):
    r"""Configuration of a PosEnc encoder: a BERT-shaped body whose positional scheme is one value.

    ```python
    >>> from hf_posenc import PosEncConfig
    >>> PosEncConfig.from_preset("tiny", position_embedding_type="lspe").position_embedding_type
    'lspe'

    ```

    Args:
        vocab_size (int): number of tokens in the vocabulary.
        hidden_size (int): D, width of the hidden states; a multiple of `num_attention_heads`.
        num_hidden_layers (int): number of layers.
        num_attention_heads (int): H; each head is d = D/H wide.
        intermediate_size (int): width of the feed-forward layer.
        hidden_act (str): activation of the feed-forward layer, a name of `transformers.activations.ACT2FN`.
        hidden_dropout_prob (float): dropout after the embeddings, the attention output and the feed-forward output.
        attention_probs_dropout_prob (float): dropout on attention probabilities. 0 keeps PyTorch's fused kernels.
        layer_norm_eps (float): epsilon of the LayerNorms.
        initializer_range (float): standard deviation of the initial weights.
        max_position_embeddings (int): number of positions of schemes that have a table (`learned`), at most 2^24.
            The other schemes take any length.
        type_vocab_size (int): number of token types (sentence A / B). 0: the model has none, `token_type_ids` are
            ignored.
        pad_token_id (int): the padding token; its embedding is zero and gets no gradient.
        embedding_size (int, optional): width of the embeddings, projected to `hidden_size` as in ELECTRA. None: as
            wide as the hidden states.
        position_embedding_type (str): the positional scheme; `hf_posenc.POSITIONS` lists them.
        position_embedding_kwargs (dict, optional): what the scheme's constructor takes beyond the sizes in this
            config. Resolved defaults are written back, so that a checkpoint records everything it was built with.
        rope_parameters (dict, optional): for `rope` alone, in the form of transformers v5: `rope_type` (`default`,
            `linear`, `dynamic`, `yarn`, `longrope`, `llama3`, `proportional`), `rope_theta`, `partial_rotary_factor`
            and the type's own keys: see `RotaryPosition`. Resolved values are written back.
        position_augmentation (str): how training changes positions, once per sequence and batch; evaluation never does.
            `none`; `shift`: all by the same random number (SHAPE, Kiyono et al. 2021, arXiv 2109.05644); `random`: a
            random sample, in order, of all positions below `position_augmentation_length` (Ruoss et al. 2023, arXiv
            2305.16843), so that long texts have no position that training hasn't seen. A shift has no effect on
            schemes that use distances alone.
        position_augmentation_length (int, optional): augmented positions lie below it. None:
            `max_position_embeddings`. No training sequence may be longer.
        norm_position (str): `pre` (LayerNorm before each block, and one at the end) or `post` (BERT).
        scale_embeddings (bool): multiply token embeddings by sqrt(D), as in Vaswani et al. 2017, arXiv 1706.03762.
        classifier_pooling (str): how a sequence becomes one vector: `mean` or `max` over its tokens, `cls` for its
            first token. Padding never counts.
        classifier_hidden_act (str, optional): activation of a dense layer between pooling and classifier (`tanh` as
            in BERT, `gelu`, `relu`, ...). None: no such layer.
        classifier_dropout (float, optional): dropout before the classifier. None: `hidden_dropout_prob`.
        label_mean (float): mean m of the numbers that a regression was trained on. Its logits are z s + m, where the
            last layer gives z, and its loss is the squared error in standard units, ((logits - labels) / s)^2. Used
            where `problem_type` is `regression`, for all outputs alike.
        label_std (float): standard deviation s of these numbers.
        tie_word_embeddings (bool): masked LM: the decoder shares the token embedding.
        unpad_inputs (bool): compute on real tokens only. False: on the whole padded batch (same results, slower).
        posenc_version (str, optional): the version of the code that wrote the checkpoint.

    Raises:
        ValueError: a value is out of range; a keyword looks like a misspelt field; the scheme or its arguments don't
            exist. The message names the value, what is accepted and what to do.
        StrictDataclassFieldValidationError: a value has the wrong type.
    """

    model_type = "posenc"

    vocab_size: int = _field(30522, _whole(1, 2**28))
    hidden_size: int = _field(768, _whole(1, 2**17))
    num_hidden_layers: int = _field(12, _whole(1, 2**12))
    num_attention_heads: int = _field(12, _whole(1, 2**12))
    intermediate_size: int = _field(3072, _whole(1, 2**20))
    hidden_act: str = _field("gelu", _one_of(*ACT2FN))
    hidden_dropout_prob: float | int = _field(0.1, _PROBABILITY)
    attention_probs_dropout_prob: float | int = _field(0.0, _PROBABILITY)
    layer_norm_eps: float = _field(1e-12, _POSITIVE)
    initializer_range: float = _field(0.02, _POSITIVE)
    max_position_embeddings: int = _field(512, _whole(1, MAX_POSITIONS))
    type_vocab_size: int = _field(2, _whole(0, 2**20))
    pad_token_id: int | None = 0
    embedding_size: int | None = _field(None, _whole(1, 2**17))
    position_embedding_type: str = "rope"
    position_embedding_kwargs: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    position_augmentation: str = _field("none", _one_of("none", "shift", "random"))
    position_augmentation_length: int | None = _field(None, _whole(1, MAX_POSITIONS))
    norm_position: str = _field("pre", _one_of("pre", "post"))
    scale_embeddings: bool = False
    classifier_pooling: str = _field("mean", _one_of("mean", "cls", "max"))
    classifier_hidden_act: str | None = _field(None, _one_of(*ACT2FN))
    classifier_dropout: float | int | None = _field(None, _PROBABILITY)
    problem_type: str | None = _field(  # type: ignore[assignment]  # a Literal's error doesn't say what to do
        None, _one_of("regression", "single_label_classification", "multi_label_classification")
    )
    label_mean: float | int = _field(0.0, _FINITE)
    label_std: float | int = _field(1.0, _POSITIVE)
    tie_word_embeddings: bool = True
    unpad_inputs: bool = True
    posenc_version: str | None = None

    @classmethod
    def from_preset(cls, preset: str, **overrides: Any) -> "PosEncConfig":
        """A configuration of a named size: `tiny`, `mini`, `small` or `base`.

        Args:
            preset (str): a name of `PRESETS`.
            **overrides: fields that differ from the preset.

        Raises:
            ValueError: `preset` isn't a name of `PRESETS`.
        """
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r} is unknown. Choose one of {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[preset], **overrides})

    def __post_init__(self, **kwargs: Any) -> None:
        check_types({**vars(self), **kwargs})
        # All heads, not the saved class alone: a classifier's checkpoint must load through AutoModel too. A map that
        # came with the file is kept: it names the repository of the code.
        self.auto_map = dict(kwargs.pop("auto_map", None) or AUTO_MAP)
        for key, value in kwargs.items():
            self._refuse_misspelt(key, value)
        self._name_labels(kwargs.pop("num_labels", None))
        torch_dtype = kwargs.pop("torch_dtype", None)
        dtype = torch_dtype if self.dtype is None else self.dtype
        self.dtype = dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype
        super().__post_init__(**kwargs)
        if self.posenc_version is None:
            self.posenc_version = POSENC_VERSION
        self.resolve()

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks a field as the constructor does. Any other name may be set too, as on every transformers config."""
        if name in _ROPE_OF_TRAINING:
            raise ValueError(f"PosEncConfig has no field {name!r}. Set rope_parameters={{{name!r}: {value!r}, ...}}.")
        if name in self.__dataclass_fields__:
            _require(name, value, self.__dataclass_fields__[name].metadata.get("check"))
        super().__setattr__(name, value)

    def validate_rope(self) -> None:
        """Does nothing: the scheme itself checks `rope_parameters`, and raises where transformers would warn."""

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Merges older names into `rope_parameters`; PreTrainedConfig's own would fill them for every scheme."""
        kwargs["rope_parameters"] = self.rope_parameters
        self.rope_parameters = _take_rope(kwargs) or None
        return kwargs

    def _refuse_misspelt(self, key: str, value: Any) -> None:
        if key in _KEYWORDS or key.startswith("_") or key.endswith("_token_id"):
            return
        classes = scheme_classes(self)
        for name, scheme in classes.items():
            if scheme is not None and key in own_arguments(scheme):
                given = {key: value} if len(classes) == 1 else {name: {key: value}}
                raise ValueError(
                    f"PosEncConfig has no field {key!r} (value {value!r}): it is an argument of the scheme. "
                    f"Give it as position_embedding_kwargs={given!r}."
                )
        real = [field.name for field in fields(self)] + [name for name in _KEYWORDS if not name.startswith("_")]
        if hint := did_you_mean(key, real, _OTHER_NAMES.get(key), cutoff=0.8):
            raise ValueError(f"PosEncConfig has no field {key!r} (value {value!r}). {hint.strip()}")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Reads a checkpoint's configuration; with `trust_remote_code=True` also the code of its author's own scheme.

        A model can then be built from the configuration alone. (Where hf_posenc is installed, transformers'
        `AutoConfig` doesn't pass `trust_remote_code` on, so its configurations lack that code.)

        Raises:
            ValueError: that code can't be loaded; or what transformers raises.
        """
        trusted = kwargs.pop("trust_remote_code", None)
        result = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        if trusted:
            with loading_from(pretrained_model_name_or_path, trusted, kwargs):
                config = result[0] if isinstance(result, tuple) else result
                load_classes(config, POSITIONS)
                config.resolve()
        return result

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds the configuration of a file, with `kwargs` in place of the file's values.

        A key that this version doesn't know is kept with a warning, since a newer version may have written it. A
        scheme named in `kwargs` replaces the file's, whose arguments then don't apply.
        """
        values, own = dict(config_dict), {field.name for field in fields(cls)}
        check_types(values)
        _override_scheme(values, kwargs)
        _override_rope(values, kwargs)
        _override_labels(values, kwargs)
        values |= {name: kwargs.pop(name) for name in list(kwargs) if name in own}
        unknown = {name: values.pop(name) for name in list(values) if name not in own and name not in _KEYWORDS}
        _warn_of_other_version(unknown, values.get("posenc_version"))
        result = super().from_dict(values, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        # Generation settings would make save_pretrained refuse this config, as it does for every transformers config.
        generation = GenerationConfig._get_default_generation_params()
        for name, value in unknown.items():
            if name not in generation and not name.startswith("_") and not hasattr(config, name):
                vars(config)[name] = value
        config.validate()  # a name that this version doesn't know may mean something to transformers
        return result

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes config.json and the code that it needs, stamped with this code's version.

        Raises:
            ValueError: the code of a scheme that isn't ours can't travel. Nothing is written then.
        """
        self.resolve()
        own, files = own_code(self)
        self.posenc_version = POSENC_VERSION
        # The code is copied next to the file, so the map must not point to the repository this config came from.
        codes = {**AUTO_MAP, **{key: value for key, value in self.auto_map.items() if isinstance(value, str)}}
        here = {key: value.rpartition("--")[2] for key, value in codes.items() if key != KEY}
        self.auto_map = here if own is None else {**here, KEY: own}
        if files:
            write_code(save_directory, files)
        super().save_pretrained(str(save_directory), push_to_hub=push_to_hub, **kwargs)

    def _get_files_timestamps(self, working_dir: Any) -> dict[str, float]:
        """When each file was last changed. Left out is a scheme's own code, so that it is uploaded in any case.

        Transformers uploads what changes after this call, and `save_pretrained` writes that code before.
        """
        own = own_code(self)[1]
        return {name: time for name, time in super()._get_files_timestamps(working_dir).items() if name not in own}

    def to_dict(self) -> dict[str, Any]:
        """All that config.json holds."""
        values = super().to_dict()
        for name in (ATTRIBUTE, GIVEN):
            values.pop(name, None)
        return values

    @property
    def embedding_width(self) -> int:
        """Width of token and added positional embeddings."""
        return self.embedding_size if self.embedding_size is not None else self.hidden_size

    @property
    def augmentation_length(self) -> int:
        """Augmented positions lie below this."""
        return self.position_augmentation_length or self.max_position_embeddings

    @property
    def token_rms(self) -> float:
        """Root mean square of the token embeddings at the start; added schemes start with the same."""
        return self.initializer_range * (self.embedding_width**0.5 if self.scale_embeddings else 1.0)

    def resolve(self) -> None:
        """Checks the fields against each other, and writes back what follows from them: labels, a scheme's arguments.

        The constructor calls it; so do the model and `save_pretrained`, since fields may have been set in between.

        Raises:
            ValueError: fields contradict each other, or the scheme can't be built.
        """
        self._name_labels()
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} isn't a multiple of num_attention_heads={self.num_attention_heads}. "
                "Change one of them."
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of {self.vocab_size} tokens. "
                "Give the tokenizer's pad_token_id, or None if it has no padding token."
            )
        if self.problem_type is None and (self.label_mean, self.label_std) != (0.0, 1.0):
            raise ValueError(
                f"label_mean={self.label_mean} and label_std={self.label_std} are for a regression, and problem_type "
                "is None. Give problem_type='regression' too."
            )
        resolve_position_config(self)

    def _name_labels(self, count: int | None = None) -> None:
        """Makes each map of labels from the other. Where they differ, `id2label` wins unless its names are defaults.

        Raises:
            ValueError: they don't name labels, or not as many as `count`.
        """
        given = {name: getattr(self, name) for name in ("id2label", "label2id")}
        found = [_names(name, labels) for name, labels in given.items() if labels is not None]
        if not found:
            if count is not None:
                self.num_labels = count
            return
        names = found[0]
        if found[-1] != names:
            if names == [f"LABEL_{number}" for number in range(len(found[-1]))]:
                names = found[-1]
            together = " and ".join(f"{name}={labels!r:.200}" for name, labels in given.items())
            logger.warning(f"{together} contradict each other: {dict(enumerate(names))!r:.200}.")
        if count is not None and count != len(names):
            raise ValueError(f"num_labels={count} contradicts the {len(names)} names {names!r:.80}. Leave it out.")
        self.id2label = dict(enumerate(names))
        self.label2id = {name: number for number, name in enumerate(names)}


PosEncConfig.register_for_auto_class()
