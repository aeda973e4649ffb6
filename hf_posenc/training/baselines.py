"""Baselines that a model has to beat: the majority, and linear models on words, with pairs or places of words."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ..errors import one_line
from .metrics import compute_metrics

MOST_ROWS = 20_000
MOST_CHARACTERS = 5_000_000
"""Limits of the sample, so that the baseline takes seconds."""
MOST_FEATURES = 100_000
"""So many words, or words and pairs, a linear model sees: the most frequent ones."""
STRENGTHS = (10.0, 1.0, 100.0, 1000.0)
"""Inverse strengths of regularisation (`C`) of logistic regressions: the usual one, then others that may be tried."""
MOST_SEEN = f"{MOST_ROWS:,} training rows, {MOST_CHARACTERS // 10**6} million letters, {MOST_FEATURES:,} words or pairs"
MOST_WEIGHTS = 5_000_000
"""Above so many labels x words, or labels x rows, logistic regression takes gigabytes and many minutes."""


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
    texts: Texts,
    labels: Sequence[Any],
    sees: str = "words",
    problem_type: str = "single_label_classification",
    strength: float = STRENGTHS[0],
) -> Pipeline:
    """Fits TF-IDF of words, and logistic regression on it; ridge regression for numbers. Of many rows it sees a sample.

    Args:
        texts: `(first,)`, or `(first, second)` for pairs, each of which has its own words. `predict` takes the same.
        labels: class numbers, rows of 0 and 1, or numbers.
        sees: one of `FEATURES`.
        problem_type: `single_label_classification`, `multi_label_classification` or `regression`.
        strength: `C` of the logistic regression.

    Raises:
        ValueError: there is no word in the texts, just one class, or so many that it would take too long.
    """
    features = TfidfVectorizer(sublinear_tf=True, max_features=MOST_FEATURES, **FEATURES[sees])
    columns = [(str(column), features, column) for column in range(len(texts))]
    as_rows = FunctionTransformer(lambda texts: np.array(texts, dtype=object).T)
    encoder = make_pipeline(as_rows, ColumnTransformer(columns, sparse_threshold=1.0))
    rows = sample(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rough fit will do, and labels may be rare or in all rows
        encoded = encoder.fit_transform([[column[row] for row in rows] for column in texts])
        kind = np.int8 if problem_type == "multi_label_classification" else None
        model = _fit_linear(encoded, np.asarray([labels[row] for row in rows], dtype=kind), problem_type, strength)
        return Pipeline([*encoder.steps, ("model", model)])


def _fit_linear(encoded: Any, labels: np.ndarray, problem_type: str, strength: float) -> Any:
    """Fits a linear model on encoded texts; refuses so many labels that it would take gigabytes and many minutes."""
    if problem_type == "regression":
        return Ridge().fit(encoded, labels)
    several = problem_type == "multi_label_classification"
    count = labels.shape[1] if several else len(np.unique(labels))
    size = max(encoded.shape)
    if count > 2 and count * size > MOST_WEIGHTS:
        raise ValueError(f"logistic regression on {count:,} labels and {size:,} words or rows would take too long")
    model: Any = LogisticRegression(C=strength, max_iter=100)
    return (OneVsRestClassifier(model) if several else model).fit(encoded, labels)


def sample_in_words(texts: Texts) -> list[str]:
    """A sentence on the rows that linear models are fitted to; none where these are all."""
    count, fitted = len(texts[0]), len(sample(texts))
    return [f"The linear models are fitted to {fitted:,} of {count:,} training rows, drawn."] * (fitted < count)


def vocabulary_in_words(model: Pipeline, sees: str) -> list[str]:
    """A sentence on the words or pairs that a linear model sees; none where these are all."""
    vectorizers = model.named_steps["columntransformer"].named_transformers_.values()
    is_cut = any(len(vectorizer.vocabulary_) >= MOST_FEATURES for vectorizer in vectorizers)
    return [f"The linear model on {sees} sees the {MOST_FEATURES:,} most frequent of them."] * is_cut


def sample(texts: Texts) -> np.ndarray:
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
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The metrics of the baselines on each test set, by prefix: `{"majority": {"eval_accuracy": .5, ...}, ...}`.

    Args:
        train: texts (see `fit_words`) and labels.
        tests: the same for each set, by the prefix of its metrics (`eval`, `test`).
        problem_type: a key of `METRICS`.

    Returns:
        `majority` (for a regression the mean), `words` and `word_pairs`; none without tests. And a sentence on each
        that failed or is too large, which has no scores, and on a sample.
    """
    if not tests:
        return {}, []
    constant = most_frequent(train[1], problem_type)
    predicted = {"majority": {name: [constant] * len(labels) for name, (_, labels) in tests.items()}}
    said = sample_in_words(train[0])
    for sees in ("words", "word pairs"):
        try:
            model = fit_words(*train, sees, problem_type)
            answers = {name: model.predict(texts).tolist() for name, (texts, _) in tests.items()}
        except Exception as error:  # whatever it is, the training goes on
            said.append(f"No baseline on {sees}: {one_line(error) or type(error).__name__}.")
            continue
        predicted[sees.replace(" ", "_")] = answers
        said += vocabulary_in_words(model, sees)
    return {
        baseline: {
            f"{name}_{metric}": value
            for name, answers in by_test.items()
            for metric, value in compute_metrics(answers, tests[name][1], problem_type).items()
        }
        for baseline, by_test in predicted.items()
    }, said
