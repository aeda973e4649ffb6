"""Compares what was exported with PyTorch in float32: real texts, other batches and lengths than were traced."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import position_limit
from ..data.texts import own_texts
from ..errors import UserError
from ..inference.backends import INPUTS, Backend
from ..inference.logits import Row, pad_rows
from ..tasks import task_of

LARGEST = 1e-4
"""The largest difference that is let pass, where answers are up to 1; of larger ones, their part."""
_TOKENS = ("feature-extraction", "fill-mask", "token-classification", "question-answering")
LONGEST = 512
"""Texts are cut to so many tokens."""

Batch = dict[str, np.ndarray]


def takes_choices(model: PreTrainedModel) -> bool:
    """True where inputs are (B, C, S)."""
    return task_of(type(model).__name__) == "multiple-choice"


def answers_tokens(model: PreTrainedModel) -> bool:
    """True where outputs are (B, S, ...): an answer for each token, of which that of padding means nothing."""
    return task_of(type(model).__name__) in _TOKENS


def input_names(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The inputs of the model's graph: token types where the model and the tokenizer have them."""
    has_types = getattr(model.config, "type_vocab_size", 0) > 0 and "token_type_ids" in tokenizer.model_input_names
    return [*INPUTS[:2], *(INPUTS[2:] if has_types else ())]


def measure_parity(model: PreTrainedModel, compared: Sequence[Batch], reference: Backend, exported: Backend) -> float:
    """The largest difference of an output, divided by the outputs' largest size if that is above 1.

    Args:
        model: the checkpoint, which says what its outputs are.
        compared: see `batches`.
        reference: the checkpoint in PyTorch.
        exported: what was written, opened anew.

    Raises:
        UserError: the exported model has another output than PyTorch, NaN, or no such output.
    """
    largest = 0.0
    for batch in compared:
        expected = reference.outputs(batch)
        outputs = exported.outputs(batch)
        for name, values in expected.items():
            if name not in outputs or outputs[name].shape != values.shape:
                shape = outputs[name].shape if name in outputs else "none"
                raise UserError(f"The exported {name} has shape {shape}; in PyTorch it is {values.shape}.")
            is_real = batch["attention_mask"].astype(bool) if answers_tokens(model) else ...
            difference = np.abs(outputs[name][is_real].astype(np.float64) - values[is_real])
            size = max(1.0, float(np.abs(values[is_real]).max()))
            # NaN counts as infinite: no comparison with it is true
            largest = max(largest, float(np.nan_to_num(difference, nan=np.inf).max()) / size)
    return largest


def batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, padded_left: bool = True, pairs: bool = True
) -> list[Batch]:
    """Texts to compare answers to: single words to several sentences, alone and in batches of 3 and 7.

    Args:
        model: the checkpoint, which says what its inputs are.
        tokenizer: its own.
        padded_left: each batch with padding on either side, not on the right alone.
        pairs: pairs of texts too, where there are token types for both.
    """
    limit = min(position_limit(model) or LONGEST, tokenizer.model_max_length, LONGEST)
    sentences = own_texts(64)
    texts = ["a", *sentences[:6], " ".join(sentences[:4]), " ".join(sentences[:12]), " ".join(sentences)]
    rows = encode_rows(tokenizer, limit, texts)
    groups = [(rows[:1], False), (rows[3:4], False), (rows[-1:], False)]
    sides = (False, True) if padded_left else (False,)
    groups += [(group, left) for group in (rows[:7], rows[-3:]) for left in sides]
    if pairs and INPUTS[2] in input_names(model, tokenizer) and model.config.type_vocab_size > 1:
        groups.append((encode_rows(tokenizer, limit, sentences[:3], sentences[3:6]), False))
    return [make_batch(group, model, tokenizer, left=left) for group, left in groups]


def encode_rows(tokenizer: PreTrainedTokenizerBase, limit: int, *texts: Sequence[str]) -> list[Row]:
    """Encodes each text, or each pair of texts, cut to `limit` tokens."""
    encoded = tokenizer(*map(list, texts), truncation=True, max_length=limit)
    return [{name: values[row] for name, values in encoded.items()} for row in range(len(texts[0]))]


def make_batch(
    rows: Sequence[Row], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, left: bool = False
) -> Batch:
    """Rows of token ids as the model's inputs, padded on one side; as choices each text meets another of the batch."""
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else model.config.pad_token_id or 0
    named = [{name: row[name] for name in input_names(model, tokenizer)} for row in rows]
    batch = {name: part.numpy() for name, part in pad_rows(named, padding, "left" if left else "right").items()}
    return {name: np.stack((part, part[::-1]), 1) for name, part in batch.items()} if takes_choices(model) else batch
