"""Registers `posenc` with transformers' Auto classes and PEFT once a program has imported them, and no earlier.

Registering needs the config and model classes, so PyTorch, so seconds: `import hf_posenc` and `hf-posenc --help` don't
need them. Whoever calls `AutoModel.from_pretrained` has imported the module of the Auto classes, and that is watched.
"""

import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .tasks import CLASSES, auto_class


class _Watch(importlib.abc.MetaPathFinder):
    """Registers with modules of some packages, after their import and once no import of the packages is under way.

    Our models import modules of transformers that may be half-imported while the Auto classes are.
    """

    def __init__(self, packages: tuple[str, ...], registrations: dict[str, Callable[[], None]]) -> None:
        self.packages = packages
        self.pending = registrations
        self.lock = threading.RLock()
        self.under_way = 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
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
        """Registers with the modules that have been imported, where no import is under way."""
        with self.lock:
            if self.under_way:
                return
            self.under_way += 1  # our own modules' imports, which end here again
            try:
                for module in [name for name in self.pending if name in sys.modules]:
                    self.pending.pop(module)()
            finally:
                self.under_way -= 1
            if not self.pending and self in sys.meta_path:
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


def _register_adapters() -> None:
    """PEFT's default targets: those of BERT, whose names ours are."""
    from peft.utils import constants

    for name, targets in vars(constants).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and targets.get("bert") == ["query", "value"]:
            targets.setdefault("posenc", targets["bert"])


def register_when_imported() -> None:
    """Registers now with what has been imported, and with the rest when it is."""
    auto = "transformers.models.auto."
    models = {f"{auto}configuration_auto": _register_config, f"{auto}modeling_auto": _register_models}
    for watch in (
        _Watch(("transformers", "hf_posenc"), models),
        _Watch(("peft",), {"peft.utils.constants": _register_adapters}),
    ):
        sys.meta_path.insert(0, watch)
        watch.register()
