"""Files as spreadsheets, R, databases and pandas write them: read right, or doubted aloud."""

import io
import json
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_harness import prepared, rows_of, rows_with, table, texts, write_csv, write_file, write_jsonl

from hf_posenc.data import Columns, DataArguments, Use, find_columns, prepare, read_splits, read_table
from hf_posenc.data.inputs import read_inputs
from hf_posenc.errors import UserError

# ---- first lines and columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\r\n', "\ufeffsep=;\r\n"])
def test_the_line_by_which_excel_finds_the_delimiter_is_no_row(tmp_path, first):
    path = write_file(tmp_path / "a.csv", f"{first}text;label\r\na, b;x\r\nc;\r\n")
    read = read_table(path)
    assert rows_of(read) == [{"text": "a, b", "label": "x"}, {"text": "c", "label": None}]
    assert read.where(0) == "line 3"
    with pytest.raises(UserError, match="line 3 has 3 cells, the first row has 2"):
        read_table(write_file(tmp_path / "b.csv", f"{first}text;label\r\na;b;x\r\n"))


def test_a_tsv_whose_names_are_quoted_has_quoted_cells(tmp_path):
    path = write_file(tmp_path / "a.tsv", '"text"\t"label"\n"a\tb\nc"\t"x"\n')
    assert rows_of(read_table(path)) == [{"text": "a\tb\nc", "label": "x"}]
    path = write_file(tmp_path / "b.tsv", '"text"\t"label"\n"a\tb\nc"\tx\n')
    with pytest.raises(UserError, match="line 2: a quote opens there and closes in line 3, and all these lines would"):
        read_table(path)
    assert rows_of(read_table(path, DataArguments(quoting="csv"))) == [{"text": "a\tb\nc", "label": "x"}]


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_index_that_pandas_writes_is_no_label(tmp_path, shuffled):
    frame = pd.DataFrame(rows_with(["good", "bad"] * 20, "sentiment"))
    frame = frame.sample(frac=1, random_state=0) if shuffled else frame
    frame.to_csv(tmp_path / "a.csv")
    assert prepared(str(tmp_path / "a.csv")).columns.label == "sentiment"
    frame[["text"]].to_csv(tmp_path / "b.csv")
    with pytest.raises(UserError, match="The data has no column with labels, only 'text'. Add one."):
        prepared(str(tmp_path / "b.csv"))
    frame.iloc[5:].to_parquet(tmp_path / "c.parquet")
    assert prepared(str(tmp_path / "c.parquet")).columns.label == "sentiment"


def test_numbers_of_rows_are_no_label():
    cells = {"id": list(map(str, range(20))), "message": texts(20), "category": ["a b", "c"] * 10}
    assert find_columns(table(is_text=True, **cells), DataArguments()).label == "category"
    assert find_columns(table(is_text=True, message=texts(20), id=["1", "2"] * 10), DataArguments()).label == "id"


@pytest.mark.parametrize("text", ["这个产品很好用我非常喜欢", "とても良い商品でした", "สินค้าดีมากฉันชอบ"])
def test_text_without_blanks_between_words_is_text(text):
    cells = {"文本": [f"{text}{row}" for row in range(20)], "标签": ["好", "坏"] * 10}
    columns = find_columns(table(is_text=True, **cells), DataArguments())
    assert (columns.text, columns.label) == (("文本",), "标签")


def test_many_columns_are_said_in_a_short_line(tmp_path):
    rows = [row | {f"c{column}": 1 for column in range(500)} for row in rows_with(["a", "b"] * 3)]
    line = prepared(write_csv(tmp_path / "a.csv", rows)).summary.line()
    assert "c11, ... (500 columns); 2 labels" in line


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_commas_between_thousands_are_not_taken_for_decimal_signs(tmp_path):
    path = write_csv(tmp_path / "a.csv", rows_with(["8,320", "1,250", "12,000"] * 3))
    with pytest.raises(UserError, match="has 8,320, which may be 8.320 or 8320. Say --decimal , for the former"):
        prepared(path)
    assert prepared(path, decimal=",").splits["train"].labels[:2] == [8.32, 1.25]
    assert prepared(path, decimal=".").labels.names == ("1,250", "12,000", "8,320")


def test_a_regression_names_the_cell_that_is_no_number(tmp_path):
    with pytest.raises(UserError, match="needs one number per text, column 'label' has 'NA'"):
        prepared(write_csv(tmp_path / "a.csv", rows_with(["1.5", "NA", "2.5"])), task="regression")


# ---- .json, .parquet -------------------------------------------------------------------------------------------------


def test_what_else_a_json_object_holds_is_said(tmp_path):
    rows = rows_with(["a", "b"] * 3)
    path = write_file(tmp_path / "a.json", json.dumps({"version": "1.1", "data": rows}))
    doubts = prepared(path).summary.doubts()
    assert "The rows of a.json are its list 'data'; version isn't read." in doubts
    with pytest.raises(UserError, match="on a line of its own, or call the file .json"):
        read_table(write_file(tmp_path / "a.jsonl", json.dumps(rows)))


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a b"])] * 2, names=["text", "text"]), path)
    for reader in (read_table, read_inputs):
        with pytest.raises(UserError, match="names the column 'text' twice"):
            reader(str(path))


# ---- texts to be answered --------------------------------------------------------------------------------------------


def test_a_mark_before_standard_input_is_no_text(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffa b\n\ufeffc\n"))
    assert [text.text for text in read_inputs("-")] == ["a b", "\ufeffc"]


def test_a_first_row_that_was_taken_for_names_is_said(tmp_path):
    read = read_inputs(write_file(tmp_path / "a.csv", "".join(f"{text}\n" for text in texts(5))))
    assert "Text: the box arrived late 0; 4 rows from 5 lines." in read.line()


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (Columns(("premise", "hypothesis"), "label"), ["text"]),
        (Columns(("text",), "label"), ["premise", "hypothesis"]),
        (Columns(("title", "body"), "label", " "), ["body"]),
    ],
)
def test_pairs_and_single_texts_are_not_taken_for_each_other(tmp_path, known, names):
    path = write_csv(tmp_path / "a.csv", [dict.fromkeys(names, text) for text in texts(5)])
    with pytest.raises(UserError, match="The model was trained on the text of .* say what to read: --text-column-na"):
        read_inputs(path, known=known)
    named = DataArguments(text_column_names=",".join(names))
    assert read_inputs(path, named, known).count == 5
    data = DataArguments(test_file=path)
    with pytest.raises(UserError, match="The model was trained on the text of"):
        prepare(read_splits(data), data, Use(train=False, test=True, known=known, label_names=["a", "b"]))


def test_a_list_is_named_as_no_text(tmp_path):
    with pytest.raises(UserError, match=r"line 1: column 'text' holds \['a', 'b'\], no text"):
        read_inputs(write_jsonl(tmp_path / "a.jsonl", [{"text": ["a", "b"]}]), known=Columns(("text",), "label"))


def test_one_row_is_counted_in_the_singular(tmp_path):
    data = prepared(write_csv(tmp_path / "a.csv", [*rows_with(["a", "b"]), {"text": "", "label": "a"}]))
    assert data.summary.doubts() == ["1 train row without a text used (--skip-missing leaves such rows out)."]
    line = read_inputs(write_file(tmp_path / "a.txt", "a b\n\n")).line()
    assert line.endswith("1 row from 2 lines (1 empty line skipped).")
