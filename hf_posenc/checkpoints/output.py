"""Writes a model's folder, whole or not at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError, check_writable, disk_error
from ..files import REPLACED, WRITING, replaced_together
from .files import REPORT_NAME, TOKENIZER_FILES
from .sentence_modules import is_module


def _is_of_a_model(path: Path) -> bool:
    """Whether it is a file that saving a model writes."""
    endings = (".safetensors", ".safetensors.index.json", "_config.json", ".py", ".model", ".jinja")
    known = ("config.json", "README.md", REPORT_NAME, *TOKENIZER_FILES, "pytorch_model.bin", ".gitattributes")
    is_known = path.name in (*known, "export.json") or path.name.endswith(endings)
    is_graphs = path.is_dir() and path.name in ("onnx", "openvino")
    is_earlier = path.name.startswith(REPLACED)
    return is_earlier or is_graphs or is_module(path) or (is_known and not path.is_dir())


def other_files(folder: Path) -> list[str]:
    """A sentence on what lies in a folder beside a model, which a conversion doesn't copy."""
    names = sorted(path.name for path in folder.iterdir() if not _is_of_a_model(path) and path.name[0] != ".")
    shown = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
    return [f"Files of the source that aren't copied: {len(names)} ({shown})."] if names else []


def check_free(out: str | Path, overwrite: bool, source: str | None = None) -> None:
    """Raises a UserError where a folder can't be written: it holds something, or is the source itself."""
    out = Path(out)
    if source is not None and Path(source).is_dir() and Path(source).resolve().is_relative_to(out.resolve()):
        raise UserError(f"OUT, {str(out)!r}, is SOURCE's folder, or holds it. Name another one.")
    content = [path for path in out.iterdir() if path.name != WRITING] if out.is_dir() else []
    if content:
        if not overwrite:
            raise UserError(f"{str(out)!r} isn't empty. Name a new folder, or replace it with --overwrite.")
        if not any(path.name == "config.json" or path.name.startswith(REPLACED) for path in content):
            raise UserError(f"{str(out)!r} holds no model, so it isn't replaced. Name a new folder.")
        others = sorted(path.name for path in content if not _is_of_a_model(path))
        if others:
            raise UserError(
                f"{str(out)!r} holds more than a model: {', '.join(others[:4])}. It isn't replaced. Name a new folder."
            )
    check_writable(repr(str(out)), out)


@contextlib.contextmanager
def model_written(out: str | Path) -> Iterator[Path]:
    """A temporary folder whose files replace the model in `out`, if there is one, when all are written.

    Raises:
        UserError: the disk is full, or the like; `out` is as it was.
    """
    out = Path(out)
    try:
        with replaced_together(out, earlier=(path.name for path in out.glob("*") if _is_of_a_model(path))) as new:
            yield new
    except Exception as error:
        if (reason := disk_error(error)) is None:
            raise
        raise UserError(
            f"Writing to {str(out)!r} failed: {reason}. Make room, or name another folder. What was there is as it was."
        ) from error
