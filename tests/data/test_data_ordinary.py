"""Files as spreadsheets, R, databases and pandas write them: read right, or doubted aloud."""

import io
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_harness import prepared, rows_with, texts, write_csv, write_file, write_jsonl

from hf_posenc.data import Columns, DataArguments, Use, prepare, read_splits, read_table
from hf_posenc.data.inputs import read_inputs
from hf_posenc.errors import UserError

# ---- first lines and columns -----------------------------------------------------------------------------------------


def test_many_columns_are_said_in_a_short_line(tmp_path):
    rows = [row | {f"c{column}": 1 for column in range(500)} for row in rows_with(["a", "b"] * 3)]
    line = prepared(write_csv(tmp_path / "a.csv", rows)).summary.line()
    assert "c11, ... (500 columns); 2 labels" in line


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_a_regression_names_the_cell_that_is_no_number(tmp_path):
    with pytest.raises(UserError, match="needs one number per text, column 'label' has 'NA'"):
        prepared(write_csv(tmp_path / "a.csv", rows_with(["1.5", "NA", "2.5"])), task="regression")


# ---- .json, .parquet -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (Columns(("premise", "hypothesis"), "label"), ["text"]),
        (Columns(("text",), "label"), ["premise", "hypothesis"]),
        (Columns(("text", "body"), "label", " "), ["text"]),
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
