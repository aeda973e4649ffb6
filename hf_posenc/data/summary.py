"""What a run says of its data: what was read, used, left out and set aside, and what to doubt."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .columns import Columns
from .labels import Labels
from .table import Table, counted


@dataclass
class SplitSummary:
    """One split."""

    read: str
    """Rows, lines, joined rows and empty lines of its files."""
    rows: int = 0
    """Rows that are used."""
    without_label: int = 0
    without_text: int = 0
    left_out: int = 0
    """Rows without label or text, with --skip-missing."""
    cut: int = 0
    """Rows beyond --max-...-samples."""


@dataclass
class DataSummary:
    """The data of a run, in words for the terminal, the card and `results.json`."""

    columns: str
    """Text, label and unused columns."""
    labels: str = ""
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    set_aside: int = 0
    """Training rows to validate on, where there is no validation data."""
    repeated: int = 0
    """Training rows that repeat an earlier text with its label."""
    contradictory: int = 0
    """Training texts that stand there with different labels."""
    shared: dict[str, int] = field(default_factory=dict)
    """Rows of other splits whose text stands in the training data too."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, columns: Columns, labels: Labels, tables: Mapping[str, Table]) -> "DataSummary":
        """Of splits that have been read."""
        first, in_words = next(iter(tables.values())), "numbers to predict"
        if labels.problem_type != "regression":
            more = ", ..." * (len(labels.names) > 5)
            in_words = f"{len(labels.names)} labels ({', '.join(labels.names[:5])}{more})"
        notes = list(dict.fromkeys(note for table in tables.values() for note in table.tally.notes))
        splits = {split: SplitSummary(str(table.tally)) for split, table in tables.items()}
        return cls(columns.sentence(first.names), in_words, splits, notes=notes)

    def line(self) -> str:
        """All in one line."""
        parts = [self.columns, *filter(None, [self.labels])]
        for split, summary in self.splits.items():
            extra = f", {summary.left_out:,} left out" if summary.left_out else ""
            if summary.cut:
                extra += f", the first {summary.rows:,} used"
            parts.append(f"{split} {summary.read}{extra}")
        if self.set_aside:
            parts.append(f"{self.set_aside:,} of them set aside for validation")
        return "; ".join(parts) + "."

    def doubts(self) -> list[str]:
        """What may make scores say less than they seem to."""
        doubts = list(self.notes)
        for split, summary in self.splits.items():
            if summary.without_label:
                rows = counted(summary.without_label, f"{split} row")
                doubts.append(f"{rows} without a label left out (--skip-missing).")
            if summary.without_text:
                rows = counted(summary.without_text, f"{split} row")
                what = "left out (--skip-missing)" if summary.left_out else "used (--skip-missing leaves such rows out)"
                doubts.append(f"{rows} without a text {what}.")
        if self.repeated:
            doubts.append(f"{counted(self.repeated, 'train row')} with the text and the label of an earlier one.")
        if self.contradictory:
            doubts.append(f"{counted(self.contradictory, 'training text')} with different labels in different rows.")
        for split, count in self.shared.items():
            texts = counted(self.splits[split].rows, f"{split} text")
            doubts.append(f"{count:,} of {texts} also in the training data: scores on them say little.")
        return doubts

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "line": self.line(), "doubts": self.doubts()}
