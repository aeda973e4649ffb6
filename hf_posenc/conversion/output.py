"""A folder that appears whole or not at all."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

REPORT_NAME = "conversion.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
_MORE_FILES = (
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "pytorch_model.bin",
    ".gitattributes",
)


def _is_of_a_model(name: str) -> bool:
    """Whether it is a file that saving a model writes."""
    endings = (".safetensors", ".safetensors.index.json", "_config.json", ".py", ".model", ".jinja")
    known = ("config.json", "README.md", REPORT_NAME, *_TOKENIZER_FILES, *_MORE_FILES)
    return name in known or name.endswith(endings)


def check_free(out: str | Path, overwrite: bool, source: str | None = None) -> None:
    """Raises a ValueError where a folder can't be written: it holds something, or is the source itself."""
    out = Path(out)
    if source is not None and Path(source).is_dir() and Path(source).resolve().is_relative_to(out.resolve()):
        raise ValueError(f"OUT, {str(out)!r}, is SOURCE's folder, or holds it. Name another one.")
    if Path.cwd().is_relative_to(out.resolve()):
        raise ValueError(f"{str(out)!r} holds the folder that you are in. Name another one.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{str(out)!r} is a file. Name a folder.")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise ValueError(f"{str(out)!r} isn't empty. Name a new folder, or replace it with --overwrite.")
        if not (out / "config.json").is_file():
            raise ValueError(f"{str(out)!r} holds no model, so it isn't replaced. Name a new folder.")
        others = sorted(path.name for path in out.iterdir() if path.is_dir() or not _is_of_a_model(path.name))
        if others:
            raise ValueError(
                f"{str(out)!r} holds more than a model: {', '.join(others[:4])}. It isn't replaced. Name a new folder."
            )
    parent = out.absolute().parent
    existing = next(path for path in (parent, *parent.parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{str(existing)!r} is a file, so there can be no {str(out)!r}. Name a folder elsewhere.")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"{str(existing)!r} can't be written to. Name a folder of your own.")


@contextlib.contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its name, and its place, once all in it is written."""
    out = Path(out).resolve()  # what a link points to
    temporary, replaced = (out.with_name(f".{out.name}.{word}") for word in ("writing", "replaced"))
    if replaced.is_dir() and not out.exists():  # killed between its two last steps
        os.replace(replaced, out)
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
    temporary.mkdir(parents=True)
    try:
        yield temporary
        shutil.rmtree(replaced, ignore_errors=True)
        if out.exists():
            os.replace(out, replaced)
        os.replace(temporary, out)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_tokenizer(folder: Path, source: str) -> PreTrainedTokenizerBase | None:
    """The checkpoint's tokenizer, or None if it has none.

    Raises:
        ValueError: it has one that can't be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # it depends on the library that reads it
        raise ValueError(
            f"{source!r}: its tokenizer can't be read: {' '.join(str(error).split())[:200]} Copy it anew, or take the "
            "tokenizer's files out of the folder."
        ) from error


def write_report(folder: Path, report: Any) -> None:
    """conversion.json."""
    text = json.dumps(report.to_dict(), indent=2, ensure_ascii=False, default=str)
    (folder / REPORT_NAME).write_text(text + "\n", encoding="utf-8")
