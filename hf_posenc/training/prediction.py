"""Labels with probabilities for texts, from a checkpoint."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_posenc.training.data import read_file
from hf_posenc.training.errors import UserError, one_line
from hf_posenc.training.metrics import answers_from_logits
from hf_posenc.training.model import require_head


@dataclass(frozen=True)
class Text:
    """One input: a text, or a pair of them."""

    text: str
    text_pair: str | None = None


@dataclass(frozen=True)
class Prediction:
    """What a checkpoint says of one input; the same as in `predictions.jsonl` of a training run."""

    input: Text
    answer: dict[str, Any]
    """See `answers_from_logits`."""

    def to_json(self) -> str:
        """One line of JSON."""
        pair = {} if self.input.text_pair is None else {"text_pair": self.input.text_pair}
        return json.dumps({"text": self.input.text, **pair, **self.answer}, ensure_ascii=False)


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
    config = classifier.model.config
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    numbers = {name: number for number, name in enumerate(names)}
    problem = config.problem_type or ("regression" if len(names) == 1 else "single_label_classification")
    iterator = iter(inputs)
    while batch := list(islice(iterator, batch_size)):
        given = [{"text": t.text, **({} if t.text_pair is None else {"text_pair": t.text_pair})} for t in batch]
        with torch.autocast(classifier.device.type, torch.bfloat16, enabled=bf16):
            found = classifier(given, batch_size=batch_size, truncation=True, function_to_apply="none")
        logits = np.empty((len(batch), len(names)))
        for row, entries in enumerate(found):
            for entry in entries:
                logits[row, numbers[entry["label"]]] = entry["score"]
        for text, answer in zip(
            batch, answers_from_logits(logits, names, problem, threshold=threshold, top_k=top_k), strict=True
        ):
            yield Prediction(text, answer)


def read_texts(source: str, text_column: str = "text", pair_column: str = "text_pair") -> Iterator[Text]:
    """Inputs from a file or, for `-`, from standard input, read as they are needed.

    A .txt file or standard input has one text per line, or a JSON object; other files are read as for training: .csv,
    .tsv, .json, .jsonl (also .gz), .parquet.

    Raises:
        UserError: the file doesn't exist, or a line lacks the column.
    """
    if source == "-":
        yield from _parse_lines(sys.stdin, "standard input", text_column, pair_column)
        return
    path = Path(source)
    if not path.is_file():
        raise UserError(f"There is no file {source!r}. Give a .txt, .csv or .jsonl file, or - for standard input.")
    if path.suffix in ("", ".txt"):
        with path.open(encoding="utf-8-sig") as handle:
            yield from _parse_lines(handle, source, text_column, pair_column)
        return
    for number, row in enumerate(read_file(source), start=1):
        yield _from_record(row, f"{source}, row {number}", text_column, pair_column)


def _parse_lines(lines: Iterable[str], source: str, text_column: str, pair_column: str) -> Iterator[Text]:
    numbered = enumerate(lines, start=1)
    while True:
        try:
            number, line = next(numbered)
            line.encode()  # what standard input couldn't decode is there as half a character
        except StopIteration:
            return
        except UnicodeError as error:
            raise UserError(f"{source} isn't UTF-8 text: {one_line(error)}. Convert it first.") from error
        line = line.rstrip("\n")
        if not line.strip():
            continue
        record = None
        if line.lstrip().startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):  # a text may begin with a brace
                record = json.loads(line)
        if record is None:
            yield Text(line)
        else:
            yield _from_record(record, f"{source}, line {number}", text_column, pair_column)


def _from_record(record: Any, where: str, text_column: str, pair_column: str) -> Text:
    # An empty cell of a csv is an empty text, as in training.
    if isinstance(record, dict) and text_column in record and record[text_column] is None:
        record = {**record, text_column: ""}
    if not isinstance(record, dict) or not isinstance(record.get(text_column), str):
        columns = ", ".join(map(repr, record)) if isinstance(record, dict) else repr(record)[:80]
        raise UserError(f"{where}: no text in column {text_column!r}. It has {columns}; name one with --text-column.")
    pair = record.get(pair_column)
    return Text(record[text_column], pair if isinstance(pair, str) else None)


def check_is_checkpoint(checkpoint: str) -> None:
    """Raises a UserError where a local folder was meant but holds no checkpoint."""
    path = Path(checkpoint)
    looks_local = path.exists() or checkpoint.startswith((".", "/", "~")) or checkpoint.count("/") > 1
    if looks_local and not (path / "config.json").is_file():
        missing = "has no config.json" if path.is_dir() else "is a file" if path.exists() else "doesn't exist"
        raise UserError(f"{checkpoint!r} {missing}. Give the folder of a checkpoint, or the name of one on the Hub.")
