"""Training a masked language model: from text to a checkpoint, through the stock Trainer."""

import math
import zlib
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
)

from ..errors import UserError

EVALUATION_SEED = 0
"""Every run masks the same validation tokens, so that runs compare."""


class MaskingCollator:
    """Masks training batches anew each time (80 % [MASK], 10 % another token, 10 % kept); pads those that have labels.

    Devlin et al. 2018, arXiv 1810.04805, section 3.1.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mlm_probability: float, seed: int = 0) -> None:
        self.mask = DataCollatorForLanguageModeling(tokenizer, mlm_probability=mlm_probability)
        self.seed = seed
        self.epoch = 0
        self.pad = DataCollatorForTokenClassification(tokenizer)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Examples to a padded batch with `labels`, -100 where there is nothing to predict."""
        if "labels" in features[0]:
            return self.pad(features)
        # The masks depend on seed, epoch and batch alone, so that a resumed run draws the same.
        content = zlib.crc32(
            np.concatenate([np.asarray(row["input_ids"], dtype=np.int64) for row in features]).tobytes()
        )
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed a GPU's generator too.
            torch.default_generator.manual_seed(hash((self.seed, self.epoch, content)) % 2**63)
            return self.mask(features)


class MaskAnew(TrainerCallback):
    """Sets the collator's epoch."""

    def __init__(self, collator: MaskingCollator) -> None:
        self.collator = collator

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called before the first batch of the epoch is made."""
        self.collator.epoch = int(state.epoch or 0)


def join_blocks(dataset: Dataset, length: int) -> Dataset:
    """All texts in a row, cut into blocks of `length` tokens; the last one may be shorter."""

    def blocks(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [item for row in rows for item in row] for name, rows in batch.items()}
        total = len(joined["input_ids"])
        return {name: [row[i : i + length] for i in range(0, total, length)] for name, row in joined.items()}

    return dataset.map(blocks, batched=True, desc=f"Joining into blocks of {length}")


def mask_once(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, mlm_probability: float) -> Dataset:
    """Masks each example once: `input_ids` and `labels`. The same tokens give the same masks in every process."""
    special = set(tokenizer.all_special_ids)
    generator = np.random.default_rng(EVALUATION_SEED)
    ordinary = np.array([number for number in range(len(tokenizer)) if number not in special])
    inputs, labels = [], []
    for ids in dataset["input_ids"]:
        tokens = np.array(ids)
        chosen = (generator.random(len(tokens)) < mlm_probability) & ~np.isin(tokens, list(special))
        how = generator.random(len(tokens))
        other = generator.choice(ordinary, len(tokens))
        labels.append(np.where(chosen, tokens, -100).tolist())
        masked = np.where(chosen & (how < 0.8), tokenizer.mask_token_id, tokens)
        inputs.append(np.where(chosen & (how >= 0.9), other, masked).tolist())
    columns = {name: dataset[name] for name in dataset.column_names if name != "input_ids"}
    return Dataset.from_dict({**columns, "input_ids": inputs, "labels": labels})


@torch.no_grad()
def token_sums(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Reduces logits (B, S, V) to negative log-likelihood, masked tokens and right ones per example, float32 (B, 3)."""
    scores = logits[0] if isinstance(logits, tuple) else logits
    counted = labels != -100
    nll = torch.zeros(labels.shape, device=labels.device)  # float32: Apple's GPUs have no float64
    nll[counted] = torch.nn.functional.cross_entropy(scores[counted].float(), labels[counted], reduction="none")
    right = (scores.argmax(-1) == labels) & counted
    return torch.stack([part.sum(-1, dtype=torch.float32) for part in (nll, counted, right)], -1)


def token_weighted_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Loss (also as `nll`), perplexity and accuracy over all masked tokens, each counting once."""
    nll, count, right = np.asarray(prediction.predictions, dtype=np.float64).reshape(-1, 3).sum(0)
    if count == 0:
        raise UserError("No token of the validation text was masked. Give more text, or a higher --mlm-probability.")
    mean = float(nll / count)
    return {
        "loss": mean,  # the Trainer averages over batches of any size
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "nll": mean,
        "accuracy": float(right / count),
        "masked_tokens": int(count),
    }
