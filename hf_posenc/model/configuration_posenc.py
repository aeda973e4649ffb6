"""`PosEncConfig`: everything that shapes a PosEnc encoder, checked before a weight is allocated."""

import difflib
import importlib.metadata
import numbers
import re
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

POSENC_VERSION = "0.1.0"
"""The version of the code in this folder; recorded in every checkpoint as `posenc_version`."""

MINIMUM_TRANSFORMERS = "5.10.1"

MOST_LABELS = 2**20
"""A config names each label, so that a number without bounds would fill the memory of who reads it."""


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


# Before any import that an older transformers can't satisfy: its user reads one sentence and not a traceback's worth.
_installed_transformers = importlib.metadata.version("transformers")
if _release(_installed_transformers) < _release(MINIMUM_TRANSFORMERS):
    raise ImportError(
        f"PosEnc models need transformers >= {MINIMUM_TRANSFORMERS}, this is {_installed_transformers}. "
        f'Upgrade with: pip install -U "transformers>={MINIMUM_TRANSFORMERS}"'
    )

from huggingface_hub.dataclasses import strict  # noqa: E402  (the version check comes first)
from transformers import GenerationConfig, PreTrainedConfig  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402
from transformers.utils import logging  # noqa: E402

from .position_alibi import AlibiPosition  # noqa: E402
from .position_deberta import DebertaPosition  # noqa: E402
from .position_fire import FirePosition  # noqa: E402
from .position_fourier import FourierPosition  # noqa: E402
from .position_kerple import KerplePosition  # noqa: E402
from .position_learned import LearnedPosition  # noqa: E402
from .position_lspe import LSPEPosition  # noqa: E402
from .position_mlp_bias import MLPBiasPosition  # noqa: E402
from .position_none import NoPosition  # noqa: E402
from .position_relative_key import RelativeKeyPosition, RelativeKeyQueryPosition  # noqa: E402
from .position_rope import RotaryPosition  # noqa: E402
from .position_sinusoidal import SinusoidalPosition  # noqa: E402
from .position_t5 import T5Position  # noqa: E402
from .position_tupe import TupePosition  # noqa: E402
from .positions import (  # noqa: E402
    GIVEN,
    POSITIONS,
    own_arguments,
    own_code,
    resolve_position_config,
    scheme_classes,
)
from .scheme_code import ATTRIBUTE, KEY, load_classes, loading_from, write_code  # noqa: E402

if TYPE_CHECKING:
    # Never run, but found by the code that copies a checkpoint's files: a saved config alone can then build a model.
    from .modeling_posenc import PosEncModel  # noqa: F401

logger = logging.get_logger(__name__)

# The table of schemes. It stands in this file, whose own imports are all that a transformers older than
# MINIMUM_TRANSFORMERS copies from a local folder: were it elsewhere, users of one would never reach the check above.
POSITIONS.update(
    {
        "none": NoPosition,
        "sinusoidal": SinusoidalPosition,
        "learned": LearnedPosition,
        "lspe": LSPEPosition,
        "fourier": FourierPosition,
        "rope": RotaryPosition,
        "alibi": AlibiPosition,
        "t5": T5Position,
        "kerple": KerplePosition,
        "fire": FirePosition,
        "mlp_bias": MLPBiasPosition,
        "tupe": TupePosition,
        "relative_key": RelativeKeyPosition,
        "relative_key_query": RelativeKeyQueryPosition,
        "deberta": DebertaPosition,
    }
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

_UPPER_BOUNDS = {
    "vocab_size": 2**28,
    "hidden_size": 2**17,
    "embedding_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2**12,
    "num_attention_heads": 2**12,
    "max_position_embeddings": MAX_POSITIONS,
    "position_augmentation_length": MAX_POSITIONS,
    "type_vocab_size": 2**20,
}

# What other model families call our fields. They are far from our spelling, so likeness alone wouldn't find them.
_OTHER_NAMES = {
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_embd": "hidden_size",
    "num_layers": "num_hidden_layers",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "dim_feedforward": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "n_positions": "max_position_embeddings",
    "max_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "max_seq_length": "max_position_embeddings",
    "max_length": "max_position_embeddings",
    "max_len": "max_position_embeddings",
    "model_max_length": "max_position_embeddings",
    "num_classes": "num_labels",
    "n_labels": "num_labels",
    "n_vocab": "vocab_size",
    "hidden_dim": "hidden_size",
    "embed_dim": "embedding_size",
    "activation_function": "hidden_act",
    "hidden_activation": "hidden_act",
    "unpad": "unpad_inputs",
    "padding_idx": "pad_token_id",
    "rope_base": "rope_theta",
    "init_std": "initializer_range",
    "pooling": "classifier_pooling",
    "pooling_mode": "classifier_pooling",
    "pre_norm": "norm_position",
    "position": "position_embedding_type",
    "position_type": "position_embedding_type",
    "pos_encoding": "position_embedding_type",
    "positional_encoding": "position_embedding_type",
    "position_encoding_type": "position_embedding_type",
    "rope_scaling_factor": "rope_parameters",
}

# Keywords that PreTrainedConfig takes beyond its fields, and attributes that it or the Hub writes into a config file.
_BASE_KEYWORDS = {
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "finetuning_task",
    "tie_encoder_decoder",
    "gradient_checkpointing",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "partial_rotary_factor",
    "quantization_config",
    "rope_scaling",
    "rope_theta",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


def _is_map_of_code(value: Any) -> bool:
    def named(one: Any) -> bool:  # a tokenizer has two classes, or one and None
        return isinstance(one, str) or (
            isinstance(one, list | tuple) and all(x is None or isinstance(x, str) for x in one)
        )

    return isinstance(value, dict) and all(map(named, value.values()))


def _is_quantization(value: Any) -> bool:
    return hasattr(value, "to_dict") or (isinstance(value, dict) and isinstance(value.get("quant_method"), str))


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "norm_position": ("pre", "post"),
    "position_augmentation": ("none", "shift", "random"),
    "classifier_pooling": ("mean", "cls", "max"),
    "problem_type": (None, "regression", "single_label_classification", "multi_label_classification"),
}


def _check_choice(name: str, value: Any) -> None:
    """Refuses a value that names none of a few things."""
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"{name}={value!r} is unknown. Choose one of {', '.join(map(str, _CHOICES[name]))}.")
    acts = name == "hidden_act" or (name == "classifier_hidden_act" and value is not None)
    if acts and value not in ACT2FN:
        near = difflib.get_close_matches(str(value), list(ACT2FN), n=3)
        raise ValueError(
            f"{name}={value!r} is no activation of transformers. "
            f"{'Near it: ' + ', '.join(near) + '. ' if near else ''}Common ones: gelu, relu, silu, tanh."
        )


_DTYPES = ("float32", "bfloat16", "float16", "float64")

_KEYWORD_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "auto_map": ("an object of names of classes", _is_map_of_code),
    "model_type": ("a string", lambda value: isinstance(value, str)),
    "architectures": (
        "a list of names of classes",
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    ),
    "quantization_config": ("an object with a quant_method", _is_quantization),
    **dict.fromkeys(
        ("rope_scaling", "rope_parameters"),
        ("an object such as {'rope_type': 'linear', 'factor': 2.0}", lambda value: isinstance(value, dict)),
    ),
    "attn_implementation": ("a string", lambda value: isinstance(value, str | dict)),
    "_attn_implementation": ("a string", lambda value: isinstance(value, str | dict)),
    "output_attentions": ("true or false", lambda value: isinstance(value, bool)),
    "gradient_checkpointing": ("true or false", lambda value: isinstance(value, bool)),
}
"""Keywords that transformers looks into: what is accepted, in words and as a test."""


def check_types(given: dict[str, Any]) -> None:
    """Refuses a value of `_KEYWORD_TYPES` that isn't as it says there."""
    for name, (accepted, fits) in _KEYWORD_TYPES.items():
        value = given.get(name)
        if value is not None and not fits(value):
            raise ValueError(f"{name}={value!r:.80} is of a wrong type. Give {accepted}, or leave it out.")


_ROPE_OF_TRAINING = ("rope_theta", "partial_rotary_factor")
_ROPE = ("rope_parameters", *_ROPE_OF_TRAINING, "rope_scaling")


def _take_rope(values: dict[str, Any]) -> dict[str, Any]:
    """Takes out of a config's values what they say of RoPE, under its older names too, in the form of one dict.

    Raises:
        ValueError: the names contradict each other.
    """
    said = {name: value for name in _ROPE if (value := values.pop(name, None)) is not None}
    check_types(said)
    found: dict[str, Any] = {}
    for name, value in said.items():
        for key, given in ({name: value} if name in _ROPE_OF_TRAINING else value).items():
            today = "rope_type" if key == "type" else key
            if given is None or (known := found.setdefault(today, given)) is given or known == given:
                continue
            together = ", ".join(f"{name}={value!r:.200}" for name, value in said.items())
            raise ValueError(
                f"{today}={known!r} contradicts {key}={given!r} in {together}. Give rope_parameters alone."
            )
    return found


def _labels(id2label: Any, label2id: Any, count: Any) -> tuple[dict[int, str] | None, dict[str, int] | None]:
    """Both maps, the one that isn't given made from the other. Neither given: None, for transformers to number them.

    Where they contradict each other, as after one of them was set, `id2label` counts and that is said; but not where
    it only has LABEL_0 and so on.

    Raises:
        ValueError: they aren't maps of names and numbers from 0 on, or not of as many as `count`.
    """
    if count is not None and not (_is_whole(count) and 1 <= count <= MOST_LABELS):
        raise ValueError(f"num_labels={count!r:.80} is out of range. Give a whole number from 1 to {MOST_LABELS}.")
    example = "Give id2label={0: 'no', 1: 'yes'}, and label2id={'no': 0, 'yes': 1} or none."
    for name, value in (("id2label", id2label), ("label2id", label2id)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{name}={value!r:.80} is of a wrong type. {example}")
    if id2label is None and label2id is None:
        return None, None
    found = []
    for given, pairs in (
        (f"id2label={id2label!r:.80}", None if id2label is None else list(id2label.items())),
        (f"label2id={label2id!r:.80}", None if label2id is None else [(n, name) for name, n in label2id.items()]),
    ):
        if pairs is None:
            continue
        numbered = {int(number): name for number, name in pairs if str(number).isdecimal() and len(str(number)) < 9}
        if sorted(numbered) != list(range(len(pairs))) or not pairs:
            raise ValueError(f"{given} doesn't number labels from 0 on without a gap. {example}")
        names = {number: numbered[number] for number in range(len(pairs))}
        if not all(isinstance(name, str) for name in names.values()) or len(set(names.values())) < len(names):
            raise ValueError(f"{given} must give each label a name of its own, a string. {example}")
        found.append(names)
    kept = found[0]
    if found[-1] != kept:
        if all(name == f"LABEL_{number}" for number, name in kept.items()) and len(found[-1]) == len(kept):
            kept = found[-1]
        logger.warning(
            f"id2label={found[0]!r:.200} and label2id={label2id!r:.200} contradict each other: {kept!r:.200}."
        )
    if count is not None and count != len(kept):
        raise ValueError(
            f"num_labels={count} contradicts the {len(kept)} names in id2label={kept!r:.80}. Leave num_labels out."
        )
    return kept, {name: number for number, name in kept.items()}


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, NumPy's too."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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
            config. Resolved defaults are written back, so that a checkpoint says all that it was built with.
        rope_parameters (dict, optional): for `rope` alone, in the form of transformers v5: `rope_type` (`default`,
            `linear`, `dynamic`, `yarn`, `longrope`, `llama3`, `proportional`), `rope_theta`, `partial_rotary_factor`
            and the type's own keys: see `RotaryPosition`. Resolved values are written back.
        position_augmentation (str): what training, never evaluation, does to positions, once per sequence and batch.
            `none`; `shift`: all by the same random number (SHAPE, Kiyono et al. 2021, arXiv 2109.05644); `random`: a
            random sample, in order, of all positions below `position_augmentation_length` (Ruoss et al. 2023, arXiv
            2305.16843), so that long texts meet no position that training hasn't seen. Schemes that see distances
            alone don't notice a shift.
        position_augmentation_length (int, optional): augmented positions lie below it. None:
            `max_position_embeddings`. No training sequence may be longer.
        norm_position (str): `pre` (LayerNorm before each block, and one at the end) or `post` (BERT).
        scale_embeddings (bool): multiply token embeddings by sqrt(D), as in Vaswani et al. 2017, arXiv 1706.03762.
        classifier_pooling (str): how a sequence becomes one vector: `mean` or `max` over its tokens, `cls` for its
            first token. Padding never counts.
        classifier_hidden_act (str, optional): activation of a dense layer between pooling and classifier (`tanh` as
            in BERT, `gelu`, `relu`, ...). None: no such layer.
        classifier_dropout (float, optional): dropout before the classifier. None: `hidden_dropout_prob`.
        tie_word_embeddings (bool): masked LM: the decoder shares the token embedding.
        unpad_inputs (bool): compute on real tokens only. False: on the whole padded batch (same results, slower).
        posenc_version (str, optional): the version of the code that wrote the checkpoint.

    Raises:
        ValueError: a value is out of range; a keyword looks like a misspelt field; the scheme or its arguments don't
            exist. The message names the value, what is accepted and what to do.
        StrictDataclassFieldValidationError: a value has the wrong type.
    """

    model_type = "posenc"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.0
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    pad_token_id: int | None = 0
    embedding_size: int | None = None
    position_embedding_type: str = "rope"
    position_embedding_kwargs: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    position_augmentation: str = "none"
    position_augmentation_length: int | None = None
    norm_position: str = "pre"
    scale_embeddings: bool = False
    classifier_pooling: str = "mean"
    classifier_hidden_act: str | None = None
    classifier_dropout: float | int | None = None
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
        # All heads, not the saved class alone: a classifier's checkpoint must load through AutoModel too. A map that
        # came with the file is kept, for it says from which repository the code is.
        self._check_keywords(kwargs)
        self.auto_map = dict(kwargs.pop("auto_map", None) or AUTO_MAP)
        self._refuse_misspelt(kwargs)
        super().__post_init__(**kwargs)
        if self.posenc_version is None:
            self.posenc_version = POSENC_VERSION
        self.validate_sizes()
        resolve_position_config(self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses, of a config that was made, what its constructor refuses: a misspelt field, an unknown choice."""
        if name in _ROPE_OF_TRAINING:
            raise ValueError(f"PosEncConfig has no field {name!r}. Set rope_parameters={{{name!r}: {value!r}, ...}}.")
        is_length = _OTHER_NAMES.get(name) == "max_position_embeddings"  # other libraries note theirs so
        if name not in self.__dataclass_fields__ and not hasattr(self, name) and not is_length:
            self._refuse_misspelt({name: value}, cutoff=0.9)
        _check_choice(name, value)
        super().__setattr__(name, value)

    def _check_keywords(self, kwargs: dict[str, Any]) -> None:
        """Refuses what transformers would take for another type, and fail on later in words that name no field."""
        check_types({"model_type": self.model_type, "architectures": self.architectures, **kwargs})
        if kwargs.get("num_labels", 0) is None:
            del kwargs["num_labels"]
        elif _is_whole(kwargs.get("num_labels")):
            kwargs["num_labels"] = int(kwargs["num_labels"])
        self.id2label, self.label2id = _labels(self.id2label, self.label2id, kwargs.get("num_labels"))
        for values, name in ((vars(self), "dtype"), (kwargs, "torch_dtype")):
            dtype = values.get(name)
            if isinstance(dtype, str):
                values[name] = dtype = dtype.removeprefix("torch.")
            if dtype is not None and str(dtype).removeprefix("torch.") not in _DTYPES:
                raise ValueError(f"{name}={dtype!r:.80} is unknown. Choose one of {', '.join(_DTYPES)}.")

    def validate_rope(self) -> None:
        """Nothing: the scheme itself checks `rope_parameters`, and raises where transformers would warn."""

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Called by PreTrainedConfig, which would fill them for every scheme: joins the older names to them."""
        kwargs["rope_parameters"] = self.rope_parameters
        self.rope_parameters = _take_rope(kwargs) or None
        return kwargs

    def _refuse_misspelt(self, kwargs: dict[str, Any], cutoff: float = 0.8) -> None:
        real = [field.name for field in fields(self)]
        real += [name for name in _BASE_KEYWORDS if not name.startswith("_")]
        for key, value in kwargs.items():
            if key in _BASE_KEYWORDS or key.startswith("_") or key.endswith("_token_id"):
                continue
            classes = scheme_classes(self)
            for name, scheme in classes.items():
                if scheme is not None and key in own_arguments(scheme):
                    given = {key: value} if len(classes) == 1 else {name: {key: value}}
                    raise ValueError(
                        f"PosEncConfig has no field {key!r} (value {value!r}): it is an argument of the scheme. "
                        f"Give it as position_embedding_kwargs={given!r}."
                    )
            near = difflib.get_close_matches(key, real, n=1, cutoff=cutoff)
            meant = _OTHER_NAMES.get(key) or next(iter(near), None)
            if meant:
                raise ValueError(f"PosEncConfig has no field {key!r} (value {value!r}). Did you mean {meant!r}?")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Reads a checkpoint's configuration; with `trust_remote_code=True` also the code of its author's own scheme.

        A model can then be built from the configuration alone. (Transformers' `AutoConfig` keeps the word of trust to
        itself where hf_posenc is installed, so that its configurations lack that code.)

        Raises:
            ValueError: that code can't be loaded; or what transformers raises.
        """
        trusted = kwargs.pop("trust_remote_code", None)
        result = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        if trusted:
            with loading_from(pretrained_model_name_or_path, trusted, kwargs):
                config = result[0] if isinstance(result, tuple) else result
                load_classes(config, POSITIONS)
                resolve_position_config(config)
        return result

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds the configuration of a file.

        A key that this version doesn't know is kept with a warning, since a newer version may have written it. A
        scheme named in `kwargs` replaces the file's, whose arguments then don't apply.
        """
        values = dict(config_dict)
        own = {field.name for field in fields(cls)}
        # A scaling replaces a scaling; the angles that the weights were trained with stay unless they are named.
        replaced = "rope_parameters" in kwargs or kwargs.get("rope_scaling") is not None
        rope = _take_rope(kwargs)
        overrides = {name: kwargs.pop(name) for name in list(kwargs) if name in own and name not in _BASE_KEYWORDS}
        if overrides.get("position_embedding_type", values.get("position_embedding_type")) != values.get(
            "position_embedding_type"
        ):
            for name in ("position_embedding_kwargs", *_ROPE):
                values.pop(name, None)
            if values.get("auto_map"):
                values["auto_map"] = {key: value for key, value in values["auto_map"].items() if key != KEY}
        # What is asked for now replaces what the file says of labels, in whichever of three words it is said.
        if kwargs.get("num_labels", 0) is None:
            del kwargs["num_labels"]
        count = kwargs.get("num_labels")
        names = values.get("id2label") or values.get("label2id")
        if {"id2label", "label2id"} & overrides.keys() or (count is not None and len(names or ()) != count):
            for name in ("id2label", "label2id", "num_labels"):
                values.pop(name, None)
        trained = _take_rope(values)
        kept = {name: value for name, value in trained.items() if not replaced or name in _ROPE_OF_TRAINING}
        values |= {**overrides, "rope_parameters": {**kept, **rope} or None}
        unknown = {name: values.pop(name) for name in list(values) if name not in own and name not in _BASE_KEYWORDS}
        if unknown:
            logger.warning(
                f"PosEncConfig {POSENC_VERSION} doesn't know {', '.join(map(repr, unknown))} in this configuration; "
                "kept, without effect. If a newer hf_posenc wrote it, upgrade hf_posenc."
            )
        written_by = values.get("posenc_version")
        if isinstance(written_by, str) and _release(written_by) > _release(POSENC_VERSION):
            logger.warning(
                f"This checkpoint was written by hf_posenc {written_by}, the code here is {POSENC_VERSION}: results "
                "may differ. Upgrade hf_posenc, or load with the checkpoint's own code (trust_remote_code=True in a "
                "process that doesn't import hf_posenc)."
            )
        result = super().from_dict(values, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        # What generation takes would make the config refuse to be saved, as every transformers config does.
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
        own, files = own_code(self)
        self.posenc_version = POSENC_VERSION
        self.id2label, self.label2id = _labels(self.id2label, self.label2id, None)  # one may have been set alone
        # The code is copied next to the file, so the map must not point to where this config came from.
        codes = {**AUTO_MAP, **{key: value for key, value in self.auto_map.items() if isinstance(value, str)}}
        here = {key: value.rpartition("--")[2] for key, value in codes.items() if key != KEY}
        self.auto_map = here if own is None else {**here, KEY: own}
        if files:
            write_code(save_directory, files)
        super().save_pretrained(str(save_directory), push_to_hub=push_to_hub, **kwargs)

    def _get_files_timestamps(self, working_dir: Any) -> dict[str, float]:
        """What needn't be uploaded: not a scheme's own code, which was written before transformers asks."""
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

    def validate_sizes(self) -> None:
        """Sizes are positive and bounded, probabilities are probabilities, labels have names and numbers."""
        for name, bound in _UPPER_BOUNDS.items():
            value = getattr(self, name)
            least = 0 if name == "type_vocab_size" else 1
            if value is None and name in ("embedding_size", "position_augmentation_length"):
                continue
            if not least <= value <= bound:
                raise ValueError(
                    f"{name}={value!r} is out of range. It must be a whole number from {least} to {bound}."
                )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} isn't a multiple of num_attention_heads={self.num_attention_heads}. "
                "Change one of them."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if not (value is None and name == "classifier_dropout") and not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r} is out of range. A probability lies between 0 and 1.")
        for name in ("layer_norm_eps", "initializer_range"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)!r} is out of range. It must be a positive number.")
        _labels(self.id2label, self.label2id, None)
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of {self.vocab_size} tokens. "
                "Give the tokenizer's pad_token_id, or None if it has no padding token."
            )

    def validate_position(self) -> None:
        """The schemes exist and take their arguments; augmented positions fit them."""
        resolve_position_config(self)


PosEncConfig.register_for_auto_class()
