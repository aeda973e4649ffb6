"""Columns, splits and token ids of a user's own file: found and said, or refused."""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from transformers import AutoConfig, BertConfig

from hf_posenc import PosEncConfig
from hf_posenc.data.columns import find_columns, note, notes_of, remember_columns, remembered_columns
from tests.support.common import write_csv, write_jsonl
from tests.support.data import (
    Columns,
    Known,
    Options,
    UserError,
    prepare,
    prepared,
    read,
    read_file,
    rows_with,
    table,
    texts,
)

pytestmark = pytest.mark.usefixtures("spelt_by_train")

AB = ["a", "b"] * 10


# ---- text and label --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "options", "text", "label"),
    [
        (["text", "label"], {}, ("text",), "label"),
        (["label", "premise", "hypothesis"], {}, ("premise", "hypothesis"), "label"),
        (["a", "b", "label"], {"text_column": "b, a"}, ("b", "a"), "label"),
        (["text", "text_pair", "labels"], {}, ("text", "text_pair"), "labels"),
        (["Body, in full", "C"], {"text_column": "Body, in full", "label_column": "C"}, ("Body, in full",), "C"),
        (["a, b", ' c "', "label"], {"text_column": r'["a, b", " c \""]'}, ("a, b", ' c "'), "label"),
        (["text", "a, b", "c"], {"label_column": '["a, b", "c"]'}, ("text",), "a, b, c"),
        (['["a"]', "a", "label"], {"text_column": '["a"]'}, ('["a"]',), "label"),
        (["[a", "b]", "label"], {"text_column": "[a,b]"}, ("[a", "b]"), "label"),
        (["label", "labels"], {"text_column": "label"}, ("label",), "labels"),
        (["label", "y"], {"text_column": "label", "label_column": "y"}, ("label",), "y"),
    ],
)
def test_columns_are_found_by_their_names(names, options, text, label):
    columns = find_columns(table(**{name: ["x"] for name in names}), Options(**options))
    assert (columns.text, columns.label, columns.is_pair) == (text, label, len(text) == 2)


@pytest.mark.parametrize("beside", ["input_label", "confidence"])
def test_answers_of_a_model_are_no_labels_unless_that_is_said(beside):
    labels = {"text": ["x", "y"], "label": ["a", "b"]}
    tables = {"train": table(**labels), "test": table(**labels, **{beside: ["b", "a"]})}
    with pytest.raises(UserError, match="'label' seems to hold answers .* with --label-column."):
        prepare(tables, Options(validation_share=0))
    assert prepare(tables, Options(validation_share=0, label_column="label")).labels.names == ("a", "b")


# ---- what a checkpoint remembers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PosEncConfig.from_size("tiny"), BertConfig()], ids=["posenc", "bert"])
def test_a_configuration_remembers_the_columns_without_a_warning(config, tmp_path, monkeypatch):
    complaints = []
    monkeypatch.setattr("hf_posenc.schemes.support.logger.warning", complaints.append)
    for columns in (Columns(("Title", "body, in full"), ("Stars",), " ", "|"), Columns(("a", "b"), ("c", "d"))):
        remember_columns(config, columns)
        config.save_pretrained(tmp_path)
        assert remembered_columns(AutoConfig.from_pretrained(tmp_path)) == columns
    assert complaints == []


def test_columns_are_remembered_with_many_labels_in_another_order_too(tmp_path):
    config = PosEncConfig.from_size("tiny", id2label={number: f"label {number}" for number in range(12)})
    remember_columns(config, Columns(("title",)))
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written["id2label"] = dict(sorted(written["id2label"].items()))  # 0, 1, 10, 11, 2
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert remembered_columns(AutoConfig.from_pretrained(tmp_path)) == Columns(("title",))


def test_what_a_training_with_other_labels_noted_is_forgotten(tmp_path):
    config = PosEncConfig.from_size("tiny", id2label={0: "no", 1: "yes"})
    remember_columns(config, Columns(("title", "body")))
    note(config, temperature=2.0)
    config.save_pretrained(tmp_path)
    assert notes_of(AutoConfig.from_pretrained(tmp_path))["temperature"] == 2.0
    others = AutoConfig.from_pretrained(tmp_path, id2label={0: "ham", 1: "spam"})
    assert notes_of(others) == {}
    assert remembered_columns(others) is None
    remember_columns(others, Columns(("text",)))
    assert remembered_columns(others) == Columns(("text",))


JOINED = Columns(("title", "body"), ("stars",), " / ")


@pytest.mark.parametrize(
    ("options", "known", "cells"),
    [
        ({}, JOINED, [("a / b",), (" / d",)]),
        ({"join": " "}, JOINED, [("a b",), (" d",)]),
        ({"text_column": "title,body"}, JOINED, [("a / b",), (" / d",)]),
        ({"text_column": "body,title"}, JOINED, [("b / a",), ("d / ",)]),
        ({"text_column": "body"}, JOINED, [("b",), ("d",)]),
        ({}, Columns(("body", "title")), [("b", "a"), ("d", "")]),
        ({}, Columns(("sentence",)), [("t",), ("u",)]),
        ({}, None, [("t",), ("u",)]),
    ],
)
def test_texts_to_be_answered_are_put_together_as_those_that_were_trained_on(tmp_path, options, known, cells):
    rows = [{"body": "b", "title": "a", "text": "t", "n": 1}, {"body": "d", "title": None, "text": "u", "n": 2}]
    read = read_file(write_jsonl(tmp_path / "a.jsonl", rows))
    columns = find_columns(read, Options(**options), known, needs_label=False)
    assert list(zip(*columns.texts(read), strict=True)) == cells


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (Columns(("premise", "hypothesis")), ["text"]),
        (Columns(("text",)), ["premise", "hypothesis"]),
        (Columns(("text", "body"), separator=" "), ["text"]),
        (Columns(("subject", "body"), separator=" "), ["text"]),
    ],
)
def test_pairs_and_single_texts_are_not_taken_for_each_other(known, names):
    read, named = table(**dict.fromkeys(names, texts(5)), label=AB[:5]), Options(text_column=",".join(names))
    with pytest.raises(UserError, match="The model was trained on"):
        find_columns(read, Options(), known, needs_label=False)
    with pytest.raises(UserError, match="The model was trained on"):
        prepare({"test": read}, Options(), Known(known, ("a", "b"), "single_label_classification"))
    if known.separator is None:
        with pytest.raises(UserError, match="The model was trained on (pairs|single texts) .* Name (two|one) column"):
            find_columns(read, named, known)
    else:  # a text may be joined already
        assert find_columns(read, named, known).text == tuple(names)


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_equal_texts_fall_on_one_side(tmp_path):
    """Each text stands in two rows, as in a file that was joined with itself."""
    data = prepared(write_csv(tmp_path / "a.csv", rows_with("xy" * 50) * 2), validation_share=0.1)
    train, validation = (data.splits[split] for split in ("train", "validation"))
    assert not set(train["text"][:]) & set(validation["text"][:])
    assert len(train) + len(validation) == 200
    assert Counter(validation["labels"][:]) == {0: 10, 1: 10}
    assert "90 train rows with the text and the label of an earlier one." in data.summary.doubts
    rows = [{"text": f"a b {max(row, 100)}", "label": "xy"[row % 2]} for row in range(140)]
    train = prepared(write_csv(tmp_path / "b.csv", rows), validation_share=0.5).splits["train"]
    # 70 rows at most, and the one text stands in 101; a text of the other label stays to train on.
    assert train["text"][:].count("a b 100") == 101
    assert 102 <= len(train) < 140


def test_contradictions_and_texts_that_splits_share_are_counted_and_listed_where_they_stand(tmp_path):
    rows = rows_with("xy" * 20)
    more = [{**rows[0], "label": "y"}, {**rows[1], "label": "x"}, {**rows[0], "label": "y"}, rows[4]]
    test = write_csv(tmp_path / "b.csv", [*rows[:10], {"text": "new", "label": "x"}])
    validation = write_csv(tmp_path / "c.csv", [*rows[:10], {"text": "NEW ", "label": "y"}])
    data = prepared(write_csv(tmp_path / "a.csv", [*rows, *more]), test=test, validation=validation)
    shared = "10 of 11 {} texts also in the training data: scores on them say little."
    assert data.summary.doubts == [
        "2 train rows with the text and the label of an earlier one.",
        "2 training texts with different labels in different rows: lines 2 and 42; lines 3 and 43.",
        *(shared.format(split) for split in ("validation", "test")),
        "1 of 11 test texts also in the validation data: scores on them say little.",
    ]


def test_an_evaluation_says_which_texts_were_trained_on(tmp_path):
    """A training on other texts says it too, of those that its checkpoint was trained on, and passes them on."""
    rows = rows_with("xy" * 10)
    trained = prepared(write_csv(tmp_path / "a.csv", rows)).trained_on
    options = Options(data=write_csv(tmp_path / "b.csv", [*rows[:3], {"text": "new", "label": "x"}]))
    known = Known(label_names=("x", "y"), trained_on=trained)
    new = write_csv(tmp_path / "c.csv", [{"text": f"new {n}", "label": label} for n, label in enumerate("xyxy")])
    test, other = (read(one)["train"] for one in (options, Options(data=new)))
    for tables in ({"test": test}, {"train": other, "test": test}):
        data = prepare(tables, options, known)
        assert "3 of 4 test texts also in the training data: scores on them say little." in data.summary.doubts
        assert data.trained_on >= trained


def test_test_data_without_labels_is_left_out_and_that_is_said(tmp_path):
    train, test = write_csv(tmp_path / "a.csv", rows_with(AB)), write_csv(tmp_path / "b.csv", [{"text": "new one"}])
    data = prepared(train, test=test)
    assert "test" not in data.splits
    assert data.summary.doubts == ["The test split has no labels, so it isn't scored. `hf-posenc predict` labels it."]


def test_the_first_rows_are_trained_on_and_keep_their_lines(tmp_path):
    data = prepared(write_csv(tmp_path / "a.csv", rows_with("xy" * 20)), validation_share=0.1, max_rows=5)
    held, train = set(data.splits["validation"]["__line__"][:]), data.splits["train"]
    assert train["__line__"][:] == [line for line in range(2, 42) if line not in held][:5]
    assert train["text"][:] == [f"the box arrived late {line - 2}" for line in train["__line__"][:]]
    assert "the first 5 training rows used" in data.summary.line


def test_rows_without_text_or_label_are_left_out_where_that_is_asked_and_counted(tmp_path):
    rows = [{**row, "id": number} for number, row in enumerate(rows_with("xy" * 10))]
    rows[3]["label"] = rows[4]["text"] = ""
    path = write_csv(tmp_path / "a.csv", rows)
    data = prepared(path, skip_missing=True)
    assert data.splits["train"]["__line__"][:] == [line for line in range(2, 22) if line not in (5, 6)]
    line = "Text: text; label: label; not used: id; 2 labels (x, y); train 20 rows from 21 lines, 2 left out; "
    line += "18 rows to train on."
    assert asdict(data.summary) == {"line": line, "doubts": []}


@pytest.mark.parametrize("join", [" | ", None])
def test_a_text_is_missing_where_all_cells_to_join_or_one_of_a_pair_are(tmp_path, join):
    lacking = [(None, 3), ("a", None)] if join is None else [(None, None), (None, float("nan"))]
    rows = [{"a": a, "b": b, "label": "xy"[row % 2]} for row, (a, b) in enumerate([("a", 1), ("b", 2), *lacking])]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    data = prepared(path, skip_missing=True, text_column="a,b", join=join)
    assert data.splits["train"]["__line__"][:] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "equal"),
    [
        ([(" a b\n",), ("A \t b",), ("\uff41\u00a0b",), ("ab",)], ["lines 1, 2 and 3"]),
        ([("Straße ﬁn",), ("STRASSE fin",), ("c",)], ["lines 1 and 2"]),
        ([("a", "bc"), ("ab", "c"), ("abc", "d")], []),
    ],
)
def test_case_white_space_and_forms_of_characters_make_no_other_text_and_pairs_are_divided(tmp_path, rows, equal):
    examples = [dict(zip(("text", "text_pair"), parts, strict=False), label=n / 8) for n, parts in enumerate(rows)]
    doubts = prepared(write_jsonl(tmp_path / "a.jsonl", examples)).summary.doubts
    assert [doubt.partition("different rows: ")[2].removesuffix(".") for doubt in doubts] == equal


@pytest.mark.parametrize(
    ("labels", "share", "train", "validation"),
    [
        ("ab" * 5, 0.1, {"a": 4, "b": 4}, {"a": 1, "b": 1}),
        ("a" * 8 + "bb", 0.1, {"a": 7, "b": 1}, {"a": 1, "b": 1}),
        ("a" * 970 + "b" * 20 + "c" * 10, 0.1, {"a": 873, "b": 18, "c": 9}, {"a": 97, "b": 2, "c": 1}),
        ("a" * 995 + "b" * 5, 0.1, {"a": 896, "b": 4}, {"a": 99, "b": 1}),
        ("a" * 50 + "b" * 49 + "c", 0.1, {"a": 45, "b": 44, "c": 1}, {"a": 5, "b": 5}),
        ([number / 8 for number in range(10)], 0.1, {None: 8}, {None: 2}),
        ("aabb", 0.9, {"a": 1, "b": 1}, {"a": 1, "b": 1}),  # one of each stays to train on
    ],
)
def test_each_label_is_held_out_in_its_share(tmp_path, labels, share, train, validation):
    data = prepared(write_csv(tmp_path / "a.csv", rows_with(labels)), validation_share=share)
    for split, counts in (("train", train), ("validation", validation)):
        numbers = data.splits[split]["labels"][:]
        assert Counter(data.labels.names[number] if data.labels.names else None for number in numbers) == counts


def test_a_row_with_several_labels_is_held_out_by_the_rarest(tmp_path):
    values = [["a"], ["a", "b"], ["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]] * 4
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(values))
    data = prepared(path, validation_share=0.13, label_names="a,b,c")
    assert [max(column) for column in zip(*data.splits["validation"]["labels"][:], strict=True)] == [1.0, 1.0, 1.0]


def test_halves_of_a_pair_are_set_aside_together_and_counted_together(tmp_path):
    rows = [row for n in range(100) for row in (f"the dog {n} saw cat,yes", f"the cat {n} saw dog,no")]
    source = tmp_path / "pairs.csv"
    source.write_text("\n".join(["text,label", *rows]))
    options = Options(data=str(source), max_rows=51)
    data = prepare(read(options), options)
    splits = data.splits
    assert {name: len(part) for name, part in splits.items()} == {"train": 50, "validation": 20}
    assert "20 of them set aside for validation, rows of the same words together" in data.summary.line
    assert "the first 50 training rows used, rows of the same words together" in data.summary.line
    for part in splits.values():
        numbers = Counter(text.split()[2] for text in part["text"])
        assert set(numbers.values()) == {2}
    few = replace(options, max_rows=1)
    with pytest.raises(
        UserError, match="1 of the rows are too few: rows of the same words come together, here at least 2"
    ):
        prepare(read(few), few)
