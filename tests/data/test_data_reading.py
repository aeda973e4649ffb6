import gzip
import io
import json
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_harness import prepared, rows_of, table, write_csv, write_file, write_jsonl
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, load_dataset
from transformers import AutoConfig, BertConfig

from hf_posenc import PosEncConfig
from hf_posenc.data import (
    Columns,
    DataArguments,
    Table,
    Use,
    encode_labels,
    encode_texts,
    example_data,
    find_columns,
    prepare,
    read_splits,
    read_table,
    remember_columns,
    remembered_columns,
    train_tokenizer,
)
from hf_posenc.data.inputs import read_inputs
from hf_posenc.errors import UserError

EXAMPLES = [{"text": "one two", "label": "b"}, {"text": "three", "label": "a"}]


def numbered(train, test=None, **options):
    """Labels of a training column, and of a test column."""
    splits = {"train": train} if test is None else {"train": train, "test": test}
    tables = {split: table(text=["t"] * len(labels), label=labels) for split, labels in splits.items()}
    return numbers_of(tables, **options)


def numbers_of(splits, delimiter=None, label_names=None, problem_type=None, **options):
    columns = Columns(("text",), "label", label_delimiter=delimiter)
    data = DataArguments(**options)
    return encode_labels(splits, columns, data, label_names=label_names, problem_type=problem_type)


@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_a_folder_of_files_is_a_data_set(tmp_path, validation):
    write_jsonl(tmp_path / "train.jsonl", EXAMPLES)
    write_csv(tmp_path / f"{validation}.csv", EXAMPLES[:1])
    write_jsonl(tmp_path / "train_long.jsonl", EXAMPLES * 3)  # another split, none of ours
    splits = read_splits(DataArguments(dataset_name=str(tmp_path)))
    assert {split: len(splits[split]) for split in splits} == {"train": 2, "validation": 1}


def test_files_that_are_not_all_shards_of_one_are_refused(tmp_path):
    write_jsonl(tmp_path / "train-00000-of-00002.jsonl", EXAMPLES)
    write_csv(tmp_path / "train-00001-of-00002.csv", EXAMPLES)
    data = DataArguments(dataset_name=str(tmp_path))
    with pytest.raises(UserError, match=r"train-00000-of-00002.jsonl, train-00001-of-00002.csv. .* --train-file"):
        read_splits(data)
    (tmp_path / "train-00001-of-00002.csv").unlink()
    with pytest.raises(UserError, match="for train what isn't one file, nor all the shards of one: train-00000-of-00"):
        read_splits(data)
    write_jsonl(tmp_path / "train-00001-of-00002.jsonl", EXAMPLES)
    assert len(read_splits(data)["train"]) == 4
    write_jsonl(tmp_path / "train.jsonl", EXAMPLES)
    with pytest.raises(UserError, match=r"train-00001-of-00002.jsonl, train.jsonl. Add what is missing, keep one"):
        read_splits(data)


def shards(folder, bad=None):
    for number in range(3):
        rows = [
            {"text": f"a b {number} {row}", "label": "" if (number, row) == bad else "xy"[row % 2]} for row in range(20)
        ]
        write_csv(folder / f"train-0000{number}-of-00003.csv", rows)
    return str(folder)


def prepared_folder(folder, **options):
    data = DataArguments(dataset_name=str(folder), **options)
    return prepare(read_splits(data), data, Use(validate=True))


def test_an_error_names_the_shard_of_the_line(tmp_path):
    with pytest.raises(UserError, match=r"train-00001-of-00003.csv, line 6 has none in column 'label'"):
        prepared_folder(shards(tmp_path, bad=(1, 4)))


def test_rows_of_shards_are_in_order(tmp_path):
    splits = prepared_folder(shards(tmp_path), validation_split_percentage=40).splits
    numbers = [[tuple(map(int, text.split()[2:])) for text in part.texts[0]] for part in splits.values()]
    assert numbers == [sorted(part) for part in numbers]
    assert sorted(numbers[0] + numbers[1]) == [(number, row) for number in range(3) for row in range(20)]


def test_objects_of_shards_may_lack_a_key(tmp_path):
    for number, name in enumerate(["meta", "text"]):
        rows = [{"text": f"a b {number} {row}", "label": "xy"[row % 2], "meta": 1} for row in range(10)]
        del rows[3][name]
        write_jsonl(
            tmp_path / f"train-0000{number}-of-00002.jsonl", rows if number else [row | {"x": 1} for row in rows]
        )
    data = prepared_folder(tmp_path)
    assert "1 train row without a text used (--skip-missing leaves such rows out)." in data.summary.doubts()
    assert len(data.splits["train"]) == 18


def test_shards_of_parquet_have_the_same_classes(tmp_path):
    def write(name, classes):
        features = Features({"text": Value("string"), "label": ClassLabel(names=classes)})
        rows = {"text": [f"a b {name} {row}" for row in range(20)], "label": [0, 1] * 10}
        Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / name))

    write("train-00000-of-00002.parquet", ["no", "yes"])
    write("train-00001-of-00002.parquet", ["no", "yes"])
    assert prepared_folder(tmp_path).labels.names == ("no", "yes")
    write("train-00001-of-00002.parquet", ["yes", "no"])
    with pytest.raises(UserError, match="00001-of-00002.parquet' has other columns than .* and the same classes"):
        prepared_folder(tmp_path)


def test_a_saved_data_set_is_read_and_its_splits_can_be_named(tmp_path):
    DatasetDict({"a": Dataset.from_list(EXAMPLES), "dev": Dataset.from_list(EXAMPLES[:1])}).save_to_disk(tmp_path)
    splits = read_splits(DataArguments(dataset_name=str(tmp_path), train_split_name="a"))
    assert {split: len(splits[split]) for split in splits} == {"train": 2, "validation": 1}
    with pytest.raises(UserError, match="There is no split 'z' to use for test. The data has a, dev"):
        read_splits(DataArguments(dataset_name=str(tmp_path), test_split_name="z"))


def test_the_package_data_is_whole():
    splits = read_splits(DataArguments(dataset_name="blimp_order"))
    assert {split: len(splits[split]) for split in splits} == {"train": 13316, "validation": 1668, "test": 3136}
    assert splits["train"].names == ["text", "label", "paradigm", "pair_id"]
    words: dict[str, list] = {}
    for row in rows_of(splits["test"]):
        words.setdefault(row["pair_id"], []).append((row["label"], sorted(row["text"].rstrip(".?").split())))
    # Both sentences of a pair hold the same words, so no bag of words can tell them apart.
    assert all(len(pair) == 2 and len({label for label, _ in pair}) == 2 for pair in words.values())
    assert sum(pair[0][1] == pair[1][1] for pair in words.values()) == len(words)
    files = [os.path.join(example_data(), name) for name in os.listdir(example_data())]
    assert sum(map(os.path.getsize, files)) < 1_000_000
    licence = (Path(example_data()) / "README.md").read_text()
    assert "Creative Commons Attribution 4.0" in licence
    assert "https://github.com/alexwarstadt/blimp" in licence


@pytest.mark.skipif(not os.environ.get("HF_POSENC_DATA"), reason="HF_POSENC_DATA doesn't name the shared data")
@pytest.mark.parametrize("name", ["trec", "hans", "semeval2010_task8", "listops", "contract_nli"])
def test_shared_data_sets_are_read_and_numbered(name):
    splits = read_splits(DataArguments(dataset_name=os.path.join(os.environ["HF_POSENC_DATA"], name)))
    columns = find_columns(splits["train"], DataArguments())
    assert columns.is_pair == ("text_pair" in splits["train"].names)
    labels, numbers = encode_labels(splits, columns)
    assert set(labels.names) == set(splits["train"].columns["label"])
    assert [labels.names[number] for number in numbers["test"]] == list(splits["test"].columns["label"])


def _csv_labels(folder, cells, **options):
    path = folder / "mine.csv"
    path.write_text("text,label\n" + "".join(f"t,{cell}\n" for cell in cells))
    return numbers_of({"train": read_table(path)}, **options)


@pytest.mark.parametrize(
    ("cells", "options", "names"),
    [
        (["007", "7"], {}, ("007", "7")),
        (["+1", "-1"], {}, ("+1", "-1")),
        (["1e5", "2e3"], {}, ("1e5", "2e3")),
        (["10", "9", "-2"], {}, ("-2", "9", "10")),
        (["1", "NA"], {}, ("1", "NA")),
        (["nan", "null"], {}, ("nan", "null")),
        (["True", "False"], {}, ("False", "True")),
        (["yes ", " yes", "no"], {}, ("no", "yes")),
        (["123456789012345678901234567890", "5"], {}, ("123456789012345678901234567890", "5")),
        (["0.0", "1.0", "1.0", "0.0"], {}, ("0", "1")),  # as pandas writes whole numbers beside an empty cell
        (["2.0", "10.0", "1", "1", "2", "10"], {}, ("1", "2", "10")),
        (["1.0", "2.0"], {"task": "classification"}, ("1", "2")),
        (["1.10", "1.1"], {"task": "classification"}, ("1.1", "1.10")),  # versions
        (["1.0", "2.0"], {}, ("1", "2")),
        (["0.0", "1.0", "1.0", "0.5"], {}, ()),
        (["0.0", "1.0"] * 2, {"task": "regression"}, ()),
    ],
)
def test_a_label_of_a_csv_keeps_its_spelling_unless_it_is_a_number(cells, options, names, tmp_path):
    labels, numbers = _csv_labels(tmp_path, cells, **options)
    assert labels.names == names
    assert labels.problem_type == ("single_label_classification" if names else "regression")
    assert names or numbers["train"] == [float(cell) for cell in cells]


def test_numbers_of_a_csv_are_numbers(tmp_path):
    labels, numbers = _csv_labels(tmp_path, ["0.5", "+2.0", "-3", "1e-05", ".25"])
    assert (labels.problem_type, numbers["train"]) == ("regression", [0.5, 2.0, -3.0, 1e-05, 0.25])
    with pytest.raises(UserError, match=r"Missing label in the train data: line 3 has none"):
        _csv_labels(tmp_path, ["0.5", "nan"])
    with pytest.raises(UserError, match=r"has inf in column 'label', line 3"):
        _csv_labels(tmp_path, ["0.5", "inf"])
    with pytest.raises(UserError, match=r"Missing label in the train data: line 2 has none"):
        _csv_labels(tmp_path, ['"  "', "x"])


@pytest.mark.parametrize("cells", [["a", None, "b"], ["a", " ", "b"], [["a"], None, ["b"]], [0.5, None, 1.5]])
def test_rows_without_a_label_are_left_out_where_that_is_asked(cells):
    _, numbers = numbered(cells, skip_missing=True)
    assert [value is None for value in numbers["train"]] == [False, True, False]
    with pytest.raises(UserError, match="row 2 has none in column 'label'. Fill it in, or leave such rows out with --"):
        numbered(cells)
    with pytest.raises(UserError, match="No row of the train data has a label in column 'label'. Name the right one"):
        numbered([None, None], skip_missing=True)


@pytest.mark.promise("Files", "A file name is never read as a pattern")
@pytest.mark.parametrize("name", ["rows?.csv", "rows[1].csv", "ro*s.csv", "a{b}.csv", "[1]/rows.csv", "a::b.csv"])
def test_a_name_is_no_pattern(tmp_path: Path, name: str):
    (tmp_path / "[1]").mkdir()
    write_csv(tmp_path / "rows1.csv", [{"text": "of another file", "label": "x"}])
    examples = [{"text": "of this file", "label": "y"}]
    assert rows_of(read_table(write_csv(tmp_path / name, examples))) == examples


def test_texts_of_a_csv_stay_as_they_are_written(tmp_path):
    texts = ["007", "1.50", "1e5", "None", "NA", "nan", "true", "a, b"]
    examples = [{"text": text, "label": text} for text in texts]
    read = read_table(write_csv(tmp_path / "mine.csv", examples))
    assert rows_of(read) == examples
    assert Columns(("text",), "label").texts(read.columns)[0] == texts


@pytest.mark.parametrize(
    ("train", "test", "options", "names", "numbers"),
    [
        (["b", "a", "b"], ["b"], {}, ("a", "b"), ([1, 0, 1], [1])),
        ([10, 9, 10], [10], {}, ("9", "10"), ([1, 0, 1], [1])),
        ([True, False], [True], {}, ("False", "True"), ([1, 0], [1])),
        ([0.0, 1.0, 2.0] * 2, [2, 0], {}, ("0", "1", "2"), ([0, 1, 2] * 2, [2, 0])),
        ([0, 1, 2], [2.0, 0.0], {}, ("0", "1", "2"), ([0, 1, 2], [2, 0])),
        ([0.5, 1.0, 10.5], [1.0], {"task": "classification"}, ("0.5", "1.0", "10.5"), ([0, 1, 2], [1])),
        ([["b", "a"], [], ["c"]], [["c"]], {}, ("a", "b", "c"), ([[1, 1, 0], [0, 0, 0], [0, 0, 1]], [[0, 0, 1]])),
        (["b|a", None], ["b"], {"delimiter": "|"}, ("a", "b"), ([[1, 1], [0, 0]], [[0, 1]])),
        ([0.5, 1.5], [1, 2], {}, (), ([0.5, 1.5], [1, 2])),
        ([1.0, 2.0], [2], {}, ("1", "2"), ([0, 1], [1])),
        ([1, 2, 5], [7], {"task": "regression"}, (), ([1, 2, 5], [7])),
        (["a", "b"], ["b"], {"label_names": ["b", "a"]}, ("b", "a"), ([1, 0], [0])),  # of a trained model
        (["x", "y"], ["y"], {"label_names": ["b", "a"]}, ("x", "y"), ([0, 1], [1])),
    ],
)
def test_labels_are_numbered_from_the_training_split(train, test, options, names, numbers):
    labels, numbers_by_split = numbered(train, test, **options)
    assert (labels.names, numbers_by_split["train"], numbers_by_split["test"]) == (names, *numbers)
    several = isinstance(numbers[0][0], list)
    single_type = "single_label_classification" if names else "regression"
    assert labels.problem_type == ("multi_label_classification" if several else single_type)
    assert labels.num_labels == len(names or [1])


def test_whole_numbers_are_the_labels_of_a_trained_model_however_they_are_written():
    splits = {"validation": table(text=["x", "y"], label=[1.0, 0.0])}
    trained = {"label_names": ["0", "1"], "problem_type": "single_label_classification"}
    assert numbers_of(splits, **trained)[1] == {"validation": [1, 0]}


def test_labels_that_the_data_set_names_keep_their_order():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos", "neutral"])})
    train = Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]}, features=features)
    test = Dataset.from_dict({"text": ["x", "y"], "label": [-1, -1]}, features=features)  # -1: unlabelled, as in GLUE
    labels, numbers = numbers_of({"train": Table.of_dataset("a", train), "test": Table.of_dataset("b", test)})
    assert labels.names == ("neg", "pos", "neutral")
    assert (numbers["train"], numbers["test"]) == ([1, 0], None)


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("regression", ["a"], "The model predicts a number, column 'label' has 'a'. Give data with one number per"),
        ("multi_label_classification", ["a"], "gives each text several labels, column 'label' has 'a'. Write lists"),
        ("single_label_classification", [["a"]], r"gives each text one label, column 'label' has \['a'\]. Give data"),
        ("single_label_classification", [0.5], "gives each text one label, column 'label' has 0.5. Give data with"),
    ],
)
def test_a_trained_model_is_not_scored_on_another_task(task, values, message):
    splits = {"validation": table(text=["x"], label=values)}
    with pytest.raises(UserError, match=message):
        numbers_of(splits, label_names=["a", "b"], problem_type=task)


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        (["a", None, "b"], None, {}, "Missing label in the train data: row 2 has none in column 'label'"),
        (["a", "b"], ["a", "z"], {}, r"'z' \(once, first in row 2\), which training never saw. It knows 'a', 'b'"),
        (["a", "b"], [1, 2], {}, "'1' .*which training never saw"),
        ([["a"], ["b"]], ["a"], {}, "Mixed label types: column 'label' has 'a' in the test data, unlike"),
        ([0.5, 1.0], ["a"], {}, "Mixed label types: column 'label' has numbers in the training data and 'a'"),
        ([0.5, float("inf")], None, {}, "has inf in column 'label', row 2"),
        (["a", "a"], None, {}, "All training examples have the label 'a'"),
        ([["a", "b", "a"]], None, {}, "names a label twice in row 1"),
        (["a", "b"], None, {"task": "regression"}, "--task regression needs one number per text, column 'label' has"),
        ([1, 2], [2.5], {}, r"'2.5' \(once, first in row 1\), which training never saw"),
    ],
)
def test_labels_that_cannot_be_are_refused(train, test, options, message):
    with pytest.raises(UserError, match=message):
        numbered(train, test, **options)


@pytest.mark.parametrize("values", [[1, "a"], [["a"], "a"], [1.5, "a"], [{"a": 1}, "b"]])
def test_mixed_labels_in_a_file_are_refused(values, tmp_path):
    path = write_jsonl(tmp_path / "mixed.jsonl", [{"text": "t", "label": value} for value in values])
    with pytest.raises(UserError, match="Mixed label types in the train data: column 'label' has"):
        numbers_of({"train": read_table(path)})


@pytest.mark.parametrize(
    ("names", "options", "text", "label"),
    [
        (["text", "label"], {}, ("text",), "label"),
        (["label", "premise", "hypothesis"], {}, ("premise", "hypothesis"), "label"),
        (["a", "b", "label"], {"text_column_names": "b, a"}, ("b", "a"), "label"),
        (["text", "text_pair", "labels"], {}, ("text", "text_pair"), "labels"),
        (
            ["Body, in full", "Class"],
            {"text_column_names": "Body, in full", "label_column_name": "Class"},
            ("Body, in full",),
            "Class",
        ),
    ],
)
def test_columns_are_found_by_their_names(names, options, text, label):
    columns = find_columns(table(**{name: ["x"] for name in names}), DataArguments(**options))
    assert (columns.text, columns.label, columns.is_pair) == (text, label, len(text) == 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column_names": "txt"}, "no column 'txt'. It has 'text', 'more', 'label': name one with --text-column"),
        ({"text_column_names": "text,more,label"}, "names 3 columns"),
        ({"label_column_name": "text"}, "can't be both text and label"),
    ],
)
def test_columns_that_are_not_there_are_refused(options, message):
    dataset = table(text=["x"], more=["y"], label=["z"])
    with pytest.raises(UserError, match=message):
        find_columns(dataset, DataArguments(**options))


@pytest.mark.parametrize("config", [PosEncConfig.from_preset("tiny"), BertConfig()], ids=["posenc", "bert"])
def test_a_configuration_remembers_the_columns_without_a_warning(config, tmp_path, monkeypatch):
    columns = Columns(("Title", "body, in full"), "Stars", " ", "|")
    remember_columns(config, columns)
    config.save_pretrained(tmp_path)
    complaints = []
    monkeypatch.setattr("hf_posenc.model.package_config.logger.warning", complaints.append)
    assert remembered_columns(AutoConfig.from_pretrained(tmp_path)) == columns
    assert complaints == []


@pytest.mark.parametrize(
    "noted", [None, 3, {}, {"hf_posenc": []}, {"hf_posenc": {"text_column_names": "text"}}, {"text": "a"}]
)
def test_columns_that_were_not_noted_by_us_are_not_remembered(noted):
    assert remembered_columns(SimpleNamespace(task_specific_params=noted)) is None


def test_remembered_columns_count_where_the_data_has_them():
    known = Columns(("title", "body"), "stars", " ", "|")
    new_table = table(text=["x"], title=["x"], body=["x"], stars=["y"])
    assert find_columns(new_table, DataArguments(), known) == known
    other = table(text=["x"], title=["x"], label=["y"])
    assert find_columns(other, DataArguments(), known).text == ("text",)
    assert find_columns(new_table, DataArguments(text_column_names="text"), known).text == ("text",)


def test_joined_columns_are_one_text():
    columns = Columns(("a", "b"), "label", " / ")
    assert columns.texts({"a": ["x", None], "b": ["y", 3]}) == (["x / y", " / 3"],)


def encoded(texts, tokenizer, max_length, pairs=None, labels=None, problem="single_label_classification"):
    return encode_texts((texts, pairs) if pairs else (texts,), labels, tokenizer, max_length, problem)


def test_numbers_go_to_a_column_of_their_own():
    """Written over a column of strings, numbers would become strings."""
    tokenizer = train_tokenizer(["a b c"], vocab_size=50)
    dataset = encoded(["a b", "c"], tokenizer, 16, labels=[1, 0])
    assert set(dataset.column_names) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert dataset["labels"] == [1, 0]
    several = encoded(["a b"], tokenizer, 16, labels=[[1.0, 0.0]], problem="multi_label_classification")
    assert several.features["labels"] == List(Value("float32"))
    assert encoded(["a"], tokenizer, 16, labels=[0.5], problem="regression")["labels"] == [0.5]


def test_no_text_is_lost_between_chunks(monkeypatch):
    monkeypatch.setattr("hf_posenc.data.encoding._CHUNK", 2)
    texts = ["a", "b", "c", "a b", "b c"]
    tokenizer = train_tokenizer(texts, vocab_size=50)
    dataset = encoded(texts, tokenizer, 16, labels=range(5))
    assert list(dataset["input_ids"]) == tokenizer(texts)["input_ids"]
    assert list(dataset["labels"]) == [0, 1, 2, 3, 4]


def test_pairs_are_encoded_as_pairs():
    tokenizer = train_tokenizer(["a b c"], vocab_size=50)
    row = encoded(["a b"], tokenizer, 16, pairs=["c"])[0]
    assert row["input_ids"] == tokenizer("a b", "c")["input_ids"]
    assert sum(row["token_type_ids"]) == 2


def test_how_many_texts_are_truncated_is_said(monkeypatch):
    tokenizer = train_tokenizer(["a b c"], vocab_size=50)
    messages = []
    monkeypatch.setattr("hf_posenc.data.encoding.logger.warning", messages.append)
    dataset = encoded(["a b c a b c a b c"] + ["a b"] * 99, tokenizer, 6)
    assert max(map(len, dataset["input_ids"])) == 6
    (message,) = messages
    assert message.startswith("1 of 100 train inputs (1.0%) have more than 6 tokens and were truncated. Raise --max-se")
    encoded(["a b"], tokenizer, 6)
    assert len(messages) == 1


def not_utf8():
    file = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"x", "has an unknown suffix. Accepted: .csv, .tsv, .json, .jsonl, .txt, .parquet"),
        ("a.csv", b"", "is empty. Give a file with at least one example"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("a.csv", b"text,label\n", "has no (rows|texts)"),
        ("a.csv", b"text,label\na, b,x\n", r"line 2 has 3 cells, the first row has 2 \('text', 'label'\). Put cells"),
        ("a.json", b'{"data": [{"text": "x"}]}', "holds .*, no rows. Write a list of objects"),
        (
            "a.json",
            b'{"text": "x"}\n{"text": "y"}\n',
            "line 2 is no JSON: .*call a file with an object per line .jsonl",
        ),
        ("a.json", b"null", "holds None, no rows"),
        ("a.json", b"[" * 100_000, "a.json is no JSON: .*nested too deep"),
        ("a.json", b'[{"text": "a"}, null]', "a.json, row 2 is no object: None"),
        ("a.json", b'[{"text": "x"},\n{"text": "\xe9"}]\n', "a.json, line 2 isn't UTF-8 text"),
        ("a.jsonl", b'{"text": "x", "la', "a.jsonl, line 1 is no JSON: Unterminated string"),
        ("a.jsonl", b'null\n{"text": "a"}\n', "a.jsonl, line 1 is no object: null"),
        ("a.jsonl", b'{"text": "a"}\nnull\n', "a.jsonl, line 2 is no object: null"),
        ("a.jsonl", b'{"text": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, "line 1 is no JSON: .*nested too deep"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', "line 1 is no JSON: it names 'text' twice"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\\ud800"}\n', "line 2 is no JSON: 'utf-8' codec can't encode"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": "\xe9"}\n', "a.jsonl, line 3 isn't UTF-8 text"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "\xe9"}\n', mtime=0), "a.jsonl.gz, line 1 isn't UTF-8"),
        ("a.jsonl.gz", b"not gzip", "can't be read"),
        ("a.csv.gz", gzip.compress(b"text,label\na,x\n", mtime=0)[:-9], "a.csv.gz' can't be read: .*whole"),
        ("a.txt", b"x\n" * 9000 + b"\xff\n", "a.txt, line 9001 isn't UTF-8 text"),
        ("a.parquet", b"not parquet", "can't be read: .*It must be a whole .parquet file"),
        ("a.parquet", not_utf8(), "a.parquet' can't be read: .*UTF8"),
    ],
)
def test_files_that_cannot_be_read_are_refused(name, content, message, tmp_path, monkeypatch):
    logged = io.StringIO()
    monkeypatch.setattr(logging.getLogger("datasets").handlers[0], "stream", logged)
    path = write_file(tmp_path / name, content)
    for reader in (read_table, read_inputs):  # the latter row by row
        with pytest.raises(UserError, match=message):
            reader(path)
    assert not logged.getvalue()  # the error is said once


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UserError, match="doesn't exist. Check the path"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match="is a folder. Give it as --dataset-name"):
        read_table(tmp_path)


@pytest.mark.parametrize("odd", [5, {"a": 5}, ["a"]])
def test_what_is_no_text_among_texts_is_named_by_its_row(tmp_path, odd):
    rows = [{"text": "a", "label": "x"}, {"text": None, "label": "x"}, {"text": odd, "label": "y"}]
    path = write_file(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    with pytest.raises(UserError, match=re.escape(f"Column 'text' holds {odd!r} in line 3, which is no text. Write")):
        find_columns(read_table(str(path)), DataArguments())


def test_text_that_is_none_in_another_split_is_refused(tmp_path):
    """A list would be written out, brackets and all."""
    files = [
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text, "label": label} for label in "xy"])
        for name, text in (("a", "good"), ("b", ["a"]))
    ]
    with pytest.raises(UserError, match=r"Column 'text' holds \['a'\] in line 1, which is no text"):
        prepared(files[0], test_file=files[1])


def test_what_separates_the_columns_can_be_said(tmp_path):
    path = write_file(tmp_path / "a.csv", b"text~label\na, b~x\n")
    table = read_splits(DataArguments(train_file=str(path), delimiter="~"))["train"]
    assert rows_of(table) == [{"text": "a, b", "label": "x"}]
    assert DataArguments(delimiter="tab").delimiter == DataArguments(delimiter="\\t").delimiter == "\t"
    with pytest.raises(UserError, match="--delimiter ';;' can't separate columns. Give one character, or tab"):
        DataArguments(delimiter=";;")
    with pytest.raises(UserError, match="line 2 has 2 cells, the first row has 1 .* say --delimiter ';' "):
        read_table(write_file(tmp_path / "b.csv", b"text;label\na, b;x\n"))
    with pytest.raises(UserError, match="--delimiter ';' is for .csv and .tsv files, .*a.jsonl' is none. Leave it out"):
        read_splits(DataArguments(train_file=write_jsonl(tmp_path / "a.jsonl", EXAMPLES), delimiter=";"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "No data. Give --train-file"),
        ({"dataset_name": "x", "train_file": "y"}, "are both given"),
        ({"dataset_name": "nobody/nothing-here"}, "can't be read: .* a name on the Hub"),
    ],
)
def test_data_that_is_not_named_or_not_there(options, message):
    with pytest.raises(UserError, match=message):
        read_splits(DataArguments(**options))


def test_a_folder_laid_out_as_on_the_hub_is_read(tmp_path):
    """A data set folder as the Hub lays it out, which datasets reads by itself."""
    (tmp_path / "data").mkdir()
    Dataset.from_list(EXAMPLES).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    assert len(load_dataset(str(tmp_path))["train"]) == 2
    assert rows_of(read_splits(DataArguments(dataset_name=str(tmp_path)))["train"]) == EXAMPLES
