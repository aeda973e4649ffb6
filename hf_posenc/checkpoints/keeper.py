"""Keeps output folders: locks one, says what may be replaced in it, and moves finished files in.

A command enters `output_folder` once, at its first look, and hands the `OutputFolder` down:

    with output_folder("runs/mine", overwrite=True) as output:
        ...
        with output.replaced() as new:
            model.save_pretrained(new)

- **Lock.** `.posenc.lock` is held from the first look to the end; `.posenc.lock.json` says who holds it.
- **List.** `_files.json` has the names and SHA-256 of what was written. These files alone are replaced, and only while
  they are as they were written. All else stays where it lies.
- **Move.** New files are written into `.writing`, their list last. From then on they are complete: the old ones go
  into `.replaced-...`, the new ones come, and whichever command looks next finishes a move that was killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout

from ..errors import Interrupted, UserError, check_writable, disk_error, one_line, spell
from ..files import WRITING, json_text, sha256, write_json, write_text
from .files import REPORT_NAME, TOKENIZER_FILES, TRAINED_ON
from .sentence_modules import is_module

LIST = "_files.json"
LOCK, HOLDER = ".posenc.lock", ".posenc.lock.json"
REPLACED = ".replaced-"
"""Prefix of the folder that holds replaced files until all new ones are in place."""
_VALUE = f"{WRITING}.json"
"""What becomes a file of an unfinished run."""
_EARLIER = re.compile(rf"{re.escape(REPLACED)}[a-z0-9_]{{8}}")
MARK = ".posenc"
"""In the temporary folder: it tells that folder from one of the user's."""
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
"""Name of the Trainer's checkpoint folders, with the step."""
_NAMES = {
    *("config.json", "generation_config.json", "adapter_config.json", "chat_template.jinja", "run.json"),
    *("sentence_bert_config.json", "results.json", "export.json", "README.md", "confusion_matrix.png"),
    "openvino_model.xml",
    *(REPORT_NAME, TRAINED_ON, LIST, WRITING, *TOKENIZER_FILES),
}
_ENDINGS = (".safetensors", ".bin", ".index.json", ".py", ".onnx", ".onnx.data")
_GRAPHS = ("onnx", "openvino")
"""Folders of exported graphs."""


def is_model_file(path: Path) -> bool:
    """True for the name of what a command writes into an output folder, or a loader reads there."""
    is_named = path.name in _NAMES or path.name.endswith(_ENDINGS) or CHECKPOINT.fullmatch(path.name)
    return bool(is_named) or path.name in _GRAPHS or is_module(path)


def check_apart(output: str | Path, source: str | Path) -> None:
    """Raises a UserError where an output folder is the source's own, or holds it."""
    if Path(source).is_dir() and Path(os.path.realpath(source)).is_relative_to(os.path.realpath(output)):
        reason = "is the source's own folder, or holds it. Name another one."
        raise UserError(reason, parameter="output", value=str(output))


@contextlib.contextmanager
def disk_errors(folder: str | Path, left: Callable[[], str]) -> Iterator[None]:
    """Turns a full disk, or another failed write, into a UserError that ends with what is left."""
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, UserError) else disk_error(error)
        if reason is None:
            raise
        raise UserError(
            f"Writing to {str(folder)!r} failed: {reason}. Make room, or name another folder. {left()}"
        ) from error


def nothing_changed() -> str:
    """Says, after a failed write, that it changed nothing."""
    return "What was there is as it was."


class _InTheWay(UserError):
    """A file that isn't ours keeps new ones, which are complete, from their place."""


class OutputFolder:
    """An output folder that this process holds the lock of; made by `output_folder`.

    Attributes:
        path: the folder.
        is_main: whether this process writes; of several, one does.
        completed: a move that had been killed was finished at the first look.
        has_moved: new files are in their place.
    """

    def __init__(self, path: Path, is_main: bool = True) -> None:
        self.path = path
        self.is_main = is_main
        self.completed = False
        self.has_moved = False
        self._digests: dict[tuple[str, int, int], str] = {}

    # ---- what lies there --------------------------------------------------------------------------------------------

    def content(self) -> list[str]:
        """The names in the folder, without what the keeper itself needs."""
        names = sorted(path.name for path in self.path.iterdir())
        internal = {LOCK, HOLDER, _VALUE} | ({WRITING} if _is_temporary(self.path / WRITING) else set())
        return [name for name in names if name not in internal and not _EARLIER.fullmatch(name)]

    def written(self) -> dict[str, str]:
        """The files on the list that are as they were written, with their SHA-256."""
        listed = _read_list(self.path)
        return {name: digest for name, digest in listed.items() if self._digest(name) == digest}

    def _digest(self, name: str) -> str | None:
        """The SHA-256 of a file of the folder, computed once; None: there is no such file, or it is a link."""
        path = self.path / name
        if not path.is_file() or path.resolve() != self.path.resolve() / name:
            return None
        state = path.stat()
        key = (name, state.st_size, state.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = sha256(path)
        return self._digests[key]

    def refuse_taken(self, *, may_replace: bool = False, run: Collection[str] = (), way_out: str | None = None) -> None:
        """Refuses a folder that holds what may not be replaced.

        Args:
            may_replace: what we wrote there may be.
            run: names that are ours though they aren't on the list: those of an unfinished run.
            way_out: what else the user can do where it may not be. None: replace it.

        Raises:
            UserError: the folder holds something, and what that is.
        """
        content = self.content()
        if not content:
            return
        shown, held = repr(str(self.path)), _some(content)
        if not run and not _read_list(self.path):
            raise UserError(
                f"{shown} holds {held}, and no whole {LIST} that says that hf-posenc wrote it. Empty it, or name a new "
                "folder."
            )
        if strange := self._in_the_way({*self.written(), LIST, *run}):
            raise UserError(
                f"{shown} holds {_some(strange)}, which hf-posenc didn't write, or which was edited since, and whose "
                "name the new files, or those who load them, need. Move that elsewhere, or name a new folder."
            )
        if not may_replace:
            finished = "The files of a command that was killed have all been moved in now: " if self.completed else ""
            kind = f"a run ({held})" if run or "results.json" in content else held
            way_out = way_out or f"replace it ({spell('overwrite', True)})"
            raise UserError(f"{finished}{shown} already holds {kind}. Name a new folder, or {way_out}.")

    def _in_the_way(self, ours: Collection[str]) -> list[str]:
        """Files that aren't ours and have a name that is about to be written, or that a loader reads."""
        strange = []
        for name in self.content():
            path = self.path / name
            if name in ours or not is_model_file(path):
                continue
            if path.is_dir() and not path.is_symlink() and (name in _GRAPHS or is_module(path)):
                inside = [f"{name}/{item.name}" for item in sorted(path.iterdir())]
                strange += [item for item in inside if item not in ours and is_model_file(self.path / item)]
            else:
                strange.append(name)
        return strange

    # ---- writing ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def replaced(self, left: Callable[[], str] = nothing_changed) -> Iterator[Path]:
        """A temporary folder whose files replace those on the list when all are written.

        If writing fails, the folder is as it was. All of several processes enter; only the main one changes anything.

        Args:
            left: tells what is left if the disk is full.

        Raises:
            UserError: the disk is full, or somebody put a file in the way.
        """
        with disk_errors(self.path, left), self._temporary() as new:
            yield new
            if self.is_main:
                files = [path for path in new.rglob("*") if path.is_file() and path != new / MARK]
                names = sorted(path.relative_to(new).as_posix() for path in files)
                write_json(new / LIST, {"files": {name: sha256(new / name) for name in names}})
                self._move_in()

    def add(self, name: str, text: str) -> None:
        """Writes a further file, and puts it on the list.

        Raises:
            UserError: there is such a file that isn't on the list, or was edited.
        """
        path, written = self.path / name, self.written()
        if os.path.lexists(path) and name not in written:
            raise UserError(f"{str(path)!r} is a file of yours, or was edited. Move it elsewhere, and run it again.")
        with disk_errors(self.path, nothing_changed), self._temporary() as new:
            write_text(new / name, text)
            write_json(new / LIST, {"files": {**_read_list(self.path), name: sha256(new / name)}})
            self._move_in()

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file of a run that isn't finished, which isn't on the list: whole or not at all."""
        if self.is_main:
            (self.path / _VALUE).write_text(json_text(value, indent=2), encoding="utf-8")
            os.replace(self.path / _VALUE, self.path / name)

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        new = self.path / WRITING
        if self.is_main:
            if not _is_temporary(new):
                raise UserError(f"{str(new)!r} is yours, and the new files need that name. Move it elsewhere.")
            _remove_temporary(new)  # of a command that was killed
            new.mkdir()
            (new / MARK).touch()
        is_waiting = False
        try:
            yield new
        except _InTheWay:
            is_waiting = True
            raise
        finally:
            if self.is_main and not is_waiting:
                _remove_temporary(new)

    def _move_in(self) -> None:
        """Moves the listed files of `.writing` into the folder; if that fails, the folder is unchanged.

        The old config.json leaves first and the new one comes last but the list: a folder without it isn't a model, so
        none is ever mixed. The old list is the last to leave: where there is none, all old files have left.

        Raises:
            UserError: a file that isn't ours has one of the names; the new files wait in `.writing`.
        """
        new, coming = self.path / WRITING, _read_list(self.path / WRITING)
        arriving = [name for name in coming if (new / name).is_file()]
        leaving = [name for name, sum_ in self.written().items() if name in arriving or coming.get(name) != sum_]
        if strange := [name for name in arriving if os.path.lexists(self.path / name) and name not in leaving]:
            raise _InTheWay(
                f"{str(self.path)!r} has got {_some(strange)}, which hf-posenc didn't write. Move that elsewhere, and "
                f"run the same command again: the new files are complete, and wait in {WRITING}."
            )
        with _without_interruption(), contextlib.ExitStack() as undo:
            old = Path(tempfile.mkdtemp(prefix=REPLACED, dir=self.path))
            undo.callback(_remove_empty, [old])
            if (self.path / LIST).is_file():
                for name in [*sorted(leaving, key=lambda name: (name != "config.json", name)), LIST]:
                    _move(self.path, old, name, undo)
            for name in [*sorted(arriving, key=lambda name: (name == "config.json", name)), LIST]:
                _move(new, self.path, name, undo)
            undo.pop_all()
        self.has_moved = True
        for earlier in self.path.iterdir():
            if _EARLIER.fullmatch(earlier.name):
                shutil.rmtree(earlier, ignore_errors=True)

    def finish_move(self) -> None:
        """Finishes the move of a command that was killed; files that aren't complete go when others are written."""
        new = self.path / WRITING
        if not new.exists() or not _is_temporary(new):
            return
        if (new / LIST).is_file():
            self._move_in()
            self.completed = True
        if self.completed or not {path.name for path in new.rglob("*") if path.is_file()} - {MARK}:  # all have moved
            _remove_temporary(new)


@contextlib.contextmanager
def output_folder(
    path: str | Path,
    *,
    overwrite: bool = False,
    check: Callable[[OutputFolder], None] | None = None,
    process: PartialState | None = None,
) -> Iterator[OutputFolder]:
    """Locks an output folder from the first look to the end of the block, and refuses one that is taken.

    It is made, and removed again if nothing was written.

    Args:
        path: the folder.
        overwrite: what we wrote there may be replaced.
        check: refuses the folder instead of `OutputFolder.refuse_taken`.
        process: of several that share the folder; the main one alone locks and looks. None: there is one.

    Raises:
        UserError: the folder is taken or can't be written to, or another process holds it; in all processes.
    """
    if not str(path).strip():
        raise UserError("The output folder has no name. Give one, or . for the current folder.")
    output = OutputFolder(Path(path), process is None or process.is_main_process)
    with contextlib.ExitStack() as at_end:
        refusal: list[UserError | None] = [None]
        if output.is_main:
            try:
                _enter(output, at_end)
                check(output) if check is not None else output.refuse_taken(may_replace=overwrite)
            except UserError as error:
                refusal = [error]
            except OSError as error:
                refusal = [UserError(f"{str(path)!r} can't be written to: {one_line(error)}. Name another folder.")]
        if process is not None and process.num_processes > 1:
            refusal = broadcast_object_list(refusal)
        if refusal[0] is not None:
            raise refusal[0]
        output.has_moved = False  # of this command
        try:
            yield output
        except KeyboardInterrupt as interrupt:
            if not output.has_moved:
                raise
            raise Interrupted(f"the new files are complete, and in {str(path)!r}.") from interrupt


@contextlib.contextmanager
def _without_interruption() -> Iterator[None]:
    """Lets Ctrl-C do nothing for the moment that a move takes, after which the command has ended anyway."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)


def _is_temporary(folder: Path) -> bool:
    """True where there is no such folder, or a temporary one of a command."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return False
    return not folder.exists() or (folder / MARK).is_file() or not any(folder.iterdir())


def _remove_temporary(folder: Path) -> None:
    """Deletes a temporary folder; the mark that tells that it is one goes last."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARK:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _enter(output: OutputFolder, at_end: contextlib.ExitStack) -> None:
    """Makes and locks a folder, and finishes a move that was killed; what undoes that is called at the end."""
    folder = output.path
    check_writable(repr(str(folder)), folder)
    with disk_errors(folder, nothing_changed):
        missing = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
        at_end.callback(_remove_empty, missing)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            at_end.enter_context(FileLock(folder / LOCK, timeout=0))
        except Timeout:
            raise UserError(
                f"{str(folder)!r} is in use: {_holder(folder)} writes into it. Wait until that has ended, or name "
                "another folder."
            ) from None
        # Removed while it is held: who opened it before then sees that it is gone, and doesn't take it for a lock.
        at_end.callback(_unlink, folder / LOCK, folder / HOLDER)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        value = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
        (folder / HOLDER).write_text(json_text(value), encoding="utf-8")
        output.finish_move()


def _holder(folder: Path) -> str:
    """Who holds the lock of a folder, in words."""
    try:
        value = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return f"process {value['process']} on {value['host']}, since {value['since']},"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _read_list(folder: Path) -> dict[str, str]:
    """The names and digests on a folder's list; none where there is no list, or it can't be read."""
    try:
        files = dict(json.loads((folder / LIST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {name: digest for name, digest in files.items() if not name.startswith("/") and ".." not in name.split("/")}


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def _move(source: Path, target: Path, name: str, undo: contextlib.ExitStack) -> None:
    """Moves a file between two folders, and makes and removes the folders in which it lies; `undo` moves it back."""
    undo.callback(_move_back, source, target, name)
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(source / name, target / name)
    _remove_empty([source / place for place in PurePosixPath(name).parents if place.name])


def _move_back(source: Path, target: Path, name: str) -> None:
    """Undoes `_move`, wherever it was interrupted."""
    if not (source / name).is_file():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(target / name, source / name)
    _remove_empty([target / place for place in PurePosixPath(name).parents if place.name])


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):  # it holds something, and so do those that hold it
        for folder in folders:
            folder.rmdir()


def _unlink(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
