"""Columns, labels and splits of a user's own file: found and said, or refused."""

import json
import re
from collections import Counter

import pytest
from data_harness import prepared, rows_with, table, texts, write_csv, write_jsonl

from hf_posenc.data import DataArguments, Use, find_columns, prepare, read_splits
from hf_posenc.data.splitting import choose_texts, mark_of
from hf_posenc.errors import UserError

AB = ["a", "b"] * 10


# ---- text and label --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"review": texts(3), "stars": ["5", "4", "5"]},
            "the file: no column is called text or sentence, nor a pair such as text and text_pair; no column is "
            "called label or labels. It has review ('the box arrived late 0'), stars ('5'). Say which: such as "
            "--text-column-names review --label-column-name stars. If these are no names, write a first row of names.",
        ),
        ({"Text": texts(3), "label": AB[:3]}, "no column is called text or sentence.*--text-column-names Text."),
        ({"text": texts(3), "Label": AB[:3]}, "no column is called label or labels.*--label-column-name Label."),
        ({"text": texts(3), "sentence": texts(3), "label": AB[:3]}, "text and sentence could all be meant"),
        ({"text": texts(3), "label": AB[:3], "labels": AB[:3]}, "label and labels could all be meant"),
        (
            {"text": texts(3), "premise": texts(3), "hypothesis": texts(3), "label": AB[:3]},
            "premise, hypothesis and text could all be meant",
        ),
        ({"text;label": ["a b;x", "c d;y"]}, "If ';' separates the columns: --delimiter ';'."),
    ],
)
def test_columns_without_a_usual_name_are_refused_with_the_options_that_name_them(columns, message):
    with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
        find_columns(table(is_text=True, **columns), DataArguments())


# ---- labels ----------------------------------------------------------------------------------------------------------


def labelled(tmp_path, values, mark=",", **options):
    return prepared(write_csv(tmp_path / "a.csv", rows_with(values), delimiter=mark), **options)


PARTS = [f"{what}|{who}" for what in "abcdef" for who in "uvwxyz"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
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


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([str(5 * row % 415) for row in range(830)], "83 different whole numbers. Say what they are: --task classif"),
        ([f"{row}.0" for row in range(60)], "has 60 different whole numbers"),
        (["5,4", "2", "3,25"] * 3, "has 5,4, which may be a number. Write numbers with a point, as 5.4; --task classi"),
        (["8,320", "1,250"] * 3, "has 8,320, which may be a number"),
    ],
)
def test_labels_that_may_be_classes_or_numbers_need_a_task(tmp_path, cells, message):
    with pytest.raises(UserError, match=message):
        labelled(tmp_path, cells)
    assert labelled(tmp_path, cells, task="classification").labels.names


ONE_HOT = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]]


def test_lists_of_marks_and_lists_of_names_are_told_apart_by_an_option(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(ONE_HOT))
    with pytest.raises(UserError, match=r"lists of 3 numbers 0 and 1, such as \[0, 1, 0\].*--label-names a,b,c"):
        prepared(path)
    data = prepared(path, label_names="a,b,c")
    assert (data.labels.names, data.labels.problem_type) == (("a", "b", "c"), "multi_label_classification")
    assert data.splits["train"].labels == ONE_HOT
    assert prepared(write_jsonl(tmp_path / "b.jsonl", rows_with([["0"], ["1", "0"]])), label_names="0,1").labels.names


def test_a_label_of_all_rows_or_of_none_is_refused_unless_it_is_listed(tmp_path, caplog):
    rows = rows_with([["a", "b"], ["a"], ["a", "c"]])
    with pytest.raises(UserError, match="All or none of the 3 training rows have the label 'a'.*--label-names a,b,c"):
        prepared(write_jsonl(tmp_path / "a.jsonl", rows))
    data = prepared(str(tmp_path / "a.jsonl"), label_names="d,c,b,a")
    assert data.splits["train"].labels == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]]
    assert "All or none of the 3 training rows have the label 'd', 'a': nothing is learned of it." in caplog.text


@pytest.mark.parametrize(
    ("names", "cells", "said", "numbers"),
    [
        (["pos", "neg"], ["neg", "pos"], None, [1, 0]),
        (["LABEL_0", "LABEL_1"], [0, 1], None, [0, 1]),
        (["LABEL_0", "LABEL_1"], [1.0, 0.0], None, [1, 0]),
        (["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_0"], None, [1, 0]),
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], "pos,neg", [1, 0]),
        (["pos", "neg"], [0, 1], "neg,pos", [1, 0]),
        (["LABEL_1", "LABEL_0"], ["LABEL_1", "LABEL_0"], None, [0, 1]),  # their real names
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], None, "2 labels without names.*--label-names neg,pos"),
        (["LABEL_0", "LABEL_1"], [0, 2], None, "2 labels without names"),
        (["pos", "neg"], [0, 1], None, "has the label '[01]' .* It knows 'pos', 'neg'"),
        (["pos", "neg"], ["good", "neg"], None, "has the label 'good'"),
        (["pos", "neg"], ["pos", "neg"], "pos", "--label-names 'pos' must list each label once"),
    ],
)
def test_labels_to_score_must_be_the_models_names(tmp_path, names, cells, said, numbers):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(cells))
    use = Use(train=False, score_test=True, label_names=names, problem_type="single_label_classification")

    def read():
        data = DataArguments(test_file=path, label_names=said)
        return prepare(read_splits(data), data, use).splits["test"].labels

    if isinstance(numbers, list):
        assert read() == numbers
    else:
        with pytest.raises(UserError, match=numbers):
            read()


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


def test_case_white_space_and_forms_of_characters_make_no_other_text_and_pairs_differ_where_they_are_divided():
    assert mark_of(" a b\n") == mark_of("A \t b") == mark_of("\uff41\u00a0b") != mark_of("ab")
    assert mark_of("Straße ﬁn") == mark_of("STRASSE fin")
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
    options = {"validation_split_percentage": 13, "label_names": "a,b,c"}
    data = prepared(write_jsonl(tmp_path / "a.jsonl", rows_with(values)), validate=True, **options)
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
