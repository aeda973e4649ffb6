"""From texts to logits, and which precision a model computes them in.

Training runs in bfloat16 mixed precision where the hardware has it. Answers and final scores are computed in float32,
whatever the model was trained in, unless bfloat16 is asked for. Evaluations in the middle of a training only choose the
best epoch, and stay in the training's precision.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..checkpoints.loading import text_problem_type
from ..errors import UserError, spell
from .windows import Row, Windows, rows_of


def logits_of(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Iterable[str | tuple[str, ...] | Row],
    batch_size: int = 64,
    *,
    bf16: bool = False,
    read_ahead: int = 32,
    progress: Callable[[int], object] | None = None,
    temperature: float = 1.0,
    windows: Windows | None = None,
    long: dict[int, int] | None = None,
) -> Iterator[np.ndarray]:
    """The logits of each input, in order, as float32 arrays (C,).

    Inputs of like lengths share a batch; padding changes logits by rounding at most.

    Args:
        model: any classifier; it is put into evaluation mode, and runs where it is. One with an attribute `streams`
            runs as many batches at once.
        tokenizer: longer texts than its `model_max_length` are cut, or read in windows.
        inputs: texts, tuples of two, or token ids; may be a generator, which is read as it is needed.
        batch_size: inputs per forward pass.
        bf16: compute in bfloat16 mixed precision: logits are rounded to about three digits.
        read_ahead: how many batches are sorted by length together. 1: one is answered before the next is read.
        progress: called with the number of inputs that end in a batch after each.
        temperature: divides all logits, before those of windows are put together.
        windows: how longer texts are read. None: they are cut.
        long: gets the number, from 0, of each text that is longer, and how many windows of it are read.

    Raises:
        UserError: a logit is NaN or infinite, or the model and `windows` contradict each other.
    """
    model.eval()
    problem_type = ""
    if windows is not None:
        problem_type = text_problem_type(model.config)
        windows.check(problem_type, tokenizer)
    rows = rows_of(tokenizer, inputs, batch_size, windows, {} if long is None else long)
    answer = partial(_answers, model, tokenizer, bf16)
    of_text: list[np.ndarray] = []
    with ThreadPoolExecutor(getattr(model, "streams", 1)) as pool:
        run = pool.map if getattr(model, "streams", 1) > 1 else map
        while parts := list(islice(rows, batch_size * read_ahead)):
            longest_first = sorted(range(len(parts)), key=lambda n: len(parts[n][0]["input_ids"]), reverse=True)
            batches = [longest_first[start : start + batch_size] for start in range(0, len(parts), batch_size)]
            logits: dict[int, np.ndarray] = {}
            for numbers, answers in zip(batches, run(answer, [[parts[n][0] for n in b] for b in batches]), strict=True):
                logits |= zip(numbers, answers, strict=True)
                if progress is not None:
                    progress(sum(parts[n][1] for n in numbers))
            for number, (_, ends_text) in enumerate(parts):
                of_text.append(logits[number] / temperature)
                if ends_text:
                    yield of_text[0] if windows is None else windows.combined(of_text, problem_type)
                    of_text = []


def _answers(model: Any, tokenizer: PreTrainedTokenizerBase, bf16: bool, batch: list[Row]) -> list[np.ndarray]:
    """The logits of one batch."""
    padded = pad_rows(batch, tokenizer.pad_token_id, tokenizer.padding_side)
    check_token_types(model, padded)
    parts: dict[str, Any] = {name: part.to(model.device) for name, part in padded.items()}
    with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        logits = model(**parts).logits.float().cpu().numpy()
    if not np.isfinite(logits).all():  # they would name any label
        name = repr(model.name_or_path) if model.name_or_path else "The model"
        raise UserError(
            f"{name} answers with numbers that aren't finite (NaN or infinity). Its weights are damaged, or too "
            f"large for half precision: get the checkpoint anew, or leave {spell('bf16', True)} out."
        )
    return list(logits)


def check_token_types(model: Any, batch: Mapping[str, Any]) -> None:
    """Refuses pairs of texts for a model whose table of token types has no row for the second.

    Raises:
        UserError: a type of the batch is none of the model's.
    """
    kinds = getattr(getattr(model, "config", None), "type_vocab_size", 0)
    if kinds and "token_type_ids" in batch and (largest := np.max(np.asarray(batch["token_type_ids"]))) >= kinds:
        raise UserError(
            f"The tokenizer gives tokens of the type {largest}, as the second text of a pair has, and the model has "
            f"type_vocab_size={kinds}. Give single texts, or join the two."
        )


def pad_rows(rows: Sequence[Row], pad_token_id: int | None, padding_side: str = "right") -> dict[str, torch.Tensor]:
    """One batch of rows of any lengths: each part int64 (B, S), with an attention mask; labels are padded with -100.

    As a tokenizer's `pad` does, in a tenth of its time, which is a tenth of a small model's. What else there is, such
    as token types, is padded with 0, which every model has: some tokenizers have a type of their own for padding.
    """
    longest = max(1, *(len(row["input_ids"]) for row in rows))  # texts without a token: a row of padding alone
    fills = {"input_ids": pad_token_id or 0, "labels": -100}
    rows = [{"attention_mask": [1] * len(row["input_ids"]), **row} for row in rows]
    batch = {name: np.full((len(rows), longest), fills.get(name, 0)) for name in rows[0]}
    for number, row in enumerate(rows):
        for name, values in row.items():
            place = slice(len(values)) if padding_side == "right" else slice(longest - len(values), None)
            batch[name][number, place] = values
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def take_off_autocast(accelerator: Any, model: nn.Module) -> None:
    """Makes a model compute in the precision of its weights again, after it was trained in mixed precision.

    accelerate leaves autocast in an instance attribute `forward`, which no copy and no pickle of the model survives.

    Args:
        accelerator: the Trainer's; from now on it prepares no model for mixed precision.
        model: without the wrappers of distributed training.
    """
    accelerator.native_amp = False
    for name in ("forward", "_original_forward"):
        vars(model).pop(name, None)
    vars(model).pop("_is_accelerate_prepared", None)  # else another training wouldn't be in mixed precision
