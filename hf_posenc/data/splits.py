"""Reads the splits that the options name, from files, a folder or the Hub."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset, load_from_disk

from ..errors import UserError, check_local, disk_error, sentence
from ..options import refuse_given
from .options import DataArguments
from .reading import KINDS, kind_of, open_files
from .table import Table

_SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)$")
"""train-00000-of-00002.csv is a part of train."""


def example_data() -> str:
    """The folder of `blimp_order`, the data that comes with this package: train, validation and test files."""
    return str(resources.files("hf_posenc") / "data" / "blimp_order")


def read_splits(data: DataArguments, token: str | None = None, cache_dir: str | None = None) -> dict[str, Table]:
    """The splits that the options name, as in the files: any of train, validation and test.

    Raises:
        UserError: nothing is named, or what is named can't be read or is empty.
    """
    files = {split: path for split in _SPLIT_NAMES if (path := getattr(data, f"{split}_file")) is not None}
    if files and data.dataset_name is not None:
        raise UserError(
            f"--dataset-name {data.dataset_name!r} and --{next(iter(files))}-file are both given. Give one of them: a "
            "data set, or files."
        )
    if files:
        readers = {split: open_files([path], data) for split, path in files.items()}
    elif data.dataset_name is not None:
        readers = _named_splits(_open_dataset(data.dataset_name, data, token, cache_dir), data)
    else:
        raise UserError(
            "No data. Give --train-file (and --validation-file, --test-file), or --dataset-name: a Hub name, a folder, "
            "or blimp_order, which comes with the package."
        )
    return {split: read().require_rows() for split, read in readers.items()}


def _open_dataset(
    name: str, data: DataArguments, token: str | None, cache_dir: str | None
) -> dict[str, Callable[[], Table]]:
    """Readers of the splits of a folder (of files, of `save_to_disk`, or in a layout of datasets) or of the Hub."""
    folder = Path(example_data() if name == "blimp_order" and not Path(name).exists() else name)
    if not folder.is_dir():
        check_local("--dataset-name", name)
        way_out = "It must be a folder, a name on the Hub (is there a network?), or blimp_order."
        with reading(f"--dataset-name {name!r}", way_out):
            loaded = load_dataset(name, data.dataset_config_name, token=token, cache_dir=cache_dir)
        return _of_datasets(loaded, name, data)
    if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
        with reading(repr(str(folder)), "It must be a folder that save_to_disk wrote."):
            return _of_datasets(load_from_disk(str(folder)), str(folder), data)
    if files := _split_files(folder):
        return {split: open_files(paths, data) for split, paths in files.items()}
    way_out = f"It must hold files called train, validation and test, each one of {', '.join(KINDS)}."
    with reading(repr(str(folder)), way_out):
        return _of_datasets(load_dataset(str(folder)), str(folder), data)


def _split_files(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder that are called as a split is, or that are the shards of one."""
    files = {}
    readable = [path for path in sorted(folder.iterdir()) if path.is_file() and kind_of(path) in KINDS]
    for split, names in _SPLIT_NAMES.items():
        paths = [path for path in readable if _SHARD.sub("", path.name.split(".")[0]) in names]
        if paths and not _are_whole(paths):
            raise UserError(
                f"{str(folder)!r} has for {split} what isn't one file, nor all the shards of one: "
                f"{', '.join(path.name for path in paths)}. Add what is missing, keep one, or name it with "
                f"--{split}-file."
            )
        if paths:
            files[split] = paths
    return files


def _are_whole(paths: Sequence[Path]) -> bool:
    """Whether this is one file, or all parts of one: train-00000-of-00002.csv and train-00001-of-00002.csv."""
    matches = [_SHARD.search(path.name.split(".")[0]) for path in paths]
    if matches == [None]:
        return True
    numbers = sorted((int(match["count"]), int(match["number"])) for match in matches if match is not None)
    alike = len({tuple(path.suffixes) for path in paths}) == 1 and len(numbers) == len(paths)
    return alike and numbers == [(len(paths), number) for number in range(len(paths))]


def _of_datasets(loaded: Any, name: str, data: DataArguments) -> dict[str, Callable[[], Table]]:
    """Readers of the splits of a data set of the library datasets."""
    why = f"is for files of text, --dataset-name {name!r} is none"
    refuse_given(data, ("delimiter", "quoting", "encoding"), why)
    parts = {"train": loaded} if isinstance(loaded, Dataset) else loaded
    return {split: partial(Table.of_dataset, f"{name}, split {split}", part) for split, part in parts.items()}


def _named_splits(splits: dict[str, Callable[[], Table]], data: DataArguments) -> dict[str, Callable[[], Table]]:
    """Renames the splits to train, validation and test."""
    named = {}
    for split, usual in _SPLIT_NAMES.items():
        name = getattr(data, f"{split}_split_name")
        if name is not None and name not in splits:
            raise UserError(f"There is no split {name!r} to use for {split}. The data has {', '.join(splits)}.")
        source = name or next((known for known in usual if known in splits), None)
        if source is not None:
            named[split] = splits[source]
    if not named:
        raise UserError(f"The data has splits {', '.join(splits)}. Say which is which: --train-split-name and so on.")
    return named


@contextmanager
def reading(what: str, way_out: str) -> Iterator[None]:
    """Turns any error of the library datasets into one line with the innermost cause."""
    readers = logging.getLogger("datasets.packaged_modules")  # they log the error that they raise
    before = readers.level
    readers.setLevel(logging.CRITICAL)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever a broken file or a failed download raises
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, StopIteration) or "corresponds to no data" in str(cause):
            raise UserError(f"{what} has no rows. Give data with at least one example.") from error
        if disk_error(error) and not isinstance(cause, PermissionError):
            raise UserError(f"{what} was read only in part: {disk_error(error)}. Make room.") from error
        raise UserError(f"{what} can't be read: {sentence(cause)} {way_out}") from error
    finally:
        readers.setLevel(before)
