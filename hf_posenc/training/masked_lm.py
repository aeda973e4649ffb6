"""Training a masked language model: from text to a checkpoint, through the stock Trainer."""

import math
import time
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
)

from ..errors import UserError
from .arguments import DataArguments, MaskedLMTrainingArguments, ModelArguments
from .data.columns import find_columns, remember_columns, remembered_columns
from .data.in_memory import InMemory
from .data.splits import load_splits
from .progress import without_bars, working
from .recipe import default_learning_rate
from .report import Summary
from .run import Run, TrainingResult, check_best_metric, introduce, make_model_and_encode, make_tokenizer, prepare_start
from .trainer import RunTrainer, add_callbacks_and_schedule, carry_out

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


@without_bars()
def train_masked_lm(
    data: DataArguments,
    model: ModelArguments,
    training: MaskedLMTrainingArguments,
    *,
    console: Console | None = None,
) -> TrainingResult:
    """Trains and evaluates a masked language model, as `training.do_train` and `do_eval` say, with the stock Trainer.

    Perplexity is exp of the mean negative log-likelihood over all masked tokens of the validation text, each token
    counting once; the tokens that are masked there are the same in every run on the same tokens: schemes compare.

    Args:
        data: which text; label options have no effect.
        model: which model: a new PosEnc encoder, or a checkpoint (a classifier's encoder gets a new head).
        training: transformers' TrainingArguments and a few more.
        console: where the summary is printed. None: standard output.

    Raises:
        UserError: something in the options or the data is wrong, or the disk is full.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    started = time.time()
    console = console or Console()
    _check_options(data, training)
    with working("Preparing: data, tokenizer, model", console):
        run, encoded = _set_up(data, model, training)
    introduce(run, console)
    collator = MaskingCollator(run.tokenizer, training.mlm_probability, training.seed)
    trainer = RunTrainer(
        run,
        encoded,
        console,
        data_collator=collator,
        compute_metrics=token_weighted_metrics,
        preprocess_logits_for_metrics=token_sums,
    )
    trainer.add_callback(MaskAnew(collator))
    add_callbacks_and_schedule(trainer)

    def score(metrics: dict[str, float]) -> None:
        if training.do_eval:
            metrics |= trainer.evaluate()

    return carry_out(trainer, score, started, console)


def _check_options(data: DataArguments, training: MaskedLMTrainingArguments) -> None:
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do_train, --do_eval.")
    if training.do_predict:
        raise UserError("--do_predict: a masked language model has no labels to predict. Use --do_eval.")
    if data.streaming:
        raise UserError("--streaming is for text classification; masked language models read their text whole.")
    if not 0 < training.mlm_probability < 1:
        raise UserError(f"--mlm_probability {training.mlm_probability} is out of range. Give a share between 0 and 1.")
    check_best_metric(training, ("perplexity", "nll", "accuracy"))


def _set_up(
    data: DataArguments, model: ModelArguments, training: MaskedLMTrainingArguments
) -> tuple[Run, Mapping[str, Any]]:
    resume_from, config = prepare_start(model, training, "ForMaskedLM")
    with training.main_process_first(desc="reading the data"):
        known = None if training.do_train else remembered_columns(config)
        found = load_splits(data, model.token, model.cache_dir)
        source = MaskedText(found, data, training, partial(find_columns, known=known))
        source.choose_rows()
        tokenizer = make_tokenizer(model, data, source.texts(), resume_from)
    if tokenizer.mask_token_id is None:
        raise UserError("The tokenizer has no mask token, which a masked language model needs. Name another one.")
    run, encoded = make_model_and_encode(source, model, config, tokenizer, resume_from, _fill_in)
    if training.do_train:
        remember_columns(run.model.config, source.columns)
    return run, encoded


def _fill_in(
    training: MaskedLMTrainingArguments, arguments: ModelArguments, summary: Summary, hidden_size: int
) -> None:
    """Sets the learning rate and the epochs, where they aren't given."""
    if training.learning_rate is None:
        training.learning_rate = default_learning_rate(arguments.model_name_or_path is not None, hidden_size)
    if training.num_train_epochs is None:
        training.num_train_epochs = 3


class MaskedText(InMemory):
    """Text in memory; validation rows are masked once."""

    training: MaskedLMTrainingArguments

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, Dataset]:
        """All splits: texts, or blocks of `max_length` tokens."""
        by_line = self.training.line_by_line
        encoded = super().encode(tokenizer, max_length if by_line else 2**31 - 1)
        if not by_line:
            encoded = {split: join_blocks(tokens, max_length) for split, tokens in encoded.items()}
        if "validation" in encoded:
            encoded["validation"] = mask_once(encoded["validation"], tokenizer, self.training.mlm_probability)
        return encoded


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
    """Reduces logits (B, S, V) to negative log-likelihood, masked tokens and right ones per example, (B, 3)."""
    scores = logits[0] if isinstance(logits, tuple) else logits
    counted = labels != -100
    nll = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    nll[counted] = torch.nn.functional.cross_entropy(
        scores[counted].float(), labels[counted], reduction="none"
    ).double()
    right = (scores.argmax(-1) == labels) & counted
    return torch.stack((nll.sum(-1), counted.sum(-1).double(), right.sum(-1).double()), -1)


def token_weighted_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Loss (also as `nll`), perplexity and accuracy over all masked tokens, each counting once."""
    nll, count, right = np.asarray(prediction.predictions).reshape(-1, 3).sum(0)
    if count == 0:
        raise UserError("No token of the validation text was masked. Give more text, or a higher --mlm_probability.")
    mean = float(nll / count)
    return {
        "loss": mean,  # the Trainer averages over batches of any size
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "nll": mean,
        "accuracy": float(right / count),
        "masked_tokens": int(count),
    }
