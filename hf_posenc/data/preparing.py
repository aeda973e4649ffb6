"""From the rows of all splits to what a run trains and scores on: a frozen `PreparedData`, and its token ids."""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features, List, Value, concatenate_datasets
from tqdm import tqdm

from ..errors import UserError, spell
from ..options import Options
from .columns import Columns, find_columns, is_missing
from .labels import Known, Labels, encode_labels, refuse_far_from_zero, standard_units
from .tables import LINE, Table, counted, listed
from .tokenizer import cut_rows

TEXTS = ("text", "text_pair")
"""The columns of a prepared split that hold its texts."""
_MARK = "__mark__"
_WORD = re.compile(r"\w+")
_TOGETHER = ", rows of the same words together"
_LARGEST_GROUP = 8
"""More texts of the same words are no pair, but a language of few words."""
_CHUNK = 1000
_IDS = pa.list_(pa.int64())
_TARGETS = {
    "single_label_classification": Value("int64"),
    "multi_label_classification": List(Value("float32")),
    "regression": Value("float64"),
}


@dataclass
class DataSummary:
    """The data of a run, in words for the terminal, the card and `results.json`."""

    line: str
    """Columns, labels, and of each split what was read, used and left out."""
    doubts: list[str] = field(default_factory=list)
    """What may make scores say less than they seem to."""


@dataclass(frozen=True)
class PreparedData:
    """Data that a run trains and scores on.

    Attributes:
        columns: of the file.
        labels: the problem type and the labels in order.
        splits: any of train, validation and test, each with the columns `text`, `text_pair` for pairs, `__line__` and,
            where there are any, `labels` in the model's form.
        summary: what was read, used and left out.
        trained_on: the marks of the training texts, those of the checkpoint to start from among them (see `marks_of`).
    """

    columns: Columns
    labels: Labels
    splits: Mapping[str, Dataset]
    summary: DataSummary
    trained_on: frozenset[int]


def texts_of(part: Dataset) -> tuple[list[str], ...]:
    """The texts of a prepared split: `(first,)`, or `(first, second)` of pairs."""
    return tuple(part[name][:] for name in TEXTS if name in part.column_names)


def labels_of(part: Dataset) -> list[Any] | None:
    """The labels of a prepared split, in the model's form; None: it has none."""
    return part["labels"][:] if "labels" in part.column_names else None


def prepare(tables: Mapping[str, Table], options: Options, known: Known | None = None) -> PreparedData:
    """Finds columns and labels, chooses the rows to use and sets validation rows aside.

    Args:
        tables: the splits, as they were read. Without `train` they are only scored.
        options: the options.
        known: of the checkpoint to start from, or to score.

    Raises:
        UserError: a split, a column or a label is missing, or no row is left.
    """
    known = known or Known()
    trains = "train" in tables
    first = next(iter(tables.values()))
    columns = find_columns(first, options, None if trains else known.columns)
    texts = {split: columns.texts(table) for split, table in tables.items()}
    labels, numbers = encode_labels(tables, columns, options, known)
    is_unscored = trains and "test" in tables and numbers["test"] is None
    used = {split: table for split, table in tables.items() if not (is_unscored and split == "test")}
    parts = {
        split: _usable_rows(split, table, texts[split], numbers[split], labels, options)
        for split, table in used.items()
    }
    keeps_order = options.named_labels and options.named_labels != labels.names == known.label_names
    facts = [columns.sentence(first.names), labels.sentence() + ", in the model's order" * bool(keeps_order)]
    for split, part in parts.items():
        counts = {"left out": len(tables[split]) - len(part), "with no label": _without_a_label(part, labels)}
        said = [f", {count:,} {what}" for what, count in counts.items() if count]
        facts.append(f"{split} {tables[split].summary}{''.join(said)}")
    doubts = ["The test split has no labels, so it isn't scored. `hf-posenc predict` labels it."] * is_unscored
    trained = known.trained_on
    if trains:
        parts, chosen = _choose_rows(parts, labels, options)
        targets, marks = parts["train"]["labels"][:], parts["train"][_MARK][:]
        are_listed = bool(columns.one_hot or options.label_names or first.classes(columns.label))
        doubts += _check_labels_vary(targets, labels, are_listed)
        if labels.problem_type == "regression":
            labels = _in_standard_units(labels, columns.label, targets)
        doubts += _repetitions(parts["train"], marks, tables["train"])
        facts += chosen
        trained = trained.union(marks)
    doubts += _shared_with(trained, parts)
    return PreparedData(columns, labels, parts, DataSummary(f"{'; '.join(facts)}.", doubts), trained)


def _without_a_label(part: Dataset, labels: Labels) -> int:
    """The number of rows to which none of several labels applies."""
    if labels.problem_type != "multi_label_classification":
        return 0
    return sum(not any(row) for row in labels_of(part) or ())


def _shared_with(trained: Collection[int], parts: Mapping[str, Dataset]) -> list[str]:
    """A sentence on each split to score on that has texts of these marks, and on a test that has validation texts."""
    chosen_by = {*parts["validation"][_MARK][:]} if "validation" in parts else set()
    others = {"validation": {"training": trained}, "test": {"training": trained, "validation": chosen_by - {*trained}}}
    doubts = []
    for split in (name for name in parts if name != "train"):
        marks = parts[split][_MARK][:]
        for other, known in others[split].items():
            if shared := sum(mark in known for mark in marks):
                what = f"{shared:,} of {counted(len(marks), f'{split} text')}"
                doubts.append(f"{what} also in the {other} data: scores on them say little.")
    return doubts


def _choose_rows(parts: dict[str, Dataset], labels: Labels, options: Options) -> tuple[dict[str, Dataset], list[str]]:
    """The splits with the rows to train on and to validate on, and how these were chosen, in words."""
    facts = []
    if "validation" not in parts and options.validation_share:
        whole = parts["train"]
        marks = whole[_MARK][:]
        pairs = _join_pairs(marks, texts_of(whole))
        parts = _set_aside(parts, pairs, labels, options.validation_share)
        together = _TOGETHER if pairs != marks else ""
        facts.append(f"{len(parts['validation']):,} of them set aside for validation{together}")
    if options.max_rows is not None and len(parts["train"]) > options.max_rows:
        kept = whole_pairs(texts_of(parts["train"]), options.max_rows)
        parts = {**parts, "train": parts["train"].select(kept)}
        together = _TOGETHER if kept != list(range(options.max_rows)) else ""
        facts.append(f"the first {len(kept):,} training rows used{together}")
    return parts, [*facts, f"{counted(len(parts['train']), 'row')} to train on"]


def _set_aside(parts: dict[str, Dataset], marks: Sequence[int], labels: Labels, share: float) -> dict[str, Dataset]:
    """The splits, with a share of the training rows, which have these marks, to validate on; see `choose_texts`."""
    whole = parts["train"]
    classes = None if labels.problem_type == "regression" else labels_of(whole)
    held = choose_texts(marks, classes, share)
    is_held = np.array([mark in held for mark in marks])
    rows = whole.with_format("arrow")[:]
    sides = {"train": ~is_held, "validation": is_held}  # filtered: datasets looks a selection up row by row
    of_training = {split: Dataset(rows.filter(side), info=whole.info) for split, side in sides.items()}
    return of_training | {split: part for split, part in parts.items() if split != "train"}


def _in_standard_units(labels: Labels, column: str, targets: list[Any]) -> Labels:
    """The labels with mean and deviation of the training rows' numbers."""
    refuse_far_from_zero(column, targets)
    mean, std = standard_units(targets)
    return replace(labels, mean=mean, std=std)


def _usable_rows(
    split: str,
    table: Table,
    texts: tuple[list[str], ...],
    numbers: list[Any] | None,
    labels: Labels,
    options: Options,
) -> Dataset:
    """The rows of a split that have a label, and with `skip_missing` those that have a text, or both of a pair."""
    blank = [row for row, cells in enumerate(zip(*texts, strict=True)) if any(map(is_missing, cells))]
    if not options.skip_missing:
        table.refuse_missing(split, blank, "text", "no pair" if len(texts) > 1 else "none")
    unlabelled = [row for row, number in enumerate(numbers or ()) if number is None]
    dropped = {*blank, *unlabelled}
    kept = [row for row in range(len(table)) if row not in dropped]
    if not kept:
        raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
    columns: dict[str, Any] = {
        **dict(zip(TEXTS, texts, strict=False)),
        LINE: list(table.numbers),
        _MARK: marks_of(*texts),
    }
    kinds: dict[str, Any] = {name: Value("string") for name in columns} | {LINE: Value("int64"), _MARK: Value("uint64")}
    if numbers is not None:
        columns["labels"], kinds["labels"] = numbers, _TARGETS[labels.problem_type]
    features = Features(kinds)
    rows = pa.Table.from_pydict(columns, schema=features.arrow_schema)
    return Dataset(rows.take(kept) if dropped else rows, info=DatasetInfo(features=features))


def _check_labels_vary(targets: list[Any], labels: Labels, are_listed: bool) -> list[str]:
    """Doubts of labels that all or no training rows have; refuses them where several may apply and none is listed."""
    if labels.problem_type == "regression":
        return []
    names = labels.names
    total = len(targets)
    several = labels.problem_type == "multi_label_classification"
    counts = np.sum(targets, axis=0) if several else np.bincount(targets, minlength=len(names))
    odd = [name for name, count in zip(names, counts, strict=True) if count in (0, total)]
    if not several and total in counts:
        what = f"All {total} examples that are left to train on are of one class, {names[targets[0]]!r}"
        way_out = f"a greater {spell('max_rows')}, or the right column with {spell('label_column')}"
        raise UserError(f"{what}. Give others, {way_out}.")
    which = f"{'All or none' if several else 'None'} of the {total} training rows have the label"
    what = f"{which} {', '.join(map(repr, odd[:5]))}: nothing"
    if several and odd and not are_listed:
        way_out = f"Give other rows, or list all: {spell('label_names', ','.join(names))}."
        raise UserError(f"{what} can be learned of it. {way_out}")
    return [f"{what} is learned of it."] if odd else []


# ---- equal texts on one side -----------------------------------------------------------------------------------------


def _normalized(text: str) -> str:
    """The text with one space for each run of white space, one form of each character (NFKC), and no case."""
    return " ".join(normalize("NFKC", text).casefold().split())


def marks_of(*texts: Iterable[str]) -> list[int]:
    """A number of 64 bits for each text, or each pair of texts; equal texts have equal marks.

    Texts are equal that differ in case, white space or forms of characters alone (NFKC).
    """
    marks = []
    for parts in zip(*texts, strict=True):
        joined = "\x1f".join(map(_normalized, parts))
        marks.append(int.from_bytes(blake2b(joined.encode(errors="surrogatepass"), digest_size=8).digest()))
    return marks


def _join_pairs(marks: list[int], texts: Sequence[Sequence[str]]) -> list[int]:
    """The marks of texts, the least of them for all of the same words, in whatever order these stand.

    Halves of a pair that differ in order alone ask one question, of which none is to be left out, or learned.
    """
    words = [
        tuple(tuple(sorted(_WORD.findall(_normalized(text)))) for text in parts) for parts in zip(*texts, strict=True)
    ]
    groups: dict[Hashable, set[int]] = defaultdict(set)
    for mark, of_row in zip(marks, words, strict=True):
        groups[of_row if any(of_row) else mark].add(mark)
    least = {min(group): group for group in groups.values() if len(group) <= _LARGEST_GROUP}
    shared = {mark: number for number, group in least.items() for mark in group}
    return [shared.get(mark, mark) for mark in marks]


def whole_pairs(texts: Sequence[Sequence[str]], most: int, draw: random.Random | None = None) -> list[int]:
    """The first rows, or drawn ones, at most so many; texts of the same words come together (see `_join_pairs`).

    Args:
        texts: the first texts, or the first and the second ones.
        most: so many rows. Where a pair no longer fits, rows after it may.
        draw: draws them. None: the first ones.

    Raises:
        UserError: no such group has so few rows.
    """
    marks = marks_of(*texts)
    pairs = _join_pairs(marks, texts)
    paired = {pair for mark, pair in zip(marks, pairs, strict=True) if mark != pair}
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row, mark in enumerate(pairs):
        groups[mark if mark in paired else f"row {row}"].append(row)
    ordered = list(groups.values())
    if draw is not None:
        draw.shuffle(ordered)
    kept: list[int] = []
    for rows in ordered:
        if len(kept) + len(rows) <= most:
            kept += rows
    if not kept:
        least = min(map(len, ordered))
        raise UserError(
            f"{most:,} of the rows are too few: rows of the same words come together, here at least {least:,}."
        )
    return sorted(kept)


def _repetitions(part: Dataset, marks: Sequence[int], table: Table) -> list[str]:
    """Sentences on rows with the text of an earlier one: with the same label, counted; with another one, listed.

    Args:
        part: the rows that are trained on.
        marks: of their texts.
        table: of which they are rows.
    """
    frame = pd.DataFrame({"mark": marks, "label": list(map(str, part["labels"][:]))})
    distinct = frame.drop_duplicates()
    said = []
    if copies := len(frame) - len(distinct):
        said.append(f"{counted(copies, 'train row')} with the text and the label of an earlier one.")
    contradictory = distinct[distinct["mark"].duplicated(keep=False)]
    if len(contradictory):
        groups = contradictory.groupby("mark", sort=False).groups.values()
        lines = part[LINE]
        spelt = listed([table.at([lines[int(row)] for row in rows[:3]], len(rows)) for rows in groups])
        said.append(f"{counted(len(groups), 'training text')} with different labels in different rows: {spelt}.")
    return said


def choose_texts(marks: Sequence[int], labels: Sequence[Any] | None, share: float) -> set[int]:
    """The marks of the texts to validate on: all rows of a text on one side, in every run, each label in its share.

    The texts with the least marks are chosen. Of each label one text stays to train on. As far as the rows suffice,
    each label has one to validate on; at least two labels do, if two have more than one text.

    Args:
        marks: of the text of each row.
        labels: of each row, in the model's form: a text counts for that of its first row, of several for the rarest.
            None: there are none, or numbers.
        share: of all rows, from 0 to 1.

    Raises:
        UserError: no text can be spared.
    """
    sizes = Counter(marks)
    total = len(marks)
    groups = _texts_by_label(marks, labels or [None] * total)
    spare = [texts[:-1] for texts in groups.values() if len(texts) > 1]
    if not spare:
        what = f"There is one training text of each of {len(groups)} labels (in {total:,} rows) and no validation data"
        way_out = f"Give more texts of a label; or {spell('validation')}; or {spell('validation_share', 0)}"
        raise UserError(f"{what}. {way_out}; or, for numbers, {spell('problem_type', 'regression')}.")
    least = min(2, len(spare)) if len(groups) > 1 else min(2, total // 4)
    wanted = max(math.ceil(round(total * share, 6)), least, 1)
    chosen: set[int] = set()
    rows = 0
    # In proportion: each label once, the largest first, then the one furthest behind its share (Sainte-Lague).
    turns = (
        (turn > 0, -len(texts) / (2 * turn + 1), number, mark)
        for number, texts in enumerate(spare)
        for turn, mark in enumerate(texts)
    )
    for *_, mark in sorted(turns):
        if rows >= wanted:
            break
        if rows + sizes[mark] <= wanted or (not chosen and sizes[mark] < total):
            chosen.add(mark)
            rows += sizes[mark]
    return chosen


def _texts_by_label(marks: Sequence[int], labels: Sequence[Any]) -> dict[Hashable, list[int]]:
    """The marks of the texts of each label, in order; see `choose_texts`."""
    of_text: dict[int, Any] = dict(zip(reversed(marks), reversed(labels), strict=True))
    if isinstance(labels[0], list):
        several = {mark: np.flatnonzero(label).tolist() for mark, label in of_text.items()}
        counts = Counter(chain.from_iterable(several.values()))
        of_text = {mark: min(them, key=lambda n: (counts[n], n), default=None) for mark, them in several.items()}
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for mark, label in sorted(of_text.items()):
        groups[label].append(mark)
    return groups


# ---- token ids ------------------------------------------------------------------------------------------------------


def encode(prepared: PreparedData, tokenizer: Any, max_length: int) -> tuple[dict[str, Dataset], dict[str, int]]:
    """The splits as token ids and, where there are any, `labels`; and how many texts of each were cut.

    Args:
        prepared: the data.
        tokenizer: of transformers.
        max_length: longer inputs are cut to this many tokens.
    """
    encoded, cut = {}, {}
    for split, part in prepared.splits.items():
        encoded[split], cut[split] = encode_texts(texts_of(part), tokenizer, max_length, split=split)
        if "labels" in part.column_names:
            encoded[split] = concatenate_datasets([encoded[split], part.select_columns("labels")], axis=1)
    return encoded, cut


def encode_texts(
    texts: Sequence[Sequence[str]], tokenizer: Any, max_length: int, *, split: str = "train"
) -> tuple[Dataset, int]:
    """Token ids of texts, and how many were cut.

    Args:
        texts: `(first,)`, or `(first, second)` for pairs.
        tokenizer: of transformers.
        max_length: longer inputs are cut to this many tokens.
        split: the name of the split, for the progress bar.
    """
    chunks: list[pa.Table] = []
    cut = 0
    count = len(texts[0])
    for start in tqdm(range(0, count, _CHUNK), f"Tokenizing {split}", leave=False, disable=None, delay=2):
        batch = tokenizer(
            *(list(column[start : start + _CHUNK]) for column in texts), truncation=True, max_length=max_length
        )
        cut += len(cut_rows(batch, max_length))
        chunks.append(pa.table({name: pa.array(values, _IDS) for name, values in batch.items()}))
    return Dataset(pa.concat_tables(chunks)), cut
