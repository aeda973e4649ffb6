"""Registers `posenc` with transformers' Auto classes once a program has imported them, and no earlier.

Registering needs the config and model classes, so PyTorch, so seconds: `import hf_posenc` and `hf-posenc --help` don't
need them. Whoever calls `AutoModel.from_pretrained` has imported the module of the Auto classes, and that is watched.
"""

import importlib.abc
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .tasks import CLASSES, auto_class

_WATCHED = ("transformers", "hf_posenc")


class _Watch(importlib.abc.MetaPathFinder):
    """Counts the imports of `_WATCHED` packages that are under way.

    Our models import modules of transformers that may be half-imported while the Auto classes are, so registering
    waits until none is.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.under_way = 0
        self.registered: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in _WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Counted(spec.loader, self)
                return spec
        return None

    def count(self, change: int) -> None:
        with self.lock:
            self.under_way += change

    def register(self) -> None:
        """Registers with the Auto classes that have been imported, where no import is under way."""
        with self.lock:
            if self.under_way:
                return
            self.under_way += 1  # our own modules' imports, which end here again
            try:
                for module, register in ((_CONFIGS, _register_config), (_MODELS, _register_models)):
                    if module in sys.modules and module not in self.registered:
                        self.registered.add(module)
                        register()
            finally:
                self.under_way -= 1
            if {_CONFIGS, _MODELS} <= self.registered and self in sys.meta_path:
                sys.meta_path.remove(self)


class _Counted(importlib.abc.Loader):
    """A module's loader, which lets the watch know when it begins and ends."""

    def __init__(self, loader: Any, watch: _Watch) -> None:
        self.loader = loader
        self.watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.watch.count(1)
        try:
            self.loader.exec_module(module)
        finally:
            self.watch.count(-1)
        self.watch.register()


_CONFIGS = "transformers.models.auto.configuration_auto"
_MODELS = "transformers.models.auto.modeling_auto"


def _register_config() -> None:
    from transformers import AutoConfig

    from .model.package_config import PosEncConfig

    AutoConfig.register(PosEncConfig.model_type, PosEncConfig)


def _register_models() -> None:
    import transformers

    from .model import modeling_posenc
    from .model.package_config import PosEncConfig

    for name, task in CLASSES.items():
        getattr(transformers, auto_class(task)).register(PosEncConfig, getattr(modeling_posenc, name))


def register_when_imported() -> None:
    """Registers now what has been imported, and the rest when it is."""
    watch = _Watch()
    sys.meta_path.insert(0, watch)
    watch.register()
