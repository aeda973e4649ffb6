"""Labels with probabilities for texts, from a checkpoint."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    pipeline,
)

from hf_posenc.data.encoding import word_pieces
from hf_posenc.data.inputs import Text
from hf_posenc.data.labels import TOKENS
from hf_posenc.errors import UserError, check_is_checkpoint, one_line, sentence
from hf_posenc.finetuning.model import check_complete, labels_words, require_head
from hf_posenc.training.metrics import answers_from_logits, require_finite
from hf_posenc.training.progress import errors_alone, without_bars


@dataclass(frozen=True)
class Prediction:
    """A checkpoint's answer for one input, as in `predictions.jsonl`."""

    input: Text
    answer: dict[str, Any]
    """See `answers_from_logits`; of a model that labels words `words` and `labels`, None for one beyond the longest
    input."""


@dataclass(frozen=True)
class Task:
    """The kind of answer that a classifier gives."""

    problem_type: str
    names: tuple[str, ...]
    """Of its labels, or of the numbers that it predicts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of an answer."""
        if self.problem_type == TOKENS:
            return ("words", "labels")
        if self.problem_type == "regression":
            return ("prediction",) if len(self.names) == 1 else ("predictions",)
        return ("label", "probabilities")


def task_of(config: Any) -> Task:
    """The task of a classifier, from its config."""
    names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
    if labels_words(config):
        return Task(TOKENS, names)
    return Task(config.problem_type or ("regression" if len(names) == 1 else "single_label_classification"), names)


@without_bars()
def load_classifier(
    checkpoint: str, device: str | None = None, revision: str | None = None, *, trust_remote_code: bool = False
) -> Any:
    """A text-classification or token-classification pipeline from a folder or Hub name.

    Raises:
        UserError: there is no such checkpoint, or it isn't a classifier.
    """
    check_is_checkpoint(checkpoint)
    _check_device(device)
    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a broken file or a failed download raises
        raise UserError(f"{checkpoint!r} can't be read as a checkpoint: {one_line(error)}") from error
    of_words = labels_words(config)
    if not of_words:
        require_head(config, checkpoint, "ForSequenceClassification")
    try:
        # Not by the pipeline itself, which puts every traceback into its message.
        options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
        kind: Any = AutoModelForTokenClassification if of_words else AutoModelForSequenceClassification
        with errors_alone("transformers.modeling_utils"):
            model, loaded = kind.from_pretrained(checkpoint, output_loading_info=True, **options)
        check_complete(model, loaded, checkpoint, config.architectures or [])
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **options)
        if of_words:
            return pipeline("token-classification", model=model, tokenizer=tokenizer, device=device)
        return pipeline("text-classification", model=model, tokenizer=tokenizer, device=device, top_k=None)
    except UserError:
        raise
    except Exception as error:  # transformers and safetensors raise all kinds for files that aren't whole
        if type(error).__module__.startswith("safetensors"):
            raise UserError(
                f"{checkpoint!r}: model.safetensors is damaged ({error}). Copy or train it anew."
            ) from error
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        raise UserError(f"{checkpoint!r} can't be loaded: {kind}{sentence(error)}") from error


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

    Raises:
        UserError: a pair, for a model that labels words; or the model answers NaN.
    """
    task = task_of(classifier.model.config)
    numbers = {name: number for number, name in enumerate(task.names)}

    def classify(batch: list[Text]) -> list[dict[str, Any]]:
        given = [{"text": t.text, **({} if t.text_pair is None else {"text_pair": t.text_pair})} for t in batch]
        found = classifier(given, batch_size=len(batch), truncation=True, function_to_apply="none")
        logits = np.empty((len(batch), len(task.names)))
        for row, entries in enumerate(found):
            for entry in entries:
                logits[row, numbers[entry["label"]]] = entry["score"]
        require_finite(logits, repr(classifier.model.name_or_path))
        return answers_from_logits(logits, task.names, task.problem_type, threshold=threshold, top_k=top_k)

    iterator = iter(inputs)
    while batch := list(islice(iterator, batch_size)):
        with torch.autocast(classifier.device.type, torch.bfloat16, enabled=bf16):
            answers = _of_words(classifier, batch) if task.problem_type == TOKENS else classify(batch)
        yield from (Prediction(text, answer) for text, answer in zip(batch, answers, strict=True))


def _of_words(classifier: Any, batch: Sequence[Text]) -> list[dict[str, Any]]:
    """The answers for one batch of texts."""
    if any(text.text_pair is not None for text in batch):
        raise UserError("The model labels the words of one text, and takes no pairs. Give each text by itself.")
    words = [text.text.split() if text.words is None else text.words for text in batch]
    labels = label_words(classifier.model, classifier.tokenizer, words, len(batch))
    return [{"words": list(own), "labels": found} for own, found in zip(words, labels, strict=True)]


@torch.no_grad()
def label_words(
    model: Any, tokenizer: PreTrainedTokenizerBase, words: Sequence[Sequence[str]], batch_size: int = 32
) -> Iterator[list[str | None]]:
    """A label for each word, from its first token; None for a word without one, or beyond the longest input."""
    model.eval()
    for start in range(0, len(words), batch_size):
        read = [word_pieces(tokenizer, row, tokenizer.model_max_length) for row in words[start : start + batch_size]]
        batch = tokenizer.pad([tokens for tokens, _ in read], return_tensors="pt").to(model.device)
        logits = model(**batch).logits
        require_finite(logits.float().cpu().numpy(), repr(model.name_or_path))
        answers = logits.argmax(-1).tolist()
        for row, (_, firsts), answer in zip(words[start : start + batch_size], read, answers, strict=True):
            yield [model.config.id2label[answer[firsts[word]]] if word in firsts else None for word in range(len(row))]
