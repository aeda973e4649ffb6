"""The problem type and the labels: as they are written, or refused."""

import re

import pytest
from common import write_csv, write_jsonl
from data_harness import prepared, rows_with, table, texts, write_file
from datasets import ClassLabel, Dataset, Features, List, Value

from hf_posenc.data.columns import Columns
from hf_posenc.data.labels import encode_labels
from hf_posenc.data.preparing import Known, prepare
from hf_posenc.data.reading import read_file
from hf_posenc.data.sources import read
from hf_posenc.data.tables import as_table
from hf_posenc.errors import UserError
from hf_posenc.options import Options

pytestmark = pytest.mark.usefixtures("spelt_by_train")
ONE, SEVERAL = "single_label_classification", "multi_label_classification"


def numbers_of(splits, delimiter=None, label_names=(), trained_for=None, **options):
    columns = Columns(("text",), label_delimiter=delimiter)
    return encode_labels(splits, columns, Options(**options), Known(None, tuple(label_names), trained_for))


def numbered(train, test=None, **options):
    """Labels of a training column, and of a test column."""
    splits = {"train": train} if test is None else {"train": train, "test": test}
    tables = {split: table(text=["t"] * len(labels), label=labels) for split, labels in splits.items()}
    return numbers_of(tables, **options)


def labelled(tmp_path, values, **options):
    return prepared(write_csv(tmp_path / "a.csv", rows_with(values)), **options)


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
        (["0.5", "+2.0", "-3", "1e-05", ".25"], {}, ()),
        (["0.0", "1.0"] * 2, {"problem_type": "regression"}, ()),
    ],
)
@pytest.mark.parametrize(("kind", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_label_of_a_csv_keeps_its_spelling_unless_it_is_a_number(cells, options, names, tmp_path, kind, mark):
    path = write_file(tmp_path / f"a.{kind}", f"text{mark}label\n" + "".join(f"t{mark}{cell}\n" for cell in cells))
    labels, numbers = numbers_of({"train": read_file(path)}, **options)
    assert labels.names == names
    assert labels.problem_type == (ONE if names else "regression")
    assert names or numbers["train"] == [float(cell) for cell in cells]


@pytest.mark.parametrize(
    ("train", "test", "options", "names", "numbers"),
    [
        ([10, 9, 10], [10], {}, ("9", "10"), ([1, 0, 1], [1])),
        ([True, False], [True], {}, ("False", "True"), ([1, 0], [1])),
        ([0.0, 1.0, 2.0] * 2, [2, 0], {}, ("0", "1", "2"), ([0, 1, 2] * 2, [2, 0])),
        ([0, 1, 2], [2.0, 0.0], {}, ("0", "1", "2"), ([0, 1, 2], [2, 0])),
        ([0.5, 1.0, 10.5], [0.5], {"problem_type": ONE}, ("0.5", "1.0", "10.5"), ([0, 1, 2], [0])),
        ([["b", "a"], [], ["c"]], [["c"]], {}, ("a", "b", "c"), ([[1, 1, 0], [0, 0, 0], [0, 0, 1]], [[0, 0, 1]])),
        (["b|a", None], ["b"], {"delimiter": "|"}, ("a", "b"), ([[1, 1], [0, 0]], [[0, 1]])),
        (["a|", "a| b"], ["b"], {"delimiter": "|"}, ("a", "b"), ([[1, 0], [1, 1]], [[0, 1]])),
        ([1, 2], [2], {"delimiter": "|"}, ("1", "2"), ([[1, 0], [0, 1]], [[0, 1]])),
        (["x", " x", "y"], ["y "], {}, ("x", "y"), ([0, 0, 1], [1])),
        ([0.5, 1.5], [1, 2], {}, (), ([0.5, 1.5], [1, 2])),
        ([1, 2, 5], [7], {"problem_type": "regression"}, (), ([1, 2, 5], [7])),
        (["a", "b"], ["b"], {"label_names": ["b", "a"]}, ("b", "a"), ([1, 0], [0])),  # of a trained model
        (["x", "y"], ["y"], {"label_names": ["b", "a"]}, ("x", "y"), ([0, 1], [1])),
    ],
)
def test_labels_are_numbered_from_the_training_split(train, test, options, names, numbers):
    labels, numbers_by_split = numbered(train, test, **options)
    assert (labels.names, numbers_by_split["train"], numbers_by_split["test"]) == (names, *numbers)
    several = isinstance(numbers[0][0], list)
    single_type = ONE if names else "regression"
    assert labels.problem_type == (SEVERAL if several else single_type)
    assert labels.num_labels == len(names or [1])


@pytest.mark.parametrize("several", [False, True])
def test_labels_that_the_data_set_names_keep_their_order(several):
    kind = ClassLabel(names=["neg", "pos", "neutral"])
    features = Features({"text": Value("string"), "label": List(kind) if several else kind})

    def split(labels):
        cells = [[label] for label in labels] if several else labels
        return as_table(Dataset.from_dict({"text": ["x", "y"], "label": cells}, features=features), "a")

    if several:
        labels, numbers = numbers_of({"train": split([1, 0])})
        assert (labels.names, numbers["train"]) == (("neg", "pos", "neutral"), [[0, 1, 0], [1, 0, 0]])
        return
    labels, numbers = numbers_of({"train": split([1, 0]), "test": split([-1, -1])})  # -1: unlabelled, as in GLUE
    assert (labels.names, numbers["train"], numbers["test"]) == (("neg", "pos", "neutral"), [1, 0], None)
    with pytest.raises(UserError, match="Missing label in the train data: row 1 has none"):
        numbers_of({"train": split([1, -1])})
    said, numbers = numbers_of({"train": split([1, -1])}, skip_missing=True, label_names="good,bad,so".split(","))
    assert (said.names, numbers["train"]) == (("neg", "pos", "neutral"), [1, None])
    ordered = Columns(("text",)), Options(label_names="pos,neutral,neg")
    said, numbers = encode_labels({"train": split([1, 0])}, *ordered, Known())
    assert (said.names, numbers["train"]) == (("pos", "neutral", "neg"), [0, 2])
    with pytest.raises(
        UserError, match="The train data has unknown labels: 'pos' .row 0.; 'neg' .row 1.. Known are 'no', 'yes'"
    ):
        encode_labels({"train": split([1, 0])}, Columns(("text",)), Options(label_names="no,yes"), Known())


@pytest.mark.parametrize("cells", [["a", None, "b"], ["a", " ", "b"], [["a"], None, ["b"]], [0.5, None, 1.5]])
def test_rows_without_a_label_are_left_out_where_that_is_asked(cells):
    _, numbers = numbered(cells, skip_missing=True)
    assert [value is None for value in numbers["train"]] == [False, True, False]
    with pytest.raises(UserError, match="row 1 has none in column 'label' .* Fill it in, or leave such rows out with"):
        numbered(cells)


# ---- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        (["a", None, None, "b"], None, {}, r"the train data: row 1 has none in column 'label' \(2 rows in all\). Fill"),
        ([None, None], None, {"skip_missing": True}, r"label in the train data: row 0 has none .* \(2 rows in all\)"),
        ([0.5, float("nan")], None, {}, "Missing label in the train data: row 1 has none"),
        (
            ["a", "b"],
            ["a", "z"],
            {},
            "test data has unknown labels: 'z' .row 1.. Known are 'a', 'b'. Write these, or say",
        ),
        (["a", "b"], ["z", "a", "y", "z"], {}, r"unknown labels: 'z' \(rows 0 and 3\); 'y' \(row 2\)\. Known are"),
        ([["a"], ["b"]], ["a"], {}, "test data has 'a' .* type is multi_label_classification: write lists of labels"),
        ([0.5, 1.0], ["a"], {}, "test data has 'a' in column 'label', and the problem type is regression: write one n"),
        (
            [0.5, float("inf")],
            None,
            {},
            "'label' is inf in row 1 of the train data, and a model's numbers",
        ),
        (
            [0.5, -1e300],
            None,
            {},
            r"'label' is -1e\+300 in row 1 of the train data, and a model's numbers",
        ),
        ([["a", "b", "a"]], None, {}, "names a label twice in row 0"),
        ([[], []], None, {}, "No training row has a label in column"),
        ([{"a": 1}], None, {}, "Column 'label' of the train data has {'a': 1}, which is no label, word or"),
        (["1", "NA"], None, {"problem_type": "regression"}, "'NA' in column 'label', and the problem type is regress"),
        ([["a"]], None, {"problem_type": "regression"}, r"has \['a'\] .* type is regression: write one number for"),
        ([["a"]], None, {"problem_type": ONE}, r"has \['a'\] in column 'label', .* write one label for each text;"),
        (["a|b"], None, {"problem_type": ONE, "delimiter": "|"}, r"\['a', 'b'\] .* write one label for each text; or"),
        (["a"], None, {"problem_type": SEVERAL}, "lists of labels, cells with a --label-delimiter between several lab"),
        ([1, 0], None, {"problem_type": SEVERAL}, "'1' .* or columns of 0 and 1 \\(--label-column 'a,b'\\); or"),
        ([1, 2], [2.5], {}, "has unknown labels: '2.5' .row 0."),
    ],
)
def test_labels_that_cannot_be_are_refused(train, test, options, message):
    with pytest.raises(UserError, match=message):
        numbered(train, test, **options)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([str(5 * row % 415) for row in range(830)], "83 different whole numbers. Say what they are: --problem-type"),
        ([f"{row}.0" for row in range(60)], "has 60 different whole numbers"),
        (["5,4", "2", "3,25"] * 3, "has 3,25, which may be a number. Write numbers with a decimal point"),
        (["8,320", "1,250"] * 3, "has 1,250, which may be a number"),
        (["1.000,5", "2.5"] * 3, "has 1.000,5, which may be a number"),
    ],
)
def test_labels_that_may_be_classes_or_numbers_need_a_problem_type(tmp_path, cells, message):
    with pytest.raises(UserError, match=message):
        labelled(tmp_path, cells)
    assert labelled(tmp_path, cells, problem_type=ONE).labels.names


def test_names_of_labels_that_would_not_be_used_are_refused(tmp_path):
    path = write_csv(tmp_path / "a.csv", [{"text": text, "a": 1, "a2": 0, "b": 0.5} for text in texts(4)])
    for column, holds in (("b", "numbers to predict"), ("a,a2", r"2 labels \(a, a2\)")):
        with pytest.raises(UserError, match=f"--label-names 'x,y' can't be: column .* holds {holds}. Name these, or"):
            prepared(path, label_column=column, label_names="x,y")


# ---- several labels per text ----------------------------------------------------------------------------------------

MARKS = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]]


def test_names_that_are_numbers_name_the_numbers_of_the_file(tmp_path):
    stars = labelled(tmp_path, [5, 1, 2, 2, 4, 3], label_names="1,2,3,4,5")
    assert (stars.labels.names, stars.splits["train"]["labels"][:]) == (tuple("12345"), [4, 0, 1, 1, 3, 2])
    known = labelled(tmp_path, [1, -1, 0], label_names="-1,0,1")
    assert (known.labels.names, known.splits["train"]["labels"][:]) == (("-1", "0", "1"), [2, 0, 1])
    with pytest.raises(UserError, match=r"has unknown labels: '0' .line 2.. Known are '1', '2', '3'"):
        labelled(tmp_path, [0, 1, 2], label_names="1,2,3")


def test_other_splits_are_spelt_as_the_training_rows_or_the_models_labels(tmp_path):
    halves = ["0.5", "1.0", "1.5", "2.0"]
    test = write_csv(tmp_path / "test.csv", rows_with(["1.0", "2.0"]))
    data = labelled(tmp_path, halves, problem_type=ONE, test=test)
    assert (data.labels.names, data.splits["test"]["labels"][:]) == (tuple(halves), [1, 3])
    tables = {"test": read_file(test)}
    labels, numbers = numbers_of(tables, label_names=halves, trained_for=ONE)
    assert (labels.names, numbers["test"]) == (tuple(halves), [1, 3])


def test_lists_of_marks_and_lists_of_names_are_told_apart_by_an_option(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(MARKS))
    with pytest.raises(UserError, match=r"lists of 3 numbers 0 and 1, such as \[0, 1, 0\].*--label-names 'a,b,"):
        prepared(path)
    data = prepared(path, label_names="a,b,c")
    assert (data.labels.names, data.labels.problem_type) == (("a", "b", "c"), SEVERAL)
    assert data.splits["train"]["labels"][:] == MARKS
    assert prepared(write_jsonl(tmp_path / "b.jsonl", rows_with([["0"], ["1", "0"]])), label_names="0,1").labels.names


def test_a_label_of_all_rows_or_of_none_is_refused_unless_it_is_listed(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with([["a", "b"], ["a"], ["a", "c"]]))
    with pytest.raises(UserError, match="All or none of the 3 training rows have the label 'a'.*--label-names 'a,b,c'"):
        prepared(path)
    data = prepared(path, label_names="d,c,b,a")
    assert data.splits["train"]["labels"][:] == [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 0, 1]]
    doubt, _ = data.summary.doubts
    assert doubt == "All or none of the 3 training rows have the label 'd', 'a': nothing is learned of it."


def test_one_hot_columns_are_labels(tmp_path):
    rows = [{"text": text, "a": row % 2, "b": 1 - row % 2, "c": row == 0} for row, text in enumerate(texts(12))]

    def read(**options):
        data = prepared(write_csv(tmp_path / "a.csv", rows), label_column="a,b,c", **options)
        assert (data.labels.names, data.labels.problem_type) == (("a", "b", "c"), SEVERAL)
        return data.splits["train"]["labels"][:]

    numbers = read()
    assert numbers[:2] == [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    rows[7]["b"] = " "
    with pytest.raises(UserError, match="Missing label in the train data: line 9 has none in column 'a, b, c' .* --sk"):
        read()
    assert read(skip_missing=True) == numbers[:7] + numbers[8:]
    rows[7]["b"] = "?"
    with pytest.raises(UserError, match="column 'b' has '\\?' in line 9"):
        read()


@pytest.mark.parametrize("marks", [([1, 0], [0, 1]), ([1, 1], [0, 0])])
def test_one_hot_columns_to_score_are_all_of_the_models_labels(marks):
    a, b = marks
    splits = {"test": table(text=["x", "y"], a=a, b=b)}
    columns, problem = Columns(("text",), ("a", "b")), SEVERAL
    labels, numbers = encode_labels(splits, columns, Options(), Known(None, ("b", "a"), problem))
    assert (labels.problem_type, numbers["test"]) == (problem, [list(row) for row in zip(b, a, strict=True)])
    with pytest.raises(UserError, match="--label-column has no column for the model's label 'c'. Name one for each."):
        encode_labels(splits, columns, Options(), Known(None, ("a", "b", "c"), problem))


# ---- a trained model's labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "cells", "said", "numbers"),
    [
        (["pos", "neg"], ["neg", "pos"], None, [1, 0]),
        (["0", "1"], [1.0, 0.0], None, [1, 0]),
        (["LABEL_0", "LABEL_1"], [0, 1], None, [0, 1]),
        (["LABEL_0", "LABEL_1"], ["LABEL_1", "LABEL_0"], None, [1, 0]),
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], "pos,neg", [1, 0]),
        (["pos", "neg"], [0, 1], "neg,pos", [1, 0]),
        (["LABEL_1", "LABEL_0"], ["LABEL_1", "LABEL_0"], None, [0, 1]),  # their real names
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], None, "2 labels without names.*--label-names 'neg,pos'"),
        (["LABEL_0", "LABEL_1"], [0, 2], None, "2 labels without names"),
        (["pos", "neg"], [0, 1], None, "has unknown labels: '0' .line 1.; '1' .line 2.. Known are 'pos', 'neg'"),
        (["pos", "neg"], ["pos", "neg"], "pos", "--label-names 'pos' must list each label once"),
    ],
)
def test_labels_to_score_must_be_the_models_names(tmp_path, names, cells, said, numbers):
    path = write_jsonl(tmp_path / "a.jsonl", rows_with(cells))
    known = Known(label_names=tuple(names), problem_type=ONE)

    def read_them():
        options = Options(data=path, label_names=said)
        return prepare({"test": read(options)["train"]}, options, known).splits["test"]["labels"][:]

    if isinstance(numbers, list):
        assert read_them() == numbers
    else:
        with pytest.raises(UserError, match=numbers):
            read_them()


@pytest.mark.parametrize(
    ("problem_type", "cell", "message"),
    [
        (SEVERAL, "a", "and the problem type is multi_label_classification: write lists of labels, cells with"),
        (ONE, ["a"], "has ['a'] in column 'label', and the problem type is single_label_classification: write one"),
        (ONE, 0.5, "has unknown labels: '0.5' (row 0). Known are 'a', 'b'"),
    ],
)
def test_a_trained_model_is_not_scored_on_another_problem_type(problem_type, cell, message):
    with pytest.raises(UserError, match=re.escape(message)):
        numbers_of({"validation": table(text=["x"], label=[cell])}, label_names=("a", "b"), trained_for=problem_type)
