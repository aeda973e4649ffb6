"""The checkpoints of a run: which are whole, and which one it resumes from."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from ..checkpoint_files import WEIGHTS, open_weights, weight_files
from ..errors import UserError
from ..files import CHECKPOINT

if TYPE_CHECKING:  # a folder is checked before PyTorch is imported
    import torch

logger = logging.get_logger(__name__)

TRAINER_STATE_NAME = "trainer_state.json"
RESULTS_NAME = "results.json"


def checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step."""
    folder = Path(output_dir)
    folders = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in folders if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.rpartition("-")[2]))


def remove_checkpoints(output_dir: str | Path) -> None:
    """Deletes the checkpoint folders of a run."""
    for path in checkpoints(output_dir):
        shutil.rmtree(path)


def has_ended(output_dir: str | Path) -> bool:
    """Whether a folder holds a finished run."""
    return all((Path(output_dir) / name).exists() for name in (RESULTS_NAME, "config.json"))


def why_not_resumable(checkpoint: str | Path) -> str | None:
    """Why a checkpoint folder can't be resumed from; None if it is complete and readable.

    The Trainer writes its state last, but a crashed machine may have lost any file, so each is opened, and weights
    must be finite.
    """
    folder = Path(checkpoint)
    try:
        _read(folder / TRAINER_STATE_NAME, lambda path: _json_object(path)["max_steps"] + 0)
        _read(folder / RESULTS_NAME, lambda path: _json_object(path)["arguments"]["training"])
        states = [path.name for path in folder.glob("rng_state*.pth")] or ["rng_state.pth"]
        if not any(folder.glob("pytorch_model_fsdp*")) and not any(folder.glob("global_step*")):  # FSDP, DeepSpeed
            states += ["optimizer.pt", "scheduler.pt"]
            _read(folder / "config.json", lambda path: _json_object(path)["model_type"])
            if _read(folder / "tokenizer_config.json", _tokenizer_backend) == "tokenizers":
                _read(folder / "tokenizer.json", lambda path: _json_object(path)["model"])
            if bad := not_finite_weights(folder):
                return f"{bad} holds NaN or infinity"
        for name in states:
            if not _read(folder / name, zipfile.is_zipfile):
                return f"{name} is damaged"
    except ValueError as error:
        return str(error)
    return None


def is_complete(checkpoint: str | Path) -> bool:
    """Whether a checkpoint folder of a run can be resumed from; see `why_not_resumable`."""
    return why_not_resumable(checkpoint) is None


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    """Reads a file with a function; raises a ValueError that says what is wrong with it."""
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    if path.stat().st_size == 0:
        raise ValueError(f"{path.name} is empty")
    try:
        return how(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged") from error


def _json_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError
    return content


def _tokenizer_backend(path: Path) -> str | None:
    settings = _json_object(path)
    if "tokenizer_class" not in settings and "auto_map" not in settings:
        raise ValueError
    return settings.get("backend")


def not_finite_weights(folder: Path) -> str:
    """The first weight in a folder's files that holds NaN or infinity; empty if all are finite.

    Raises:
        ValueError: a file is missing or damaged.
    """
    for name in sorted(weight_files(folder)) or [WEIGHTS]:
        if bad := _read(folder / name, _not_finite):
            return f"{bad[0]} in {name}"
    return ""


def _not_finite(path: Path) -> list[str]:
    with open_weights(path) as file:
        return not_finite((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118  (not a dictionary)


def not_finite(tensors: Iterable[tuple[str, "torch.Tensor"]]) -> list[str]:
    """The names of the tensors that hold NaN or infinity."""
    return [
        name for name, value in tensors if value.is_floating_point() and not bool(value.detach().isfinite().all().cpu())
    ]


def step_of(checkpoint: str | Path) -> int:
    """How many steps had been taken when a checkpoint was saved."""
    return _json_object(Path(checkpoint) / TRAINER_STATE_NAME)["global_step"]


def newest_complete(output_dir: str | Path) -> tuple[Path | None, str]:
    """The newest resumable checkpoint folder, or None; and what is wrong with newer ones."""
    damaged: list[str] = []
    for path in reversed(checkpoints(output_dir)):
        if (reason := why_not_resumable(path)) is None:
            return path, ", ".join(damaged)
        damaged.append(f"{path.name} is damaged ({reason})")
    return None, ", ".join(damaged)


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint folder of a run that can be resumed from, or None."""
    return newest_complete(output_dir)[0]


def find_resume_point(output_dir: str | Path, resume: str | None, *, overwrite: bool = False) -> Path | None:
    """The checkpoint to resume from.

    Args:
        output_dir: the run's folder.
        resume: a checkpoint folder; or `true`, `last` or `yes` for the run's newest complete one; or None.
        overwrite: whether the run may begin anew where all are damaged, or gone.

    Returns:
        The folder, or None to start at the beginning.

    Raises:
        UserError: the named folder isn't there or isn't complete; all checkpoints of the run are damaged; or it has
            ended, and they are gone.
    """
    if resume is None:
        return None
    if resume.lower() in ("true", "last", "yes"):
        return _newest_of_run(Path(output_dir), overwrite)
    if not Path(resume).is_dir():
        raise UserError(
            f"--resume-from-checkpoint {resume!r} is no folder. Give a checkpoint-N folder, or true for the newest."
        )
    if reason := why_not_resumable(resume):
        other = last_complete_checkpoint(Path(resume).parent)
        raise UserError(
            f"--resume-from-checkpoint {resume!r} is incomplete or damaged: {reason}. "
            + (f"The newest complete one beside it is {str(other)!r}." if other else "Train anew.")
        )
    return Path(resume)


def _newest_of_run(folder: Path, overwrite: bool) -> Path | None:
    newest, damaged = newest_complete(folder)
    if newest is not None:
        if damaged:
            logger.warning(f"{damaged}: training goes on from {newest.name}.")
        return newest
    # Without results.json the run was killed while it wrote its first checkpoint.
    if not overwrite and any((path / RESULTS_NAME).exists() for path in checkpoints(folder)):
        raise UserError(
            f"--resume-from-checkpoint: {damaged}, and no other checkpoint in {str(folder)!r} is whole. Train "
            "anew with --overwrite-output-dir, or into another folder."
        )
    if not overwrite and has_ended(folder):
        raise UserError(
            f"--resume-from-checkpoint: the run in {str(folder)!r} has ended, and there is no checkpoint to resume "
            f"from (--keep-checkpoints keeps them). Train it further with --model-name-or-path {folder}, or start "
            "again with --overwrite-output-dir."
        )
    logger.warning(f"No whole checkpoint in {str(folder)!r}: training starts at the beginning.")
    return None
