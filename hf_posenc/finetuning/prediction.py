"""Labels with probabilities for texts, from a checkpoint, and its scores on labelled rows."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..data.columns import Columns, notes_of, remembered_columns
from ..data.preparing import DataSummary, labels_of, prepare, texts_of
from ..data.reading import LINE
from ..data.sources import read_split
from ..data.tokenizer import load_tokenizer
from ..errors import UserError, one_line
from ..options import Options
from ..quiet import without_bars
from ..training.inference import cut_texts_in_words, logits_of
from ..training.metrics import ClassificationLoss, answers_from_logits, loss_and_metrics, predictions_from_logits
from .backends import fastest_backend, open_backend
from .loading import (
    CLASSIFIER,
    has_head,
    input_length,
    knowledge,
    load_model,
    read_config,
    text_problem_type,
    trained_labels,
)
from .prediction_files import input_name


@dataclass(frozen=True)
class Classifier:
    """A trained model, in float32 on its device, with its tokenizer.

    Attributes:
        model: a PyTorch model, or a `Backend`.
        name: its folder or Hub name.
        backend: what runs it: `torch`, `onnx` or `openvino`.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    name: str
    backend: str = "torch"

    @property
    def problem_type(self) -> str:
        """What it answers."""
        return text_problem_type(self.model.config)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Its labels, or the names of the numbers that it predicts."""
        return trained_labels(self.model.config)

    @property
    def columns(self) -> Columns | None:
        """How the texts that it was trained on were put together."""
        return remembered_columns(self.model.config)


@without_bars()
def load_classifier(
    checkpoint: str,
    device: str | None = None,
    revision: str | None = None,
    *,
    backend: str | None = None,
    bf16: bool = False,
    throughput: bool = False,
    trust_remote_code: bool = False,
) -> Classifier:
    """A model that labels texts, from a folder or Hub name, in float32 whatever its weights are stored in.

    Args:
        checkpoint: the folder or name.
        device: where it runs. None: a GPU if there is one.
        revision: of the Hub.
        backend: `torch`, `onnx` or `openvino`. None: the fastest that is installed and that the folder has files for,
            see `fastest_backend`; with a device PyTorch, where the folder has weights.
        bf16: let the graph compute in bfloat16; a PyTorch model gets that where it is run.
        throughput: let an OpenVINO graph take several batches at once, for a file; a single one takes longer then.
        trust_remote_code: run the checkpoint's code.

    Raises:
        UserError: there is no such checkpoint, it isn't a classifier, or the backend can't run it.
    """
    config = read_config(checkpoint, revision, trust_remote_code)
    if backend is None:
        backend = "torch" if device not in (None, "cpu") else fastest_backend(checkpoint)
    if backend != "torch" and device not in (None, "cpu"):
        raise UserError(f"--backend {backend} runs on the processor, not on --device {device}. Leave one of them out.")
    if not has_head(config, CLASSIFIER):
        held = ", ".join(config.architectures or ()) or "no architecture"
        raise UserError(
            f"{checkpoint!r} holds {held}, which doesn't classify texts. Give a checkpoint that `hf-posenc train` or "
            "examples/run_classification.py wrote."
        )
    model: Any
    if backend == "torch":
        model = load_model(checkpoint, config, revision=revision, trust_remote_code=trust_remote_code)
        model.to(_device(device))
    else:
        model = open_backend(checkpoint, backend, bf16=bf16, throughput=throughput)
        model.config, model.name_or_path = config, checkpoint
    tokenizer = load_tokenizer(checkpoint, revision=revision, trust_remote_code=trust_remote_code)
    if backend == "torch":
        input_length(model, tokenizer)
    elif model.max_length is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, model.max_length)
    return Classifier(model, tokenizer, checkpoint, backend)


def _device(name: str | None) -> torch.device:
    """The device of that name, or the best."""
    if name is None:
        return (torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None) or torch.device(
            "cpu"
        )
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"--device {name!r} can't be used: {one_line(error)[:80]}. Leave it out, or give --device cpu."
        ) from error
    return device


def predict(
    classifier: Classifier,
    inputs: Iterable[tuple[str, ...]],
    batch_size: int = 32,
    *,
    threshold: float | None = None,
    top_k: int | None = None,
    calibrated: bool = False,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Answers inputs, in order; see `answers_from_logits` for the answers.

    Args:
        classifier: what `load_classifier` returned.
        inputs: `(text,)`, or `(text, second text)` for pairs.
        batch_size: texts per forward pass.
        threshold: for several labels per text alone: those with a probability above it are predicted. None: 0.5.
        top_k: how many probabilities are given. None: all.
        calibrated: divide logits by the temperature that training fitted.
        **options: `bf16`, `window`, `progress` and `truncated` of `logits_of`.

    Yields:
        An answer per input.

    Raises:
        UserError: the model answers NaN, or has no temperature.
    """
    names, problem_type = classifier.label_names, classifier.problem_type
    temperature: Any = notes_of(classifier.model.config).get("temperature")
    if calibrated and not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise UserError(
            f"{classifier.name!r} has no temperature to calibrate by: `hf-posenc train` fits one on validation rows of "
            "one label per text. Leave --calibrated out."
        )
    if threshold is not None and problem_type != "multi_label_classification":
        raise UserError(
            f"--threshold {threshold} is for several labels per text, and {classifier.name!r} gives one answer. Leave "
            "it out."
        )
    if top_k is not None and problem_type == "regression":
        raise UserError(f"--top-k {top_k} is for labels, and {classifier.name!r} predicts numbers. Leave it out.")
    scale, least = float(temperature) if calibrated else 1.0, 0.5 if threshold is None else threshold
    for logits in logits_of(classifier.model, classifier.tokenizer, inputs, batch_size, **options):
        yield answers_from_logits(logits[None] / scale, names, problem_type, threshold=least, top_k=top_k)[0]


_ADDED = ("line", "answer")
"""What stands beside the columns of a row that is answered wrongly."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: loss and the metrics of the task.
        examples: how many rows were scored.
        data: what was read, used and left out.
        cut: how many texts were cut, in words; empty if none was.
        errors: the rows whose label is wrong, with all columns of the file and the answer.
    """

    metrics: dict[str, float]
    examples: int
    data: DataSummary
    cut: str
    errors: list[dict[str, Any]]


def evaluate(
    classifier: Classifier,
    options: Options,
    split: str = "test",
    *,
    batch_size: int = 64,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Scores a classifier on a file, or on one split of a folder or a data set.

    Args:
        classifier: what `load_classifier` returned.
        options: of the data.
        split: of a folder or a data set.
        batch_size: texts per forward pass.
        progress: called with the number of texts after each batch.

    Raises:
        UserError: the data can't be read, has no labels, or other labels than the model's.
    """
    table = read_split(options, split)
    known = knowledge(classifier.model.config, classifier.name)
    prepared = prepare({"test": table}, options, known)
    part, kind = prepared.splits["test"], prepared.labels.problem_type
    right = labels_of(part)
    if right is None:
        raise UserError(f"The data has no labels in column {prepared.columns.label!r}. Name it with --label-column.")
    truncated: dict[int, int] = {}
    texts = zip(*texts_of(part), strict=True)
    answers = logits_of(
        classifier.model, classifier.tokenizer, texts, batch_size, truncated=truncated, progress=progress
    )
    logits, labels = np.stack(list(answers)), np.asarray(right)
    loss = ClassificationLoss(kind, label_scale=getattr(classifier.model.config, "label_scale", 1.0))
    metrics = loss_and_metrics(loss, logits, labels)
    differ = (predictions_from_logits(logits, kind) != labels).reshape(len(part), -1).any(1)
    wrong = [] if kind == "regression" else np.flatnonzero(differ).tolist()
    given = answers_from_logits(logits[wrong], known.label_names, kind) if wrong else []
    lines = {line: row for row, line in enumerate(table[LINE][:])}
    rows = [table[lines[part[LINE][number]]] for number in wrong]
    errors = [
        {input_name(name, _ADDED): value for name, value in row.items() if name != LINE}
        | {"line": row[LINE], "answer": answer}
        for row, answer in zip(rows, given, strict=True)
    ]
    cut = cut_texts_in_words(truncated, classifier.tokenizer)
    return Evaluation(metrics, len(part), prepared.summary, cut, errors)
