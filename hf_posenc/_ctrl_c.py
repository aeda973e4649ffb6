"""Ctrl-C while the command line is still being imported: one line, not a traceback.

Python runs the package's `__init__` before its modules, so a `try` in the command line would come too late. Once it is
imported, `errors.format_cli_error` handles Ctrl-C; in training, `training.callbacks` does.
"""

import os
import signal
import sys
from pathlib import PurePath


def stop(number: int, frame: object) -> None:
    """Ends the process; nothing has been started that could be left half-done."""
    os.write(2, b"Interrupted: nothing was written.\n")
    os._exit(130)


def is_command_line() -> bool:
    """Whether this process is `hf-posenc` or `python -m hf_posenc.cli`, not a program that imports the package."""
    name = sys.argv[0] if sys.argv else ""
    return PurePath(name).stem == "hf-posenc" or (name == "-m" and "hf_posenc.cli" in sys.orig_argv)


def start() -> None:
    """Installs `stop` if this process is the command line."""
    if is_command_line() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)


def end() -> None:
    """Makes Ctrl-C an exception again."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


start()
