"""Every row of a file once: quotes, ends of lines, encodings, and other readers to compare with."""

import csv
import gzip
import io
import json
import string
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.common import write_csv, write_jsonl
from tests.support.data import Options, UserError, read_file, rows_in, rows_of, write_file

pytestmark = pytest.mark.usefixtures("spelt_by_train")


ENDS_IN_QUOTES = "".join(f'"good {row},pos\nbad {row}",neg\n' for row in range(100))


def test_lines_that_readers_join_are_rows_of_their_own_where_that_is_said(tmp_path):
    path = write_file(tmp_path / "a.csv", "text,label\n" + ENDS_IN_QUOTES)
    assert [len(rows_in(path, quoting=quoting)) for quoting in ("csv", "none")] == [100, 200]
    lines = "text\tlabel\n" + ENDS_IN_QUOTES.replace(",", "\t")
    assert len(rows_in(write_file(tmp_path / "b.tsv", lines))) == 200
    path = write_file(tmp_path / "c.tsv", 'text\tlabel\n"a ""b"""\tx\n')
    assert rows_in(path, quoting="csv") == [{"text": 'a "b"', "label": "x"}]
    assert rows_in(path, quoting="none") == [{"text": '"a ""b"""', "label": "x"}]
    path = write_file(tmp_path / "d.tsv", "text\tlabel\n a\tx\n\n b \tx\n")
    assert [row["text"] for row in rows_in(path)] == [" a", " b "]  # blanks belong to the cell


def test_cells_of_several_lines_are_read_where_every_cell_is_in_quotes(tmp_path):
    examples = [{"text": f"Dear all, hi,\n\nit's {row}\r\nbye", "label": "xy"[row % 2]} for row in range(50)]
    table = read_file(write_csv(tmp_path / "a.csv", examples, quoting=csv.QUOTE_ALL))
    assert rows_of(table) == examples
    assert table.summary == "50 rows from 201 lines"
    assert table.numbers[1] == 6
    assert rows_in(write_csv(tmp_path / "b.csv", examples), quoting="csv") == examples


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b'text,label\n"say ""hi"", ok",x\n', ['say "hi", ok']),
        (b'text,label\nsay "hi",x\n', ['say "hi"']),  # a letter in the middle of a cell
        (b"\xef\xbb\xbftext,label\na,x\n", ["a"]),
        (b"text,label\ra,x\rb,y\r", ["a", "b"]),
        (b"text,label\r\na,x\r\n\r\nb,y\r\n", ["a", "b"]),
        (b"text,label\na,x", ["a"]),
        (b"text,label\n   \na,x\n", ["a"]),
        (b"text\na\ntext\n", ["a", "text"]),
        (b"text\na\n\n b\n", ["a", None, "b"]),  # in one column a blank line is an empty cell
        (b"text,label\n,x\nb,y\n", [None, "b"]),
        ("text,label\na\u2028b,x\nc\x85d,y\n".encode(), ["a\u2028b", "c\x85d"]),
        (b"text,label\na\\,x\n", ["a\\"]),
        *((f"text,label\n{text},x\n".encode(), [text]) for text in ("007", "1.50", "1e5", "None", "NA", "nan", "true")),
    ],
)
def test_what_a_spreadsheet_writes_is_read_as_it_is_written(tmp_path, content, rows):
    for name, data in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
        assert [row["text"] for row in rows_in(write_file(tmp_path / name, data))] == rows


def test_ids_of_64_bits_are_kept_whole(tmp_path):
    rows = [{"text": "a", "id": 2**64 - 1}, {"text": "b", "id": None}, {"text": "c", "id": 7}]
    assert rows_in(write_jsonl(tmp_path / "a.jsonl", rows)) == rows


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "UTF-8", "utf8", "utf-8-sig"])
def test_another_encoding_can_be_named(tmp_path, encoding):
    content = "text,label\ncafé,x\nnaïve,y\n".encode(encoding)
    mark = b"\xef\xbb\xbf" if encoding in ("UTF-8", "utf8") else b""
    path = write_file(tmp_path / "a.csv", mark + content)
    assert [row["text"] for row in rows_in(path, encoding=encoding)] == ["café", "naïve"]


def test_what_separates_the_columns_can_be_said(tmp_path):
    path = write_file(tmp_path / "a.csv", b"text~label\na, b~x\n")
    assert rows_in(path, delimiter="~") == [{"text": "a, b", "label": "x"}]
    assert Options(delimiter="tab").delimiter == Options(delimiter="\\t").delimiter == "\t"


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "txt", "parquet", "csv.gz", "jsonl.gz", "-"])
def test_every_kind_of_file_and_standard_input_give_their_rows(tmp_path, monkeypatch, kind):
    base = "csv" if kind == "-" else kind.removesuffix(".gz")
    rows = [{"text": f"text {row}"} | ({} if base == "txt" else {"label": "xy"[row % 2]}) for row in range(30)]
    path = tmp_path / f"a.{base}"
    if base in ("csv", "tsv"):
        Dataset.from_list(rows).to_csv(path, sep="\t" if base == "tsv" else ",")
    elif base == "parquet":
        Dataset.from_list(rows).to_parquet(path)
    elif base == "txt":
        write_file(path, "\ufeff" + "\n".join(row["text"] for row in rows))
    else:
        write_file(path, json.dumps(rows) if base == "json" else "\n".join(map(json.dumps, rows)))
    if kind == "-":
        content = b"\xef\xbb\xbf" + path.read_bytes()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert rows_in("-", format="csv") == rows
        with pytest.raises(UserError, match="'-' has an unknown suffix. .*with --format"):
            rows_in("-")
        return
    if kind.endswith(".gz"):
        path = tmp_path / f"b.{kind}"
        path.write_bytes(gzip.compress((tmp_path / f"a.{base}").read_bytes()))
    assert rows_in(path) == rows
    path.rename(tmp_path / "a.data")
    if not kind.endswith(".gz"):
        assert rows_in(tmp_path / "a.data", format=base) == rows


# ---- the same rows as other readers, or a refusal --------------------------------------------------------------------

CELL = st.text(alphabet="ab ,;\t\"\n\\'é" + string.digits, max_size=12)
FILES = {
    "rows": st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6),
    "kind": st.sampled_from([".csv", ".tsv"]),
    "written": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, None]),
    "end": st.sampled_from(["\n", "\r\n", "\r"]),
    "said": st.sampled_from([None, None, "csv", "none"]),
}
"""Files as writers make them, and as people make them (written None: quotes wherever they stand)."""


def test_rows_are_those_of_other_readers_or_refused(tmp_path):
    @settings(max_examples=200, deadline=None)
    @given(**FILES)
    def compare(**file):
        compare_readers(tmp_path, **file)

    compare()


def compare_readers(folder, rows, kind, written, end, said):
    mark = "," if kind == ".csv" else "\t"
    text = io.StringIO(newline="")
    if written is None:
        text.write(end.join(mark.join(row) for row in [("text", "label"), *rows]))
    else:
        csv.writer(text, delimiter=mark, quoting=written, lineterminator=end).writerows([("text", "label"), *rows])
    path = folder / f"a{kind}"
    path.write_bytes(text.getvalue().encode())
    literal = said == "none" or (kind == ".tsv" and said is None)
    try:
        table = read_file(path, Options(quoting=said))
    except UserError:
        assert literal or written != csv.QUOTE_ALL
        return
    cells = [tuple(row.values()) for row in rows_of(table)]
    assert cells == strict_rows(text.getvalue(), mark, literal)
    mixed = end != "\n" and any("\n" in cell for row in rows for cell in row)  # pandas has rules of its own for these
    if not literal and not mixed and (others := pandas_rows(text.getvalue(), mark)) is not None:
        assert cells == others
    if literal:
        lines = text.getvalue().replace("\r", "\n").split("\n")
        assert len(cells) == sum(bool(line.strip(" ")) for line in lines) - 1


def strict_rows(text, mark, literal):
    quoting = csv.QUOTE_NONE if literal else csv.QUOTE_MINIMAL
    lines = io.StringIO(text, newline="")
    read = list(csv.reader(lines, delimiter=mark, strict=True, skipinitialspace=not literal, quoting=quoting))
    return [tuple(cell or None for cell in row) for row in read[1:] if len(row) > 1 or "".join(row).strip(" ")]


def pandas_rows(text, mark):
    """What pandas reads; None where it refuses."""
    options = {"sep": mark, "dtype": str, "keep_default_na": False, "na_values": [""], "skipinitialspace": True}
    try:
        frame = pd.read_csv(io.StringIO(text, newline=""), index_col=False, **options)
    except (pd.errors.ParserError, ValueError):
        return None
    return [tuple(None if pd.isna(cell) else cell for cell in row) for row in frame.itertuples(index=False)]
