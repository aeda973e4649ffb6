"""Keeps output folders: locks one, says what may be replaced in it, and moves finished files in.

A command enters `output_folder` once, at its first look, and hands the `OutputFolder` down:

    with output_folder("runs/mine", overwrite=True) as output:
        ...
        with output.replaced() as new:
            model.save_pretrained(new)

- **Lock.** `.posenc.lock` is held from the first look to the end.
- **List.** `_files.json` has the names and SHA-256 of what was written. These files alone are replaced, and only while
  they are as they were written. All else stays where it lies.
- **Move.** New files are written into `.posenc.writing`, their list last. From then on they are complete: the old ones
  go, the new ones come, and whichever command looks next finishes a move that failed or was killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout

from ..errors import Interrupted, UserError, check_writable, disk_error, one_line, spell
from ..files import json_text, sha256, write_json, write_text
from .files import REPORT_NAME, TOKENIZER_FILES, TRAINED_ON
from .sentence_modules import is_module

LIST = "_files.json"
_OURS = ".posenc."
"""How the names begin of what the keeper itself needs."""
LOCK = f"{_OURS}lock"
WAITING = f"{_OURS}writing"
"""The temporary folder of new files."""
_VALUE = f"{_OURS}value"
"""What becomes a file of an unfinished run."""
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
"""Name of the Trainer's checkpoint folders, with the step."""
_NAMES = {
    *("config.json", "generation_config.json", "adapter_config.json", "chat_template.jinja", "run.json"),
    *("sentence_bert_config.json", "results.json", "export.json", "README.md", "confusion_matrix.png"),
    "openvino_model.xml",
    *(REPORT_NAME, TRAINED_ON, LIST, *TOKENIZER_FILES),
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

    # ---- what lies there --------------------------------------------------------------------------------------------

    def content(self) -> list[str]:
        """The names in the folder, without what the keeper itself needs."""
        return sorted(path.name for path in self.path.iterdir() if not path.name.startswith(_OURS))

    def written(self) -> dict[str, str]:
        """The files on the list that are as they were written, with their SHA-256; a link isn't."""
        real = self.path.resolve()
        return {
            name: digest
            for name, digest in _read_list(self.path).items()
            if (real / name).resolve() == real / name and (real / name).is_file() and sha256(real / name) == digest
        }

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
            is_looked_into = path.is_dir() and not path.is_symlink() and (name in _GRAPHS or is_module(path))
            inside = [f"{name}/{item.name}" for item in sorted(path.iterdir())] if is_looked_into else [name]
            strange += [item for item in inside if item not in ours and is_model_file(self.path / item)]
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
                names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
                self._move_in({name: sha256(new / name) for name in names})

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
            self._move_in({**written, name: sha256(new / name)})

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file of a run that isn't finished, which isn't on the list: whole or not at all."""
        if self.is_main:
            (self.path / _VALUE).write_text(json_text(value, indent=2), encoding="utf-8")
            os.replace(self.path / _VALUE, self.path / name)

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[Path]:
        new = self.path / WAITING
        if self.is_main:
            shutil.rmtree(new, ignore_errors=True)  # of a command that was killed
            new.mkdir()
        try:
            yield new
        finally:
            if self.is_main and not (new / LIST).is_file():  # else they are complete, and wait
                shutil.rmtree(new, ignore_errors=True)

    def _move_in(self, files: dict[str, str] | None = None) -> None:
        """Lists the files of the temporary folder, and moves them into the output folder.

        The old config.json leaves first and the new one comes last but the list: a folder without it isn't a model, so
        none is ever mixed. A move that has begun is finished, by the next look if need be.

        Args:
            files: the names and digests to list. None: they are listed already.

        Raises:
            UserError: a file that isn't ours has one of the names, or one can't be moved; the new files wait.
        """
        new = self.path / WAITING
        written = self.written()
        with _without_interruption():
            if files is not None:
                write_json(new / LIST, {"files": files})
            files = _read_list(new)
            arriving = [name for name in files if (new / name).is_file()]
            leaving = [name for name, digest in written.items() if name in arriving or files.get(name) != digest]
            wait = f"run the same command again: the new files are complete, and wait in {WAITING}."
            if strange := [name for name in arriving if os.path.lexists(self.path / name) and name not in leaving]:
                what = f"{str(self.path)!r} has got {_some(strange)}, which hf-posenc didn't write"
                raise UserError(f"{what}. Move that elsewhere, and {wait}")
            if (blocked := self._blocked({*leaving, *arriving})) is not None:
                what = f"In {str(blocked)!r} no file can be written or removed, so what was there is as it was"
                raise UserError(f"{what}. See to it that files can be moved there, and {wait}")
            try:
                self._replace(leaving, arriving)
            except OSError as error:
                raise UserError(f"{one_line(error)}. See to it that files can be moved there, and {wait}") from error
            self.has_moved = True

    def _blocked(self, names: Iterable[str]) -> Path | None:
        """A place on the way to one of the files that is no folder, or one that can't be written to."""
        places = {self.path / place for name in names for place in PurePosixPath(name).parents}
        for place in sorted(place for place in places if os.path.lexists(place)):
            if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
                return place
        return None

    def _replace(self, leaving: list[str], arriving: list[str]) -> None:
        """Deletes old files, with the folders that they leave empty, and moves new ones in."""
        for name in sorted(leaving, key=lambda name: (name != "config.json", name)):
            (self.path / name).unlink()
            _remove_empty([self.path / place for place in PurePosixPath(name).parents if place.name])
        for name in [*sorted(arriving, key=lambda name: (name == "config.json", name)), LIST]:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.path / WAITING / name, self.path / name)

    def finish_move(self) -> None:
        """Finishes the move of a command that was killed; files that aren't complete go when others are written."""
        if self._is_complete():
            self._move_in()
            self.completed = True
            shutil.rmtree(self.path / WAITING, ignore_errors=True)

    def _is_complete(self) -> bool:
        """True where all new files wait or are in place as their list says: a damaged list would delete all others."""
        files = _read_list(self.path / WAITING)
        places = {name: (self.path / WAITING / name, self.path / name) for name in files}
        return bool(files) and all(
            any(path.is_file() and sha256(path) == digest for path in places[name]) for name, digest in files.items()
        )


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
            what = f"{str(folder)!r} is in use: another process writes into it"
            raise UserError(f"{what}. Wait until that has ended, or name another folder.") from None
        # Removed while it is held: who opened it before then sees that it is gone, and doesn't take it for a lock.
        at_end.callback((folder / LOCK).unlink, missing_ok=True)
        output.finish_move()


def _read_list(folder: Path) -> dict[str, str]:
    """The names and digests on a folder's list; none where there is no list, or it can't be read."""
    try:
        files = dict(json.loads((folder / LIST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return {name: digest for name, digest in files.items() if not name.startswith("/") and ".." not in name.split("/")}


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):  # it holds something, and so do those that hold it
        for folder in folders:
            folder.rmdir()
