"""Packages that import what they hold when it is first used."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562) for the names that it imports under `if TYPE_CHECKING:`.

    They are read from its source, so that type checkers and Python go by one list (as lazy_loader's `attach_stub`), and
    are its `__all__` where it has none.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    modules: dict[str, tuple[str, str]] = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom)
                assert node.module is not None
                module = "." * node.level + node.module
                modules |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    packages = {module.split(".")[1] for module, _ in modules.values()}

    def __getattr__(name: str) -> Any:
        if name in modules:
            module, attribute = modules[name]
            value = getattr(importlib.import_module(module, package), attribute)
            setattr(sys.modules[package], name, value)
            return value
        if name in packages:
            return importlib.import_module(f".{name}", package)
        if name == "__all__":
            return sorted(modules)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
