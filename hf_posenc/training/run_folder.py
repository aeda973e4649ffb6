"""The unfinished run in an output folder: what is of it, where it goes on, what an end in the middle leaves."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState

from .. import files
from ..checkpoints.keeper import OutputFolder, disk_errors, output_folder
from ..checkpoints.trainer_checkpoints import (
    STATE,
    checkpoints,
    delete_checkpoint,
    our_checkpoints,
    read_object,
    strange_files,
    whole_checkpoints,
)
from ..errors import Diverged, Interrupted, UserError, is_main_process, one_line, spell
from ..quiet import errors_alone

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.json"
"""Of a finished run."""
OPTIONS_NAME = "run.json"
"""The options of a run that isn't finished, and what it trains on; it is there from its start to its end."""
DIGEST = "digest_of_rows"
"""What it says of the rows; it tells our file from others of its name."""
_MAY_DIFFER = ("output", "overwrite", "resume", "device", "trust_remote_code")
"""Options that a resumed run may have otherwise."""


def folder_of_a_run(
    output: str | Path, process: PartialState, *, overwrite: bool, resume: bool = False
) -> contextlib.AbstractContextManager[OutputFolder]:
    """The folder that a run is kept in, locked; refused where it is taken."""
    return output_folder(output, check=partial(refuse_taken, overwrite=overwrite, resume=resume), process=process)


def refuse_taken(output: OutputFolder, *, overwrite: bool, resume: bool) -> None:
    """Refuses a folder that holds what isn't ours, or a run that is neither to be replaced nor gone on with.

    Raises:
        UserError: what it holds, and the way out.
    """
    folder = output.path
    if output.completed and not whole_checkpoints(folder):
        delete_run(folder)  # it was killed while its files moved in: it has ended
    is_run = DIGEST in read_object(folder / OPTIONS_NAME)
    run = [OPTIONS_NAME, *(path.name for path in checkpoints(folder))] if is_run else []
    if strange := [f"{path.name}/{name}" for path in checkpoints(folder) for name in strange_files(path) if run]:
        raise UserError(
            f"{str(folder)!r} holds {', '.join(strange[:4])}, which the run there didn't write. Move that elsewhere, "
            "or name a new folder."
        )
    way_out = f"go on with it ({spell('resume', True)})" if len(run) > 1 else f"replace it ({spell('overwrite', True)})"
    output.refuse_taken(may_replace=overwrite or resume, run=run, way_out=way_out)


def resume_point(output: OutputFolder, options: Mapping[str, Any]) -> Path | None:
    """The newest checkpoint of an unfinished run of the same options; None: none was saved, it begins anew.

    Args:
        output: the folder.
        options: of the run, with a digest of what it trains on.

    Raises:
        UserError: there is no such run, it has ended, or it was begun with other options or data.
    """
    folder, before = output.path, read_object(output.path / OPTIONS_NAME)
    if not before:
        raise UserError(
            f": {str(folder)!r} holds no unfinished run. Leave that out; a finished one is trained further with "
            f"{spell('pretrained')}.",
            parameter="resume",
            value=True,
        )
    now = files.finite(options)
    for name in now.keys() | before.keys():
        if name not in _MAY_DIFFER and before.get(name) != now.get(name):
            raise UserError(
                f": the run in {str(folder)!r} was begun with {name}={before.get(name)!r}, now it is "
                f"{now.get(name)!r}. Resume with what it began with, or train elsewhere.",
                parameter="resume",
                value=True,
            )
    whole = whole_checkpoints(folder)
    if damaged := [path.name for path in checkpoints(folder) if path not in whole]:
        logger.warning(f"Not whole, and passed over: {', '.join(damaged)} in {str(folder)!r}.")
    if not whole:
        logger.warning(f"No whole checkpoint in {str(folder)!r}: training starts at the beginning.")
        return None
    state = read_object(whole[-1] / STATE)
    if best := state.get("best_model_checkpoint"):  # as the folder was called then
        state["best_model_checkpoint"] = str(folder / Path(best).name)
        output.write_json(f"{whole[-1].name}/{STATE}", state)
    return whole[-1]


def has_ended(checkpoint: Path) -> bool:
    """True where a checkpoint is of a run's last step, by number or for want of gain."""
    control = read_object(checkpoint / STATE).get("stateful_callbacks", {}).get("TrainerControl", {})
    return bool(control.get("args", {}).get("should_training_stop"))


def begin_run(output: OutputFolder, begun_with: Mapping[str, Any]) -> list[str]:
    """Records a new run; deletes the checkpoints of one that it replaces, and returns their names."""
    deleted = our_checkpoints(output.path) if DIGEST in read_object(output.path / OPTIONS_NAME) else []
    for path in deleted:
        delete_checkpoint(path)
    output.write_json(OPTIONS_NAME, begun_with)
    return [path.name for path in deleted]


def delete_run(folder: Path) -> None:
    """Deletes what a run needed while it wasn't finished.

    The newest checkpoint goes first: each that is left finds the best one that its state names.
    """
    if DIGEST in read_object(folder / OPTIONS_NAME):
        for path in reversed(our_checkpoints(folder)):
            delete_checkpoint(path)
        (folder / OPTIONS_NAME).unlink()


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Says what is left after Ctrl-C, of weights that aren't finite, or on a full disk, whoever reports it.

    A run that fails before its first checkpoint leaves nothing: the next one may have other options.
    """
    try:
        # Checkpoints within a second make it doubt the file system.
        with errors_alone("transformers.trainer_utils"), disk_errors(folder, partial(after_a_failure, folder)):
            yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(what_is_left(folder)) from interrupt
    except Exception as error:
        if is_main_process() and not whole_checkpoints(folder):
            delete_run(folder)
        if isinstance(error, Diverged):
            raise Diverged(f"{one_line(error)} What is left: {what_is_left(folder, diverged=True)}") from error
        raise


def after_a_failure(folder: Path) -> str:
    """Says in a sentence what a failed write left."""
    return f"What is left: {what_is_left(folder)}"


def what_is_left(folder: Path, *, diverged: bool = False) -> str:
    """Says what an unfinished run left and, unless it diverged, how to go on; follows a colon."""
    whole = whole_checkpoints(folder)
    kept = f" The finished run in {str(folder)!r} is as it was." if (folder / RESULTS_NAME).exists() else ""
    if not whole:
        return f"no checkpoint had been saved.{kept}"
    resume = spell("resume", True) + (f", without {spell('overwrite', True)}," if kept else "")
    way_out = "" if diverged else f" The same command with {resume} goes on from there."
    return f"{str(whole[-1])!r}.{way_out}{kept}"
