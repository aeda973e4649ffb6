"""The problem type and the labels: as they are written; `test_data_refused.py` has what is refused."""

import re

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_posenc.training.metrics import make_loss
from tests.support.common import write_csv, write_jsonl
from tests.support.data import (
    Known,
    Options,
    UserError,
    as_table,
    prepare,
    prepared,
    read,
    rows_with,
    table,
    texts,
    write_file,
)

pytestmark = pytest.mark.usefixtures("spelt_by_train")
ONE, SEVERAL = "single_label_classification", "multi_label_classification"
NUMBERS = {"problem_type": "regression"}
BARS = {"label_delimiter": "|"}
MARKS = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("cells", "options", "names"),
    [
        (["007", "7"], {}, ("007", "7")),
        (["1e5", "2e3"], {}, ("1e5", "2e3")),
        (["10", "9", "-2"], {}, ("-2", "9", "10")),
        (["1", "NA"], {}, ("1", "NA")),
        (["nan", "null"], {}, ("nan", "null")),
        (["yes ", " yes", "no"], {}, ("no", "yes")),
        (["123456789012345678901234567890", "5"], {}, ("123456789012345678901234567890", "5")),
        (["0.0", "1.0", "1.0", "0.0"], {}, ("0", "1")),  # as pandas writes whole numbers beside an empty cell
        (["2.0", "10.0", "1", "1", "2", "10"], {}, ("1", "2", "10")),
        (["1.0", "2.0"], {"problem_type": ONE}, ("1", "2")),
        (["1.10", "1.1"], {"problem_type": ONE}, ("1.1", "1.10")),  # versions
        (["caf\u00e9", "cafe\u0301", "x", "x"], {}, ("caf\u00e9", "x")),
        (["0.5", "+2.0", "-3", "1e-05", ".25"], {}, ()),
        (["0.0", "1.0"] * 2, NUMBERS, ()),
    ],
)
@pytest.mark.parametrize(("kind", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_label_of_a_csv_keeps_its_spelling_unless_it_is_a_number(cells, options, names, tmp_path, kind, mark):
    lines = [f"{text}{mark}{cell}\n" for text, cell in zip(texts(len(cells)), cells, strict=True)]
    data = prepared(write_file(tmp_path / f"a.{kind}", f"text{mark}label\n{''.join(lines)}"), **options)
    assert (data.labels.names, data.labels.problem_type) == (names, ONE if names else "regression")
    assert names or data.splits["train"]["labels"][:] == [float(cell) for cell in cells]


@pytest.mark.parametrize(
    ("train", "test", "options", "known", "names", "numbers"),
    [
        ([10, 9, 10], [10], {}, (), ("9", "10"), ([1, 0, 1], [1])),
        ([True, False], [True], {}, (), ("False", "True"), ([1, 0], [1])),
        ([0.0, 1.0, 2.0] * 2, [2, 0], {}, (), ("0", "1", "2"), ([0, 1, 2] * 2, [2, 0])),
        ([0, 1, 2], [2.0, 0.0], {}, (), ("0", "1", "2"), ([0, 1, 2], [2, 0])),
        (
            [0.5, 1.0, 10.5],
            [1.0],
            {"problem_type": ONE},
            (),
            ("0.5", "1.0", "10.5"),
            ([0, 1, 2], [1]),
        ),  # spelt as trained
        ([["b", "a"], [], ["c"]], [["c"]], {}, (), ("a", "b", "c"), ([[1, 1, 0], [0, 0, 0], [0, 0, 1]], [[0, 0, 1]])),
        (["b|a", None], ["b"], BARS, (), ("a", "b"), ([[1, 1], [0, 0]], [[0, 1]])),
        (["a|", "c| b"], ["b"], BARS, (), ("a", "b", "c"), ([[1, 0, 0], [0, 1, 1]], [[0, 1, 0]])),
        ([1, 2], [2], BARS, (), ("1", "2"), ([[1, 0], [0, 1]], [[0, 1]])),
        ([1.0, None, 0.0], [1], BARS, (), ("0", "1"), ([[0, 1], [0, 0], [1, 0]], [[0, 1]])),  # as beside a gap
        (MARKS, [[0, 0, 1]], {"label_names": "a,b,c"}, (), ("a", "b", "c"), (MARKS, [[0, 0, 1]])),
        ([[0, 1], [2]], [[0, 1]], {}, (), ("0", "1", "2"), ([[1, 1, 0], [0, 0, 1]], [[1, 1, 0]])),  # no marks
        ([[0, 1], [2]], [[0, 1]], {"label_names": "a,b,c"}, (), ("a", "b", "c"), ([[1, 1, 0], [0, 0, 1]], [[1, 1, 0]])),
        ([["a"], ["b"]], [[1, 1]], {"label_names": "a,b"}, (), ("a", "b"), ([[1, 0], [0, 1]], [[1, 1]])),
        ([["0"], ["1", "0"]], [["1"]], {"label_names": "0,1"}, (), ("0", "1"), ([[1, 0], [1, 1]], [[0, 1]])),
        (["x", " x", "y"], ["y "], {}, (), ("x", "y"), ([0, 0, 1], [1])),
        ([0.5, 1.5], [1, 2], {}, (), (), ([0.5, 1.5], [1, 2])),
        ([1, 2, 5], [7], NUMBERS, (), (), ([1, 2, 5], [7])),
        (["a", "b"], ["b"], {}, ("b", "a"), ("b", "a"), ([1, 0], [0])),  # of a trained model
        (["x", "y"], ["y"], {}, ("b", "a"), ("x", "y"), ([0, 1], [1])),
        (["\u00e9", "b"], ["b"], {"label_names": "\u00e9,b"}, ("e\u0301", "b"), ("e\u0301", "b"), ([0, 1], [1])),
        ([5, 1, 2, 2, 4, 3], [1], {"label_names": "1,2,3,4,5"}, (), tuple("12345"), ([4, 0, 1, 1, 3, 2], [0])),
        ([1, -1, 0], [0], {"label_names": "-1,0,1"}, (), ("-1", "0", "1"), ([2, 0, 1], [1])),
        *(
            (cells, cells[:1], {"skip_missing": True}, (), ("a", "b"), ([0, 1], [0]))
            for cells in (["a", None, "b"], ["a", " ", "b"])
        ),
        ([["a"], None, ["b"]], [["b"]], {"skip_missing": True}, (), ("a", "b"), ([[1, 0], [0, 1]], [[0, 1]])),
        ([0.5, None, 1.5], [1], {"skip_missing": True}, (), (), ([0.5, 1.5], [1])),
    ],
)
def test_labels_are_numbered_from_the_training_split(train, test, options, known, names, numbers):
    tables = {
        split: table(text=texts(len(cells)), label=cells) for split, cells in {"train": train, "test": test}.items()
    }
    data = prepare(tables, Options(validation_share=0, **options), Known(label_names=known))
    assert (data.labels.names, data.labels.num_labels) == (names, len(names or [1]))
    assert tuple(data.splits[split]["labels"][:] for split in ("train", "test")) == numbers
    blank = sum(not any(row) for row in numbers[0]) if isinstance(numbers[0][0], list) else 0
    assert (f", {blank} with no label; test" in data.summary.line) == (blank > 0)
    single_type = ONE if names else "regression"
    assert data.labels.problem_type == (SEVERAL if isinstance(numbers[0][0], list) else single_type)


@pytest.mark.parametrize("number", [-2, 2])
def test_a_class_number_that_is_not_declared_is_refused_with_its_row(number):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    rows = pa.table({"text": texts(3), "label": [0, 1, number]}).replace_schema_metadata(features.arrow_schema.metadata)
    with pytest.raises(UserError, match=rf"unknown labels: '{number}' \(row 2\). Known are 'neg', 'pos'"):
        prepare({"train": as_table(rows, "a")}, Options(validation_share=0))


def test_declared_labels_that_differ_by_a_blank_are_two():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes", "yes "])})
    rows = Dataset.from_dict({"text": texts(3), "label": [2, 0, 1]}, features=features)
    data = prepare({"train": as_table(rows, "a")}, Options(validation_share=0))
    assert (data.labels.names, data.splits["train"]["labels"][:]) == (("no", "yes", "yes "), [2, 0, 1])


@pytest.mark.parametrize(
    ("cells", "options", "names", "numbers"),
    [
        ([1, 0], {}, ("neg", "pos", "neutral"), [1, 0]),
        ([1, 0, -1], {"skip_missing": True}, ("neg", "pos", "neutral"), [1, 0]),  # -1: unlabelled, as in GLUE
        ([1, 0], {"label_names": "pos,neutral,neg"}, ("pos", "neutral", "neg"), [0, 2]),
        ([[1], [0]], {}, ("neg", "pos", "neutral"), [[0, 1, 0], [1, 0, 0]]),
        (
            [1, 0],
            {"label_names": "no,yes"},
            "unknown labels: 'pos' (row 0); 'neg' (row 1). Known are 'no', 'yes'. Write these.",
            [],
        ),
        ([1, -1], {}, "Missing label in the train data: row 1 has none", []),
    ],
)
def test_labels_that_the_data_set_names_keep_their_order(cells, options, names, numbers):
    kind = ClassLabel(names=["neg", "pos", "neutral"])
    features = Features({"text": Value("string"), "label": List(kind) if isinstance(cells[0], list) else kind})

    def split(labels):
        return as_table(Dataset.from_dict({"text": texts(len(labels)), "label": labels}, features=features), "a")

    tables, options = {"train": split(cells)}, Options(validation_share=0, **options)
    if isinstance(names, str):
        with pytest.raises(UserError, match=re.escape(names)):
            prepare(tables, options)
        return
    if not isinstance(cells[0], list):
        tables["test"] = split([-1, -1])
    data = prepare(tables, options)
    assert (data.labels.names, data.splits["train"]["labels"][:], [*data.splits]) == (names, numbers, ["train"])


def test_marks_of_another_length_than_those_of_training_are_refused():
    tables = {"train": table(text=texts(4), label=MARKS), "validation": table(text=texts(2), label=[[0, 1], [1, 0]])}
    with pytest.raises(UserError, match="lists of 2 numbers 0 and 1, such as .0, 1.. If they mark labels"):
        prepare(tables, Options(label_names="a,b,c"))


def test_a_label_of_all_rows_or_of_none_is_a_doubt_where_it_is_listed(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with([["a", "b"], ["a"], ["a", "c"]]))
    data = prepared(path, label_names="d,c,b,a")
    assert data.splits["train"]["labels"][:] == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]]
    assert data.summary.doubts == [
        "All or none of the 3 training rows have the label 'd', 'a': nothing is learned of it."
    ]


def test_one_hot_columns_are_labels(tmp_path):
    rows = [{"text": text, "a": row % 2, "b": 1 - row % 2, "c": row == 0} for row, text in enumerate(texts(12))]
    rows[7]["b"] = " "
    path = write_csv(tmp_path / "a.csv", rows)
    data = prepared(path, label_column="a,b,c", skip_missing=True)
    assert (data.labels.names, data.labels.problem_type) == (("a", "b", "c"), SEVERAL)
    assert data.splits["train"]["labels"][:] == [[row % 2, 1 - row % 2, row == 0] for row in range(12) if row != 7]


# ---- a trained model's labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "names", "cells", "said", "numbers"),
    [
        (ONE, ["pos", "neg"], ["neg", "pos"], None, [1, 0]),
        (ONE, ["yes", "yes ", "no"], ["yes ", " yes", " no"], None, [1, 0, 2]),
        (ONE, ["0", "1"], [1.0, 0.0], None, [1, 0]),
        (ONE, ["0.5", "1.0", "2.0"], [1.0, 2.0], None, [1, 2]),
        (ONE, ["LABEL_0", "LABEL_1"], [0, 1], None, [0, 1]),
        (ONE, ["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_0"], None, [1, 0]),
        (ONE, ["LABEL_0", "LABEL_1"], ["neg", "pos"], "pos,neg", [1, 0]),
        (ONE, ["pos", "neg"], [0, 1], "neg,pos", [1, 0]),
        (ONE, ["LABEL_1", "LABEL_0"], ["LABEL_1", "LABEL_0"], None, [0, 1]),  # their real names
        (ONE, ["LABEL_0", "LABEL_1"], ["neg", "pos"], None, "2 labels without names.*--label-names 'neg,pos'"),
        (ONE, ["LABEL_0", "LABEL_1"], [0, 2], None, "2 labels without names"),
        (ONE, ["pos", "neg"], [0, 1], None, "has unknown labels: '0' .line 1.; '1' .line 2.. Known are 'pos', 'neg'"),
        (ONE, ["pos", "neg"], ["pos", "neg"], "pos", "--label-names 'pos' must list each label once"),
        (
            ONE,
            ["a", "b"],
            [["a"]],
            None,
            r"has \['a'\] in column 'label', .* is single_label_classification: write one",
        ),
        (ONE, ["a", "b"], [0.5], None, "has unknown labels: '0.5' .line 1.. Known are 'a', 'b'"),
        (SEVERAL, ["0", "1", "2"], [[0, 1]], None, [[1, 1, 0]]),
        (SEVERAL, ["a", "b"], [[0, 1]], "a,b", [[0, 1]]),
        (SEVERAL, ["1", "2", "3"], [[0, 0, 1], [1, 0, 1]], "1,2,3", [[0, 0, 1], [1, 0, 1]]),
        (SEVERAL, ["0", "1", "2"], [[0, 0, 1]], None, "lists of 3 numbers 0 and 1"),
        (SEVERAL, ["a", "b", "c"], [[0, 1], [1, 0]], None, "holds lists of 2 numbers 0 and 1"),
        (SEVERAL, ["a", "b"], [[0, 1]], None, "holds lists of 2 numbers 0 and 1, such as .0, 1.. If they mark labels"),
        (SEVERAL, ["a", "b"], ["a"], None, "problem type is multi_label_classification: write lists of labels, cells"),
    ],
)
def test_labels_to_score_must_be_the_models_names(tmp_path, kind, names, cells, said, numbers):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(cells))
    known = Known(label_names=tuple(names), problem_type=kind)

    def read_them():
        options = Options(data=path, label_names=said)
        return prepare({"test": read(options)["train"]}, options, known).splits["test"]["labels"][:]

    if isinstance(numbers, list):
        assert read_them() == numbers
    else:
        with pytest.raises(UserError, match=numbers):
            read_them()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize(("cells", "others"), [(["1.5", "2", "3"], ["2", "3"]), (["1", "2", "5"], ["5", "1"])])
def test_numbers_to_predict_may_all_occur_in_training(tmp_path, kind, cells, others):
    mark = {"csv": ",", "tsv": "\t"}.get(kind)
    splits = {}
    for split, numbers in (("train", cells), ("validation", others)):
        if mark is None:
            splits[split] = write_jsonl(tmp_path / f"{split}.jsonl", rows_with(list(map(float, numbers))))
        else:
            lines = "".join(f"t{row}{mark}{cell}\n" for row, cell in enumerate(numbers))
            splits[split] = write_file(tmp_path / f"{split}.{kind}", f"text{mark}label\n{lines}")
    options = Options(data=splits["train"], validation=splits["validation"], **NUMBERS)
    data = prepare(read(options), options)
    assert data.splits["validation"]["labels"][:] == list(map(float, others))


CAFE = ("caf\u00e9", "cafe\u0301")


@pytest.mark.parametrize("written", CAFE)
@pytest.mark.parametrize("known", CAFE)
def test_a_known_label_keeps_its_unicode_form(tmp_path, written, known):
    data = write_jsonl(tmp_path / "a.jsonl", rows_with([written, "tee"] * 2))
    order = ("tee", known)
    for options, names in (({}, order), ({"label_names": f"tee,{known}"}, ())):
        trained = prepare(read(given := Options(data=data, validation_share=0, **options)), given, Known(None, names))
        assert (trained.labels.names, trained.splits["train"]["labels"][:]) == (order, [1, 0] * 2)
        assert "in the model's order" not in trained.summary.line
    other = Options(data=data, validation_share=0, label_names=f"{known},tee")
    line = prepare(read(other), other, Known(None, order)).summary.line
    assert f"2 labels (tee, {known}), in the model's order; " in line
    for options, names in (({}, order), ({"label_names": f"tee,{known}"}, ("LABEL_0", "LABEL_1"))):
        given = Options(data=data, **options)
        scored = prepare({"test": read(given)["train"]}, given, Known(None, names, ONE))
        assert scored.splits["test"]["labels"][:] == [1, 0] * 2
    weights = make_loss(trained.labels, [1, 0], {written: 3.0, "tee": 1.0}, 0.0).weights
    assert weights.argmax() == 1


def test_a_label_called_nan_is_scored_where_no_row_has_another(tmp_path):
    """In a file of numbers nan is no label."""
    data = write_file(tmp_path / "a.csv", "text,label\na,nan\nb,nan\n")
    options, known = Options(data=data), Known(label_names=("deu", "nan"), problem_type=ONE)
    assert prepare({"test": read(options)["train"]}, options, known).splits["test"]["labels"][:] == [1, 1]


@pytest.mark.parametrize("marks", [([1, 0], [0, 1]), ([1, 1], [0, 0])])
def test_one_hot_columns_to_score_are_all_of_the_models_labels(marks):
    a, b = marks
    splits, options = {"test": table(text=["x", "y"], a=a, b=b)}, Options(label_column="a,b")
    data = prepare(splits, options, Known(None, ("b", "a"), SEVERAL))
    assert (data.labels.problem_type, data.splits["test"]["labels"][:]) == (
        SEVERAL,
        [[*row] for row in zip(b, a, strict=True)],
    )
    with pytest.raises(UserError, match="--label-column has no column for the model's label 'c'. Name one for each."):
        prepare(splits, options, Known(None, ("a", "b", "c"), SEVERAL))
