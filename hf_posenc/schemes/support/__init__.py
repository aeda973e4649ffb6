"""Help for those who write configurations, and load other people's schemes: registered as `PosEncConfig.support`."""

import difflib
import inspect
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from ...errors import did_you_mean
from ...model.configuration_posenc import POSENC_VERSION, PosEncConfig
from ...model.position_rope import PLAIN_ROPE
from ...model.scheme_base import PositionScheme
from ...model.scheme_factory import make_scheme, own_arguments, scheme_kwargs, sizes_of
from ...model.scheme_table import AUGMENTATIONS, EMBEDDING_STEPS, SCHEMES
from ...model.seam import ConfigSupport
from ..names import FieldError, scheme_names
from .loaded_code import (
    built_schemes,
    find_scheme,
    is_deferred,
    is_newer,
    loading_checkpoint,
    note_classes,
    note_origin,
    saved_schemes,
)
from .rows import may_unpad
from .saved_code import collect_code, is_built_in, source_file

logger = logging.get_logger(__name__)

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "small": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""The sizes of the BERT miniatures (Turc et al. 2019, arXiv 1908.08962) and of BERT base.

Their weights start with a standard deviation of hidden_size^-0.5, so that the logits of attention are of size 1 from
the start: with BERT's .02 a narrow encoder attends evenly to all tokens for most of a short training.
"""
for _size in SIZES.values():
    _size["initializer_range"] = round(_size["hidden_size"] ** -0.5, 4)

_OF_SCHEME = ("position_embedding_type", "position_embedding_kwargs", "rope_parameters")
# Fields whose value a loader can't tell from the weights: with another value a model loads, and computes nonsense.
_BUILT_WITH = (
    *("type_vocab_size", "embedding_size", "tie_word_embeddings", "num_attention_heads", "hidden_act"),
    *("mlp_gated", "attention_bias", "mlp_bias"),
    *("layer_norm_eps", "norm_position", "norm_type", "token_dropout", "scale_embeddings"),
    *("classifier_hidden_act", "classifier_norm"),
    *_OF_SCHEME,
)

_SIZES = {
    "max_positions": "max_position_embeddings",
    "token_rms": "initializer_range",
    "num_layers": "num_hidden_layers",
}
"""The fields behind what a scheme may take from a config, beyond those that are compared in any case."""
_NEW_LAYERS = (
    "For a model of fewer layers, make one of the config that you want, and copy the weights of the layers that you "
    "keep into its layers."
)
_FIELDS = [field.name for field in fields(PosEncConfig)]  # without its class variables
_KEYWORDS = (
    *("attn_implementation", "auto_map", "experts_implementation", "model_type", "name_or_path", "num_labels"),
    *("output_attentions", "quantization_config", "task_specific_params", "torch_dtype", "use_cache"),
    *("_attn_implementation", "_commit_hash", "_name_or_path"),
)
"""What PreTrainedConfig takes beyond its fields."""
_OLDER_ROPE = ["rope_scaling", "rope_theta", "partial_rotary_factor"]
"""What transformers had before `rope_parameters`, and would ignore or let replace it."""
_NUMBERED = "must give labels the numbers 0, 1, 2, ... without a gap."


class PackageSupport(ConfigSupport):
    """Refuses what would be ignored, lost or not loaded again, and takes schemes from a checkpoint that is trusted."""

    find_scheme = staticmethod(find_scheme)
    loading = staticmethod(loading_checkpoint)
    may_unpad = staticmethod(may_unpad)

    def prepare(self, config: PosEncConfig, keywords: dict[str, Any]) -> None:
        """Refuses keywords that aren't known, and names labels; of a file's, one that is like a field is said."""
        for key in [key for key in keywords if not _is_known(key)]:
            if key in _OLDER_ROPE:
                raise ValueError(f"{key!r} isn't taken. Give rope_parameters, with the keys that change.")
            if config.posenc_version is None:  # else these are the values of a file, or of another config
                _refuse_unknown(config, key, keywords[key])
            if hint := did_you_mean(key, _FIELDS, cutoff=0.8):
                logger.warning_once(f"The configuration's {key!r} has no effect. {hint.strip()}")
            if key.startswith("_") or hasattr(config, key):
                del keywords[key]
        _name_labels(config)
        note_origin(config)

    def values_of_file(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """The values of a file, with those that are given in their place.

        A scheme that is given replaces the file's, whose arguments then don't apply; `label2id` its names of labels.
        """
        merged = dict(values)
        scheme = values.get("position_embedding_type")
        is_changed = given.get("position_embedding_type", scheme) != scheme
        if is_changed:
            for name in ("position_embedding_kwargs", "rope_parameters"):
                merged.pop(name, None)
        if is_changed or isinstance(given.get("position_embedding_kwargs"), dict):
            _say_what_is_reset(values, merged, {name: given[name] for name in _OF_SCHEME if name in given})
        if given.get("label2id") and not given.get("id2label"):
            merged.pop("id2label", None)  # which would win
        known = {*_FIELDS, *_OLDER_ROPE} - {"rope_parameters"}
        merged |= {name: given.pop(name) for name in list(given) if name in known}
        if is_newer(written_by := merged.get("posenc_version")):
            logger.warning(
                f"This checkpoint was written by hf_posenc {written_by}, the code here is {POSENC_VERSION}: results "
                "may differ. Upgrade hf_posenc, or load with the checkpoint's own code (trust_remote_code=True in a "
                "process that doesn't import hf_posenc)."
            )
        return merged

    def check(self, config: PosEncConfig) -> None:
        """Checks what those who write a configuration get wrong; makes each map of labels from the other."""
        _name_labels(config)
        if config.problem_type is None and (config.label_mean, config.label_scale) != (0.0, 1.0):
            raise ValueError(
                f"label_mean={config.label_mean} and label_scale={config.label_scale} are for a regression, and "
                "problem_type is None. Give problem_type='regression' too."
            )
        if config.token_dropout is not None and config.token_dropout >= config.vocab_size:
            raise ValueError(
                f"token_dropout={config.token_dropout} is outside the vocabulary of {config.vocab_size} tokens. Give "
                "the mask token's id, or None."
            )
        if config.classifier_norm and config.classifier_hidden_act is None:
            raise ValueError("classifier_norm=True is a norm after the dense layer. Give classifier_hidden_act too.")
        names = config.architectures or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"architectures={names!r} is no list of the names of model classes.")
        _check_scheme(config)
        for name in ("position_embedding_kwargs", "rope_parameters"):
            for fault in _not_json(getattr(config, name)):
                raise ValueError(
                    f"{name} holds {fault!r}, of type {type(fault).__name__}, which config.json can't hold as it is. "
                    "Give numbers of Python, strings, truth values, lists, and dicts with strings as keys."
                )

    def check_built(self, config: PosEncConfig, scheme: Any) -> None:
        """Refuses a scheme whose state a checkpoint wouldn't hold, whose child hides a hook, or whose table is short.

        Raises:
            ValueError: it has a buffer, modules in a Python list or dict, or a child with the name of a hook; or
                position augmentation goes past its positions.
        """
        attributes = [item for part in scheme.modules() for item in vars(part).items() if item[0] != "_modules"]
        children = [child for child, _ in scheme.named_children()]
        faults = {
            "a buffer, which loading would leave uninitialised. Compute it from Python numbers in the hook that needs "
            "it": [name for name, _ in scheme.named_buffers()],
            "a Python list or dict of modules, whose weights nobody would train, move or save. Make it an "
            "nn.ModuleList or nn.ModuleDict": [name for name, value in attributes if _has_modules(value)],
            "a child with the name of a hook. Rename it": [name for name in children if hasattr(PositionScheme, name)],
        }
        for what, names in faults.items():
            if names:
                raise ValueError(f"{type(scheme).__name__}.{names[0]} is {what}.")
        note_classes(config, {scheme.name: type(scheme)})
        limit = scheme.max_length
        if config.position_augmentation != "none" and limit is not None and config.augmentation_length > limit:
            raise ValueError(
                f"position_augmentation_length={config.augmentation_length} is past the {limit} positions of "
                f"{scheme.name!r}. Make it {limit} or less, or raise max_position_embeddings."
            )

    def check_saving(self, model: Any) -> None:
        """Refuses a model whose code can't travel, or whose config was changed after it was built.

        Raises:
            ValueError: loaded again, the weights would compute something else; or see `code_files`.
        """
        body = model.base_model
        schemes = built_schemes(body)
        fields = [*_BUILT_WITH, *_sizes_changed(body._config_when_built, model.config, schemes.values())]
        as_built = {name: getattr(body._config_when_built, name) for name in fields}
        for name, built in {"num_hidden_layers": len(body.layers), **as_built}.items():
            value = getattr(model.config, name)
            if value != built:
                has_lost_layers = len(body.layers) != body._config_when_built.num_hidden_layers
                way_out = f"Set it back to {built!r}; where another value is wanted, give it on loading: "
                way_out += f"from_pretrained(..., {name}=...)."
                raise ValueError(
                    f"config.{name}={value!r} isn't what this model was built with, {built!r}: loaded again, the "
                    f"weights would compute something else. {_NEW_LAYERS if has_lost_layers else way_out}"
                )
        for number, layer in enumerate(body.layers):
            built = getattr(getattr(layer, "attention", None), "layer_number", number)
            if built != number:
                fault = f"Layer {number} was built as layer {built}: loaded again, it may compute something else."
                raise ValueError(f"{fault} {_NEW_LAYERS}")
        note_classes(model.config, schemes)
        code_files(model.config)

    def code_files(self, config: PosEncConfig, folder: Path) -> dict[str, str]:
        """The code of a checkpoint, see `code_files`; not where it would replace what isn't a checkpoint's."""
        sources = [source_file(scheme) for scheme in saved_schemes(config).values() if not is_built_in(scheme)]
        if folder.resolve() in [source.resolve().parent for source in sources]:
            raise ValueError(
                f"{str(folder)!r} holds the file that a scheme was imported from, and which the copy that "
                "travels would replace. Save into another folder."
            )
        files = code_files(config)
        lost = [name for name, text in files.items() if _differs(folder / name, text)]
        if lost and not _holds_checkpoint(folder):
            raise ValueError(
                f"{str(folder)!r} holds no checkpoint of ours, but a file {lost[0]}, which the copy that travels would "
                "replace. Save into another folder."
            )
        return files


def from_size(cls: type[PosEncConfig], size: str, **overrides: Any) -> PosEncConfig:
    """A configuration of a named size: `tiny`, `mini`, `small` or `base`.

    Args:
        size (str): a name of `hf_posenc.SIZES`.
        **overrides: fields that differ from the size's.

    Raises:
        ValueError: `size` isn't a name of `SIZES`.
    """
    if size not in SIZES:
        raise ValueError(f"size={size!r} is unknown. Choose one of {', '.join(SIZES)}.")
    return cls(**{**SIZES[size], **overrides})


PosEncConfig.support = PackageSupport()
PosEncConfig.from_size = classmethod(from_size)  # type: ignore[assignment]


def code_files(config: PosEncConfig) -> dict[str, str]:
    """The code of a checkpoint, by file name: the model, and the schemes and other parts that the configuration names.

    Raises:
        ValueError: the code of a scheme can't travel, or isn't loaded and not trusted.
    """
    used = {"AUGMENTATIONS": _used(AUGMENTATIONS, config.position_augmentation)}
    used["EMBEDDING_STEPS"] = _used(EMBEDDING_STEPS, *["token_dropout"] * (config.token_dropout is not None))
    return collect_code(config.position_embedding_type, saved_schemes(config), used)


def _sizes_changed(built: PosEncConfig, config: PosEncConfig, schemes: Iterable[Any]) -> list[str]:
    """The fields of which the schemes of a model took a size that isn't the config's any more.

    What takes `rope_parameters` has the trained length from there; `dynamic` takes a shorter one from the config.
    """
    fields = set()
    for scheme in schemes:
        before, now = sizes_of(built, scheme), sizes_of(config, scheme)
        if {"rope_parameters", "max_positions"} <= now.keys():
            turned = built.rope_parameters or {}
            trained = turned["original_max_position_embeddings"] if turned.get("rope_type") == "dynamic" else 0
            before["max_positions"] = max(now["max_positions"], trained)
        fields |= {_SIZES[name] for name in _SIZES if name in now and now[name] != before[name]}
    return sorted(fields)


def _differs(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() != text.encode()


def _holds_checkpoint(folder: Path) -> bool:
    try:
        return json.loads((folder / "config.json").read_bytes())["model_type"] == PosEncConfig.model_type
    except (OSError, ValueError, TypeError, LookupError):
        return False


def _used(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: function for name, function in table.items() if name in names}


def takes_rope_parameters(scheme: Any) -> bool:
    """True where a scheme takes `config.rope_parameters`."""
    return "rope_parameters" in inspect.signature(scheme.__init__).parameters


def _is_known(name: str) -> bool:
    return name in _FIELDS or name in _KEYWORDS or name.endswith("_token_id")


def _refuse_unknown(config: PosEncConfig, key: str, value: Any) -> None:
    names = config.position_embedding_type.split("+")
    for name in names:
        if name in SCHEMES and key in own_arguments(SCHEMES[name]):
            kwargs = {key: value} if len(names) == 1 else {name: {key: value}}
            raise ValueError(
                f"PosEncConfig has no field {key!r} (value {value!r}): it is an argument of the scheme. "
                f"Give it as position_embedding_kwargs={kwargs!r}."
            )
    near = ", ".join(difflib.get_close_matches(key, [*_FIELDS, *_KEYWORDS]))
    raise ValueError(
        f"PosEncConfig has no field {key!r} (value {value!r}). {f'The nearest: {near}. ' if near else ''}Where the "
        f"value is a note of your own, set it on the config that was made: config.{key} = ..."
    )


def _name_labels(config: PosEncConfig) -> None:
    """Makes a map of labels that is missing, or whose names are LABEL_0, ..., from the other; else `id2label` wins.

    transformers reads `id2label` alone, and would save the other as it was.

    Raises:
        FieldError: a number is none, or one is left out.
    """
    try:
        names = {int(number): name for name, number in (config.label2id or {}).items()}
        current = {int(number): name for number, name in (config.id2label or {}).items()}  # a file's are strings
    except (TypeError, ValueError) as error:
        raise FieldError("label2id", config.label2id, f"or id2label={config.id2label!r} {_NUMBERED}") from error
    if names and current in ({}, {number: f"LABEL_{number}" for number in range(len(names))}):
        config.id2label = current = names
    if current:
        config.label2id = {name: number for number, name in current.items()}
    if sorted(current) != list(range(len(current))):
        raise FieldError("id2label", current, _NUMBERED)


def _not_json(value: Any) -> Iterator[Any]:
    """Parts of a value that JSON can't hold, or gives back as others: numbers of NumPy, or as keys."""
    if isinstance(value, dict):
        yield from (key for key in value if not isinstance(key, str))
        for part in value.values():
            yield from _not_json(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _not_json(part)
    elif not (value is None or isinstance(value, (str, bool, int, float))):
        yield value


def _check_scheme(config: PosEncConfig) -> None:
    """Checks the names of the scheme and its arguments, unless its code comes with the checkpoint and isn't loaded.

    Raises:
        FieldError: no scheme or argument has this name; the message has a hint.
    """
    names = scheme_names(config.position_embedding_type)
    schemes = {name: find_scheme(config, name) for name in names if not is_deferred(config, name)}
    kwargs = scheme_kwargs(config)
    for name, scheme in schemes.items():
        _check_arguments(name, own_arguments(scheme), kwargs[name])
    if any(map(takes_rope_parameters, schemes.values())):
        config.rope_parameters = config.rope_parameters or dict(PLAIN_ROPE)
    elif config.rope_parameters and len(schemes) == len(names):
        if config.rope_parameters != PLAIN_ROPE:  # which is of another scheme, before this one was set
            raise ValueError(
                f"rope_parameters={config.rope_parameters!r} has no effect on "
                f"position_embedding_type={config.position_embedding_type!r}. Leave it out, or set it to None."
            )
        config.rope_parameters = None


def _check_arguments(scheme: str, accepted: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in given.items():
        if key not in accepted:
            fault = (
                f"is no argument of {scheme!r}. {did_you_mean(key, accepted)}It takes "
                f"{', '.join(accepted) or 'none'}. Sizes and rope_parameters are fields of the config."
            )
            raise FieldError("position_embedding_kwargs", {key: value}, fault)
        if isinstance(accepted[key], bool) and not isinstance(value, bool):
            raise FieldError("position_embedding_kwargs", {key: value}, "is neither True nor False.")


def _has_modules(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(item, nn.Module) for item in values)


def _say_what_is_reset(values: dict[str, Any], kept: dict[str, Any], given: dict[str, Any]) -> None:
    """Warns of arguments of the checkpoint's parts that get other values, their defaults, since they aren't given.

    Args:
        values: the checkpoint's.
        kept: those of them that another scheme leaves.
        given: what the scheme and its arguments are to be instead.
    """
    now = {"posenc_version": POSENC_VERSION}  # of a newer one it is said elsewhere
    rope = {name: value for name, value in given.items() if name == "rope_parameters"}
    try:
        trained = PosEncConfig.from_dict({**values, **now})
        config = PosEncConfig.from_dict(
            {**kept, **given, **now, "rope_parameters": kept.get("rope_parameters")}, **rope
        )
        asked = scheme_kwargs(config)
        with torch.device("meta"):
            make_scheme(config)  # which completes the arguments
    except Exception:  # which building the model raises, or a scheme that reads its weights, which aren't here yet
        return
    gets = scheme_kwargs(config)
    parts = {name: arguments for name, arguments in scheme_kwargs(trained).items() if name in gets}
    changed = [_changed(arguments, asked[name], gets[name]) for name, arguments in parts.items()]
    reset = [f"{key}={value!r}" for arguments in changed for key, value in arguments.items()]
    if config.rope_parameters and trained.rope_parameters:
        turned = _changed(trained.rope_parameters, rope.get("rope_parameters") or {}, config.rope_parameters)
        reset += [f"rope_parameters={turned}"] * bool(turned)
    if reset:
        replaced = ", ".join(f"{name}={value!r}" for name, value in given.items())
        logger.warning(
            f"{replaced} replaces the checkpoint's. These, with which it was trained, get their defaults: "
            f"{', '.join(reset)}. Give them too."
        )


def _changed(trained: dict[str, Any], asked: dict[str, Any], gets: dict[str, Any]) -> dict[str, Any]:
    """The arguments that get another value, and weren't given one."""
    return {key: value for key, value in trained.items() if key not in asked and value != gets.get(key)}
