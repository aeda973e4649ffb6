"""Labels with probabilities for texts, from a checkpoint."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..data.inputs import Text
from ..data.tokenizer import load_tokenizer
from ..errors import UserError, check_is_checkpoint, one_line, sentence
from ..quiet import without_bars
from ..training.inference import logits_of
from ..training.metrics import answers_from_logits
from ..training.options import ModelArguments
from .backends import Backend, fastest_backend, open_backend
from .loading import hub_options, load_model, read_config, require_classifier
from .model import input_length


@dataclass(frozen=True)
class Prediction:
    """A checkpoint's answer for one input, as in `predictions.jsonl`."""

    input: Text
    answer: dict[str, Any]
    """See `answers_from_logits`."""
    tokens: int = 0
    """Of a text that was cut: how many it has."""


@dataclass
class CutTexts:
    """Counts the texts that were cut at the length limit."""

    count: int = 0
    longest: int = 0
    """In tokens."""

    def add(self, tokens: int) -> None:
        """Counts a text of so many tokens; 0: it wasn't cut."""
        self.count += tokens > 0
        self.longest = max(self.longest, tokens)

    def watched(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """The same predictions, which are counted."""
        for prediction in predictions:
            self.add(prediction.tokens)
            yield prediction

    def sentence(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """How many they were, and the longest; empty if there was none."""
        texts = "1 text has" if self.count == 1 else f"{self.count:,} texts have"
        limit = f"more than {tokenizer.model_max_length:,} tokens, and only so many were read"
        return f"{texts} {limit}; the longest has {self.longest:,}." if self.count else ""


@dataclass(frozen=True)
class PredictionTask:
    """The kind of answer that a classifier gives."""

    problem_type: str
    names: tuple[str, ...]
    """Of its labels, or of the numbers that it predicts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of an answer."""
        if self.problem_type == "regression":
            return ("prediction",) if len(self.names) == 1 else ("predictions",)
        return ("label", "probabilities")


@dataclass(frozen=True)
class Classifier:
    """A trained model, in float32 on its device, with its tokenizer."""

    model: Any
    """A PyTorch model, or an `ExportedModel`."""
    tokenizer: PreTrainedTokenizerBase
    backend: str = "torch"
    """What runs it: `torch`, `onnx` or `openvino`."""

    @property
    def task(self) -> PredictionTask:
        """What it answers."""
        config = self.model.config
        names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
        return PredictionTask(text_problem_type(config), names)


def text_problem_type(config: Any) -> str:
    """What a text classifier answers; transformers' models don't always say."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


class ExportedModel:
    """A graph in the place of a PyTorch model: what answers are computed with."""

    device = torch.device("cpu")

    def __init__(self, backend: Backend, config: Any, name: str) -> None:
        self.backend, self.config, self.name_or_path = backend, config, name
        self.streams = backend.streams

    def eval(self) -> "ExportedModel":
        """Itself: a graph doesn't train."""
        return self

    def __call__(self, **batch: torch.Tensor) -> Any:
        """Token ids and mask (B, S) -> an output with `logits`, float32."""
        logits = self.backend.logits({name: tensor.numpy() for name, tensor in batch.items()})
        return SimpleNamespace(logits=torch.from_numpy(logits))


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
    check_is_checkpoint(checkpoint)
    if backend is None:
        backend = "torch" if device not in (None, "cpu") else fastest_backend(checkpoint)
    if backend != "torch" and device not in (None, "cpu"):
        raise UserError(f"--backend {backend} runs on the processor, not on --device {device}. Leave one of them out.")
    place = _device("cpu" if backend != "torch" else device)
    arguments = ModelArguments(
        model_name_or_path=checkpoint, model_revision=revision or "main", trust_remote_code=trust_remote_code
    )
    config = read_config(checkpoint, arguments)
    require_classifier(config, checkpoint)
    model: Any
    if backend == "torch":
        model = load_model(arguments, config)
        model.to(place)
    else:
        model = ExportedModel(open_backend(checkpoint, backend, bf16=bf16, throughput=throughput), config, checkpoint)
    tokenizer = load_tokenizer(checkpoint, **hub_options(arguments))
    try:
        if backend == "torch":
            input_length(model, tokenizer)
        elif model.backend.max_length is not None:
            tokenizer.model_max_length = min(tokenizer.model_max_length, model.backend.max_length)
    except TypeError as error:  # a tokenizer_config.json with words for numbers
        raise UserError(f"{checkpoint!r} can't be loaded: {sentence(error)}") from error
    return Classifier(model, tokenizer, backend)


def _device(name: str | None) -> torch.device:
    """The device of that name, or the best."""
    best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name is None:
        return best or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"--device {name!r} can't be used: {one_line(error).split(' at: ')[0][:80].rstrip('.')}. This machine has "
            f"cpu{f' and {best}' if best else ' alone'}."
        ) from error
    return device


def predict(
    classifier: Classifier,
    inputs: Iterable[Text],
    batch_size: int = 32,
    *,
    threshold: float = 0.5,
    top_k: int | None = None,
    **options: Any,
) -> Iterator[Prediction]:
    """Classifies inputs, in order.

    Args:
        classifier: what `load_classifier` returned.
        inputs: texts or pairs; may be a generator, which is read as it is needed.
        batch_size: texts per forward pass.
        threshold: for several labels per text: those with a probability above it are predicted.
        top_k: how many probabilities are given. None: all.
        **options: `bf16`, `window` and `progress` of `logits_of`.

    Yields:
        Prediction: one per input.

    Raises:
        UserError: the model answers NaN.
    """
    task = classifier.task
    inputs, again = tee(inputs)
    texts = (text.text if text.text_pair is None else (text.text, text.text_pair) for text in again)
    cut: dict[int, int] = {}
    answers = logits_of(classifier.model, classifier.tokenizer, texts, batch_size, truncated=cut.__setitem__, **options)
    for number, (text, logits) in enumerate(zip(inputs, answers, strict=True)):
        (answer,) = answers_from_logits(logits[None], task.names, task.problem_type, threshold=threshold, top_k=top_k)
        yield Prediction(text, answer, cut.pop(number, 0))
