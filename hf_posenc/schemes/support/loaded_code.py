"""The code of a checkpoint's own schemes, where it is loaded: who is asked for a scheme, and whether it is trusted."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import logging

from ...errors import did_you_mean
from ...model.configuration_posenc import POSENC_VERSION, PosEncConfig
from ...model.scheme_base import PositionScheme
from ...model.scheme_combined import CombinedPosition
from ...model.scheme_table import SCHEMES
from ..names import FieldError
from .saved_code import TABLE, code_of, is_built_in, module_name

logger = logging.get_logger(__name__)

_HUB_ARGUMENTS = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "code_revision")


@dataclass(frozen=True)
class _Load:
    """A load: of which checkpoint, whether its code is trusted, and the Hub's arguments."""

    source: str
    trusted: bool = False
    hub: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Origin:
    """The checkpoint that a configuration was loaded from, and the classes that came with it."""

    source: str = ""
    classes: Mapping[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "_Origin":
        return self

    def __reduce__(self) -> Any:
        return _Origin, (self.source,)  # another process may not have the classes


_loading: ContextVar[_Load | None] = ContextVar("loading", default=None)


def loading_checkpoint(source: str, keywords: Mapping[str, Any], of_model: bool) -> AbstractContextManager[None]:
    """Takes schemes from the checkpoint, if it is trusted; the load of a model says that of its configuration.

    Raises:
        ValueError: code isn't trusted; of a model also: its index names files elsewhere, or its weights are damaged.
    """
    if of_model:
        return _loading_model(source, keywords)
    is_of_a_model = _loading.get() is not None and not keywords.get("trust_remote_code")
    return contextlib.nullcontext() if is_of_a_model else _loading_from(source, keywords)


@contextlib.contextmanager
def _loading_from(source: str, keywords: Mapping[str, Any]) -> Iterator[None]:
    hub = {name: keywords[name] for name in _HUB_ARGUMENTS if name in keywords}
    token = _loading.set(_Load(source, bool(keywords.get("trust_remote_code")), hub))
    try:
        yield
    finally:
        _loading.reset(token)


@contextlib.contextmanager
def _loading_model(source: str, keywords: Mapping[str, Any]) -> Iterator[None]:
    _check_index(Path(source, keywords.get("subfolder") or ""))
    config = keywords.get("config")
    if isinstance(config, PosEncConfig) and _source(config) != source:
        config._origin = _Origin(config._origin.source)  # the classes are another checkpoint's
    try:
        with _loading_from(source, keywords):
            yield
    except SafetensorError as error:
        raise ValueError(
            f"The weights of {source!r} are damaged ({error}). Save them anew, or download them anew with "
            "from_pretrained(..., force_download=True)."
        ) from error


def _check_index(folder: Path) -> None:
    for path in folder.glob("*.index*.json") if folder.is_dir() else ():
        try:
            shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
            outside = [name for name in shards if name != Path(name).name]
        except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is damaged ({error!r:.200}). Save the model anew.") from error
        if outside:
            raise ValueError(f"{str(path)!r} names {outside[0]!r}, which isn't a file beside it. Save the model anew.")


def note_origin(config: PosEncConfig) -> None:
    """Notes on a new configuration what it is loaded from."""
    load = _loading.get()
    config._origin = _Origin(load.source if load else "")


def find_scheme(config: Any, name: str) -> Any:
    """The class of a scheme, or of several joined by `+`: of the table, or of the checkpoint if that is trusted.

    Raises:
        ValueError: no scheme has this name; or its code comes with the checkpoint and isn't trusted, or can't be
            loaded.
    """
    if name in SCHEMES:
        if not is_built_in(SCHEMES[name]) and (load := _loading.get()) is not None:
            _warn_of_other_code(name, SCHEMES[name], _code_repository(config) or load.source, load.hub)
        return SCHEMES[name]
    if "+" in name:
        return CombinedPosition
    if name not in config._origin.classes:
        classes = {**config._origin.classes, name: _bundled_class(config, name)}
        config._origin = replace(config._origin, classes=classes)
    return config._origin.classes[name]


def schemes_of(config: PosEncConfig) -> dict[str, Any]:
    """The classes of the schemes that `position_embedding_type` joins, by name, in order."""
    return {name: find_scheme(config, name) for name in config.position_embedding_type.split("+")}


def note_classes(config: PosEncConfig, schemes: Mapping[str, Any]) -> None:
    """Notes the classes that a model is built of, whose code is saved: later names may mean others."""
    config._origin = replace(config._origin, classes={**config._origin.classes, **schemes})


def built_schemes(body: Any) -> dict[str, Any]:
    """The classes of an encoder's schemes by name, as it was built; of one that was unpickled those that it has."""
    parts = body.position.parts if isinstance(body.position, CombinedPosition) else {body.position.name: body.position}
    return {name: type(part) for name, part in parts.items()} | {
        name: scheme for name, scheme in body._config_when_built._origin.classes.items() if name in parts
    }


def saved_schemes(config: PosEncConfig) -> dict[str, Any]:
    """The classes whose code is saved, by name: those that are noted, else as `schemes_of`."""
    names = config.position_embedding_type.split("+")
    return {name: config._origin.classes.get(name) or find_scheme(config, name) for name in names}


def is_deferred(config: PosEncConfig, name: str) -> bool:
    """True where a scheme's code comes with the checkpoint, and is neither loaded nor trusted."""
    load = _active_load(config)
    is_loaded = name in SCHEMES or name in config._origin.classes
    return not is_loaded and not load.trusted and _may_be_bundled(config, name, load.source)


def is_newer(version: Any) -> bool:
    """True for the version of a later hf_posenc than this."""
    here, other = ([int(number) for number in re.findall(r"\d+", str(text))[:3]] for text in (POSENC_VERSION, version))
    return other > here


def _bundled_class(config: PosEncConfig, name: str) -> Any:
    """The class of a scheme that isn't in the table here, from the checkpoint's."""
    load = _active_load(config)
    repository = _code_repository(config)
    if not _may_be_bundled(config, name, load.source):
        table = f" Nor is it in the scheme_table.py of {load.source}." if load.source else ""
        if is_newer(config.posenc_version):
            table += f" It needs hf_posenc {config.posenc_version}, which wrote it; this is {POSENC_VERSION}."
        raise FieldError(
            "position_embedding_type",
            name,
            f"is unknown. {did_you_mean(name.lower(), SCHEMES)}Choose one of {', '.join(SCHEMES)}, or several "
            f"joined by '+'; register_scheme adds one of your own.{table}",
        )
    if not load.trusted:
        reference = declared_schemes(repository or load.source, load.hub).get(name)
        raise ValueError(
            f"position_embedding_type={name!r} isn't a scheme of hf_posenc: its code"
            f"{f' ({reference})' if reference else ''} comes with the checkpoint {load.source}. If you trust it, "
            "load the model, or the configuration by PosEncConfig, with from_pretrained(..., "
            f"trust_remote_code=True); if you have the class, register it first: register_scheme(Scheme, {name!r})."
        )
    return _fetch_scheme(name, load, repository)


def _active_load(config: PosEncConfig) -> _Load:
    """Names what is being loaded, or what this was loaded from: then its code isn't trusted any more."""
    return _loading.get() or _Load(_source(config))


def _source(config: PosEncConfig) -> str:
    """The checkpoint that this was loaded from; else ''."""
    return config._name_or_path or config._origin.source


def _code_repository(config: PosEncConfig) -> str:
    """The repository of the code, if that isn't the checkpoint's own; else ''."""
    return str(config.auto_map.get("AutoConfig", "")).rpartition("--")[0]


def _may_be_bundled(config: PosEncConfig, name: str, source: str) -> bool:
    """True where a scheme's code may come with a checkpoint; of one on the Hub, only loading it tells."""
    place = _code_repository(config) or source
    return bool(place) and (not os.path.isdir(place) or name in declared_schemes(place, {}))


def _fetch_scheme(name: str, load: _Load, repository: str) -> type[PositionScheme]:
    """Runs the table of a checkpoint that is trusted, and takes a scheme from it.

    Args:
        name: the scheme.
        load: the checkpoint.
        repository: the repository of its code, if that is another; else "".

    Raises:
        ValueError: the table can't be loaded, or has no such scheme.
    """
    reference, place = "scheme_table.SCHEMES", repository or load.source
    reference = f"{repository}--{reference}" if repository else reference
    try:
        table: Any = get_class_from_dynamic_module(reference, load.source, **load.hub)
    except (OSError, AttributeError, ImportError, SyntaxError) as error:
        raise ValueError(
            f"position_embedding_type={name!r}: {TABLE}, which names its code, can't be loaded from {place}: {error}"
        ) from error
    if name not in table:
        raise ValueError(f"position_embedding_type={name!r}: {TABLE} of {place} has {', '.join(table) or 'none'}.")
    return table[name]


def declared_schemes(source: str, hub: Mapping[str, Any]) -> dict[str, str]:
    """`module.Class` by scheme, as a checkpoint's table says; nothing of it runs. {} if it isn't on this machine."""
    path = _file_here(source, TABLE, hub)
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    imports = re.findall(r"^from \.(\w+) import (\w+)(?: as (\w+))?$", text, flags=re.MULTILINE)
    classes = {other or name: f"{module}.{name}" for module, name, other in imports}
    table = re.search(r"^SCHEMES = .*", text, flags=re.MULTILINE)
    entries = re.findall(r"""["']([^"']+)["']: (\w+)""", table[0] if table else "")
    return {name: classes.get(value, "") for name, value in entries}


def _warn_of_other_code(name: str, scheme: type[PositionScheme], source: str, hub: Mapping[str, Any]) -> None:
    """Warns if a checkpoint's files, as far as they are on this machine, differ from the code of the class here."""
    reference = declared_schemes(source, hub).get(name)
    if reference is None:
        return
    ours: dict[str, str] = {}
    with contextlib.suppress(ValueError, SyntaxError, OSError):  # code that can't travel differs in any case
        ours = code_of(scheme)
    entry = ours.get(f"{module_name(scheme)}.py")
    for file, text in {**ours, f"{reference.partition('.')[0]}.py": entry}.items():
        path = _file_here(source, file, hub)
        if path is not None and path.read_text(encoding="utf-8-sig", errors="replace") != text:
            logger.warning_once(
                f"position_embedding_type={name!r}: {file} of the checkpoint {source} differs from the code of "
                f"{scheme.__module__}.{scheme.__qualname__}, which is registered here, runs, and is what saving "
                f"writes. To use the checkpoint's, load it in a process that doesn't register {name!r}, with "
                "trust_remote_code=True."
            )


def _file_here(source: str, file: str, hub: Mapping[str, Any]) -> Path | None:
    """A file of a checkpoint, if it is on this machine: in its folder, or in the Hub's cache."""
    path: Any = os.path.join(source, file)
    if source and not os.path.isdir(source):
        with contextlib.suppress(ValueError):
            path = try_to_load_from_cache(source, file, hub.get("cache_dir"), hub.get("revision"))
    return Path(path) if source and isinstance(path, str) and os.path.isfile(path) else None
