"""The command line, run as a user runs it: what it prints, and one clear line with exit code 2 for bad input."""

import contextlib
import csv
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from typer.main import get_command

import hf_posenc
from hf_posenc import SCHEMES, SIZES, UserError, cli
from tests.support.common import BUILTIN, home_of, tiny_classifier, tiny_config, write_csv, write_jsonl

ROOT = Path(__file__).parents[2]


@pytest.fixture
def refused(run):
    """Runs what ends with exit code 2; returns its one line."""

    def call(*arguments: str, **options) -> str:
        code, _, err = run(*arguments, **options)
        assert code == 2, err
        (line,) = [line for line in err.splitlines() if line.startswith("Error:")]
        assert "Traceback" not in err
        return line

    return call


@pytest.fixture
def predict(run):
    """Runs `predict`; returns its answers."""

    def call(folder, *arguments: str, **options) -> list[dict]:
        code, out, err = run("predict", str(folder), *arguments, "--json", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return call


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A classifier trained for a moment on order alone, with a learned table."""
    folder = tmp_path_factory.mktemp("cli") / "order"
    sizes = {"max_rows": 64, "max_steps": 2, "max_length": 48, "set": {"vocab_size": 500, "disable_tqdm": True}}
    hf_posenc.train("blimp_order", folder, scheme="learned", device="cpu", verbose=0, **sizes)
    return folder


HERE = "import sys\nsys.argv = ['hf-posenc', *sys.argv[1:]]\nfrom hf_posenc.cli import main\nmain()"
"""The console script."""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("train --scheme ro", {"rope"}), ("train --size ", set(SIZES)), ("check ", set(BUILTIN))],
)
def test_the_shell_completes_names(typed, expected):
    asked = {"COMP_WORDS": f"hf-posenc {typed}", "COMP_CWORD": str(len(typed.split(" ")))}
    environment = {**os.environ, "_HF_POSENC_COMPLETE": "complete_bash", **asked}
    done = subprocess.run([sys.executable, "-c", HERE], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def test_the_version_and_every_scheme_with_its_parameters_and_length_are_said(run):
    assert run("--version") == (0, f"hf-posenc {hf_posenc.__version__}\n", "")
    code, out, _ = run("schemes")
    assert code == 0
    for scheme in BUILTIN:
        assert f"│ {scheme} " in out
    assert re.search("│ learned .* 393,216 .* 512 ", out)


def test_predict_gives_probabilities_for_texts_and_standard_input(run, predict, checkpoint):
    rows = predict(checkpoint, "who saw karla", "karla saw who")
    assert [row["text"] for row in rows] == ["who saw karla", "karla saw who"]
    for row in rows:
        assert set(row["probabilities"]) == {"acceptable", "unacceptable"}
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["probabilities"][row["label"]] == max(row["probabilities"].values())
        assert next(iter(row["probabilities"])) == row["label"]
        assert row["confidence"] == row["probabilities"][row["label"]]
    (row,) = predict(checkpoint, "who saw karla", "--top-k", "1")
    assert row["probabilities"] == {row["label"]: pytest.approx(max(rows[0]["probabilities"].values()))}
    expected = pytest.approx(rows[0]["probabilities"])
    read = predict(checkpoint, "--data", "-", "--format", "txt", stdin='who saw karla\n{"text": "x"}\n')
    assert [row["text"] for row in read] == ["who saw karla", '{"text": "x"}']  # as it is said to be, and no guess
    assert read[0]["probabilities"] == expected
    read = predict(checkpoint, "--data", "-", "--format", "csv", stdin="id,text\n1,who saw karla\n")
    assert [(row["id"], row["probabilities"]) for row in read] == [("1", expected)]
    code, out, _ = run("predict", str(checkpoint), "who saw karla")
    assert code == 0
    assert f"{max(rows[0]['probabilities'].values()):.4g}" in out


def test_answers_are_float32_unless_bfloat16_is_asked_for(run, checkpoint):
    answers = {}
    for words in ((), ("--bf16",)):
        code, out, err = run("predict", str(checkpoint), "who saw karla", "--json", *words)
        assert code == 0, err
        answers[words] = json.loads(out)["probabilities"]["acceptable"]
    assert answers[()] == pytest.approx(hf_posenc.load(checkpoint).predict_proba(["who saw karla"])[0, 0], abs=1e-6)
    assert answers["--bf16",] != answers[()]
    assert answers["--bf16",] == pytest.approx(answers[()], abs=0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_while_importing_is_one_line():
    words = [sys.executable, "-X", "importtime", "-c", HERE, "schemes"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        for line in running.stderr:
            if line.rstrip().endswith(" typer.models"):
                break
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert running.returncode == 130
    lines = [line for line in rest.splitlines() if not line.startswith("import time:")]
    assert lines == ["Interrupted: nothing was written."]


def test_numbers_are_printed_with_the_digits_that_they_have(run, tmp_path):
    units = {"problem_type": "regression", "label_mean": 2029.78, "label_scale": 0.01}
    tiny_classifier(tmp_path / "model", ["a b"], ["number"], **units)
    data = write_csv(tmp_path / "a.csv", [{"text": text, "label": 2029.78} for text in "abab"])
    measured = re.search(r"^mse +(\S+)$", run("evaluate", tmp_path / "model", "--data", data)[1], re.MULTILINE)
    assert measured is not None
    assert 0 < float(measured[1]) < 1e-3
    assert re.search(r"2029\.7[78]", run("predict", tmp_path / "model", "a")[1])


def test_evaluate_says_what_it_scores_and_lists_every_wrong_answer(run, refused, predict, checkpoint, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{number},who saw karla,{label}" for number in range(7) for label in ("acceptable", "unacceptable")]
    for split in ("validation", "extra"):
        (folder / f"{split}.csv").write_text("\n".join(["id,text,label", "7,,acceptable", *rows, ""]))
    errors = tmp_path / "wrong.csv"
    words = ("--data", folder, "--split", "validation", "--errors", errors, "--skip-missing")
    code, out, err = run("evaluate", checkpoint, *words)
    assert code == 0, err
    assert f"{folder}: 14 examples" in out
    assert "accuracy" in out
    assert "test 15 rows from 16 lines, 1 left out" in err
    (answer,) = predict(checkpoint, "who saw karla")
    right = ({"acceptable", "unacceptable"} - {answer["label"]}).pop()
    with errors.open(newline="") as file:
        wrong = list(csv.DictReader(file))
    assert [(row["id"], row["input_label"], row["label"]) for row in wrong] == [
        (str(number), right, answer["label"]) for number in range(7)
    ]
    lines = [line for line, row in enumerate(rows, 3) if row.endswith(f",{right}")]
    assert [int(row["line"]) for row in wrong] == lines
    assert float(wrong[0]["confidence"]) == pytest.approx(answer["confidence"])
    assert "line 2 has none (1 row in all)" in refused("evaluate", checkpoint, "--data", folder / "extra.csv")
    _, out, _ = run("evaluate", checkpoint, "--data", folder / "extra.csv", "--json", "--skip-missing")
    scores = json.loads(out)
    assert (scores["data"], scores["examples"]) == (str(folder / "extra.csv"), 14)
    assert scores["accuracy"] == 0.5
    line = refused("evaluate", checkpoint, "--data", folder)
    assert "has no split 'test'. It has extra, validation: name one" in line


# ---- the same file in every command ----------------------------------------------------------------------------------

ROWS = [(f"{'a lovely' if n % 2 else 'an awful'} film {n}", ("bad", "good")[n % 2]) for n in range(60)]
ROWS[7], ROWS[20] = ("", "good"), (ROWS[20][0], "")  # in lines 9 and 22


def file_of(path, rows, mark=";"):
    """A .csv whose columns have no usual names."""
    path.write_text("".join(f"{text}{mark}{label}\n" for text, label in [("body", "kind"), *rows]))
    return path


NAMED = ("--text-column", "body", "--label-column", "kind")
FEW = ("--options", '{"max_steps": 2, "batch_size": 8}')


@pytest.fixture(scope="module")
def of_semicolons(tmp_path_factory):
    """A folder with the file and, in `model`, a classifier that was trained on it."""
    folder = tmp_path_factory.mktemp("semicolons")
    data = file_of(folder / "mine.csv", ROWS)
    reading = {"delimiter": ";", "text_column": "body", "label_column": "kind", "skip_missing": True}
    hf_posenc.train(data, folder / "model", device="cpu", max_steps=2, verbose=0, **reading)
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train -o {out} --data {data} --max-steps 2 --device cpu", "train 60 rows from 61 lines, 2 left out"),
        ("evaluate {model} --data {data} --device cpu", "test 60 rows from 61 lines, 2 left out"),
        ("compare -o {out} --data {data} --schemes none --seeds 1", "train 52 rows of 60 rows from 61 lines, 2 left"),
        (
            "compare -o {out} --data {data} --schemes none --seeds 1 --dry-run",
            "train 52 rows of 60 rows from 61 lines, 2 left",
        ),
        pytest.param(
            "export {model} -o {out} --to onnx --quantize int8 --largest-drop 1 --evaluate {data}",
            "test 60 rows from 61 lines, 2 left out",
            marks=pytest.mark.slow,
        ),
        ("convert {model} -o {out} --scheme alibi --max-steps 2 --heal {data}", "1 empty text left out, 59 texts used"),
    ],
)
def test_a_file_of_semicolons_with_missing_cells_goes_through_every_command(run, of_semicolons, tmp_path, words, said):
    places = {"out": tmp_path / "out", "data": of_semicolons / "mine.csv", "model": of_semicolons / "model"}
    command, *options = words.format(**places).split()
    options += FEW * (command == "compare")
    if command == "convert":
        code, out, err = run(command, *options, "--delimiter", ";", "--text-column", "body")
    else:
        code, _, err = run(command, *options, "--delimiter", ";", *NAMED)
        assert (code, "line 9 has none" in err or "line 22 has none" in err) == (2, True), err
        assert not (tmp_path / "out").exists()
        code, out, err = run(command, *options, "--delimiter", ";", *NAMED, "--skip-missing")
    assert (code, said in out + err) == (0, True), out + err


def test_fit_leaves_rows_without_text_or_label_out_where_that_is_asked():
    frame, labels = pd.DataFrame({"body": [text or None for text, _ in ROWS]}), [label or None for _, label in ROWS]
    for texts in (frame, frame["body"].tolist()):
        with pytest.raises(
            UserError, match="label of row 20. Fill it in, or leave such rows out with skip_missing=True"
        ):
            hf_posenc.fit(texts, labels, max_steps=2)
        fitted = hf_posenc.fit(texts, labels, max_steps=2, skip_missing=True)
        assert "train 60 rows, 2 left out" in fitted.report_.data.line
        assert fitted.classes_.tolist() == ["bad", "good"]
        assert fitted.report_.baselines["words"]["eval_accuracy"] == 1  # each text has its own label
    numbers = [None if label == "" else len(text) / 7 for text, label in ROWS]
    fitted = hf_posenc.fit(frame, numbers, problem_type="regression", max_steps=2, skip_missing=True, baselines=False)
    assert "2 left out" in fitted.report_.data.line
    marks = pd.DataFrame({"a": [1, 0, None] * 20, "b": [1, 1, 0] * 20})
    fitted = hf_posenc.fit(frame, marks, max_steps=2, skip_missing=True, baselines=False)
    assert "21 left out" in fitted.report_.data.line
    assert fitted.classes_.tolist() == ["a", "b"]


def test_files_of_the_same_kind_are_read_as_those_of_the_training(run, of_semicolons, tmp_path):
    model, rows, trained = (
        of_semicolons / "model",
        [row for row in ROWS if all(row)],
        "as the model's training data was",
    )
    write_jsonl(tmp_path / "a.jsonl", [{"body": text, "kind": label} for text, label in rows])
    files = {"a.csv": ";", "b.csv": ",", "c.tsv": "\t", "a.jsonl": ""}
    for name, mark in files.items():
        path = file_of(tmp_path / name, rows, mark) if mark else tmp_path / name
        options = ("--delimiter", ",") if mark == "," else ()
        for command in ("evaluate", "predict"):
            code, out, err = run(command, model, "--data", path, "--json", "--device", "cpu", *options)
            assert (code, trained in err) == (0, name == "a.csv"), err
            assert ("58" if command == "evaluate" else "a lovely film 1") in out
    code, _, err = run("evaluate", model, "--data", tmp_path / "b.csv", "--device", "cpu")
    assert (code, f"b.csv' is read {trained}, with --delimiter ';'; give another" in err) == (2, True), err
    quoted = tmp_path / "quoted"
    file_of(tmp_path / "q.tsv", [(f'"{text}"', label) for text, label in rows], "\t")
    code, _, err = run(
        "train", "-o", quoted, "--data", tmp_path / "q.tsv", "--quoting", "csv", *NAMED, "--max-steps", "2"
    )
    assert code == 0, err
    code, _, err = run("evaluate", quoted, "--data", tmp_path / "q.tsv")
    assert (code, "with --quoting 'csv'" in err) == (0, True), err
    config = json.loads((quoted / "config.json").read_text())
    config["task_specific_params"]["hf_posenc"]["dialect"]["delimiter"] = ";;"
    (quoted / "config.json").write_text(json.dumps(config))
    code, _, err = run("evaluate", quoted, "--data", tmp_path / "q.tsv")
    assert (code, "--delimiter ';;' can't separate columns" in err) == (2, True), err


PLACES = {"csv": "line 4", "tsv": "line 4", "jsonl": "line 3", "json": "row 2", "parquet": "row 2", "memory": "row 2"}
"""Where the third row is said to stand: lines count from 1, the line of names too, and what has no lines from 0."""


@pytest.mark.parametrize("damage", ["text", "label"])
@pytest.mark.parametrize("kind", PLACES)
def test_a_row_has_one_number_in_every_message(run, checkpoint, tmp_path, kind, damage):
    rows = [{"text": f"who saw karla {n}", "label": ("acceptable", "unacceptable")[n % 2]} for n in range(8)]
    rows[2][damage] = None
    frame, path = pd.DataFrame(rows), tmp_path / f"mine.{kind}"
    said = []
    if kind == "memory":
        model = hf_posenc.load(checkpoint, device="cpu")
        for texts in (frame[["text"]], frame["text"].tolist(), Dataset.from_pandas(frame[["text"]])):
            with pytest.raises(UserError) as refused:
                hf_posenc.fit(texts, [row["label"] for row in rows], baselines=False)
            said.append(str(refused.value))
            with pytest.warns(UserWarning, match="empty") if damage == "text" else contextlib.nullcontext([]) as warned:
                model.predict(texts)
            said += [str(warning.message) for warning in warned if "empty" in str(warning.message)]
    else:
        if kind in ("csv", "tsv"):
            frame.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t"}[kind])
        elif kind == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_json(path, orient="records", lines=kind == "jsonl")
        for words in (("train", "-o", tmp_path / "out"), ("evaluate", checkpoint), ("predict", checkpoint))[
            : 3 - (damage == "label")
        ]:
            said.append(run(*words, "--data", path)[2])
        said.append(run("compare", "-o", tmp_path / "out", "--data", path, "--schemes", "none", "--dry-run")[2])
    assert len(said) >= 3
    for message in said:
        assert re.findall(r"\b(?:line|row|text) \d+", message.lower().replace(str(path).lower(), "")) == [
            PLACES[kind]
        ], message


def test_a_model_that_labels_no_texts_is_refused(refused, tmp_path):
    hf_posenc.PosEncForMaskedLM(tiny_config()).save_pretrained(tmp_path)
    message = f"{str(tmp_path)!r} holds PosEncForMaskedLM, which doesn't classify texts."
    for words in (("predict", str(tmp_path), "text"), ("evaluate", str(tmp_path), "--data", "blimp_order")):
        assert message in refused(*words)  # not with a random head
    with pytest.raises(UserError, match="which doesn't classify texts"):
        hf_posenc.load(tmp_path)


COMMANDS = tuple(get_command(cli.app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run, command):
    code, out, _ = run(command, "--help", columns=80)
    assert code == 0
    assert "Usage: hf-posenc" in out
    assert command != "train" or len(out.splitlines()) <= 60
    assert "…" not in out  # no name is cut off


def test_a_plot_of_a_classifier_reports_no_weights_as_unexpected(run, checkpoint, tmp_path, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers.modeling_utils"), "warning", warnings.append)
    code, _, err = run("plot", str(checkpoint), "-o", str(tmp_path / "x.png"))
    assert (code, warnings) == (0, []), err
    assert (tmp_path / "x.png").is_file()


def test_check_runs_the_exported_graph_too(run, monkeypatch):
    exported = []
    monkeypatch.setattr(home_of(hf_posenc.export), "export", lambda *folders, to: exported.append(to))
    code, out, _ = run("check", "alibi", "--only", "shapes", "--onnx")
    assert (code, exported) == (0, ["onnx"])
    assert re.search(r"2 of 2 checks ran(.|\n)*passed +onnx", out)

    def differs(*folders, to):
        raise UserError("The export differs.")

    monkeypatch.setattr(home_of(hf_posenc.export), "export", differs)
    code, out, _ = run("check", "alibi", "--only", "shapes", "--onnx")
    assert code == 1
    assert re.search(r"failed +onnx .* UserError: The export differs .*own-scheme.md lists the pitfalls", out)


def test_check_prints_a_table_and_fails_where_a_scheme_does(run, refused, monkeypatch):
    code, out, _ = run("check", "alibi", "--only", "padding", "--only", "shift", "--scheme-kwargs", '{"learned": true}')
    assert code == 0
    assert "alibi(learned=True): 2 of 2 checks ran" in out
    assert "padding" in out
    assert "order" not in out
    monkeypatch.setattr(SCHEMES["alibi"], "shift_invariant", False)
    code, out, _ = run("check", "alibi", "--only", "shift")
    assert code == 1
    assert "1 failed" in out
    for arguments, message in (
        (("alibi", "--scheme-kwargs", "[1]"), "--scheme-kwargs '[1]' is no JSON object"),
        (("alibi", "--only", "paddings"), "--only 'paddings' is no check. Choose from repeats"),
    ):
        assert message in refused("check", *arguments)
