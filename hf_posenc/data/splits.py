"""Loads the splits that the options name, from files, a folder or the Hub."""

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset, load_from_disk

from ..errors import UserError, check_local
from .options import DataArguments
from .reading import READERS, read_file, reading, refuse_delimiter

SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)$")
"""train-00000-of-00002.csv is a part of train."""


def example_data() -> str:
    """The folder of `blimp_order`, the data that comes with this package: train, validation and test files."""
    return str(resources.files("hf_posenc") / "data" / "blimp_order")


def load_splits(data: DataArguments, token: str | None = None, cache_dir: str | None = None) -> Any:
    """The splits that the options name, as in the files: any of train, validation and test.

    Returns:
        DatasetDict; with `data.streaming` a dictionary of `IterableDataset`s, of which nothing has been read.

    Raises:
        UserError: nothing is named, or what is named can't be read or is empty.
    """
    files = {
        split: path
        for split, path in zip(SPLITS, (data.train_file, data.validation_file, data.test_file), strict=True)
        if path is not None
    }
    if files and data.dataset_name is not None:
        raise UserError(
            f"--dataset_name {data.dataset_name!r} and --{next(iter(files))}_file are both given. Give one of them: a "
            "data set, or files."
        )
    if files:
        return _splits(
            {
                split: read_file(path, cache_dir, data.streaming, delimiter=data.delimiter)
                for split, path in files.items()
            }
        )
    if data.dataset_name is None:
        raise UserError(
            "No data. Give --train_file (and --validation_file, --test_file), or --dataset_name: a Hub name, a folder, "
            "or blimp_order, which comes with the package."
        )
    name = data.dataset_name
    folder = Path(example_data() if name == "blimp_order" and not Path(name).exists() else name)
    found = _load_folder(folder, cache_dir, data.streaming, data.delimiter) if folder.is_dir() else None
    if found is None:
        check_local("--dataset_name", name)
        refuse_delimiter(data.delimiter, f"--dataset_name {name!r}")
        with reading(
            f"--dataset_name {name!r}", "It must be a folder, a name on the Hub (is there a network?), or blimp_order."
        ):
            loaded = load_dataset(
                name, data.dataset_config_name, token=token, cache_dir=cache_dir, streaming=data.streaming
            )
        found = _as_splits(loaded, name, data.streaming)
    return _named_splits(found, data)


def _load_folder(folder: Path, cache_dir: str | None, streaming: bool = False, delimiter: str | None = None) -> Any:
    """The splits of a folder: of files, of `save_to_disk`, or in a layout that datasets knows."""
    if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
        with reading(repr(str(folder)), "It must be a folder that save_to_disk wrote."):
            saved = _as_splits(load_from_disk(str(folder)), str(folder))
            refuse_delimiter(delimiter, repr(str(folder)))
            return {name: split.to_iterable_dataset() for name, split in saved.items()} if streaming else saved
    files: dict[str, list[str]] = {}
    every = [path for path in sorted(folder.iterdir()) if path.is_file() and set(path.suffixes) & set(READERS)]
    for split, names in _SPLIT_NAMES.items():
        readable = [path for path in every if _SHARD.sub("", path.name.split(".")[0]) in names]
        if len(readable) > 1 and not _are_shards(readable):
            raise UserError(
                f"{str(folder)!r} has several files for {split}, and they aren't all the shards of one: "
                f"{', '.join(path.name for path in readable)}. Keep one, or name it with --{split}_file."
            )
        if readable:
            files[split] = [str(path) for path in readable]
    if files:
        return _splits(
            {
                split: read_file(paths[0], cache_dir, streaming, more=paths[1:], delimiter=delimiter)
                for split, paths in files.items()
            }
        )
    with reading(
        f"{str(folder)!r}", f"It must hold files called train, validation and test, each one of {', '.join(READERS)}."
    ):
        return _as_splits(load_dataset(str(folder), cache_dir=cache_dir, streaming=streaming), str(folder), streaming)


def _are_shards(paths: Sequence[Path]) -> bool:
    """Whether files are all parts of one: train-00000-of-00002.csv and train-00001-of-00002.csv."""
    found = [_SHARD.search(path.name.split(".")[0]) for path in paths]
    numbers = sorted((int(one["count"]), int(one["number"])) for one in found if one is not None)
    alike = len({tuple(path.suffixes) for path in paths}) == 1 and len(numbers) == len(paths)
    return alike and numbers == [(len(paths), number) for number in range(len(paths))]


def _as_splits(loaded: Any, name: str, streaming: bool = False) -> Any:
    if isinstance(loaded, IterableDataset | IterableDatasetDict) and not streaming:
        raise UserError(f"{name!r} is a stream, which can't be read whole. Give --streaming and --max_steps.")
    return _splits({"train": loaded}) if isinstance(loaded, Dataset | IterableDataset) else loaded


def _splits(found: dict[str, Any]) -> Any:
    """A DatasetDict, or a dictionary of streams."""
    return found if any(isinstance(split, IterableDataset) for split in found.values()) else DatasetDict(found)


def _named_splits(found: Any, data: DataArguments) -> Any:
    """Renames the splits to train, validation and test."""
    chosen = {"train": data.train_split_name, "validation": data.validation_split_name, "test": data.test_split_name}
    splits = {}
    for split, name in chosen.items():
        if name is not None and name not in found:
            raise UserError(f"There is no split {name!r} to use for {split}. The data has {', '.join(found)}.")
        source = name or next((known for known in _SPLIT_NAMES[split] if known in found), None)
        if source is not None:
            splits[split] = found[source]
    if not splits:
        raise UserError(f"The data has splits {', '.join(found)}. Say which is which: --train_split_name and so on.")
    return _splits(splits)
