"""Training in the style of scikit-learn: from lists of texts and labels to predictions, without files.

    fitted = hf_posenc.fit(texts, labels)
    fitted.predict(["Not bad at all."])
    fitted.save("my-model")

`PosEncClassifier` and `PosEncRegressor` are the estimators behind it, for `Pipeline`, `cross_val_score` and
`GridSearchCV`. They train as `hf-posenc train` does, with its defaults, and answer in float32.
"""

import contextlib
import random
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from pandas import isna
from pandas.api.types import is_scalar
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from ..data.columns import Columns, as_input, note, notes_of, remembered_columns
from ..data.preparing import TEXTS
from ..data.reading import as_table
from ..errors import Diverged, Interrupted, UserError
from ..options import Options
from ..quiet import silence, without_bars
from ..training import run_folder
from ..training.inference import cut_texts_in_words, logits_of
from ..training.metrics import predictions_from_logits, probabilities_from_logits
from .prediction import Classifier, load_classifier
from .train import save_run, train

_OPTIONS = frozenset(item.name for item in fields(Options))
_SOURCE = "texts in memory"
_OF_FILES = {"output", "overwrite", "resume", "data", "data_config", "validation", "test", "text_column", "join"}
_OF_FILES |= {"label_column", "label_delimiter", "delimiter", "quoting", "encoding", "format"}
"""Options that say nothing of texts in memory."""


def fit(texts: Any, labels: Any, **parameters: Any) -> "PosEncClassifier | PosEncRegressor":
    """Trains a classifier, or for real numbers a regressor, on texts in memory.

    Args:
        texts: strings, or pairs of strings.
        labels: one per text: strings, whole numbers or truth values; lists of them for several labels per text; real
            numbers for a regression.
        **parameters: those of `PosEncClassifier`. `baseline` is True here, for the warning where a linear model
            does better.

    Raises:
        UserError: texts, labels or an option aren't accepted.
    """
    require_labels(labels)
    labels = labels if is_lists(labels) else np.asarray(labels)
    is_real = not isinstance(labels, list) and labels.dtype.kind == "f" and type_of_target(labels) == "continuous"
    kind: Any = PosEncRegressor if is_real else PosEncClassifier
    return kind(**{"baseline": True, **parameters}).fit(texts, labels)


def load(
    folder: str | Path, *, backend: str | None = None, device: str = "cpu"
) -> "PosEncClassifier | PosEncRegressor":
    """What `save`, `hf-posenc train` or `hf-posenc export` wrote, ready to predict.

    Args:
        folder: of the model.
        backend: `torch`, `onnx` or `openvino`. None: the fastest installed that the folder has files for.
        device: for `torch`: where it runs.

    Raises:
        UserError: there is no such folder, it holds no classifier, or the backend can't run it.
    """
    if not Path(folder).is_dir():
        raise UserError(f"There is no folder {str(folder)!r}. Give one that `save` or `hf-posenc train` wrote.")
    classifier = load_classifier(str(folder), device, backend=backend)
    kind: Any = PosEncRegressor if classifier.problem_type == "regression" else PosEncClassifier
    return kind._loaded(classifier)


class _Estimator(BaseEstimator):
    """What classifier and regressor share. Constructors store parameters, as scikit-learn wants it.

    Those that the signature names are always parameters, any other option of `hf-posenc train` is one once it is given
    or set: `clone` and `GridSearchCV` see them all. As scikit-learn wants it, `fit` refuses wrong ones.
    """

    def __init__(
        self,
        *,
        scheme: str | None = None,
        size: str | None = None,
        pretrained: str | None = None,
        max_length: int | None = None,
        epochs: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        validation_share: float = 0.1,
        seed: int = 42,
        baseline: bool = False,
        verbose: int = 0,
        **options: Any,
    ) -> None:
        self.scheme = scheme
        self.size = size
        self.pretrained = pretrained
        self.max_length = max_length
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.validation_share = validation_share
        self.seed = seed
        self.baseline = baseline
        self.verbose = verbose
        self.__dict__.update(options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the signature, and the options that were given or set."""
        return {name: value for name, value in vars(self).items() if not (name.startswith("_") or name.endswith("_"))}

    def set_params(self, **parameters: Any) -> Self:
        """Sets parameters, and options of `hf-posenc train`."""
        for name in parameters.keys() & _OPTIONS - vars(self).keys():
            setattr(self, name, None)
        return super().set_params(**parameters)

    # ---- training ---------------------------------------------------------------------------------------------------

    def _fit(self, rows: list[tuple[str, ...]], values: list[Any], target: Any, **task: Any) -> Self:
        columns = dict(zip(TEXTS, map(list, zip(*rows, strict=True)), strict=False))
        features = Features({**dict.fromkeys(columns, Value("string")), "label": target})
        table = as_table(Dataset.from_dict({**columns, "label": values}, features=features), _SOURCE)
        parameters = {name: value for name, value in self.get_params().items() if value is not None}
        if given := sorted(_OF_FILES & parameters.keys()):
            raise UserError(
                f"{given[0]}={parameters[given[0]]!r} is for files; these texts are in memory. Leave it out."
            )
        parameters |= {**task, "text_column": ",".join(columns), "label_column": "label", "data": _SOURCE}
        verbose, baselines = parameters.pop("verbose"), parameters.pop("baseline")
        if not self.validation_share:
            parameters["set"] = {"save_strategy": "no", **(parameters.get("set") or {})}
        with (
            tempfile.TemporaryDirectory(prefix="posenc-") as folder,
            _own_randomness(),
            contextlib.nullcontext() if verbose else silence(),
        ):
            options = Options.of(**{**parameters, "output": str(Path(folder) / "posenc-model")})
            try:
                result = train(options, tables={"train": table}, baselines=baselines)
            except Interrupted as interrupt:
                raise KeyboardInterrupt("training was stopped, nothing is kept of it.") from interrupt
        self.model_: Any = result.model
        self.tokenizer_ = result.tokenizer
        self.metrics_ = result.metrics
        self.assessment_ = result.report.assessment
        self.history_ = result.history
        self._result = result
        doubts = [*(self.assessment_.warnings if self.assessment_ else ()), *result.report.data.doubts()]
        for doubt in () if verbose else doubts:
            warnings.warn(doubt, stacklevel=3)
        return self

    # ---- predicting -------------------------------------------------------------------------------------------------

    def _logits(self, texts: Any) -> np.ndarray:
        """Logits (n, C)."""
        check_is_fitted(self, "model_")
        rows, truncated = inputs_of(texts, remembered_columns(self.model_.config)), dict[int, int]()
        logits = list(logits_of(self.model_, self.tokenizer_, rows, truncated=truncated))
        if said := cut_texts_in_words(truncated, self.tokenizer_):
            warnings.warn(said, stacklevel=4)
        return np.stack(logits, dtype=np.float64)

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Writes a checkpoint like that of `hf-posenc train`, which every command and the Auto classes read.

        Raises:
            UserError: the folder holds another run and `overwrite` isn't set, or can't be written to.
        """
        check_is_fitted(self, "model_")
        result = getattr(self, "_result", None)
        if result is None:
            raise UserError("This model was loaded, not trained. Copy its folder instead of saving it.")
        run_folder.check_free(str(folder), overwrite=overwrite, resume=False)
        if bad := run_folder.not_finite(self.model_.named_parameters()):
            raise Diverged(f"{bad[0]} holds NaN or infinity: the model isn't saved.")

        def save_model(temporary: str) -> None:
            self.model_.save_pretrained(temporary)
            self.tokenizer_.save_pretrained(temporary)

        report = replace(result.report, name=Path(folder).resolve().name)
        with without_bars():
            save_run(folder, report, save_model, result.trained_on)
        return Path(folder)

    @classmethod
    def _loaded(cls, classifier: Classifier) -> Self:
        estimator = cls()
        estimator.model_, estimator.tokenizer_ = classifier.model, classifier.tokenizer
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class PosEncClassifier(ClassifierMixin, _Estimator):
    """A text classifier for scikit-learn: `fit(texts, labels)`, `predict(texts)`, `predict_proba(texts)`.

    A text is a string or a pair of strings. Labels are strings, whole numbers or truth values; for several labels per
    text lists of them, or an array (n, C) of 0 and 1, in which form predictions come, too.

    Args:
        validation_share: share of the texts set aside to choose the best epoch by; 0: all are trained on,
            and the last weights are kept.
        baseline: score simpler models too, to say in `assessment_` what the encoder has to beat.
        verbose: 0 prints nothing, 1 what `hf-posenc train` does.
        **options: any other option of `hf-posenc train`, by its name with underscores, such as `max_steps=100`;
            `hf-posenc train --help` says what each does, and so those named above.

    Attributes:
        classes_: the labels, (C,), sorted.
        model_: the trained `PosEncForSequenceClassification`.
        tokenizer_: its tokenizer.
        assessment_: where the model stands on the texts set aside: beside baselines, class by class, what to doubt,
            which is warned of, too. None where no texts were set aside.
        metrics_: `train_...` and `eval_...` numbers.
        history_: what was logged while training.
    """

    _form = "labels"
    """How labels were given: `labels`, `lists` or `indicators`."""

    def fit(self, X: Any, y: Any) -> Self:  # scikit-learn's names
        """Trains on texts X and labels y, anew whenever it is called."""
        rows = checked_rows(X, y)
        if is_lists(y):
            binarizer = MultiLabelBinarizer().fit(y)
            self._form, self.classes_ = "lists", binarizer.classes_
            indicators = binarizer.transform(y)
        else:
            y = np.asarray(y)
            check_classification_targets(y)
            y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
            self._form = "indicators" if y.ndim == 2 else "labels"
            self.classes_ = np.arange(y.shape[1]) if y.ndim == 2 else np.unique(y)
            indicators = y
        if self._form == "labels" and len(self.classes_) < 2:
            raise UserError(f"All texts have only one class, {self.classes_.tolist()[0]!r}. Give at least two classes.")
        names = ClassLabel(names=[str(name) for name in self.classes_.tolist()])
        if self._form == "labels":
            self._fit(rows, np.searchsorted(self.classes_, y).tolist(), names)
        else:
            self._fit(rows, [np.flatnonzero(row).tolist() for row in indicators], List(names))
        # The checkpoint has names of labels alone; these are the labels as they were given.
        note(self.model_.config, classes=self.classes_.tolist(), label_form=self._form)
        return self

    @property
    def _problem(self) -> str:
        return "single_label_classification" if self._form == "labels" else "multi_label_classification"

    def _columns(self) -> list[int]:
        """Where each class is among the outputs: a checkpoint to start from may have had an order of its own."""
        return [self.model_.config.label2id[str(name)] for name in self.classes_.tolist()]

    def predict(self, X: Any) -> Any:
        """The label of each text, in the form in which labels were given."""
        answers = predictions_from_logits(self._logits(X)[:, self._columns()], self._problem)
        if self._form == "labels":
            return self.classes_[answers]
        return [self.classes_[row > 0].tolist() for row in answers] if self._form == "lists" else answers

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, C), columns in the order of `classes_`; with several labels per text each on its own."""
        return probabilities_from_logits(self._logits(X)[:, self._columns()], self._problem)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; with several labels per text the share of texts in which all are right."""
        predicted = self.predict(X)
        if self._form == "lists":
            binarizer = MultiLabelBinarizer().fit([*predicted, *y])
            predicted, y = binarizer.transform(predicted), binarizer.transform(y)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    @classmethod
    def _loaded(cls, classifier: Classifier) -> Self:
        estimator = super()._loaded(classifier)
        noted, several = notes_of(classifier.model.config), classifier.problem_type == "multi_label_classification"
        estimator.classes_ = np.array(noted.get("classes", classifier.label_names))
        estimator._form = noted.get("label_form", "lists" if several else "labels")
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class PosEncRegressor(RegressorMixin, _Estimator):
    """A text regressor for scikit-learn: a number for each text. Parameters are those of `PosEncClassifier`."""

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on texts X and numbers y, anew whenever it is called."""
        rows = checked_rows(X, y)
        numbers = column_or_1d(np.asarray(y, dtype=np.float64), warn=True)
        return self._fit(rows, numbers.tolist(), Value("float64"), task="regression")

    def predict(self, X: Any) -> np.ndarray:
        """The number of each text."""
        return predictions_from_logits(self._logits(X), "regression")


@contextlib.contextmanager
def _own_randomness() -> Iterator[None]:
    """Training seeds every generator; what the caller draws afterwards isn't to depend on it."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def checked_rows(texts: Any, labels: Any) -> list[tuple[str, ...]]:
    """The texts that a model is to be trained on, a label for each."""
    require_labels(labels)
    rows = inputs_of(texts)
    check_consistent_length(rows, labels)
    return rows


def require_labels(labels: Any) -> None:
    """Refuses missing labels, in words that scikit-learn's own estimators have."""
    if labels is None:
        raise UserError("requires y to be passed, but the target y is None")
    rows = labels if isinstance(labels, Sequence) and not isinstance(labels, str | bytes) else np.asarray(labels)
    if isinstance(rows, np.ndarray) and rows.ndim == 0:
        raise UserError(f"y is one value, {str(labels)[:40]!r}. Give a list with one label for each text.")
    for number, row in enumerate(rows):
        if np.any(isna(row if is_scalar(row) else np.asarray(row, dtype=object))):
            raise UserError(f"Input contains NaN or None: the label of text {number}. Leave texts without a label out.")


def is_lists(labels: Any) -> bool:
    """Whether labels are lists of names, one list per text, and no rows of 0 and 1."""
    rows = list(labels) if isinstance(labels, Sequence) or hasattr(labels, "iloc") else []
    if not rows or not all(isinstance(row, list | tuple | set | frozenset) for row in rows):
        return False
    alike = len({len(row) for row in rows}) == 1 and len(rows[0]) > 1
    return not (alike and all(type(item) in (int, bool) and item in (0, 1) for row in rows for item in row))


def inputs_of(texts: Any, known: Columns | None = None) -> list[tuple[str, ...]]:
    """Texts, or rows of them, as a model takes them; a missing cell of a frame is an empty text, as in a file.

    Args:
        texts: strings, or rows of strings. Of a data frame these columns are read: those that the model was trained on,
            else `text` and `text_pair`, else all.
        known: the columns that the model was trained on.

    Raises:
        UserError: there are none, one is no string, or they aren't what the model was trained on.
    """
    if isinstance(texts, str):
        raise UserError(f"X is one string, {texts[:40]!r}. Give a list of texts: [{texts[:10]!r}...].")
    if hasattr(texts, "fillna"):
        there = list(getattr(texts, "columns", ()))
        wanted = [name for name in TEXTS if name in there] if known is None else known.text
        if wanted and set(wanted) <= set(there):
            texts = texts[list(wanted)]
        elif there and known is not None and len(known.text) > 1 and known.text != TEXTS:
            missing = next(name for name in known.text if name not in there)
            raise UserError(f"X has no column {missing!r}, but {', '.join(map(str, there))}. The model takes it.")
        texts = texts.astype(object).fillna("").to_numpy()
    given = list(texts)
    if not given:
        raise UserError("X has no texts: 0 sample(s) (shape=(0,)) while a minimum of 1 is required.")
    rows = [(row,) if isinstance(row, str) else tuple(np.atleast_1d(np.asarray(row, dtype=object))) for row in given]
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]) or not all(isinstance(text, str) for text in row):
            raise UserError(f"Text {number} is {given[number]!r:.60}. Give a string for each text, or for each a pair.")
    inputs = [as_input(row, known) for row in rows]
    if known is not None and len(inputs[0]) != 1 + known.is_pair:
        trained = "pairs of texts" if known.is_pair else "one text each"
        raise UserError(f"X has {len(rows[0])} texts in a row, and the model was trained on {trained}.")
    return inputs
