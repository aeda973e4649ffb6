"""What a run says of its data: what was read, used, left out and set aside, and what to doubt."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .table import Tally


@dataclass
class SplitSummary:
    """One split."""

    read: str
    """Rows, lines, joined rows and empty lines of its files."""
    rows: int | None = None
    """Rows that are used; None: a stream whose length isn't known."""
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
    def start(cls, columns: str, tallies: Mapping[str, Tally]) -> "DataSummary":
        """Of splits that have been read."""
        notes = list(dict.fromkeys(note for tally in tallies.values() for note in tally.notes))
        return cls(columns, splits={split: SplitSummary(str(tally)) for split, tally in tallies.items()}, notes=notes)

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
        found = list(self.notes)
        for split, summary in self.splits.items():
            if summary.without_label:
                found.append(f"{_rows(summary.without_label, split)} without a label were left out (--skip-missing).")
            if summary.without_text:
                what = (
                    "were left out (--skip-missing)" if summary.left_out else "are used; --skip-missing leaves them out"
                )
                found.append(f"{_rows(summary.without_text, split)} without a text {what}.")
        if self.repeated:
            found.append(f"{_rows(self.repeated, 'train')} repeat an earlier text with its label.")
        if self.contradictory:
            found.append(f"{self.contradictory:,} training texts stand there with different labels.")
        for split, count in self.shared.items():
            rows = self.splits[split].rows
            found.append(
                f"{count:,} of {rows:,} {split} texts stand in the training data too: scores on them say little."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "line": self.line(), "doubts": self.doubts()}


def _rows(count: int, split: str) -> str:
    return f"{count:,} {split} row{'s' * (count != 1)}"


def say_labels(names: Sequence[str], problem_type: str) -> str:
    """The number of labels and the first of them."""
    if problem_type == "regression":
        return "numbers to predict"
    return f"{len(names)} labels ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
