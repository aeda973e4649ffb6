"""Measures how far a model is from the original on texts: what a conversion kept, and what a swap costs."""

import random
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenizer import cut_rows
from ..errors import UserError, spell
from ..inference.logits import Row, pad_rows
from .families import POOLED
from .loading import Loaded
from .report import Agreement

EXACT = 1e-5
"""The largest error of a conversion that keeps the scheme, on the models that were measured."""
TOLERANCE = 10 * EXACT
"""What is taken for rounding, of logits beyond 1 as a share of the largest."""
_ROWS = 32
"""Of a batch."""


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> tuple[list[Row], int]:
    """Texts to token ids, and token types where the tokenizer gives them; and how many were cut to `max_length`."""
    known = [name for name in ("input_ids", "token_type_ids") if name in tokenizer.model_input_names]
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length)
    columns = (encoded[name] for name in known)
    rows: list[Row] = [dict(zip(known, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows, len(cut_rows(encoded, max_length))


def random_tokens(config: Any, tokenizer: PreTrainedTokenizerBase | None, rows: int = 32, length: int = 48) -> Tensor:
    """Random ordinary tokens between the special ones: (rows, length)."""
    length = min(length, config.max_position_embeddings)
    special = {config.pad_token_id} if tokenizer is None else {config.pad_token_id, *tokenizer.all_special_ids}
    ordinary = torch.tensor([number for number in range(config.vocab_size) if number not in special])
    ids = ordinary[torch.randint(len(ordinary), (rows, length))]
    if tokenizer is not None and length > 2:
        for place, token in ((0, tokenizer.cls_token_id), (-1, tokenizer.sep_token_id)):
            if token is not None:
                ids[:, place] = token
    return ids


def swap_tokens(row: Row, special: Container[int], draw: random.Random, farthest: int | None = None) -> Row:
    """Swaps two tokens of a row, neither of them special; without such a pair the row is unchanged.

    Their distance is drawn first, log-uniformly: 1 is as likely as 2 or 3 together, and as 4 to 7.

    Args:
        row: one text.
        special: tokens that stay where they are.
        draw: the source of chance.
        farthest: the largest distance, 1 for neighbours. None: as far as the text goes.
    """
    tokens = list(row["input_ids"])
    free = [at for at, token in enumerate(tokens) if token not in special]
    longest = min(free[-1] - free[0], farthest or len(tokens)) if free else 0
    distance = min(longest, int((longest + 1) ** draw.random())) if longest > 1 else 1
    places = [at for at in free if at + distance <= free[-1] and tokens[at + distance] not in special]
    if not places:
        return row
    at = draw.choice(places)
    tokens[at], tokens[at + distance] = tokens[at + distance], tokens[at]
    return {**row, "input_ids": tokens}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of special tokens and of those that a tokenizer adds to a text, without the unknown token."""
    return {*tokenizer.all_special_ids, *tokenizer("")["input_ids"]} - {tokenizer.unk_token_id}


def _groups(rows: Sequence[Row], *models: Any) -> Iterator[list[Row]]:
    """Some rows at a time, with token types where all models have them."""
    has_types = all(getattr(model.config, "type_vocab_size", 0) for model in models)
    starts = range(0, len(rows), _ROWS)
    for start in tqdm(starts, desc="Measuring", unit=" batches", leave=False, delay=2, disable=None):
        some = rows[start : start + _ROWS]
        yield [{name: ids for name, ids in row.items() if has_types or name == "input_ids"} for row in some]


def _hidden(model: Any, rows: Sequence[Row], other: Any) -> list[Tensor]:
    """The last hidden states at real tokens, (S, D) of each text, as another model may read them too."""
    hidden = []
    for some in _groups(rows, model, other):
        states = model.base_model(**pad_rows(some, model.config.pad_token_id)).last_hidden_state.float()
        hidden += [state[: len(row["input_ids"])] for state, row in zip(states, some, strict=True)]
    return hidden


@torch.no_grad()
def measure_agreement(
    model: PreTrainedModel, original: PreTrainedModel, rows: Sequence[Row], texts: str, special: Container[int]
) -> Agreement:
    """Agreement of a model with the original; both in evaluation mode.

    Args:
        model, original: any with the same tokens.
        rows: see `tokenize`.
        texts: a description of the texts, for the report.
        special: tokens that stay where they are when others are swapped, for `order_r2`.
    """
    rows = sorted(rows, key=lambda row: len(row["input_ids"]))  # less padding
    ours = _hidden(model, rows, original)
    theirs = _hidden(original, rows, model)
    off = torch.cat(ours) - torch.cat(theirs)
    wanted = torch.cat(theirs)
    means, expected = (torch.stack([state.mean(0) for state in states]) for states in (ours, theirs))
    return Agreement(
        texts=texts,
        sequences=len(rows),
        tokens=len(wanted),
        distance=float((off.double().square().sum() / wanted.double().square().sum()).sqrt()),
        hidden_max=float(off.abs().max()),
        cosine=float(torch.nn.functional.cosine_similarity(means, expected).mean()),
        order_r2=order_r2(model, original, rows, special),
    )


@torch.no_grad()
def order_r2(model: Any, original: Any, rows: Sequence[Row], special: Container[int]) -> float | None:
    """R^2 between the change that swapping two neighbouring tokens makes in the original's hidden states and in ours.

    R^2 = 1 - sum |d' - d|^2 / sum |d|^2. d (D,) is the change of the original's last hidden states, summed over a
    text's tokens, when two random neighbouring tokens are swapped; d' is the model's. The sums are over texts, so long
    and short ones count equally. 1: the same change. 0: no better than a model that ignores order, whose cosine may
    be near 1.

    Args:
        model, original: in evaluation mode.
        rows: see `tokenize`.
        special: tokens that stay where they are.

    Returns:
        R^2. None: nothing could be swapped, or the original's states don't change.
    """
    draw = random.Random(0)
    pairs = [(row, swap_tokens(row, special, draw, farthest=1)) for row in rows]
    pairs = [(row, swapped) for row, swapped in pairs if row["input_ids"] != swapped["input_ids"]]
    if not pairs:
        return None

    def sums(each: Any, other: Any) -> tuple[Tensor, Tensor]:
        """Of the texts as they are, and swapped: (n, D) both."""
        kinds = zip(*pairs, strict=True)
        before, after = (torch.stack([s.double().sum(0) for s in _hidden(each, some, other)]) for some in kinds)
        return before, after

    before, after = sums(model, original)
    first, second = sums(original, model)
    change, expected = after - before, second - first
    size = expected.square().sum()
    if size <= 1e-10 * first.square().sum():  # less is rounding
        return None
    return float(1 - (change - expected).square().sum() / size)


@torch.no_grad()
def verify(loaded: Loaded, rows: Sequence[Row], texts: str) -> Agreement | None:
    """The largest differences of a converted model from the source in transformers' own class; None without such.

    Theirs reads rows padded on the right; ours reads them padded on either side, and packed into one row.

    Raises:
        UserError: the hidden states are the same, but not what a head makes of them.
    """
    ours, theirs, task = loaded.model, loaded.original, loaded.task
    if theirs is None:
        return None
    has_head = task != "feature-extraction" and not loaded.keys.new
    hidden = logits = largest = 0.0
    for some in _groups(rows, ours, theirs):
        padded, packed = _layouts(some, theirs.config.pad_token_id)  # type: ignore[attr-defined]
        expected = _hidden_and_logits(theirs, padded[0], task, has_head)
        for layout in (*padded, packed):
            per_token = task in ("fill-mask", "token-classification")  # other heads answer a packed row text by text
            got = _hidden_and_logits(ours, layout, task, has_head and (per_token or layout is not packed))
            off = [float((a - b).abs().max()) for a, b in zip(got, expected, strict=False)]
            hidden = max(hidden, off[0])
            logits = max(logits, *off[1:], 0.0)
        largest = max(largest, *(float(answer.abs().max()) for answer in expected[1:]), 0.0)
    if hidden <= TOLERANCE < logits / max(largest, 1.0):
        raise UserError(
            f"{loaded.source.name!r} has a head for {task} that PosEnc's doesn't equal: of the same hidden states its "
            f"logits differ from transformers' own by up to {logits:.2g}, where {EXACT:g} was expected. Convert the "
            f"encoder alone: {spell('head', 'feature-extraction')}."
        )
    tokens = sum(len(row["input_ids"]) for row in rows)
    return Agreement(texts, len(rows), tokens, hidden_max=hidden, logits_max=logits if has_head else None)


def _layouts(rows: list[Row], pad: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Rows padded on the right, and on the left; and all packed into one row, which has no mask."""
    places = [place for row in rows for place in range(len(row["input_ids"]))]
    whole = {name: [token for row in rows for token in row[name]] for name in rows[0]}
    packed = pad_rows([{**whole, "position_ids": places}], pad)
    without_mask = {name: value for name, value in packed.items() if name != "attention_mask"}
    return [pad_rows(rows, pad), pad_rows(rows, pad, "left")], without_mask


def _hidden_and_logits(model: Any, batch: dict[str, Tensor], task: str, has_head: bool) -> list[Tensor]:
    """The last hidden states, and the logits if there is a trained head: at real tokens, text by text, or of each text.

    Args:
        model: ours or transformers'.
        batch: padded on either side, or without a mask, which has no padding.
        task: of the model.
        has_head: whether there are logits.
    """
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    answers = [model.base_model(**batch).last_hidden_state[real]]
    if has_head:
        choices = task == "multiple-choice"
        out = model(**{name: value.unsqueeze(1) for name, value in batch.items()} if choices else batch)
        logits = [out[name] for name in ("logits", "start_logits", "end_logits") if name in out]
        answers += logits if task in POOLED else [part[real] for part in logits]
    return [answer.float() for answer in answers]
