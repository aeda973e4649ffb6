"""Files, folders and data sets: read as they are, or refused with what is wrong with them."""

import json
import os
import re
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from tests.support.common import tiny_classifier, write_csv, write_jsonl
from tests.support.data import Options, read, rows_in, rows_of, write_file
from tests.support.training import EXAMPLE_DATA

pytestmark = pytest.mark.usefixtures("spelt_by_train")

EXAMPLES = [{"text": "one two", "label": "b"}, {"text": "three", "label": "a"}]


def sizes(**options):
    return {split: len(table) for split, table in read(Options(**options)).items()}


# ---- folders and data sets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validation", ["validation", "valid", "val", "dev"])
def test_a_folder_of_files_is_a_data_set(tmp_path, validation, caplog, run):
    write_jsonl(tmp_path / "train.jsonl", EXAMPLES)
    write_csv(tmp_path / f"{validation}.csv", EXAMPLES[:1])
    write_jsonl(tmp_path / "train_long.jsonl", EXAMPLES * 3)  # another split, none of ours
    write_file(tmp_path / "train_long.json", json.dumps(EXAMPLES))
    assert sizes(data=str(tmp_path)) == {"train": 2, "validation": 1}
    assert "that are used only where they are named: train_long, train_long.jsonl." in caplog.text
    assert sizes(data=str(tmp_path), test="train_long.jsonl") == {"train": 2, "validation": 1, "test": 6}
    tiny_classifier(tmp_path / "model", ["one two"], "ab")
    words = ("predict", tmp_path / "model", "--data", tmp_path, "--json", "--split")
    for split, rows in (("train", 2), (validation, 1), ("train_long", 2)):
        assert len(run(*words, split)[1].splitlines()) == rows
    code, _, err = run(*words, "test")
    assert code == 2
    assert re.search(f"no split 'test'. It has .*{validation}.*: name one with .*--split", err), err


def test_validation_and_test_may_name_a_split_or_a_file(tmp_path, caplog):
    parts = {"train": EXAMPLES * 2, "matched": EXAMPLES, "mismatched": EXAMPLES[:1]}
    DatasetDict({name: Dataset.from_list(rows) for name, rows in parts.items()}).save_to_disk(tmp_path / "saved")
    saved, file = str(tmp_path / "saved"), write_csv(tmp_path / "mine.csv", EXAMPLES * 3)
    assert sizes(data=saved) == {"train": 4}
    assert f"Splits of {saved!r} that are used only where they are named: matched, mismatched." in caplog.text
    assert sizes(data=saved, validation="matched", test="mismatched") == {"train": 4, "validation": 2, "test": 1}
    assert sizes(data=saved, validation=file, test="matched") == {"train": 4, "validation": 6, "test": 2}
    assert sizes(data=file, test=file) == {"train": 6, "test": 6}
    delimited = write_file(tmp_path / "a.csv", "text;label\na, b;x\n")
    other = {"delimiter": ";", "test": write_jsonl(tmp_path / "b.jsonl", EXAMPLES)}
    assert sizes(data=delimited, **other) == {"train": 1, "test": 2}
    Path(delimited).rename(tmp_path / "a.data")
    other["test"] = write_file(tmp_path / "b.csv", "text;label\na, b;x\n")
    assert sizes(data=str(tmp_path / "a.data"), format="csv", **other) == {"train": 1, "test": 1}
    DatasetDict(valid=Dataset.from_list(EXAMPLES * 2), dev=Dataset.from_list(EXAMPLES)).save_to_disk(tmp_path / "two")
    assert sizes(data=str(tmp_path / "two")) == {"validation": 4}
    assert "are used only where they are named: dev." in caplog.text
    assert sizes(data=str(tmp_path / "two"), validation="dev") == {"validation": 2}


def test_a_changed_file_is_read_anew(tmp_path):
    for text in ("old text", "new text"):
        rows = Dataset.from_list([{"text": text, "label": "x"}])
        rows.to_parquet(tmp_path / "train.parquet")
        rows.to_csv(tmp_path / "mine.csv")
        for data in (tmp_path / "mine.csv", tmp_path / "train.parquet", tmp_path):
            assert read(Options(data=str(data)))["train"].cells("text") == [text]


def test_the_package_data_is_whole():
    splits = read(Options(data="blimp_order"))
    assert {split: len(splits[split]) for split in splits} == {"train": 13316, "validation": 1668, "test": 3136}
    assert splits["train"].names == ["text", "label", "paradigm", "pair_id"]
    words: dict[str, list] = {}
    for row in rows_of(splits["test"]):
        words.setdefault(row["pair_id"], []).append((row["label"], sorted(row["text"].rstrip(".?").split())))
    # Both sentences of a pair hold the same words, so no bag of words can tell them apart.
    assert all(len(pair) == 2 and len({label for label, _ in pair}) == 2 for pair in words.values())
    assert sum(pair[0][1] == pair[1][1] for pair in words.values()) == len(words)
    assert sum(path.stat().st_size for path in EXAMPLE_DATA.iterdir()) < 1_000_000
    licence = (EXAMPLE_DATA / "README.md").read_text()
    assert "Creative Commons Attribution 4.0" in licence
    assert "https://github.com/alexwarstadt/blimp" in licence


# ---- names and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows?.csv", "rows[1].csv", "ro*s.csv", "a{b}.csv", "[1]/rows.csv", "a::b.csv"])
def test_a_name_is_no_pattern(tmp_path, name):
    (tmp_path / "[1]").mkdir()
    write_csv(tmp_path / "rows1.csv", [{"text": "of another file", "label": "x"}])
    examples = [{"text": "of this file", "label": "y"}]
    assert rows_of(read(Options(data=write_csv(tmp_path / name, examples)))["train"]) == examples


def test_objects_may_lack_a_key_and_a_text_may_look_like_json(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"label": "x", "text": "b"}])
    assert rows_in(path) == [{"text": "a", "label": None}, {"text": "b", "label": "x"}]
    path = write_file(tmp_path / "a.txt", '{"a":' * 100_000 + "\n\nplain\n")
    table = read(Options(data=path))["train"]
    assert (table.cells("text")[1:], table.numbers) == (["", "plain"], [1, 2, 3])  # an answer for each line
    assert table.summary == "3 rows from 3 lines"


def test_a_pipe_is_a_file():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        pipe.write("text,label\na,x\nb,y\n")
    try:
        data = read(Options(data=f"/dev/fd/{reader}", format="csv"))
    finally:
        os.close(reader)
    assert data["train"].cells("text") == ["a", "b"]
