"""`UserError`: what a person can mend, in one line."""

import errno
import os
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


def sentence(error: BaseException) -> str:
    """The message of an error as a sentence, to which another can be added."""
    text = one_line(error) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


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
        for sign in (
            "No space left on device",
            "Not enough disk space",
            "File too large",
            "Disk quota exceeded",
            "Read-only file system",
        ):
            if sign in text:
                return sign
        if "PytorchStreamWriter failed" in text or "unexpected pos" in text:
            return "the file could not be written to its end"
        seen = seen.__cause__ or seen.__context__
    return None


def explain(error: BaseException) -> tuple[str, int]:
    """One line for an error that ends a command, and its exit code: 2 for bad input, 130 for Ctrl-C, else 1.

    Of several processes that read the same bad input one says so; the line of the others is empty.

    Raises:
        BaseException: `error` itself, if the environment variable HF_POSENC_TRACEBACK is set.
    """
    if os.environ.get("HF_POSENC_TRACEBACK"):
        raise error
    text = one_line(error)
    main_process = os.environ.get("RANK", "0") == "0"
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted: {text or 'nothing was written.'}" if main_process else "", 130
    if isinstance(error, ValueError):
        return f"error: {text}" if main_process else "", 2
    return f"error: {type(error).__name__}: {text} (HF_POSENC_TRACEBACK=1 shows where)", 1


def run_script(main: Callable[[], object]) -> NoReturn:
    """Runs a script's `main`; whatever goes wrong is one line on standard error and an exit code (see `explain`)."""
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        line, code = explain(error)
        if line:
            print(line, file=sys.stderr)
        sys.exit(code)
    sys.exit(0)
