import numpy as np
import pytest
from evaluate import combine
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hf_posenc.training import metrics

CLASSES = [
    (metrics.Accuracy, "accuracy", sklearn_metrics.accuracy_score),
    (metrics.MacroF1, "macro_f1", lambda y, p: sklearn_metrics.f1_score(y, p, average="macro")),
    (metrics.Matthews, "matthews_correlation", sklearn_metrics.matthews_corrcoef),
]
NUMBERS = [
    (metrics.MSE, "mse", sklearn_metrics.mean_squared_error),
    (metrics.Pearson, "pearson", lambda y, p: stats.pearsonr(y, p)[0]),
    (metrics.Spearman, "spearman", lambda y, p: stats.spearmanr(y, p)[0]),
]


DRAWN = np.random.default_rng(0)
TWO, FIVE = (DRAWN.integers(0, classes, (2, 200)) for classes in (2, 5))
SEVERAL = DRAWN.integers(0, 2, (2, 100, 4))
REAL = DRAWN.normal(size=(2, 200)).cumsum(0)


@pytest.mark.parametrize(
    ("metric", "name", "reference", "drawn"),
    [
        *((*row, drawn) for row in CLASSES for drawn in (TWO, FIVE)),
        *((*row, SEVERAL) for row in CLASSES[:2]),
        *((*row, REAL) for row in NUMBERS),
    ],
)
def test_metrics_agree_with_scikit_learn_and_scipy(metric, name, reference, drawn):
    labels, predictions = drawn
    own = metric(config_name="multilabel" if labels.ndim == 2 else "default", keep_in_memory=True)
    scores = own.compute(predictions=predictions, references=labels)
    assert scores == {name: pytest.approx(reference(labels, predictions), abs=1e-12)}


@pytest.mark.parametrize("metric", [metrics.Pearson, metrics.Spearman])
def test_a_correlation_with_a_constant_is_zero_and_not_nan(metric):
    scores = metric(keep_in_memory=True).compute(predictions=[1.0, 1.0, 1.0], references=[1.0, 2.0, 3.0])
    assert list(scores.values()) == [0.0]


@pytest.mark.parametrize(
    ("problem_type", "logits", "labels", "expected"),
    [
        ("single_label_classification", [[2, 1], [0, 3], [1, 0]], [0, 1, 1], {"accuracy": 2 / 3}),
        ("multi_label_classification", [[0.1, -0.1], [-2, 3]], [[1.0, 0], [1, 1]], {"accuracy": 0.5}),
        ("regression", [[1.0], [2.5], [4.0]], [1.0, 2.0, 3.0], {"mse": 1.25 / 3, "spearman": 1.0}),
        ("regression", [[1.0, 2.5], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]], {"mse": 0.25 / 4}),
    ],
)
def test_the_problem_type_chooses_metrics_and_reads_logits(problem_type, logits, labels, expected):
    scores = metrics.compute_metrics(
        metrics.predictions_from_logits(np.array(logits), problem_type), labels, problem_type
    )
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    predictions = metrics.predictions_from_logits(np.array(logits), problem_type).tolist()
    labels = np.ravel(labels).tolist() if problem_type == "regression" else labels
    kind = "multilabel" if problem_type == "multi_label_classification" else "default"
    parts = [metric(config_name=kind, keep_in_memory=True) for metric in metrics.METRICS[problem_type]]
    assert scores == pytest.approx(combine(parts).compute(predictions=predictions, references=labels))


def test_answers_keep_all_digits_of_float32_however_small():
    logits = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32) * 8
    answers = metrics.answers_from_logits(logits, "ab", "single_label_classification")
    for row, answer in zip(logits, answers, strict=True):
        shares = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
        assert [answer["probabilities"][name] for name in "ab"] == pytest.approx(shares, rel=1e-8)
    (sure,) = metrics.answers_from_logits(np.float32([[0, 16]]), "ab", "single_label_classification")
    assert sure["probabilities"]["a"] == pytest.approx(1.12535162e-7, rel=1e-8)
    numbers = metrics.answers_from_logits(logits, "ab", "regression")
    assert [[np.float32(row["predictions"][name]) for name in "ab"] for row in numbers] == logits.tolist()
    assert metrics.answers_from_logits(np.float32([[15.1]]), "a", "regression") == [{"prediction": 15.1000004}]
