"""The command line, thin over the package: `hf-posenc COMMAND --help` says what each command does."""

from .application import app, main

# Each adds its commands, in the order in which the help lists them.
from ..cli import train, answers, convert, compare, schemes, publish  # isort: skip  # noqa: F401

__all__ = ["app", "main"]
