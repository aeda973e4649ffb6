"""The checkpoint: the files of this folder travel, as far as a checkpoint uses them.

`hints`, `package_config` and `scheme_files` don't, nor does this one: they help where hf_posenc is installed.
"""

from . import configuration_posenc
from .package_config import PosEncConfig as PosEncConfig

# Whichever module here is imported first, this one has run: so the model takes, and loads, the package's configuration.
configuration_posenc.PosEncConfig = PosEncConfig  # type: ignore[misc]
