"""`hf-posenc predict` on files: every format in and out, every column kept, nothing half-written, empty texts said."""

import csv
import datetime as dt
import itertools
import json
import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_posenc
from hf_posenc import UserError
from hf_posenc.files import write_json
from hf_posenc.finetuning.prediction import answers_to, check_output, load_classifier
from tests.support.common import tiny_classifier, write_csv, write_jsonl
from tests.support.conversion import edit_weights
from tests.support.training import expected, read_jsonl, results, rows, train

TEXTS = ["who saw karla", 'a "quoted", text', "naïve\nlines"]
ROWS = [{"id": f"00{n}", "text": text, "label": "mine", "more": None} for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    examples = [{"text": row["text"], "label": float(n % 3)} for n, row in enumerate(rows("train", 48))]
    train(folder / "run", data=write_jsonl(folder / "train.jsonl", examples), problem_type="regression")
    return folder / "run"


def pickled(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "a pickle": pickled,
    "of another type": lambda path: np.save(path, np.array([0.5, 1.5])),
    "of another shape": lambda path: np.save(path, np.ones((2, 2), dtype=np.uint64)),
    "unreadable": lambda path: (path.unlink(), path.symlink_to(path.name)),  # for root, too
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_marks_of_the_training_texts_stop_no_answer(damage, regression, tmp_path, run):
    folder = shutil.copytree(regression, tmp_path / "model")
    DAMAGES[damage](folder / "_trained_on.npy")
    data = write_jsonl(tmp_path / "data.jsonl", [{"text": text, "label": 0.5} for text in TEXTS])
    further = ("--max-steps", 1, "--no-bf16", "--device", "cpu", "--validation-share", 0)
    for number, words in enumerate(
        (
            ("predict", folder, "a text"),
            ("evaluate", folder, "--data", data),
            ("train", "-o", tmp_path / "further", "--data", data, "--pretrained", folder, *further),
        )
    ):
        code, _, err = run(*words)
        assert code == 0, err
        assert err.count("whether texts were among those trained on isn't checked") == (number == 0)  # once
        assert "pickle" not in err


def write(path: Path, examples: list[dict] = ROWS) -> Path:
    """Rows in the format of the suffix."""
    frame = pd.DataFrame(examples)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL)
    else:
        frame.to_json(path, orient="records", lines=path.suffix != ".json")
    return path


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_dict("records")
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("in.csv", "new/out.csv"),
        ("in.tsv", "out.csv"),
        ("in.json", "out.jsonl"),
        ("in.jsonl", "out.parquet"),
        ("in.jsonl.gz", "out.csv"),
        ("in.parquet", "out.jsonl"),
        ("in.csv", "out.parquet"),
        ("in.parquet", "out.parquet"),
    ],
)
def test_every_format_in_and_out_keeps_all_columns_beside_the_answer(run, checkpoint, tmp_path, source, output):
    write(tmp_path / source)
    words = ("--quoting", "csv") if source.endswith(".tsv") else ()
    code, out, err = run("predict", checkpoint, "--data", tmp_path / source, "-o", tmp_path / output, *words)
    assert (code, out) == (0, ""), err
    assert f"3 answers are in {tmp_path / output}" in err
    rows = read(tmp_path / output)
    assert [row["id"] for row in rows] == ["000", "001", "002"]
    assert [row["text"] for row in rows] == TEXTS
    assert {row["input_label"] for row in rows} == {"mine"}
    assert {row["more"] for row in rows} <= {None, ""}
    for row, answer in zip(rows, expected(checkpoint, TEXTS), strict=True):
        assert row["label"] == answer["label"]
        if "jsonl" in output:
            assert row["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
            continue
        for label, probability in answer["probabilities"].items():
            assert float(row[f"probability_{label}"]) == pytest.approx(probability, abs=1e-5)
    assert [path.name for path in (tmp_path / output).parent.iterdir() if path.name.startswith(".")] == []


def test_whole_numbers_are_whole_in_the_frame_where_a_cell_is_missing(checkpoint, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a", "id": 1152921504606846977}\n{"text": "b", "id": null}\n')
    answered = hf_posenc.predict(checkpoint, data=tmp_path / "in.jsonl")
    assert answered["id"].tolist() == [1152921504606846977, None]


def test_texts_may_be_a_column_of_a_table(checkpoint):
    columns = [TEXTS, pd.Series(TEXTS), np.array(TEXTS), pa.chunked_array([TEXTS]), iter(TEXTS)]
    labels = [hf_posenc.predict(checkpoint, column)["label"].tolist() for column in columns]
    assert labels == [labels[0]] * len(columns)


def test_pandas_types_of_columns_follow_their_names(checkpoint, tmp_path):
    index = pd.Index([7, 8, 9], name="label_id")
    frame = pd.DataFrame({"text": TEXTS, "label": pd.array([1, None, 0], "Int64")}, index=index)
    frame.to_parquet(tmp_path / "in.parquet")
    answered = hf_posenc.predict(checkpoint, data=tmp_path / "in.parquet", output=tmp_path / "out.parquet")
    for table in (answered, pd.read_parquet(tmp_path / "out.parquet")):
        assert table["label"].tolist() == [answer["label"] for answer in expected(checkpoint, TEXTS)]
        pd.testing.assert_frame_equal(table[["text", "input_label"]].set_axis(["text", "label"], axis=1), frame)


def test_a_regression_gives_numbers(run, regression, tmp_path):
    numbers = [answer["prediction"] for answer in expected(regression, TEXTS)]
    source = write(tmp_path / "in.csv")
    for output in ("out.csv", "out.parquet", "out.jsonl"):
        assert run("predict", regression, "--data", source, "-o", tmp_path / output)[0] == 0
        rows = read(tmp_path / output)
        assert [float(row["prediction"]) for row in rows] == pytest.approx(numbers, abs=1e-5)
        assert set(rows[0]) == {"id", "text", "label", "more", "prediction"}  # no clash: the label stays as it is
    _, out, _ = run("predict", regression, "who saw karla")
    assert "prediction" in out
    assert "probabilities" not in out
    assert f"{numbers[0]:.4g}" in out


def test_several_labels_are_a_list_or_joined(run, tmp_path):
    examples = [{"text": word, "label": label} for word, label in (("red", ["a", "b"]), ("old", ["c"]))] * 8
    train(tmp_path / "run", data=write_jsonl(tmp_path / "train.jsonl", examples))
    for output in ("out.csv", "out.parquet", "out.jsonl"):
        code, _, err = run("predict", tmp_path / "run", "red", "--threshold", "0", "-o", tmp_path / output)
        assert code == 0, err
        (row,) = read(tmp_path / output)
        labels = row["label"].split("|") if output == "out.csv" else list(row["label"])
        assert sorted(labels) == ["a", "b", "c"]


def test_a_label_with_the_sign_that_joins_labels_is_refused_in_a_csv(run, tmp_path):
    examples = [{"text": word, "label": label} for word, label in (("red", ["a|b"]), ("old", ["a", "c"]))] * 8
    train(tmp_path / "run", data=write_jsonl(tmp_path / "train.jsonl", examples))
    code, _, err = run("predict", tmp_path / "run", "red", "--threshold", "1", "-o", tmp_path / "out.csv")
    assert code != 0
    assert "'a|b' holds '|', which joins a list in a .csv. Write .jsonl." in err
    assert not (tmp_path / "out.csv").exists()


def test_names_that_clash_are_kept_under_others(run, checkpoint, tmp_path):
    row = {"text": "x", "label": 1, "input_label": 2, "probabilities": 3}
    source = write_jsonl(tmp_path / "in.jsonl", [row])
    run("predict", checkpoint, "--data", source, "-o", tmp_path / "out.jsonl")
    (prediction,) = read(tmp_path / "out.jsonl")
    assert (prediction["input_input_label"], prediction["input_label"], prediction["input_probabilities"]) == (2, 1, 3)
    assert prediction["label"] in prediction["probabilities"]
    _, out, _ = run("predict", checkpoint, "--data", source, "--json")
    assert json.loads(out) == prediction


def test_what_is_answered_again_keeps_no_earlier_probability_under_its_name(run, checkpoint, tmp_path):
    source = write(tmp_path / "in.csv")
    answer = {"jsonl": {"probabilities"}, "csv": {"probability_acceptable", "probability_unacceptable"}}
    for first, second in (("a.csv", "b.jsonl"), ("a.jsonl", "b.csv"), ("a.csv", "b.csv")):
        run("predict", checkpoint, "--data", source, "-o", tmp_path / first)
        code, _, err = run("predict", checkpoint, "--data", tmp_path / first, "-o", tmp_path / second)
        assert code == 0, err
        row = read(tmp_path / second)[0]
        assert {name for name in row if name.startswith("probabilit")} == answer[second.partition(".")[2]]
        assert {f"input_{name}" for name in answer[first.partition(".")[2]]} | {"input_input_label"} <= set(row)


@pytest.mark.parametrize(
    ("name", "place"),
    [("in.csv", "line 3"), ("in.jsonl", "line 2"), ("in.parquet", "row 1"), ("in.txt", "line 2"), (None, "row 1")],
)
def test_empty_texts_are_answered_and_said_with_their_rows(run, checkpoint, tmp_path, name, place):
    texts = ["a", "", "b", " ", ""]
    if name == "in.txt":
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    elif name is not None:
        write(tmp_path / name, [{"text": text, "id": n} for n, text in enumerate([*texts[:4], None])])
    given = texts if name is None else ("--data", tmp_path / name)
    code, _, err = run("predict", checkpoint, *given, "-o", tmp_path / "out.jsonl")
    assert code == 0, err
    assert f"{name or 'Your texts'}: 3 empty, from {place} on, and answered all the same: such an answer means" in err
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [row["text"] or "" for row in rows] == texts
    assert all(row["label"] for row in rows)
    assert "empty" not in run("predict", checkpoint, "a b")[2]


def test_joined_texts_are_joined_by_every_way_in_and_calibrated_when_asked(run, tmp_path):
    examples = [
        {"subject": f"note {n}", "body": row["text"], "queue": row["label"]} for n, row in enumerate(rows("train", 96))
    ]
    source = write_jsonl(tmp_path / "in.jsonl", examples)
    options = {"text_column": "subject,body", "join": " ", "label_column": "queue", "epochs": 3, "learning_rate": 1e-2}
    train(tmp_path / "run", data=source, validation_share=0.2, **options)
    answers = expected(tmp_path / "run", [f"{row['subject']} {row['body']}" for row in examples])
    assert run("predict", tmp_path / "run", "--data", source, "-o", tmp_path / "out.jsonl")[0] == 0
    model, frame = hf_posenc.load(tmp_path / "run"), pd.DataFrame(examples)
    pairs = list(zip(frame["subject"], frame["body"], strict=True))
    probabilities = [[answer["probabilities"][name] for name in model.classes_] for answer in answers]
    for texts in (frame, frame[["body", "subject"]], pairs, [" ".join(pair) for pair in pairs]):
        np.testing.assert_allclose(model.predict_proba(texts), probabilities, atol=1e-5)
    assert [row["probabilities"] for row in read_jsonl(tmp_path / "out.jsonl")] == [
        pytest.approx(answer["probabilities"], abs=1e-5) for answer in answers
    ]
    frame.loc[0, "body"] = None  # an empty cell of a file, which predict answers
    missing = expected(tmp_path / "run", [f"{frame['subject'][0]} "])[0]["confidence"]
    assert model.predict_proba(frame).max(1)[0] == pytest.approx(missing, abs=1e-5)
    words = ("predict", tmp_path / "run", pairs[0][0], "--text-pair", pairs[0][1], "--json")
    (plain, calibrated) = (json.loads(run(*words, *more)[1]) for more in ((), ("--calibrated",)))
    assert plain["probabilities"] == pytest.approx(answers[0]["probabilities"], abs=1e-5)
    temperature = results(tmp_path / "run")["calibration"]["temperature"]
    odds = [np.log(answer["confidence"] / (1 - answer["confidence"])) for answer in (plain, calibrated)]
    assert odds[1] == pytest.approx(odds[0] / temperature, rel=1e-4)
    assert temperature != pytest.approx(1, abs=1e-3)
    with pytest.raises(UserError, match="3 texts stand where the model takes one, or two as a pair"):
        model.predict([["a", "b", "c"]])
    assert "noted in config.json are left out" not in run(*words)[2]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["id2label"] = {number: f"renamed {name}" for number, name in config["id2label"].items()}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    code, _, said = run("predict", tmp_path / "run", "a text", "--calibrated")
    assert code != 0
    assert "noted in config.json are left out: it had labels of other names" in said
    assert "has no temperature to calibrate by" in said


def test_pairs_of_a_file_and_of_the_command_line_are_pairs(run, checkpoint, tmp_path):
    trained, source = tmp_path / "run", write_csv(tmp_path / "a.csv", [{"text": "who saw", "text_pair": "karla"}])
    examples = [{"premise": row["text"], "hypothesis": "karla", "label": row["label"]} for row in rows("train", 48)]
    train(trained, data=write_jsonl(tmp_path / "in.jsonl", examples))
    columns = ("--text-column", "text,text_pair")
    assert run("predict", trained, "--data", source, "-o", tmp_path / "out.jsonl", *columns)[0] == 0
    _, out, _ = run("predict", trained, "who saw", "--text-pair", "karla", "--json")
    probabilities = read_jsonl(tmp_path / "out.jsonl")[0]["probabilities"]
    assert probabilities == pytest.approx(json.loads(out)["probabilities"], abs=1e-5)
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    pair = AutoTokenizer.from_pretrained(trained)("who saw", "karla", return_tensors="pt")
    shares = model(**pair).logits[0].softmax(-1).tolist()
    assert probabilities == pytest.approx({model.config.id2label[n]: share for n, share in enumerate(shares)}, abs=1e-5)
    for words, message in (
        ((trained, "who saw"), "trained on pairs of texts. Give the second one too: --text-pair"),
        ((checkpoint, "who saw", "--text-pair", "karla"), "trained on single texts. Leave out the second: --text-pair"),
        ((checkpoint, "who saw", "--threshold", "0.9"), "--threshold 0.9 is for several labels per text"),
        ((checkpoint, "who saw", "--calibrated"), "has no temperature to calibrate by: `hf-posenc train` fits one on"),
        ((checkpoint, "who saw", "--split", "test"), "--split 'test' is for --data, and texts are given"),
        ((checkpoint, "who saw", "--delimiter", ";"), "--delimiter ';' is for --data, and texts are given"),
        ((checkpoint, "--data", source, "--split", "test"), "is a file. Leave it out"),
        ((checkpoint, "--data", source, "--data-config", "x"), "--data-config 'x' is of a data set on the Hub"),
        ((checkpoint, "--data", source, "--text-column", "text", "--join", " "), "--join ' ' joins several columns"),
    ):
        code, _, err = run("predict", *words)
        assert (code, message in err) == (2, True), (words, err)


def test_texts_that_are_cut_are_counted(run, checkpoint, tmp_path):
    limit = AutoTokenizer.from_pretrained(checkpoint).model_max_length
    (tmp_path / "in.txt").write_text("\n".join(["who saw karla", "who " * limit, "who " * 3 * limit]))
    code, _, err = run("predict", checkpoint, "--data", tmp_path / "in.txt", "-o", tmp_path / "out.csv")
    assert code == 0
    assert f"2 texts have more than {limit:,} tokens, and only so many were read." in err
    assert "only so many were read" not in run("predict", checkpoint, "who saw karla")[2]
    with pytest.warns(UserWarning, match=f"1 text has more than {limit} tokens"):
        hf_posenc.load(checkpoint).predict(["who " * limit, "who saw karla"])


def test_numbers_stay_numbers(run, checkpoint, tmp_path):
    varying = [{"text": "a", "id": 1}] * 1500 + [{"text": "a", "id": 2.5}, {"text": "b", "id": None}]
    source = write_jsonl(tmp_path / "in.jsonl", varying)
    assert run("predict", checkpoint, "--data", source, "-o", tmp_path / "out.parquet", "--batch-size", 256)[0] == 0
    assert pd.read_parquet(tmp_path / "out.parquet")["id"].iloc[-2] == 2.5


@pytest.mark.parametrize(("error", "expected_code"), [(UserError("no more"), 2), (KeyboardInterrupt(), 130)])
def test_a_run_that_stops_leaves_the_file_that_was_there(run, checkpoint, tmp_path, monkeypatch, error, expected_code):
    source, output = write(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    output.write_text("mine")

    def stop(classifier, inputs, *arguments, **options):
        yield from answers_to(classifier, itertools.islice(inputs, 2))
        raise error

    monkeypatch.setattr("hf_posenc.finetuning.prediction.answers_to", stop)
    assert run("predict", checkpoint, "--data", source, "-o", output)[0] == expected_code
    assert output.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_model_whose_answers_are_not_finite_is_refused(run, checkpoint, tmp_path):
    folder, name = Path(shutil.copytree(checkpoint, tmp_path / "damaged")), "model.layers.0.intermediate.weight"
    # Finite: what a flipped bit of an exponent does.
    edit_weights(folder, lambda weights: weights[name][0].fill_(3e38))
    with pytest.raises(UserError, match=r"damaged' answers with numbers that aren't finite"):
        list(answers_to(load_classifier(str(folder)), [("karla runs",)]))
    file = write_jsonl(tmp_path / "test.jsonl", rows("train", 8))
    assert "aren't finite" in run("evaluate", folder, "--data", file)[2]


TIMES = [dt.datetime(2020, 1, 2, 3, 4, 5, 6), None]
COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "uint64": (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
    "int8": (pa.array([-7, None], pa.int8()), [-7, None]),
    "bool": (pa.array([True, None]), [True, None]),
    "double": (pa.array([0.1, float("nan")], from_pandas=False), [0.1, None]),
    "infinite": (pa.array([float("-inf"), float("inf")]), [None, None]),
    "float": (pa.array([1.5, None], pa.float32()), [1.5, None]),
    "half": (pa.array(np.array([1.5, 2], np.float16)), [1.5, 2.0]),
    "decimal": (pa.array([Decimal("1.10"), None]), ["1.10", None]),
    "decimal32": (pa.array([Decimal("1.10"), None], pa.decimal32(5, 2)), ["1.10", None]),
    "date": (pa.array([dt.date(2020, 1, 2), None]), ["2020-01-02", None]),
    "time": (pa.array([dt.time(1, 2, 3), None]), ["01:02:03", None]),
    "timestamp": (pa.array(TIMES, pa.timestamp("us")), ["2020-01-02 03:04:05.000006", None]),
    "nanoseconds": (pa.array([1600000000123456789, None], pa.timestamp("ns")), ["2020-09-13 12:26:40.123456789", None]),
    "zone": (pa.array(TIMES, pa.timestamp("us", "Europe/Berlin")), ["2020-01-02 04:04:05.000006+01:00", None]),
    "duration": (pa.array([90_000_000_001, None], pa.duration("ns")), ["0 days 00:01:30.000000001", None]),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), ["x", None]),
    "large_string": (pa.array(["Zo\xeb", None], pa.large_string()), ["Zo\xeb", None]),
    "string_view": (pa.array(["x", None], pa.string_view()), ["x", None]),
    "binary": (pa.array([b"\x00\xff", None]), ["AP8=", None]),
    "list": (pa.array([[1.5, float("nan")], []], pa.list_(pa.float64())), [[1.5, None], []]),
    "list of strings": (pa.array([["x", "y"], None]), [["x", "y"], None]),
    "large_list": (pa.array([["x"], []], pa.large_list(pa.large_string())), [["x"], []]),
    "fixed-size list": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [[1, 2], None]),
    "struct": (pa.array([{"a": 1, "b": None}, None]), [{"a": 1, "b": None}, None]),
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), [[["a", 1]], None]),
    "null": (pa.nulls(2), [None, None]),
}
"""A column of each type, and what JSON holds of it."""


def strict(line: str) -> dict[str, Any]:
    """JSON as others read it, who know no NaN."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(line, parse_constant=refuse)


def in_csv(value: Any) -> str:
    """What a cell holds of a value of JSON."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "|".join(value)
    return "" if value is None else json.dumps(value) if isinstance(value, list | dict) else str(value)


def test_all_types_of_other_columns_stay_as_they_are(run, checkpoint, tmp_path):
    table = pa.table({"text": ["who saw karla", "karla who"], **{name: cells for name, (cells, _) in COLUMNS.items()}})
    table = table.replace_schema_metadata({"mine": "kept"})
    pq.write_table(table, tmp_path / "in.parquet")
    for kind in ("parquet", "jsonl", "csv"):
        code, _, err = run("predict", checkpoint, "--data", tmp_path / "in.parquet", "-o", tmp_path / f"out.{kind}")
        assert code == 0, err
    written = pq.read_table(tmp_path / "out.parquet")
    kept, table = written.select(table.column_names), pq.read_table(tmp_path / "in.parquet")
    assert kept.schema.equals(table.schema, check_metadata=True)
    assert repr(kept.to_pydict()) == repr(table.to_pydict())  # in which NaN equals NaN
    assert set(written.column_names) - set(table.column_names) == {
        *("label", "confidence", "probability_acceptable", "probability_unacceptable")
    }
    lines = list(map(strict, (tmp_path / "out.jsonl").read_text().splitlines()))
    _, out, _ = run("predict", checkpoint, "--data", tmp_path / "in.parquet", "--json")
    assert [strict(line) for line in out.splitlines()] == lines
    cells = read(tmp_path / "out.csv")
    for name, (_, held) in COLUMNS.items():
        assert [line[name] for line in lines] == held, name
        kept = [in_csv(value) for value in held] if name != "infinite" else ["-inf", "inf"]
        assert [row[name] for row in cells] == kept, name


def test_rows_that_are_answered_wrongly_are_written_as_they_were_read(run, checkpoint, tmp_path):
    texts = [row["text"] for row in rows("test", 8)]
    right = [answer["label"] for answer in expected(checkpoint, texts)]
    labels = [name if n % 2 else {"acceptable": "unacceptable"}.get(name, "acceptable") for n, name in enumerate(right)]
    hashes = pa.array([2**64 - 1 - n for n in range(8)], pa.uint64())
    table = pa.table({"text": texts, "label": labels, "line": hashes, "when": pa.array(range(8), pa.timestamp("ns"))})
    table = table.append_column("probability_a", pa.array([0.5] * 8))
    pq.write_table(table, tmp_path / "in.parquet")
    words = ("--data", tmp_path / "in.parquet", "--errors", tmp_path / "wrong.parquet")
    code, _, err = run("evaluate", checkpoint, *words)
    assert code == 0, err
    wrong = pq.read_table(tmp_path / "wrong.parquet")
    names = ["text", "input_label", "input_line", "when", "input_probability_a"]
    expected_rows = table.take([0, 2, 4, 6]).rename_columns(names)
    assert wrong.select(expected_rows.column_names).equals(expected_rows)
    assert wrong["line"].to_pylist() == [0, 2, 4, 6]
    pq.write_table(table.take([1, 3]), tmp_path / "in.parquet")
    code, _, err = run("evaluate", checkpoint, *words[:-1], tmp_path / "none.csv")
    assert (code, (tmp_path / "none.csv").read_text().splitlines()[1:]) == (0, []), err
    assert '"text","label"' in (tmp_path / "none.csv").read_text()


def test_wrong_answers_have_the_names_that_the_data_has(run, tmp_path):
    tiny_classifier(tmp_path / "model", ["a b"], ("LABEL_0", "LABEL_1"))
    data = write_jsonl(
        tmp_path / "a.jsonl", [{"text": text, "label": label} for text in "ab" for label in ("no", "yes")]
    )
    words = ("--data", data, "--label-names", "no,yes", "--errors", tmp_path / "wrong.jsonl")
    assert run("evaluate", tmp_path / "model", *words)[0] == 0
    answered = read_jsonl(tmp_path / "wrong.jsonl")
    assert [{row["label"], row["input_label"]} for row in answered] == [{"no", "yes"}] * 2
    assert {*answered[0]["probabilities"]} == {"no", "yes"}


def test_an_output_that_is_a_link_stays_one(run, checkpoint, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "out.csv").symlink_to(tmp_path / "there" / "real")
    code, _, err = run("predict", checkpoint, "who", "-o", tmp_path / "out.csv")
    assert code == 0, err
    assert (tmp_path / "out.csv").is_symlink()
    (tmp_path / "a file").touch()
    (tmp_path / "bad.csv").symlink_to(tmp_path / "a file" / "real.csv")
    with pytest.raises(UserError, match="can't be written to: a file is in the way"):
        check_output(str(tmp_path / "bad.csv"))
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "test.csv").symlink_to(tmp_path / "there" / "real")  # as in the Hub's cache
    with pytest.raises(UserError, match="would be a file of the data that is read"):
        check_output(str(tmp_path / "splits" / "test.csv"), str(tmp_path / "splits"))
    assert (tmp_path / "there" / "real").read_text().startswith('"text"')


def test_a_time_that_python_has_no_value_for_is_kept_or_refused(run, checkpoint, tmp_path):
    table = pa.table({"text": ["who saw karla"], "when": pa.array([2**62], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "in.parquet")
    for kind, code in (("parquet", 0), ("jsonl", 2), ("csv", 2)):
        got, _, err = run("predict", checkpoint, "--data", tmp_path / "in.parquet", "-o", tmp_path / f"out.{kind}")
        assert got == code, err
        assert ("Write .parquet, which keeps it" in err) == (code == 2)
    assert not (tmp_path / "out.jsonl").exists()
    days = pa.table({"text": ["who saw karla"], "when": pa.array([6_585_000], pa.date32())})
    pq.write_table(days, tmp_path / "in.parquet")
    with pytest.raises(UserError, match="The input can't be read: year 19999 is out of range. .*parquet` keeps it"):
        hf_posenc.predict(checkpoint, data=tmp_path / "in.parquet")


def test_every_json_that_is_written_is_without_nan(tmp_path):
    write_json(tmp_path / "a.json", {"a": float("nan"), "b": [1, float("-inf"), {"c": b"\x00"}]})
    assert strict((tmp_path / "a.json").read_text()) == {"a": None, "b": [1, None, {"c": "AA=="}]}


HALF = "who\ud800"


def test_half_a_character_of_pythons_strings_is_refused_with_its_place(run, checkpoint, tmp_path):
    model = hf_posenc.load(checkpoint)
    for take in (
        lambda: model.predict(["who", HALF]),
        lambda: model.predict(pd.DataFrame({"text": ["who", HALF]}, dtype=object)),
        lambda: hf_posenc.fit(["who", HALF], ["a", "b"]),
        lambda: hf_posenc.fit(["who", "karla"], ["a", HALF]),
        lambda: hf_posenc.convert(checkpoint, scheme="t5", healing=hf_posenc.Healing(["who", HALF])),
    ):
        with pytest.raises(UserError, match=r"[Rr]ow 1 holds '\\ud800', one half of a surrogate pair"):
            take()
    code, _, err = run("predict", checkpoint, "who", HALF)
    assert (code, "Row 1 holds '\\ud800', one half" in err) == (2, True)


ODD = ["\x00", "who\x85saw", "who\u2028saw", '"', '""', 'a "b", c', ",", ";", "a\tb", "a\nb", "a\r\nb", "a\rb"]
ODD += [" who ", "\\", "'", "NA", "None", "nan", "007", "=1+1", "\ufeffwho", 'who\n"saw", "karla"\n', "a,b\n\nc"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_odd_characters_are_kept_and_answered_as_the_tokenizer_reads_them(run, checkpoint, tmp_path, kind):
    """NUL and its like are characters: none is refused or changed; a tokenizer of BERT's kind drops them."""
    texts = ["who\x00 saw\x01 karla\x7f", *ODD]
    source = write(tmp_path / f"in.{kind}", [{"text": text, "id": "x"} for text in texts])
    output = tmp_path / f"out.{kind}"
    code, _, err = run("predict", checkpoint, "--data", source, "-o", output)
    assert code == 0, err
    again = hf_posenc.predict(checkpoint, data=output)  # what is written is read again
    assert again["text"].tolist() == texts
    assert again["input_label"].tolist() == [row["label"] for row in expected(checkpoint, texts)]
    plain, controls = (hf_posenc.load(checkpoint).predict_proba([text]) for text in ("who saw karla", texts[0]))
    np.testing.assert_allclose(plain, controls, atol=1e-6)


def test_empty_texts_in_memory_are_answered_and_said_as_on_the_command_line(checkpoint):
    model = hf_posenc.load(checkpoint)
    for texts in (["a", None, " "], pd.Series(["a", None, " "]), pd.DataFrame({"text": ["a", float("nan"), ""]})):
        said = "texts in memory: 2 empty, from row 1 on, and answered all the same: such an answer means nothing"
        with pytest.warns(UserWarning, match=said):
            assert len(model.predict(texts)) == 3
    for texts in (["a", None, "b", "c"], pd.DataFrame({"text": ["a", None, "b", "c"]})):
        with pytest.raises(UserError, match="Missing text in the train data: row 1 .* out with skip_missing=True"):
            hf_posenc.fit(texts, ["x", "y", "x", "y"])
    assert model.predict(["a"]).shape == (1,)


def test_a_text_that_is_the_name_of_a_file_is_said(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.csv").write_text("text\n")
    said = "'test.csv' was taken as a text. It is a file, too, which --data reads."
    assert said in run("predict", checkpoint, "test.csv")[2]
    assert "was taken" not in run("predict", checkpoint, "test.csv is good")[2]
    with pytest.warns(UserWarning, match=re.escape(said.replace("--data", "data"))):
        hf_posenc.predict(checkpoint, ["test.csv", "good"])
