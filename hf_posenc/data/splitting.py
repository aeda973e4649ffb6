"""Which rows are validated on, equal texts on one side; repeated texts, and texts that two splits share."""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import pandas as pd

from ..errors import UserError


def mark_of(*texts: str) -> int:
    """A number of 64 bits for a text, or for a pair of texts; equal texts have equal marks.

    Texts are equal that differ in case, white space or forms of characters alone (NFKC).
    """
    joined = "\x1f".join(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    return int.from_bytes(blake2b(joined.encode(errors="surrogatepass"), digest_size=8).digest())


def marks_of(*texts: Iterable[str]) -> list[int]:
    """The mark of each text, or of each pair."""
    return list(map(mark_of, *texts))


def repeated(marks: Sequence[int], labels: Sequence[Any]) -> tuple[int, int]:
    """How many rows repeat an earlier text with its label, and how many texts stand there with different labels."""
    rows = pd.DataFrame({"mark": marks, "label": list(map(str, labels))})
    distinct = rows.drop_duplicates()
    return len(rows) - len(distinct), int((distinct["mark"].value_counts() > 1).sum())


def choose_texts(
    marks: Sequence[int],
    labels: Sequence[Any] | None,
    share: float,
    problem_type: str = "single_label_classification",
) -> set[int]:
    """The marks of the texts to validate on: all rows of a text on one side, in every run, each label in its share.

    The texts with the least marks are chosen. Of each label one text stays to train on. As far as the rows suffice,
    each label has one to validate on; at least two labels do, if two have more than one text.

    Args:
        marks: of the text of each row.
        labels: of each row, in the model's form; rows with several count for the rarest. None: there are none.
        share: of all rows, from 0 to 1.
        problem_type: the task.

    Raises:
        UserError: no text can be spared.
    """
    sizes, total = Counter(marks), len(marks)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for mark, label in sorted(_strata(marks, labels, problem_type).items()):
        groups[label].append(mark)
    spare = [texts[:-1] for texts in groups.values() if len(texts) > 1]
    if not spare:
        what = "one training text" if len(sizes) == 1 else f"one training text of each of {len(groups)} labels"
        of_rows = f" (in {total:,} rows)" if total > len(sizes) else ""
        raise UserError(
            f"There is {what}{of_rows} and no validation data. Give --validation, train without any "
            "(--validation-share 0), or, where labels are numbers to be predicted, give --task regression."
        )
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


def _strata(marks: Sequence[int], labels: Sequence[Any] | None, problem_type: str) -> dict[int, Any]:
    """The label of the first row of each text; of several the rarest."""
    if labels is None or problem_type == "regression":
        return dict.fromkeys(marks)
    first = dict(zip(reversed(marks), reversed(labels), strict=True))
    if problem_type != "multi_label_classification":
        return first
    several = {mark: [number for number, on in enumerate(label) if on] for mark, label in first.items()}
    counts = Counter(number for numbers in several.values() for number in numbers)
    return {mark: min(numbers, key=lambda n: (counts[n], n), default=None) for mark, numbers in several.items()}
