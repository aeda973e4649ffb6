"""Custom schemes, whose code travels with the checkpoint: collecting it on save, finding it on load.

From this package, the user's module imports the protocol, `from hf_posenc import PositionScheme`, and what schemes
compute with, `from hf_posenc.model.position_math import sinusoid`. The copy that travels has
`from .position_base import ...` and `from .position_math import ...` instead, so that it needs only the checkpoint's
files. `auto_map["PositionScheme"]` in the config names its class. The code runs only where remote code is trusted.
"""

import ast
import contextlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from huggingface_hub import try_to_load_from_cache
from transformers.dynamic_module_utils import get_class_from_dynamic_module, get_relative_import_files
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME, logging

from .position_base import PositionScheme

logger = logging.get_logger(__name__)

KEY = "PositionScheme"
"""The entry of `auto_map`: `module.Class`, or for `a+b` a list with one for each part; None for built-in schemes."""

ATTRIBUTE = "_scheme_classes"
"""Where a config keeps the classes that came with its checkpoint. Not in this module: remote code loads one copy of it
for the config and another for the model. Never written to a file."""

_BASES = {"PositionScheme", "AddedPosition", "DistanceBias", "Tokens"}
"""What a user's module may import from `hf_posenc`; of `position_math`, every public name."""

_remembered: WeakKeyDictionary[type[PositionScheme], dict[str, str]] = WeakKeyDictionary()
_loading: ContextVar[tuple[Any, bool, dict[str, Any]] | None] = ContextVar("loading", default=None)
_HUB_ARGUMENTS = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "code_revision")


def _is_remote() -> bool:
    return __name__.partition(".")[0] == TRANSFORMERS_DYNAMIC_MODULE_NAME


def _reference(config: Any, name: str) -> str | None:
    """What `auto_map` says of one scheme: `module.Class`, or `repository--module.Class`."""
    given = (getattr(config, "auto_map", None) or {}).get(KEY)
    references = given if isinstance(given, (list, tuple)) else [given]
    names = config.position_embedding_type.split("+")
    return dict(zip(names, references, strict=True)).get(name) if len(names) == len(references) else None


def comes_along(config: Any, name: str) -> bool:
    """Whether the checkpoint declares the code of the scheme."""
    return _reference(config, name) is not None


def travelled_class(config: Any, name: str) -> type[PositionScheme] | None:
    """The class that came with the config's checkpoint, if it has been loaded."""
    return getattr(config, ATTRIBUTE, {}).get(name)


@contextlib.contextmanager
def loading_from(source: Any, trust_remote_code: bool | None, arguments: dict[str, Any]) -> Iterator[None]:
    """Lets `load_classes` run the code of the checkpoint `source` if it is trusted."""
    hub = {name: arguments[name] for name in _HUB_ARGUMENTS if name in arguments}
    token = _loading.set((source, bool(trust_remote_code), hub))
    try:
        yield
    finally:
        _loading.reset(token)


def _under_way(config: Any) -> tuple[Any, bool, dict[str, Any]]:
    """What is being loaded: the checkpoint, whether its code is trusted, and the Hub options."""
    return _loading.get() or (getattr(config, "_name_or_path", "") or None, False, {})


def load_classes(config: Any, known: Any) -> None:
    """Loads the classes of the schemes whose code comes with the checkpoint, unless that has been done.

    A class that is registered here under the same name wins, with a warning if its code differs.

    Raises:
        ValueError: the code isn't trusted, or can't be loaded.
    """
    for name in config.position_embedding_type.split("+"):
        reference = _reference(config, name)
        if reference is None:
            continue
        if name in known:
            _compare_code(config, name, reference, known[name])
        elif travelled_class(config, name) is None:
            scheme = _load_class(config, name, reference)
            setattr(config, ATTRIBUTE, {**getattr(config, ATTRIBUTE, {}), name: scheme})


def _load_class(config: Any, name: str, reference: str) -> type[PositionScheme]:
    source, trusted, hub = _under_way(config)
    if not trusted and not _is_remote():
        raise ValueError(
            f"position_embedding_type={name!r} isn't a scheme of hf_posenc: its code ({reference}) comes with the "
            f"checkpoint{f' {source}' if source else ''}. If you trust it, load the model, or the configuration by "
            "PosEncConfig, with from_pretrained(..., trust_remote_code=True), on the command line with "
            f"--trust-remote-code; if you have the class, register it first: register_position({name!r}, ...)."
        )
    if source is None:
        raise ValueError(
            f"position_embedding_type={name!r} needs the code of its checkpoint ({reference}), but this config doesn't "
            "say where that is. Load with from_pretrained."
        )
    if _is_remote() and not hub.get("code_revision"):
        # The scheme must be from the same commit as this file; the Hub's commit is part of the module's name.
        commit = __name__.split(".")[-2]
        if re.fullmatch("[0-9a-f]{40}", commit):
            hub = {**hub, "code_revision": commit}
    try:
        scheme = get_class_from_dynamic_module(reference, source, **hub)
    except (OSError, AttributeError, ImportError) as error:
        raise ValueError(
            f"position_embedding_type={name!r}: its code ({reference}) can't be loaded from {source}: {error}"
        ) from error
    scheme.name = name  # type: ignore[attr-defined]
    return scheme


def _compare_code(config: Any, name: str, reference: str, scheme: type[PositionScheme]) -> None:
    """Warns if the checkpoint's files, as far as they are on this machine, differ from the code of the class here."""
    repository, _, reference = reference.rpartition("--")
    source, _, hub = _under_way(config)
    source = str(repository or source or "")
    ours: dict[str, str] = {}
    with contextlib.suppress(ValueError, SyntaxError, OSError):  # code that can't travel differs in any case
        ours = _remembered.get(scheme) or _files_of(scheme)
    entry = ours.get(f"{scheme.__module__.rpartition('.')[2]}.py")
    for file, text in {**ours, f"{reference.partition('.')[0]}.py": entry}.items():
        path = _file_here(source, file, hub)
        if path is not None and path.read_text(encoding="utf-8-sig", errors="replace") != text:
            logger.warning_once(
                f"position_embedding_type={name!r}: {file} of the checkpoint {source} differs from the code of "
                f"{scheme.__module__}.{scheme.__qualname__}, which is registered here, runs, and is what saving "
                f"writes. To use the checkpoint's, load it in a process that doesn't register {name!r}, with "
                "trust_remote_code=True."
            )


def _file_here(source: str, file: str, hub: dict[str, Any]) -> Path | None:
    """A file of a checkpoint, if it is on this machine: in its folder, or in the Hub's cache."""
    path: Any = os.path.join(source, file)
    if source and not os.path.isdir(source):
        with contextlib.suppress(ValueError):
            path = try_to_load_from_cache(source, file, hub.get("cache_dir"), hub.get("revision"))
    return Path(path) if source and isinstance(path, str) and os.path.isfile(path) else None


def remember_code(scheme: type[PositionScheme]) -> None:
    """Keeps the code as it is now: a file edited while its model trains must not travel with weights of the old one.

    Code that can't travel is reported when it is saved.
    """
    with contextlib.suppress(ValueError, SyntaxError, OSError):
        _remembered[scheme] = _files_of(scheme)


def collect_code(classes: dict[str, type[PositionScheme]], known: Any) -> tuple[Any, dict[str, str]]:
    """What must be saved for custom schemes: the entry of `auto_map`, and the files by name.

    Args:
        classes: the config's schemes by name.
        known: the table of schemes.

    Returns:
        (None, {}) if all schemes are built in.

    Raises:
        ValueError: a class can't travel; the message says why and what to do.
    """
    references: list[str | None] = []
    files: dict[str, str] = {}
    for name, scheme in classes.items():
        if known.get(name) is scheme and scheme.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]:
            references.append(None)  # built in: a class of this folder
            continue
        for file, text in (_remembered.get(scheme) or _files_of(scheme)).items():
            if files.setdefault(file, text) != text:
                raise ValueError(f"Two of the schemes {'+'.join(classes)} have a file {file}. Rename one of them.")
        references.append(f"{scheme.__module__.rpartition('.')[2]}.{scheme.__qualname__}")
    if not any(references):
        return None, {}
    return (references if len(references) > 1 else references[0]), files


def write_code(folder: Any, files: dict[str, str]) -> None:
    """Writes each file whole or not at all."""
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
        for name, text in files.items():
            written = Path(temporary, name)
            written.write_text(text, encoding="utf-8")
            written.replace(Path(folder, name))


def _files_of(scheme: type[PositionScheme]) -> dict[str, str]:
    """The scheme's module and the modules beside it that it imports, as they travel: name -> text."""
    what = f"{scheme.__module__}.{scheme.__qualname__}"
    move = "Move the class to a file of its own, such as my_scheme.py, and import it from there."
    if scheme.__module__ == "__main__":
        raise ValueError(f"{scheme.__qualname__} is defined in __main__, whose code can't travel with a model. {move}")
    if "." in scheme.__qualname__:
        raise ValueError(f"{what} is defined inside another class or a function, so it can't travel. {move}")
    try:
        path = Path(inspect.getsourcefile(scheme) or "")
    except TypeError:
        path = Path()
    if not path.is_file():
        raise ValueError(f"{what} has no source file, so its code can't travel with a model. {move}")
    if path.stem == "__init__":
        raise ValueError(f"{what} is defined in {path.name}, which can't travel by that name. {move}")
    ours = _our_files()
    files: dict[str, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file.name in files:
            continue
        if file.name in ours or not file.stem.isidentifier():
            reason = "has the name of a file of ours" if file.name in ours else "isn't named like a module"
            raise ValueError(f"{file} {reason}, so it can't travel with a model. Rename it.")
        files[file.name], beside = _rewritten(file)
        waiting += [file.parent / f"{module}.py" for module in beside if f"{module}.py" not in ours]
    return files


def _our_files() -> set[str]:
    """The files of the model; in a folder from the Hub, a user's files are among them."""
    entry = Path(__file__).with_name("configuration_posenc.py")
    return {entry.name, *(Path(file).name for file in get_relative_import_files(entry))}


def _rewritten(path: Path) -> tuple[str, list[str]]:
    """A module's text with its imports of hf_posenc made relative, and the modules beside it that it imports."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # without a byte order mark, which ast and some loaders refuse
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} isn't UTF-8 text, so it can't travel with a model: {error}. Save it as UTF-8."
        ) from error
    lines = text.split("\n")  # as Python counts them: a form feed doesn't end a line
    relative: dict[str, ast.stmt] = {}
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _refuse_module(path, node, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if (module := _travelling(node)) is None:
                _refuse_module(path, node, node.module or "")
                continue
            relative.setdefault(module, node)
            line = lines[node.lineno - 1].encode()  # columns count bytes
            before, statement = line[: node.col_offset].decode(), line[node.col_offset :].decode()
            lines[node.lineno - 1] = before + re.sub(r"^from\s+hf_posenc[\w.]*", f"from .{module}", statement)
        elif isinstance(node, ast.ImportFrom):
            if node.level > 1 or not node.module or "." in node.module:
                raise _refused(path, node, "Import from modules in the same folder, as 'from .helper import name'.")
            relative.setdefault(node.module, node)
    written = "\n".join(lines)
    seen_by_loader = set(re.findall(r"^\s*(?:from|import)\s+\.(\S+)", written, flags=re.MULTILINE))
    if phantom := seen_by_loader - {*relative, "position_base", "position_math"}:
        raise ValueError(
            f"{path.name}: a line of text reads like an import of {min(phantom)!r}, and whoever loads the model "
            "would look for that file. Word it differently."
        )
    if unseen := set(relative) - seen_by_loader:
        why = "Whoever loads the model sees imports that are first on their line alone. Give it a line of its own."
        raise _refused(path, relative[min(unseen)], why)
    return written, list(relative)


def _travelling(node: ast.ImportFrom) -> str | None:
    """The checkpoint's file that has what a statement imports from hf_posenc, if any."""
    names = {alias.name for alias in node.names}
    if node.module == "hf_posenc" and names <= _BASES:
        return "position_base"
    if node.module == "hf_posenc.model.position_math" and not any(name.startswith("_") for name in names):
        return "position_math"
    return None


def _refuse_module(path: Path, node: ast.stmt, module: str) -> None:
    """Refuses an absolute import of hf_posenc or of a file beside this one: it would fail where the copy is loaded."""
    if module.partition(".")[0] == "hf_posenc":
        raise _refused(
            path,
            node,
            "It must load where hf_posenc isn't installed. A scheme's file may import PositionScheme, AddedPosition "
            "and DistanceBias from hf_posenc, the public names of hf_posenc.model.position_math, and nothing else of "
            "it; register_position belongs into the script that uses it.",
        )
    file: Any = getattr(sys.modules.get(module), "__file__", None)
    beside = file is not None and Path(file).resolve().parent == path.resolve().parent
    if beside and not {"site-packages", "dist-packages"} & set(path.parts):
        way_out = f"Move what it needs into {path.name}; in a package, write 'from .helper import name'."
        raise _refused(path, node, f"{Path(file).name} lies beside it and isn't installed elsewhere. {way_out}")


def _refused(path: Path, node: ast.stmt, why: str) -> ValueError:
    return ValueError(f"{path.name}, line {node.lineno}: {ast.unparse(node)!r} can't travel with a model. {why}")
