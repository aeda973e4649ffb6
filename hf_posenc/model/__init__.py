"""The checkpoint: the files of this folder travel, as far as a checkpoint uses them.

`hints`, `package_config` and `scheme_files` don't, nor does this one: they help where hf_posenc is installed.
"""

import transformers

from . import configuration_posenc
from .package_config import PosEncConfig as PosEncConfig

# Whichever module here is imported first, this one has run: so the model takes, and loads, the package's configuration.
configuration_posenc.PosEncConfig = PosEncConfig  # type: ignore[misc]

from . import modeling_posenc  # isort: skip  # noqa: E402

# So PosEnc checkpoints load without `trust_remote_code`.
for _auto, _name in configuration_posenc.AUTO_MAP.items():
    if _auto == "AutoConfig":
        transformers.AutoConfig.register(PosEncConfig.model_type, PosEncConfig)
    else:
        getattr(transformers, _auto).register(PosEncConfig, getattr(modeling_posenc, _name.partition(".")[2]))
