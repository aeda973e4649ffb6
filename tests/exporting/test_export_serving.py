"""The benchmark of serving: figures; the runtimes themselves in the slow test."""

import json

import numpy as np
import pytest
from export_harness import checkpoint

from hf_posenc.data.texts import own_texts
from model_cards.benchmark import serving
from model_cards.benchmark.timing import time_job

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
IN_TORCH = (serving.REFERENCE, "bert:torch:float32", "posenc:torch:float32")


@pytest.fixture
def trained(tmp_path):
    """A checkpoint and labelled texts."""
    checkpoint(tmp_path / "mine", "none", max_position_embeddings=128, **LABELS)
    rows = [f"{text},{('no', 'yes')[number % 2]}" for number, text in enumerate(own_texts(40))]
    (tmp_path / "test.csv").write_text("\n".join(["text,label", *rows]))
    return str(tmp_path / "mine"), str(tmp_path / "test.csv")


def test_figures_are_of_medians_within_a_round(monkeypatch, trained):
    taken = {1: iter([2.0, 8.0, 4.0]), 32: iter([1.0] * 6)}

    def run_alone(job):
        np.save(job["answers"], np.tile([0.0, 1.0], (40, 1)))
        assert sorted(map(len, job["rows"].values())) == [1, 8, 40]
        return dict.fromkeys(job["rows"], next(taken[job["window"]]))

    monkeypatch.setattr(serving, "_run_alone", run_alone)
    results = serving.run_serving(*trained, IN_TORCH)
    rows = {(row["work"], row["contender"]): row for row in results["rows"]}
    reference, _, ours = (rows[serving.FILE, name] for name in IN_TORCH)
    assert (reference["milliseconds"], reference["ratio"], reference["texts_per_second"]) == (2000, 1, 10)
    assert (ours["milliseconds"], ours["ratio"], ours["accuracy"], ours["agreement"]) == (500, 4, 0.5, 1)
    assert reference["accuracy"] is None


@pytest.mark.slow
def test_each_runtime_answers_alone_in_its_process(trained, tmp_path, monkeypatch):
    one_of_each = (*IN_TORCH, "posenc:openvino:float32", "posenc:onnx:int8")
    measure, target = serving.run_serving, tmp_path / "serving.json"
    monkeypatch.setattr(serving, "_ROUNDS", 1)
    run_alone, known = serving._run_alone, []

    def run_each_backend_alone(job):  # PyTorch's others answer here: a process takes longer to start than all else
        known.append(job["backend"])
        return run_alone(job) if known.count(job["backend"]) == 1 else time_job(job)

    monkeypatch.setattr(serving, "_run_alone", run_each_backend_alone)
    monkeypatch.setattr(serving, "run_serving", lambda *files: measure(*files, one_of_each))
    model, texts = trained
    monkeypatch.setattr("sys.argv", ["serving", "--checkpoint", model, "--evaluate", texts, "-o", str(target)])
    serving.main()
    rows = json.loads(target.read_text())["rows"]
    assert len(rows) == 3 * 5
    assert all(row["milliseconds"] > 0 for row in rows)
    assert {row["agreement"] for row in rows if row["contender"] == "posenc:openvino:float32"} == {1.0}
