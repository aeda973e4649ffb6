"""Columns, labels and splits of a user's own file: found and said, or refused."""

import json
from collections import Counter

import pytest
from data_harness import prepared, rows_with, table, texts, write_csv, write_file, write_jsonl

from hf_posenc.data import DataArguments, Use, find_columns, prepare, read_splits
from hf_posenc.data.splitting import choose_texts, mark_of
from hf_posenc.errors import UserError

AB = ["a", "b"] * 10


def columns_of(**columns):
    return find_columns(table(is_text=True, **columns), DataArguments())


# ---- text and label --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["kategorie", "score", "stars", "status", "Class"])
def test_the_only_column_that_is_left_is_the_label(label, tmp_path):
    data = prepared(write_csv(tmp_path / "a.csv", rows_with(AB, label)))
    assert (data.columns.text, data.columns.label) == (("text",), label)
    assert data.summary.line() == (f"Text: text; label: {label}; 2 labels (a, b); train 20 rows from 21 lines.")


def test_ids_and_dates_are_never_the_text():
    ids = [f"TCK-{row}" for row in range(20)]
    dates = [f"2024-05-{row % 28 + 1:02} 10:00" for row in range(20)]
    columns = columns_of(ticket_id=ids, created=dates, comment=texts(20), kategorie=AB)
    assert (columns.text, columns.label) == (("comment",), "kategorie")
    assert columns.sentence(["ticket_id", "created", "comment", "kategorie"]) == (
        "Text: comment; label: kategorie; not used: ticket_id, created"
    )
    with pytest.raises(UserError, match=r"to hold text: the data has ticket_id \(id\), created \(date"):
        columns_of(ticket_id=ids, created=dates, label=AB)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"title": texts(20), "body": texts(20), "label": AB},
            "title,body --text-column-delimiter ' '; as a pair: --text-column-names title,body",
        ),
        ({"Text": texts(20), "TEXT": texts(20), "label": AB}, "two spellings. Name one: --text-column-names"),
        ({"text": texts(20), "Label": AB, "LABEL": AB}, "two spellings. Name one: --label-column-name"),
        ({"text": texts(20), "stars": AB, "status": AB}, "'stars' and 'status' could be one. Name it: --label-column"),
    ],
)
def test_columns_that_could_both_be_meant_are_refused(columns, message):
    with pytest.raises(UserError, match=message):
        columns_of(**columns)


def test_a_first_row_of_data_is_not_taken_for_names(tmp_path):
    lines = (f"{text},{value}\n" for text, value in zip(texts(20), AB, strict=True))
    path = write_file(tmp_path / "a.csv", "".join(lines))
    with pytest.raises(UserError, match="is one of data: 'a' is a label. Write a first row of names above it"):
        prepared(path)


# ---- labels ----------------------------------------------------------------------------------------------------------


def labelled(tmp_path, values, mark=",", **options):
    return prepared(write_csv(tmp_path / "a.csv", rows_with(values), delimiter=mark), **options)


PARTS = [f"{what}|{who}" for what in "abcdef" for who in "uvwxyz"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([str(5 * row % 415) for row in range(830)], "83 different whole numbers in 830 rows, each of which is a"),
        (PARTS * 3, "of 12 parts. If these are several labels in one cell, give --label-delimiter '|'"),
        (["0", "1", "01"] * 4, "has the labels '1' and '01', which count as different labels"),
        (["Pos", "pos", "x"] * 4, "has the labels 'Pos' and 'pos', which count as different labels"),
        *(
            (["a", "b", nothing] * 4, f"has the label {nothing!r} in 4 rows, which counts as a label")
            for nothing in ("NA", "NULL", "\\N", "nan")
        ),
    ],
)
def test_labels_that_may_be_meant_otherwise_are_said(tmp_path, caplog, values, message):
    labelled(tmp_path, values)
    assert message in caplog.text


def test_decimal_commas_are_numbers_and_said(tmp_path, caplog):
    data = labelled(tmp_path, ["5,4", "2", "3,25", "1,5"] * 3, mark=";")
    assert data.labels.problem_type == "regression"
    assert data.splits["train"].labels[:3] == [5.4, 2.0, 3.25]
    assert "decimal commas: 5,4 is read as 5.4 (--decimal . keeps it as a word)" in caplog.text
    assert labelled(tmp_path, ["5,4", "2"] * 3, mark=";", decimal=".").labels.names == ("2", "5,4")
    assert labelled(tmp_path, ["5,4", "2"] * 3, mark=";", decimal=",").labels.problem_type == "regression"


def test_blanks_and_empty_parts_are_no_labels(tmp_path):
    assert labelled(tmp_path, ["a|", "a| b", "b"] * 3, label_delimiter="|").labels.names == ("a", "b")
    assert len(labelled(tmp_path, PARTS * 3, label_delimiter="|").labels.names) == 12
    assert prepared(write_jsonl(tmp_path / "a.jsonl", rows_with(["x", " x", "y"] * 2))).labels.names == ("x", "y")


def test_one_hot_columns_are_labels(tmp_path):
    rows = [{"text": text, "a": row % 2, "b": 1 - row % 2, "c": 0} for row, text in enumerate(texts(12))]
    data = prepared(write_csv(tmp_path / "a.csv", rows), label_column_name="a,b,c")
    assert data.labels.problem_type == "single_label_classification"
    assert data.labels.names == ("a", "b", "c")
    assert data.splits["train"].labels == [1, 0] * 6
    with pytest.raises(UserError, match="Columns of 0 and 1: --label-column-name a,b,c."):
        prepared(str(tmp_path / "a.csv"))
    rows[0]["c"] = 1
    data = prepared(write_csv(tmp_path / "b.csv", rows), label_column_name="a,b,c")
    assert data.labels.problem_type == "multi_label_classification"
    assert data.splits["train"].labels[0] == [0.0, 1.0, 1.0]
    rows[7]["b"] = "?"
    with pytest.raises(UserError, match="column 'b' has '\\?' in line 9"):
        prepared(write_csv(tmp_path / "c.csv", rows), label_column_name="a,b,c")


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_equal_texts_fall_on_one_side(tmp_path):
    """Each text stands in two rows, as in a file that was joined with itself."""
    data = prepared(write_csv(tmp_path / "a.csv", rows_with("xy" * 50) * 2), validate=True)
    train, validation = (data.splits[split] for split in ("train", "validation"))
    assert not set(train.texts[0]) & set(validation.texts[0])
    assert len(train) + len(validation) == 200
    assert Counter(validation.labels) == {0: 10, 1: 10}
    assert "90 train rows with the text and the label of an earlier one." in data.summary.doubts()


def test_contradictions_and_texts_that_splits_share_are_counted(tmp_path):
    rows = rows_with("xy" * 20)
    train = write_csv(tmp_path / "a.csv", [*rows, {**rows[0], "label": "y"}, rows[1]])
    test = write_csv(tmp_path / "b.csv", [*rows[:10], {"text": "new", "label": "x"}])
    data = prepared(train, test_file=test, validation_file=test, validate=True)
    assert (data.summary.repeated, data.summary.contradictory) == (1, 1)
    assert data.summary.shared == {"validation": 10, "test": 10}
    doubts = data.summary.doubts()
    assert "1 training text with different labels in different rows." in doubts
    assert "10 of 11 test texts also in the training data: scores on them say little." in doubts


@pytest.mark.parametrize("validate", [False, True])
def test_test_data_without_labels_is_left_out_and_that_is_said(tmp_path, caplog, validate):
    train = write_csv(tmp_path / "a.csv", rows_with("xy" * 20))
    test = write_csv(tmp_path / "b.csv", [{"text": "new one"}])
    assert "test" not in prepared(train, validate=validate, test_file=test).splits
    assert "The test split has no labels, so it isn't scored." in caplog.text


def test_one_text_in_many_rows_stays_on_one_side(tmp_path):
    rows = [{"text": f"a b {max(row, 100)}", "label": "xy"[row % 2]} for row in range(140)]
    train = prepared(write_csv(tmp_path / "a.csv", rows), validate=True, validation_split_percentage=50).splits["train"]
    # 70 rows at most, and the one text stands in 101; a text of the other label stays to train on.
    assert train.texts[0].count("a b 100") == 101
    assert 102 <= len(train) < 140


def test_max_train_samples_are_the_first_rows(tmp_path):
    data = prepared(write_csv(tmp_path / "a.csv", rows_with("xy" * 20)), validate=True, max_train_samples=5)
    held = set(data.splits["validation"].rows)
    train = data.splits["train"]
    assert train.rows == [row for row in range(40) if row not in held][:5]
    assert train.places == [row + 2 for row in train.rows]  # lines, below that of the names
    assert "the first 5 used" in data.summary.line()


def test_blanks_around_a_text_make_no_other_text_and_pairs_differ_where_they_are_divided():
    assert mark_of(" a b\n") == mark_of("a b") != mark_of("ab")
    assert len({mark_of("a", "bc"), mark_of("ab", "c"), mark_of("abc")}) == 3


def divided(labels, percentage):
    marks = [row * 7919 for row in range(len(labels))]
    held = choose_texts(marks, labels, percentage)
    return tuple(
        Counter(label for mark, label in zip(marks, labels, strict=True) if (mark in held) is side)
        for side in (False, True)
    )


@pytest.mark.parametrize(
    ("labels", "percentage", "train", "validation"),
    [
        ("ab" * 5, 10, {"a": 4, "b": 4}, {"a": 1, "b": 1}),
        ("a" * 8 + "bb", 10, {"a": 7, "b": 1}, {"a": 1, "b": 1}),
        ("a" * 970 + "b" * 20 + "c" * 10, 10, {"a": 873, "b": 18, "c": 9}, {"a": 97, "b": 2, "c": 1}),
        ("a" * 995 + "b" * 5, 10, {"a": 896, "b": 4}, {"a": 99, "b": 1}),
        ("a" * 50 + "b" * 49 + "c", 10, {"a": 45, "b": 44, "c": 1}, {"a": 5, "b": 5}),
        ([None] * 10, 10, {None: 8}, {None: 2}),
        ("aabb", 90, {"a": 1, "b": 1}, {"a": 1, "b": 1}),  # one of each stays to train on
    ],
)
def test_each_label_is_held_out_in_its_share(labels, percentage, train, validation):
    assert divided(labels, percentage) == (train, validation)


def test_a_row_with_several_labels_is_held_out_by_the_rarest(tmp_path):
    values = [["a"], ["a", "b"], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]] * 4
    data = prepared(write_jsonl(tmp_path / "a.jsonl", rows_with(values)), validate=True, validation_split_percentage=13)
    assert [max(column) for column in zip(*data.splits["validation"].labels, strict=True)] == [1.0, 1.0, 1.0]


def test_what_is_said_of_the_data_is_kept(tmp_path):
    rows = [{**row, "id": number} for number, row in enumerate(rows_with("xy" * 10))]
    rows[3]["label"] = ""
    data = prepared(write_csv(tmp_path / "a.csv", rows), skip_missing=True)
    kept = json.loads(json.dumps(data.summary.to_dict()))
    assert kept["line"] == (
        "Text: text; label: label; not used: id; 2 labels (x, y); train 20 rows from 21 lines, 1 left out."
    )
    assert kept["splits"]["train"]["without_label"] == 1


def test_an_evaluation_says_which_texts_were_trained_on(tmp_path):
    rows = rows_with("xy" * 10)
    trained = prepared(write_csv(tmp_path / "a.csv", rows)).splits["train"].marks
    data = DataArguments(test_file=write_csv(tmp_path / "b.csv", [*rows[:3], {"text": "new", "label": "x"}]))
    use = Use(train=False, test=True, label_names=["x", "y"], trained_on=frozenset(trained))
    assert prepare(read_splits(data), data, use).summary.shared == {"test": 3}
