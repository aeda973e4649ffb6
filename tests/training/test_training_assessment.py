"""Where a classifier stands: baselines, classes and warnings."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from rich.console import Console
from scipy.special import softmax

from hf_posenc import TrainingReport
from hf_posenc.data.preparing import DataSummary
from hf_posenc.training.baselines import (
    MOST_CHARACTERS,
    baseline_scores,
    fit_words,
    most_frequent,
    sample,
    sample_in_words,
)
from hf_posenc.training.classes import class_scores
from hf_posenc.training.metrics import MacroF1, compute_metrics
from hf_posenc.training.report import calibrate, calibration_error
from tests.support.training import results, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")

ONE, SEVERAL, NUMBER = "single_label_classification", "multi_label_classification", "regression"


def test_word_pairs_know_neighbours_and_no_other_order():
    # "b a" and "a b" hold the same words; "a x b" and "b x a" the same words and no pair of a and b.
    near = [f"{first} {second} end" for first, second in [("a", "b"), ("b", "a")] * 20]
    far = [f"{first} x y {second}" for first, second in [("a", "b"), ("b", "a")] * 20]
    labels = [0, 1] * 20
    assert fit_words([near], labels, "word pairs").predict([near]).tolist() == labels
    assert len(set(fit_words([near], labels).predict([near]).tolist())) == 1
    inside = [f"s {text} e" for text in far]  # the ends tell: s a, s b
    assert fit_words([inside], labels, "word pairs").predict([inside]).tolist() == labels
    hidden = [f"s s {text.replace(' y ', ' y z ')} e" for text in far]
    known, unknown = fit_words([hidden], labels, "word pairs"), ["q a q q b q", "q b q q a q"]
    first, second = known.predict([unknown]).tolist()
    assert first == second  # the same words without the pairs that were seen


def test_word_pairs_of_a_pair_of_texts_are_kept_apart():
    first, second = ["yes", "no"] * 10, ["no", "yes"] * 10
    labels = [0, 1] * 10
    model = fit_words([first, second], labels, "word pairs")
    assert model.predict([first, second]).tolist() == labels
    assert model.predict([["yes", "no"], ["none", "none"]]).tolist() == [0, 1]
    assert model.predict([["none", "none"], ["yes", "no"]]).tolist() == [1, 0]


def test_a_sample_of_much_text_is_read():
    texts = [["x" * 1000] * 30_000]
    chosen = sample(texts)
    assert len(chosen) == MOST_CHARACTERS // 1000
    assert len(set(chosen.tolist())) == len(chosen)
    assert sample([["a"] * 100]).tolist() == list(range(100))
    assert sample_in_words([["a"] * 100]) == []
    _, said = baseline_scores((texts, [0, 1] * 15_000), {"test": ([["a"]], [0])}, ONE)
    assert said[0] == "The linear models are fitted to 5,000 of 30,000 training rows, drawn."


def test_a_vocabulary_that_is_cut_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hf_posenc.training.baselines.MOST_FEATURES", 3)
    texts = ["a b", "b a"] * 3
    _, said = baseline_scores(([texts], [0, 1] * 3), {"test": ([["a b"]], [0])}, ONE)
    assert said == ["The linear model on word pairs sees the 3 most frequent of them."]


def test_baselines_of_each_problem_type_have_its_metrics():
    assert most_frequent([1, 0, 1], ONE) == 1
    assert most_frequent([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], SEVERAL) == [0.0, 1.0]
    assert most_frequent([1.0, 2.0, 6.0], NUMBER) == 3.0
    texts = [["a b", "c d", "a b", "c d"]]
    scores, _ = baseline_scores((texts, [0, 1, 0, 1]), {"eval": (texts, [0, 1, 0, 0])}, ONE)
    assert scores["majority"]["eval_accuracy"] == 0.75
    assert scores["words"]["eval_accuracy"] == scores["word_pairs"]["eval_accuracy"] == 0.75
    orders = [["a b", "b a"] * 4]
    blind, _ = baseline_scores((orders, [0, 1] * 4), {"eval": (orders, [0, 1] * 4)}, ONE)
    assert (blind["words"]["eval_accuracy"], blind["word_pairs"]["eval_accuracy"]) == (0.5, 1.0)
    several, _ = baseline_scores((texts, [[1.0, 0.0], [1.0, 1.0]] * 2), {"test": (texts, [[1.0, 0.0]] * 4)}, SEVERAL)
    assert several["word_pairs"]["test_accuracy"] == 0.5
    number, _ = baseline_scores((texts, [1.0, 3.0, 1.0, 3.0]), {"test": (texts, [2.0] * 4)}, NUMBER)
    assert number["majority"]["test_mse"] == 0.0
    assert 0.1 < number["word_pairs"]["test_mse"] < 1.0


def test_one_label_that_may_apply_is_scored_where_it_applies():
    """scikit-learn takes a column of 0 and 1 for two classes."""
    right, given = np.array([[1], [0], [0], [0], [1], [0]]), np.array([[1], [0], [0], [1], [0], [0]])
    (scores,) = class_scores(right, given, ("a",))
    assert scores == {"label": "a", "precision": 0.5, "recall": 0.5, "f1": 0.5, "examples": 2}
    assert compute_metrics(given, right, SEVERAL) == {"accuracy": 4 / 6, "macro_f1": 0.5}
    twice = compute_metrics(given.repeat(2, 1), right.repeat(2, 1), SEVERAL)
    assert twice == compute_metrics(given, right, SEVERAL)
    measured = MacroF1(config_name="multilabel").compute(predictions=given, references=right)
    assert measured == {"macro_f1": 0.5}


@pytest.mark.parametrize("problem_type", [ONE, SEVERAL])
def test_of_many_labels_the_linear_baselines_are_left_out_and_that_is_said(problem_type: str):
    texts = [[f"l{row % 300} n{row}" for row in range(20_000)]]
    right = np.eye(300, dtype=int)[np.arange(20_000) % 300].tolist() if problem_type == SEVERAL else None
    labels = right or [row % 300 for row in range(20_000)]
    scores, said = baseline_scores((texts, labels), {"test": ([texts[0][:9]], labels[:9])}, problem_type)
    assert scores.keys() == {"majority"}
    assert [line.partition(": logistic regression on 300 labels")[0] for line in said] == [
        f"No baseline on {sees}" for sees in ("words", "word pairs")
    ]


def test_thousands_of_labels_have_no_confusion_matrix_and_a_line_each():
    names, right = tuple(f"l{number}" for number in range(1_001)), np.arange(1_001)
    for count, has_matrix in ((1_000, True), (1_001, False)):
        report = stand(np.eye(count), right[:count], labels=names[:count])
        assert (report.confusion is not None) == has_matrix
        assert len(report.classes) == count
    assert stand(np.ones((1_001, 1_001)), right, labels=names).warnings[0].startswith("It predicts 'l0' for all 1,001")


@pytest.mark.parametrize("error", [MemoryError(), ValueError("no words"), RuntimeError("a\nline")])
def test_a_baseline_that_fails_is_said_and_ends_no_training(monkeypatch: pytest.MonkeyPatch, error: Exception):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("hf_posenc.training.baselines.fit_words", fail)
    scores, said = baseline_scores(([["a", "b"]], [0, 1]), {"test": ([["a"]], [0])}, ONE)
    assert scores.keys() == {"majority"}
    reason = " ".join(str(error).split()) or "MemoryError"
    assert said == [f"No baseline on words: {reason}.", f"No baseline on word pairs: {reason}."]


def stand(logits: Any, right: Any, problem_type: str = ONE, score: float = 0.9, **fields: Any) -> TrainingReport:
    sizes = {"max_length": 8, "vocab_size": 9, "parameters": 9, "positional_parameters": 0}
    texts = {"position_embedding_type": "rope", "lineage": {}}
    fields = {"labels": ("no", "yes"), **sizes, **texts, **fields}
    metric = "test_mse" if problem_type == NUMBER else "test_accuracy"
    given = {"options": {}, "is_pair": False, "examples": {}, "cut": {}, "data": DataSummary("")}
    report = TrainingReport(problem_type=problem_type, metrics={metric: score}, **given, **fields)
    return report.assess("test", np.array(logits, dtype=np.float32), np.array(right))


def test_classes_and_confusion_are_those_of_the_predictions():
    standing = stand([[2, 0], [0, 3], [1, 0], [0, 1], [5, 0]], [0, 0, 0, 1, 1])
    assert standing.confusion == [[2, 1], [1, 1]]
    no, yes = standing.classes
    assert no == {"label": "no", "precision": 2 / 3, "recall": 2 / 3, "f1": pytest.approx(2 / 3), "examples": 3}
    assert (yes["precision"], yes["recall"], yes["examples"]) == (0.5, 0.5, 2)
    assert stand([[3.0, -3.0], [-1.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]], SEVERAL).confusion is None


GOOD = [[3, 0], [0, 3]] * 50
RIGHT = [0, 1] * 50


NUMBERS = {"logits": [[1.0], [2.0]], "right": [1.0, 4.0], "problem_type": NUMBER}
LINEAR, NOT_BETTER = "A linear model on words", "isn't clearly better than always the"


@pytest.mark.parametrize(
    ("what", "baselines", "says"),
    [
        ({"logits": [[1, 0]] * 100}, {}, "predicts 'no' for all 100"),
        ({"score": 0.53}, {"majority": 0.5}, f"{NOT_BETTER} most frequent answer: accuracy 0.530 and 0.500 (100"),
        ({"score": 0.76}, {"word_pairs": 0.79}, f"{LINEAR} and word pairs is better: accuracy 0.790; this model has"),
        ({"score": 0.76}, {"words": 0.8, "word_pairs": 0.79}, f"{LINEAR} is better: accuracy 0.800; this model has 0"),
        ({"score": 0.9}, {"majority": 0.5, "word_pairs": 0.8}, None),
        # Of a squared error less is better.
        ({**NUMBERS, "score": 0.5}, {"majority": 1.5, "words": 9.0, "word_pairs": 0.4}, "pairs is better: mse 0.400"),
        ({**NUMBERS, "score": 2.0}, {"majority": 1.5, "words": 9.0, "word_pairs": 3.0}, "always the mean"),
    ],
)
def test_a_doubtful_result_is_said_in_words(what: dict[str, Any], baselines: dict[str, float], says: str | None):
    metric = "test_mse" if "problem_type" in what else "test_accuracy"
    measured = {name: {metric: score} for name, score in baselines.items()}
    standing = stand(**{"logits": GOOD, "right": RIGHT, "baselines": measured, **what})
    assert len(standing.warnings) == (says is not None)
    assert (says or "") in "".join(standing.warnings)


def test_a_class_without_examples_has_no_scores():
    standing = stand([[2, 0, 0], [0, 0, 2]], [0, 0], labels=("no", "yes", "perhaps"))
    assert standing.classes[2] == {"label": "perhaps", "precision": None, "recall": None, "f1": None, "examples": 0}
    table = standing.class_table().splitlines()
    assert table[0] == "| test: class | precision | recall | f1 | examples |"
    assert table[2] == "| no | 1.000 | 0.500 | 0.667 | 2 |"
    assert table[4] == "| perhaps | - | - | - | 0 |"


def by_hand(logits: np.ndarray, labels: np.ndarray) -> float:
    """The expected calibration error of Guo et al. 2017: bins ((m - 1) / 15, m / 15], weighted by their size."""
    shares = softmax(logits, axis=1)
    error = 0.0
    for m in range(1, 16):
        inside = [n for n, row in enumerate(shares) if (m - 1) / 15 < row.max() <= m / 15]
        if inside:
            accuracy = np.mean([shares[n].argmax() == labels[n] for n in inside])
            error += len(inside) / len(labels) * abs(accuracy - np.mean([shares[n].max() for n in inside]))
    return error


def test_a_run_that_fits_no_temperature_says_so():
    for split in ("validation", "test"):
        console = Console(file=io.StringIO(), width=200)
        replace(stand([[2, 0], [0, 3]], [0, 1]), examples={split: 2}).show(console)
        said = "No temperature is fitted: all validation rows" in console.file.getvalue()
        assert said is (split == "validation")


@pytest.mark.parametrize("classes", [2, 5])
def test_calibration_is_what_its_definition_says(classes: int):
    draw = np.random.default_rng(classes)
    logits = draw.normal(size=(4000, classes)) * 2
    labels = np.array([draw.choice(classes, p=row) for row in softmax(logits, axis=1)])
    assert 0.03 > calibration_error(logits, labels) == pytest.approx(by_hand(logits, labels), abs=1e-12)
    fitted, measured = (3 * logits[:2000], labels[:2000]), (3 * logits[2000:], labels[2000:])
    assert calibrate((fitted[0], fitted[0].argmax(1)), measured, "test") is None  # all right: answers without doubt
    found = calibrate(fitted, measured, "test")
    assert found is not None
    assert found.temperature == pytest.approx(3, rel=0.1)  # the logits were three times too large
    assert 0.1 < found.before == pytest.approx(by_hand(*measured), abs=1e-12)
    assert 0.05 > found.after == pytest.approx(by_hand(measured[0] / found.temperature, measured[1]), abs=1e-12)
    assert "on the test rows." in found.sentence()
    assert "on which it was fitted: no fair measure" in replace(found, split="validation").sentence()
    assert "leave that out" not in found.sentence()
    assert replace(found, after=found.before).sentence().endswith("on the test rows: leave that out.")


def test_a_run_tells_where_it_stands(tmp_path: Path, order: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    trained = train(tmp_path / "run", **order, baselines=True, scheme="none")
    saved = results(tmp_path / "run")
    calibration = saved["calibration"]
    assert (saved["assessed"], calibration["split"]) == ("test", "test")
    assert set(saved["baselines"]) == {"majority", "words", "word_pairs"}
    assert sum(map(sum, saved["confusion"])) == sum(row["examples"] for row in saved["classes"]) == 64
    assert trained.model.config.task_specific_params["hf_posenc"]["temperature"] == calibration["temperature"]
    card = (tmp_path / "run" / "README.md").read_text()
    pairs = saved["baselines"]["word_pairs"]["test_accuracy"]
    assert re.search(rf"\| accuracy of word pairs \| [\d.]+ \| {pairs:.4f} \|", card)
    assert f"Calibration error {calibration['before']:.3f}, with temperature" in card
    assert "![Confusion matrix](confusion_matrix.png)" in card
    assert (tmp_path / "run" / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    # Overwritten without baselines, test rows and matplotlib: no picture stays.
    monkeypatch.setattr("hf_posenc.training.report.find_spec", lambda name: None)
    train(tmp_path / "run", data=order["data"], validation=order["validation"], overwrite=True)
    saved = results(tmp_path / "run")
    assert (saved["assessed"], saved["baselines"]) == ("validation", {})
    assert saved["calibration"]["split"] == "validation"
    assert not (tmp_path / "run" / "confusion_matrix.png").exists()
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert "confusion_matrix.png" not in card.content
    assert {entry.dataset_name for entry in card.data.eval_results} == {Path(order["validation"]).name}


def test_a_card_shows_names_as_they_are(tmp_path: Path, order: dict[str, str]):
    names = ("`a` | <b>", "{{ 7 * 7 }}")
    report = train(tmp_path / "run", data=order["data"], max_steps=1).report
    options = {**report.options, "class_weights": " | ", "data": "`x`|y.csv"}
    report = replace(report, labels=names, options=options, metrics={"test_accuracy": 0.5})
    card = report.assess("test", np.array([[1.0, 0.0]] * 40), np.array([1] * 20 + [0] * 20)).card()
    assert "> It predicts '\\`a\\` \\| \\<b\\>' for all 40 test examples." in card
    assert "0. <code>&#96;a&#96; &#124; &#60;b&#62;</code>\n1. `{{ 7 * 7 }}`\n" in card
    assert "| class_weights | \\| |" in card
    assert "trained from scratch on <code>&#96;x&#96;&#124;y&#46;csv</code>." in card
    assert "\n| \\`a\\` \\| \\<b\\> | 0.500 |" in card
    assert "\n| {{ 7 \\* 7 }} | 0.000 |" in card
