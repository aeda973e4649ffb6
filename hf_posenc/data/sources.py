"""Reads what the options name: files, a folder or a data set of the Hub."""

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, Features, load_dataset, load_from_disk

from ..errors import UserError, check_local, disk_error, sentence
from ..options import Options, refuse_given
from .reading import KINDS, as_table, kind_of, read_file

logger = logging.getLogger(__name__)

_USUAL = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What the splits of a folder or a data set may be called."""
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")
"""train-00000-of-00002.parquet is a part of train."""


def example_data() -> str:
    """The folder of `blimp_order`, the data that comes with this package: train, validation and test files."""
    return str(resources.files("hf_posenc") / "data" / "blimp_order")


def read(options: Options) -> dict[str, Dataset]:
    """The splits that the options name, as in the files: any of train, validation and test.

    Raises:
        UserError: nothing is named, or what is named can't be read or is empty.
    """
    if options.data is None:
        raise UserError("No data. Give --data: a file, a folder, a Hub name, or blimp_order, which comes along.")
    splits = _splits_of(options.data, options)
    named: dict[str, Dataset | str] = {}
    for split, usual in _USUAL.items():
        asked = None if split == "train" else getattr(options, split)
        if asked is None:
            present = [name for name in usual if name in splits]
            if len(present) > 1:
                raise UserError(f"{options.data!r} has {' and '.join(present)}. Say which: --{split} {present[0]}.")
            if present:
                named[split] = splits[present[0]]
        elif asked in splits:
            named[split] = splits[asked]
        elif Path(asked).is_file() or kind_of(Path(asked)) in KINDS:
            named[split] = asked
        else:
            raise UserError(f"--{split} {asked!r} is no file, and no split of {options.data!r}: {', '.join(splits)}.")
    if not named:
        raise UserError(f"{options.data!r} has the splits {', '.join(splits)}. One of them must be called train.")
    if unused := [name for name, found in splits.items() if all(found is not other for other in named.values())]:
        logger.warning(f"Splits of {options.data!r} that aren't used: {', '.join(unused)}.")
    return {split: _table(found, f"{options.data}, split {split}", options) for split, found in named.items()}


def read_split(options: Options, split: str) -> Dataset:
    """The rows of a file, or of one split of a folder or a data set.

    Raises:
        UserError: they can't be read, or there is no such split.
    """
    splits = _splits_of(str(options.data), options)
    if splits == {"train": options.data}:  # a file
        split = "train"
    if split not in splits:
        raise UserError(f"{options.data!r} has no split {split!r}. It has {', '.join(splits)}: name one with --split.")
    return _table(splits[split], f"{options.data}, split {split}", options)


def _table(found: Dataset | str, source: str, options: Options) -> Dataset:
    return read_file(found, options) if isinstance(found, str) else as_table(found, source)


def _splits_of(name: str, options: Options) -> Mapping[str, Dataset | str]:
    """The splits of a source: data sets, or files that are yet to be read."""
    folder = Path(example_data() if name == "blimp_order" and not Path(name).exists() else name)
    if folder.is_file() or (kind_of(folder) in KINDS and not folder.is_dir()) or options.format is not None:
        return {"train": name}
    if not folder.is_dir():
        check_local("--data", name)
        way_out = "It must be a file, a folder, a name on the Hub (is there a network?), or blimp_order."
        with _reading(f"--data {name!r}", way_out):
            return _of_datasets(load_dataset(name, options.data_config), name, options)
    if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
        with _reading(repr(str(folder)), "It must be a folder that save_to_disk wrote."):
            return _of_datasets(load_from_disk(str(folder)), str(folder), options)
    if files := _split_files(folder):
        return files
    way_out = f"It must hold files called train, validation and test, each a .{', .'.join(KINDS)}."
    with _reading(repr(str(folder)), way_out):
        _check_parts(folder)
        return _of_datasets(load_dataset(str(folder)), str(folder), options)


def _split_files(folder: Path) -> dict[str, str]:
    """The files of a folder that are called as a split is; of one split there must be one."""
    files: dict[str, str] = {}
    names = [name for usual in _USUAL.values() for name in usual]
    for path in sorted(folder.iterdir(), key=lambda path: (_SHARD.match(path.name) is not None, path)):
        word, shard = path.name.split(".")[0], _SHARD.match(path.name)
        if not path.is_file() or kind_of(path) not in KINDS or (shard[1] if shard else word) not in names:
            continue
        if word in files or (files and shard):
            other = Path(files.get(word) or next(iter(files.values()))).name
            raise UserError(f"{str(folder)!r} has both {other} and {path.name}. Keep one file per split, or give it.")
        if not shard:
            files[word] = str(path)
    return files


def _check_parts(folder: Path) -> None:
    """Refuses what the library datasets would read in another way than we do, or in part.

    It drops the text NA from a .csv, doesn't miss a shard, and numbers all by the classes of the first.
    """
    shards: dict[tuple[Path, int], list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if kind_of(path) in ("csv", "tsv", "json", "jsonl") and not path.name.startswith("dataset_info"):
            raise UserError(
                f"{str(folder)!r} holds {str(path.relative_to(folder))!r}. Call files of text train, validation and "
                "test, one for each split (shards joined), or name them: --data, --validation, --test."
            )
        if (shard := _SHARD.match(path.name)) and kind_of(path) == "parquet":
            shards[path.with_name(shard[1]), int(shard[3])].append(path)
    for (path, count), parts in shards.items():
        if len(parts) < count:
            raise UserError(f"{str(folder)!r} has {len(parts)} of the {count} parts of {path.name}. Add the others.")
        if len({str(Features.from_arrow_schema(pq.read_schema(part))) for part in parts}) > 1:
            raise UserError(f"The parts of {str(path)!r} differ in columns or classes. Write all in one way.")


def _of_datasets(loaded: Any, name: str, options: Options) -> dict[str, Dataset]:
    refuse_given(options, ("delimiter", "quoting", "encoding"), f"is for files of text, --data {name!r} is none")
    return {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)


@contextlib.contextmanager
def _reading(what: str, way_out: str) -> Iterator[None]:
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
