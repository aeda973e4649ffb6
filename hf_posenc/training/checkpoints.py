"""Output folders: none is overwritten by accident, none is left half-written, and resuming finds a whole one."""

import contextlib
import json
import math
import os
import re
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from .errors import UserError, disk_error

RESULTS_NAME = "results.json"
PREDICTIONS_NAME = "predictions.jsonl"
LOCK_NAME = ".lock"
_RUN_FILES = (
    "config.json",
    SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "README.md",
)
_CHECKPOINT = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step."""
    folder = Path(output_dir)
    found = (
        [path for path in folder.iterdir() if path.is_dir() and _CHECKPOINT.fullmatch(path.name)]
        if folder.is_dir()
        else []
    )
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint folder was written to its end: it holds all that resuming needs, and all can be read.

    The Trainer writes its state last; but a machine that stops may have lost any of the files, so each is opened.
    """
    folder = Path(checkpoint)
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text())
        sharded = any(folder.glob("pytorch_model_fsdp*")) or any(folder.glob("global_step*"))  # FSDP, DeepSpeed
        if sharded:
            return any(folder.glob("rng_state*.pth"))
        weights = [SAFE_WEIGHTS_NAME]
        if not (folder / SAFE_WEIGHTS_NAME).exists():
            index = json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_text())
            weights = sorted(set(index["weight_map"].values()))
        for name in weights:
            with safe_open(str(folder / name), framework="pt"):  # checks that the file is as long as its header says
                pass
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
    states = [folder / "optimizer.pt", folder / "scheduler.pt", *folder.glob("rng_state*.pth")]
    return len(states) > 2 and all(zipfile.is_zipfile(path) for path in states)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint folder that was written to its end, or None."""
    return next((path for path in reversed(checkpoints(output_dir)) if is_complete(path)), None)


def find_resume_point(output_dir: str | Path, resume: str | bool | None) -> Path | None:
    """The checkpoint to resume from.

    Args:
        output_dir: the run's folder.
        resume: a checkpoint folder; or `True` / `"true"` / `"last"` for the run's newest complete one; or None.

    Returns:
        The folder, or None to start at the beginning.

    Raises:
        UserError: the named folder isn't there or isn't complete, or the run has checkpoints and none is complete.
    """
    name = "" if resume is None else str(resume)
    if name.lower() in ("false", "no", ""):
        return None
    if name.lower() in ("true", "last", "yes"):
        return last_complete_checkpoint(output_dir)
    if not Path(name).is_dir():
        raise UserError(
            f"--resume_from_checkpoint {name!r} is no folder. Give a checkpoint-N folder, or true for the "
            f"newest complete one in {str(output_dir)!r}."
        )
    if not is_complete(name):
        other = last_complete_checkpoint(Path(name).parent)
        raise UserError(
            f"--resume_from_checkpoint {name!r} is incomplete or damaged. "
            + (f"The newest complete one beside it is {str(other)!r}." if other else "Train anew.")
        )
    return Path(name)


def earlier_run(output_dir: str | Path, training: bool = True) -> list[str]:
    """Names in a folder that a run would overwrite: all of a run's files, or only results and predictions."""
    folder = Path(output_dir)
    names = (*_RUN_FILES, RESULTS_NAME, PREDICTIONS_NAME) if training else (RESULTS_NAME, PREDICTIONS_NAME)
    return [name for name in names if (folder / name).exists()] + (
        [path.name for path in checkpoints(folder)] if training else []
    )


def check_output_dir(output_dir: str | Path, *, overwrite: bool, resume: bool, training: bool = True) -> None:
    """Refuses a folder that holds another run, and makes sure that files can be written. Deletes nothing.

    Raises:
        UserError: the folder holds another run and neither `overwrite` nor `resume` is set, or can't be written to.
    """
    folder = Path(output_dir)
    if not overwrite and not resume and (found := earlier_run(folder, training)):
        raise UserError(
            f"--output_dir {str(output_dir)!r} already holds another run ({', '.join(found[:4])}"
            f"{', ...' if len(found) > 4 else ''}). Name a new folder, replace that run with --overwrite_output_dir"
            + (", or go on with it with --resume_from_checkpoint true." if training else ".")
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-"):
            pass
    except OSError as error:
        raise UserError(
            f"--output_dir {str(output_dir)!r} can't be written to: {error.strerror}. Name a folder of your own, or "
            "change its permissions."
        ) from error


@contextlib.contextmanager
def owned(output_dir: str | Path) -> Iterator[None]:
    """While entered no other training can write to the folder.

    Raises:
        UserError: another process does; the message says which.
    """
    path = Path(output_dir) / LOCK_NAME
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        holder = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        raise UserError(
            f"--output_dir {str(output_dir)!r}: {holder or 'another process'} is training into it. Wait until it has "
            "ended, or name another folder."
        ) from error
    try:
        with contextlib.suppress(OSError):  # Windows reads and writes no locked file
            started = time.strftime("%Y-%m-%d %H:%M")
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {started},", encoding="utf-8")
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def has_ended(output_dir: str | Path) -> bool:
    """Whether a folder holds a run that was trained to its end."""
    return all((Path(output_dir) / name).exists() for name in (RESULTS_NAME, "config.json"))


def remove_checkpoints(output_dir: str | Path) -> None:
    """Deletes the checkpoint folders of a run."""
    for path in checkpoints(output_dir):
        shutil.rmtree(path)


def remove_earlier_run(output_dir: str | Path) -> None:
    """Deletes a run's files and checkpoints from a folder, and nothing else."""
    remove_checkpoints(output_dir)
    for name in earlier_run(output_dir):
        (Path(output_dir) / name).unlink()


@contextlib.contextmanager
def replaced_together(output_dir: str | Path, main_process: bool = True) -> Iterator[Path]:
    """A temporary folder whose files move into `output_dir` when all are written.

    If writing fails nothing in `output_dir` has changed. `config.json` moves last: a folder without it is no model.
    With several processes all enter, and the main one makes, moves and removes.
    """
    folder = Path(output_dir)
    temporary = folder / ".writing"
    if main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    try:
        yield temporary
        if main_process:
            for path in sorted(temporary.iterdir(), key=lambda path: path.name == "config.json"):
                os.replace(path, folder / path.name)
    finally:
        if main_process:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when it is written; if that fails nothing there has changed.

    Makes the folder.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file whole or not at all; makes its folder."""
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: str | Path, value: Any) -> None:
    """Writes a JSON file whole or not at all; NaN and infinity, which JSON hasn't, become null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        last = last_complete_checkpoint(output_dir)
        raise UserError(
            f"Writing to {str(output_dir)!r} failed: {reason}. Make room or name another --output_dir. "
            + (
                f"The newest complete checkpoint is {str(last)!r}: go on with --resume_from_checkpoint true."
                if last
                else "There is no complete checkpoint yet."
            )
        ) from error
