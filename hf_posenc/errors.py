"""Errors in one line: `UserError` for what the user can correct, and exit codes."""

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn


class UserError(ValueError):
    """Something in the input or the options is wrong; the message says what, what is accepted, and the way out."""


class Diverged(UserError):
    """The loss or the weights are no longer finite; the message says what to do."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; the message says what was saved and how to resume."""


_typed: dict[str, str] = {}
_with_dashes = False


def speak_as_typed(words: Sequence[str], *, with_dashes: bool = False) -> None:
    """Makes all later messages spell options as they were typed on the command line.

    Args:
        words: what was typed.
        with_dashes: options that weren't typed get dashes, as `--help` has them.
    """
    global _with_dashes
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    _typed.clear()
    _typed.update({name.replace("_", "-"): name for name in names})
    _with_dashes = with_dashes


def as_typed(text: str) -> str:
    """The text with its options (`--learning_rate`) spelt as they were typed, and so `name=value` at its start."""
    name, equals, rest = text.partition("=")
    if equals and (option := _typed.get(f"--{name.replace('_', '-')}")):
        text = f"{option} {rest}"

    def spelt(found: re.Match[str]) -> str:
        dashed = found[0].replace("_", "-")
        return _typed.get(dashed, dashed if _with_dashes else found[0])

    return re.sub(r"(?<![\w-])--[a-z]\w*(?:[-_]\w+)*", spelt, text)


def is_local(name: str) -> bool:
    """Whether a name is a folder on this machine, or can only mean one.

    Decided before the Hub is asked: without a network, asking it for `runs/nope` takes long. Names on the Hub are
    `name` and `owner/name`.
    """
    owner, slash, _ = name.partition("/")
    return (
        Path(name).exists()
        or not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", name)
        or ".." in name
        or bool(slash and Path(owner).is_dir())
    )


def check_local(option: str, name: str) -> None:
    """Raises a UserError if the name means a folder that doesn't exist."""
    if is_local(name) and not Path(name).expanduser().exists():
        raise UserError(
            f"{option} {name!r}: there is no such folder. Give one that is here, or a name on the Hub: owner/name."
        )


def check_is_checkpoint(checkpoint: str) -> None:
    """Raises a UserError if the name means a local folder without a checkpoint."""
    path = Path(checkpoint)
    if is_local(checkpoint) and not (path / "config.json").is_file():
        missing = "has no config.json" if path.is_dir() else "is a file" if path.exists() else "doesn't exist"
        raise UserError(f"{checkpoint!r} {missing}. Give the folder of a checkpoint, or the name of one on the Hub.")


def one_line(error: BaseException) -> str:
    """The message of an error, without line breaks."""
    return " ".join(str(error).split())


def sentence(error: BaseException) -> str:
    """The message of an error as a sentence with a full stop."""
    text = one_line(error) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def disk_error(error: BaseException) -> str | None:
    """Why a write failed, by `error` or an error that caused it; None if it isn't about a write.

    Torch and safetensors report a full disk by their own error classes, with the system's text inside.
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


def is_main_process() -> bool:
    """Whether this is the one of several processes that speaks to the user; known before PyTorch is imported."""
    return os.environ.get("RANK", "0") == "0"


def explain(error: BaseException) -> tuple[str, int]:
    """One line for an error that ends a command, and its exit code: 2 for bad input, 130 for Ctrl-C, else 1.

    If several processes read the same bad input, one reports it; the line of the others is empty.

    Raises:
        BaseException: `error` itself, if the environment variable HF_POSENC_TRACEBACK is set.
    """
    if os.environ.get("HF_POSENC_TRACEBACK"):
        raise error
    text = as_typed(one_line(error))
    main_process = is_main_process()
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted: {text or 'nothing was written.'}" if main_process else "", 130
    if isinstance(error, ValueError):
        return f"error: {text}" if main_process else "", 2
    return f"error: {type(error).__name__}: {text} (HF_POSENC_TRACEBACK=1 shows where)", 1


def run_script(main: Callable[[], object]) -> NoReturn:
    """Runs a script's `main`; an error becomes one line on standard error and an exit code (see `explain`)."""
    speak_as_typed(sys.argv[1:])
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        line, code = explain(error)
        if line:
            print(line, file=sys.stderr)
        sys.exit(code)
    sys.exit(0)
