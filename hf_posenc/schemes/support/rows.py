"""PEFT's adapters by row, for which a batch keeps its rows; without hf_posenc PEFT counts them and refuses one."""

import sys
from typing import Any

from torch import nn

from ...model.scheme_math import tracing


def may_unpad(model: Any, wanted: bool) -> bool:
    """Refuses to unpad where PEFT gives each row an adapter of its own: returns False, and else what is wanted.

    Raises:
        ValueError: such adapters hold positions, which all rows share.
    """
    if "peft" not in sys.modules or tracing():
        return wanted
    if _names_adapters(model.position):
        raise ValueError("PEFT's adapters by row can't hold positions: leave 'position' out of modules_to_save.")
    return wanted and not any(map(_names_adapters, model.layers[0].modules()))  # all layers have them


def _names_adapters(module: nn.Module) -> bool:
    """True where PEFT tells a module the adapter of each row, by a hook."""
    return any("adapter_names" in getattr(hook, "keywords", ()) for hook in module._forward_pre_hooks.values())
