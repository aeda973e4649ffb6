"""Possible slips in training rows: labels of one row, labels nearly alike, one text with several labels."""

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
from datasets import Dataset

from .labels import Labels
from .tables import LINE, Table, counted, listed


def label_slips(labels: Labels, numbers: Sequence[Any], table: Table) -> list[str]:
    """A sentence that names labels of one row, and those that differ in case, white space or a final full stop alone.

    Args:
        labels: in order.
        numbers: of each row's label, or 0.0 and 1.0 for each label; None: it has none.
        table: the training rows.
    """
    rows: dict[str, list[int]] = {name: [] for name in labels.names}
    for row, value in enumerate(numbers if labels.names else ()):
        marks = enumerate(value) if isinstance(value, list) else [(value, value is not None)]
        for number, is_marked in marks:
            if is_marked:
                rows[labels.names[number]].append(row)
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in labels.names:
        spellings[normalized(name).removesuffix(".").rstrip()].append(name)
    doubtful = [group for group in spellings.values() if len(group) > 1]
    doubtful += [group for group in spellings.values() if len(group) == 1 and len(rows[group[0]]) == 1]
    if not doubtful:
        return []
    spelt = [" and ".join(f"{name!r} ({table.places(rows[name])})" for name in group) for group in doubtful]
    return [f"Labels that may be slips, of one row or nearly alike: {listed(spelt)}."]


def repetitions(part: Dataset, marks: Sequence[int], table: Table) -> list[str]:
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


def normalized(text: str) -> str:
    """A text by which others are the same: without differences in case, white space or forms of characters (NFKC)."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
