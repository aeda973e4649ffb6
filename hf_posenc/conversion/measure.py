"""Measures the agreement of two models on texts."""

import gzip
import json
import random
from collections.abc import Container, Iterator, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import UserError
from ..quiet import without_warnings
from ..training.masked_lm import mask_once, token_sums, token_weighted_metrics
from .families import FAMILIES, normalise
from .loading import Loaded
from .report import Agreement
from .sources import read_weights

OWN_TEXTS = "blimp_order, which comes along"


def own_texts(count: int = 256) -> list[str]:
    """Sentences of the data set in the package, for a measurement where the user gives no text."""
    path = resources.files("hf_posenc") / "data" / "blimp_order" / "validation.jsonl.gz"
    with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
        found = [json.loads(line)["text"] for line in lines]
    return found[:: max(1, len(found) // count)][:count]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[dict[str, list[int]]]:
    """Texts to token ids, cut to `max_length`."""
    known = {"input_ids", "token_type_ids"} & set(tokenizer.model_input_names)
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length)
    return [dict(zip(known, row, strict=True)) for row in zip(*(encoded[name] for name in known), strict=True)]


def random_rows(vocab_size: int, length: int, count: int = 16, seed: int = 0) -> list[dict[str, list[int]]]:
    """Random token ids, for checkpoints without a tokenizer: rows of many lengths up to `length`."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        size = max(1, length - number * length // count)
        rows.append({"input_ids": torch.randint(min(5, vocab_size - 1), vocab_size, (size,), generator=draw).tolist()})
    return rows


def batches(rows: Sequence[dict[str, list[int]]], pad: int, size: int = 32) -> Iterator[dict[str, Tensor]]:
    """Right-padded batches of rows."""
    for start in range(0, len(rows), size):
        yield pad_rows(rows[start : start + size], pad)


def pad_rows(rows: Sequence[dict[str, list[int]]], pad: int) -> dict[str, Tensor]:
    """One right-padded batch, with its attention mask."""
    length = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad, "labels": -100}
    batch = {
        name: torch.tensor([[*row[name], *[fill.get(name, 0)] * (length - len(row[name]))] for row in rows])
        for name in rows[0]
    }
    batch["attention_mask"] = torch.tensor(
        [[1] * len(row["input_ids"]) + [0] * (length - len(row["input_ids"])) for row in rows]
    )
    return batch


def swap_neighbours(row: dict[str, list[int]], special: Container[int], draw: random.Random) -> dict[str, list[int]]:
    """Swaps two neighbouring tokens of a row, neither of them special; without such a pair the row is unchanged."""
    tokens = row["input_ids"]
    places = [at for at in range(len(tokens) - 1) if tokens[at] not in special and tokens[at + 1] not in special]
    if not places:
        return row
    at = draw.choice(places)
    return {**row, "input_ids": [*tokens[:at], tokens[at + 1], tokens[at], *tokens[at + 2 :]]}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of special tokens and of those that a tokenizer adds to a text, without the unknown token."""
    added = {*tokenizer.all_special_ids, *tokenizer("")["input_ids"]}
    return added - {tokenizer.unk_token_id}


def check_tokens(rows: Sequence[dict[str, list[int]]], vocab_size: int) -> None:
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


def _logits(output: Any, mask: Tensor) -> list[Tensor]:
    found = [getattr(output, name, None) for name in ("logits", "start_logits", "end_logits")]
    real = mask.bool()
    return [t[real] if t.shape[:2] == mask.shape and t.dim() > 1 else t for t in found if t is not None]


@torch.no_grad()
def compare(
    model: PreTrainedModel,
    original: PreTrainedModel,
    rows: Sequence[dict[str, list[int]]],
    texts: str,
    *,
    head: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    choices: bool = False,
    special: Container[int] | None = None,
) -> Agreement:
    """Agreement of a model with the original; both are put into evaluation mode.

    Args:
        rows: see `encode`.
        texts: a description of the texts, for the report.
        head: compare the heads' logits too.
        tokenizer: measure masked-LM perplexity too, with its mask token.
        choices: the head takes (B, C, S).
        special: measure `order_r2` too; tokens that stay where they are.
    """
    check_tokens(rows, min(one.config.vocab_size for one in (model, original)))
    training = model.training, original.training
    model.eval(), original.eval()
    pad = original.config.pad_token_id or 0
    takes_types = bool(getattr(original.config, "type_vocab_size", 0))
    cosines: list[Tensor] = []
    squares, numbers, tokens = 0.0, 0, 0
    worst, worst_logits = 0.0, 0.0
    for batch in batches(rows, pad):
        if not takes_types:
            batch.pop("token_type_ids", None)
        mask = batch["attention_mask"]
        real = mask.bool()
        ours, theirs = (one.base_model(**batch).last_hidden_state.float() for one in (model, original))
        difference = (ours - theirs)[real]
        squares += float(difference.double().square().sum())
        numbers += difference.numel()
        tokens += int(real.sum())
        worst = max(worst, float(difference.abs().max()))
        cosines.append(torch.nn.functional.cosine_similarity(_pooled(ours, mask), _pooled(theirs, mask)))
        if head:
            given = {name: value.unsqueeze(1) for name, value in batch.items()} if choices else batch
            both = [_logits(one(**given), mask) for one in (model, original)]
            for mine, other in zip(*both, strict=True):
                worst_logits = max(worst_logits, float((mine - other).abs().max()))
    cosine = torch.cat(cosines)
    found = Agreement(
        texts=texts,
        sequences=len(rows),
        tokens=tokens,
        cosine=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        hidden_mse=squares / max(numbers, 1),
        hidden_max=worst,
        logits_max=worst_logits if head else None,
    )
    if tokenizer is not None and tokenizer.mask_token_id is not None:
        found.perplexity, found.perplexity_original = (perplexity(one, rows, tokenizer) for one in (model, original))
    if special is not None:
        found.order_r2 = order_r2(model, original, rows, special)
    model.train(training[0]), original.train(training[1])
    return found


def _pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """(B, S, D) and (B, S) -> (B, D): the mean over real tokens."""
    return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


@torch.no_grad()
def order_r2(
    model: PreTrainedModel, original: PreTrainedModel, rows: Sequence[dict[str, list[int]]], special: Container[int]
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
    if not getattr(original.config, "type_vocab_size", 0):
        rows = [{"input_ids": row["input_ids"]} for row in rows]
    pairs = [(row, swap_neighbours(row, special, draw)) for row in rows]
    pairs = [(row, swapped) for row, swapped in pairs if row["input_ids"] != swapped["input_ids"]]
    pad = original.config.pad_token_id or 0
    missed = changed = size = 0.0
    for start in range(0, len(pairs), 32):
        change = []
        both = [pad_rows(list(some), pad) for some in zip(*pairs[start : start + 32], strict=True)]
        for one in (original, model):
            before, after = (
                (one.base_model(**batch).last_hidden_state.double() * batch["attention_mask"].unsqueeze(-1)).sum(1)
                for batch in both
            )
            change.append(after - before)
            if one is original:
                size += float(before.square().sum())
        changed += float(change[0].square().sum())
        missed += float((change[1] - change[0]).square().sum())
    return 1 - missed / changed if changed > 1e-10 * size else None  # less is rounding


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase
) -> float | None:
    """Masked-LM perplexity: 15 % of the tokens, the same ones for every model. None: no token was masked."""
    from datasets import Dataset

    masked = mask_once(Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows]), tokenizer, 0.15)
    sums = []
    for batch in batches(list(masked), model.config.pad_token_id or 0):
        labels = batch.pop("labels")
        sums.append(token_sums(model(**batch).logits, labels))
    total = torch.cat(sums)
    if not total[:, 1].sum():
        return None
    from transformers import EvalPrediction

    return token_weighted_metrics(EvalPrediction(total.numpy(), total.numpy()))["perplexity"]


def verify(loaded: Loaded, rows: Sequence[dict[str, list[int]]], texts: str) -> Agreement | None:
    """Agreement of a converted model with the source in transformers' own class; None where there is no such thing."""
    import transformers

    if loaded.model_type == "posenc" or loaded.model.config.position_embedding_type.startswith("relative_key"):
        return None
    name = FAMILIES[loaded.model_type].class_name(loaded.task)
    pickled = not any(loaded.folder.glob("*.safetensors"))
    with without_warnings("transformers"), torch.random.fork_rng(devices=[]):
        theirs, found = getattr(transformers, name).from_pretrained(
            str(loaded.folder),
            use_safetensors=not pickled,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # of a head for other labels, which isn't compared
            output_loading_info=True,
        )
    family, used = FAMILIES[loaded.model_type], set(loaded.keys.used)
    names = {key: key.removeprefix(family.prefix) for key in theirs.state_dict()}
    if any(names.get(key) in used for key in found["missing_keys"]):
        # transformers doesn't understand all names, such as DataParallel's: we would compare with random weights.
        tensors = read_weights(loaded.folder, str(loaded.folder), allow_pickle=pickled)
        state = {name: tensors[key] for key, name in normalise(list(tensors), family).items()}
        theirs.load_state_dict({key: state[name] for key, name in names.items() if name in used}, strict=False)
    has_head = loaded.task != "feature-extraction" and not loaded.keys.new
    return compare(loaded.model, theirs, rows, texts, head=has_head, choices=loaded.task == "multiple-choice")
