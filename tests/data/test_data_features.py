"""Every type of `datasets` and of Arrow as a column of texts, of labels, or of neither: taken, or refused."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import datasets.features
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import (
    Array2D,
    ClassLabel,
    Dataset,
    DatasetInfo,
    Features,
    LargeList,
    List,
    Sequence,
    Translation,
    Value,
)

from tests.support.data import Columns, Options, UserError, as_table, prepare, read, read_file, rows_of

NO_TEXT, NO_LABEL = "which is no text. Write a string", "which is no label, word or number"
AB = ClassLabel(names=["a", "b"])
SEVERAL = ("a", "b"), [[1.0, 0.0], [0.0, 1.0]]
WORDS = ("x", "y"), [0, 1]
BIG = 2**64 - 1

# feature, cells of two rows, their texts or why there are none, and their labels with numbers or why there are none
FEATURES = [
    (AB, [1, 0], ["b", "a"], (("a", "b"), [1, 0])),
    *((kind(AB), [[0], [1]], NO_TEXT, SEVERAL) for kind in (List, LargeList, Sequence)),
    (List(AB, length=1), [[0], [1]], NO_TEXT, SEVERAL),
    (List(Value("string")), [["a"], ["b"]], NO_TEXT, SEVERAL),
    (LargeList(Value("large_string")), [["a"], ["b"]], NO_TEXT, SEVERAL),
    (List(List(Value("int64"))), [[[1]], [[2]]], NO_TEXT, NO_LABEL),
    (Features({"a": Value("string")}), [{"a": "x"}, {"a": "y"}], NO_TEXT, NO_LABEL),
    (Array2D((1, 1), "int64"), np.ones((2, 1, 1), int), NO_TEXT, NO_LABEL),
    (Translation(["de", "en"]), [{"de": "x", "en": "y"}] * 2, NO_TEXT, NO_LABEL),
    (Value("null"), [None, None], ["", ""], "Missing label in the train data: row 0"),
    (Value("bool"), [True, False], ["True", "False"], (("False", "True"), [1, 0])),
    *((Value(name), [3, 2], ["3", "2"], (("2", "3"), [1, 0])) for name in ("int8", "uint64")),
    *((Value(f"float{n}"), [0.5, 1.0], ["0.5", "1"], ((), [0.5, 1.0])) for n in (16, 32, 64)),
    *(
        (Value(name), [cell] * 2, NO_TEXT, NO_LABEL)
        for name, cell in (
            ("time64[us]", dt.time(1)),
            ("timestamp[ns]", dt.datetime(2020, 1, 2)),
            ("date32", dt.date(2020, 1, 2)),
            ("duration[ns]", dt.timedelta(1)),
            ("decimal128(5, 2)", Decimal("1.10")),
            ("binary", b"x"),
        )
    ),
    *((Value(name), ["x", "y"], ["x", "y"], WORDS) for name in ("string", "large_string", "string_view")),
]
if hasattr(datasets, "Json"):
    FEATURES.append((datasets.Json(), ["x", "y"], ["x", "y"], WORDS))
MEDIA = {"Audio", "Image", "Video", "Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure"}
"""What decodes files."""


def outcome(take):
    """What it returns, or the message with which it refuses."""
    try:
        return take()
    except UserError as error:
        return str(error)


def check(table, text, label):
    texts = outcome(lambda: Columns(("t",)).texts(table)[0])
    assert text in texts if isinstance(text, str) else texts == text
    rows = table.rows.append_column("text", pa.array(["one", "two"]))
    tables, options = {"train": replace(table, rows=rows)}, Options(label_column="t", validation_share=0)
    data = outcome(lambda: prepare(tables, options))
    assert label in data if isinstance(label, str) else (data.labels.names, data.splits["train"]["labels"][:]) == label


@pytest.mark.parametrize(("feature", "cells", "text", "label"), FEATURES, ids=[str(row[0])[:60] for row in FEATURES])
def test_a_column_of_every_feature_is_taken_or_refused(feature, cells, text, label):
    check(as_table(Dataset.from_dict({"t": cells}, features=Features({"t": feature})), "the data"), text, label)


@pytest.mark.parametrize("name", sorted(MEDIA & {*datasets.features.__all__}))
@pytest.mark.parametrize("nested", [False, True])
def test_a_column_of_files_is_refused_without_decoding_one(name, nested):
    feature = getattr(datasets.features, name)()
    kind = getattr(feature, "pa_type", None) or pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells, feature = (pa.nulls(2, pa.list_(kind)), List(feature)) if nested else (pa.nulls(2, kind), feature)
    data = Dataset(pa.table({"t": cells}), info=DatasetInfo(features=Features({"t": feature})))
    message = f"Column 't' holds {name}, which is no text and no label. Name another."
    check(as_table(data, "the data"), message, message)


ARROW = {
    "dictionary": (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"], WORDS),
    "lists of a dictionary": (
        pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode()),
        NO_TEXT,
        SEVERAL,
    ),
    "list view": (pa.array([["a"], ["b"]], pa.list_view(pa.string())), NO_TEXT, SEVERAL),
    "string view": (pa.array(["x", "y"], pa.string_view()), ["x", "y"], WORDS),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), NO_TEXT, NO_LABEL),
    "struct of a map": (
        pa.array([{"a": [("a", 1)]}] * 2, pa.struct({"a": pa.map_(pa.string(), pa.int64())})),
        NO_TEXT,
        NO_LABEL,
    ),
    "decimal": (pa.array([Decimal("1.10")] * 2, pa.decimal32(5, 2)), NO_TEXT, NO_LABEL),
    "uuid": (pa.array([b"0" * 16] * 2, pa.uuid()), NO_TEXT, NO_LABEL),
    "above 2^63": (pa.array([BIG, 1], pa.uint64()), [str(BIG), "1"], (("1", str(BIG)), [1, 0])),
    "bytes of one length": (pa.array([b"ab", b"cd"], pa.binary(2)), NO_TEXT, NO_LABEL),
}


@pytest.mark.parametrize("name", ARROW)
def test_a_parquet_file_may_hold_every_type_that_pyarrow_writes(tmp_path, name):
    cells, text, label = ARROW[name]
    pq.write_table(pa.table({"t": cells}), tmp_path / "a.parquet")
    check(read_file(tmp_path / "a.parquet"), text, label)


@pytest.mark.parametrize("format", ["torch", "numpy", "arrow", "pandas", None])
def test_a_data_set_that_was_saved_with_a_format_is_read_as_one_without(tmp_path, format):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"]), "id": Value("int64")})
    data = Dataset.from_dict({"text": ["x", "y"], "label": [1, 0], "id": [5, 6]}, features=features)
    data = data.with_format(format, columns=["id"]).select([1, 0])
    data.save_to_disk(tmp_path / "saved")
    expected = [{"text": "y", "label": 0, "id": 6}, {"text": "x", "label": 1, "id": 5}]
    options = Options(data=str(tmp_path / "saved"))
    for table in (read(options)["train"], as_table(data, "it")):
        assert rows_of(table) == expected
        assert table.classes("label") == ("no", "yes")
        assert [table.cells(name) for name in table.names] == [["y", "x"], [0, 1], [6, 5]]
