"""A stream gives what the same file in memory gives: rows, labels, validation rows, remarks."""

import random

import pytest
from data_harness import prepared, rows_with, write_csv, write_jsonl
from datasets import ClassLabel, Dataset, Features, Value

from hf_posenc.data import DataArguments, Use, prepare, read_splits
from hf_posenc.errors import UserError

WORDS = "alpha beta gamma delta epsilon zeta".split()
LABELS = {
    "words with blanks around them": lambda draw: draw.choice(["a", "a ", " b", "b", "c d"]),
    "words like numbers": lambda draw: draw.choice(["007", "7"]),
    "whole numbers": lambda draw: draw.choice([0, 1, 2, 10]),
    "whole numbers to predict": lambda draw: draw.choice([0, 1, 2, 10]),
    "whole floats": lambda draw: draw.choice([0.0, 1.0, 2.0]),
    "real numbers": lambda draw: round(draw.random() * 10, 2),
    "decimal commas": lambda draw: f"{draw.randint(0, 9)},{draw.randint(0, 99)}",
    "several in a cell": lambda draw: "|".join(draw.sample(["a", "b", "c", "10", "9"], draw.randint(0, 3))),
    "lists": lambda draw: draw.sample(["a", "b", "c", "10", "9"], draw.randint(0, 3)),
    "columns of 0 and 1": lambda draw: "",
}
OPTIONS = {
    "whole numbers to predict": {"task": "regression"},
    "several in a cell": {"label_delimiter": "|"},
    "columns of 0 and 1": {"label_column_name": "x,y,z"},
}


def in_both_ways(path, **options):
    return (prepared(path, validate=True, streaming=streaming, **options) for streaming in (False, True))


@pytest.mark.parametrize("count", [20, 1300])
@pytest.mark.parametrize("kind", LABELS)
def test_a_stream_is_what_the_file_in_memory_is(tmp_path, kind, count):
    draw = random.Random(f"{kind} {count}")
    rows = [
        {"text": " ".join(draw.choices(WORDS, k=5)), "label": LABELS[kind](draw)}
        | {name: draw.randint(0, 1) for name in "xyz"}
        for _ in range(count)
    ]
    path = write_jsonl(tmp_path / "a.jsonl", rows) if kind == "lists" else write_csv(tmp_path / "a.csv", rows)
    whole, stream = in_both_ways(path, **OPTIONS.get(kind, {}))
    assert whole.labels.names == stream.labels.names
    assert whole.labels.mean == pytest.approx(stream.labels.mean)
    assert whole.labels.std == pytest.approx(stream.labels.std)
    for in_memory, streamed in (
        (whole.splits["train"], stream.streamed.first(10**6)),
        (whole.splits["validation"], stream.splits["validation"]),
    ):
        assert list(map(list, in_memory.texts)) == list(map(list, streamed.texts))
        assert in_memory.labels == streamed.labels
    assert list(whole.splits["validation"].places) == list(stream.splits["validation"].places)
    assert whole.summary.notes == stream.summary.notes


def test_no_more_rows_are_set_aside_than_may_be_kept_and_none_of_their_texts_is_trained_on(tmp_path):
    rows = [{"text": f"a b {row % 200}", "label": "xy"[row % 2]} for row in range(250)]
    path = write_csv(tmp_path / "a.csv", rows)
    stream = prepared(path, validate=True, streaming=True, validation_split_percentage=20, max_eval_samples=9)
    train, validation = stream.streamed.first(999), stream.splits["validation"]
    assert (len(train), len(validation)) == (241, 9)
    assert not set(train.texts[0]) & set(validation.texts[0])


def test_one_text_in_many_rows_stays_on_one_side(tmp_path):
    rows = [{"text": f"a b {max(row, 100)}", "label": "xy"[row % 2]} for row in range(140)]
    whole, stream = in_both_ways(write_csv(tmp_path / "a.csv", rows), validation_split_percentage=50)
    for train in (whole.splits["train"], stream.streamed.first(999)):
        # 70 rows at most, and the one text stands in 101; a text of the other label stays to train on.
        assert train.texts[0].count("a b 100") == 101
        assert 102 <= len(train) < 140


def test_decimal_commas_beyond_the_sample_are_numbers(tmp_path):
    rows = rows_with(["5"] * 1500 + ["5,25"] * 100)
    whole, stream = in_both_ways(write_csv(tmp_path / "a.csv", rows, delimiter=";"))
    assert stream.labels.problem_type == whole.labels.problem_type == "regression"
    assert sorted(stream.streamed.first(10**6).labels) == sorted(whole.splits["train"].labels)


def test_more_labels_than_are_kept_are_numbers_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_posenc.data.streaming.MOST_LABELS", 20)
    rows = [{"text": f"a b {row}", "number": row / 7, "word": f"n{row}"} for row in range(1, 60)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    streamed = prepared(path, streaming=True, label_column_name="number").streamed
    assert (streamed.labels.problem_type, streamed.first(2).labels) == ("regression", [1 / 7, 2 / 7])
    with pytest.raises(UserError, match="Column 'word' has more than 20 different labels. Name the right column"):
        prepared(path, streaming=True, label_column_name="word")


def test_a_stream_says_how_many_rows_it_leaves_out(tmp_path):
    rows = rows_with(["x", "y", "", *"xy" * 18, "x"])
    _, stream = in_both_ways(write_csv(tmp_path / "a.csv", rows), skip_missing=True)
    assert "train a stream of 40 rows, 1 left out" in stream.summary.line()


def test_a_stream_says_which_texts_it_shares(tmp_path):
    rows = rows_with("xy" * 20)
    train = write_csv(tmp_path / "a.csv", rows)
    test = write_csv(tmp_path / "b.csv", [*rows, {"text": "new one", "label": "x"}])
    whole, stream = in_both_ways(train, test_file=test)
    assert stream.summary.shared == whole.summary.shared == {"test": 36}


@pytest.mark.parametrize("validate", [False, True])
def test_test_data_without_labels_is_left_out_and_that_is_said(tmp_path, caplog, validate):
    train = write_csv(tmp_path / "a.csv", rows_with("xy" * 20))
    test = write_csv(tmp_path / "b.csv", [{"text": "new one"}])
    for streaming in (False, True):
        data = prepared(train, validate=validate, test_file=test, streaming=streaming)
        assert "test" not in data.splits
        assert "The test split has no labels, so it isn't scored." in caplog.text
        caplog.clear()


def shards(tmp_path, bad=None):
    for number in range(3):
        rows = [
            {"text": f"a b {number} {row}", "label": "" if (number, row) == bad else "xy"[row % 2]} for row in range(20)
        ]
        write_csv(tmp_path / f"train-0000{number}-of-00003.csv", rows)
    return str(tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_error_names_the_file_of_the_line(tmp_path, streaming):
    data = DataArguments(dataset_name=shards(tmp_path, bad=(1, 4)), streaming=streaming)
    with pytest.raises(UserError, match=r"train-00001-of-00003.csv, line 6 has none in column 'label'"):
        prepare(read_splits(data), data, Use(validate=True))


def test_rows_of_shards_are_in_order(tmp_path):
    folder = shards(tmp_path)
    texts = []
    for streaming in (False, True):
        data = DataArguments(dataset_name=folder, streaming=streaming, validation_split_percentage=40)
        result = prepare(read_splits(data), data, Use(validate=True))
        train = result.streamed.first(99) if streaming else result.splits["train"]
        texts.append([list(part.texts[0]) for part in (train, result.splits["validation"])])
    assert texts[0] == texts[1]
    numbers = [[tuple(map(int, text.split()[2:])) for text in part] for part in texts[0]]
    assert numbers == [sorted(part) for part in numbers]
    assert sorted(numbers[0] + numbers[1]) == [(number, row) for number in range(3) for row in range(20)]


def test_objects_of_shards_may_lack_a_key(tmp_path):
    for number, name in enumerate(["meta", "text"]):
        rows = [{"text": f"a b {number} {row}", "label": "xy"[row % 2], "meta": 1} for row in range(10)]
        del rows[3][name]
        write_jsonl(
            tmp_path / f"train-0000{number}-of-00002.jsonl", rows if number else [row | {"x": 1} for row in rows]
        )
    for streaming in (False, True):
        data = DataArguments(dataset_name=str(tmp_path), streaming=streaming)
        result = prepare(read_splits(data), data, Use(validate=True))
        assert "1 train row without a text used (--skip-missing leaves such rows out)." in result.summary.doubts()
        assert len(result.streamed.first(99) if streaming else result.splits["train"]) == 18


def test_a_batch_of_objects_may_lack_a_key(tmp_path):
    """The last row stands alone in its batch, and has no text."""
    path = write_jsonl(tmp_path / "a.jsonl", [*rows_with("xy" * 128), {"label": "x"}])
    streamed = prepared(path, streaming=True).streamed
    assert [len(table) for table in streamed.batches()] == [256, 1]
    assert streamed.first(999).texts[0][-1] == ""
    assert len(list(streamed.texts())) == 257


def test_a_stream_of_parquet_knows_its_classes(tmp_path):
    def write(name, classes):
        features = Features({"text": Value("string"), "label": ClassLabel(names=classes)})
        rows = {"text": [f"a b {name} {row}" for row in range(20)], "label": [0, 1] * 10}
        Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / name))

    write("train-00000-of-00002.parquet", ["no", "yes"])
    write("train-00001-of-00002.parquet", ["no", "yes"])
    for streaming in (False, True):
        data = DataArguments(dataset_name=str(tmp_path), streaming=streaming)
        assert prepare(read_splits(data), data, Use(validate=True)).labels.names == ("no", "yes")
    write("train-00001-of-00002.parquet", ["yes", "no"])
    for streaming in (False, True):
        with pytest.raises(UserError, match="00001-of-00002.parquet' has other columns than .* and the same classes"):
            read_splits(DataArguments(dataset_name=str(tmp_path), streaming=streaming))


def test_a_bad_column_of_0_and_1_is_located(tmp_path):
    rows = [{"text": f"a b {row}", "x": 1, "y": "?" if row == 7 else 0} for row in range(20)]
    path = write_csv(tmp_path / "a.csv", rows)
    for streaming in (False, True):
        with pytest.raises(UserError, match="column 'y' has '\\?' in line 9"):
            prepared(path, streaming=streaming, label_column_name="x,y")
