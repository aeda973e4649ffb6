"""Where a classifier stands: baselines, classes and warnings."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from training_harness import results, train

from hf_posenc import fit
from hf_posenc.data import Labels
from hf_posenc.training.assess import assess
from hf_posenc.training.baseline import MOST_CHARACTERS, BagOfWords, WordPairs, _sample, baseline_scores, most_frequent
from hf_posenc.training.card import card_of
from hf_posenc.training.metrics import predictions_from_logits
from hf_posenc.training.run import Run

ONE, SEVERAL, NUMBER = "single_label_classification", "multi_label_classification", "regression"


def test_word_pairs_know_neighbours_and_no_other_order():
    # "b a" and "a b" hold the same words; "a x b" and "b x a" the same words and no pair of a and b.
    near = [f"{first} {second} end" for first, second in [("a", "b"), ("b", "a")] * 20]
    far = [f"{first} x y {second}" for first, second in [("a", "b"), ("b", "a")] * 20]
    labels = [0, 1] * 20
    assert WordPairs().fit([near], labels).predict([near]).tolist() == labels
    assert len(set(BagOfWords().fit([near], labels).predict([near]).tolist())) == 1
    inside = [f"s {text} e" for text in far]  # the ends tell: s a, s b
    assert WordPairs().fit([inside], labels).predict([inside]).tolist() == labels
    hidden = [f"s s {text.replace(' y ', ' y z ')} e" for text in far]
    known, unknown = WordPairs().fit([hidden], labels), ["q a q q b q", "q b q q a q"]
    first, second = known.predict([unknown]).tolist()
    assert first == second  # the same words without the pairs that were seen


def test_word_pairs_of_a_pair_of_texts_are_kept_apart():
    first, second = ["yes", "no"] * 10, ["no", "yes"] * 10
    labels = [0, 1] * 10
    model = WordPairs().fit([first, second], labels)
    assert model.predict([first, second]).tolist() == labels
    assert model.predict([["yes", "no"], ["none", "none"]]).tolist() == [0, 1]
    assert model.predict([["none", "none"], ["yes", "no"]]).tolist() == [1, 0]


def test_a_sample_of_much_text_is_read():
    texts = [["x" * 1000] * 30_000]
    chosen = _sample(texts)
    assert len(chosen) == MOST_CHARACTERS // 1000
    assert len(set(chosen.tolist())) == len(chosen)
    assert _sample([["a"] * 100]).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("problem_type", "labels", "wanted"),
    [(ONE, [1, 0, 1], 1), (SEVERAL, [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0.0, 1.0]), (NUMBER, [1.0, 2.0, 6.0], 3.0)],
)
def test_the_simplest_answer(problem_type: str, labels: list[Any], wanted: Any):
    assert most_frequent(labels, problem_type) == wanted


def test_baselines_of_each_task_have_its_metrics():
    texts = [["a b", "c d", "a b", "c d"]]
    scores = baseline_scores((texts, [0, 1, 0, 1]), {"eval": (texts, [0, 1, 0, 0])}, ONE)
    assert scores["majority"]["eval_accuracy"] == 0.75
    assert scores["words"]["eval_accuracy"] == scores["word_pairs"]["eval_accuracy"] == 0.75
    orders = [["a b", "b a"] * 4]
    blind = baseline_scores((orders, [0, 1] * 4), {"eval": (orders, [0, 1] * 4)}, ONE)
    assert (blind["words"]["eval_accuracy"], blind["word_pairs"]["eval_accuracy"]) == (0.5, 1.0)
    several = baseline_scores((texts, [[1.0, 0.0], [1.0, 1.0]] * 2), {"test": (texts, [[1.0, 0.0]] * 4)}, SEVERAL)
    assert several["word_pairs"]["test_accuracy"] == 0.5
    number = baseline_scores((texts, [1.0, 3.0, 1.0, 3.0]), {"test": (texts, [2.0] * 4)}, NUMBER)
    assert number["majority"]["test_mse"] == 0.0
    assert 0.1 < number["word_pairs"]["test_mse"] < 1.0
    assert set(baseline_scores(([["", ""]], [0, 1]), {"test": ([[""]], [0])}, ONE)) == {"majority"}


def stand(logits: Any, labels: Any, problem_type: str = ONE, **options: Any) -> Any:
    logits, labels = np.array(logits, dtype=np.float32), np.array(labels)
    metric = {NUMBER: "mse"}.get(problem_type, "accuracy")
    score = options.pop("score", None)
    if score is None:
        score = float((logits.argmax(-1) == labels).mean()) if problem_type == ONE else 0.5
    values = {"names": ["no", "yes"], "baselines": {}, **options}
    return assess(
        split="test",
        labels=labels,
        predicted=predictions_from_logits(logits, problem_type),
        problem_type=problem_type,
        metric=metric,
        metrics={f"test_{metric}": score},
        **values,
    )


def test_classes_and_confusion_are_those_of_the_predictions():
    standing = stand([[2, 0], [0, 3], [1, 0], [0, 1], [5, 0]], [0, 0, 0, 1, 1])
    assert standing.confusion == [[2, 1], [1, 1]]
    no, yes = standing.classes
    assert no == {"label": "no", "precision": 2 / 3, "recall": 2 / 3, "f1": pytest.approx(2 / 3), "examples": 3}
    assert (yes["precision"], yes["recall"], yes["examples"]) == (0.5, 0.5, 2)


def test_several_labels_have_no_confusion_matrix():
    assert stand([[3.0, -3.0], [-1.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]], SEVERAL).confusion is None


def shown_at_80(assessment: Any) -> list[str]:
    console = Console(file=StringIO(), width=80)
    assessment.show(console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    return lines


GOOD = [[3, 0], [0, 3]] * 50
RIGHT = [0, 1] * 50


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"logits": [[1, 0]] * 100}, "predicts 'no' for all 100"),
        ({"score": 0.53, "baselines": {"majority": {"test_accuracy": 0.5}}}, "isn't clearly better than chance"),
        (
            {"logits": GOOD[:4], "labels": RIGHT[:4], "score": 1.0, "baselines": {"majority": {"test_accuracy": 0.5}}},
            "4 test examples are too few",
        ),
        ({"score": 0.76, "baselines": {"word_pairs": {"test_accuracy": 0.79}}}, "below word pairs: accuracy 0.760"),
        (
            {"score": 0.76, "baselines": {"words": {"test_accuracy": 0.8}, "word_pairs": {"test_accuracy": 0.79}}},
            "below words: accuracy 0.760, and a linear model on words has 0.800",
        ),
        ({"history": [{"eval_loss": 0.6}, {"eval_loss": 0.5}]}, "still falling (0.600, 0.500)"),
    ],
)
def test_a_doubtful_result_is_said_in_words(what: dict[str, Any], says: str):
    standing = stand(**{"logits": GOOD, "labels": RIGHT, **what})
    assert len(standing.warnings) == 1
    assert says in standing.warnings[0]
    assert says in " ".join(" ".join(shown_at_80(standing)).split())


def test_a_class_without_examples_has_no_scores():
    standing = stand([[2, 0, 0], [0, 0, 2]], [0, 0], names=["no", "yes", "perhaps"])
    assert standing.classes[2] == {"label": "perhaps", "precision": None, "recall": None, "f1": None, "examples": 0}
    assert standing.class_rows()[2] == ("perhaps", "-", "-", "-", "0")
    assert standing.class_rows()[0] == ("no", "1.000", "0.500", "0.667", "2")


@pytest.mark.parametrize(("losses", "longer"), [((0.6, 0.65), True), ((0.6, 0.5, 0.9), False), ((), True)])
def test_longer_training_is_advised_unless_the_validation_loss_has_risen(losses: tuple[float, ...], longer: bool):
    history = [{"eval_loss": loss} for loss in losses]
    (warning,) = stand([[1, 0]] * 100, RIGHT, history=history, pretrained=False).warnings
    assert ("train longer, or" in warning) == longer
    assert "Start from pretrained weights (--pretrained), " in warning
    assert warning.endswith(", or give more rows.")
    (warning,) = stand([[1, 0]] * 100, RIGHT, history=history, pretrained=True, positions=False).warnings
    assert "Choose a scheme that knows word order (--position-embedding-type), " in warning


@pytest.mark.parametrize(
    ("logits", "baselines"), [([[1, 0]] * 100, {}), (GOOD, {"majority": {"test_accuracy": 0.8}})], ids=["one", "chance"]
)
def test_the_way_out_is_said_once(logits: list[list[int]], baselines: dict[str, Any]):
    baselines = {**baselines, "word_pairs": {"test_accuracy": 0.9}}
    useless, below = stand(logits, RIGHT, baselines=baselines, score=0.8, pretrained=False).warnings
    assert useless.endswith("Start from pretrained weights (--pretrained), train longer, or give more rows.")
    assert below.endswith("a linear model on words and word pairs has 0.900.")


def test_a_good_result_warns_of_nothing():
    scores = {"majority": 0.5, "word_pairs": 0.8}
    standing = stand(
        GOOD,
        RIGHT,
        baselines={name: {"test_accuracy": score} for name, score in scores.items()},
        history=[{"eval_loss": 0.5}, {"eval_loss": 0.2}, {"eval_loss": 0.21}],
    )
    assert standing.warnings == []


@pytest.mark.parametrize(("scores", "says"), [((0.5, 0.4), "worse than word pairs"), ((2.0, 3.0), "always the mean")])
def test_of_a_squared_error_less_is_better(scores: tuple[float, float], says: str):
    score, pairs = scores
    baselines = {
        name: {"test_mse": error} for name, error in (("majority", 1.5), ("words", 9.0), ("word_pairs", pairs))
    }
    standing = stand([[1.0], [2.0]], [1.0, 4.0], NUMBER, names=[], score=score, baselines=baselines)
    assert [warning for warning in standing.warnings if says in warning] == standing.warnings
    assert len(standing.warnings) == 1


def test_a_run_tells_where_it_stands(tmp_path: Path, order: dict[str, str]):
    trained = train(tmp_path / "run", **order, do_eval=True, do_predict=True)
    assessment = results(tmp_path / "run")["assessment"]
    assert assessment["split"] == "test"
    assert assessment["score"] == pytest.approx(trained.metrics["test_accuracy"])
    assert set(assessment["baselines"]) == {"majority", "words", "word_pairs"}
    assert sum(map(sum, assessment["confusion"])) == 64
    assert sum(row["examples"] for row in assessment["classes"]) == 64
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"| word pairs | {assessment['baselines']['word_pairs']:.4f} |" in card
    assert "![Confusion matrix](confusion_matrix.png)" in card
    assert (tmp_path / "run" / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")


def test_a_card_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch):
    names = ("`a` | <b>", "{{ 7 * 7 }}")
    standing = stand([[0.0, 1.0]] * 40, [1] * 20 + [0] * 20, ONE, names=list(names), score=0.5)
    standing.warnings = [f"It predicts {names[0]!r} for all."]
    monkeypatch.setattr(Run, "dataset", "`x`|y.csv")
    run = fit(["good", "bad"] * 8, ["a", "b"] * 8, max_steps=1, validation_split_percentage=0, use_cpu=True)._run
    options = {**run.options, "training": {**run.options["training"], "class_weights": " | "}}
    run = replace(run, labels=Labels(ONE, names), options=options, assessment=standing)
    card = card_of(run, {"eval_accuracy": 0.5})
    assert "> It predicts '\\`a\\` \\| \\<b\\>' for all." in card
    assert "0. <code>&#96;a&#96; &#124; &#60;b&#62;</code>\n1. `{{ 7 * 7 }}`\n" in card
    assert "| class_weights | \\| |" in card
    assert "trained on <code>&#96;x&#96;&#124;y&#46;csv</code>." in card
    assert "| \\`a\\` \\| \\<b\\> | 0 | 20 |\n| {{ 7 \\* 7 }} | 0 | 20 |" in card


def test_a_run_can_do_without_baselines_and_a_picture(
    tmp_path: Path, order: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hf_posenc.training.assessment.find_spec", lambda name: None)  # without matplotlib
    train(tmp_path / "run", **order, do_eval=True, baseline=False)
    assessment = results(tmp_path / "run")["assessment"]
    assert (assessment["split"], assessment["baselines"]) == ("validation", {})
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Confusion matrix" in card
    assert "confusion_matrix.png" not in card
    assert not (tmp_path / "run" / "confusion_matrix.png").exists()
