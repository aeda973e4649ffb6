"""Measures the agreement of two models on texts."""

import functools
import gzip
import json
import math
import random
from collections.abc import Callable, Container, Sequence
from importlib import resources
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import UserError
from ..training.inference import logits_of
from .loading import Loaded
from .report import Agreement

Row = dict[str, list[int]]
"""The token ids of one text, `input_ids`, and its `token_type_ids` where its tokenizer gives them."""

OWN_TEXTS = "blimp_order, which comes along"


def own_texts(count: int = 256) -> list[str]:
    """Sentences of the data set in the package, for a measurement where the user gives no text."""
    path = resources.files("hf_posenc") / "data" / "blimp_order" / "validation.jsonl.gz"
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return texts[:: max(1, len(texts) // count)][:count]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[Row]:
    """Texts to token ids, cut to `max_length`."""
    known = {"input_ids", "token_type_ids"} & set(tokenizer.model_input_names)
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length)
    return [dict(zip(known, row, strict=True)) for row in zip(*(encoded[name] for name in known), strict=True)]


def random_rows(vocab_size: int, length: int, count: int = 16, seed: int = 0) -> list[Row]:
    """Random token ids, for checkpoints without a tokenizer: rows of many lengths up to `length`."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        size = max(1, length - number * length // count)
        rows.append({"input_ids": torch.randint(min(5, vocab_size - 1), vocab_size, (size,), generator=draw).tolist()})
    return rows


def _padder(pad: int | None) -> Any:
    """What `logits_of` reads of a tokenizer: rows are padded on the right, which transformers' models count from."""
    return SimpleNamespace(pad_token_id=pad, padding_side="right")


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
    added = {*tokenizer.all_special_ids, *tokenizer("")["input_ids"]}
    return added - {tokenizer.unk_token_id}


def check_tokens(rows: Sequence[Row], vocab_size: int) -> None:
    """Refuses rows with tokens that a model lacks.

    Raises:
        UserError: a token is `vocab_size` or more.
    """
    largest = max(max(row["input_ids"], default=0) for row in rows)
    if largest >= vocab_size:
        raise UserError(
            f"The tokenizer gives token {largest}, and the model has vocab_size={vocab_size}. They don't belong "
            "together: put the model's own tokenizer into the folder, or none."
        )


class _Meter(torch.nn.Module):
    """Models that read the same texts; its "logits" are numbers about each text, (B, N)."""

    name_or_path = ""

    def __init__(self, numbers: Callable[..., Tensor], *models: PreTrainedModel) -> None:
        super().__init__()
        self.numbers, self.models, self.device = numbers, torch.nn.ModuleList(models), models[0].device

    def forward(self, **batch: Tensor) -> Any:
        return SimpleNamespace(logits=self.numbers(batch, *self.models))

    def read(self, rows: Sequence[Row]) -> np.ndarray:
        """The numbers of every text: (texts, N)."""
        configs = [cast(Any, model).config for model in self.models]
        if not all(getattr(config, "type_vocab_size", 0) for config in configs):
            rows = [{name: ids for name, ids in row.items() if name != "token_type_ids"} for row in rows]
        padder = _padder(configs[-1].pad_token_id)
        return np.stack(list(logits_of(self, padder, rows, 32))).astype(np.float64)


def _differences(batch: dict[str, Tensor], model: Any, original: Any, *, head: bool, choices: bool) -> Tensor:
    """Of each text: squared and largest difference of hidden states, their cosine, the largest of logits; (B, 4)."""
    mask = batch["attention_mask"]
    ours, theirs = (part.base_model(**batch).last_hidden_state.float() for part in (model, original))
    difference = (ours - theirs).double() * mask.unsqueeze(-1)
    cosine = torch.nn.functional.cosine_similarity(_pooled(ours, mask), _pooled(theirs, mask))
    logits = torch.zeros(len(mask))
    if head:
        inputs = {name: value.unsqueeze(1) for name, value in batch.items()} if choices else batch
        outputs = [part(**inputs) for part in (model, original)]
        for name in ("logits", "start_logits", "end_logits"):
            if getattr(outputs[0], name, None) is not None:
                off = (getattr(outputs[0], name) - getattr(outputs[1], name)).abs().float()
                if off.shape[:2] == mask.shape:  # of tokens, and of padding
                    off = off * mask.view(*mask.shape, *[1] * (off.dim() - 2))
                logits = torch.maximum(logits, off.flatten(1).amax(1))
    squared, largest = difference.square().sum((1, 2)), difference.abs().amax((1, 2))
    return torch.stack([part.float() for part in (squared, largest, cosine, logits)], -1)


def compare(
    model: PreTrainedModel,
    original: PreTrainedModel,
    rows: Sequence[Row],
    texts: str,
    *,
    head: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    choices: bool = False,
    special: Container[int] | None = None,
) -> Agreement:
    """Agreement of a model with the original; afterwards both are in the mode that they were in.

    Args:
        rows: see `encode`.
        texts: a description of the texts, for the report.
        head: compare the heads' logits too.
        tokenizer: measure masked-LM perplexity too, with its mask token.
        choices: the head takes (B, C, S).
        special: measure `order_r2` too; tokens that stay where they are.
    """
    check_tokens(rows, min(model.config.vocab_size, original.config.vocab_size))
    training = model.training, original.training
    meter = _Meter(functools.partial(_differences, head=head, choices=choices), model, original)
    squared, largest, cosine, logits = meter.read(rows).T
    tokens = sum(len(row["input_ids"]) for row in rows)
    agreement = Agreement(
        texts=texts,
        sequences=len(rows),
        tokens=tokens,
        cosine=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        hidden_mse=float(squared.sum()) / (tokens * original.config.hidden_size),
        hidden_max=float(largest.max()),
        logits_max=float(logits.max()) if head else None,
    )
    if tokenizer is not None and tokenizer.mask_token_id is not None:
        agreement.perplexity = perplexity(model, rows, tokenizer)
        agreement.perplexity_original = perplexity(original, rows, tokenizer)
    if special is not None:
        agreement.order_r2 = order_r2(model, original, rows, special)
    model.train(training[0]), original.train(training[1])
    return agreement


def _pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """(B, S, D) and (B, S) -> (B, D): the mean over real tokens."""
    return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


def _summed(batch: dict[str, Tensor], *models: Any) -> Tensor:
    """The hidden states of each model, summed over a text's tokens: (B, models, D)."""
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.cat([(model.base_model(**batch).last_hidden_state.double() * mask).sum(1) for model in models], -1)


def order_r2(
    model: PreTrainedModel, original: PreTrainedModel, rows: Sequence[Row], special: Container[int]
) -> float | None:
    """R^2 between the change that swapping two neighbouring tokens makes in the original's hidden states and in ours.

    R^2 = 1 - sum |d' - d|^2 / sum |d|^2. d (D,) is the change of the original's last hidden states, summed over a
    text's tokens, when two random neighbouring tokens are swapped; d' is the model's. The sums are over texts, so long
    and short ones count equally. 1: the same change. 0: no better than a model that ignores order, whose cosine may
    be near 1.

    Args:
        model, original: in evaluation mode.
        rows: see `encode`.
        special: tokens that stay where they are.

    Returns:
        R^2. None: nothing could be swapped, or the original's states don't change.
    """
    draw = random.Random(0)
    pairs = [(row, swap_tokens(row, special, draw, farthest=1)) for row in rows]
    pairs = [(row, swapped) for row, swapped in pairs if row["input_ids"] != swapped["input_ids"]]
    if not pairs:
        return None
    meter = _Meter(_summed, model, original)
    before, after = (np.split(meter.read(some), 2, axis=-1) for some in zip(*pairs, strict=True))
    change, expected = after[0] - before[0], after[1] - before[1]
    size = np.square(expected).sum()
    if size <= 1e-10 * np.square(before[1]).sum():  # less is rounding
        return None
    return float(1 - np.square(change - expected).sum() / size)


def mask_once(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Masks 15 % of the tokens: `input_ids` and `labels`. The same tokens give the same masks, for every model.

    Of these 80 % become [MASK], 10 % another token, 10 % stay (Devlin et al. 2018, arXiv 1810.04805, section 3.1).
    """
    special = set(tokenizer.all_special_ids)
    generator = np.random.default_rng(0)
    ordinary = np.array([number for number in range(len(tokenizer)) if number not in special])
    masked = []
    for row in rows:
        tokens = np.array(row["input_ids"])
        chosen = (generator.random(len(tokens)) < 0.15) & ~np.isin(tokens, list(special))
        share = generator.random(len(tokens))
        other = generator.choice(ordinary, len(tokens))
        inputs = np.where(chosen & (share < 0.8), tokenizer.mask_token_id, tokens)
        inputs = np.where(chosen & (share >= 0.9), other, inputs)
        masked.append({"input_ids": inputs.tolist(), "labels": np.where(chosen, tokens, -100).tolist()})
    return masked


def _token_sums(batch: dict[str, Tensor], model: Any) -> Tensor:
    """Negative log-likelihood and number of the masked tokens of each text: float32 (B, 2)."""
    labels = batch.pop("labels")
    counted, scores = labels != -100, model(**batch).logits
    nll = torch.zeros(labels.shape, device=labels.device)  # float32: Apple's GPUs have no float64
    nll[counted] = torch.nn.functional.cross_entropy(scores[counted].float(), labels[counted], reduction="none")
    return torch.stack([part.sum(-1, dtype=torch.float32) for part in (nll, counted)], -1)


def perplexity(model: PreTrainedModel, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Masked-LM perplexity: exp of the mean negative log-likelihood of the masked tokens, each counting once.

    None: no token was masked.
    """
    nll, count = _Meter(_token_sums, model).read(mask_once(rows, tokenizer)).sum(0)
    if not count:
        return None
    return math.exp(nll / count) if nll / count < 700 else math.inf


def verify(loaded: Loaded, rows: Sequence[Row], texts: str) -> Agreement | None:
    """Agreement of a converted model with the source in transformers' own class; None where there is no such thing."""
    if loaded.original is None:
        return None
    has_head = loaded.task != "feature-extraction" and not loaded.keys.new
    return compare(loaded.model, loaded.original, rows, texts, head=has_head, choices=loaded.task == "multiple-choice")
