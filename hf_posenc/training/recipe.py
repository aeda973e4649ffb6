"""The recipe: defaults that depend on data and model. How they were chosen: docs/recipe.md."""

import math

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..options import plain_name
from .arguments import RunArguments
from .summary import Summary

MANY = 200
"""Tokens per vocabulary entry from which the data counts as formal language (a small vocabulary)."""
LEAST = {"small vocabulary": (10_000, 6, 100), "natural language": (500, 6, 100), "checkpoint": (500, 4, 20)}
"""Least number of steps, within a least and a greatest number of epochs."""


MOST_EVALUATIONS = 20
"""More epochs than this are evaluated several at a time: an evaluation may take longer than a short epoch."""


def default_learning_rate(is_trained: bool, hidden_size: int, lora: bool = False) -> float:
    """The peak learning rate: higher for narrower encoders, low from a checkpoint."""
    if is_trained:
        rate = 1e-4 if hidden_size <= 512 else 5e-5
        # Low-rank changes take about ten times the rate (Schulman et al. 2025, "LoRA Without Regret").
        return 10 * rate if lora else rate
    return 1e-3 if hidden_size <= 256 else 5e-4 if hidden_size <= 512 else 1e-4


def default_epochs(is_trained: bool, seen: float, examples: int, batch_size: int) -> int:
    """Passes over the data, by `LEAST`.

    Natural language is overfitted after a few epochs. In formal language order is learned after a plateau of thousands
    of steps, and further steps cost little.

    Args:
        is_trained: whether it starts from a checkpoint.
        seen: tokens per vocabulary entry.
        examples: of the training split.
        batch_size: over all devices, with accumulation.
    """
    kind = "checkpoint" if is_trained else "small vocabulary" if seen >= MANY else "natural language"
    steps, fewest, most = LEAST[kind]
    return min(max(math.ceil(steps / math.ceil(examples / batch_size)), fewest), most)


def default_word_factor(is_trained: bool, seen: float) -> float:
    """How many times the learning rate new word embeddings get: 15 / sqrt(seen), from 1 to 4.

    A rare word must leave its random start in a few steps, or it stays noise. In a small
    vocabulary such a rate makes words alike before the model can tell them apart.

    Args:
        is_trained: whether it starts from a checkpoint.
        seen: tokens per vocabulary entry; 0: not known.
    """
    return 1.0 if is_trained or not seen else round(min(max(15 / math.sqrt(seen), 1.0), 4.0), 2)


def fill_in(training: RunArguments, summary: Summary, hidden_size: int, *, is_trained: bool, lora: bool) -> None:
    """Sets the options that weren't given and depend on data and model.

    Args:
        training: the options; changed in place.
        summary: sizes of the data.
        hidden_size: of the model.
        is_trained: whether it starts from a checkpoint.
        lora: whether only low-rank changes of it are trained.
    """
    if training.learning_rate is None:
        training.learning_rate = default_learning_rate(is_trained, hidden_size, lora)
    seen = summary.tokens / summary.vocab_size
    if training.word_learning_rate_factor is None:
        training.word_learning_rate_factor = default_word_factor(is_trained, seen)
    examples, batch = summary.examples.get("train"), training.examples_per_step
    if training.num_train_epochs is None:
        training.num_train_epochs = 3 if examples is None else default_epochs(is_trained, seen, examples, batch)
    apart = math.ceil(training.num_train_epochs / MOST_EVALUATIONS)
    by_epoch = training.chooses_evaluations and plain_name(training.eval_strategy) == "epoch"
    if by_epoch and apart > 1 and examples is not None:
        training.eval_strategy = training.logging_strategy = IntervalStrategy.STEPS
        training.save_strategy = SaveStrategy.STEPS
        training.eval_steps = training.save_steps = training.logging_steps = apart * math.ceil(examples / batch)
