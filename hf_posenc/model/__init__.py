"""The checkpoint: the files of this folder travel, as far as a checkpoint uses them. This one doesn't.

It registers the models with transformers' Auto classes, so that PosEnc checkpoints load without `trust_remote_code`.
"""

import importlib

import transformers

from .configuration_posenc import AUTO_MAP, PosEncConfig

for _auto, _code in AUTO_MAP.items():
    _module, _, _name = _code.partition(".")
    _class = getattr(importlib.import_module(f".{_module}", __name__), _name)
    getattr(transformers, _auto).register("posenc" if _auto == "AutoConfig" else PosEncConfig, _class)
