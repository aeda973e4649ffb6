"""Labels with probabilities for texts, from a checkpoint."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_posenc.training.errors import UserError, check_is_checkpoint, one_line
from hf_posenc.training.metrics import answers_from_logits
from hf_posenc.training.model import require_head
from hf_posenc.training.progress import without_bars


@dataclass(frozen=True)
class Text:
    """One input: a text, or a pair of them."""

    text: str
    text_pair: str | None = None
    row: Mapping[str, Any] | None = None
    """Where it comes from a file: all columns of its row, which are kept."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """What stands beside the answer."""
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair} if self.row is None else self.row


@dataclass(frozen=True)
class Prediction:
    """What a checkpoint says of one input; the same as in `predictions.jsonl` of a training run."""

    input: Text
    answer: dict[str, Any]
    """See `answers_from_logits`."""


@dataclass(frozen=True)
class Task:
    """What a classifier answers."""

    problem_type: str
    names: tuple[str, ...]
    """Of its labels, or of the numbers that it predicts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of an answer."""
        if self.problem_type == "regression":
            return ("prediction",) if len(self.names) == 1 else ("predictions",)
        return ("label", "probabilities")


def task_of(config: Any) -> Task:
    """The task of a classifier, from its config."""
    names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
    return Task(config.problem_type or ("regression" if len(names) == 1 else "single_label_classification"), names)


@without_bars()
def load_classifier(
    checkpoint: str, device: str | None = None, revision: str | None = None, *, trust_remote_code: bool = False
) -> Any:
    """A text-classification pipeline from a folder or Hub name.

    Raises:
        UserError: there is no such checkpoint, or it isn't a classifier.
    """
    check_is_checkpoint(checkpoint)
    _check_device(device)
    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint!r} can't be read as a checkpoint: {one_line(error)}") from error
    require_head(config, checkpoint, "ForSequenceClassification")
    try:
        # Not by the pipeline itself, which puts every traceback into its message.
        options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
        model = AutoModelForSequenceClassification.from_pretrained(checkpoint, **options)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **options)
        return pipeline("text-classification", model=model, tokenizer=tokenizer, device=device, top_k=None)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{checkpoint!r} can't be loaded: {one_line(error)}") from error
    except Exception as error:  # safetensors raises classes of its own for files that aren't whole
        if type(error).__module__.startswith("safetensors"):
            raise UserError(
                f"{checkpoint!r}: model.safetensors is damaged ({error}). Copy or train it anew."
            ) from error
        raise


def _check_device(name: str | None) -> None:
    if name is None:
        return
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        raise UserError(
            f"--device {name!r} can't be used: {one_line(error).split(' at: ')[0][:80]} This machine has cpu"
            f"{f' and {found}' if found else ' alone'}."
        ) from error


def predict(
    classifier: Any,
    inputs: Iterable[Text],
    batch_size: int = 32,
    *,
    threshold: float = 0.5,
    top_k: int | None = None,
    bf16: bool = False,
) -> Iterator[Prediction]:
    """Classifies inputs one batch at a time, in order.

    Args:
        classifier: what `load_classifier` returned.
        inputs: texts or pairs; may be a generator, which is read as it is needed.
        batch_size: texts per forward pass.
        threshold: for several labels per text: those with a probability above it are predicted.
        top_k: how many probabilities are given. None: all.
        bf16: compute in bfloat16 mixed precision.

    Yields:
        Prediction: one per input.
    """
    task = task_of(classifier.model.config)
    numbers = {name: number for number, name in enumerate(task.names)}
    iterator = iter(inputs)
    while batch := list(islice(iterator, batch_size)):
        given = [{"text": t.text, **({} if t.text_pair is None else {"text_pair": t.text_pair})} for t in batch]
        with torch.autocast(classifier.device.type, torch.bfloat16, enabled=bf16):
            found = classifier(given, batch_size=batch_size, truncation=True, function_to_apply="none")
        logits = np.empty((len(batch), len(task.names)))
        for row, entries in enumerate(found):
            for entry in entries:
                logits[row, numbers[entry["label"]]] = entry["score"]
        answers = answers_from_logits(logits, task.names, task.problem_type, threshold=threshold, top_k=top_k)
        yield from (Prediction(text, answer) for text, answer in zip(batch, answers, strict=True))
