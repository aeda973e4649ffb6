"""Reads what the options name: files, a folder or a data set of the Hub."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from datasets import Dataset, load_dataset, load_from_disk

from ..errors import UserError, check_local, readable, spell
from ..options import Options, refuse_given
from .reading import DELIMITERS, KINDS, Dialect, kind_of, read_file
from .tables import Table, as_table

logger = logging.getLogger(__name__)

_USUAL = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What the splits of a folder or a data set may be called."""
EXAMPLE_DATA = Path(__file__).with_name("blimp_order")
"""The data that comes with this package: train, validation and test files."""


def read(options: Options) -> dict[str, Table]:
    """The splits that the options name, as in the files: any of train, validation and test.

    Raises:
        UserError: nothing is named, or what is named can't be read or is empty.
    """
    splits = _splits_of(options)
    chosen = {split: _find(split, splits, options) for split in _USUAL}
    named = {split: rows for split, rows in chosen.items() if rows is not None}
    if "validation" in named and options.validation_share:
        refuse_given(options, ("validation_share",), "is for data without validation rows, and these have some")
    if not named:
        raise UserError(f"{options.data!r} has the splits {', '.join(splits)}. One of them must be called train.")
    _refuse_one_for_both(chosen["validation"], chosen["test"], options)
    if unused := [name for name, rows in splits.items() if rows not in named.values()]:
        logger.warning(f"Splits of {options.data!r} that are used only where they are named: {', '.join(unused)}.")
    kinds = {kind_of(Path(rows)) for rows in named.values() if isinstance(rows, str)}
    return {split: _table(rows, split, _for_file(rows, kinds, options)) for split, rows in named.items()}


def _for_file(rows: Dataset | str, kinds: set[str], options: Options) -> Options:
    """The options without those of delimited files, for a file of another kind beside such files."""
    is_other = isinstance(rows, str) and kind_of(Path(rows)) not in DELIMITERS
    if is_other and options.format is None and kinds & DELIMITERS.keys():
        return replace(options, delimiter=None, quoting=None)
    return options


def _refuse_one_for_both(validation: Dataset | str | None, test: Dataset | str | None, options: Options) -> None:
    """Refuses the same rows to choose weights by and to test them on."""
    first, second = (Path(rows).resolve() if isinstance(rows, str) else rows for rows in (validation, test))
    if first is not None and first == second:
        name = "validation" if options.validation is not None else "test"
        both = "names the rows that are validation and test data: scores on rows by which weights are chosen say little"
        raise UserError(f"{both}. Name others, or leave it out.", parameter=name, value=getattr(options, name))


def _find(split: str, splits: Mapping[str, Dataset | str], options: Options) -> Dataset | str | None:
    """The rows of a split: as an option names them, else by its usual names; None: there are none."""
    asked = None if split == "train" else getattr(options, split)
    if asked is None:
        return next((splits[name] for name in _USUAL[split] if name in splits), None)
    if asked in splits:
        return splits[asked]
    if _is_file(asked, options):
        return asked
    what = f"is no file, and no split of {options.data!r}: {', '.join(splits)}."
    raise UserError(what, parameter=split, value=asked)


def read_split(options: Options, split: str | None, dialect: Dialect | None = None) -> Table:
    """The rows of a file, or of one split of a folder or a data set; None: of test.

    Args:
        options: the data, and how it is read.
        split: of a folder or a data set.
        dialect: see `read_file`.

    Raises:
        UserError: they can't be read, or there is no such split.
    """
    splits = _splits_of(options)
    if splits == {"train": options.data}:  # a file
        if split is not None:
            what = f"is of a folder or a data set, and {options.data!r} is a file. Leave it out."
            raise UserError(what, parameter="split", value=split)
        split = "train"
    split = split or "test"
    if split not in splits:
        there = f"It has {', '.join(splits)}: name one with {spell('split')}."
        raise UserError(f"{options.data!r} has no split {split!r}. {there}")
    return _table(splits[split], split, options, dialect)


def _table(data: Dataset | str, split: str, options: Options, dialect: Dialect | None = None) -> Table:
    """The rows of a file, or of a split that has been read."""
    if isinstance(data, str):
        return read_file(data, options, dialect)
    return as_table(data, f"{options.data}, split {split}")


def _splits_of(options: Options) -> Mapping[str, Dataset | str]:
    """The splits of the data: data sets, or files that are yet to be read."""
    if (name := options.data) is None:
        data = spell("data")
        raise UserError(f"No data. Give {data}: a file, a folder, a Hub name, or blimp_order, which comes along.")
    folder = EXAMPLE_DATA if name == "blimp_order" and not Path(name).exists() else Path(name)
    if folder.exists() or name == "-":
        refuse_given(options, ("data_config",), f"is of a data set on the Hub, and {spell('data', name)} is here")
    if name == "-" or _is_file(str(folder), options):
        return {"train": name}
    is_saved = any((folder / file).exists() for file in ("dataset_dict.json", "dataset_info.json"))
    if folder.is_dir() and not is_saved:
        return _files_in(folder)
    return _data_set(name, folder if is_saved else None, options)


def _is_file(name: str, options: Options) -> bool:
    """True for what is here and no folder, such as a pipe; of what isn't here, for the name of a file."""
    path = Path(name)
    is_called_so = kind_of(path) in KINDS or (options.format is not None and path.suffix != "")
    return not path.is_dir() if path.exists() else is_called_so


def _data_set(name: str, folder: Path | None, options: Options) -> Mapping[str, Dataset]:
    """The splits of a data set that was saved into a folder, or of one on the Hub."""
    of_text = ("delimiter", "quoting", "encoding")
    refuse_given(options, (*of_text, "format"), f"is for files of text, {spell('data', name)} is none")
    check_local("data", name)
    with readable(spell("data", name), "It must be a file, a folder, a name on the Hub, or blimp_order."):
        loaded = load_dataset(name, options.data_config) if folder is None else load_from_disk(str(folder))
        return {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)


def _files_in(folder: Path) -> dict[str, str]:
    """The files of a folder by the splits that they are called; others by their whole name."""
    usual = [name for names in _USUAL.values() for name in names]
    kinds = ", .".join(KINDS)
    way_out = f"Call files {', '.join(_USUAL)}, one for each split, each a .{kinds}; or name them: {spell('data')}."
    files: dict[str, str] = {}
    for path in sorted(path for path in folder.iterdir() if kind_of(path) in KINDS):
        split = path.name.split(".")[0]
        if split in files and split in usual:
            raise UserError(f"{str(folder)!r} holds {path.name} beside {Path(files[split]).name}. {way_out}")
        files[path.name if split in files else split] = str(path)
    if not {*usual} & {*files}:
        raise UserError(f"{str(folder)!r} holds no split. {way_out}")
    return files
