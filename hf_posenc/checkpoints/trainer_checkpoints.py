"""Checkpoints that the Trainer writes on the way, to go on from: which there are, and which are whole."""

import contextlib
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import TOKENIZER_FILES, open_weights, weight_files
from .keeper import CHECKPOINT

STATE = "trainer_state.json"
_NEEDED = ("optimizer.*", "scheduler.pt", "rng_state*.pth")
"""What a checkpoint that isn't sharded has beside its weights, else a run wouldn't go on as it began."""
_OF_CHECKPOINTS = re.compile(
    r"(config|generation_config|trainer_state)\.json|(model|adapter_model)[\w.-]*\.(safetensors|json)|\w+\.py"
    r"|(optimizer|scheduler|scaler|pytorch_model_fsdp|training_args)\.(pt|bin)|(optimizer|pytorch_model_fsdp)_\d+"
    r"|rng_state\w*\.pth|chat_template\.jinja|global_step\d+|latest"
)
"""What the Trainer writes into one, beside a tokenizer."""


def checkpoints(output: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step."""
    folder = Path(output)
    named = [path for path in folder.glob("checkpoint-*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.rpartition("-")[2]))


def our_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders that hold nothing but what the Trainer writes, by step."""
    return [path for path in checkpoints(folder) if not strange_files(path)]


def strange_files(checkpoint: Path) -> list[str]:
    """Names in a checkpoint folder that aren't the Trainer's."""
    names = sorted(path.name for path in checkpoint.iterdir())
    return [name for name in names if name not in TOKENIZER_FILES and not _OF_CHECKPOINTS.fullmatch(name)]


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, by step."""

    def is_whole(path: Path) -> bool:
        weights = weight_files(path)
        for name in weights:
            with open_weights(path / name):
                pass
        # Each is a zip archive, with its table at the end.
        pickles = [item for item in path.iterdir() if item.suffix in (".pt", ".pth", ".bin")]
        is_sharded = any(path.glob("pytorch_model_fsdp*")) or any(path.glob("global_step*"))  # FSDP, DeepSpeed
        return (
            (is_sharded or (bool(weights) and all(any(path.glob(name)) for name in _NEEDED)))
            and all(map(zipfile.is_zipfile, pickles))
            and bool(read_object(path / STATE).get("global_step"))
        )

    whole = []
    for path in checkpoints(folder):
        with contextlib.suppress(UserError):
            whole += [path] * is_whole(path)
    return whole


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def delete_checkpoint(path: Path) -> None:
    """Deletes a checkpoint folder; if that is killed, none is left that looks whole."""
    (path / STATE).unlink(missing_ok=True)
    shutil.rmtree(path)
