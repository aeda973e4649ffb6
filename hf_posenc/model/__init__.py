"""The checkpoint: the files of this folder travel, as far as a checkpoint uses them.

`package_config` and `scheme_files` don't, nor does this one: they help where hf_posenc is installed.
"""

import importlib

import transformers

from .configuration_posenc import AUTO_MAP
from .package_config import PosEncConfig as PosEncConfig

# Whichever module here is imported first, this one has run: so the model takes, and loads, the package's configuration.
importlib.import_module(".configuration_posenc", __name__).PosEncConfig = PosEncConfig  # type: ignore[attr-defined]

# So PosEnc checkpoints load without `trust_remote_code`.
for _auto, _code in AUTO_MAP.items():
    _module, _, _name = _code.partition(".")
    _class = getattr(importlib.import_module(f".{_module}", __name__), _name)
    getattr(transformers, _auto).register("posenc" if _auto == "AutoConfig" else PosEncConfig, _class)
