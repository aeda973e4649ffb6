"""The functions that do what commands of the same name do, and return what those print."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

import hf_posenc
from hf_posenc import UserError

QUICK = {"max_steps": 2, "bf16": False, "device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A file of two classes and an empty text."""
    path = tmp_path_factory.mktemp("functions") / "d.csv"
    rows = [
        f'"{word} film {number}",{label},{number}'
        for number in range(30)
        for word, label in (("good", "g"), ("bad", "b"))
    ]
    path.write_text("\n".join(["text,label,number", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(data) -> hf_posenc.TrainingResult:
    return hf_posenc.train(data, data.parent / "run", baselines=False, verbose=0, set={"vocab_size": 100}, **QUICK)


def test_train_writes_what_its_command_writes(trained, data):
    assert trained.output == data.parent / "run"
    written = json.loads((trained.output / "results.json").read_text())
    assert written["baselines"] == {}
    assert written["metrics"]["eval_loss"] == trained.report.metrics["eval_loss"]


def test_predict_gives_the_rows_of_the_command_as_a_table(trained, data, run):
    table = hf_posenc.predict(trained.output, data=data, device="cpu", output=data.parent / "answers.csv")
    code, out, err = run("predict", trained.output, "--data", data, "--json", "--device", "cpu")
    assert code == 0, err
    printed = [json.loads(line) for line in out.splitlines()]
    assert list(table.columns) == [
        "text",
        "input_label",
        "number",
        "label",
        "confidence",
        "probability_b",
        "probability_g",
    ]
    assert list(table["label"]) == [answer["label"] for answer in printed]
    assert list(table["probability_b"]) == pytest.approx([answer["probabilities"]["b"] for answer in printed], abs=1e-6)
    again = pd.read_csv(data.parent / "answers.csv")
    assert list(again.columns) == list(table.columns)
    with pytest.warns(UserWarning, match="1 of 2 texts is empty|1 empty"):
        texts = hf_posenc.predict(trained.output, ["a good film", ""], device="cpu", top_k=1)
    assert list(texts["text"]) == ["a good film", ""]
    assert list(hf_posenc.predict(trained.output, "a good film", device="cpu")["text"]) == ["a good film"]


def test_evaluate_returns_what_its_command_prints(trained, data, run):
    scores = hf_posenc.evaluate(trained.output, data, device="cpu", errors=data.parent / "wrong.csv")
    code, out, err = run("evaluate", trained.output, "--data", data, "--json", "--device", "cpu")
    assert code == 0, err
    assert json.loads(out) == scores
    assert len(pd.read_csv(data.parent / "wrong.csv")) == round((1 - scores["accuracy"]) * 60)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: hf_posenc.predict(folder, ["a"], output="x.xls"), "output='x.xls' names no format that is"),
        (
            lambda folder: hf_posenc.predict(folder, ["a"], epochs=1),
            "unexpected keyword argument 'epochs'; data is read",
        ),
        (lambda folder: hf_posenc.predict(folder, data="d.csv", label_column="y"), "keyword argument 'label_column'"),
    ],
)
def test_what_cannot_be_is_refused_by_the_names_of_parameters(trained, call, message):
    with pytest.raises((UserError, TypeError), match=message):
        call(trained.output)


def test_fit_writes_into_an_output_that_is_free_and_what_is_loaded_can_be_saved(data, tmp_path, monkeypatch):
    table = pd.read_csv(data)
    options = {**QUICK, "baselines": False, "set": {"vocab_size": 100}}
    fitted = hf_posenc.fit(table.text, table.label, output=tmp_path / "mine", **options)
    with pytest.raises(UserError, match="already holds a run"):
        hf_posenc.fit(table.text, table.label, output=tmp_path / "mine", **options)
    again = hf_posenc.fit(table.text, table.label, output=tmp_path / "mine", overwrite=True, **options)
    monkeypatch.chdir(tmp_path)
    loaded = hf_posenc.load("mine", device="cpu")
    monkeypatch.chdir(data.parent)  # elsewhere than where it was loaded
    loaded.save(tmp_path / "copy")
    copy = AutoModelForSequenceClassification.from_pretrained(tmp_path / "copy")
    for name, value in again.model_.state_dict().items():
        torch.testing.assert_close(copy.state_dict()[name], value, rtol=0, atol=0)
    texts = list(table.text[:8])
    assert (hf_posenc.load(tmp_path / "copy", device="cpu").predict_proba(texts) == loaded.predict_proba(texts)).all()
    assert list(fitted.classes_) == ["b", "g"]
    for name in ("_trained_on.npy", "results.json", "README.md"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()
    with pytest.raises(UserError, match="of a label; or validation of hf_posenc.train; or validation_share=0"):
        hf_posenc.fit(["a b", "c d"] * 20, ["x", "y"] * 20, **QUICK)
