"""int8: what it gains and costs is measured and written down; what costs too much isn't kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import hf_posenc
from hf_posenc import UserError, cli, export
from hf_posenc.checkpoints.loading import knowledge
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.data.columns import Columns, remember_columns
from hf_posenc.data.preparing import marks_of
from hf_posenc.exporting.int8 import agreement, read_calibration, read_labelled
from hf_posenc.inference.backends import open_backend
from hf_posenc.options import Options
from tests.support.common import home_of
from tests.support.exporting import SENTENCES, batch, checkpoint, expected, tokenizer

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
TEXTS = SENTENCES
SIZES = {"hidden_size": 64, "intermediate_size": 256}
GATED = {"mlp_gated": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}


def labelled(path: Path, labels) -> str:
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, labels, strict=True)))
    return str(path)


def logits(model) -> np.ndarray:
    return expected(model, dict(tokenizer()(TEXTS, padding=True, return_tensors="np")))["logits"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A classifier, and data on which it is right: (folder, model, file)."""
    folder = tmp_path_factory.mktemp("int8")
    model = checkpoint(folder / "model", "rope", **LABELS, **SIZES)
    answers = logits(model)
    middle = np.median(answers[:, 1] - answers[:, 0])
    model.classifier.out_proj.bias.data[1] -= float(middle)  # both labels occur
    model.save_pretrained(folder / "model")
    labels = [("no", "yes")[number] for number in logits(model).argmax(-1)]
    assert 20 < labels.count("yes") < 76
    return folder / "model", model, labelled(folder / "data.csv", labels)


@pytest.fixture
def once(classifier, monkeypatch):
    """The classifier's graphs in float32 are written once: that takes longer than the rest."""

    write_graph = home_of(export).write_graph

    def write(to, model, tokenizer, staging):
        kept = classifier[0].with_name(to)
        if not kept.exists():
            write_graph(to, model, tokenizer, staging)
            shutil.copytree(staging, kept)
        shutil.copytree(kept, staging, dirs_exist_ok=True)

    monkeypatch.setattr(home_of(export), "write_graph", write)


def spoil(path: Path, *_) -> None:
    """A quantisation that answers always alike."""
    import onnx

    model = onnx.load(path)
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name.endswith("classifier.out_proj.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([100, -100], np.float32), bias.name))
    onnx.save(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_size_speed_agreement_and_scores_are_said_and_written_into_the_card(classifier, once, to, tmp_path):
    folder, model, data = classifier
    report = export(folder, tmp_path / "out", to=to, quantize="int8", evaluate=data, largest_drop=0.3)
    small = report.int8
    assert small.megabytes[1] < 0.6 * small.megabytes[0]
    assert min(small.texts_per_second) > 0
    assert small.score[0] == 1.0
    assert 0.7 <= small.score[1] == pytest.approx(small.agreement)
    assert report.largest_difference < 1e-5  # of float32
    assert small.alone <= 1e-3
    assert json.loads((tmp_path / "out/tokenizer.json").read_text())["truncation"] is None  # not that of its own texts
    processor = json.loads((tmp_path / "out/export.json").read_text())["hf_posenc"]["measured_on"]
    assert processor
    for text in (str(report), (tmp_path / "out/README.md").read_text()):
        (line,) = (line for line in text.splitlines() if line.startswith("int8: "))
        assert line.startswith(f"int8: accuracy 1.0000 -> {small.score[1]:.4f}, ")
        said = f"{small.agreement:.4f} on 96 texts (data.csv)", f"measured on {processor}", "alone and in a batch"
        for words in (*said, "MB", "texts a second"):
            assert words in line
    card = ModelCard.load(tmp_path / "out/README.md").data.to_dict()
    assert card["int8"]["accuracy_float32"] == 1.0
    assert card["int8"]["agreement"] == pytest.approx(small.agreement, abs=1e-4)
    backend = open_backend(tmp_path / "out", to)
    inputs = batch(3, 20)
    difference = np.abs(backend.logits(inputs) - expected(model, inputs)["logits"]).max()
    assert difference > 1e-5  # it is the int8 graph
    answered = CliRunner().invoke(cli.app, ["predict", str(tmp_path / "out"), "a text"])
    assert f"Backend: {to}, int8.\n" in answered.stderr


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_an_answer_does_not_depend_on_the_rest_of_the_batch(classifier, once, to, tmp_path):
    """With a range for a whole batch, as ONNX Runtime's own, a loud text changed the answers to the others by .375."""
    export(classifier[0], tmp_path / "out", to=to, quantize="int8")
    model = hf_posenc.load(tmp_path / "out", backend=to)
    texts = [f"{text} " + " and so on" * (number % 9) for number, text in enumerate(TEXTS)]
    together = model.predict_proba(texts)
    alone = np.concatenate([model.predict_proba([text]) for text in texts])
    assert np.abs(together - alone).max() <= 1e-3
    assert np.ptp(together[:, 0]) > 0.01  # they are different answers
    plain = hf_posenc.load(classifier[0]).predict_proba(texts)
    assert np.abs(together - plain).max() < 0.1


@pytest.mark.slow
def test_onnx_weights_have_seven_bits_for_processors_without_vnni(classifier, once, tmp_path):
    import onnx

    export(classifier[0], tmp_path / "out", to="onnx", quantize="int8")
    tensors = map(onnx.numpy_helper.to_array, onnx.load(tmp_path / "out/onnx/model.onnx").graph.initializer)
    assert max(int(np.abs(t.astype(np.int64)).max()) for t in tensors if t.dtype == np.int8 and t.ndim) == 64


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_weights_beside_a_large_graph_are_said_and_not_left_beside_its_int8_form(
    classifier, tmp_path, monkeypatch, quantize
):
    monkeypatch.setattr(home_of(home_of(export).write_graph), "_ONE_FILE", 1000)
    report = export(classifier[0], tmp_path / "out", to="onnx", quantize=quantize)
    graph, data = ((tmp_path / "out/onnx" / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    assert (data > 1000) == (quantize is None) == any("weights are in model.onnx.data" in note for note in report.notes)
    assert report.megabytes == pytest.approx((graph + data) / 1e6)


@pytest.mark.slow
def test_past_the_largest_drop_nothing_is_kept(classifier, once, tmp_path, monkeypatch):
    folder, _, data = classifier
    monkeypatch.setattr(home_of(hf_posenc.Int8Report), "_quantize_onnx", spoil)
    options = ["--to", "onnx", "--quantize", "int8", "--evaluate", data]
    error = str(CliRunner().invoke(cli.app, ["export", str(folder), "-o", str(tmp_path / "out"), *options]).exception)
    assert "int8 lowers accuracy on data.csv from 1.0000 to 0." in error
    assert "--largest-drop 0.01: nothing was kept. Export without --quantize" in error
    assert not list(tmp_path.iterdir())
    spoilt = export(folder, tmp_path / "out", to="onnx", quantize="int8", evaluate=data, largest_drop=1.0)
    assert spoilt.int8.score[1] < 0.8  # allowed, and said


@pytest.mark.slow
def test_without_labelled_data_there_is_a_warning_and_the_agreement(classifier, once, tmp_path):
    folder, _, _ = classifier
    report = export(folder, tmp_path / "out", to="onnx", quantize="int8")
    assert (report.int8.score, report.int8.metric) == (None, None)
    assert 0.7 < report.int8.agreement <= 1
    assert "nothing says what int8 costs in accuracy. Give labelled data to measure it: evaluate=" in str(report)


@pytest.mark.slow
def test_a_regression_is_scored_by_correlation(tmp_path):
    units = {"problem_type": "regression", "num_labels": 1, "label_mean": 1000.0, "label_scale": 200.0}
    model = checkpoint(tmp_path / "model", "none", **units, **SIZES)
    data = labelled(tmp_path / "data.csv", [f"{value:.3f}" for value in logits(model)[:, 0]])
    report = export(tmp_path / "model", tmp_path / "out", to="onnx", quantize="int8", evaluate=data, largest_drop=0.2)
    assert report.int8.score[0] == pytest.approx(1)
    assert report.int8.score[1] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "to"), [("Model", "onnx"), ("ForQuestionAnswering", "onnx"), ("ForMultipleChoice", "openvino")]
)
def test_other_heads_are_measured_by_the_cosine_of_their_outputs_and_gated_networks_agree(head, to, tmp_path):
    checkpoint(tmp_path / "model", "rope", head, **SIZES, **GATED)
    report = export(tmp_path / "model", tmp_path / "out", to=to, quantize="int8")
    assert report.largest_difference < 1e-5  # of float32
    assert report.int8.megabytes[1] < 0.6 * report.int8.megabytes[0]
    assert 0.95 < report.int8.agreement < 1
    evaluate = labelled(tmp_path / "data.csv", ["no"] * 96)
    with pytest.raises(UserError, match=f"scores labels of texts, and a PosEnc{head} gives none"):
        export(tmp_path / "model", tmp_path / "other", to="onnx", quantize="int8", evaluate=evaluate)


def test_data_of_other_labels_or_of_none_is_refused_before_the_export(classifier, tmp_path):
    for labels, words in ((["maybe"] * 96, "maybe"), ([""] * 96, "label")):
        data = labelled(tmp_path / "data.csv", labels)
        with pytest.raises(UserError, match=words):
            export(classifier[0], tmp_path / "out", to="onnx", quantize="int8", evaluate=data)
    assert not (tmp_path / "out").exists()


def test_labelled_texts_that_are_cut_are_counted(classifier):
    folder, model, data = classifier
    words = tokenizer()
    words.model_max_length = 12
    cut = sum(len(ids) > 12 for ids in words(TEXTS)["input_ids"])
    read = read_labelled(data, model, words, knowledge(model.config, open_checkpoint(folder)))
    assert 0 < cut < len(TEXTS)
    assert read.data.endswith(f" {cut} of the texts were cut to 12 tokens.")


def test_labelled_texts_that_were_trained_on_are_said(classifier):
    folder, model, data = classifier
    known = knowledge(model.config, open_checkpoint(folder))
    read = read_labelled(data, model, tokenizer(), replace(known, trained_on=frozenset(marks_of(TEXTS))))
    assert f"{len(TEXTS)} of {len(TEXTS)} test texts also in the training data" in read.data


def test_agreement_of_a_regression_sees_a_shift_a_scale_and_another_order():
    answers = [np.array([value]) for value in (10.0, 20.0, 30.0, 40.0)]
    assert agreement(answers, answers, "regression") == 1.0
    for others in ([11.0, 21.0, 31.0, 41.0], [5.0, 10.0, 15.0, 20.0], [40.0, 1.0, 900.0, 2.0]):
        assert agreement(answers, [np.array([value]) for value in others], "regression") < 1.0
    shifted = [answer + 5.0 for answer in answers]
    assert agreement(answers, shifted, "regression") == pytest.approx(1 - 4 * 25 / 500)


def test_calibration_texts_are_read_as_a_classifier_was_trained(tmp_path):
    folder = tmp_path / "model"
    model = checkpoint(folder, "rope", **LABELS)
    remember_columns(model.config, Columns(("review",)))
    model.save_pretrained(folder)
    texts = ["every dog", "a cat", "the bird", "a dog", f"the dog {'a cat ' * 40}"]
    (tmp_path / "texts.csv").write_text("review,text\n" + "".join(f"{text},NOT THIS\n" for text in texts))
    opened = open_checkpoint(folder)
    words = tokenizer()
    read = read_calibration(
        str(tmp_path / "texts.csv"), model, words, knowledge(model.config, opened), Options(), most=3
    )
    length = words.model_max_length
    expected = words(texts[::2], truncation=True, max_length=length)["input_ids"]  # from all over the file
    assert [row["input_ids"] for row in read.rows] == expected
    assert read.data == f"3 of 5 texts, 1 cut to {length} tokens"
