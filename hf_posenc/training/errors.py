"""`UserError`: what a person can mend, in one line."""

import errno
import sys
from collections.abc import Callable
from typing import NoReturn


class UserError(ValueError):
    """Something in the input or the options is wrong; the message says what, what is accepted, and the way out."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; the message says what was kept and how to go on."""


def one_line(error: BaseException) -> str:
    """The message of an error, without line breaks."""
    return " ".join(str(error).split())


def disk_error(error: BaseException) -> str | None:
    """What stopped a write, if that is what `error` (or an error that caused it) says; else None.

    Torch and safetensors report a full disk as errors of their own, with the system's text inside.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            return seen.strerror or str(seen)
        if isinstance(seen, PermissionError):
            return one_line(seen)
        text = str(seen)
        for sign in ("No space left on device", "File too large", "Disk quota exceeded", "Read-only file system"):
            if sign in text:
                return sign
        if "PytorchStreamWriter failed" in text or "unexpected pos" in text:
            return "the file could not be written to its end"
        seen = seen.__cause__ or seen.__context__
    return None


def run_script(main: Callable[[], object]) -> NoReturn:
    """Runs a script's `main`. Bad input ends in one line and exit code 2, Ctrl-C in one line and exit code 130."""
    try:
        main()
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        print(f"interrupted: {one_line(error) or 'nothing was written.'}", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
