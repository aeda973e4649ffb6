"""Texts and labels in memory: the same from every library, by the names of columns, or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from hf_posenc.data.memory import labels_in_memory, texts_in_memory
from hf_posenc.data.texts import read_training_texts
from tests.support.data import Columns, Options, UserError

PAIRS = {"text_pair": ["one", "two", None], "id": [7, 8, 9], "text": ["a", "b", "c"]}
"""Three rows in three columns: read by row or by column, they differ."""


def polars(kind: str, *arguments: Any) -> Any:
    return getattr(pytest.importorskip("polars", reason="polars isn't installed"), kind)(*arguments)


class OnlyArrow:
    """A table of a library that speaks Arrow's interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


TABLES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas with another index": lambda columns: pd.DataFrame(columns, index=[5, 3, 5]),
    "pandas of categories": lambda columns: pd.DataFrame(columns).astype("category"),
    "polars": lambda columns: polars("DataFrame", columns),
    "pyarrow": pa.table,
    "pyarrow, with an index of pandas": lambda columns: pa.Table.from_pandas(
        pd.DataFrame(columns).set_index("text_pair" if "text_pair" in columns else "id")
    ),
    "pyarrow batch": pa.record_batch,
    "pyarrow of dictionaries": lambda columns: pa.table(
        {n: pa.array(c).dictionary_encode() for n, c in columns.items()}
    ),
    "datasets": Dataset.from_dict,
    "datasets with a format": lambda columns: Dataset.from_dict(columns).with_format("numpy", columns=["id"]),
    "datasets, rows chosen": lambda columns: Dataset.from_dict(columns).select([2, 1, 0]).select([2, 1, 0]),
    "datasets, streamed": lambda columns: Dataset.from_dict(columns).to_iterable_dataset(),
    "any speaker of Arrow": lambda columns: OnlyArrow(pa.table(columns)),
    "lists by column": dict,
    "arrays by column": lambda columns: {name: np.array(cells, dtype=object) for name, cells in columns.items()},
    "rows by column": lambda columns: Dataset.from_dict(columns).to_list(),
}


@pytest.mark.parametrize("library", TABLES)
def test_a_table_is_read_by_the_names_of_its_columns(library: str) -> None:
    expected = [("a", "one"), ("b", "two"), ("c", "")]
    assert texts_in_memory(TABLES[library](PAIRS)) == (["text", "text_pair"], expected)
    trained = Columns(("text_pair", "text"))
    assert texts_in_memory(TABLES[library](PAIRS), trained)[1] == [(second, first) for first, second in expected]
    joined = Columns(("text", "id"), separator="/")
    assert texts_in_memory(TABLES[library](PAIRS), joined)[1] == [("a/7",), ("b/8",), ("c/9",)]
    with pytest.raises(UserError, match="has no 'body', but .*text.* The model takes title, body"):
        texts_in_memory(
            TABLES[library]({"title": ["x"] * 3, "id": [1, 2, 3], "text_pair": ["z"] * 3}), Columns(("title", "body"))
        )
    if library not in ("datasets, streamed", "rows by column"):
        assert read_training_texts(TABLES[library](PAIRS)) == ["a one", "b two", "c "]
        assert read_training_texts(TABLES[library](PAIRS), Options(text_column="text_pair")) == ["one", "two"]


COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "NumPy": np.array,
    "NumPy objects": lambda cells: np.array(cells, dtype=object),
    "pandas": pd.Series,
    "polars": lambda cells: polars("Series", cells),
    "pyarrow": pa.array,
    "pyarrow chunks": lambda cells: pa.chunked_array([cells[:1], cells[1:]]),
    "datasets": lambda cells: Dataset.from_dict({"text": cells})["text"],
}


@pytest.mark.parametrize("library", COLUMNS)
def test_a_column_is_a_list_of_texts_or_of_labels(library: str) -> None:
    assert texts_in_memory(COLUMNS[library](["a", "b"])) == ([], [("a",), ("b",)])
    for labels in (["x", "y"], [0, 1], [0.5, 1.0], [True, False]):
        assert np.asarray(labels_in_memory(COLUMNS[library](labels))).tolist() == labels
    assert read_training_texts(COLUMNS[library](["a", " ", "b"])) == ["a", "b"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "datasets", "any speaker of Arrow"])
def test_the_columns_of_a_table_of_labels_name_them(library: str) -> None:
    labels = labels_in_memory(
        TABLES[library]({"b": [1, 0], "a": [1, 1]}) if library != "pandas" else pd.DataFrame({"b": [1, 0], "a": [1, 1]})
    )
    assert (list(labels.columns), labels.to_numpy().tolist()) == (["b", "a"], [[1, 1], [0, 1]])


JOINED = Columns(("title", "body"), ("stars",), " / ")


@pytest.mark.parametrize(
    ("cells", "known", "answer"),
    [
        ({"text": "a"}, None, ("a",)),
        ({"text": "a", "text_pair": "b"}, None, ("a", "b")),
        ({"body": "b", "title": 5, "id": 1}, JOINED, ("5 / b",)),
        ({"b": "x", "a": "y"}, Columns(("a", "b")), ("y", "x")),
        ({"title": "a", "body": 2001.0}, JOINED, ("a / 2001",)),  # as pandas has whole numbers beside a gap
        ({"title": "a", "body": np.float32(2)}, JOINED, ("a / 2",)),
        ({"title": "a", "body": 0.5}, JOINED, ("a / 0.5",)),
        ({"title": "a", "body": np.int64(7)}, JOINED, ("a / 7",)),
        ({"title": "a", "body": 1e300}, JOINED, ("a / 1e+300",)),
        ({"text": "a"}, JOINED, ("a",)),  # already joined
        ({"text": "a", "id": 1}, JOINED, ("a",)),
        ({"text": "a", "id": 1}, Columns(("sentence",)), ("a",)),
        ({"text": "a", "text_pair": "b", "id": 1}, Columns(("question", "answer")), ("a", "b")),
    ],
)
def test_cells_by_column_are_one_input(cells: Any, known: Any, answer: Any) -> None:
    assert texts_in_memory([cells], known)[1] == [answer]


MISSING = [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT]


@pytest.mark.parametrize("nothing", MISSING, ids=repr)
@pytest.mark.parametrize(
    "form", [list, pd.Series, lambda cells: pd.DataFrame({"text": cells}), lambda cells: [{"text": c} for c in cells]]
)
def test_what_is_missing_is_an_empty_text(form: Any, nothing: Any) -> None:
    for known in (None, Columns(("text",))):
        assert texts_in_memory(form(["a", nothing, "b"]), known)[1] == [("a",), ("",), ("b",)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "a", "text_pair": "b"}, "X is one row. Give a list of rows"),
        (
            DatasetDict(train=Dataset.from_dict({"text": ["a"]})),
            r"several tables, 'train'. Give one of them: X\['train'\]",
        ),
        ({"train": pd.DataFrame({"text": ["a"]})}, "several tables, 'train'"),
        ({"text": ["a"], "text_pair": ["b", "c"]}, "columns of different lengths: 'text' 1 and 'text_pair' 2"),
        (5, "X is 5, a int. Give a list of texts"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "X has two columns 'text'"),
        (pd.DataFrame({"text": [b"a"]}), r"Row 0 is \(b'a',\). Give a string"),
        (pd.DataFrame({"title": ["a"], "text": ["b"]}), r"has 'title' beside 'text'. .* X\['text'\]; where 'title' is"),
        ([{"text": "a", "id": 1, "body": None}, {"text": "a", "id": 1, "body": "b"}], "X has 'body' beside 'text'"),
        (pa.table({"id": [1], "title": ["a"]}), r"Row 0 is \(1, 'a'\). Give a string"),
        (pa.table({"text": pa.array([], pa.string())}), "X has no texts"),
        ([{"txt": "a"}, {"text": "c"}], "Row 0 has no 'text', but 'txt'. Give all of them."),
        (["a", "b\ud800"], r"Row 1 holds '\\ud800', one half of a surrogate pair"),
        (pd.DataFrame([["a", "b"], ["c", "\udfff"]], dtype=object), r"Row 1 holds '\\udfff', one half"),
        ([{"text": "\ud800"}], r"Row 0 holds '\\ud800', one half"),
    ],
)
def test_what_could_be_read_in_two_ways_or_not_at_all_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        texts_in_memory(given, trains=True)


def test_strings_beside_the_text_are_left_out_where_nothing_is_trained() -> None:
    assert texts_in_memory(pd.DataFrame({"id": ["x1"], "text": ["a b"]}))[1] == [("a b",)]
