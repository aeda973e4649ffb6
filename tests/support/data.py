"""What the tests of the data share: files, tables, and what a training would be given of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_posenc import UserError
from hf_posenc.data.columns import Columns
from hf_posenc.data.preparing import Known, prepare
from hf_posenc.data.reading import read_file
from hf_posenc.data.sources import read
from hf_posenc.data.tables import as_table
from hf_posenc.options import Options

__all__ = ["Columns", "Known", "Options", "UserError", "as_table", "prepare", "read", "read_file"]
"""Names of the package that the tests of this folder use, imported here alone."""


def write_file(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def table(**columns: list[Any]) -> Any:
    """Columns as a table."""
    return as_table(Dataset.from_dict(columns), "the file")


def texts(count: int) -> list[str]:
    """Distinct ones."""
    return [f"the box arrived late {row}" for row in range(count)]


def rows_with(labels: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows of distinct texts with these labels."""
    return [{"text": text, "label": label} for text, label in zip(texts(len(labels)), labels, strict=True)]


def rows_of(table: Any) -> list[dict[str, Any]]:
    return table.rows.to_pylist()


def rows_in(path: object, **options: Any) -> list[dict[str, Any]]:
    return rows_of(read_file(str(path), Options(**options)))


def prepared(train_file: object, known: Known | None = None, **options: Any) -> Any:
    """What a training would be given of a file; unless a share is named, no rows are set aside."""
    data = Options(data=str(train_file), **{"validation_share": 0, **options})
    return prepare(read(data), data, known)
