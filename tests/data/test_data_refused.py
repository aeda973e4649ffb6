"""Data that can't be read, or could be read in two ways: each is refused with where it stands, and the way out."""

import gzip
import io
import json
import logging
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tests.support.data import Options, UserError, prepare, read, rows_with, texts, write_file

pytestmark = pytest.mark.usefixtures("spelt_by_train")
ONE, SEVERAL = "single_label_classification", "multi_label_classification"
LABELLED = "text,label\n"


def jsonl(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def labels(train: list[Any], test: list[Any] | None = None) -> dict[str, str]:
    """Rows with these labels, in a file to train on and perhaps one to test on."""
    return {"a.jsonl": jsonl(rows_with(train))} | ({} if test is None else {"test.jsonl": jsonl(rows_with(test))})


def columns(*names: str, **cells: Any) -> dict[str, str]:
    """A file of one row."""
    return {"a.jsonl": jsonl([dict.fromkeys(names, "x") | cells])}


def csv_labels(cells: list[str]) -> dict[str, str]:
    return {"a.csv": LABELLED + "".join(f'{text},"{cell}"\n' for text, cell in zip(texts(999), cells, strict=False))}


def parquet(*columns: pa.Array, names: tuple[str, ...] = ("text",)) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([*columns], names=[*names]), file)
    return file.getvalue()


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def save_splits(folder: Any, sizes: dict[str, int]) -> None:
    rows = {name: rows_with("xy" * (size // 2)) for name, size in sizes.items()}
    DatasetDict({name: Dataset.from_list(part) for name, part in rows.items()}).save_to_disk(folder)


NOT_UTF8 = pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)
DEEP = b'{"text": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001
OPEN = LABELLED + "".join(f"{'' if row % 7 else chr(34)}text {row},x\n" for row in range(30))
JOINED = "".join(f'"good {row},pos\nbad {row}",neg\n' for row in range(100))
"""Python's csv, pandas and arrow read these 200 lines as 100 rows, and strict readers find nothing wrong."""
USUAL = columns("text", "more", "label")
MARKS = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]]
ONE_HOT = {"a.jsonl": jsonl([{"text": text, "a": 1, "a2": 0, "b": 0.5} for text in texts(4)])}
BLANK = {"a.csv": "text,a,b\nx,1,0\ny,0,1\nz, ,1\nv,?,1\n"}
SPLITS = {f"d/{name}": LABELLED for name in ("train-0-of-2.csv", "train-1-of-2.csv")}

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # files, folders and data sets
    ({"a.docx": b"x"}, {}, "has an unknown suffix. Accepted: .csv, .tsv, .json, .jsonl, .txt, .parquet"),
    ({}, {"data": "nobody/nothing-here"}, "--data 'nobody/nothing-here' can't be read: .* a name on the Hub"),
    ({"a.csv": LABELLED + "a,x\n"}, {"test": "absent.csv"}, "'absent.csv' can't be read: .*No such file"),
    ({"a.csv": LABELLED + "a,x\n"}, {"validation": "z"}, "--validation 'z' is no file, and no split of 'a.csv': train"),
    ({"saved": {"train": 4}}, {"validation": "z"}, "--validation 'z' is no file, and no split of 'saved': train"),
    (
        {"saved": {"train": 4, "test": 2}},
        {"validation": "test"},
        "--validation 'test' names the rows that are validation and test data: scores .* Name others, or leave it out",
    ),
    ({"a.csv": LABELLED, "test.csv": LABELLED}, {"validation": "./test.csv"}, "names the rows that are validation and"),
    ({"d/train.csv": "", "d/dev.csv": ""}, {"data": "d", "test": "dev"}, "--test 'dev' names the rows that are valid"),
    ({"saved": {"a": 4}}, {}, "has the splits a. One of them must be called train"),
    ({"d/a.docx": b""}, {"data": "d", "format": "csv"}, "'d' holds no split. Call files train, validation, test"),
    (
        {"d/train.csv": "", "d/train.parquet": ""},
        {"data": "d"},
        "holds train.parquet beside train.csv. Call files train, validation, test, one for each split, each a .csv",
    ),
    (SPLITS, {"data": "d"}, "holds no split"),
    (
        {"a.jsonl": "{}"},
        {"delimiter": ";"},
        "--delimiter ';' is for .csv and .tsv files, 'a.jsonl' is none. Leave",
    ),
    ({"a.jsonl": "{}"}, {"quoting": "csv"}, "--quoting 'csv' is for .csv and .tsv files"),
    ({"a.parquet": b""}, {"encoding": "utf-8"}, "--encoding 'utf-8' is for files of text, 'a.parquet' is none"),
    ({"a.csv": LABELLED}, {"encoding": "nonsense"}, "unknown encoding: nonsense. .*--encoding: latin-1"),
    ({"saved": {"train": 4}}, {"encoding": "utf-8"}, "--encoding 'utf-8' is for files of text, --data 'saved' is none"),
    ({"saved": {"train": 4}}, {"format": "csv"}, "--format 'csv' is for files of text, --data 'saved' is none."),
    ({}, {"data": "absent.dat", "format": "csv"}, "'absent.dat' can't be read: .*No such file"),
    ({}, {"data": "me/it", "format": "csv"}, "--format 'csv' is for files of text, --data 'me/it' is none. Leave it"),
    ({"a.parquet": b""}, {}, "can't be read: .*Name a .parquet file that is there and whole"),
    ({"a.parquet": parquet(NOT_UTF8)}, {}, "a.parquet' can't be read: .*UTF8"),
    (
        {"a.parquet": parquet(pa.array(["a"]), pa.array(["b"]), names=("x", "x"))},
        {},
        "can't be read: Multiple matches",
    ),
    *(({f"a.{kind}": b" \n\n"}, {}, "has no rows. Give data with at least one") for kind in ("csv", "jsonl", "txt")),
    ({"a.csv": LABELLED}, {}, "has no rows"),
    ({"a.jsonl.gz": packed(b'{"text": "\xe9"}\n')}, {}, "a.jsonl.gz' can't be read: 'utf-8' codec"),
    ({"a.csv.gz": packed(b"text,label\na,x\n")[:-9]}, {}, "a.csv.gz' can't be read: .*whole"),
    # JSON
    ({"a.json": b'{"data": [{"text": "x"}]}'}, {}, "it holds {'data': .*, no list of objects"),
    ({"a.json": b'{"x": 1}\n{"x": 2}\n'}, {}, "can't be read: Extra data: line 2 .* list of objects in a .json"),
    ({"a.json": b'[{"text": "a"}, null]'}, {}, "a.json, row 1 is no object: None"),
    ({"a.json": b'[{"x": 1},\n{"x": "\xe9"}]\n'}, {}, "byte 0xe9 in position 18: .*, in line 2"),
    ({"a.json": b'[{"text": "x"}, {"text": "\\udc00"}]'}, {}, r"a.json, row 1 holds '\udc00', one half of a surrogate"),
    ({"a.jsonl": b'{"text": "x", "la'}, {}, "a.jsonl, line 1 can't be read: Unterminated string"),
    ({"a.jsonl": b'{"text": "a"}\n\n[]\n'}, {}, "a.jsonl, line 3 is no object: []. .* or call a list .json"),
    ({"a.jsonl": DEEP}, {}, "line 1 can't be read: .*recursion"),
    ({"a.jsonl": b'{"text": "a", "text": "b"}'}, {}, "line 1 can't be read: it holds 'text' twice"),
    ({"a.jsonl": b'{"text": "x"}\n{"text": "\\ud800"}\n'}, {}, r"line 2 holds '\ud800', one half of a surrogate"),
    *(
        (
            {"a.jsonl": b'{"x": %s}\n{}\n{"x": %s}' % values},
            {},
            "column 'x' can't be read: line 3 has .*, where others .* Write its values alike",
        )
        for values in ((b"1", b'"a"'), (b'["a"]', b'"a"'), (b'{"a": 1}', b'"a"'), (b"true", b"0"))
    ),
    ({"a.jsonl": b'{"x": 1%s}' % (b"0" * 30)}, {}, "column 'x' can't be read: .*too large"),
    # lines and quotes
    ({"a.csv": OPEN}, {}, "a.csv, line 2.*--quoting 'none'"),
    ({"a.csv": LABELLED + JOINED}, {}, "line 2: a quote opens there and closes in a later line, and line 2 has a cell"),
    ({"a.tsv": 'text\tlabel\n"a ""b"""\tx\n'}, {}, "line 2: the cell .* begins and ends with a quote. Say what quotes"),
    ({"a.csv": LABELLED + "a,x\ntext,label\n"}, {}, "line 3 is the first row once more. Remove it"),
    ({"a.csv": LABELLED + 'a,x\n"say \\"hi\\"",y\n'}, {}, 'line 3: .* quotes inside are written double (""), not'),
    ({"a.csv": LABELLED + 'a,x\n"b,y\nc,x\n'}, {}, "line 3: unexpected end of data. A quote that opens a cell must"),
    ({"a.csv": LABELLED + "a,x\nb\n"}, {}, "line 3 has 1 cell, the first row has 2"),
    ({"a.csv": LABELLED + "a, b,x\n"}, {}, "line 2 has 3 cells, the first row has 2 (text, label). Put cells"),
    ({"a.csv": "text;label\na, b;x\n"}, {}, "line 2 has 2 cells, the first row has 1 .* --delimiter ';' "),
    ({"a.csv": "text,text,label\na,b,x\n"}, {}, "it has two columns 'text'. Give each column a name of its own"),
    ({"a.csv": b"text,label\na,x\ncaf\xe9,y\n"}, {}, "can't decode byte 0xe9 in position 18: .*--encoding: latin-1"),
    ({"a.csv": "text,label\na,x\n".encode("utf-16")}, {}, "can't decode byte 0xff in position 0: .*utf-16"),
    # columns
    (
        columns(review="late", stars="5"),
        {},
        "a.jsonl: no column is called text or sentence, nor a pair such as text and text_pair; no column is called "
        "label or labels. It has review ('late'), stars ('5'). Say which: such as --text-column 'review' and "
        "--label-column 'stars'. If a .csv has other columns, write a first row of names, or say what separates them: "
        "--delimiter ';' (or ',', '|', tab).",
    ),
    (columns("Text", "label"), {}, "no column is called text or sentence.*--text-column 'Text'."),
    (columns("text", "Label"), {}, "no column is called label or labels.*--label-column 'Label'."),
    (columns("text", "sentence", "label"), {}, "text and sentence could all be meant"),
    (
        columns("text", "premise", "hypothesis", "Label"),
        {},
        "premise, hypothesis and text could all be meant; no column is called label.*--text-column 'premise,hyp",
    ),
    (columns("it's, so", "label"), {}, """--text-column '["it'"'"'s, so"]'."""),
    ({"a.csv": "text;label\na b;x\n"}, {}, "It has text;label ('a b;x'). If a .csv has other columns, write a first"),
    (columns(*(f"c{n}" for n in range(20))), {}, "It has c0 ('x'), .*, c11 ('x'), ... (20 columns). Say which"),
    (USUAL, {"text_column": "txt"}, "no column 'txt'. It has 'text', 'more', 'label': name one with --text-column"),
    (USUAL, {"text_column": "text,more,label"}, "names 3 columns. Give one, two for pairs, or join them: --join "),
    (USUAL, {"label_column": "text"}, "can't be both text and label"),
    (USUAL, {"label_column": "label, label"}, "--label-column 'label, label' must name each column once"),
    (USUAL, {"text_column": ""}, "--text-column '' must name each column once"),
    (
        {"a.csv": LABELLED + "a,x\nb,y\n", "test.csv": "label\nx\n"},
        {},
        "has no column 'text'. It has 'label': name one with --text-column",
    ),
    (
        {"a.csv": LABELLED + "a,x\nb,y\n", "validation.csv": "text\nx\n"},
        {},
        "has no column 'label'. It has 'text': name one with --label-column",
    ),
    (
        columns(text=["a"], label="x"),
        {},
        "Column 'text' holds ['a'] in line 1, which is no text. Write a string, or na",
    ),
    (columns(text={"a": 5}, label="x"), {}, "Column 'text' holds {'a': 5} in line 1, which is no text"),
    # what is missing
    ({"a.csv": LABELLED + "a,x\n ,y\n"}, {}, "Missing text in the train data: line 3 has none .* --skip-missing"),
    (
        {"a.csv": "a,b,label\nx,y,z\n , ,z\n"},
        {"text_column": "a,b", "join": "|"},
        "line 3 has no",
    ),
    (
        {"a.csv": "a,b,label\nx,y,z\n ,b,z\n"},
        {"text_column": "a,b"},
        "line 3 has no pair (1 row",
    ),
    (
        labels(["a", None, None, "b"]),
        {},
        "train data: line 2 has none in column 'label' (2 rows in all). Fill it in, or",
    ),
    (labels([["a"], None, ["b"]]), {}, "Missing label in the train data: line 2 has none"),
    (labels([0.5, float("nan")]), {}, "Missing label in the train data: line 2 has none"),
    (labels([None, None]), {"skip_missing": True}, "label in the train data: line 1 has none .* (2 rows in all)"),
    (labels([None, None]), {"skip_missing": True}, "(2 rows in all). Fill it in, or name another column."),
    (
        {"a.csv": "text,a,b\nx,1,0\ny,0,1\n", "test.csv": "text,a,B\nx,1,0\n"},
        {"label_column": "a,b"},
        "The test data has no column 'b'. It has 'text', 'a', 'B': name one with --label-column",
    ),
    (BLANK, {"label_column": "a,b"}, "--label-column names several columns of 0 and 1: column 'a' has '?' in line 5"),
    # labels
    (labels(["a", "b"], ["a", "z"]), {}, "test data has unknown labels: 'z' (line 2). Known are 'a', 'b'. Write these"),
    (labels(["a", "b"], ["z", "a", "y", "z"]), {}, "unknown labels: 'z' (lines 1 and 4); 'y' (line 3). Known are"),
    (
        labels([["a"], ["b"]], ["a"]),
        {},
        "test data has 'a' .* type is multi_label_classification: write lists of labels",
    ),
    (
        labels([0.5, 1.0], ["a"]),
        {},
        "test data has 'a' in column 'label', and the problem type is regression: write one",
    ),
    (labels([0.5, float("inf")]), {}, "'label' is inf in line 2 of the train data, and a model's numbers"),
    (labels([0.5, -1e300]), {}, "'label' is -1e+300 in line 2 of the train data, and a model's numbers"),
    (labels([["a", "b", "a"]]), {}, "names a label twice in line 1"),
    (labels([[], []]), {}, "No training row has a label in column"),
    (labels([{"a": 1}]), {}, "Column 'label' of the train data has {'a': 1}, which is no label, word or"),
    (labels([[0.5, 1.5], [0.5, 1.0]]), {}, "has lists of numbers with fractions. List the names"),
    (
        csv_labels(["1", "NA"]),
        {"problem_type": "regression"},
        "'NA' in column 'label', and the problem type is regress",
    ),
    (labels([["a"]]), {"problem_type": "regression"}, "has ['a'] .* type is regression: write one number for"),
    (labels(["a|b"]), {"problem_type": ONE, "label_delimiter": "|"}, "['a', 'b'] .* write one label for each text; or"),
    (labels(["a"]), {"problem_type": SEVERAL}, "lists of labels, cells with a --label-delimiter between several lab"),
    (labels([1, 0]), {"problem_type": SEVERAL}, "'1' .* or columns of 0 and 1 (--label-column 'a,b'); or"),
    (labels([1, 2], [2.5]), {}, "has unknown labels: '2.5' (line 1)."),
    (labels([0, 1, 2]), {"label_names": "1,2,3"}, "has unknown labels: '0' (line 1). Known are '1', '2', '3'"),
    *(
        (
            ONE_HOT,
            {"label_column": column, "label_names": "x,y"},
            f"--label-names 'x,y' can't be: column .* holds {holds}. Name these, or",
        )
        for column, holds in (("b", "numbers to predict"), ("a,a2", "2 labels (a, a2)"))
    ),
    (labels(MARKS), {}, "lists of 3 numbers 0 and 1, such as [0, 1, 0].*--label-names 'a,b,"),
    (
        labels([["a", "b"], ["a"], ["a", "c"]]),
        {},
        "All or none of the 3 training rows have the label 'a'.*--label-names",
    ),
    (
        labels(["x", "y"]),
        {"max_rows": 1},
        "All 1 examples .* class, 'x'. Give .*, a greater --max-rows, or the right c",
    ),
    (
        {"a.csv": LABELLED + "a,x\nb,y\na,x\nb,y\n"},
        {"validation_share": 0.1},
        "one training text of each of 2 labels (in 4 rows) .*--validation-share 0",
    ),
    # labels that may be classes or numbers
    (
        csv_labels([str(5 * row % 415) for row in range(830)]),
        {},
        "83 different whole numbers. Say what they are: --problem-type",
    ),
    (csv_labels(["5,4", "2", "3,25"] * 3), {}, "has 3,25, which may be a number. Write numbers with a decimal point"),
    (csv_labels(["1.000,5", "2.5"] * 3), {}, "has 1.000,5, which may be a number"),
]


@pytest.mark.parametrize(("files", "options", "message"), REFUSED, ids=[row[2][:60] for row in REFUSED])
def test_what_cannot_be_read_or_could_be_meant_in_two_ways_is_refused(files, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logged = io.StringIO()
    monkeypatch.setattr(logging.getLogger("datasets").handlers[0], "stream", logged)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            save_splits(tmp_path / name, content)
        else:
            write_file(tmp_path / name, content)
    others = {name.partition(".")[0]: name for name in files if name.startswith(("test", "validation"))}
    chosen = Options(**{"data": next(iter(files), None), "validation_share": 0, **others, **options})
    with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
        prepare(read(chosen), chosen)
    assert not logged.getvalue()  # the error is said once
    if "may be a number" in message or "whole numbers. Say" in message:
        chosen = Options(data=chosen.data, validation_share=0, problem_type=ONE)
        assert prepare(read(chosen), chosen).labels.names
