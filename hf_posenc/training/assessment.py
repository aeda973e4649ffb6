"""A classifier's scores beside baselines and by class, its errors, and warnings; shown as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
MOST_CLASSES_DRAWN = 30
ERRORS_IN_TERMINAL = 5
TEXT_SHOWN = 160
_NAMES = {
    "majority": "majority",
    "word_pairs": "word pairs",
    "word_labels": "most frequent label of each word",
    "none": "without positions",
}
LOWER_IS_BETTER = ("mse",)


@dataclass
class Assessment:
    """What results say of a trained classifier beside its metrics; `to_dict` is in `results.json`."""

    split: str
    """`validation` or `test`: the split that was assessed."""
    metric: str
    score: float
    baselines: dict[str, float]
    """The same metric of `majority`, `word_pairs` (`word_labels` of words) and, where it was trained too, `none`."""
    warnings: list[str] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    """`label`, `precision`, `recall`, `f1`, `examples` of each class; empty for a regression."""
    confusion: list[list[int]] | None = None
    """Examples by right label (rows) and predicted label (columns); None for several labels per text and numbers."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The most confident wrong answers: `row` of the file (a csv's header is row 1), `text`,
    `label`, `predicted`, `probability`."""
    picture: str | None = None
    """File name of the confusion matrix's picture, beside the card."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def draw(self, folder: Path) -> None:
        """Draws the confusion matrix, if it has at most `MOST_CLASSES_DRAWN` classes and matplotlib is installed."""
        if self.confusion is None or len(self.classes) > MOST_CLASSES_DRAWN or find_spec("matplotlib") is None:
            return
        self.picture = "confusion_matrix.png"
        names = [short(row["label"], 20) for row in self.classes]
        _confusion_figure(np.array(self.confusion), names, self.split).savefig(folder / self.picture, dpi=120)

    def __rich__(self) -> RenderableType:
        """Tables for the terminal; warnings last, where they are seen."""
        parts: list[RenderableType] = [self._standing()]
        if self.classes:
            parts.append(self._class_table())
        if self.shows_confusion():
            parts.append(self._confusion_table())
        if self.errors:
            parts.append(self._error_table())
        parts += [f"[yellow]Warning:[/yellow] {escape(warning)}" for warning in self.warnings]
        return Group(*parts)

    def show(self, console: Console | None = None) -> None:
        """Prints it."""
        (console or Console()).print(self, highlight=False)

    def _standing(self) -> Table:
        table = Table(f"{self.split} data", title="Where it stands", title_justify="left")
        table.add_column(self.metric, justify="right")
        table.add_row("this model", f"{self.score:.4f}", style="bold")
        for name, score in self.baselines.items():
            table.add_row(_name(name, self.metric), f"{score:.4f}")
        return table

    def _class_table(self) -> Table:
        table = Table("class", title="Class by class", title_justify="left")
        for name in ("precision", "recall", "f1", "examples"):
            table.add_column(name, justify="right")
        for row in self.classes[:MOST_CLASSES_SHOWN]:
            shares = (f"{row[name]:.3f}" for name in ("precision", "recall", "f1"))
            table.add_row(escape(short(row["label"], 30)), *shares, f"{row['examples']:,}")
        if len(self.classes) > MOST_CLASSES_SHOWN:
            table.add_row(f"... {len(self.classes) - MOST_CLASSES_SHOWN} more in results.json")
        return table

    def _confusion_table(self) -> Table:
        assert self.confusion is not None
        table = Table("right \\ predicted", title="Confusion matrix", title_justify="left")
        width = 16 if len(self.classes) < 4 else 10  # for 80 columns
        for row in self.classes:
            table.add_column(escape(short(row["label"], width)), justify="right")
        for row, counts in zip(self.classes, self.confusion, strict=True):
            table.add_row(escape(short(row["label"], 16)), *(f"{count:,}" for count in counts))
        return table

    def _error_table(self) -> Table:
        table = Table("row", "text", "right", "predicted", title=self.error_title(), title_justify="left")
        table.columns[1].ratio = 1
        for error in self.errors[:ERRORS_IN_TERMINAL]:
            text = " / ".join(filter(None, (error["text"], error.get("text_pair"))))
            table.add_row(str(error["row"]), *(escape(_plain(value)) for value in (text, error["label"], _said(error))))
        if len(self.errors) > ERRORS_IN_TERMINAL:
            table.add_row("...", f"{len(self.errors) - ERRORS_IN_TERMINAL} more in results.json")
        return table

    def error_title(self) -> str:
        """What the listed errors are."""
        return "Largest errors" if self.metric in LOWER_IS_BETTER else "Most confident errors"

    def shows_confusion(self) -> bool:
        """Whether there is a confusion matrix of not too many classes."""
        return self.confusion is not None and len(self.classes) <= MOST_CLASSES_SHOWN

    # Rows of the tables in the model card.

    def score_rows(self) -> list[tuple[str, str]]:
        """The model's score and those of the baselines."""
        scores = {"this model": self.score} | {_name(k, self.metric): v for k, v in self.baselines.items()}
        return [(name, f"{score:.4f}") for name, score in scores.items()]

    def class_rows(self) -> list[tuple[str, ...]]:
        """Precision, recall, F1 and number of examples of the first classes."""
        return [
            (_cell(row["label"]), *(f"{row[k]:.3f}" for k in ("precision", "recall", "f1")), str(row["examples"]))
            for row in self.classes[:MOST_CLASSES_SHOWN]
        ]

    def confusion_rows(self) -> tuple[list[str], list[list[Any]]]:
        """Head and rows of the confusion matrix."""
        names = [_cell(row["label"]) for row in self.classes]
        return ["", *names], [[name, *row] for name, row in zip(names, self.confusion or (), strict=True)]

    def error_rows(self) -> list[tuple[Any, ...]]:
        """The most confident errors."""
        texts = (" / ".join(filter(None, (error["text"], error.get("text_pair")))) for error in self.errors)
        return [
            (error["row"], *map(_cell, (text, error["label"], _said(error))))
            for text, error in zip(texts, self.errors, strict=True)
        ]


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


def _name(baseline: str, metric: str) -> str:
    return "mean" if baseline == "majority" and metric in LOWER_IS_BETTER else _NAMES.get(baseline, baseline)


def _said(error: Mapping[str, Any]) -> str:
    """The prediction with its probability."""
    sure = f" ({error['probability']:.2f})" if "probability" in error else ""
    return _plain(error["predicted"]) + sure


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    """A short text, escaped."""
    return plain(short(_plain(value), TEXT_SHOWN))


def short(text: str, length: int) -> str:
    """Text of one line, cut to a length."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def to_beat(baselines: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """One line with the baselines' scores, on the validation data if there is any."""
    key = next(f"{prefix}_{metric}" for prefix in ("eval", "test") if f"{prefix}_{metric}" in baselines["majority"])
    scores = ", ".join(f"{_name(name, metric)} {scores[key]:.3f}" for name, scores in baselines.items())
    return f"To beat: {scores} ({'test' if key.startswith('test') else 'validation'} {metric})"
