"""Columns of text and label: found by name, remembered in a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, Value

from ..errors import UserError
from .cells import as_written, is_csv_data, row_name
from .options import DataArguments

_PAIRS: tuple[tuple[str, ...], ...] = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
_SINGLES = ("text", "sentence", "content", "review", "question")
_LABELS = ("label", "labels")


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
    """The columns that the options name, else a checkpoint's, else those with usual names in any case.

    Args:
        dataset: has the columns.
        data: the options.
        known: those that a checkpoint was trained on; used if the data has them.

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
    check_text(dataset, text)
    if label in text:
        raise UserError(f"Column {label!r} can't be both text and label. Name another with --label_column_name.")
    return Columns(text, label, joined, data.label_delimiter or (known.label_delimiter if known else None))


def check_text(dataset: Dataset, names: Sequence[str]) -> None:
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
    """The column of that name, else the only one that differs in case or outer blanks."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.strip().lower() == wanted.strip().lower()]
    return alike[0] if len(alike) == 1 else None


_OURS = "hf_posenc"


def remember_columns(config: Any, columns: Columns) -> None:
    """Writes the columns of the training data into a model's configuration, which is saved with the weights."""
    noted = {
        "text_column_names": list(columns.text),
        "text_column_delimiter": columns.delimiter,
        "label_column_name": columns.label,
        "label_delimiter": columns.label_delimiter,
    }
    # Every transformers configuration has this field; transformers ignores our key.
    others = getattr(config, "task_specific_params", None)
    config.task_specific_params = {**(others if isinstance(others, dict) else {}), _OURS: noted}


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None if its configuration has none in our form."""
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
    return not is_csv_data(dataset) or any(isinstance(value, str) for value in as_written(dataset[:100][name]))
