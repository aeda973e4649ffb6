"""What the tests of the data share: files, tables, and the messages of a preparation."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.data import DataArguments, PreparedData, Table, Use, prepare, read_splits


def write_file(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def write_jsonl(path: Path, examples: list[dict[str, Any]]) -> str:
    return write_file(path, "".join(json.dumps(example) + "\n" for example in examples))


def write_csv(path: Path, examples: list[dict[str, Any]], **options: Any) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(examples[0]), **options)
        writer.writeheader()
        writer.writerows(examples)
    return str(path)


def table(is_text: bool = False, classes: Any = None, **columns: list[Any]) -> Table:
    """Columns as a table; with `is_text` as those of a csv."""
    return Table("the file", columns, is_text=is_text, classes=classes or {})


def texts(count: int) -> list[str]:
    """Distinct ones."""
    return [f"the box arrived late {row}" for row in range(count)]


def rows_with(labels: Sequence[Any], name: str = "label") -> list[dict[str, Any]]:
    """Rows of distinct texts with these labels."""
    return [{"text": text, name: label} for text, label in zip(texts(len(labels)), labels, strict=True)]


def rows_of(read: Table) -> list[dict[str, Any]]:
    return [read.row(number) for number in range(len(read))]


def prepared(train_file: str, validate: bool = False, use: Use | None = None, **options: Any) -> PreparedData:
    """What a training would be given of a file."""
    data = DataArguments(train_file=train_file, **options)
    splits = read_splits(data)
    return prepare(splits, data, use or Use(validate=validate, score_test="test" in splits))
