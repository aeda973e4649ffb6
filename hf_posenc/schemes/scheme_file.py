"""Registering a user's schemes: a class, or those of a file, as `scheme_file` does."""

import contextlib
import hashlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from transformers.utils import logging

from ..errors import UserError
from ..files import expanded, sha256
from ..model.scheme_base import PositionScheme
from ..model.scheme_table import SCHEMES
from .support.saved_code import code_of, has_changed, remember_code, source_file

logger = logging.get_logger(__name__)

_first_digests: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""The hash of the file that a module was made from."""


def register_scheme(scheme: type[PositionScheme] | str | Path, name: str | None = None) -> list[str]:
    """Adds a scheme to the table, or every scheme of a file: `position_embedding_type` then selects it by its name.

    A class that is defined again, as when a notebook cell runs twice, replaces the earlier one; existing models keep
    theirs, and are saved with its code. Registering the same file again does nothing, nor a module's class by its file.

    Args:
        scheme: a class; or a Python file, which runs as a module of its folder: `from .helper import name` imports from
            the files beside it.
        name: what to call the class. None: what its attribute `name` says. With a file: the config value that will be
            used, such as `learned+mine`; the one new name in it is for the one class without a `name`.

    Returns:
        The names.

    Raises:
        UserError: the name is taken by another class or isn't a plain word, or the class overrides no hook; the file
            doesn't exist, can't be imported, defines no scheme or has changed since this process read it; or it isn't
            clear what to call a scheme.
    """
    if isinstance(scheme, (str, Path)):
        return [_register(*named) for named in _named_schemes(Path(expanded(scheme)), name)]
    return [_register(scheme, name)]


def _register(scheme: type[PositionScheme], name: str | None) -> str:
    """Adds one class to the table."""
    if not isinstance(scheme, type) or not hasattr(scheme, "uses"):
        wanted = "is no PositionScheme. Give a subclass of it."
        raise UserError(wanted, parameter="scheme", value=scheme)
    name = vars(scheme).get("name") if name is None else name
    if not isinstance(name, str) or not name.isidentifier():
        wanted = "can't name a scheme. Use letters, digits and underscores; '+' joins schemes."
        raise UserError(wanted, parameter="name", value=name)
    if hasattr(PositionScheme, name) or name in ("parts", "names", "name"):
        wanted = "is an attribute of PositionScheme. Register under another name."
        raise UserError(wanted, parameter="name", value=name)
    known = SCHEMES.get(name)
    again = known is not None and (known.__module__, known.__qualname__) == (scheme.__module__, scheme.__qualname__)
    if known is not None and not again:
        if _is_same_code(known, scheme):
            return name
        raise UserError(f"is taken by {known.__name__}. Register under another name.", parameter="name", value=name)
    if scheme in SCHEMES.values() and known is not scheme:
        raise UserError(f"{scheme.__name__} is registered as {scheme.name!r} already. Register a subclass as {name!r}.")
    hooks = ("embed", "encodings", "rotary", "rotate", "bias", "layer_bias", "of_distance")
    # Whichever copy of the protocol's file it inherits from.
    bases = [base for base in scheme.__mro__ if not base.__module__.endswith("scheme_base")]
    if not any(hook in vars(base) for base in bases for hook in hooks):
        raise UserError(f"{scheme.__name__} overrides no hook. Override one of {', '.join(hooks)}.")
    if has_changed(scheme):
        raise UserError(f"The file of {scheme.__name__} has changed since it was imported. Reload it, or start anew.")
    if scheme.__module__ == "__main__" and not again:
        logger.warning(
            f"{scheme.__name__} is defined in __main__, whose code can't be saved with a model. To train, save or "
            "share one, move the class to a file of its own, such as my_scheme.py, and import it from there."
        )
    scheme.name = name
    SCHEMES[name] = scheme
    remember_code(scheme)
    return name


def _is_again(known: type[PositionScheme], *others: type[PositionScheme]) -> bool:
    """True for a class that was read before, perhaps in another way."""
    return any(known is other or _is_same_code(known, other) for other in others)


def _is_same_code(known: type[PositionScheme], other: type[PositionScheme]) -> bool:
    """True for one class that was read twice: a module that is imported, and the same file as a `scheme_file`."""
    with contextlib.suppress(ValueError, SyntaxError, OSError):  # code that can't travel
        is_one_file = source_file(known).resolve() == source_file(other).resolve()
        return is_one_file and known.__qualname__ == other.__qualname__ and code_of(known) == code_of(other)
    return False


def _named_schemes(file: Path, selected: str | None) -> list[tuple[type[PositionScheme], str]]:
    """The schemes that a file defines, and what to call each; one without a name may be the base of others alone."""
    module = _import_unchanged(file)
    schemes = [value for value in vars(module).values() if _is_scheme_of(value, module)]
    if not schemes:
        raise UserError(f"{file} defines no scheme. It needs a class that inherits from hf_posenc's PositionScheme.")
    names = {scheme: vars(scheme).get("name") for scheme in schemes}
    unnamed = [scheme for scheme, name in names.items() if name is None]
    asked = {*(selected or "").split("+")} - {"", *names.values()}
    new = {name for name in asked if name not in SCHEMES or _is_again(SCHEMES[name], *unnamed[:1])}
    if len(unnamed) == len(new) == 1:
        names[unnamed[0]] = new.pop()
    elif any(not _is_base(scheme, schemes) for scheme in unnamed):
        raise UserError(
            f"{file}: it isn't clear what to call {', '.join(scheme.__name__ for scheme in unnamed)}. Give "
            "each class a name, `name = 'mine'`, or select a single one by a new name."
        )
    return [(scheme, name) for scheme, name in names.items() if name is not None]


def _is_base(scheme: type, schemes: list[type[PositionScheme]]) -> bool:
    return any(issubclass(other, scheme) for other in schemes if other is not scheme)


def _is_scheme_of(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, PositionScheme) and value.__module__ == module.__name__


def _import_unchanged(file: Path) -> ModuleType:
    """The module of a file, which is the one that this process read first."""
    if not file.is_file():
        wanted = "is no file. Give the path of the Python file with your scheme."
        raise UserError(wanted, parameter="scheme_file", value=str(file))
    if file.suffix != ".py" or not file.stem.isidentifier():
        wanted = "isn't named like a module. Rename it, to my_scheme.py for instance."
        raise UserError(wanted, parameter="scheme_file", value=str(file))
    module = _import_in_folder(file.resolve())
    if _first_digests.setdefault(module, sha256(file)) != sha256(file):
        raise UserError(f"{file} has changed since this process read it. Start a new one, or put the file back.")
    return module


def _import_in_folder(file: Path) -> ModuleType:
    """The module that a file is in a package of its folder, as a checkpoint's folder is one.

    Raises:
        UserError: it can't be imported.
    """
    package = f"scheme_files_{hashlib.sha256(str(file.parent).encode()).hexdigest()[:12]}"
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [str(file.parent)]
    try:
        return importlib.import_module(f"{package}.{file.stem}")
    except Exception as error:
        missing = getattr(error, "name", None)
        beside = isinstance(error, ModuleNotFoundError) and (file.parent / f"{missing}.py").is_file()
        way_out = f". It lies beside the file: write 'from .{missing} import ...'" if beside else ""
        raise UserError(f"{file} can't be imported: {type(error).__name__}: {error}{way_out}") from error
