"""Answers by ONNX Runtime and OpenVINO."""

import importlib.util
import json
import shutil

import pytest

import hf_posenc
from hf_posenc import UserError
from hf_posenc.finetuning.prediction import load_classifier
from hf_posenc.inference.backends import fastest_backend, open_backend
from tests.support.common import tiny_classifier
from tests.support.training import expected

TEXTS = ["who saw karla", "karla saw who", "a much longer text than the others, with karla in it", "saw"]
FORMATS = ["onnx", "openvino"]


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    for name in ("transformers.exporters.exporter_openvino", "onnx", "onnxruntime", "onnxscript", "openvino"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("exported")
    for name in FORMATS:
        hf_posenc.export(checkpoint, folder / name, to=name)
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
    code, out, err = run("predict", exported / name, *TEXTS, "--json")
    assert code == 0
    assert err == f"Backend: {name}.\n"
    assert_close([json.loads(line) for line in out.splitlines()], answers)
    fitted, graph = hf_posenc.load(checkpoint), hf_posenc.load(exported / name)
    assert fitted.predict_proba(TEXTS) == pytest.approx(graph.predict_proba(TEXTS), abs=1e-5)
    assert list(fitted.predict(TEXTS)) == list(graph.predict(TEXTS))


@pytest.mark.slow
def test_the_fastest_that_there_is_runs_the_model(checkpoint, exported, monkeypatch):
    assert load_classifier(str(checkpoint)).backend == "torch"
    assert load_classifier(str(exported / "both")).backend == "openvino"
    assert load_classifier(str(exported / "both"), backend="onnx").backend == "onnx"
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else find(name))
    assert load_classifier(str(exported / "both")).backend == "onnx"
    with pytest.raises(UserError, match=r"openvino, which is not installed: pip install openvino"):
        load_classifier(str(exported / "openvino"))


@pytest.mark.slow
def test_bfloat16_is_openvinos_to_compute_in(checkpoint, exported, run):
    code, out, err = run("predict", exported / "openvino", *TEXTS, "--json", "--bf16")
    assert code == 0
    assert "Backend: openvino, in bfloat16." in err
    for line, answer in zip(out.splitlines(), expected(checkpoint, TEXTS), strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(answer["probabilities"], abs=0.05)
    code, _, err = run("predict", exported / "onnx", *TEXTS, "--bf16")
    assert code == 2
    assert "ONNX Runtime computes the graph in float32" in err


def test_weights_beside_a_graph_are_taken_since_the_graph_may_be_of_others(tmp_path):
    for name in ("onnx/model.onnx", "openvino/openvino_model.xml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"a graph")
    assert fastest_backend(tmp_path) in ("onnx", "openvino")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert fastest_backend(tmp_path) == "torch"


def test_a_pair_of_texts_for_a_model_without_a_second_token_type_is_refused(tmp_path):
    tiny_classifier(tmp_path, TEXTS, ("a", "b"), type_vocab_size=1)
    classifier = hf_posenc.load(tmp_path)
    assert len(classifier.predict(TEXTS)) == len(TEXTS)
    with pytest.raises(UserError, match=r"the type 1, .* and the model has type_vocab_size=1\. Give single texts"):
        classifier.predict([("who saw", "karla")])
    with pytest.raises(UserError, match=r"the type 1, .* and the model has type_vocab_size=1\. Give single texts"):
        hf_posenc.fit([("who saw", text) for text in "abcd"], list("xyxy"), pretrained=str(tmp_path), max_steps=1)


def test_a_graph_on_the_hub_is_downloaded_first():
    pytest.importorskip("onnxruntime")
    with pytest.raises(UserError, match=r"'me/x' is none. Download it first \(`hf download me/x`\), and name"):
        open_backend("me/x", "onnx")
