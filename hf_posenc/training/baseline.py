"""Baselines: the majority, and linear models on words: alone, with word pairs, or with their places."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from .metrics import score

MOST_ROWS = 20_000
MOST_CHARACTERS = 5_000_000
"""Limits of the sample, so that the baseline takes seconds."""


def _at_places(text: str) -> list[str]:
    words = text.split()
    return [f"{place} {word}" for start in (0, -len(words)) for place, word in enumerate(words, start)]


_TOKEN = {"token_pattern": r"\w+|[^\w\s]"}
FEATURES: dict[str, dict[str, Any]] = {
    "words": _TOKEN,
    "word pairs": {**_TOKEN, "ngram_range": (1, 2)},
    "words at places": {"analyzer": _at_places},
}
"""What a linear model sees: words, which have no order; pairs of neighbours too; or each word with its place.

Places count from the start and from the end, of what stands between spaces. A sum of them can't bring two together, and
so doesn't see what a question in the text asks for.
"""

Texts = Sequence[Sequence[str]]
"""One sequence of texts, or for pairs the first texts and the second texts."""


def fit_words(
    texts: Texts, labels: Sequence[Any], sees: str = "words", problem_type: str = "single_label_classification"
) -> Pipeline:
    """Fits TF-IDF of words, and logistic regression on it; ridge regression for numbers. Of many rows it sees a sample.

    Args:
        texts: `(first,)`, or `(first, second)` for pairs, each of which has its own words. `predict` takes the same.
        labels: class numbers, rows of 0 and 1, or numbers.
        sees: one of `FEATURES`.
        problem_type: `single_label_classification`, `multi_label_classification` or `regression`.

    Raises:
        ValueError: there is no word in the texts, or just one class.
    """
    features = TfidfVectorizer(sublinear_tf=True, max_features=100_000, **FEATURES[sees])
    columns = [(str(column), features, column) for column in range(len(texts))]
    model: Any = Ridge() if problem_type == "regression" else LogisticRegression(C=10.0, max_iter=100)
    if problem_type == "multi_label_classification":
        model = OneVsRestClassifier(model)
    fitted = make_pipeline(FunctionTransformer(_as_rows), ColumnTransformer(columns, sparse_threshold=1.0), model)
    rows = _sample(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rough fit will do
        warnings.filterwarnings("ignore", "Label .* is present in all training examples")
        return fitted.fit([[column[row] for row in rows] for column in texts], np.asarray(labels)[rows])


def _as_rows(texts: Texts) -> np.ndarray:
    return np.array(texts, dtype=object).T


def _sample(texts: Texts) -> np.ndarray:
    """Indices of the rows to fit: all, or a sample of fixed seed within the limits."""
    lengths = np.array([sum(map(len, row)) for row in zip(*texts, strict=True)])
    rows = np.random.default_rng(0).permutation(len(lengths))[:MOST_ROWS]
    return np.sort(rows[: max(2, np.searchsorted(np.cumsum(lengths[rows]), MOST_CHARACTERS, "right"))])


def most_frequent(labels: Sequence[Any], problem_type: str) -> Any:
    """The best answer without the text: the most frequent class or set of labels, or the mean."""
    if problem_type == "regression":
        return float(np.mean(np.asarray(labels, dtype=np.float64)))
    (answer, _), *_ = Counter(tuple(row) if isinstance(row, Sequence) else row for row in labels).most_common(1)
    return list(answer) if isinstance(answer, tuple) else answer


def baseline_scores(
    train: tuple[Texts, Sequence[Any]], tests: Mapping[str, tuple[Texts, Sequence[Any]]], problem_type: str
) -> dict[str, dict[str, float]]:
    """The metrics of the baselines on each test set, by prefix: `{"majority": {"eval_accuracy": .5, ...}, ...}`.

    Args:
        train: texts (see `fit_words`) and labels.
        tests: the same for each set, by the prefix of its metrics (`eval`, `test`).
        problem_type: the task.

    Returns:
        `majority` (for a regression the mean); `words` and `word_pairs` where the texts allow them. None without tests.
    """
    if not tests:
        return {}
    constant = most_frequent(train[1], problem_type)
    predicted = {"majority": {name: [constant] * len(labels) for name, (_, labels) in tests.items()}}
    for sees in ("words", "word pairs"):
        with contextlib.suppress(ValueError):  # no words, or one class in the sample
            model = fit_words(*train, sees, problem_type)
            answers = {name: model.predict(texts).tolist() for name, (texts, _) in tests.items()}
            predicted[sees.replace(" ", "_")] = answers
    return {
        baseline: {
            f"{name}_{metric}": value
            for name, answers in by_test.items()
            for metric, value in score(answers, tests[name][1], problem_type).items()
        }
        for baseline, by_test in predicted.items()
    }
