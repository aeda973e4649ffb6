"""Output folders: not overwritten by accident, not left half-written, and resumed from complete checkpoints."""

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from ..errors import UserError, disk_error
from ..files import CHECKPOINT, REPLACED

if TYPE_CHECKING:  # a folder is checked before PyTorch is imported
    import torch

logger = logging.get_logger(__name__)

TRAINER_STATE_NAME = "trainer_state.json"
RESULTS_NAME = "results.json"
PREDICTIONS_NAME = "predictions.jsonl"
LOCK_NAME = ".lock"
EARLIER = ".earlier"
"""Holds the checkpoints of a run while another one replaces it."""
_RUN_FILES = (
    "config.json",
    SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "README.md",
    "conversion.json",
    "_trained_on.npy",
)


def checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step."""
    folder = Path(output_dir)
    found = (
        [path for path in folder.iterdir() if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
        if folder.is_dir()
        else []
    )
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def why_not_resumable(checkpoint: str | Path, *, of_a_run: bool = True) -> str | None:
    """Why a checkpoint folder can't be resumed from; None if it is complete and readable.

    The Trainer writes its state last, but a crashed machine may have lost any file, so each is opened, and weights
    must be finite.

    Args:
        checkpoint: the folder.
        of_a_run: whether it must also hold a tokenizer and results, as a `Run`'s checkpoints do.
    """
    folder = Path(checkpoint)
    try:
        _read(folder / TRAINER_STATE_NAME, lambda path: _json_object(path)["max_steps"] + 0)
        if of_a_run:
            _read(folder / RESULTS_NAME, lambda path: _json_object(path)["arguments"]["training"])
        states = [path.name for path in folder.glob("rng_state*.pth")] or ["rng_state.pth"]
        if not any(folder.glob("pytorch_model_fsdp*")) and not any(folder.glob("global_step*")):  # FSDP, DeepSpeed
            states += ["optimizer.pt", "scheduler.pt"]
            _read(folder / "config.json", lambda path: _json_object(path)["model_type"])
            if of_a_run and _read(folder / "tokenizer_config.json", _tokenizer_backend) == "tokenizers":
                _read(folder / "tokenizer.json", lambda path: _json_object(path)["model"])
            if bad := not_finite_weights(folder):
                return f"{bad} holds NaN or infinity"
        for name in states:
            if not _read(folder / name, zipfile.is_zipfile):
                return f"{name} is damaged"
    except ValueError as error:
        return str(error)
    return None


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    """Reads a file with a function; raises a ValueError that says what is wrong with it."""
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if path.stat().st_size == 0:
        raise ValueError(f"{path.name} is empty")
    try:
        return how(path)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{path.name} is damaged") from error


def _json_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError
    return found


def _tokenizer_backend(path: Path) -> str | None:
    found = _json_object(path)
    if "tokenizer_class" not in found and "auto_map" not in found:
        raise ValueError
    return found.get("backend")


def _weight_files(folder: Path) -> list[str]:
    if (folder / SAFE_WEIGHTS_NAME).exists() or not (folder / SAFE_WEIGHTS_INDEX_NAME).exists():
        return [SAFE_WEIGHTS_NAME]
    return _read(folder / SAFE_WEIGHTS_INDEX_NAME, lambda path: sorted({*_json_object(path)["weight_map"].values()}))


def not_finite_weights(folder: Path) -> str:
    """The first weight in a folder's files that holds NaN or infinity; empty if all are finite.

    Raises:
        ValueError: a file is missing or damaged.
    """
    for name in _weight_files(folder):
        if bad := _read(folder / name, _not_finite):
            return f"{bad[0]} in {name}"
    return ""


def _not_finite(path: Path) -> list[str]:
    with safe_open(str(path), framework="pt") as file:  # checks that the file is as long as its header says
        return not_finite((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  (not a dictionary)


def not_finite(tensors: Iterable[tuple[str, "torch.Tensor"]]) -> list[str]:
    """The names of the tensors that hold NaN or infinity."""
    return [
        name for name, value in tensors if value.is_floating_point() and not bool(value.detach().isfinite().all().cpu())
    ]


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint folder of a run can be resumed from; see `why_not_resumable`."""
    return why_not_resumable(checkpoint) is None


def step_of(checkpoint: str | Path) -> int:
    """How many steps had been taken when a checkpoint was saved."""
    return _json_object(Path(checkpoint) / TRAINER_STATE_NAME)["global_step"]


def newest_complete(output_dir: str | Path, *, of_a_run: bool = True) -> tuple[Path | None, str]:
    """The newest resumable checkpoint folder, or None; and what is wrong with newer ones."""
    damaged: list[str] = []
    for path in reversed(checkpoints(output_dir)):
        if (reason := why_not_resumable(path, of_a_run=of_a_run)) is None:
            return path, ", ".join(damaged)
        damaged.append(f"{path.name} is damaged ({reason})")
    return None, ", ".join(damaged)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint folder of a run that can be resumed from, or None."""
    return newest_complete(output_dir)[0]


def find_resume_point(output_dir: str | Path, resume: str | bool | None, *, overwrite: bool = False) -> Path | None:
    """The checkpoint to resume from.

    Args:
        output_dir: the run's folder.
        resume: a checkpoint folder; or `True` / `"true"` / `"last"` for the run's newest complete one; or None.
        overwrite: whether the run may begin anew where all are damaged.

    Returns:
        The folder, or None to start at the beginning.

    Raises:
        UserError: the named folder isn't there or isn't complete, or all checkpoints of the run are damaged.
    """
    name = "" if resume is None else str(resume)
    if name.lower() in ("false", "no", ""):
        return None
    if name.lower() in ("true", "last", "yes"):
        found, damaged = newest_complete(output_dir)
        # Without results.json the run was killed while it wrote its first checkpoint.
        saved = any((path / RESULTS_NAME).exists() for path in checkpoints(output_dir))
        if found is None and saved and not overwrite:
            raise UserError(
                f"--resume-from-checkpoint: {damaged}, and no other checkpoint in {str(output_dir)!r} is whole. Train "
                "anew with --overwrite-output-dir, or into another folder."
            )
        if damaged and found is not None:
            logger.warning(f"{damaged}: training goes on from {found.name}.")
        return found
    if not Path(name).is_dir():
        raise UserError(
            f"--resume-from-checkpoint {name!r} is no folder. Give a checkpoint-N folder, or true for the newest."
        )
    if reason := why_not_resumable(name):
        other = last_complete_checkpoint(Path(name).parent)
        raise UserError(
            f"--resume-from-checkpoint {name!r} is incomplete or damaged: {reason}. "
            + (f"The newest complete one beside it is {str(other)!r}." if other else "Train anew.")
        )
    return Path(name)


def run_files(output_dir: str | Path) -> list[str]:
    """Names of the files of a run in its folder, without checkpoints."""
    folder = Path(output_dir)
    names = [name for name in (*_RUN_FILES, RESULTS_NAME, PREDICTIONS_NAME) if (folder / name).exists()]
    return names + [path.name for path in folder.glob("model-*-of-*.safetensors")]


def earlier_run(output_dir: str | Path, training: bool = True) -> list[str]:
    """Names in a folder that a run would overwrite: all of a run's files, or only results and predictions."""
    folder = Path(output_dir)
    if not training:
        return [name for name in (RESULTS_NAME, PREDICTIONS_NAME) if (folder / name).exists()]
    more = (*checkpoints(folder), *folder.glob(EARLIER), *folder.glob(f"{REPLACED}*"))
    return run_files(folder) + [path.name for path in more]


def check_output_dir(output_dir: str | Path, *, overwrite: bool, resume: bool, training: bool = True) -> None:
    """Refuses a folder that holds another run, and makes sure that files can be written. Deletes nothing.

    Raises:
        UserError: the folder holds another run and neither `overwrite` nor `resume` is set, or can't be written to.
    """
    folder = Path(output_dir)
    if not overwrite and not resume and (found := earlier_run(folder, training)):
        raise UserError(
            f"--output-dir {str(output_dir)!r} already holds another run ({', '.join(found[:4])}"
            f"{', ...' if len(found) > 4 else ''}). Name a new folder, replace that run with --overwrite-output-dir"
            + (", or go on with it with --resume-from-checkpoint true." if training else ".")
        )
    make_folder(folder, "--output-dir ")


def check_run_folder(training: Any) -> None:
    """`check_output_dir`, as the options of a run say."""
    check_output_dir(
        str(training.output_dir),
        overwrite=training.overwrite_output_dir,
        resume=bool(training.resume_from_checkpoint),
        training=training.do_train,
    )


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


def has_ended(output_dir: str | Path) -> bool:
    """Whether a folder holds a finished run."""
    return all((Path(output_dir) / name).exists() for name in (RESULTS_NAME, "config.json"))


def remove_checkpoints(output_dir: str | Path) -> None:
    """Deletes the checkpoint folders of a run."""
    for path in checkpoints(output_dir):
        shutil.rmtree(path)


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
    found = f"the newest checkpoint is {str(last)!r}."
    if is_lora:
        return f"{found} It is a whole model, for --model-name-or-path, and can't be resumed.{kept}"
    if diverged:
        return f"{found} Resuming there would diverge again; --model-name-or-path begins a new run with it.{kept}"
    return f"{found} Go on with --resume-from-checkpoint true.{kept}"
