"""Parameters as they are given on the command line, for messages."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_posenc.errors import NO_VALUE


@dataclass(frozen=True)
class CommandLineSpelling:
    """Spells a parameter as an option of the running command, or of another one that has it: `--scheme 'rpoe'`.

    A parameter that no command has is spelt as in Python.
    """

    commands: Mapping[str, Any]
    running: str

    def __call__(self, parameter: str, value: Any) -> str:
        """The option, with its value if there is one."""
        name, _, key = parameter.partition(".")
        for command in (self.running, *self.commands):
            for option in self.commands[command].params:
                if option.name == name:
                    spelt = _with_value(option, key, value)
                    return spelt if command == self.running else f"`hf-posenc {command} {spelt}`"
        return name if value is NO_VALUE else f"{parameter}={value!r}"


def _with_value(option: Any, key: str, value: Any) -> str:
    """An option or an argument of click, with its value."""
    if option.param_type_name == "argument":
        name = option.name.upper()
        return name if value is NO_VALUE else f"{name} {value!r}"
    name = max(option.opts, key=len)
    if key:
        return f"{name} {_assignment(option, key, value)}"
    if value is False and option.secondary_opts:
        return str(option.secondary_opts[0])
    if value in (NO_VALUE, None) or option.is_flag:
        return name
    if isinstance(value, dict):
        return f"{name} '{json.dumps(value)}'"
    return f"{name} {value!r}"


def _assignment(option: Any, key: str, value: Any) -> str:
    """A key of a dictionary with its value: `optim=sgd` where the option is repeated for each, else JSON."""
    if not option.multiple:
        return f"'{{{json.dumps(key)}: {'...' if value is NO_VALUE else json.dumps(value)}}}'"
    if value is NO_VALUE:
        return key
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"
