"""`PosEncConfig` where hf_posenc is installed: help for those who write configurations, and other people's schemes.

Doesn't travel: nothing in a checkpoint imports it. `__init__.py` puts this class in the place of the one that travels.
"""

import contextlib
import difflib
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers.utils import logging

from .configuration_posenc import POSENC_VERSION
from .configuration_posenc import PosEncConfig as CheckpointConfig
from .position_base import PositionScheme
from .position_combined import CombinedPosition
from .position_rope import PLAIN_ROPE
from .scheme_factory import own_arguments, scheme_kwargs
from .scheme_files import (
    collect_code,
    declared_schemes,
    fetch_scheme,
    is_built_in,
    warn_of_other_code,
)
from .scheme_table import SCHEMES

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

_PRIVATE = ("_bundled_classes", "_loaded_from")
"""Where a config keeps the classes that came with its checkpoint, and which that is. Never written to a file."""
_HUB_ARGUMENTS = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "code_revision")
_loading: ContextVar[tuple[str, bool, dict[str, Any]] | None] = ContextVar("loading", default=None)
"""What is being loaded: the checkpoint, whether its code is trusted, and the Hub options."""

# Fields whose value a loader can't tell from the weights: with another value a model loads, and computes nonsense.
_BUILT_WITH = (
    *("type_vocab_size", "tie_word_embeddings", "num_attention_heads", "hidden_act"),
    *("mlp_gated", "attention_bias", "mlp_bias"),
    *("layer_norm_eps", "norm_position", "scale_embeddings", "classifier_hidden_act"),
    *("position_embedding_type", "position_embedding_kwargs", "rope_parameters"),
)

_KEYWORDS = (
    *("attn_implementation", "auto_map", "experts_implementation", "model_type", "name_or_path", "num_labels"),
    *("output_attentions", "quantization_config", "task_specific_params", "torch_dtype", "use_cache"),
    *("_attn_implementation", "_commit_hash", "_name_or_path"),
)
"""What PreTrainedConfig takes beyond its fields."""
_OLDER_ROPE = ["rope_scaling", "rope_theta", "partial_rotary_factor"]
"""What transformers had before `rope_parameters`, and would ignore or let replace it."""


def _is_known(name: str) -> bool:
    return name in _fields() or name in _KEYWORDS or name.endswith("_token_id")


def _fields() -> list[str]:
    return [field.name for field in fields(PosEncConfig)]  # without its class variables


def _is_newer(version: Any) -> bool:
    here, other = ([int(number) for number in re.findall(r"\d+", str(text))[:3]] for text in (POSENC_VERSION, version))
    return other > here


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'Did you mean ...? ', for an error about an unknown name, with the nearest that is known; or ''."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}? " if near else ""


class FieldError(ValueError):
    """The value of a config's field isn't accepted: `fault` says why, behind the field and the value."""

    def __init__(self, field: str, value: Any, fault: str) -> None:
        self.field, self.value, self.fault = field, value, fault
        super().__init__(f"{field}={value!r} {fault}")


def scheme_names(position_embedding_type: str) -> list[str]:
    """The parts of `a+b`, in order.

    Raises:
        FieldError: the combination makes no sense.
    """
    names = position_embedding_type.split("+")
    sensible = list(dict.fromkeys(name for name in names if name not in ("", "none"))) or ["none"]
    if len(names) > 1 and names != sensible:
        fault = "makes no sense: '+' joins different schemes, and 'none' adds nothing to another."
        raise FieldError("position_embedding_type", position_embedding_type, f"{fault} Use {'+'.join(sensible)!r}.")
    return names


def _has_modules(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(item, nn.Module) for item in values)


def takes_rope_parameters(scheme: Any) -> bool:
    """True where a scheme takes `config.rope_parameters`."""
    return "rope_parameters" in inspect.signature(scheme.__init__).parameters


@strict
class PosEncConfig(CheckpointConfig):
    r"""Configuration of a PosEnc encoder: a BERT-shaped body whose positional scheme is one value.

    ```python
    >>> from hf_posenc import PosEncConfig
    >>> PosEncConfig.from_size("tiny", position_embedding_type="lspe").position_embedding_type
    'lspe'

    ```

    Its fields are documented at the class that it inherits from. An unknown keyword is refused; a scheme that isn't in
    the table is taken from the checkpoint, with `trust_remote_code=True`.

    Raises:
        ValueError: a value is out of range; a keyword, the scheme or one of its arguments doesn't exist. The message
            names the value, what is accepted and what to do.
        StrictDataclassFieldValidationError: a value has the wrong type.
    """

    _auto_class = None  # the code is written here, as far as a checkpoint uses it

    @classmethod
    def from_size(cls, size: str, **overrides: Any) -> "PosEncConfig":
        """A configuration of a named size: `tiny`, `mini`, `small` or `base`.

        Args:
            size (str): a name of `SIZES`.
            **overrides: fields that differ from the size's.

        Raises:
            ValueError: `size` isn't a name of `SIZES`.
        """
        if size not in SIZES:
            raise ValueError(f"size={size!r} is unknown. Choose one of {', '.join(SIZES)}.")
        return cls(**{**SIZES[size], **overrides})

    def __post_init__(self, **kwargs: Any) -> None:
        for key in [key for key in kwargs if not _is_known(key)]:
            if key in _OLDER_ROPE:
                raise ValueError(f"{key!r} isn't taken. Give rope_parameters, with the keys that change.")
            if self.posenc_version is None:  # else these are the values of a file, or of another config
                self._refuse_unknown(key, kwargs[key])
            if hint := did_you_mean(key, _fields(), cutoff=0.8):
                logger.warning_once(f"The configuration's {key!r} has no effect. {hint.strip()}")
            if key.startswith("_") or hasattr(self, key):
                del kwargs[key]
        self._name_labels()
        self._bundled_classes: dict[str, Any] = {}
        self._loaded_from = loading[0] if (loading := _loading.get()) else ""
        super().__post_init__(**kwargs)

    def _refuse_unknown(self, key: str, value: Any) -> None:
        names = self.position_embedding_type.split("+")
        for name in names:
            if name in SCHEMES and key in own_arguments(SCHEMES[name]):
                kwargs = {key: value} if len(names) == 1 else {name: {key: value}}
                raise ValueError(
                    f"PosEncConfig has no field {key!r} (value {value!r}): it is an argument of the scheme. "
                    f"Give it as position_embedding_kwargs={kwargs!r}."
                )
        near = ", ".join(difflib.get_close_matches(key, [*_fields(), *_KEYWORDS]))
        raise ValueError(
            f"PosEncConfig has no field {key!r} (value {value!r}). {f'The nearest: {near}. ' if near else ''}Where the "
            f"value is a note of your own, set it on the config that was made: config.{key} = ..."
        )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Reads a checkpoint's configuration; with `trust_remote_code=True` also the code of its author's own scheme.

        A model can then be built from the configuration alone. (Where hf_posenc is installed, transformers'
        `AutoConfig` doesn't pass `trust_remote_code` on, so its configurations lack that code.)

        Raises:
            ValueError: that code can't be loaded; or what transformers raises.
        """
        source, trusted = str(pretrained_model_name_or_path), kwargs.pop("trust_remote_code", None)
        of_a_model = _loading.get() is not None and not trusted  # whose load says whether its code is trusted
        arguments = {**kwargs, "trust_remote_code": trusted}
        with contextlib.nullcontext() if of_a_model else _loading_from(source, arguments):
            return super().from_pretrained(source, *args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Builds the configuration of a file, with `kwargs` in place of the file's values.

        A key that isn't known is kept, since other libraries and newer versions write some; one that looks like a
        misspelt field is said. A scheme named in `kwargs` replaces the file's, whose arguments then don't apply.
        """
        values, known = dict(config_dict), [*_fields(), *_OLDER_ROPE]
        scheme = values.get("position_embedding_type")
        if kwargs.get("position_embedding_type", scheme) != scheme:
            for name in ("position_embedding_kwargs", "rope_parameters"):
                values.pop(name, None)
        values |= {name: kwargs.pop(name) for name in list(kwargs) if name in known and name != "rope_parameters"}
        if _is_newer(written_by := values.get("posenc_version")):
            logger.warning(
                f"This checkpoint was written by hf_posenc {written_by}, the code here is {POSENC_VERSION}: results "
                "may differ. Upgrade hf_posenc, or load with the checkpoint's own code (trust_remote_code=True in a "
                "process that doesn't import hf_posenc)."
            )
        return super().from_dict(values, **kwargs)

    def check(self) -> None:
        """Also checks what only those who write a configuration get wrong; makes each map of labels from the other."""
        self._name_labels()
        if self.problem_type is None and (self.label_mean, self.label_scale) != (0.0, 1.0):
            raise ValueError(
                f"label_mean={self.label_mean} and label_scale={self.label_scale} are for a regression, and "
                "problem_type is None. Give problem_type='regression' too."
            )
        names = self.architectures or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"architectures={names!r} is no list of the names of model classes.")
        super().check()
        self._check_scheme()

    def _check_scheme(self) -> None:
        """Checks the names of the scheme and its arguments, unless its code comes with the checkpoint and isn't loaded.

        Raises:
            FieldError: no scheme or argument has this name; the message has a hint.
        """
        names = scheme_names(self.position_embedding_type)
        schemes = {name: self.find_scheme(name) for name in names if not self._is_deferred(name)}
        kwargs = scheme_kwargs(self)
        for name, scheme in schemes.items():
            accepted = own_arguments(scheme)
            for key, value in kwargs[name].items():
                if key not in accepted:
                    fault = (
                        f"is no argument of {name!r}. {did_you_mean(key, accepted)}It takes "
                        f"{', '.join(accepted) or 'none'}. Sizes and rope_parameters are fields of the config."
                    )
                    raise FieldError("position_embedding_kwargs", {key: value}, fault)
                if isinstance(accepted[key], bool) and not isinstance(value, bool):
                    raise FieldError("position_embedding_kwargs", {key: value}, "is neither True nor False.")
        if any(map(takes_rope_parameters, schemes.values())):
            self.rope_parameters = self.rope_parameters or dict(PLAIN_ROPE)
        elif self.rope_parameters and len(schemes) == len(names):
            if self.rope_parameters != PLAIN_ROPE:  # which is of another scheme, before this one was set
                raise ValueError(
                    f"rope_parameters={self.rope_parameters!r} has no effect on "
                    f"position_embedding_type={self.position_embedding_type!r}. Leave it out, or set it to None."
                )
            self.rope_parameters = None

    def schemes(self) -> dict[str, Any]:
        """The classes of the schemes that `position_embedding_type` joins, by name, in order."""
        return {name: self.find_scheme(name) for name in self.position_embedding_type.split("+")}

    def find_scheme(self, name: str) -> Any:
        """The class of a scheme, or of several joined by `+`: of the table, or of the checkpoint if that is trusted.

        Raises:
            ValueError: no scheme has this name; or its code comes with the checkpoint and isn't trusted, or can't be
                loaded.
        """
        if name in SCHEMES:
            if not is_built_in(SCHEMES[name]) and (loading := _loading.get()) is not None:
                warn_of_other_code(name, SCHEMES[name], self._code_repository or loading[0], loading[2])
            return SCHEMES[name]
        if "+" in name:
            return CombinedPosition
        if name not in self._bundled_classes:
            self._bundled_classes = {**self._bundled_classes, name: self._bundled_class(name)}
        return self._bundled_classes[name]

    def _bundled_class(self, name: str) -> Any:
        """The class of a scheme that isn't in the table here, from the checkpoint's."""
        source, trusted, hub = self._active_load
        if not self._may_be_bundled(name, source):
            table = f" Nor is it in the scheme_table.py of {source}." if source else ""
            if _is_newer(self.posenc_version):
                table += f" It needs hf_posenc {self.posenc_version}, which wrote it; this is {POSENC_VERSION}."
            raise FieldError(
                "position_embedding_type",
                name,
                f"is unknown. {did_you_mean(name.lower(), SCHEMES)}Choose one of {', '.join(SCHEMES)}, or several "
                f"joined by '+'; register_scheme adds one of your own.{table}",
            )
        if not trusted:
            reference = declared_schemes(self._code_repository or source, hub).get(name)
            raise ValueError(
                f"position_embedding_type={name!r} isn't a scheme of hf_posenc: its code"
                f"{f' ({reference})' if reference else ''} comes with the checkpoint {source}. If you trust it, "
                "load the model, or the configuration by PosEncConfig, with from_pretrained(..., "
                f"trust_remote_code=True); if you have the class, register it first: register_scheme(Scheme, {name!r})."
            )
        return fetch_scheme(name, source, self._code_repository, hub)

    @property
    def _active_load(self) -> tuple[str, bool, dict[str, Any]]:
        """Names what is being loaded, or what this was loaded from: then its code isn't trusted any more."""
        return _loading.get() or (self._source, False, {})

    @property
    def _source(self) -> str:
        """The checkpoint that this was loaded from; else ''."""
        return self._name_or_path or self._loaded_from

    @property
    def _code_repository(self) -> str:
        """The repository of the code, if that isn't the checkpoint's own; else ''."""
        return str(self.auto_map.get("AutoConfig", "")).rpartition("--")[0]

    def _may_be_bundled(self, name: str, source: str) -> bool:
        """True where a scheme's code may come with a checkpoint; of one on the Hub, only loading it tells."""
        place = self._code_repository or source
        return bool(place) and (not os.path.isdir(place) or name in declared_schemes(place, {}))

    def _is_deferred(self, name: str) -> bool:
        """True where a scheme's code comes with the checkpoint, and is neither loaded nor trusted."""
        source, trusted, _ = self._active_load
        loaded = name in SCHEMES or name in self._bundled_classes
        return not loaded and not trusted and self._may_be_bundled(name, source)

    def code_files(self) -> dict[str, str]:
        """The code of a checkpoint, by file name: the model, and the schemes that the configuration names.

        Raises:
            ValueError: the code of a scheme can't travel, or isn't loaded and not trusted.
        """
        return collect_code(self.position_embedding_type, self.schemes(), self.position_augmentation)

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes config.json and the code that it needs.

        Raises:
            ValueError: the code of a scheme that isn't ours can't travel, or lies in that folder itself. Nothing is
                written then.
        """
        files = self.code_files()  # or refused before anything is written
        sources = [inspect.getsourcefile(scheme) for scheme in self.schemes().values() if not is_built_in(scheme)]
        if Path(save_directory).resolve() in [Path(source or "").resolve().parent for source in sources]:
            raise ValueError(
                f"{str(save_directory)!r} holds the file that a scheme was imported from, and which the copy that "
                "travels would replace. Save into another folder."
            )
        super().save_pretrained(save_directory)
        for name, text in files.items():
            Path(save_directory, name).write_bytes(text.encode())
        if push_to_hub:  # here: transformers would send what its own `save_pretrained` writes
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    def check_built(self, scheme: Any) -> None:
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
        limit = scheme.max_length
        if self.position_augmentation != "none" and limit is not None and self.augmentation_length > limit:
            raise ValueError(
                f"position_augmentation_length={self.augmentation_length} is past the {limit} positions of "
                f"{scheme.name!r}. Make it {limit} or less, or raise max_position_embeddings."
            )

    def prepare_to_save(self, model: Any) -> None:
        """Refuses a model whose code can't travel, or whose config was changed after it was built.

        Raises:
            ValueError: loaded again, the weights would compute something else; or see `code_files`.
        """
        body = model.base_model
        as_built = {name: getattr(body._config_when_built, name) for name in _BUILT_WITH}
        for name, built in {**as_built, "num_hidden_layers": len(body.layers)}.items():
            value = getattr(self, name)
            if value != built:
                raise ValueError(
                    f"config.{name}={value!r} isn't what this model was built with, {built!r}: "
                    f"loaded again, the weights would compute something else. Set it back to {built!r}; where another "
                    f"value is wanted, give it on loading: from_pretrained(..., {name}=...)."
                )
        self.code_files()

    @classmethod
    @contextlib.contextmanager
    def load_context(cls, source: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Guards transformers' loading of `source`: an index may name only files beside it, and code needs trust.

        Raises:
            ValueError: the index names files elsewhere, or the weights are damaged, or code isn't trusted.
        """
        _check_index(Path(str(source), arguments.get("subfolder") or ""))
        config = arguments.get("config")
        if isinstance(config, PosEncConfig) and config._source != str(source):
            config._bundled_classes = {}  # those are another checkpoint's
        try:
            with _loading_from(str(source), arguments):
                yield
        except Exception as error:
            if type(error).__name__ != "SafetensorError":  # an error of a package that this file doesn't import
                raise
            raise ValueError(
                f"The weights of {str(source)!r} are damaged ({error}). Save them anew, or download them anew with "
                "from_pretrained(..., force_download=True)."
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """All that config.json holds."""
        return {name: value for name, value in super().to_dict().items() if name not in _PRIVATE}

    def _name_labels(self) -> None:
        """Makes a map of labels that is missing, or whose names are LABEL_0, ..., from the other; else `id2label` wins.

        transformers reads `id2label` alone, and would save the other as it was.
        """
        names = {int(number): name for name, number in (self.label2id or {}).items()}
        if names and self.id2label in (None, {number: f"LABEL_{number}" for number in range(len(names))}):
            self.id2label = names
        elif self.id2label is not None and names != self.id2label:
            self.label2id = {name: int(number) for number, name in self.id2label.items()}


@contextlib.contextmanager
def _loading_from(source: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Lets configurations take schemes from the checkpoint `source` if it is trusted."""
    hub = {name: arguments[name] for name in _HUB_ARGUMENTS if name in arguments}
    token = _loading.set((source, bool(arguments.get("trust_remote_code")), hub))
    try:
        yield
    finally:
        _loading.reset(token)


def _check_index(folder: Path) -> None:
    for path in folder.glob("*.index*.json") if folder.is_dir() else ():
        try:
            shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
            outside = [name for name in shards if name != Path(name).name]
        except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is damaged ({error!r:.200}). Save the model anew.") from error
        if outside:
            raise ValueError(f"{str(path)!r} names {outside[0]!r}, which isn't a file beside it. Save the model anew.")
