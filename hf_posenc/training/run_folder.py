"""The folder of a run: refused if taken, resumed from its newest checkpoint, replaced when the new run is whole."""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import files
from ..checkpoints.files import open_weights, weight_files
from ..errors import Diverged, Interrupted, UserError, check_writable, disk_error, is_main_process, one_line
from ..files import CHECKPOINT, REPLACED
from ..quiet import errors_alone

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.json"
"""Of a finished run."""
OPTIONS_NAME = "run.json"
"""The options of a run that isn't finished, and what it trains on; it is there from its start to its end."""
_STATE = "trainer_state.json"
_MAY_DIFFER = ("output", "overwrite", "resume", "device", "trust_remote_code")
"""Options that a resumed run may have otherwise."""


def checkpoints(output: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step."""
    folder = Path(output)
    named = [path for path in folder.glob("checkpoint-*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.rpartition("-")[2]))


def check_free(output: str, *, overwrite: bool, resume: bool) -> None:
    """Refuses a folder that is taken, or can't be written to. Makes and deletes nothing.

    Args:
        output: the folder.
        overwrite: a run of ours there is to be replaced.
        resume: it is to be gone on with.

    Raises:
        UserError: the folder isn't empty, and holds no run of ours that is to be replaced or gone on with.
    """
    folder = Path(output)
    if overwrite and resume:
        raise UserError("--overwrite begins anew, --resume goes on. Give one of them.")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    held = ", ".join(found[:4]) + ", ..." * (len(found) > 4)
    is_run = (folder / OPTIONS_NAME).exists() or "options" in _read(folder / RESULTS_NAME)
    # One that was killed while it replaced another left that one's files.
    if found and not is_run and not any(folder.glob(f"{REPLACED}*")):
        raise UserError(
            f"--output {output!r} holds {held}, and nothing that says that `hf-posenc train` wrote it. Name a new "
            "folder, or empty this one."
        )
    if found and not overwrite and not resume:
        way_out = "go on with it (--resume)" if checkpoints(folder) else "replace it (--overwrite)"
        raise UserError(f"--output {output!r} already holds a run ({held}). Name a new folder, or {way_out}.")
    check_writable(f"--output {output!r}", folder)


def _whole(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, and whose weights open, by step."""

    def is_whole(path: Path) -> bool:
        with contextlib.suppress(UserError):
            for name in weight_files(path):
                with open_weights(path / name):
                    pass
            return bool(_read(path / _STATE).get("global_step"))
        return False

    return list(filter(is_whole, checkpoints(folder)))


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def resume_point(output: str, options: Mapping[str, Any]) -> Path | None:
    """The newest checkpoint of an unfinished run of the same options; None: none was saved, it begins anew.

    Args:
        output: the folder.
        options: of the run, with a digest of what it trains on.

    Raises:
        UserError: there is no such run, it has ended, or it was begun with other options or data.
    """
    folder, before = Path(output), _read(Path(output) / OPTIONS_NAME)
    if not before:
        raise UserError(
            f"--resume: {output!r} holds no unfinished run. Leave --resume out; a finished one is trained further with "
            "--pretrained."
        )
    now = files.finite(options)
    for name in now.keys() | before.keys():
        if name not in _MAY_DIFFER and before.get(name) != now.get(name):
            raise UserError(
                f"--resume: the run in {output!r} was begun with {name}={before.get(name)!r}, now it is "
                f"{now.get(name)!r}. Resume with what it began with, or train elsewhere."
            )
    whole = _whole(folder)
    if damaged := [path.name for path in checkpoints(folder) if path not in whole]:
        logger.warning(f"Not whole, and passed over: {', '.join(damaged)} in {output!r}.")
    if not whole:
        logger.warning(f"No whole checkpoint in {output!r}: training starts at the beginning.")
        return None
    state = _read(whole[-1] / _STATE)
    if best := state.get("best_model_checkpoint"):  # as the folder was called then
        files.write_json(whole[-1] / _STATE, {**state, "best_model_checkpoint": str(folder / Path(best).name)})
    return whole[-1]


def delete_checkpoints(output: str | Path) -> list[str]:
    """Deletes the checkpoints of a run; returns their names."""
    deleted = checkpoints(output)
    for path in deleted:
        shutil.rmtree(path)
    return [path.name for path in deleted]


def files_of_run(folder: Path) -> list[str]:
    """The files that a finished run left in a folder, and that of an unfinished one."""
    return [OPTIONS_NAME, *(name for name in _read(folder / RESULTS_NAME).get("files", []) if Path(name).name == name)]


@contextlib.contextmanager
def guarded(output: str | Path) -> Iterator[None]:
    """Says what is left after Ctrl-C, of weights that aren't finite, or on a full disk, whoever reports it.

    A run that fails before its first checkpoint leaves nothing: the next one may have other options.
    """
    try:
        with errors_alone("transformers.trainer_utils"):  # checkpoints within a second make it doubt the file system
            yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(what_is_left(output)) from interrupt
    except Exception as error:
        if is_main_process() and not _whole(Path(output)):
            (Path(output) / OPTIONS_NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder holds something, or isn't there
                Path(output).rmdir()
        if isinstance(error, Diverged):
            raise Diverged(f"{one_line(error)} What is left: {what_is_left(output, diverged=True)}") from error
        reason = None if isinstance(error, UserError) else disk_error(error)
        if reason is None:
            raise
        raise UserError(
            f"Writing to {str(output)!r} failed: {reason}. Make room or name another --output. What is left: "
            f"{what_is_left(output)}"
        ) from error


def what_is_left(output: str | Path, *, diverged: bool = False) -> str:
    """What an unfinished run left and, unless it diverged, how to go on; follows a colon."""
    folder = Path(output)
    whole = _whole(folder)
    kept = f" The finished run in {str(output)!r} is as it was." if (folder / RESULTS_NAME).exists() else ""
    if not whole:
        return f"no checkpoint had been saved.{kept}"
    resume = "--resume, without --overwrite," if kept else "--resume"
    way_out = "" if diverged else f" The same command with {resume} goes on from there."
    return f"{str(whole[-1])!r}.{way_out}{kept}"
