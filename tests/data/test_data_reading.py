"""Files, folders and data sets: read as they are, or refused with what is wrong with them."""

import gzip
import io
import json
import logging
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_csv, write_jsonl
from data_harness import rows_in, rows_of, write_file
from datasets import Dataset, DatasetDict

from hf_posenc.data.preparing import prepare
from hf_posenc.data.sources import EXAMPLE_DATA, read, read_split
from hf_posenc.errors import UserError
from hf_posenc.options import Options

pytestmark = pytest.mark.usefixtures("spelt_by_train")

EXAMPLES = [{"text": "one two", "label": "b"}, {"text": "three", "label": "a"}]


def sizes(**options):
    return {split: len(table) for split, table in read(Options(**options)).items()}


# ---- folders and data sets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_a_folder_of_files_is_a_data_set(tmp_path, validation, caplog):
    write_jsonl(tmp_path / "train.jsonl", EXAMPLES)
    write_csv(tmp_path / f"{validation}.csv", EXAMPLES[:1])
    write_jsonl(tmp_path / "train_long.jsonl", EXAMPLES * 3)  # another split, none of ours
    write_file(tmp_path / "train_long.json", json.dumps(EXAMPLES))
    assert sizes(data=str(tmp_path)) == {"train": 2, "validation": 1}
    assert "that are used only where they are named: train_long, train_long.jsonl." in caplog.text
    assert sizes(data=str(tmp_path), test="train_long.jsonl") == {"train": 2, "validation": 1, "test": 6}
    for split, rows in (("train", 2), (validation, 1), ("train_long", 2)):
        assert read_split(Options(data=str(tmp_path)), split).rows.num_rows == rows
    with pytest.raises(UserError, match=f"has no split 'test'. It has .*{validation}.*: name one with .*--split"):
        read_split(Options(data=str(tmp_path)), "test")


def test_validation_and_test_may_name_a_split_or_a_file(tmp_path, caplog):
    parts = {"train": EXAMPLES * 2, "matched": EXAMPLES, "mismatched": EXAMPLES[:1]}
    DatasetDict({name: Dataset.from_list(rows) for name, rows in parts.items()}).save_to_disk(tmp_path / "saved")
    saved, file = str(tmp_path / "saved"), write_csv(tmp_path / "mine.csv", EXAMPLES * 3)
    assert sizes(data=saved) == {"train": 4}
    assert f"Splits of {saved!r} that are used only where they are named: matched, mismatched." in caplog.text
    assert sizes(data=saved, validation="matched", test="mismatched") == {"train": 4, "validation": 2, "test": 1}
    assert sizes(data=saved, validation=file, test="matched") == {"train": 4, "validation": 6, "test": 2}
    assert sizes(data=file, test=file) == {"train": 6, "test": 6}
    for data in (saved, file):
        with pytest.raises(UserError, match=r"--validation 'z' is no file, and no split of .*: train"):
            read(Options(data=data, validation="z"))
    DatasetDict(valid=Dataset.from_list(EXAMPLES * 2), dev=Dataset.from_list(EXAMPLES)).save_to_disk(tmp_path / "two")
    assert sizes(data=str(tmp_path / "two")) == {"validation": 4}
    assert "are used only where they are named: dev." in caplog.text
    assert sizes(data=str(tmp_path / "two"), validation="dev") == {"validation": 2}
    DatasetDict(a=Dataset.from_list(EXAMPLES)).save_to_disk(tmp_path / "other")
    with pytest.raises(UserError, match="has the splits a. One of them must be called train"):
        read(Options(data=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.csv", "train.parquet"], "holds train.parquet beside train.csv. Call files train, validation, test"),
        (["train-0-of-2.csv", "train-1-of-2.csv"], "holds no split"),
        (["mine.csv"], "holds no split. Call files train, validation, test, one for each split, each a .csv, .tsv"),
        ([], "holds no split. Call .*or name them: --data."),
    ],
)
def test_files_that_are_no_splits_are_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        read(Options(data=str(tmp_path)))


def test_a_changed_file_is_read_anew(tmp_path):
    for text in ("old text", "new text"):
        rows = Dataset.from_list([{"text": text, "label": "x"}])
        rows.to_parquet(tmp_path / "train.parquet")
        rows.to_csv(tmp_path / "mine.csv")
        for data in (tmp_path / "mine.csv", tmp_path / "train.parquet", tmp_path):
            assert read(Options(data=str(data)))["train"].cells("text") == [text]


def test_the_package_data_is_whole():
    splits = read(Options(data="blimp_order"))
    assert {split: len(splits[split]) for split in splits} == {"train": 13316, "validation": 1668, "test": 3136}
    assert splits["train"].names == ["text", "label", "paradigm", "pair_id"]
    words: dict[str, list] = {}
    for row in rows_of(splits["test"]):
        words.setdefault(row["pair_id"], []).append((row["label"], sorted(row["text"].rstrip(".?").split())))
    # Both sentences of a pair hold the same words, so no bag of words can tell them apart.
    assert all(len(pair) == 2 and len({label for label, _ in pair}) == 2 for pair in words.values())
    assert sum(pair[0][1] == pair[1][1] for pair in words.values()) == len(words)
    assert sum(path.stat().st_size for path in EXAMPLE_DATA.iterdir()) < 1_000_000
    licence = (EXAMPLE_DATA / "README.md").read_text()
    assert "Creative Commons Attribution 4.0" in licence
    assert "https://github.com/alexwarstadt/blimp" in licence


# ---- names and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows?.csv", "rows[1].csv", "ro*s.csv", "a{b}.csv", "[1]/rows.csv", "a::b.csv"])
def test_a_name_is_no_pattern(tmp_path, name):
    (tmp_path / "[1]").mkdir()
    write_csv(tmp_path / "rows1.csv", [{"text": "of another file", "label": "x"}])
    examples = [{"text": "of this file", "label": "y"}]
    assert rows_of(read(Options(data=write_csv(tmp_path / name, examples)))["train"]) == examples


def parquet(*columns, names=("text",)):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([*columns], names=[*names]), file)
    return file.getvalue()


NOT_UTF8 = pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)
DEEP = b'{"text": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"x", "has an unknown suffix. Accepted: .csv, .tsv, .json, .jsonl, .txt, .parquet"),
        ("a.parquet", b"", "can't be read: .*Name a .parquet file that is there and whole"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), "has no rows"),
        *((f"a.{kind}", b" \n\n", "has no rows. Give data with at least one") for kind in ("csv", "jsonl", "txt")),
        ("a.csv", b"text,label\n", "has no rows"),
        ("a.csv", b"text,label\na,x\ntext,label\n", "line 3 is the first row once more. Remove it"),
        ("a.json", b"[]", "has no rows"),
        ("a.parquet", parquet(pa.array([], pa.string())), "has no rows"),
        ("a.json", b'{"data": [{"text": "x"}]}', "it holds {'data': .*, no list of objects"),
        ("a.json", b'{"x": 1}\n{"x": 2}\n', "can't be read: Extra data: line 2 .* list of objects in a .json"),
        ("a.json", b"[" * 100_000, "a.json can't be read: .*recursion"),
        ("a.json", b'[{"text": "a"}, null]', "a.json, row 1 is no object: None"),
        (
            "a.json",
            b'[{"x": 1},\n{"x": "\xe9"}]\n',
            "can't be read: 'utf-8' codec .* byte 0xe9 in position 18: .*, in line 2",
        ),
        ("a.json", b'[{"text": "a", "text": "b"}]', "can't be read: it holds 'text' twice"),
        ("a.json", b'[{"text": "x"}, {"text": "\\udc00"}]', r"a.json, row 1 holds '\\udc00', one half of a surrogate"),
        ("a.jsonl", b'{"text": "x", "la', "a.jsonl, line 1 can't be read: Unterminated string"),
        ("a.jsonl", b'null\n{"text": "a"}\n', "a.jsonl, line 1 is no object: None"),
        ("a.jsonl", b'{"text": "a"}\n\n[]\n', r"a.jsonl, line 3 is no object: \[\]. .* or call a list .json"),
        ("a.jsonl", DEEP, "line 1 can't be read: .*recursion"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', "line 1 can't be read: it holds 'text' twice"),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": "\\ud800"}\n',
            r"a.jsonl, line 2 holds '\\ud800', one half of a surrogate",
        ),
        *(
            ("a.jsonl", b'{"x": %s}\n{}\n{"x": %s}' % values, "column 'x' can't be read: .* Write its values alike")
            for values in ((b"1", b'"a"'), (b'["a"]', b'"a"'), (b'{"a": 1}', b'"a"'), (b"true", b"0"))
        ),
        ("a.jsonl", b'{"x": [1, "a"]}', "column 'x' can't be read"),
        ("a.jsonl", b'{"x": 1%s}' % (b"0" * 30), "column 'x' can't be read: .*too large"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "\xe9"}\n', mtime=0),
            "a.jsonl.gz' can't be read: 'utf-8' codec",
        ),
        ("a.csv.gz", gzip.compress(b"text,label\na,x\n", mtime=0)[:-9], "a.csv.gz' can't be read: .*whole"),
        ("a.parquet", parquet(NOT_UTF8), "a.parquet' can't be read: .*UTF8"),
        ("a.parquet", parquet(pa.array(["a"]), pa.array(["b"]), names=["x"] * 2), "can't be read: Multiple matches"),
    ],
)
def test_files_that_cannot_be_read_are_refused(name, content, message, tmp_path, monkeypatch):
    logged = io.StringIO()
    monkeypatch.setattr(logging.getLogger("datasets").handlers[0], "stream", logged)
    with pytest.raises(UserError, match=message) as refused:
        read(Options(data=write_file(tmp_path / name, content)))
    assert name in str(refused.value)
    assert not logged.getvalue()  # the error is said once


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "nobody/nothing-here"}, "--data 'nobody/nothing-here' can't be read: .* a name on the Hub"),
        ({"data": "a.csv", "test": "absent.csv"}, "'absent.csv' can't be read: .*No such file"),
        ({"data": "folder", "format": "csv"}, "'folder' holds no split. Call files train"),
        ({"data": "a.jsonl", "delimiter": ";"}, "--delimiter ';' is for .csv and .tsv files, 'a.jsonl' is none. Leave"),
        ({"data": "a.jsonl", "quoting": "csv"}, "--quoting 'csv' is for .csv and .tsv files"),
        ({"data": "a.parquet", "encoding": "utf-8"}, "--encoding 'utf-8' is for files of text, 'a.parquet' is none"),
        ({"data": "a.csv", "encoding": "nonsense"}, "unknown encoding: nonsense. .*--encoding: latin-1"),
        ({"data": "saved", "encoding": "utf-8"}, "--encoding 'utf-8' is for files of text, --data 'saved' is none"),
    ],
)
def test_data_that_is_not_there_or_of_another_kind(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", EXAMPLES)
    write_csv(tmp_path / "a.csv", EXAMPLES)
    (tmp_path / "folder").mkdir()
    Dataset.from_list(EXAMPLES).to_parquet("a.parquet")
    Dataset.from_list(EXAMPLES).save_to_disk("saved")
    with pytest.raises(UserError, match=message):
        read(Options(**options))


def test_objects_may_lack_a_key_and_a_text_may_look_like_json(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"label": "x", "text": "b"}])
    assert rows_in(path) == [{"text": "a", "label": None}, {"text": "b", "label": "x"}]
    path = write_file(tmp_path / "a.txt", '{"a":' * 100_000 + "\n\nplain\n")
    table = read(Options(data=path))["train"]
    assert (table.cells("text")[1:], table.numbers) == (["", "plain"], [1, 2, 3])  # an answer for each line
    assert table.summary == "3 rows from 3 lines"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", None, 5], None),
        (["a", ["a"]], None),
        ([["a"], ["b"]], r"Column 'text' holds \['a'\] in line 1, which is no text. Write a string, or name another"),
        ([{"a": 5}], re.escape("Column 'text' holds {'a': 5} in line 1, which is no text")),
    ],
)
def test_what_is_no_text_is_named_by_its_row_in_each_split(tmp_path, cells, message):
    """A list would be written out, brackets and all."""
    rows = [{"text": cell, "label": "xy"[row % 2]} for row, cell in enumerate(cells)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    other = write_jsonl(tmp_path / "b.jsonl", EXAMPLES)
    for files in ({"data": path}, {"data": other, "test": path}):
        with pytest.raises(UserError, match=message or "a.jsonl: column 'text' can't be read"):
            prepare(read(Options(**files)), Options())
