"""The code of schemes, where a model is saved: collected, and rewritten so that it needs only the checkpoint's files.

From this package, a user's module imports the protocol, `from hf_posenc import PositionScheme`, and what schemes
compute with, `from hf_posenc.model.scheme_math import require`. The copy in a checkpoint has `from .scheme_base
import ...` and `from .scheme_math import ...` instead, and its class is a line of the checkpoint's `scheme_table.py`.
"""

import ast
import contextlib
import inspect
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ...model.scheme_base import PositionScheme
from ...model.scheme_combined import CombinedPosition

TABLE = "scheme_table.py"
MODEL = Path(inspect.getfile(PositionScheme)).parent
OUR_FILES = {path.name for path in MODEL.glob("*.py")}

_BASES = {
    **dict.fromkeys(("PositionScheme", "Tokens"), "scheme_base"),
    "AddedPosition": "scheme_added",
    "DistanceBias": "scheme_distance",
    "RotatedPosition": "scheme_rotated",
}
"""What a user's module may import from `hf_posenc`, and the file that has it."""
_TOOLS = ("scheme_math", "scheme_network", "scheme_vectors")
"""The files of `hf_posenc.model` of which it may import every public name."""

_INSTALLED = ("torch", "transformers", "numpy")
"""What is installed wherever a checkpoint is loaded."""

_remembered: WeakKeyDictionary[type[PositionScheme], dict[str, str]] = WeakKeyDictionary()


def is_built_in(scheme: type[PositionScheme]) -> bool:
    """True for a scheme that is one of this package's."""
    return scheme.__module__.rpartition(".")[0] == PositionScheme.__module__.rpartition(".")[0]


def remember_code(scheme: type[PositionScheme]) -> None:
    """Keeps the code as it is now: a file edited while its model trains must not travel with weights of the old one.

    Code that can't travel is reported when it is saved.
    """
    with contextlib.suppress(ValueError, SyntaxError, OSError):
        _remembered[scheme] = _files_of(scheme)


def has_changed(scheme: type[PositionScheme]) -> bool:
    """True where a method of the class isn't in its file: that was edited since it was imported."""
    module = sys.modules.get(scheme.__module__)
    if type(getattr(module, "__loader__", None)) is not SourceFileLoader:  # others rewrite code, as pytest's does
        return False
    try:
        file = source_file(scheme)
        in_file = compile(file.read_bytes(), file, "exec", dont_inherit=True)
    except (ValueError, SyntaxError, OSError):
        return False
    now = {_without_lines(code) for code in _with_inner(in_file)}
    return any(_without_lines(code) not in now for code in _methods(scheme) if Path(code.co_filename) == file)


def _methods(scheme: type[PositionScheme]) -> Iterator[CodeType]:
    """The code of a class's methods, and of its bases' in the same module; of properties and under decorators, too."""
    for base in scheme.__mro__:
        for value in vars(base).values() if base.__module__ == scheme.__module__ else ():
            function = inspect.unwrap(getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                yield function.__code__


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of what is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _without_lines(code: CodeType) -> CodeType:
    """Code without its place in the file, which another comment moves."""
    inner = tuple(_without_lines(value) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_consts=inner, co_firstlineno=1, co_linetable=b"")


def code_of(scheme: type[PositionScheme]) -> dict[str, str]:
    """The files of a user's scheme as they travel, by name: as they were when it was registered.

    Raises:
        ValueError: they can't travel.
    """
    return _remembered.get(scheme) or _files_of(scheme)


def collect_code(
    position_embedding_type: str, schemes: dict[str, type[PositionScheme]], others: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """The code of a checkpoint by file name: the model, the named schemes and other parts, and a table of these.

    Args:
        position_embedding_type: what the table calls all of them together.
        schemes: by name.
        others: functions by name, of each other dictionary of the table.

    Raises:
        ValueError: a class can't travel; the message says why and what to do.
    """
    entries = ["configuration_posenc.py"]
    files: dict[str, str] = {}
    for scheme in schemes.values():
        if is_built_in(scheme):
            entries.append(f"{module_name(scheme)}.py")
            continue
        for file, text in code_of(scheme).items():
            if files.setdefault(file, text) != text:
                raise ValueError(f"Two of the schemes {'+'.join(schemes)} have a file {file}. Rename one of them.")
            entries += {f"{module}.py" for module in _imported(text)} & OUR_FILES
    table: dict[str, type[PositionScheme]] = dict(schemes)
    if len(schemes) > 1:
        table[position_embedding_type] = CombinedPosition
        entries.append("scheme_combined.py")
    entries += [f"{module_name(function)}.py" for named in others.values() for function in named.values()]
    return {**files, **_with_imports(entries), TABLE: table_text(table, others)}


def table_text(table: dict[str, type[PositionScheme]], others: dict[str, dict[str, Any]]) -> str:
    """A checkpoint's `scheme_table.py`."""
    imports: set[str] = set()
    lines = []
    for name, scheme in table.items():
        called = scheme.__name__
        if len({other for other in table.values() if other.__name__ == called}) > 1:
            called = f"{called}_{module_name(scheme)}"
        as_what = "" if called == scheme.__name__ else f" as {called}"
        imports.add(f"from .{module_name(scheme)} import {scheme.__name__}{as_what}")
        lines.append(f'"{name}": {called}')
    dictionaries = [f"SCHEMES = {{{', '.join(lines)}}}"]
    for dictionary, named in others.items():
        imports |= {f"from .{module_name(function)} import {function.__name__}" for function in named.values()}
        pairs = ", ".join(f'"{name}": {function.__name__}' for name, function in named.items())
        dictionaries.append(f"{dictionary} = {{{pairs}}}")
    title = '"""The positional schemes of this checkpoint, by name; and what else it uses that few do."""'
    return "\n".join([title, "", *sorted(imports), "", *dictionaries, ""])


def module_name(scheme: Any) -> str:
    """The name of the file of a class or a function, as it travels."""
    return scheme.__module__.rpartition(".")[2]


def _with_imports(entries: list[str]) -> dict[str, str]:
    """Files of the model and all that they import, by name, without the table."""
    files: dict[str, str] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in files and name != TABLE:
            files[name] = (MODEL / name).read_text(encoding="utf-8")
            waiting += [f"{module}.py" for module in _imported(files[name])]
    return files


def _imported(text: str) -> list[str]:
    return re.findall(r"^\s*from \.(\w+) import", text, flags=re.MULTILINE)


def source_file(scheme: type[PositionScheme]) -> Path:
    """The file that a user's scheme is in.

    Raises:
        ValueError: it has none that can travel.
    """
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
    return path


def _files_of(scheme: type[PositionScheme]) -> dict[str, str]:
    """The scheme's module and the modules beside it that it imports, as they travel: name -> text."""
    files: dict[str, str] = {}
    waiting = [source_file(scheme)]
    while waiting:
        file = waiting.pop()
        if file.name in files:
            continue
        if file.name in OUR_FILES or not file.stem.isidentifier():
            reason = "has the name of a file of ours" if file.name in OUR_FILES else "isn't named like a module"
            raise ValueError(f"{file} {reason}, so it can't travel with a model. Rename it.")
        files[file.name], beside = _rewritten(file)
        ours = OUR_FILES if (file.parent / TABLE).is_file() else set()  # in a checkpoint's folder lie ours too
        waiting += [file.parent / name for name in beside if name not in ours]
    return files


def _rewritten(path: Path) -> tuple[str, list[str]]:
    """A module's text with its imports of hf_posenc made relative, and the files beside it that it imports."""
    text = path.read_text(encoding="utf-8-sig")  # without a byte order mark, which ast and some loaders refuse
    ours: list[tuple[ast.ImportFrom, dict[str, list[ast.alias]]]] = []
    relative: dict[str, ast.ImportFrom] = {}
    beside: dict[str, ast.ImportFrom] = {}
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _refuse_module(path, node, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if not (homes := _homes(node)):
                _refuse_module(path, node, node.module or "")
                continue
            relative = {**dict.fromkeys(homes, node), **relative}
            ours.append((node, homes))
        elif isinstance(node, ast.ImportFrom):
            if node.level > 1 or not node.module or "." in node.module:
                raise _cannot_travel(
                    path, node, "Import from modules in the same folder, as 'from .helper import name'."
                )
            beside.setdefault(node.module, node)
    relative = {**relative, **beside}
    written = _with_relative(text, ours)
    seen_by_loader = set(re.findall(r"^\s*(?:from|import)\s+\.(\S+)", written, flags=re.MULTILINE))
    if phantom := seen_by_loader - {*relative, *_TOOLS, *_BASES.values()}:
        raise ValueError(
            f"{path.name}: a line of text reads like an import of {min(phantom)!r}, and whoever loads the model "
            "would look for that file. Word it differently."
        )
    if unseen := set(relative) - seen_by_loader:
        why = "Whoever loads the model sees imports that are first on their line alone. Give it a line of its own."
        raise _cannot_travel(path, relative[min(unseen)], why)
    return written, [f"{module}.py" for module in beside]


def _homes(node: ast.ImportFrom) -> dict[str, list[ast.alias]]:
    """Names that a statement imports from hf_posenc, by the checkpoint's file of each; none if one can't travel."""
    names = {alias.name for alias in node.names}
    if node.module == "hf_posenc" and names <= _BASES.keys():
        homes = dict.fromkeys(_BASES[alias.name] for alias in node.names)
        return {home: [alias for alias in node.names if _BASES[alias.name] == home] for home in homes}
    package, _, module = (node.module or "").rpartition(".")
    is_public = not any(name.startswith("_") for name in names)
    return {module: node.names} if package == "hf_posenc.model" and module in _TOOLS and is_public else {}


def _with_relative(text: str, imports: list[tuple[ast.ImportFrom, dict[str, list[ast.alias]]]]) -> str:
    """A module's text whose imports of hf_posenc are of the checkpoint's files, on a line for each of these."""
    lines = text.split("\n")  # as Python counts them: a form feed doesn't end a line
    # From the last to the first: what stands before a statement keeps its place.
    for node, homes in sorted(imports, key=lambda item: (item[0].lineno, item[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = lines[first].encode()[: node.col_offset].decode()  # columns count bytes
        after = lines[last].encode()[node.end_col_offset :].decode()
        if len(homes) == 1:
            statement = ast.get_source_segment(text, node) or ""
            relative = re.sub(r"^from\s+hf_posenc[\w.]*", f"from .{next(iter(homes))}", statement)
        else:
            between = "; " if before.strip() else f"\n{before}"
            relative = between.join(ast.unparse(ast.ImportFrom(home, names, 1)) for home, names in homes.items())
        lines[first : last + 1] = [before + relative + after]
    return "\n".join(lines)


def _refuse_module(path: Path, node: ast.stmt, module: str) -> None:
    """Refuses an absolute import of what needn't be installed where the copy is loaded."""
    package = module.partition(".")[0]
    if package == "hf_posenc":
        raise _cannot_travel(
            path,
            node,
            "It must load where hf_posenc isn't installed. A scheme's file may import PositionScheme, Tokens, "
            "AddedPosition, RotatedPosition and DistanceBias from hf_posenc, the public names of "
            "hf_posenc.model.scheme_math, scheme_network and scheme_vectors, and nothing else of it; register_scheme "
            "belongs into the script that uses it.",
        )
    if package not in (*sys.stdlib_module_names, *_INSTALLED):
        raise _cannot_travel(
            path,
            node,
            f"{package} needn't be installed where the model is loaded; the standard library, {', '.join(_INSTALLED)} "
            f"are. Move what it needs into {path.name}, or into a file beside it: 'from .helper import name'.",
        )


def _cannot_travel(path: Path, node: ast.stmt, why: str) -> ValueError:
    return ValueError(f"{path.name}, line {node.lineno}: {ast.unparse(node)!r} can't travel with a model. {why}")
