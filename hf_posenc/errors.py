"""Errors in one line: `UserError` for what the user can correct, and exit codes.

An error names parameters by `spell`, as whoever reads it would give them: in Python `scheme='rpoe'`, on the command
line `--scheme 'rpoe'`.
"""

import contextlib
import difflib
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, ParamSpec, TypeVar, Union, get_args, get_origin

_P = ParamSpec("_P")
_R = TypeVar("_R")

NO_VALUE: Any = object()
"""A parameter is named without a value."""


def spell_in_python(parameter: str, value: Any) -> str:
    """`scheme='rpoe'`; of a key of a dictionary `set={'optim': 'sgd'}`."""
    name, _, key = parameter.partition(".")
    if not key:
        return name if value is NO_VALUE else f"{name}={value!r}"
    return f"{name}={{{key!r}: {'...' if value is NO_VALUE else repr(value)}}}"


_spelling: Callable[[str, Any], str] = spell_in_python


def spell(parameter: str, value: Any = NO_VALUE) -> str:
    """A parameter, perhaps with a value, as whoever reads the message would give it.

    Args:
        parameter: its name in Python; `set.optim` is the key `optim` of the dictionary `set`.
        value: left out, the name stands alone.
    """
    return _spelling(parameter, value)


@contextlib.contextmanager
def spelling(spell_parameter: Callable[[str, Any], str]) -> Iterator[None]:
    """Inside, messages name parameters so, in all threads: the command line says how its users give them."""
    global _spelling
    before, _spelling = _spelling, spell_parameter
    try:
        yield
    finally:
        _spelling = before


def renaming(rename: Callable[[str, Any], tuple[str, Any]]) -> contextlib.AbstractContextManager[None]:
    """Inside, messages spell the parameter and the value that `rename` gives for the one that an error names."""
    outer = _spelling
    return spelling(lambda parameter, value: outer(*rename(parameter, value)))


class UserError(ValueError):
    """Something in the input or the options is wrong; the message says what, what is accepted, and the way out.

    Args:
        message: the whole sentence, or with `parameter` what follows its name and value.
        parameter: what the error is about, spelt at the beginning (see `spell`).
        value: of the parameter, spelt, too.

    Attributes:
        parameter: the same, for programs. None: it isn't about one.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = NO_VALUE) -> None:
        self.parameter = parameter
        if parameter is not None:
            message = f"{spell(parameter, value)}{'' if message.startswith(':') else ' '}{message}"
        super().__init__(message)


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'Did you mean ...? ', for an error about an unknown name, with the nearest that is known; or ''."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}? " if near else ""


_SHOWN = 80
"""Letters of a value that an error about its type shows at most; a longer one isn't shown."""


def fits(value: Any, hint: Any) -> bool:
    """True where a value, and each element of a sequence, is of an annotated type; a truth value is no number."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if isinstance(value, bool) and hint in (int, float):
        return False
    if isinstance(value, Sequence) and inner:
        return isinstance(value, origin) and not isinstance(value, str) and all(fits(part, inner[0]) for part in value)
    kind: Any = {int: Integral, float: Real, None: type(None)}.get(hint, origin or hint)
    return isinstance(value, kind)


def _type_in_words(hint: Any) -> str:
    """An annotation, as a message shows it: `str, Path or None`."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = ["None" if part in (None, type(None)) else getattr(part, "__name__", str(part)) for part in parts]
    return " or ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def check_type(parameter: str, value: Any, hint: Any) -> None:
    """Raises a UserError if a parameter's value isn't of its annotated type."""
    if not fits(value, hint):
        wanted = f"is of type {type(value).__name__}. Give {_type_in_words(hint)}."
        is_short = len(repr(value)) < _SHOWN
        raise UserError(wanted, parameter=parameter, value=value if is_short else NO_VALUE)


def checks_types(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Refuses arguments that aren't of the types that a function's signature says, before it does anything."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*given: _P.args, **named: _P.kwargs) -> _R:
        for name, value in signature.bind(*given, **named).arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.annotation is not parameter.empty:
                check_type(name, value, parameter.annotation)
        return function(*given, **named)

    return call


class Diverged(UserError):
    """The loss, its gradient or the weights are no longer finite; the message says what to do."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C; the message says what was saved and how to resume."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns what the model's own classes refuse in a configuration, or transformers in a field, into a `UserError`."""
    from huggingface_hub.errors import StrictDataclassError  # here: the command line's help needn't wait for it

    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, ImportError, StrictDataclassError) as error:
        raise UserError(one_line(error)) from error


@contextlib.contextmanager
def readable(what: str, way_out: str) -> Iterator[None]:
    """Turns whatever a broken file or a failed download raises into one line with the innermost cause."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = (isinstance(cause, OSError) and cause.strerror) or one_line(cause) or type(cause).__name__
        raise UserError(f"{what} can't be read: {without_tokens(why.rstrip('.'))}. {way_out}") from error


def is_local(name: str) -> bool:
    """True for the name of a file or folder on this machine, or for one that can't be on the Hub as `owner/name`."""
    return Path(name).exists() or not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?", name) or ".." in name


def check_local(parameter: str, name: str) -> None:
    """Raises a UserError if the name, the value of this parameter, means a folder that doesn't exist."""
    if is_local(name) and not Path(name).exists():
        raise UserError(
            ": there is no such folder. Give one that is here, or a name on the Hub: owner/name.",
            parameter=parameter,
            value=name,
        )


def check_writable(spelt: str, folder: Path) -> None:
    """Raises a UserError, which begins with how the folder is spelt, where none can be made or written to."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "no permission" if nearest.is_dir() else "a file is in the way"
        if nearest.is_symlink() and not nearest.exists():
            reason = f"{str(nearest)!r} is a link that leads nowhere"
        raise UserError(f"{spelt} can't be written to: {reason}. Name a folder of your own.")


def require_packages(what: str, *packages: str) -> None:
    """Raises a UserError, with the line that installs them, where something needs packages that can't be imported."""
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise UserError(
            f"{what} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f"pip install {' '.join(missing)}."
        )


_TOKEN = re.compile(r"hf_(oauth_|jwt_)?[A-Za-z0-9]{30,}([\w.-]*\w)?")
_MASK = "hf_..."


def without_tokens(text: str, *tokens: str | None) -> str:
    """Masks Hub tokens in a text: those given, that of HF_TOKEN, and whatever looks like one."""
    for token in filter(None, (*tokens, os.environ.get("HF_TOKEN", "").strip())):
        text = text.replace(token, _MASK)
    return _TOKEN.sub(_MASK, text)


def _current_token() -> str | None:
    """The token that requests are sent with; None where it can't be had, and so isn't sent."""
    with contextlib.suppress(Exception):  # its file can't be read, or a CI gives none
        from huggingface_hub import get_token  # here: the command line's help needn't wait for it

        return get_token()
    return None


def one_line(error: BaseException) -> str:
    """The message of an error, without line breaks, and without the Hub tokens that a server may have repeated."""
    return without_tokens(" ".join(str(error).split()), _current_token())


_UNWRITTEN = re.compile(
    r"(?<=PermissionError: ).+|No space left on device|Not enough disk space|File too large|Disk quota exceeded"
    "|Read-only file system|PytorchStreamWriter failed|unexpected pos|iostream error"
)


def disk_error(error: BaseException) -> str | None:
    """Why a write failed, by `error` or an error that caused it; None if it isn't about a write.

    Torch and safetensors report a full disk by their own error classes, with the system's text inside.
    """
    match = _UNWRITTEN.search("".join(traceback.format_exception(error, limit=0)))
    return match and without_tokens(match[0])


def is_main_process() -> bool:
    """True in the one of several processes that speaks to the user; known before PyTorch is imported."""
    return os.environ.get("RANK", "0") == "0"


def format_cli_error(error: BaseException) -> tuple[str, int]:
    """One line for an error that ends a command, and its exit code: 2 for a `UserError`, 130 for Ctrl-C, else 1.

    If several processes read the same bad input, one reports it; the line of the others is empty. Where the environment
    variable HF_POSENC_TRACEBACK is set, each gives its traceback instead.
    """
    code = 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, UserError) else 1
    if os.environ.get("HF_POSENC_TRACEBACK"):
        return without_tokens("".join(traceback.format_exception(error)), _current_token()), code
    text = one_line(error)
    if code == 130:
        return f"Interrupted: {text or 'nothing was written.'}" if is_main_process() else "", code
    if code == 2:
        return f"Error: {text}" if is_main_process() else "", code
    process = "" if is_main_process() else f"process {os.environ['RANK']}: "
    return f"Error: {process}{type(error).__name__}: {text} (HF_POSENC_TRACEBACK=1 shows where)", code


def run_script(main: Callable[[], object]) -> NoReturn:
    """Runs a script's `main`; an error becomes one line on standard error and an exit code (see `format_cli_error`)."""
    try:
        main()
    except (Exception, KeyboardInterrupt) as error:
        line, code = format_cli_error(error)
        if line:
            with contextlib.suppress(OSError):  # nobody reads it; the exit code says it, too
                print(line, file=sys.stderr)
        sys.exit(code)
    # PyTorch may abort a process that exits while the threads of its process group still run.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    sys.exit(0)
