"""From files or a Hub data set to numbered examples: finding splits and columns, numbering labels, tokenizing."""

import contextlib
import csv
import glob
import heapq
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
    load_dataset,
    load_from_disk,
)
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import UserError, check_local, disk_error, sentence
from .arguments import DataArguments
from .text_lines import bad_line, open_bytes

logger = logging.get_logger(__name__)

SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)$")
"""train-00000-of-00002.csv is a part of train."""
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
_DELIMITERS = (",", ";", "\t", "|")
_PAIRS: tuple[tuple[str, ...], ...] = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
_SINGLES = ("text", "sentence", "content", "review", "question")
_LABELS = ("label", "labels")
_NAMED = 3
"""Files that a message lists."""
TRUNCATION_WARNING_SHARE = 0.01
# A csv doesn't say what is a number. 007, +5 and 1e5 are as likely names, whose spelling counts.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_REAL = re.compile(r"[+-]?(0|[1-9]\d*)\.\d*([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d*[eE][+-]\d+")
_NO_NUMBER = ("nan", "inf", "-inf")


def example_data() -> str:
    """The folder of `blimp_order`, the data that comes with this package: train, validation and test files."""
    return str(resources.files("hf_posenc") / "data" / "blimp_order")


# ---- finding the data -----------------------------------------------------------------------------------------------


def load_splits(data: DataArguments, token: str | None = None, cache_dir: str | None = None) -> Any:
    """The splits that the options name, as they are in the files: any of train, validation and test.

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
        _refuse_delimiter(data.delimiter, f"--dataset_name {name!r}")
        with reading(
            f"--dataset_name {name!r}", "It must be a folder, a name on the Hub (is there a network?), or blimp_order."
        ):
            loaded = load_dataset(
                name, data.dataset_config_name, token=token, cache_dir=cache_dir, streaming=data.streaming
            )
        found = _as_splits(loaded, name, data.streaming)
    return _named_splits(found, data)


def read_file(
    path: str,
    cache_dir: str | None = None,
    streaming: bool = False,
    *,
    more: Sequence[str] = (),
    delimiter: str | None = None,
) -> Any:
    """One file as a data set: .csv, .tsv, .json, .jsonl (also .gz) or .parquet.

    Args:
        path: the file.
        cache_dir: where datasets keeps what it has read.
        streaming: read nothing yet.
        more: further files of the same kind and with the same columns, as shards have them.
        delimiter: between the columns of a .csv or .tsv. None: found.

    Returns:
        Dataset; with `streaming` an `IterableDataset`, of which nothing has been read.

    Raises:
        UserError: it isn't there, of another kind, empty, or can't be read.
    """
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{path!r} is a folder. Give it as --dataset_name, or name a file in it.")
    if not file.exists():
        raise UserError(f"{path!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    if "::" in str(file.absolute()):
        raise UserError(f"{path!r}: datasets takes '::' for the way into an archive. Rename the file or its folder.")
    if kind not in _READERS:
        raise UserError(f"{path!r} is of no known kind. Accepted: {', '.join(_READERS)}, the first four also as .gz.")
    with reading(repr(path), what_is_read(kind), [path, *more]):
        for one in (path, *more):
            if _is_empty(Path(one)):
                raise UserError(f"{one!r} is empty. Give a file with at least one example.")
        if _READERS[kind] != "csv":
            _refuse_delimiter(delimiter, repr(path))
        options = _csv_options(file, kind, delimiter) if _READERS[kind] == "csv" else {}
        for other in map(Path, more if options else ()):
            if list(_csv_options(other, kind, delimiter)["features"]) != list(options["features"]):
                raise UserError(f"{str(other)!r} has other columns than {path!r}. Give all shards the same first row.")
        if kind == ".json" and streaming:
            for one in (path, *more):
                _check_lines(Path(one))
        elif kind == ".json":
            options = _json_options(file)
        if streaming:
            options["streaming"] = True
        loaded = load_dataset(
            _READERS[kind],
            data_files=[glob.escape(str(Path(one).absolute())) for one in (path, *more)],  # names, not patterns
            split="train",
            cache_dir=cache_dir,
            **options,
        )
        if not streaming:
            loaded.data.validate(full=True)  # a .jsonl and a .parquet are read without a look at their UTF-8
    if streaming:
        loaded.info.download_checksums = dict.fromkeys(map(str, (path, *more)))  # see `files_of`
        return loaded
    dataset = cast(Dataset, loaded)
    if len(dataset) == 0:
        raise UserError(f"{path!r} has no rows. Give a file with at least one example.")
    return dataset


def what_is_read(kind: str) -> str:
    """What a file of a kind must be, as the end of an error."""
    return f"It must be a whole {kind} file{'' if kind == '.parquet' else ' of UTF-8 text'}."


def files_of(rows: IterableDataset) -> list[str]:
    """The files that a stream reads; none where it comes from the Hub."""
    return list(rows.info.download_checksums or {})


def _is_empty(file: Path) -> bool:
    with open_bytes(file) as content:
        return not content.read(1)


def _refuse_delimiter(delimiter: str | None, what: str) -> None:
    if delimiter is not None:
        raise UserError(f"--delimiter {delimiter!r} is for .csv and .tsv files, {what} is none. Leave it out.")


def _csv_options(file: Path, kind: str, delimiter: str | None) -> dict[str, Any]:
    """How a csv is read: every cell as it is written, since pandas would make 7 of 007 and nothing of the word null."""
    options: dict[str, Any] = {
        "sep": _find_delimiter(file, kind) if delimiter is None else delimiter,
        "keep_default_na": False,
        "na_values": [""],
        "skipinitialspace": True,  # text, label
    }
    head = pd.read_csv(file, nrows=1, dtype=str, **options)
    if not isinstance(head.index, pd.RangeIndex):  # pandas would take the first cells for names of the rows
        raise UserError(
            f"{str(file)!r} has {len(head.columns)} columns ({', '.join(map(repr, head.columns))}), its first row has "
            'more cells. Put texts that contain commas in quotes ("a, b"), and name every column.'
        )
    if delimiter is not None and len(head.columns) == 1 and (found := _find_delimiter(file, kind)) in head.columns[0]:
        raise UserError(
            f"{str(file)!r} has one column, {head.columns[0]!r}, with --delimiter {delimiter!r}: it is separated by "
            f"{found!r}. Leave --delimiter out."
        )
    return {**options, "features": Features({name: Value("string") for name in head.columns})}


def _find_delimiter(file: Path, kind: str) -> str:
    """What divides the first rows into columns: what the name of the file says if it does, else another mark."""
    usual = "\t" if kind == ".tsv" else ","
    with open_bytes(file) as content:
        text = io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="")
        lines = list(itertools.islice(text, 50))
    marks = [usual, *(mark for mark in _DELIMITERS if mark != usual)]
    divided = [mark for mark in marks if len(_first_rows(lines, mark)[0]) > 1]
    even = [mark for mark in divided if len({len(row) for row in _first_rows(lines, mark)}) == 1]
    return next(iter([*even, *divided]), usual)


def _first_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    with contextlib.suppress(csv.Error):  # a cell without an end
        found = [row for row in rows if row]
        return (found[:-1] if len(found) > 1 and len(lines) == 50 else found) or [[]]  # the last may be cut
    return [[]]


def _json_options(file: Path) -> dict[str, Any]:
    """Where the rows of a .json are: the file may be a list of objects, one object per line, or {"data": [...]}."""
    with open_bytes(file) as content:
        try:
            whole = json.load(content)
        except ValueError:
            return {}  # one object per line; or broken, which the reader reports better
    if not isinstance(whole, dict):
        return {}
    fields = _lists_of_rows(whole)
    if len(fields) == 1:
        return {"field": fields[0]}
    if fields or all(isinstance(value, list | dict) for value in whole.values()):
        raise UserError(
            f"{str(file)!r} is one object with {', '.join(map(repr, list(whole)[:5]))}, not rows. Write a list of "
            'objects, [{"text": ..., "label": ...}, ...], or one object per line.'
        )
    return {}


def _lists_of_rows(whole: dict[str, Any]) -> list[str]:
    return [name for name, value in whole.items() if value and isinstance(value, list) and isinstance(value[0], dict)]


def _check_lines(file: Path) -> None:
    """Refuses a .json that isn't one object per line: it can only be read whole."""
    with open_bytes(file) as content:
        lines = (line for line in content if line.strip())
        first, more = next(lines, b""), next(lines, None)
    with contextlib.suppress(ValueError):
        row = json.loads(first)
        if isinstance(row, dict) and (more is not None or not _lists_of_rows(row)):
            return
    raise UserError(
        f"--streaming: {str(file)!r} can only be read whole, for it isn't one object per line. Write it as .jsonl, or "
        "leave --streaming out."
    )


def _load_folder(folder: Path, cache_dir: str | None, streaming: bool = False, delimiter: str | None = None) -> Any:
    """The splits of a folder of files, or of one that datasets wrote or can lay out by itself."""
    if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
        with reading(repr(str(folder)), "It must be a folder that save_to_disk wrote."):
            saved = _as_splits(load_from_disk(str(folder)), str(folder))
            _refuse_delimiter(delimiter, repr(str(folder)))
            return {name: split.to_iterable_dataset() for name, split in saved.items()} if streaming else saved
    files: dict[str, list[str]] = {}
    every = [path for path in sorted(folder.iterdir()) if path.is_file() and set(path.suffixes) & set(_READERS)]
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
        f"{str(folder)!r}", f"It must hold files called train, validation and test, each one of {', '.join(_READERS)}."
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
    """The splits under our three names."""
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


def with_files(what: str, files: Sequence[str]) -> str:
    """The name of data, and those of its files."""
    if not files or what == repr(files[0]):
        return what
    return f"{what} ({', '.join(map(repr, files[:_NAMED]))}{', ...' if len(files) > _NAMED else ''})"


@contextlib.contextmanager
def reading(what: str, way_out: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Turns whatever a reader raises into one line: which line of the files is wrong, or else the innermost cause."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        what = with_files(what, files)
        if isinstance(cause, StopIteration) or "corresponds to no data" in str(cause):
            raise UserError(f"{what} has no rows. Give data with at least one example.") from error
        if disk_error(error) and not isinstance(cause, PermissionError):
            raise UserError(f"{what} was read, but not to its end: {disk_error(error)}. Make room.") from error
        if (wrong := bad_line(files)) is not None:
            raise UserError(wrong) from error
        raise UserError(f"{what} can't be read: {sentence(cause)} {way_out}") from error


def check_percentage(percentage: int) -> None:
    """Raises a UserError if `validation_split_percentage` isn't 1 to 99."""
    if not 1 <= percentage <= 99:
        raise UserError(f"--validation_split_percentage {percentage} is out of range. Give 1 to 99.")


def hold_out(groups: Sequence[Hashable], percentage: int) -> tuple[list[int], list[int]]:
    """Divides rows into those to train on and those to validate on; always the same, whatever the seed.

    Each group (the rows of one label) is divided in its share. One row of each group stays to train on; as far as the
    validation rows go round, each group has one of them, and two groups do wherever two have more than one row.

    Args:
        groups: of each row.
        percentage: of the rows to validate on.

    Returns:
        The numbers of the rows to train on and of those to validate on.

    Raises:
        UserError: the percentage isn't 1 to 99, or no row can be spared.
    """
    check_percentage(percentage)
    rows = np.random.default_rng(0).permutation(len(groups)).tolist()
    members: dict[Hashable, list[int]] = {}
    for row in rows:
        members.setdefault(groups[row], []).append(row)
    spare = [group for group in members.values() if len(group) > 1]
    if not spare:
        what = "one training example" if len(groups) == 1 else f"one training example of each of {len(groups)} labels"
        raise UserError(
            f"There is {what} and no validation data. Give --validation_file, train without one (--do_eval false), "
            "or, where labels are numbers to be predicted, give --task regression."
        )
    least = min(2, len(spare)) if len(members) > 1 else min(2, len(groups) // 4)
    wanted = min(max(-(-len(groups) * percentage // 100), least, 1), sum(len(group) - 1 for group in spare))
    taken = Counter(itertools.islice(in_shares([len(group) - 1 for group in spare]), wanted))
    held = {row for number, group in enumerate(spare) for row in group[: taken[number]]}
    return [row for row in rows if row not in held], [row for row in rows if row in held]


def in_shares(sizes: Sequence[int]) -> Iterator[int]:
    """Groups in turns, each as often as it is large: first every one, the largest first, then the one that lags most.

    That is the method of Sainte-Lague: the shares are near, after whatever number of turns.
    """
    turns: list[tuple[int, float, int]] = [(0, -size, number) for number, size in enumerate(sizes) if size]
    heapq.heapify(turns)
    taken = [0] * len(sizes)
    while turns:
        number = heapq.heappop(turns)[2]
        yield number
        taken[number] += 1
        if taken[number] < sizes[number]:
            heapq.heappush(turns, (1, -sizes[number] / (2 * taken[number] + 1), number))


# ---- columns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text, the second text of a pair, and the label."""

    text: tuple[str, ...]
    label: str
    delimiter: str | None = None
    """Joins all text columns to one text."""
    label_delimiter: str | None = None
    """Separates several labels in one cell."""

    @property
    def is_pair(self) -> bool:
        """Whether an example is two texts."""
        return len(self.text) == 2 and self.delimiter is None

    def texts(self, batch: Mapping[str, list[Any]]) -> tuple[list[str], list[str] | None]:
        """The first and second texts of a batch of rows; a missing text is an empty one."""
        columns = [["" if value is None else str(value) for value in batch[name]] for name in self.text]
        if self.delimiter is not None:
            return [self.delimiter.join(values) for values in zip(*columns, strict=True)], None
        return columns[0], columns[1] if self.is_pair else None


def find_columns(dataset: Dataset, data: DataArguments, known: Columns | None = None) -> Columns:
    """The columns that the options name, a checkpoint's, or those with the usual names, in any case.

    Args:
        dataset: has the columns.
        data: the options.
        known: those that a checkpoint was trained on; they count where the data has them.

    Raises:
        UserError: a named column isn't there, or no column has a usual name.
    """
    names = dataset.column_names
    joined = data.text_column_delimiter
    labels: tuple[str, ...] = _LABELS if data.label_column_name is None else (data.label_column_name,)
    if known is not None and data.label_column_name is None:
        labels = (known.label, *_LABELS)
    label = next(filter(None, (_there(names, label) for label in labels)), labels[0])
    if data.text_column_names is not None:
        given = [name.strip() for name in data.text_column_names.split(",") if name.strip()]
        text = tuple(_there(names, name) or name for name in given)
        require_columns(dataset, text, "--text_column_names")
    elif known is not None and all(_there(names, name) for name in known.text):
        text = tuple(_there(names, name) or name for name in known.text)
        joined = joined or known.delimiter
    else:
        usual = ([_there(names, name) for name in one] for one in (*_PAIRS, *((single,) for single in _SINGLES)))
        others = [name for name in names if name != label and _is_text(dataset, name)]
        text = next((tuple(map(str, one)) for one in usual if all(one)), tuple(others[:1]))
    if not text:
        raise UserError(f"No column holds text: the data has {', '.join(names)}. Name one with --text_column_names.")
    if len(text) > 2 and joined is None:
        raise UserError(
            f"--text_column_names {','.join(text)} names {len(text)} columns. Give one, two for pairs, or join them "
            "with --text_column_delimiter ' '."
        )
    _check_text(dataset, text)
    if label in text:
        raise UserError(f"Column {label!r} can't be both text and label. Name another with --label_column_name.")
    return Columns(text, label, joined, data.label_delimiter or (known.label_delimiter if known else None))


def _check_text(dataset: Dataset, names: Sequence[str]) -> None:
    """Refuses columns with lists or objects, or with numbers among texts."""
    for name in names:
        if isinstance(dataset.features[name], Value):
            continue
        others = (row for row, one in enumerate(dataset[name]) if one is not None and not isinstance(one, str))
        row = next(others, None)
        found = "numbers, lists or objects further on"  # than the first rows of a stream
        if row is not None:
            found = f"{dataset[row][name]!r:.60} in {row_name(row, is_csv_data(dataset))}"
        raise UserError(
            f"Column {name!r} holds {found}, which is no text. Write one string there, joining the parts of a list, or "
            "name another column with --text_column_names."
        )


def _there(names: Sequence[str], wanted: str) -> str | None:
    """The column of that name, else the only one that differs from it in case and outer blanks alone."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.strip().lower() == wanted.strip().lower()]
    return alike[0] if len(alike) == 1 else None


_OURS = "hf_posenc"


def remember_columns(config: Any, columns: Columns) -> None:
    """Notes the columns of the training data in a model's configuration, of any family: it travels with the weights."""
    noted = {
        "text_column_names": list(columns.text),
        "text_column_delimiter": columns.delimiter,
        "label_column_name": columns.label,
        "label_delimiter": columns.label_delimiter,
    }
    # A field that every transformers configuration takes; transformers reads nothing under our name.
    others = getattr(config, "task_specific_params", None)
    config.task_specific_params = {**(others if isinstance(others, dict) else {}), _OURS: noted}


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None where its configuration doesn't say, or not as we write it."""
    noted = getattr(config, "task_specific_params", None)
    noted = noted.get(_OURS) if isinstance(noted, dict) else None
    if not isinstance(noted, dict):
        return None
    text, label = noted.get("text_column_names"), noted.get("label_column_name")
    between = [noted.get("text_column_delimiter"), noted.get("label_delimiter")]
    if not (isinstance(text, list) and text and all(isinstance(name, str) for name in (*text, label))):
        return None
    if not all(one is None or isinstance(one, str) for one in between):
        return None
    return Columns(tuple(text), str(label), *between)


def require_columns(dataset: Dataset, names: Sequence[str], option: str, split: str = "train") -> None:
    """Raises a UserError if a column isn't there; the message lists those that are."""
    missing = [name for name in names if name not in dataset.column_names]
    if missing:
        raise UserError(
            f"The {split} data has no column {missing[0]!r}. It has {', '.join(map(repr, dataset.column_names))}: name "
            f"one with {option}.{' If these are no names, write a first row of names.' if is_csv_data(dataset) else ''}"
        )


def _is_text(dataset: Dataset, name: str) -> bool:
    feature = dataset.features[name]
    if not isinstance(feature, Value) or feature.dtype not in ("string", "large_string"):
        return False
    return not is_csv_data(dataset) or any(isinstance(value, str) for value in _as_written(dataset[:100][name]))


def is_csv_data(dataset: Any) -> bool:
    """Whether the cells are strings that may mean numbers."""
    return dataset.info.builder_name == "csv"


def row_number(index: int, is_csv: bool) -> int:
    """The number of a row for who has the file: from 1, and a csv's header is row 1."""
    return index + 2 if is_csv else index + 1


def row_name(index: int, is_csv: bool) -> str:
    """A row in words."""
    return f"row {row_number(index, is_csv)}{' (the header is row 1)' if is_csv else ''}"


def _as_written(cells: Sequence[Any], numbers: bool = True) -> list[Any]:
    """The cells of a csv column as whole numbers if all are, as real ones if all are numbers, else as strings.

    Without `numbers`, real ones are strings too unless all are whole: 1.10 isn't 1.1 where these are names.
    """
    stripped = [cell.strip() or None if isinstance(cell, str) else cell for cell in cells]
    present = {cell for cell in stripped if cell is not None}
    if not present or not all(isinstance(cell, str) for cell in present):
        return stripped
    if all(_WHOLE.fullmatch(cell) for cell in present):
        return [None if cell is None else int(cell) for cell in stripped]
    real = any(_REAL.fullmatch(cell) for cell in present)
    if real and all(_WHOLE.fullmatch(cell) or _REAL.fullmatch(cell) or cell.lower() in _NO_NUMBER for cell in present):
        found = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in found):
            return found
    return stripped


# ---- labels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """What the labels are, and the number of each: the same for all splits."""

    problem_type: str
    names: tuple[str, ...] = ()
    kind: str = "text"
    """How labels are written in the data: text, integer, truth or number."""

    @property
    def num_labels(self) -> int:
        """Outputs of the model: one for a regression."""
        return 1 if self.problem_type == "regression" else len(self.names)

    def numbers(self) -> dict[str, int]:
        """Each label's number."""
        return {name: number for number, name in enumerate(self.names)}


@dataclass(frozen=True)
class _Column:
    """The labels of one split as Python values: names, lists of names, or floats; None where missing."""

    values: list[Any]
    kind: str
    is_list: bool
    known: tuple[str, ...] | None = None
    """All labels, where the data set itself says what they are."""
    is_csv: bool = False
    from_file: bool = True
    """Whether the rows are those of the file, from its first on."""

    @property
    def present(self) -> list[Any]:
        """The values that aren't missing."""
        return [value for value in self.values if value is not None]

    def items(self) -> list[Any]:
        """Every label, one for each text that has it."""
        return [item for value in self.present for item in (value if self.is_list else (value,))]

    def where(self, index: int, before: str = "") -> str:
        """The name of a row, after `before`; nothing where rows aren't the file's."""
        return f"{before}{row_name(index, self.is_csv)}" if self.from_file else ""


def read_values(
    values: list[Any],
    feature: Any,
    is_csv: bool,
    column: str,
    split: str,
    delimiter: str | None,
    task: str | None,
    *,
    from_file: bool = True,
) -> _Column:
    """Cells of a column of labels as Python values.

    Raises:
        UserError: they are of mixed types.
    """
    if is_csv and delimiter is None:
        values = _as_written(values, numbers=task != "classification")
    inner = feature.feature if isinstance(feature, List) else feature
    known = tuple(inner.names) if isinstance(inner, ClassLabel) else None
    if delimiter is not None:
        values = [
            [part.strip() for part in value.split(delimiter) if part.strip()] if isinstance(value, str) else value
            for value in values
        ]
        # An empty cell says that no label applies.
        values = [[] if value is None else value for value in values]
    present = [value for value in values if not is_missing(value)]
    lists = [value for value in present if isinstance(value, list | tuple)]
    if lists and len(lists) != len(present):
        raise UserError(
            f"Mixed label types in the {split} data: column {column!r} has both lists and single labels. Write all as "
            "lists for several labels per text, or none."
        )
    kinds = {_kind(item) for value in present for item in (value if lists else (value,))}
    if known is not None:
        kinds = {"text"} if kinds else set()
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(
            f"Mixed label types in the {split} data: column {column!r} has {_examples(present, bool(lists))}. Write "
            "all labels in one way: all strings, all whole numbers, or all real numbers."
        )
    kind = next(iter(kinds), "text")

    def name(value: Any) -> Any:
        if known is not None:
            return known[value] if 0 <= value < len(known) else None
        return float(value) if kind == "number" else str(value).strip()

    converted = [
        None if is_missing(value) else [name(item) for item in value] if lists else name(value) for value in values
    ]
    return _Column(converted, kind, bool(lists), known, is_csv, from_file)


def is_missing(value: Any) -> bool:
    """Whether a cell holds no label."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


def _kind(value: Any) -> str:
    # A truth value is an integer too, so it is asked for first.
    for kind, types in (("truth", bool), ("integer", int), ("number", float), ("text", str)):
        if isinstance(value, types):
            return kind
    return "other"


def _examples(values: list[Any], lists: bool) -> str:
    shown: dict[str, Any] = {}
    for value in values:
        for item in value if lists else (value,):
            shown.setdefault(_kind(item), item)
    return " and ".join(repr(value) for value in shown.values())


def number_labels(
    splits: Mapping[str, Dataset],
    columns: Columns,
    *,
    task: str | None = None,
    delimiter: str | None = None,
    given: Sequence[str] | None = None,
    given_problem_type: str | None = None,
    skip_missing: bool = False,
    sampled: bool = False,
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """Decides the task and numbers the labels from the training split, for all splits.

    Lists are several labels per text; real numbers a regression; all else is one label per text. Whole numbers keep
    their order, words are sorted. Whole numbers that are written as real ones (0.0, 1.0) are labels where there are few
    of them, each of several texts.

    Args:
        splits: any of train, validation and test. Test alone may lack labels.
        columns: where the labels are.
        task: classification or regression. None: what the labels look like.
        delimiter: between the labels of one cell.
        given: label names of a trained model. They keep their order if they are the data's, and alone count where
            there is no training split.
        given_problem_type: its task.
        skip_missing: leave rows without a label out, rather than refuse them.
        sampled: the training split holds each label, but not the rows of its file.

    Returns:
        The labels, and for each split the numbers to train on (None where it has no labels): int, a list of 0.0 and
        1.0 for each label, or float; with `skip_missing` None for each row without one.

    Raises:
        UserError: a label is missing, unknown in training, or labels are of mixed types.
    """
    read: dict[str, _Column | None] = {}
    for split, dataset in splits.items():
        if columns.label not in dataset.column_names and split == "test":
            read[split] = None
            continue
        require_columns(dataset, [columns.label], "--label_column_name", split)
        column = read_values(
            list(dataset[columns.label]),
            dataset.features[columns.label],
            is_csv_data(dataset),
            columns.label,
            split,
            delimiter,
            task,
            from_file=not (sampled and split == "train"),
        )
        missing = [row for row, value in enumerate(column.values) if value is None]
        if split == "test" and len(missing) == len(column.values):
            read[split] = None
            continue
        if len(missing) == len(column.values):
            raise UserError(f"No row of the {split} data has a label in column {columns.label!r}. {_NAME_LABELS}")
        if missing:
            _check_missing(column, missing, columns.label, split, skip_missing)
        read[split] = column
    labels = _decide(read, columns.label, task, given, given_problem_type)
    numbers = labels.numbers()
    return labels, {
        split: None if column is None else apply_labels(labels, numbers, column, split, columns.label)
        for split, column in read.items()
    }


_NAME_LABELS = "Name the right one with --label_column_name."


def _check_missing(column: _Column, missing: Sequence[int], name: str, split: str, skip: bool) -> None:
    if skip:
        logger.warning(
            f"{len(missing)} of {len(column.values)} {split} rows have no label and are left out (--skip_missing)"
            f"{column.where(missing[0], ', first ')}."
        )
        return
    others = f", nor have {len(missing) - 1} others" if len(missing) > 1 else ""
    raise UserError(
        f"Missing label in the {split} data: {column.where(missing[0])} has none in column {name!r}{others}. Fill it "
        "in, or leave such rows out with --skip_missing."
    )


def _decide(
    read: Mapping[str, _Column | None],
    name: str,
    task: str | None,
    given: Sequence[str] | None,
    given_problem_type: str | None,
) -> Labels:
    train = read.get("train")
    source = train or next((column for column in read.values() if column is not None), None)
    if source is None:
        if not given:
            raise UserError(
                "The data has no labels, and no trained model says what they are. Give labelled training data."
            )
        return Labels(given_problem_type or "single_label_classification", tuple(given))
    if train is None and given_problem_type is not None:
        _check_labels_fit(source, name, given_problem_type)
        task = "regression" if given_problem_type == "regression" else "classification"
    if (task or _looks_like(source, name)) == "regression":
        if source.is_list or source.kind not in ("number", "integer") or source.known is not None:
            raise UserError(
                f"--task regression needs one number per text, column {name!r} has {source.present[0]!r}. Leave it out "
                "to predict labels."
            )
        return Labels("regression", kind="number")
    problem = "multi_label_classification" if source.is_list else "single_label_classification"
    if train is None and given:
        return Labels(problem, tuple(given), source.kind)
    names = _label_names(source)
    if given and set(given) == set(names):
        names = tuple(given)
    if len(names) < 2 and problem == "single_label_classification":
        raise UserError(
            f"All training examples have the label {names[0]!r}. Give examples of at least two labels, or the right "
            "column with --label_column_name."
        )
    if not names:
        raise UserError(f"No training example has a label in column {name!r}. {_NAME_LABELS}")
    return Labels(problem, names, "integer" if _are_whole(source) else source.kind)


MOST_NUMBERED = 50
"""More whole numbers than these, written as real ones, are no labels."""


def _looks_like(column: _Column, name: str) -> str:
    """The task, where nobody says."""
    if column.kind not in ("number", "integer") or column.is_list or column.known is not None:
        return "classification"
    distinct = set(column.present)
    # Each of several texts: a label is there to be learned.
    are_labels = 2 * len(distinct) <= len(column.present)
    if column.kind == "integer":
        if not are_labels:
            logger.warning(
                f"Column {name!r} has {len(distinct)} different whole numbers in {len(column.present)} rows, each of "
                "which is a label of its own. --task regression predicts numbers."
            )
        return "classification"
    if not (are_labels and len(distinct) <= MOST_NUMBERED and _are_whole(column)):
        return "regression"
    logger.warning(
        f"Column {name!r} has the numbers {', '.join(map(str, sorted(distinct)[:5]))}"
        f"{', ...' if len(distinct) > 5 else ''}, which are taken for labels. --task regression predicts numbers."
    )
    return "classification"


def _are_whole(column: _Column) -> bool:
    """Whether labels are real numbers that are all whole."""
    return column.kind == "number" and all(value.is_integer() for value in column.items())


def _label_names(column: _Column) -> tuple[str, ...]:
    if column.known is not None:
        return column.known
    seen = set(column.items())
    if column.kind == "number":
        return tuple(str(int(value) if _are_whole(column) else value) for value in sorted(seen))
    return tuple(sorted(seen, key=int) if column.kind == "integer" else sorted(seen))


def _as_label(value: Any, numbers: Mapping[str, int]) -> str:
    """The name of a label that may be a number: 1.0 is the label 1, if there is that."""
    if isinstance(value, float) and value.is_integer() and str(value) not in numbers:
        return str(int(value))
    return str(value)


def _check_labels_fit(column: _Column, name: str, problem_type: str) -> None:
    """Refuses labels of another task than the trained model's, which would be scored as if that were its own."""
    numbers = column.kind in ("number", "integer") and not column.is_list and column.known is None
    real = column.kind == "number" and not _are_whole(column)
    if problem_type == "regression" and not numbers:
        way_out = "Give data with one number per text"
        does = "predicts a number"
    elif problem_type == "multi_label_classification" and not column.is_list:
        way_out = "Write lists of labels, say what separates labels in one cell with --label_delimiter"
        does = "gives each text several labels"
    elif problem_type == "single_label_classification" and (column.is_list or real):
        way_out = "Give data with one label per text"
        does = "gives each text one label"
    else:
        return
    raise UserError(
        f"The model {does}, column {name!r} has {column.present[0]!r}. {way_out}, or name the right column with "
        "--label_column_name."
    )


def apply_labels(labels: Labels, numbers: Mapping[str, int], column: _Column, split: str, name: str) -> list[Any]:
    """What `number_labels` gives for a split.

    Raises:
        UserError: a label is unknown, or of another type than those of the training data.
    """
    if labels.problem_type == "regression":
        if column.kind not in ("number", "integer") or column.is_list:
            raise UserError(
                f"Mixed label types: column {name!r} has numbers in the training data and {column.present[0]!r} in the "
                f"{split} data. Write numbers in both."
            )
        values = [None if value is None else float(value) for value in column.values]
        if bad := [row for row, value in enumerate(values) if value is not None and not math.isfinite(value)]:
            raise UserError(
                f"The {split} data has {values[bad[0]]} in column {name!r}{column.where(bad[0], ', ')}. Give a finite "
                "number."
            )
        return values
    if column.is_list != (labels.problem_type == "multi_label_classification"):
        raise UserError(
            f"Mixed label types: column {name!r} has {column.present[0]!r} in the {split} data, unlike what was "
            f"trained on ({'lists of labels' if labels.problem_type.startswith('multi') else 'one label per text'}). "
            "Write both alike."
        )
    found: list[Any] = []
    unknown: Counter[str] = Counter()
    first: dict[str, int] = {}
    for row, value in enumerate(column.values):
        named = [] if value is None else [_as_label(item, numbers) for item in (value if column.is_list else (value,))]
        for label in named:
            if label not in numbers:
                unknown[label] += 1
                first.setdefault(label, row)
        if column.is_list and len(set(named)) != len(named):
            raise UserError(
                f"The {split} data names a label twice{column.where(row, ' in ')}: {value!r}. Give each text a list of "
                "the labels that apply (not a 0 or 1 for each label)."
            )
        if value is None:
            found.append(None)
        elif column.is_list:
            found.append([float(label in set(named)) for label in labels.names])
        else:
            found.append(numbers.get(named[0]))
    if unknown:
        label, count = unknown.most_common(1)[0]
        raise UserError(
            f"The {split} data has the label {label!r} ({count} times{column.where(first[label], ', first in ')}), "
            f"which training never saw. It knows {', '.join(map(repr, labels.names[:10]))}"
            f"{', ...' if len(labels.names) > 10 else ''}. Add examples to the training data or leave these rows out."
        )
    return found


# ---- which rows -----------------------------------------------------------------------------------------------------


def groups_of(labels: Labels | None, numbers: Sequence[Any] | None, rows: Sequence[int]) -> list[Hashable]:
    """What a validation split is to hold in its share: a row's label, the rarest where it has several."""
    if labels is None or numbers is None or labels.problem_type == "regression":
        return [None] * len(rows)
    if labels.problem_type == "single_label_classification":
        return [numbers[row] for row in rows]
    counts = np.sum([numbers[row] for row in rows], axis=0)
    by_count = sorted(range(len(labels.names)), key=lambda number: (counts[number], labels.names[number]))
    return [next((number for number in by_count if numbers[row][number]), None) for row in rows]


def blank_rows(dataset: Dataset, columns: Columns) -> list[int]:
    """The rows that hold no text."""
    found: list[int] = []
    start = 0
    for batch in dataset.select_columns(list(columns.text)).iter(1000):
        cells = [cast(dict[str, list[Any]], batch)[name] for name in columns.text]
        for row, values in enumerate(zip(*cells, strict=True), start=start):
            if all(value is None or not str(value).strip() for value in values):
                found.append(row)
        start += len(cells[0])
    return found


# ---- tokens ---------------------------------------------------------------------------------------------------------


def encode(
    dataset: Dataset,
    labels: Sequence[Any] | None,
    tokenizer: PreTrainedTokenizerBase,
    columns: Columns,
    max_length: int,
    problem_type: str,
    *,
    split: str = "train",
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> Dataset:
    """Tokenizes one split: `input_ids` and the like, and `labels`. Nothing else is kept.

    Warns when more than 1 % of the inputs are truncated.
    """
    require_columns(dataset, columns.text, "--text_column_names", split)
    _check_text(dataset, columns.text)

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenize_texts(batch, tokenizer, columns, max_length)
        if encoded.encodings is not None:
            truncated = [bool(encoding.overflowing) for encoding in encoded.encodings]
        else:  # a tokenizer in Python doesn't say; one that is exactly as long as the limit counts as truncated
            truncated = [len(ids) >= max_length for ids in encoded["input_ids"]]
        return {**encoded, "_truncated": truncated}

    encoded = dataset.map(
        tokenize,
        batched=True,
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        load_from_cache_file=not overwrite_cache,
        desc=f"Tokenizing {split}",
    )
    cut = sum(encoded["_truncated"])
    if cut > TRUNCATION_WARNING_SHARE * len(encoded):
        logger.warning(
            f"{cut} of {len(encoded)} {split} inputs ({cut / len(encoded):.1%}) have more than {max_length} tokens and "
            "were truncated. Raise --max_seq_length to keep them whole."
        )
    encoded = encoded.remove_columns("_truncated")
    if labels is None:
        return encoded
    # A column of its own: written over the column of strings, numbers would become strings again.
    feature: Any = Value("int64")
    if problem_type == "regression":
        feature = Value("float32")
    elif problem_type == "multi_label_classification":
        feature = List(Value("float32"))
    column = Dataset.from_dict({"labels": list(labels)}, features=Features({"labels": feature}))
    return encoded.add_column("labels", column.data.column("labels"), feature=feature)


def tokenize_texts(
    batch: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, columns: Columns, max_length: int
) -> BatchEncoding:
    """The texts of a batch of rows as token ids."""
    first, second = columns.texts(batch)
    return tokenizer(first, second, truncation=True, max_length=max_length)


def texts(dataset: Any, columns: Columns, batch_size: int = 1000) -> Iterator[str]:
    """All texts of a split, the second of each pair too: what a tokenizer is trained on."""
    files = files_of(dataset) if isinstance(dataset, IterableDataset) else []
    with reading("The training data", "Mend the data, or leave these rows out.", files):
        for batch in dataset.select_columns(list(columns.text)).iter(batch_size):
            first, second = columns.texts(cast(dict[str, list[Any]], batch))
            yield from first
            yield from second or ()
