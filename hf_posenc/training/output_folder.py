"""The output folder of a run: not overwritten by accident, used by one run at a time, never left half-replaced."""

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..checkpoint_files import INDEX, WEIGHTS
from ..errors import Interrupted, UserError, disk_error
from ..files import REPLACED
from .checkpoints import RESULTS_NAME, checkpoints, has_ended, last_complete_checkpoint, remove_checkpoints

PREDICTIONS_NAME = "predictions.jsonl"
LOCK_NAME = ".lock"
EARLIER = ".earlier"
"""Holds the checkpoints of a run while another one replaces it."""
_RUN_FILES = (
    "config.json",
    WEIGHTS,
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "README.md",
    "conversion.json",
    "_trained_on.npy",
    RESULTS_NAME,
    PREDICTIONS_NAME,
)


def run_files(output_dir: str | Path) -> list[str]:
    """Names of the files of a run in its folder, without checkpoints."""
    folder = Path(output_dir)
    names = [name for name in _RUN_FILES if (folder / name).exists()]
    return names + [path.name for path in folder.glob("model-*-of-*.safetensors")]


def earlier_run(output_dir: str | Path, training: bool = True) -> list[str]:
    """Names in a folder that a run would overwrite: all of a run's files, or only results and predictions."""
    folder = Path(output_dir)
    if not training:
        return [name for name in (RESULTS_NAME, PREDICTIONS_NAME) if (folder / name).exists()]
    more = (*checkpoints(folder), *folder.glob(EARLIER), *folder.glob(f"{REPLACED}*"))
    return run_files(folder) + [path.name for path in more]


def check_run_folder(training: Any) -> None:
    """Refuses a folder that holds another run, and makes sure that files can be written. Deletes nothing.

    Raises:
        UserError: the folder holds a run that is neither to be overwritten nor resumed, or can't be written to.
    """
    folder, names = Path(str(training.output_dir)), earlier_run(str(training.output_dir), training.do_train)
    if names and not training.overwrite_output_dir and not training.resume_from_checkpoint:
        raise UserError(
            f"--output-dir {str(training.output_dir)!r} already holds another run ({', '.join(names[:4])}"
            f"{', ...' if len(names) > 4 else ''}). Name a new folder, replace that run with --overwrite-output-dir"
            + (", or go on with it with --resume-from-checkpoint true." if training.do_train else ".")
        )
    make_folder(folder, "--output-dir ")


def make_folder(folder: Path, option: str = "") -> None:
    """Makes a folder, if it isn't there, and makes sure that files can be written.

    Raises:
        UserError: they can't; the message names the folder, after the option that it was given by.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-"):
            pass
    except OSError as error:
        raise UserError(
            f"{option}{str(folder)!r} can't be written to: {error.strerror}. Name a folder of your own."
        ) from error


@contextlib.contextmanager
def guarded_run(training: Any, is_lora: bool = False) -> Iterator[None]:
    """Locks the folder. Turns a full disk into a UserError and Ctrl-C into an Interrupted that say what is left.

    The checkpoints of a run that is replaced are set aside.
    """
    folder, resumed = str(training.output_dir), training.resume_from_checkpoint
    goes_on = resumed is not None and Path(resumed).resolve().parent == Path(folder).resolve()
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_errors(folder))
        if training.process_index == 0:
            stack.enter_context(folder_lock(folder))
            if training.do_train and training.overwrite_output_dir and not goes_on:
                stack.enter_context(set_aside(folder))
        try:
            with disk_errors(folder):  # inside, while the files it names still exist
                yield
        except Interrupted:
            raise
        except KeyboardInterrupt as interrupt:
            raise Interrupted(recovery_hint(folder, is_lora)) from interrupt


@contextlib.contextmanager
def folder_lock(output_dir: str | Path) -> Iterator[None]:
    """Locks the folder against other trainings.

    Raises:
        UserError: another process holds the lock; the message says which.
    """
    path = Path(output_dir) / LOCK_NAME
    lock = FileLock(path)
    holder = ""
    with contextlib.suppress(OSError):  # before the lock is tried, for an older filelock then empties the file
        holder = path.read_text(encoding="utf-8").strip()
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"--output-dir {str(output_dir)!r}: {holder or 'another process'} is training into it. Name another."
        ) from error
    try:
        with contextlib.suppress(OSError):  # Windows reads and writes no locked file
            started = time.strftime("%Y-%m-%d %H:%M")
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {started},", encoding="utf-8")
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def set_aside(output_dir: str | Path) -> Iterator[None]:
    """Moves the checkpoints to `.earlier`, and back if what follows fails and leaves none that can be resumed from."""
    folder = Path(output_dir)
    aside = folder / EARLIER
    _move_checkpoints(folder, aside)
    try:
        yield
    except BaseException:
        if aside.is_dir() and last_complete_checkpoint(folder) is None:
            remove_checkpoints(folder)
            _move_checkpoints(aside, folder)
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _move_checkpoints(source: Path, target: Path) -> None:
    for path in checkpoints(source):
        target.mkdir(exist_ok=True)
        shutil.rmtree(target / path.name, ignore_errors=True)
        path.replace(target / path.name)


@contextlib.contextmanager
def disk_errors(output_dir: str | Path) -> Iterator[None]:
    """Turns a failed write, whichever library reports it, into a `UserError` that says what is safe."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = disk_error(error)
        if reason is None:
            raise
        raise UserError(
            f"Writing to {str(output_dir)!r} failed: {reason}. Make room or name another --output-dir. "
            f"What is left: {recovery_hint(output_dir)}"
        ) from error


def recovery_hint(output_dir: str | Path, is_lora: bool = False, diverged: bool = False) -> str:
    """What an unfinished run left and how to go on; follows a colon."""
    folder = Path(output_dir)
    last, aside = last_complete_checkpoint(folder), folder / EARLIER
    kept = ""
    if has_ended(folder) or aside.is_dir():
        where = f", its checkpoints in {str(aside)!r}" if aside.is_dir() and last else ""
        kept = f" The run in {str(folder)!r} is as it was{where}."
    if last is None:
        return f"no checkpoint had been saved.{kept}"
    newest = f"the newest checkpoint is {str(last)!r}."
    if is_lora:
        return f"{newest} It is a whole model, for --model-name-or-path, and can't be resumed.{kept}"
    if diverged:
        return f"{newest} Resuming there would diverge again; --model-name-or-path begins a new run with it.{kept}"
    return f"{newest} Go on with --resume-from-checkpoint true.{kept}"
