"""The command line, thin over the package: `hf-posenc COMMAND --help` says what each command does."""

import sys

try:
    from .application import app, main

    # Each adds its commands, in the order in which the help lists them.
    from ..cli import train, answers, convert, export, compare, schemes, publish  # isort: skip  # noqa: F401
except KeyboardInterrupt:  # Ctrl-C comes in time for one line, too
    print("Interrupted: nothing was written.", file=sys.stderr)
    sys.exit(130)

__all__ = ["app", "main"]
