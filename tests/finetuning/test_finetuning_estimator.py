"""`hf_posenc.fit` and the scikit-learn estimators: training on lists, without files."""

import json
import math
import pickle
import re
import sys
import tempfile
import unittest
import warnings
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data
from transformers import pipeline

import hf_posenc
from hf_posenc import PosEncClassifier, PosEncRegressor, UserError
from hf_posenc.data.memory import labels_in_memory
from tests.support.common import write_jsonl
from tests.support.training import SIZES, assert_same_weights, command, rows

OPTIONS: dict[str, Any] = {"set": SIZES, "device": "cpu"}
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 16}


def data(count: int = 96) -> tuple[list[str], list[str]]:
    examples = rows("train", count)
    return [row["text"] for row in examples], [row["label"] for row in examples]


def quick(**parameters: Any) -> PosEncClassifier:
    return PosEncClassifier(**{**SHORT, **OPTIONS, **parameters})


def scores(folder: Path, texts: list[str], classes: Any) -> np.ndarray:
    """What a pipeline answers, columns in the order of the classes."""
    answers = pipeline("text-classification", str(folder), top_k=None)(texts)
    return np.array(
        [[{entry["label"]: entry["score"] for entry in entries}[name] for name in classes] for entries in answers]
    )


def test_a_list_of_texts_is_learned_saved_and_read_by_everything_else(tmp_path: Path) -> None:
    texts, labels = data()
    fitted = hf_posenc.fit(texts, labels, **OPTIONS, **SHORT)
    assert isinstance(fitted, PosEncClassifier)
    assert fitted.classes_.tolist() == ["acceptable", "unacceptable"]
    probabilities = fitted.predict_proba(texts)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert fitted.predict(texts).tolist() == fitted.classes_[probabilities.argmax(1)].tolist()
    assert fitted.score(texts, labels) == np.mean(fitted.predict(texts) == np.array(labels))
    fitted.save(tmp_path / "model")
    with pytest.raises(UserError, match=r"model' already holds a run .*replace it \(overwrite=True\)"):
        fitted.save(tmp_path / "model")
    fitted.save(tmp_path / "model", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file' can't be written to: a file is in the way"):
        fitted.save(tmp_path / "file")
    with pytest.raises(UserError, match="There is no folder"):
        hf_posenc.load(tmp_path / "other")
    loaded = hf_posenc.load(tmp_path / "model")
    for same in (loaded, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(same.predict_proba(texts), probabilities)
    np.testing.assert_allclose(scores(tmp_path / "model", texts[:4], fitted.classes_), probabilities[:4], atol=1e-5)
    kept = json.loads((tmp_path / "model" / "results.json").read_text())
    assert kept["metrics"]["eval_accuracy"] == fitted.report_.metrics["eval_accuracy"]
    assert "# model\n" in (tmp_path / "model" / "README.md").read_text()
    loaded.save(tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").iterdir()} == {p.name for p in (tmp_path / "model").iterdir()}


def test_it_is_the_training_of_the_command_line(tmp_path: Path, run: Any) -> None:
    """The same rows from a file give the same weights, bit for bit."""
    texts, labels = data()
    options = {"data": write_jsonl(tmp_path / "rows.jsonl", rows("train", 96)), "validation_share": 0.1, "seed": 42}
    assert run("train", *command(tmp_path / "file", **options, save_strategy=None, bf16=False))[0] == 0
    hf_posenc.fit(texts, labels, **OPTIONS, **SHORT, bf16=False).save(tmp_path / "list")
    assert_same_weights(tmp_path / "file", tmp_path / "list")


@pytest.mark.parametrize(
    "labels",
    [[3, 11, 20], [True, False], ["b", "a"], np.array([2, 1]), pd.Series(["x", "y"]), [1.0, 0.0], ["x", "x "]],
    ids=["integers", "truth values", "strings", "numpy", "pandas", "whole floats", "blanks"],
)
def test_predictions_are_labels_as_they_were_given(labels: Any, tmp_path: Path) -> None:
    texts, _ = data(24)
    targets = [list(labels)[number % len(labels)] for number in range(24)]
    fitted = hf_posenc.fit(texts, targets, **OPTIONS, **SHORT)
    assert set(fitted.classes_) == set(labels)
    assert fitted.classes_.dtype == np.unique(np.asarray(targets)).dtype
    assert set(fitted.predict(texts)) <= set(labels)
    fitted.save(tmp_path / "model")
    loaded = hf_posenc.load(tmp_path / "model")
    assert loaded.predict(texts).tolist() == fitted.predict(texts).tolist()
    assert loaded.classes_.dtype.kind == fitted.classes_.dtype.kind


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        (pd.Series([3, 10, 2, None] * 8), [2.0, 3.0, 10.0], ["2", "3", "10"]),  # which pandas makes real
        (["cafe\u0301", "tee", "caf\u00e9", "tee"] * 8, ["cafe\u0301", "tee"], ["caf\u00e9", "tee"]),
        (["x", "y", " ", "y"] * 8, ["x", "y"], ["x", "y"]),
    ],
)
def test_labels_are_named_as_those_of_a_file(labels: Any, classes: list[Any], names: list[str]) -> None:
    texts, _ = data(32)
    weights = dict.fromkeys(classes, 1.0)
    fitted = quick(skip_missing=True, class_weights=weights).fit(texts, labels)
    assert (fitted.classes_.tolist(), list(fitted.model_.config.id2label.values())) == (classes, names)
    assert set(fitted.predict(texts)) <= set(classes)
    assert fitted.predict_proba(texts).shape == (32, len(names))


def test_a_fit_that_is_refused_leaves_the_one_before() -> None:
    texts, labels = data(32)
    fitted = quick().fit(texts, labels)
    before = fitted.predict_proba(texts)
    with pytest.raises(UserError, match="max_steps=-5"):
        fitted.set_params(max_steps=-5).fit(texts, [1, 2] * 16)
    assert fitted.predict_proba(texts).tolist() == before.tolist()
    assert set(fitted.predict(texts)) <= set(labels)


def test_label_names_order_labels_in_either_unicode_form() -> None:
    texts, _ = data(32)
    fitted = quick(label_names="t,cafe\u0301").fit(texts, ["caf\u00e9", "t"] * 16)
    assert list(fitted.model_.config.id2label.values()) == ["t", "caf\u00e9"]
    assert set(fitted.predict(texts)) <= {"t", "caf\u00e9"}


def test_warnings_that_are_errors_leave_a_whole_estimator() -> None:
    texts, labels = data(32)
    fitted = quick(baselines=False).fit(texts, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            fitted.fit(texts, ["x", "y"] * 16)
    assert set(fitted.predict(texts)) <= {"x", "y"}


def test_decimals_that_are_whole_keep_all_digits() -> None:
    near = [Decimal("12345678901234567"), Decimal("12345678901234568")]
    frame = pd.DataFrame({"a": [Decimal(0), Decimal(1)]})
    assert labels_in_memory(frame)["a"].tolist() == [0, 1]
    for given in (near, tuple(near), np.array(near, dtype=object), pd.Series(near)):
        assert labels_in_memory(given) == [int(label) for label in near]
    assert math.isnan(labels_in_memory([Decimal("NaN")])[0])


def test_decimals_and_fractions_of_a_database_are_real_numbers() -> None:
    texts, _ = data(32)
    given = pd.Series([Decimal("0.5"), Decimal("1.25"), Fraction(1, 4), Decimal("2.5")] * 8)
    decimals = pa.array([Decimal("0.50"), Decimal("1.25"), Decimal("0.25"), Decimal("2.50")] * 8)
    numbers = PosEncRegressor(**OPTIONS, **SHORT).fit(texts, [0.5, 1.25, 0.25, 2.5] * 8).predict(texts)
    for labels in (given, list(given), decimals):
        fitted = hf_posenc.fit(texts, labels, **OPTIONS, **SHORT, baselines=False)
        assert fitted.predict(texts).tolist() == numbers.tolist()


def test_columns_are_in_the_order_of_the_classes_whatever_that_of_the_checkpoint_was(tmp_path: Path) -> None:
    texts, labels = data(32)
    quick().fit(texts, labels).save(tmp_path / "first")
    names = ["unacceptable", "acceptable"]
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
    (tmp_path / "first" / "config.json").write_text(json.dumps(config))
    fitted = PosEncClassifier(**SHORT, pretrained=str(tmp_path / "first")).fit(texts, labels)
    assert (fitted.classes_.tolist(), list(fitted.model_.config.id2label.values())) == (names[::-1], names)
    fitted.save(tmp_path / "second")
    answers = scores(tmp_path / "second", texts, fitted.classes_)
    np.testing.assert_allclose(fitted.predict_proba(texts), answers, atol=1e-5)
    assert fitted.predict(texts).tolist() == fitted.classes_[answers.argmax(1)].tolist()


def test_several_labels_per_text_are_rows_of_0_and_1_and_a_frame_names_them(tmp_path: Path) -> None:
    texts, _ = data(32)
    marks = np.array([[[1, 0], [1, 1], [0, 0]][number % 3] for number in range(32)])
    fitted = hf_posenc.fit(texts, pd.DataFrame(marks, columns=["b", "a"]), **OPTIONS, **SHORT)
    assert fitted.classes_.tolist() == ["b", "a"]
    assert fitted.predict(texts).tolist() == (fitted.predict_proba(texts) > 0.5).astype(int).tolist()
    assert 0 <= fitted.score(texts, marks) <= 1
    fitted.save(tmp_path / "model")
    loaded = hf_posenc.load(tmp_path / "model")
    assert loaded.classes_.tolist() == ["b", "a"]
    assert loaded.predict(texts).tolist() == fitted.predict(texts).tolist()
    assert quick().fit(texts, csr_matrix(marks)).classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "problem_type", "wanted"),
    [
        (["a", "b"], "regression", "a single_label_classification. Give one number for each text."),
        ([[0, 1], [1, 1]], "regression", "a multi_label_classification. Give one number for each text."),
        ([0.5, 1.5], "single_label_classification", "a regression. Give one label for each text, a string or a whole"),
        ([[0, 1], [1, 1]], "single_label_classification", "a multi_label_classification. Give one label for each"),
        (["a", "b"], "multi_label_classification", "a single_label_classification. Give an array (n, C) of 0 and 1,"),
    ],
)
def test_labels_that_contradict_the_problem_type_are_refused(labels: Any, problem_type: str, wanted: str) -> None:
    message = f"problem_type={problem_type!r} contradicts the labels, which are written for {wanted}"
    with pytest.raises(UserError, match=re.escape(message)):
        hf_posenc.fit(["x", "y"], labels, problem_type=problem_type)


def test_real_numbers_make_a_regressor(tmp_path: Path) -> None:
    texts, _ = data(64)
    lengths = [len(text) / 7 for text in texts]
    fitted = hf_posenc.fit(texts, lengths, **OPTIONS, **{**SHORT, "epochs": 3})
    assert isinstance(fitted, PosEncRegressor)
    assert fitted.predict(texts).shape == (64,)
    with pytest.raises(UserError, match="64 different whole numbers.* problem_type='regression', numbers to predict"):
        hf_posenc.fit(texts, range(64), **OPTIONS, max_steps=1)
    asked = hf_posenc.fit(texts, range(64), **OPTIONS, max_steps=1, problem_type="regression")
    assert isinstance(asked, PosEncRegressor)
    fitted.save(tmp_path / "model")
    loaded = hf_posenc.load(tmp_path / "model")
    assert isinstance(loaded, PosEncRegressor)
    np.testing.assert_array_equal(loaded.predict(texts), fitted.predict(texts))


def test_a_fit_prints_nothing_leaves_no_folder_and_is_the_same_again(capfd, monkeypatch, tmp_path):
    texts, labels = data(48)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as notebook:  # there rich prints past standard output
        notebook.setattr(sys.modules["hf_posenc.finetuning.train"], "Console", partial(Console, force_jupyter=True))
        notebook.setattr("rich.jupyter.display", lambda segments, text: pytest.fail(text))
        first = quick().fit(texts, labels)
    first.predict(texts)
    assert capfd.readouterr() == ("", "")  # doubts are Python's warnings, which pytest takes
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(first.predict_proba(texts), quick().fit(texts, labels).predict_proba(texts))
    quick(verbose=1).fit(texts, labels)
    assert " parameters, of them positional " in capfd.readouterr().out


def test_labels_that_cannot_be_learned_and_texts_that_are_cut_are_warned_of() -> None:
    texts, labels = data(32)
    marks = np.array([[label == labels[0], False] for label in labels], dtype=int)
    with pytest.warns(UserWarning, match="All or none of the .* training rows have the label '1'"):
        quick().fit(texts, marks)
    with pytest.warns(UserWarning, match=r"train texts \(100.0%\) have more than 4 tokens and were cut") as said:
        quick(max_length=4, label_names="a,b,c").fit(texts, ["ab"[mark] for mark in marks[:, 0]])
    assert "training rows have the label 'c': nothing is learned of it." in " ".join(str(one.message) for one in said)


def test_a_model_that_words_beat_is_warned_of() -> None:
    texts = [f"{word} {number}" for number, word in enumerate(["good", "bad"] * 40)]
    with pytest.warns(UserWarning, match="A linear model on words is better: accuracy 1.000"):
        fitted = hf_posenc.fit(texts, ["yes", "no"] * 40, **OPTIONS, max_steps=1)
    assert [fitted.report_.baselines[name]["eval_accuracy"] for name in ("words", "word_pairs")] == [1, 1]


def test_every_option_is_a_parameter_that_clones_and_grid_searches_know() -> None:
    texts, labels = data(32)
    estimator = quick(epochs=None, max_steps=1, schedule="cosine")
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        clone(estimator.fit(texts, labels)).predict(texts)
    assert {"max_steps": 1, "schedule": "cosine"}.items() <= clone(estimator).get_params().items()
    assert "max_steps=1" in repr(estimator)
    assert "word_rate" not in estimator.get_params()
    search = GridSearchCV(quick(epochs=None, max_steps=1), {"word_rate": [1.0, 2.0]}, cv=2).fit(texts, labels)
    assert search.best_estimator_.word_rate == search.best_params_["word_rate"]
    assert len(search.best_estimator_.report_.history) > 0
    assert search.best_estimator_.get_params()["max_steps"] == 1
    with pytest.raises(UserError, match=r"Unknown option 'weight_decay'.* go into set=\{'weight_decay': \.\.\.\}"):
        hf_posenc.fit(texts, labels, weight_decay=0.1)
    for fit in (PosEncClassifier(max_step=1).fit, partial(hf_posenc.fit, max_step=1)):
        with pytest.raises(UserError, match=r"Unknown option 'max_step'. Did you mean 'max_steps' or 'max_rows'\?"):
            fit(texts, labels)
    with pytest.raises(ValueError, match="max_step"):
        estimator.set_params(max_step=1)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ("one text", ["a"], "one string"),
        (["a", 5], ["x", "y"], "Row 1 is 5"),
        ([("a", "b"), "c"], ["x", "y"], "Row 1 is 'c'"),
        (["a", "b"], ["x"], r"inconsistent numbers of samples: \[2, 1\]"),
        (["a", "b"], ["x", "x"], "are of one class, 'x'"),
        ([], [], "no texts"),
        (["a", "b", "c"], ["x", None, "y"], "None: the label of row 1"),
        (["a", "b"], [["x"], None], "None: the label of row 1"),
        (["a", "b", "c"], ["x", " ", "y"], "None: the label of row 1"),
        (["a", "b"], pd.DataFrame([[0, 1], [1, 0]], columns=[1, "1"]), "y has two columns 1, as they are written"),
        (["a", "b", "c"], [["x"], ["y", "x"], ["x"]], "legacy multi-label .* MultiLabelBinarizer"),
        ([("a", "b")] * 3, [["x"], ["y", "x"], ["x"]], "legacy multi-label .* MultiLabelBinarizer"),
        (["a", "b"], np.array([[1, 2], [3, 4]]), "y should be a 1d array"),
        (["a", "b"], pd.array([True, pd.NA], "boolean"), "None: the label of row 1"),
        (["a", "b"], pd.DataFrame({"label": ["x", None]}), "None: the label of row 1"),
        (["a", "b"], torch.tensor([0.5, math.nan]), "None: the label of row 1"),
        (["a", "b"], pd.DataFrame([[0, 1], [1, 0]], columns=["x", "x"]), "y has two columns 'x'"),
        (["a", "b"], 3, "Expected array-like .* got 3"),
        (["a", "b"], [1, "x"], "the label of row 1 is 'x', and others are numbers"),
        (["a"] * 51, range(51), "are 51 different whole numbers. Say what they are: problem_type='single_label_cl"),
        (pd.DataFrame({"review": ["a", "b"], "mark": ["x", "y"]}), ["x", "y"], "X's column 'mark' holds the labels"),
        ([("a", "x"), ("b", "y")], ["x", "y"], "X's column 1 holds the labels"),
        (pd.DataFrame([["a", "b", "c"]], columns=[*"abc"]), ["x"], "X has 3 columns: a, b, c. Give one of texts"),
        (
            ["a", "b"],
            pd.to_datetime(["2020-01-01", "2021-01-01"]),
            "the label of row 0 is Timestamp.*, no string or number",
        ),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hf_posenc.fit(texts, labels)


def test_a_frame_is_read_by_its_names_and_what_does_not_fit_is_refused() -> None:
    texts, labels = data(32)
    frame = pd.DataFrame({"text_pair": texts[::-1], "text": texts})
    fitted = quick().fit(frame, labels)
    pairs = list(zip(texts, texts[::-1], strict=True))
    listed = quick().fit(pairs, labels)
    for form in (pairs, np.array(pairs), pd.DataFrame(pairs)):
        np.testing.assert_array_equal(fitted.predict_proba(frame), listed.predict_proba(form))
    assert not np.allclose(fitted.predict_proba(pairs), fitted.predict_proba([pair[::-1] for pair in pairs]))
    with pytest.raises(UserError, match="trained on pairs of texts. Give the second one too"):
        fitted.predict(texts)
    named = frame.rename(columns={"text": "title", "text_pair": "body"})
    by_name = quick().fit(named[["title", "body"]], labels)
    np.testing.assert_array_equal(by_name.predict_proba(named), by_name.predict_proba(named[["title", "body"]]))
    rows = named.to_dict("records")
    np.testing.assert_array_equal(by_name.predict_proba(rows), by_name.predict_proba(named))
    for other in (named[["title"]], named.rename(columns={"body": "author"})):
        with pytest.raises(UserError, match="has no 'body', but .*title.* The model takes title, body"):
            by_name.predict(other)
    alone = quick().fit(pd.DataFrame({"id": range(32), "text": texts}), labels)
    with pytest.raises(UserError, match="trained on single texts. Leave out the second"):
        alone.predict(pairs)
    with pytest.raises(UserError, match="^problem_type='regression' is for files"):
        PosEncRegressor(problem_type="regression").fit(texts, range(32))
    with pytest.raises(UserError, match="^test='gone.csv' is for files; PosEncClassifier and"):
        quick(test="gone.csv").fit(texts, labels)


def test_columns_of_odd_names_are_trained_on_and_remembered(tmp_path: Path) -> None:
    texts, labels = data(32)
    frame = pd.DataFrame({"label": texts, ' a, "b" ': texts[::-1]})
    quick().fit(frame, labels).save(tmp_path / "model")
    loaded = hf_posenc.load(tmp_path / "model")
    pairs = quick().fit(list(zip(texts, texts[::-1], strict=True)), labels)
    np.testing.assert_array_equal(
        loaded.predict_proba(frame[[' a, "b" ', "label"]]), pairs.predict_proba(frame.to_numpy())
    )


def test_a_checkpoint_that_is_trained_further_forgets_what_was_noted_of_it(tmp_path: Path) -> None:
    texts, labels = data(32)
    hf_posenc.fit(texts, labels, **OPTIONS, **SHORT).save(tmp_path / "two")
    three = [("a", "b", "c")[number % 3] for number in range(32)]
    more = PosEncClassifier(
        pretrained=str(tmp_path / "two"), validation_share=0, device="cpu", max_steps=2, set="weight_decay=0.1"
    )
    more.fit(texts, three).save(tmp_path / "three")
    assert sorted(hf_posenc.load(tmp_path / "three").classes_) == ["a", "b", "c"]
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("two", "three")]
    has = ["temperature" in config["task_specific_params"]["hf_posenc"] for config in configs]
    assert has == [True, False]


class OnNumbers(PosEncClassifier):
    """Writes rows of numbers as words, for scikit-learn's checks, nearly all of which draw numbers."""

    def _as_texts(self, X: Any, reset: bool) -> list[str]:
        numbers = validate_data(self, X, reset=reset, dtype=np.float64)
        return [" ".join(f"c{place}v{round(value)}" for place, value in enumerate(row)) for row in numbers]

    def fit(self, X: Any, y: Any) -> "OnNumbers":
        super().fit(self._as_texts(X, True), y)
        return self

    def _logits(self, texts: Any, windows: str | None = None, stride: int | None = None) -> Any:
        check_is_fitted(self)
        return super()._logits(self._as_texts(texts, False), windows, stride)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.string = tags.input_tags.one_d_array = False
        tags.classifier_tags.poor_score = True  # four steps, so that it is short
        return tags


FOUR_STEPS: dict[str, Any] = {
    "scheme": "none",
    "learning_rate": 1e-2,
    "validation_share": 0,
    "max_length": 32,
    "max_steps": 4,
    "set": {**SIZES, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "logging_strategy": "no"},
}


def test_scikit_learn_finds_its_own_rules_kept_for_texts() -> None:
    """All that `check_estimator` can ask of an estimator that takes no numbers."""
    for estimator, check in estimator_checks_generator(PosEncClassifier(), mark="skip"):
        check(estimator)


@pytest.mark.slow
def test_every_check_of_scikit_learn_passes_where_numbers_are_written_as_words() -> None:
    passed, skipped = [], {}
    for estimator, check in estimator_checks_generator(OnNumbers(**FOUR_STEPS)):
        name = getattr(check, "func", check).__name__
        if name == "check_no_attributes_set_in_init":
            estimator = OnNumbers()  # an option that the signature doesn't name is a parameter once it is given
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(estimator)
            passed.append(name)
        except unittest.SkipTest as reason:
            skipped[name] = str(reason)
    assert len(passed) >= 50
    # It has no decision function, and takes no arrays of other libraries than numpy.
    assert set(skipped) <= {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}
