"""The seam: what hf_posenc adds to a model where it is imported, and a checkpoint's own code does without.

`kernels` are parts of layers, here PyTorch's own. `PosEncConfig.support` helps those who write configurations and
schemes, and here does nothing. hf_posenc registers its own of both when it is imported.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from sys import modules
from typing import Any

from torch import nn
from transformers.dynamic_module_utils import get_relative_import_files


class Kernels:
    """Parts of layers, of which there may be faster ones; these are PyTorch's."""

    def __init__(self) -> None:
        def plain(function: Any, *arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        self.Dropout: Any = nn.Dropout
        self.apply_linear = self.attend = self.rotate = self.check_bias = self.make_attention = plain

    def register(self, **parts: Any) -> None:
        """Takes these from now on: a class, and functions that get PyTorch's way first, and then what that takes."""
        vars(self).update(parts)


kernels = Kernels()


class ConfigSupport:
    """Steps of a configuration at which something may be refused or added; nothing is."""

    def prepare(self, config: Any, keywords: dict[str, Any]) -> None:
        """Called when a configuration is made, with the keywords that aren't its fields."""

    def values_of_file(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """The values of a file, with those of `given` that replace them here and so leave it."""
        return dict(values)

    def check(self, config: Any) -> None:
        """Called when the fields fit each other."""

    def find_scheme(self, config: Any, name: str) -> Any:
        """The class of a scheme that the table of this code lacks."""
        lacks = "isn't in this checkpoint's scheme_table.py. Choose one that is, or import hf_posenc, which has all."
        raise ValueError(f"position_embedding_type={name!r} {lacks}")

    def check_built(self, config: Any, scheme: Any) -> None:
        """Called when a scheme has been built."""

    def loading(self, source: str, keywords: dict[str, Any], of_model: bool) -> AbstractContextManager[Any]:
        """Entered while a checkpoint's configuration, or its model, is loaded."""
        return nullcontext()

    def may_unpad(self, model: Any, wanted: bool) -> bool:
        """Refuses to unpad for what treats each row of a batch apart; here nothing is known."""
        return wanted

    def check_saving(self, model: Any) -> None:
        """Called before anything of a model is written."""

    def code_files(self, config: Any, folder: Path) -> dict[str, str]:
        """The code that a configuration needs beside it in `folder`, by file name: here all that this one is of."""
        file = str(modules[type(config).__module__].__file__)
        paths = map(Path, [file, *get_relative_import_files(file)])
        return {path.name: path.read_bytes().decode() for path in paths}
