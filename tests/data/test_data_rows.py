"""Every row of a file once: quotes, ends of lines, encodings, and other readers to compare with."""

import csv
import gzip
import io
import json
import string
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pytest
from data_harness import prepared, rows_of, rows_with, write_csv, write_file
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from hf_posenc.data import DataArguments, read_table
from hf_posenc.data.inputs import read_inputs
from hf_posenc.data.reading import open_file
from hf_posenc.errors import UserError


def read(path, **options):
    return rows_of(read_table(path, DataArguments(**options)))


def stray_quotes(path, count, every, mark=","):
    """Rows of which some texts begin with a quote that nothing closes."""
    rows = [
        f"{chr(34) if row % every == 0 else ''}text {row}{mark}{'pos' if row % 2 else 'neg'}" for row in range(count)
    ]
    return write_file(path, f"text{mark}label\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize("every", [2, 7, 100])
def test_a_quote_that_is_not_closed_swallows_no_row(tmp_path, every):
    path = stray_quotes(tmp_path / "a.csv", 300, every)
    with pytest.raises(UserError, match=r"a.csv, line 2: a quote opens there") as refused:
        read(path)
    assert "--quoting none" in str(refused.value)
    assert len(read(path, quoting="none")) == 300
    path = stray_quotes(tmp_path / "a.tsv", 300, every, "\t")
    assert [row["text"] for row in read(path)] == [
        f"{chr(34) if row % every == 0 else ''}text {row}" for row in range(300)
    ]


def test_every_second_line_is_not_joined_to_the_one_before(tmp_path):
    """Python's csv, pandas and arrow read these 200 lines as 100 rows, and strict readers find nothing wrong."""
    lines = "".join(f'"good {row},pos\nbad {row}",neg\n' for row in range(100))
    path = write_file(tmp_path / "a.csv", "text,label\n" + lines)
    with pytest.raises(UserError, match="line 2: a quote opens there, closes in line 3, and line 2 has a cell without"):
        read(path)
    assert len(read(path, quoting="csv")) == 100
    assert len(read(path, quoting="none")) == 200
    path = write_file(tmp_path / "b.tsv", "text\tlabel\n" + lines.replace(",", "\t"))
    assert len(read(path)) == 200


def test_a_quoted_cell_of_a_tsv_needs_an_option(tmp_path):
    path = write_file(tmp_path / "a.tsv", 'text\tlabel\n"a ""b"""\tx\n')
    with pytest.raises(UserError, match="line 2: the cell .* begins and ends with a quote. Say what quotes are"):
        read(path)
    assert read(path, quoting="csv") == [{"text": 'a "b"', "label": "x"}]
    assert read(path, quoting="none") == [{"text": '"a ""b"""', "label": "x"}]


def test_cells_of_several_lines_are_read_where_every_cell_is_in_quotes(tmp_path):
    examples = [{"text": f"Dear all, hi,\n\nit's {row}\r\nbye", "label": "xy"[row % 2]} for row in range(50)]
    table = read_table(write_csv(tmp_path / "a.csv", examples, quoting=csv.QUOTE_ALL))
    assert rows_of(table) == examples
    assert (table.tally.rows, table.tally.joined, table.tally.lines) == (50, 50, 201)
    assert table.where(1) == "line 6"
    path = write_csv(tmp_path / "b.csv", examples)
    with pytest.raises(UserError, match="line 2: a quote opens there, closes in line 5, and line 2 has a cell without"):
        read(path)
    assert read(path, quoting="csv") == examples


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
        (b"text,label\n,x\nb,y\n", [None, "b"]),
        ("text,label\na\u2028b,x\nc\x85d,y\n".encode(), ["a\u2028b", "c\x85d"]),
        (b"text,label\na\\,x\n", ["a\\"]),
    ],
)
def test_what_a_spreadsheet_writes_is_read(tmp_path, content, rows):
    for name, data in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
        assert [row["text"] for row in read(write_file(tmp_path / name, data))] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'text,label\na,x\n"say \\"hi\\"",y\n', "line 3 has quotes .*a backslash before a quote has no meaning here"),
        (b'text,label\n"Great" film,x\n', "line 2 has quotes that don't enclose a cell"),
        (b'text,label\na,x\n"b,y\nc,x\n', "line 3: a quote opens there, and no quote that ends a cell follows up to"),
        (b"text,label\na,x\nb\0c,y\n", "line 3 holds a NUL byte"),
        (b"text,label\na,x\nb\n", "line 3 has 1 cell, the first row has 2"),
        (b"text,label\na,x,\n", "line 2 has 3 cells"),
        (b"text,text,label\na,b,x\n", "line 1 names the column 'text' twice"),
        (b"text,label\na,x\ncaf\xe9,y\n", "line 3 isn't UTF-8 text: .*--encoding latin-1"),
        ("text,label\na,x\n".encode("utf-16"), "line 1 isn't UTF-8 text: .*--encoding utf-16"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, content, message):
    for name, data in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
        path = write_file(tmp_path / name, data)
        for reader in (read, lambda path: list(read_inputs(path)), open_file):
            with pytest.raises(UserError, match=f"{name}, {message}"):
                reader(path)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
def test_another_encoding_can_be_named(tmp_path, encoding):
    path = write_file(tmp_path / "a.csv", "text,label\ncafé,x\nnaïve,y\n".encode(encoding))
    assert [row["text"] for row in read(path, encoding=encoding)] == ["café", "naïve"]
    with pytest.raises(UserError, match="--encoding 'nonsense' is unknown. Give utf-8, latin-1"):
        DataArguments(encoding="nonsense")


def test_a_text_that_looks_like_json_stays_a_text(tmp_path):
    path = write_file(tmp_path / "a.txt", '{"a":' * 100_000 + "\n\nplain\n")
    table = read_table(path)
    assert (len(table), table.tally.blank, table.columns["text"][1]) == (2, 1, "plain")


def test_bytes_are_no_text(tmp_path):
    pa.parquet.write_table(pa.table({"text": [b"a", b"b"], "label": ["x", "y"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="Column 'text' holds b'a' in row 1, which is no text"):
        prepared(str(tmp_path / "a.parquet"))


# ---- the same rows as other readers, or a refusal --------------------------------------------------------------------

CELL = st.text(alphabet="ab ,;\t\"\n\\'é" + string.digits, max_size=12)


FILES = {
    "rows": st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6),
    "kind": st.sampled_from([".csv", ".tsv"]),
    "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, None]),
    "end": st.sampled_from(["\n", "\r\n", "\r"]),
}
"""Files as writers make them, and as people make them (quoting None: quotes wherever they stand)."""


@settings(max_examples=500, deadline=None)
@given(**FILES)
def test_rows_are_those_of_other_readers_or_refused(tmp_path_factory, rows, kind, quoting, end):
    compare_readers(tmp_path_factory, rows, kind, quoting, end)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(**FILES)
def test_rows_of_five_thousand_files(tmp_path_factory, rows, kind, quoting, end):
    compare_readers(tmp_path_factory, rows, kind, quoting, end)


def compare_readers(tmp_path_factory, rows, kind, quoting, end):
    mark = "," if kind == ".csv" else "\t"
    text = io.StringIO(newline="")
    if quoting is None:
        text.write(end.join(mark.join(row) for row in [("text", "label"), *rows]))
    else:
        csv.writer(text, delimiter=mark, quoting=quoting, lineterminator=end).writerows([("text", "label"), *rows])
    path = tmp_path_factory.mktemp("fuzz") / f"a{kind}"
    path.write_bytes(text.getvalue().encode())
    try:
        table = read_table(path, DataArguments(delimiter=mark))
    except UserError:
        return
    cells = [tuple(row.values()) for row in rows_of(table)]
    literal = kind == ".tsv"
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
    read = list(csv.reader(lines, delimiter=mark, strict=True, skipinitialspace=True, quoting=quoting))
    return [tuple(cell or None for cell in row) for row in read[1:] if row and row != [""]]


def pandas_rows(text, mark):
    """What pandas reads; None where it refuses."""
    options = {"sep": mark, "dtype": str, "keep_default_na": False, "na_values": [""], "skipinitialspace": True}
    try:
        frame = pd.read_csv(io.StringIO(text, newline=""), index_col=False, **options)
    except (pd.errors.ParserError, ValueError):
        return None
    return [tuple(None if pd.isna(cell) else cell for cell in row) for row in frame.itertuples(index=False)]


def test_arrow_reads_the_same_rows_of_a_real_file(tmp_path):
    examples = [{"text": f'He said "no", {row}', "label": "xy"[row % 2]} for row in range(2000)]
    path = write_csv(tmp_path / "a.csv", examples)
    assert read(path) == arrow_csv.read_csv(path).to_pylist() == examples


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "txt", "parquet", "csv.gz", "jsonl.gz"])
def test_every_kind_of_file_gives_training_and_predictions_the_same_rows(tmp_path, kind):
    rows = [{"text": f"text {row}"} | ({} if kind == "txt" else {"label": "xy"[row % 2]}) for row in range(30)]
    base = kind.removesuffix(".gz")
    plain, path = tmp_path / f"plain.{base}", tmp_path / f"a.{kind}"
    if base in ("csv", "tsv", "parquet"):
        options = {"sep": "\t" if base == "tsv" else ","} if base != "parquet" else {}
        getattr(Dataset.from_list(rows), "to_parquet" if base == "parquet" else "to_csv")(plain, **options)
    elif base == "txt":
        write_file(plain, "\n".join(row["text"] for row in rows))
    else:
        write_file(plain, json.dumps(rows) if base == "json" else "\n".join(map(json.dumps, rows)))
    path.write_bytes(gzip.compress(plain.read_bytes()) if kind.endswith(".gz") else plain.read_bytes())
    assert read(path) == rows
    assert [text.row for text in read_inputs(str(path))] == rows


def test_reading_and_preparing_need_neither_pytorch_nor_transformers(tmp_path):
    path = write_csv(tmp_path / "a.csv", rows_with("xy" * 10))
    code = (
        "import sys\nsys.argv[0] = 'hf-posenc'\nfrom hf_posenc.data import DataArguments, Use, prepare, read_splits\n"
        f"data = DataArguments(train_file={path!r})\nprepare(read_splits(data), data, Use(validate=True))\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
