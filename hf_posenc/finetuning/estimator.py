"""Training in the style of scikit-learn: from lists of texts and labels to predictions, without files.

    fitted = hf_posenc.fit(texts, labels)
    fitted.predict(["Not bad at all."])
    fitted.save("my-model")

`PosEncClassifier` and `PosEncRegressor` are the estimators behind it, for `Pipeline`, `cross_val_score` and
`GridSearchCV`. They train as `hf-posenc train` does, with its defaults, and answer in float32.
"""

import contextlib
import logging
import shutil
import tempfile
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from numbers import Number
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from accelerate import PartialState
from datasets import ClassLabel, Dataset, Features, List, Value
from numpy.typing import ArrayLike
from rich.console import Console
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from transformers import PreTrainedModel

from ..checkpoints.files import REPORT_NAME, TRAINED_ON, not_finite
from ..checkpoints.keeper import OutputFolder
from ..checkpoints.loading import text_problem_type
from ..checkpoints.sentence_modules import read_modules, write_modules
from ..checkpoints.tokenizers import without_cuts
from ..data.columns import is_missing, note, notes_of, remembered_columns, spelt
from ..data.labels import MOST_NUMBERED, many_numbers, name_in_memory
from ..data.memory import IN_MEMORY, labels_in_memory, texts_in_memory
from ..data.preparing import TEXTS
from ..data.reading import doubts_of_empty, refuse_surrogates
from ..data.tables import as_table
from ..errors import Diverged, Interrupted, UserError, check_type, checks_types, spell_in_python, spelling
from ..files import expanded
from ..inference.logits import logits_of
from ..inference.windows import Windows, remarks_on_long
from ..options import READING, Options, refuse_given
from ..quiet import alone, silence, without_bars
from ..schemes.scheme_file import register_scheme
from ..training import run_folder
from ..training.metrics import predictions_from_logits, probabilities_from_logits
from ..training.report import PICTURE
from .prediction import load_classifier
from .train import TrainingResult, fine_tune, save_run

logger = logging.getLogger(__name__)

_OPTIONS = frozenset(item.name for item in fields(Options))
_OWN = ("windows", "stride", "baselines", "verbose")
"""Parameters of the estimators that are no option of a training."""
_OF_FILES = {*READING} - {"skip_missing", "label_names"}
_OF_FILES |= {"output", "overwrite", "resume", "data", "data_config", "validation", "test", "problem_type"}
"""Options that say nothing of texts in memory."""


def fit(
    texts: Sequence[str] | Sequence[tuple[str, str]],
    labels: ArrayLike,
    *,
    pretrained: str | None = None,
    scheme: str | None = None,
    problem_type: str | None = None,
    baselines: bool = True,
    output: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> "PosEncClassifier | PosEncRegressor":
    """Trains a classifier, or for real numbers a regressor, on texts in memory.

    ```python
    >>> import hf_posenc
    >>> things = ("film", "book", "play", "song", "game", "meal", "walk", "talk")
    >>> texts = [f"a {word} {thing}" for thing in things for word in ("good", "bad")]
    >>> fitted = hf_posenc.fit(texts, ["yes", "no"] * 8, max_steps=40)
    >>> print(fitted.predict(["a good show", "a bad show"]))
    ['yes' 'no']

    ```

    Args:
        texts: strings, pairs of strings, or a table (pandas, polars, pyarrow, datasets) with a column or two of them:
            `text` and `text_pair`, else all. Beside `text` alone there may be no other column of strings.
        labels: one per text: strings, whole numbers or truth values; for several labels per text an array (n, C) of 0
            and 1, or a table, whose columns name them; real numbers for a regression.
        pretrained: a checkpoint to start from, a folder or Hub name. None: a small encoder, from scratch.
        scheme: the positional scheme. None: that of `pretrained`, or `rope`.
        problem_type: `single_label_classification`, `multi_label_classification` or `regression`, where the labels
            could be either. None: as they are given.
        baselines: train linear models too, and warn where one is better.
        output: a folder for the checkpoint, which `save` can write later, too. None: nothing is written.
        overwrite: replace what was written into `output`, when the new files are complete.
        **options: others of `hf-posenc train`, as for `PosEncClassifier`.

    Returns:
        The fitted estimator; `predict` and `score` take texts, `save` writes a checkpoint.

    Raises:
        UserError: texts, labels or an option aren't accepted.
    """
    check_type("output", output, str | Path | None)
    if overwrite and output is None:
        raise UserError("is for an output. Leave it out.", parameter="overwrite", value=True)
    labels = labels_in_memory(labels)
    labelled = _without(labels, require_labels(labels, skips=bool(options.get("skip_missing"))))
    is_real = _problem_type(labelled, Options.of(problem_type=problem_type).problem_type) == "regression"
    estimator: Any = PosEncRegressor if is_real else PosEncClassifier
    chosen = estimator(baselines=baselines, pretrained=pretrained, scheme=scheme, **options)
    with contextlib.nullcontext() if output is None else _folder_of(output, overwrite) as folder:
        fitted: PosEncClassifier | PosEncRegressor = chosen.fit(texts, labels)
        if folder is not None:
            fitted._save_into(folder)
    return fitted


@checks_types
@alone()
def load(
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    backend: str | None = None,
    device: str | None = None,
) -> "PosEncClassifier | PosEncRegressor":
    """Reads what `save`, `hf-posenc train` or `hf-posenc export` wrote.

    Args:
        checkpoint: its folder, or its name on the Hub.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code, for a scheme of its author's own.
        backend: `torch`, `onnx` or `openvino`. None: PyTorch for weights, else the fastest installed.
        device: for `torch`: where it runs. None: a GPU if there is one.

    Returns:
        A fitted `PosEncClassifier` or `PosEncRegressor`. The labels of what `hf-posenc train` wrote are strings, as the
        checkpoint names them. A clone, as in `cross_val_score`, knows its parameters and not this checkpoint.

    Raises:
        UserError: there is no such folder, it holds no classifier, or the backend can't run it.
    """
    classifier = load_classifier(
        str(checkpoint), device, revision, backend=backend, trust_remote_code=trust_remote_code
    )
    is_real = classifier.known.problem_type == "regression"
    estimator: Any = PosEncRegressor() if is_real else PosEncClassifier()
    estimator.model_, estimator.tokenizer_ = classifier.model, classifier.tokenizer
    estimator._folder = classifier.folder.absolute()
    if not is_real:
        estimator.classes_ = np.array(notes_of(classifier.model.config).get("classes", classifier.known.label_names))
    return estimator


class _Estimator(BaseEstimator):
    """Base of classifier and regressor. Constructors store parameters, as scikit-learn wants it.

    An option of `hf-posenc train` is a parameter once it is given or set: `clone` and `GridSearchCV` see them all. As
    scikit-learn wants it, `fit` refuses wrong ones.
    """

    def __init__(
        self,
        *,
        windows: str | None = None,
        stride: int | None = None,
        baselines: bool = False,
        verbose: int = 0,
        **options: Any,
    ) -> None:
        self.windows = windows
        self.stride = stride
        self.baselines = baselines
        self.verbose = verbose
        self.__dict__.update(options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, and the options that were given or set."""
        return {name: value for name, value in vars(self).items() if not (name.startswith("_") or name.endswith("_"))}

    def set_params(self, **parameters: Any) -> Self:
        """Sets parameters, and options of `hf-posenc train`."""
        for name in parameters.keys() & _OPTIONS - vars(self).keys():
            setattr(self, name, None)
        return super().set_params(**parameters)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As pickle has it; a scheme's file is registered before the model is read, whose class is its code."""
        new, arguments, *state = super().__reduce_ex__(protocol)
        file = getattr(self, "scheme_file", None)
        model = getattr(self, "model_", None)
        if file is None or model is None:
            return new, arguments, *state
        registered = _SchemeFile(str(Path(expanded(file)).absolute()), model.config.position_embedding_type)
        return _new_with_scheme, (registered, *arguments), *state

    # ---- training ---------------------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any) -> tuple[tuple[list[str], list[tuple[str, ...]]], Any, list[int]]:
        """The columns and rows of texts, the labels that there are, and which rows have none."""
        y = labels_in_memory(y)
        missing = require_labels(y, skips=bool(getattr(self, "skip_missing", None)))
        texts = texts_in_memory(X, trains=True)
        check_consistent_length(texts[1], y)
        _refuse_labels_among(*texts, y)
        return texts, _without(y, missing), missing

    def _fit(
        self, rows: list[tuple[str, ...]], names: list[str], values: list[Any], target: Any, problem_type: str
    ) -> TrainingResult:
        columns = dict(zip(names or TEXTS, map(list, zip(*rows, strict=True)), strict=False))
        label = next(name for name in (f"{'_' * n}label" for n in count()) if name not in columns)
        features = Features({**dict.fromkeys(columns, Value("string")), label: target})
        table = as_table(Dataset.from_dict({**columns, label: values}, features=features), IN_MEMORY)
        if windows := Windows.of(self.windows, self.stride):
            windows.check(problem_type)
        given = {name: value for name, value in self.get_params().items() if value is not None}
        parameters = {name: value for name, value in given.items() if name not in _OWN}
        refuse_given(
            Options.of(**parameters),
            _OF_FILES,
            "is for files; PosEncClassifier and PosEncRegressor train on texts in memory",
        )
        parameters |= {
            "problem_type": problem_type,
            "text_column": spelt(tuple(columns)),
            "label_column": spelt((label,)),
            "data": IN_MEMORY,
        }
        if parameters.get("validation_share") == 0:
            parameters["set"] = {"save_strategy": "no", **Options.of(**parameters).assigned}
        return self._train(parameters, table)

    def _take(self, result: TrainingResult) -> Self:
        """Keeps what was trained; the warnings are last, for they may be errors."""
        self.model_: Any = result.model
        self.tokenizer_ = result.tokenizer
        self.report_ = result.report
        self._result = result
        for doubt in () if self.verbose else result.report.doubts():
            warnings.warn(doubt, stacklevel=3)
        return self

    def _train(self, parameters: dict[str, Any], table: Dataset) -> TrainingResult:
        """Trains on a table, in a folder that goes with it."""
        with (
            tempfile.TemporaryDirectory(prefix="posenc-") as folder,
            alone(),
            contextlib.nullcontext() if self.verbose else silence(),
            spelling(_spell_in_memory),
        ):
            options = Options.of(**{**parameters, "output": str(Path(folder) / "posenc-model")})
            console = None if self.verbose else Console(quiet=True)  # rich prints past stdout in a notebook
            try:
                return fine_tune(options, tables={"train": table}, baselines=self.baselines, console=console)
            except Interrupted as interrupt:
                raise KeyboardInterrupt("training was stopped, nothing is kept of it.") from interrupt

    # ---- predicting -------------------------------------------------------------------------------------------------

    def _logits(self, texts: Any, windows: str | None, stride: int | None) -> np.ndarray:
        """Logits (n, C); of windows and stride that of the constructor holds which isn't given."""
        check_is_fitted(self, "model_")
        windows = self.windows if windows is None else windows
        chosen = Windows.of(windows, self.stride if stride is None else stride)
        long: dict[int, int] = {}
        _, rows = texts_in_memory(texts, remembered_columns(self.model_.config))
        logits = list(logits_of(self.model_, self.tokenizer_, rows, windows=chosen, long=long))
        notes, doubts = remarks_on_long(long.values(), self.tokenizer_, chosen)
        for remark in notes:
            logger.info(remark)
        for doubt in (*doubts, *doubts_of_empty(IN_MEMORY, rows, "row {}".format)):
            warnings.warn(doubt, stacklevel=4)
        return np.stack(logits, dtype=np.float64)

    # ---- keeping ----------------------------------------------------------------------------------------------------

    @checks_types
    def save(self, output: str | Path, *, overwrite: bool = False) -> Path:
        """Writes a checkpoint, which every command and the Auto classes read; with results and card if it was trained.

        Args:
            output: the folder.
            overwrite: replace what was written there, when the new files are complete.

        Raises:
            UserError: the folder holds another run and `overwrite` isn't set, or can't be written to; or what was
                loaded is a graph, which can only be copied.
        """
        check_is_fitted(self, "model_")
        if not isinstance(self.model_, PreTrainedModel):
            raise UserError(f"{self.model_.name_or_path!r} is a graph. Copy its folder instead of saving it.")
        if bad := not_finite(self.model_.named_parameters()):
            raise Diverged(f"{bad[0]} holds NaN or infinity: the model isn't saved.")
        with _folder_of(output, overwrite) as folder:
            self._save_into(folder)
        return folder.path

    def _save_into(self, folder: OutputFolder) -> None:
        """Writes the checkpoint."""

        def save_model(temporary: str) -> None:
            self.model_.save_pretrained(temporary)
            without_cuts(self.tokenizer_).save_pretrained(temporary)

        result = getattr(self, "_result", None)
        with without_bars():
            if result is None:  # it was loaded
                with folder.replaced() as new:
                    save_model(str(new))
                    self._copy_beside(new)
            else:
                options = {**result.report.options, "output": folder.path.resolve().name}
                save_run(folder, replace(result.report, options=options), save_model, result.trained_on)

    def _copy_beside(self, new: Path) -> None:
        """Copies what lies beside the weights that were loaded, and says what can't stay."""
        try:
            modules, notes = read_modules(self._folder, str(self._folder))
        except UserError as error:  # the weights are whole
            modules, notes = {}, [f"Not a sentence-transformer any more: {error}"]
        for lost in () if modules else notes:
            logger.warning(lost)
        write_modules(new, modules)
        for name in (TRAINED_ON, REPORT_NAME, run_folder.RESULTS_NAME, PICTURE, "README.md"):
            if (read := self._folder / name).is_file():
                shutil.copy(read, new / name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


@dataclass(frozen=True)
class _SchemeFile:
    """A file that is registered where a pickle of this is read."""

    path: str
    scheme: str

    def __deepcopy__(self, memo: Any) -> "_SchemeFile":
        return self

    def __reduce__(self) -> Any:
        return register_scheme, (self.path, self.scheme)


def _new_with_scheme(_: Any, kind: type[_Estimator], *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)


class PosEncClassifier(ClassifierMixin, _Estimator):
    """A text classifier for scikit-learn: `fit(texts, labels)`, `predict(texts)`, `predict_proba(texts)`.

    A text is a string or a pair of strings. Labels are strings, whole numbers or truth values; for several labels per
    text an array (n, C) of 0 and 1, in which form predictions come, too. The columns of a data frame name them.

    Args:
        windows: predict for texts that the model can't read whole from windows of them, by the `mean` or the `max` of
            the windows' probabilities. None: such texts are cut.
        stride: tokens from the beginning of a window to that of the next. None: half of what a window holds.
        baselines: score simpler models too, to say in `report_` what the encoder has to beat.
        verbose: 0 prints nothing, 1 what `hf-posenc train` does.
        **options: of `hf-posenc train`, by their names with underscores, such as `pretrained`, `max_steps=100` or
            `validation_share=0` (all texts are trained on, and the last weights are kept); its help lists them.
            `label_names` orders labels that are words.

    Attributes:
        classes_: the labels, (C,), sorted; of several per text the columns.
        model_: the trained `PosEncForSequenceClassification`.
        tokenizer_: its tokenizer.
        report_: what the run says of itself: where the model stands on the texts set aside, beside baselines and class
            by class, and what to doubt, which is warned of, too.
    """

    def fit(self, X: Any, y: Any) -> Self:  # scikit-learn's names
        """Trains on texts X and labels y, anew whenever it is called."""
        (names, rows), y, missing = self._read(X, y)
        several = type_of_target(y, input_name="y") == "multilabel-indicator"
        check_classification_targets(y)
        labels: Any = y.toarray() if issparse(y) else np.asarray(y)  # as MultiLabelBinarizer may make them
        if several:
            given = np.array(getattr(y, "columns", range(labels.shape[1])))
            values: list[Any] = [np.flatnonzero(row).tolist() for row in labels]
        else:
            given, values = _classes(column_or_1d(labels, warn=True))
        classes = ClassLabel(names=_distinct_names(given.tolist()))
        target = List(classes) if several else classes
        problem_type = "multi_label_classification" if several else "single_label_classification"
        result = self._fit(rows, names, _with_gaps(values, missing), target, problem_type)
        self.classes_ = given
        # The checkpoint has names of labels alone; these are the labels as they were given.
        note(result.model.config, classes=given.tolist())
        return self._take(result)

    def _class_logits(self, X: Any, windows: str | None, stride: int | None) -> tuple[np.ndarray, str]:
        """Logits (n, C) in the order of `classes_`, which a checkpoint may not have, and the problem type."""
        logits = self._logits(X, windows, stride)
        config = self.model_.config
        numbers = {name_in_memory(name): number for name, number in config.label2id.items()}
        order = [numbers[name_in_memory(label)] for label in self.classes_.tolist()]
        return logits[:, order], text_problem_type(config)

    def predict(self, X: Any, *, windows: str | None = None, stride: int | None = None) -> np.ndarray:
        """The label of each text, or its row of 0 and 1; `windows` and `stride` replace the estimator's own."""
        answers = predictions_from_logits(*self._class_logits(X, windows, stride))
        return self.classes_[answers] if answers.ndim == 1 else answers

    def predict_proba(self, X: Any, *, windows: str | None = None, stride: int | None = None) -> np.ndarray:
        """Probabilities (n, C), columns in the order of `classes_`; with several labels per text each on its own."""
        return probabilities_from_logits(*self._class_logits(X, windows, stride))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class PosEncRegressor(RegressorMixin, _Estimator):
    """A text regressor for scikit-learn: a number for each text. Parameters are those of `PosEncClassifier`."""

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on texts X and numbers y, anew whenever it is called."""
        (names, rows), y, missing = self._read(X, y)
        numbers = column_or_1d(np.asarray(y, dtype=np.float64), warn=True)
        values = _with_gaps(numbers.tolist(), missing)
        return self._take(self._fit(rows, names, values, Value("float64"), "regression"))

    def predict(self, X: Any, *, windows: str | None = None, stride: int | None = None) -> np.ndarray:
        """The number of each text; `windows` and `stride` replace the estimator's own."""
        numbers = self._logits(X, windows, stride)
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers  # several of a text, of a model that fit can't make


def _classes(labels: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The labels, sorted, in the first form of those with one name, and each row's number among them."""
    classes, rows = np.unique(labels, return_inverse=True)
    names = list(map(name_in_memory, classes.tolist()))
    distinct = list(dict.fromkeys(names))
    numbers = [distinct.index(name) for name in names]
    return classes[[names.index(name) for name in distinct]], [numbers[row] for row in rows.tolist()]


def _distinct_names(labels: list[Any]) -> list[str]:
    """The names of labels; refuses columns of labels that would have one name, as 1 and "1"."""
    names = list(map(name_in_memory, labels))
    for label, name in zip(labels, names, strict=True):
        if names.count(name) > 1:
            raise UserError(f"y has two columns {label!r}, as they are written. Give each label a name of its own.")
    return names


def _problem_type(labels: Any, asked: str | None) -> str:
    """The problem type of labels in memory; refuses one that they contradict."""
    kinds = {"multilabel-indicator": "multi_label_classification", "continuous": "regression"}
    seen = kinds.get(type_of_target(labels), "single_label_classification")
    if asked is None and seen == "single_label_classification":
        _refuse_many_numbers(labels)
    if asked is None or asked == seen:
        return seen
    if asked == "regression" and seen == "single_label_classification":
        with contextlib.suppress(TypeError, ValueError):  # whole numbers
            np.asarray(labels, dtype=np.float64)
            return asked
    wanted = {
        "single_label_classification": "one label for each text, a string or a whole number",
        "multi_label_classification": "an array (n, C) of 0 and 1, or a table with a column for each of several labels",
        "regression": "one number for each text",
    }
    contradicts = f"contradicts the labels, which are written for a {seen}. Give {wanted[asked]}."
    raise UserError(contradicts, parameter="problem_type", value=asked)


def _refuse_many_numbers(labels: Any) -> None:
    """Refuses whole numbers which may be labels or numbers to predict, as of a file."""
    different = {*np.asarray(labels, dtype=object).flatten().tolist()}
    if len(different) > MOST_NUMBERED and all(isinstance(label, Number) for label in different):
        raise many_numbers("The labels are", len(different))


def _refuse_labels_among(names: list[str], rows: list[tuple[str, ...]], labels: Any) -> None:
    """Refuses texts of which one in each row is its label."""
    if len(rows[0]) == 1 or issparse(labels):
        return
    answers = np.asarray(labels, dtype=object)  # in which lists may differ in length
    written = [str(label) for label in answers] if answers.ndim == 1 else []
    for place, cells in enumerate(zip(*rows, strict=True)):
        if list(cells) == written:
            name = repr(names[place]) if names else place
            raise UserError(f"X's column {name} holds the labels. Leave it out of X.")


def _spell_in_memory(parameter: str, value: Any) -> str:
    """A parameter as messages of `fit` spell it: of options that are for files alone, it says whose they are."""
    spelt_in_python = spell_in_python(parameter, value)
    return f"{spelt_in_python} of hf_posenc.train" if parameter in _OF_FILES else spelt_in_python


def _folder_of(output: str | Path, overwrite: bool) -> contextlib.AbstractContextManager[OutputFolder]:
    return run_folder.folder_of_a_run(expanded(output), PartialState(), overwrite=overwrite)


def _without(labels: Any, rows: list[int]) -> Any:
    """Labels, of whatever kind, without those of some rows."""
    if not rows:
        return labels
    kept = np.setdiff1d(range(len(labels)), rows)
    if isinstance(labels, pd.DataFrame | pd.Series):
        return labels.iloc[kept]
    return labels[kept] if isinstance(labels, np.ndarray) else [labels[row] for row in kept]


def _with_gaps(values: list[Any], missing: Collection[int]) -> list[Any]:
    """The values of all rows, None for those that have none."""
    given = iter(values)
    return [None if row in missing else next(given) for row in range(len(values) + len(missing))]


_are_missing = np.frompyfunc(is_missing, 1, 1)


def require_labels(labels: Any, *, skips: bool = False) -> list[int]:
    """The rows without a label, if `skips`; else refuses them, which NumPy would compare, and what is no label."""
    if labels is None:
        raise UserError("requires y to be passed, but the target y is None")
    missing = np.atleast_1d(_are_missing(np.asarray(labels, dtype=object)))
    rows = np.unique(np.argwhere(missing)[:, 0]).tolist()
    if rows and not skips:
        what = f"Input contains NaN, blanks or None: the label of row {rows[0]}"
        raise UserError(f"{what}. Fill it in, or leave such rows out with skip_missing=True.")
    cells = np.empty(0) if issparse(labels) else np.atleast_1d(np.asarray(labels, dtype=object))
    given = [(place[0], cell) for place, cell in np.ndenumerate(cells) if not is_missing(cell)]
    refuse_surrogates((f"The label of row {row}", cell) for row, cell in given if isinstance(cell, str))
    _refuse_odd(given)
    return rows


def _refuse_odd(labels: list[tuple[int, Any]]) -> None:
    """Refuses labels, each with its row, that are no string and no number, and strings beside numbers.

    Of lists scikit-learn says how to write them.
    """
    if odd := [(row, label) for row, label in labels if not isinstance(label, Number | np.bool_ | Collection)]:
        what = f"the label of row {odd[0][0]} is {odd[0][1]!r:.60}, no string or number"
        raise UserError(f"{what}. Give strings, whole numbers or truth values; or numbers to predict.")
    words = [(row, label) for row, label in labels if isinstance(label, str)]
    if words and any(isinstance(label, Number | np.bool_) for _, label in labels):
        row, label = words[0]
        raise UserError(f"the label of row {row} is {label!r:.60}, and others are numbers. Write all labels alike.")
