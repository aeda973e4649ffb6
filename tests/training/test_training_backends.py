"""Answers by ONNX Runtime and OpenVINO, and a stopped `hf-posenc predict` that goes on where it was."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from test_training_prediction import expected, read, write
from training_harness import rows, write_jsonl

import hf_posenc
from hf_posenc.data.inputs import Text
from hf_posenc.errors import UserError
from hf_posenc.finetuning import prediction, unfinished
from hf_posenc.finetuning.prediction import load_classifier

TEXTS = ["who saw karla", "karla saw who", "a much longer text than the others, with karla in it", "saw"]
FORMATS = ["onnx", "openvino"]


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    for name in ("transformers.exporters.exporter_openvino", "onnx", "onnxruntime", "onnxscript", "openvino"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("exported")
    for name in FORMATS:
        hf_posenc.export(checkpoint, folder / name, name)
    both = shutil.copytree(folder / "onnx", folder / "both")
    shutil.copytree(folder / "openvino" / "openvino", both / "openvino")
    return folder


def assert_close(answers, expected):
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_an_exported_folder_answers_as_the_checkpoint_does(checkpoint, exported, run, name):
    answers = expected(checkpoint, TEXTS)
    assert_close(expected(exported / name, TEXTS), answers)
    code, out, err = run("predict", exported / name, *TEXTS, "--format", "jsonl")
    assert code == 0
    assert f"Backend: {name}, in float32." in err
    assert_close([json.loads(line) for line in out.splitlines()], answers)
    fitted, graph = hf_posenc.load(checkpoint), hf_posenc.load(exported / name)
    assert fitted.predict_proba(TEXTS) == pytest.approx(graph.predict_proba(TEXTS), abs=1e-5)
    assert list(fitted.predict(TEXTS)) == list(graph.predict(TEXTS))


@pytest.mark.slow
def test_the_fastest_that_there_is_runs_the_model(checkpoint, exported, monkeypatch):
    assert load_classifier(str(checkpoint)).backend == "torch"
    assert load_classifier(str(exported / "both")).backend == "openvino"
    assert load_classifier(str(exported / "both"), backend="onnx").backend == "onnx"
    find = prediction.fastest_backend.__globals__["importlib"].util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else find(name))
    assert load_classifier(str(exported / "both")).backend == "onnx"
    with pytest.raises(UserError, match=r"openvino, which is not installed: pip install openvino"):
        load_classifier(str(exported / "openvino"))


@pytest.mark.slow
def test_bfloat16_is_openvinos_to_compute_in(checkpoint, exported, run):
    code, out, err = run("predict", exported / "openvino", *TEXTS, "--format", "jsonl", "--bf16", "true")
    assert code == 0
    assert "Backend: openvino, in bfloat16." in err
    for line, answer in zip(out.splitlines(), expected(checkpoint, TEXTS), strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(answer["probabilities"], abs=0.05)
    code, _, err = run("predict", exported / "onnx", *TEXTS, "--bf16", "true")
    assert code == 2
    assert "ONNX Runtime computes the graph in float32" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "tensorrt"], "'--backend': 'tensorrt' is not one of 'torch', 'onnx', 'openvino'"),
        (["--backend", "onnx"], "has no onnx/model.onnx.*hf-posenc export"),
        (["--backend", "onnx", "--device", "cuda"], "--backend onnx runs on the processor, not on --device cuda"),
    ],
)
def test_a_backend_that_cannot_run_it_is_one_error(run, checkpoint, options, message):
    code, _, err = run("predict", checkpoint, "who", *options)
    assert code == 2
    assert re.search(message, " ".join(err.split()))


# ---- a run that was stopped


def stop_after(count, monkeypatch):
    """The next prediction is interrupted after so many answers; returns how many texts each later one was given."""
    counts, real = [], prediction.predict

    def interrupted(classifier, inputs, *arguments, **options):
        counts.append(0)
        for number, answer in enumerate(real(classifier, inputs, *arguments, **options)):
            if len(counts) == 1 and number == count:
                raise KeyboardInterrupt
            counts[-1] += 1
            yield answer

    monkeypatch.setattr("hf_posenc.finetuning.prediction.predict", interrupted)
    return counts


def many(path, count=40):
    return write(path, [{"id": n, "text": f"{TEXTS[n % 4]} {n}"} for n in range(count)])


def probabilities(row):
    flat = {name: float(value) for name, value in row.items() if name.startswith("probability_")}
    return row.get("probabilities", flat)


@pytest.mark.parametrize(
    ("source", "output"), [("in.csv", "out.csv"), ("in.jsonl", "out.jsonl"), ("in.csv", "out.parquet")]
)
def test_a_stopped_run_goes_on_and_gives_the_same_file(run, checkpoint, tmp_path, monkeypatch, source, output):
    source = many(tmp_path / source)
    whole, output = tmp_path / f"whole{Path(output).suffix}", tmp_path / output
    assert run("predict", checkpoint, "-f", source, "-o", whole)[0] == 0
    counts = stop_after(25, monkeypatch)
    code, _, err = run("predict", checkpoint, "-f", source, "-o", output)
    assert code != 0
    assert f"25 answers are kept in {output}.unfinished: the same command goes on." in err
    assert not output.exists()
    code, _, err = run("predict", checkpoint, "-f", source, "-o", output)
    assert (code, counts) == (0, [25, 15])
    assert "Going on after 25 answers of a run that was stopped." in err
    assert "40 answers are in" in err
    for row, other in zip(read(output), read(whole), strict=True):  # other batches: other rounding
        assert [row[name] for name in ("id", "text", "label")] == [other[name] for name in ("id", "text", "label")]
        assert probabilities(row) == pytest.approx(probabilities(other), abs=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({source.name, whole.name, output.name})


def test_a_line_that_was_being_written_is_answered_again(run, checkpoint, tmp_path, monkeypatch):
    source, output = many(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    (tmp_path / ".out.jsonl-x1234567.writing").write_text("half")
    (tmp_path / ".out.jsonl-mine").write_text("mine")
    (tmp_path / ".out.jsonl-other.jsonl-x1234567.writing").write_text("another output's")
    counts = stop_after(25, monkeypatch)
    run("predict", checkpoint, "-f", source, "-o", output)
    assert sorted(path.name for path in tmp_path.glob(".out*")) == [
        ".out.jsonl-mine",
        ".out.jsonl-other.jsonl-x1234567.writing",
    ]
    kept = tmp_path / "out.jsonl.unfinished"
    kept.write_bytes(kept.read_bytes()[:-5])
    assert run("predict", checkpoint, "-f", source, "-o", output)[0] == 0
    assert counts == [25, 16]
    assert [row["id"] for row in read(output)] == list(range(40))


def test_a_folder_with_a_graph_alone_says_what_runs_it(run, exported, tmp_path):
    source = write_jsonl(tmp_path / "test.jsonl", rows("test", 4))
    for name in FORMATS:
        folder, words = exported / name, f"is an export for {name}, without weights for PyTorch.*--backend {name}"
        for command in (("predict", folder, "a", "--backend", "torch"), ("evaluate", folder, "-f", source)):
            code, _, err = run(*command)
            assert (code, bool(re.search(words, err))) == (2, True), err
        code, _, err = run("export", folder, tmp_path / "out", "--to", "onnx")
        assert (code, bool(re.search(words, err))) == (2, True), err


def test_half_a_line_is_cut_off_before_anything_is_written(tmp_path):
    output, facts = str(tmp_path / "out.jsonl"), {"file": 1}
    kept = tmp_path / f"out.jsonl{unfinished.ENDING}"
    kept.write_text('{"file": 1}\n{"label": "a"}\n{"label": "a much longer lab')
    with pytest.raises(KeyboardInterrupt), unfinished.unfinished_answers(output, facts, print):
        raise KeyboardInterrupt
    assert kept.read_text() == '{"file": 1}\n{"label": "a"}\n'


def test_a_run_killed_before_its_first_answer_is_no_other_one(tmp_path):
    kept, remarks = tmp_path / f"out.jsonl{unfinished.ENDING}", []
    with unfinished.unfinished_answers(str(tmp_path / "out.jsonl"), {"file": 1}, remarks.append):
        killed = kept.read_bytes()  # what a kill now leaves
    kept.write_bytes(killed)
    with unfinished.unfinished_answers(str(tmp_path / "out.jsonl"), {"file": 1}, remarks.append):
        assert not remarks


@pytest.mark.parametrize("damaged", [b"\0\0\0\0\n", b"7\n", b"{'label': \"a\"}\n", b'{"label": "\xff"}\n'])
def test_answers_are_kept_up_to_the_first_damaged_line(tmp_path, damaged):
    kept = tmp_path / f"out.jsonl{unfinished.ENDING}"
    kept.write_bytes(b'{"file": 1}\n{"label": "a"}\n' + damaged + b'{"label": "b"}\n')
    with unfinished.unfinished_answers(str(tmp_path / "out.jsonl"), {"file": 1}, print) as earlier:
        texts = (Text(letter) for letter in "xyz")
        answers = earlier.go_on(texts, lambda rest: (prediction.Prediction(text, {"label": "c"}) for text in rest))
        assert [(answer.input.text, answer.answer["label"]) for answer in answers] == [
            ("x", "a"),
            ("y", "c"),
            ("z", "c"),
        ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("file", "another file"),
        ("checkpoint", "another checkpoint"),
        ("option", "top_k None, now 1"),
        ("torch", f"torch {torch.__version__}, now another"),
        ("device", "device cpu, now another"),
        ("garbage", "its facts can't be read"),
    ],
)
def test_answers_to_something_else_are_not_gone_on_with(run, checkpoint, tmp_path, monkeypatch, change, reason):
    source, output = many(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    model = shutil.copytree(checkpoint, tmp_path / "model")
    counts = stop_after(25, monkeypatch)
    run("predict", model, "-f", source, "-o", output)
    options = []
    if change == "file":
        many(source, 41)
    elif change == "checkpoint":
        os.utime(model / "model.safetensors", ns=(0, 0))
    elif change == "option":
        options = ["--top-k", "1"]
    elif change in ("torch", "device"):
        facts = unfinished.facts_of
        monkeypatch.setattr(unfinished, "facts_of", lambda *a, **o: {**facts(*a, **o), change: "another"})
    else:
        (tmp_path / "out.jsonl.unfinished").write_text("mine\nand mine\n")
    code, _, err = run("predict", model, "-f", source, "-o", output, *options)
    assert (code, counts[1:]) == (0, [41 if change == "file" else 40])
    assert "Going on" not in err
    assert f"{output}.unfinished is of another run ({reason}): starting anew." in err
    assert len(read(output)) == counts[1]


def test_two_processes_do_not_write_one_output(run, checkpoint, tmp_path):
    source, output = many(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    with FileLock(f"{output}{unfinished.ENDING}.lock"):
        code, _, err = run("predict", checkpoint, "-f", source, "-o", output)
    assert code == 2
    assert "Another process is writing --output" in err
    assert run("predict", checkpoint, "-f", source, "-o", output)[0] == 0


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that root can't write to")
def test_a_folder_that_cannot_be_written_is_said(run, checkpoint, tmp_path):
    code, _, err = run("predict", checkpoint, "-f", many(tmp_path / "in.jsonl"), "-o", "/proc/self/out.jsonl")
    assert code == 2
    assert "'/proc/self/out.jsonl': its folder can't be written" in err


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_was(checkpoint, tmp_path):
    source, output = many(tmp_path / "in.jsonl", 200_000), tmp_path / "out.jsonl"
    kept = tmp_path / "out.jsonl.unfinished"
    command = [sys.executable, "-m", "hf_posenc.cli", "predict", checkpoint, "-f", source, "-o", output]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (kept.exists() and kept.stat().st_size > 100_000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    before = kept.read_bytes().count(b"\n") - 1
    assert 0 < before < 200_000
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"Going on after {before:,} answers" in done.stderr
    assert [row["id"] for row in read(output)] == list(range(200_000))
