"""A classifier's scores beside baselines and by class, and warnings; shown as tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from ..markdown import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES_SHOWN = 12
"""Tables in the terminal and in the card have this many classes at most; results.json has all."""
MOST_CLASSES_NAMED = 3
"""Columns of a confusion matrix in the terminal are named up to this many classes, else numbered."""
MOST_CLASSES_DRAWN = 30
LABEL_SHOWN = 160
_NAMES = {
    "majority": "majority",
    "words": "words",
    "word_pairs": "word pairs",
}
LOWER_IS_BETTER = ("mse",)
CLASS_HEAD = ("class", "precision", "recall", "f1", "examples")


Row = tuple[str, ...]
Cell = Callable[[str], str]


def _name(baseline: str, metric: str) -> str:
    return "mean" if baseline == "majority" and metric in LOWER_IS_BETTER else _NAMES.get(baseline, baseline)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cell(label: str) -> str:
    """A short label, escaped."""
    return plain(short(label, LABEL_SHOWN))


def short(text: str, length: int) -> str:
    """Text of one line, cut to a length."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


@dataclass
class Assessment:
    """What results say of a trained classifier beside its metrics; in `results.json` as a dictionary."""

    split: str
    """`validation` or `test`: the split that was assessed."""
    metric: str
    score: float
    baselines: dict[str, float]
    """The same metric of `majority`, `words` and `word_pairs`."""
    warnings: list[str] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    """`label`, `precision`, `recall`, `f1`, `examples` of each class, scores None without examples; empty for a
    regression."""
    confusion: list[list[int]] | None = None
    """Examples by right label (rows) and predicted label (columns); None for several labels per text and numbers."""
    picture: str | None = None
    """File name of the confusion matrix's picture, beside the card."""

    def draw(self, folder: Path) -> None:
        """Draws the confusion matrix, if it has at most `MOST_CLASSES_DRAWN` classes and matplotlib is installed."""
        if self.confusion is None or len(self.classes) > MOST_CLASSES_DRAWN or find_spec("matplotlib") is None:
            return
        self.picture = "confusion_matrix.png"
        names = [short(row["label"], 20) for row in self.classes]
        _confusion_figure(np.array(self.confusion), names, self.split).savefig(folder / self.picture, dpi=120)

    def __rich__(self) -> RenderableType:
        """Tables for the terminal; warnings last, where they are seen."""
        parts: list[RenderableType] = [
            _table("Where it stands", (f"{self.split} data", self.metric), self.score_rows(), bold=True)
        ]
        if self.classes:
            rows = self.class_rows(lambda label: escape(short(label, 30)))
            if (more := len(self.classes) - len(rows)) > 0:
                rows.append((f"... {more} more in results.json",))
            parts.append(_table("Class by class", CLASS_HEAD, rows))
        if self.shows_confusion():
            parts.append(self._confusion_table())
        parts += [f"[yellow]Warning:[/yellow] {escape(warning)}" for warning in self.warnings]
        return Group(*parts)

    def _confusion_table(self) -> Table:
        """The confusion matrix for 80 columns: more than a few classes are numbered at the top."""
        if len(self.classes) <= MOST_CLASSES_NAMED:
            (_, *names), rows = self.confusion_rows(lambda label: escape(short(label, 16)))
            return _table("Confusion matrix", ("right \\ predicted", *names), rows)
        numbers = [str(number) for number, _ in enumerate(self.classes, 1)]
        counts = [[str(count) for count in row] for row in self.confusion or ()]
        width = max(8, min(20, 79 - sum(1 + max(map(len, column)) for column in zip(numbers, *counts, strict=True))))
        names = [short(f"{number} {row['label']}", width) for number, row in zip(numbers, self.classes, strict=True)]
        rows = [(escape(name), *row) for name, row in zip(names, counts, strict=True)]
        table = _table("Confusion matrix", (short("right \\ predicted", width), *numbers), rows)
        table.box, table.padding, table.pad_edge = None, (0, 0, 0, 1), False
        return table

    def show(self, console: Console | None = None) -> None:
        """Prints it."""
        (console or Console()).print(self, highlight=False)

    def shows_confusion(self) -> bool:
        """Whether there is a confusion matrix of not too many classes."""
        return self.confusion is not None and len(self.classes) <= MOST_CLASSES_SHOWN

    # Rows of the tables in the terminal and in the model card; `cell` shortens and escapes labels.

    def score_rows(self) -> list[Row]:
        """The model's score and those of the baselines."""
        scores = {"this model": self.score} | {_name(k, self.metric): v for k, v in self.baselines.items()}
        return [(name, f"{score:.4f}") for name, score in scores.items()]

    def class_rows(self, cell: Cell = _cell) -> list[Row]:
        """Precision, recall, F1 and number of examples of the first classes; without examples a class has no scores."""
        return [
            (cell(row["label"]), *map(_share, (row["precision"], row["recall"], row["f1"])), f"{row['examples']:,}")
            for row in self.classes[:MOST_CLASSES_SHOWN]
        ]

    def confusion_rows(self, cell: Cell = _cell) -> tuple[list[str], list[Row]]:
        """Head and rows of the confusion matrix."""
        names = [cell(row["label"]) for row in self.classes]
        counts = zip(names, self.confusion or (), strict=True)
        return ["", *names], [(name, *(f"{count:,}" for count in row)) for name, row in counts]


def _table(title: str, head: Sequence[str], rows: Sequence[Row], *, bold: bool = False) -> Table:
    """A table for the terminal; `bold` is of the first row."""
    table = Table(head[0], title=title, title_justify="left")
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    table.rows[0].style = "bold" if bold else None
    return table


def _confusion_figure(counts: np.ndarray, names: Sequence[str], split: str) -> "Figure":
    """A heat map of counts; the colour is the share of the row."""
    from matplotlib.figure import Figure

    side = 2.2 + 0.45 * len(names)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set(xlabel="predicted", ylabel="right", title=f"Confusion matrix, {split} data")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def to_beat(baselines: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """One line with the baselines' scores, on the validation data if there is any."""
    key = next(f"{prefix}_{metric}" for prefix in ("eval", "test") if f"{prefix}_{metric}" in baselines["majority"])
    scores = ", ".join(f"{_name(name, metric)} {scores[key]:.3f}" for name, scores in baselines.items())
    return f"To beat: {scores} ({'test' if key.startswith('test') else 'validation'} {metric})"
