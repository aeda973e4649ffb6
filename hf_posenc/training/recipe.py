"""The recipe: from the options to transformers' `TrainingArguments`, with defaults that depend on data and model.

Its batches are checked against the memory that is free, by a formula.

How the defaults were chosen: docs/recipe.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import psutil
import torch
from datasets import Dataset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..errors import UserError, dashed, user_errors
from ..model.position_base import PositionScheme
from ..options import BOOLEAN, COUNT, POSITIVE, SEED, SHARE, Options, Range, check_range, whole_number
from .metrics import METRICS

MANY = 200
"""Tokens per vocabulary entry from which the data counts as formal language (a small vocabulary)."""
LEAST = {"small vocabulary": (10_000, 6, 100), "natural language": (500, 6, 100), "checkpoint": (500, 4, 20)}
"""Least number of steps, within a least and a greatest number of epochs."""
FEW = 3_000
"""Up to so many training rows labels are smoothed; it was measured on no more."""
MOST_EVALUATIONS = 20
"""More epochs than this are evaluated several at a time: an evaluation may take longer than a short epoch."""
_OWN = {
    *("output_dir", "resume_from_checkpoint", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type"),
    *("per_device_train_batch_size", "seed", "bf16", "use_cpu", "push_to_hub", "label_names"),
    *("do_train", "do_eval", "do_predict", "position_embedding_type", "position_embedding_kwargs"),
    *("bf16_full_eval", "fp16_full_eval"),  # they would round the weights that are saved
    "save_only_model",  # from which a run wouldn't go on as it began
    *("prediction_loss_only", "batch_eval_metrics", "eval_do_concat_batches"),  # no metrics could be computed
}
"""Fields that `--set` can't name: they have options of their own, or follow from them."""
_NOT_NEGATIVE = Range("a number from 0", lambda value: 0 <= value < math.inf)
_RANGES = {
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), SHARE),
    **dict.fromkeys(("adam_epsilon", "max_grad_norm", "warmup_steps", "weight_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("eval_steps", "logging_steps", "save_steps"), POSITIVE),
    **dict.fromkeys(("gradient_accumulation_steps", "per_device_eval_batch_size", "save_total_limit"), COUNT),
    **{item.name: BOOLEAN for item in fields(TrainingArguments) if item.type in (bool, bool | None)},
    "data_seed": SEED,
    "do_lower_case": BOOLEAN,
    "dataloader_num_workers": whole_number(0),
    "vocab_size": COUNT,
}
"""What `--set` takes where transformers would fail late, or not at all."""


@dataclass
class Recipe(TrainingArguments):
    """`transformers.TrainingArguments`, and what the Trainer has no field for.

    Attributes:
        word_rate, position_rate: how many times the learning rate the word embeddings and the scheme get; None: the
            scheme's own factors.
        one_cycle: PyTorch's one-cycle schedule.
        patience: evaluations without gain after which training stops. None: it doesn't.
    """

    word_rate: float = 1.0
    position_rate: float | None = None
    one_cycle: bool = False
    patience: int | None = None


FIELDS = frozenset(item.name for item in fields(TrainingArguments))
"""What `--set` may name, besides the fields of the configuration."""


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


def defaults_of_language(seen: float, examples: int, problem_type: str) -> tuple[float, float]:
    """What a new encoder needs that has read so little: a factor for new word embeddings, and label smoothing.

    Word embeddings get 15 / sqrt(seen) times the learning rate, from 1 to 4. A rare word must leave its random start in
    a few steps, or it stays noise. In a small vocabulary such a rate makes words alike before the model can tell them
    apart. The share of a label's probability that is spread over all labels is .1 on few rows of language. It hinders
    what is learned after a plateau.

    Args:
        seen: tokens per vocabulary entry.
        examples: of the training split.
        problem_type: the task.
    """
    is_few = seen < MANY and examples <= FEW and problem_type == "single_label_classification"
    return round(min(max(15 / math.sqrt(max(seen, 1)), 1.0), 4.0), 2), 0.1 if is_few else 0.0


def make_recipe(
    options: Options, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: Mapping[str, Dataset]
) -> Recipe:
    """How a run is trained: the options, what `--set` names, and the defaults of what neither says.

    Logged, evaluated and saved is once per epoch, of more than 20 epochs about 20 times; the weights that are kept are
    the best by macro F1 on the validation rows, of numbers and with `--patience` by the loss.

    Args:
        options: of the run.
        model, tokenizer: what is trained.
        encoded: the splits.

    Raises:
        UserError: an option isn't accepted, or not by transformers.
    """
    is_trained, chosen = options.pretrained is not None, trainer_fields(options)
    validates, problem_type = "validation" in encoded, str(model.config.problem_type)
    examples = len(encoded["train"]["input_ids"])
    seen = sum(map(len, encoded["train"]["input_ids"])) / len(tokenizer)
    word_rate, smoothing = (1.0, 0.0) if is_trained else defaults_of_language(seen, examples, problem_type)
    rate = default_learning_rate(is_trained, model.config.hidden_size, options.lora)
    values: dict[str, Any] = {
        "output_dir": options.output,
        "per_device_train_batch_size": options.batch_size or 32,
        "per_device_eval_batch_size": 64,
        "learning_rate": rate if options.learning_rate is None else options.learning_rate,
        "lr_scheduler_type": "linear" if options.schedule == "one-cycle" else options.schedule,
        "max_steps": -1 if options.max_steps is None else options.max_steps,
        "seed": options.seed,
        "warmup_steps": 0.1,
        "save_total_limit": 2,
        "restore_callback_states_from_checkpoint": True,  # of --patience
        "eval_accumulation_steps": 64,
        "report_to": "none",
        "logging_strategy": "epoch",
        "save_strategy": "epoch",
        "eval_strategy": "epoch" if validates else "no",
        "one_cycle": options.schedule == "one-cycle",
        "patience": options.patience,
        "position_rate": options.position_rate,
        "word_rate": word_rate if options.word_rate is None else options.word_rate,
        "label_smoothing_factor": smoothing,
        **_hardware(options, chosen),
    }
    if options.patience is not None and not validates:
        raise UserError(f"--patience {options.patience} needs evaluations. Give --validation, or a --validation-share.")
    asked = chosen.get("eval_strategy", "epoch")
    if asked == "steps" and "save_strategy" not in chosen:
        values |= {"save_strategy": "steps", "save_steps": chosen.get("eval_steps", 500)}
    values["load_best_model_at_end"] = validates and asked != "no" and "save_strategy" not in chosen
    usual = "loss" if problem_type == "regression" or options.patience is not None else "macro_f1"
    best, known = str(chosen.get("metric_for_best_model", usual)), [metric.key for metric in METRICS[problem_type]]
    if best.removeprefix("eval_") not in ("loss", *known):
        raise UserError(f"--set metric_for_best_model={best} isn't measured here. Choose loss, {', '.join(known)}.")
    values |= {"metric_for_best_model": best, "greater_is_better": best.removeprefix("eval_") not in ("loss", "mse")}
    with user_errors():
        recipe = Recipe(**{**values, **chosen})
    batch = recipe.train_batch_size * recipe.world_size * recipe.gradient_accumulation_steps
    recipe.num_train_epochs = options.epochs or default_epochs(is_trained, seen, examples, batch)
    apart = math.ceil(recipe.num_train_epochs / MOST_EVALUATIONS)
    if apart > 1 and not chosen.keys() & {"eval_strategy", "save_strategy", "logging_strategy"}:
        recipe.logging_strategy, recipe.save_strategy = IntervalStrategy.STEPS, SaveStrategy.STEPS
        recipe.eval_strategy = IntervalStrategy.STEPS if validates else IntervalStrategy.NO
        recipe.eval_steps = recipe.save_steps = recipe.logging_steps = apart * math.ceil(examples / batch)
    return recipe


def trainer_fields(options: Options) -> dict[str, Any]:
    """What `--set` names of transformers' `TrainingArguments`.

    Raises:
        UserError: an option of ours sets it, or its value is out of range.
    """
    if taken := next((name for name in options.assigned if name in _OWN or name.startswith("hub_")), None):
        raise UserError(f"--set {taken} can't be set: see the options that `hf-posenc train --help` lists.")
    for name in options.assigned.keys() & _RANGES:
        check_range(f"--set {name}={options.assigned[name]}", options.assigned[name], _RANGES[name])
    return {name: value for name, value in options.assigned.items() if name in FIELDS}


def trains_on_cpu(options: Options) -> bool:
    """Whether a run is trained on the processor."""
    return options.device == "cpu" or not torch.accelerator.is_available()


def is_bf16_fast(on_cpu: bool) -> bool:
    """Whether the hardware multiplies bfloat16: AVX512-BF16, AMX, or a GPU; emulated it is slower than float32."""
    if on_cpu:
        asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, bool)() for name in asked)
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def _hardware(options: Options, chosen: dict[str, Any]) -> dict[str, Any]:
    """Device and precision."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    on_cpu = trains_on_cpu(options)
    if options.device not in (None, "cpu") and (accelerator is None or options.device != accelerator.type):
        there = "cpu" + (f" and {accelerator.type}" if accelerator is not None else " alone")
        raise UserError(f"{dashed('device')} {options.device!r} can't be trained on. This machine has {there}.")
    if chosen.get("fp16") and on_cpu:
        raise UserError("--set fp16=true needs a GPU. Use --bf16, which works on a CPU too.")
    bf16 = options.bf16
    if bf16 is None:
        bf16 = not chosen.get("fp16") and is_bf16_fast(on_cpu)
    # `use_cpu`: else TrainingArguments refuses bf16, and each of several processes trains alone.
    return {"use_cpu": on_cpu, "bf16": bf16, "dataloader_pin_memory": not on_cpu}


_OF_A_WEIGHT = 16
"""Bytes: a trained weight, its gradient and AdamW's two averages, in float32."""
_OF_A_TOKEN = (83, 8)
"""Bytes that a layer keeps of a token for the way back, for each of `hidden_size` and of `intermediate_size`."""
_OF_A_PAIR = 14
"""Bytes of a pair of tokens and head in a layer, where no fused kernel can be taken."""
_REFUSED_ABOVE = 1.3


def step_bytes(model: PreTrainedModel, lengths: Sequence[int]) -> tuple[int, int]:
    """The memory of a step in float32, in bytes: of the weights, and of the tokens of its texts.

    A layer keeps 83 D + 8 I bytes of a token (D `hidden_size`, I `intermediate_size`), and 14 H L of one in a text of L
    tokens (H heads) where attention has dropout or logits of its own by layer: then no fused kernel trains. A bias for
    all layers takes as much once, of the longest text. Measured within 15 % on a CPU at 128, 512 and 1,500 tokens, 384
    and 768 wide, with `rope`; within 30 % with a bias of distance; mixed precision takes less.

    Args:
        model: what is trained.
        lengths: the tokens of each text of the step.
    """
    config, scheme = model.config, cast(PositionScheme, model.base_model.position)
    tokens, pairs, of_a_pair = sum(lengths), sum(n * n for n in lengths), config.num_attention_heads * _OF_A_PAIR
    of_a_layer = tokens * (_OF_A_TOKEN[0] * config.hidden_size + _OF_A_TOKEN[1] * config.intermediate_size)
    if config.attention_probs_dropout_prob or scheme.uses("layer_bias"):
        of_a_layer += pairs * of_a_pair
    once = max(lengths) ** 2 * of_a_pair if scheme.uses("bias") else 0
    trained = model.num_parameters(only_trainable=True)
    weights = _OF_A_WEIGHT * trained + 4 * (model.num_parameters() - trained)
    return weights, of_a_layer * config.num_hidden_layers + once


def check_memory(model: PreTrainedModel, lengths: Sequence[int], recipe: Recipe, *, chosen: bool) -> list[str]:
    """Says how much memory the largest step takes; warns where it isn't free.

    Args:
        model: what is trained.
        lengths: the tokens of each training text.
        recipe: has the batch size.
        chosen: whether the batch size was given.

    Returns:
        A sentence, and a warning where it has to be.

    Raises:
        UserError: it takes more than 1.3 times what is free, and the batch size wasn't given.
    """
    size = recipe.train_batch_size
    largest = sorted(lengths)[-size:]
    weights, texts = step_bytes(model, largest)
    is_cuda = recipe.device.type == "cuda"
    free = torch.cuda.mem_get_info(recipe.device)[0] if is_cuda else psutil.virtual_memory().available
    needs = f"A step has up to {sum(largest):,} tokens, which take about {tqdm.format_sizeof(weights + texts, 'B')}"
    there = f"{tqdm.format_sizeof(free, 'B')} are free."
    if weights + texts <= free:
        return [f"{needs}; {there}"]
    fits = max(1, int(size * (free - weights) / texts)) if free > weights else 1
    way_out = f"--batch-size {fits} --set gradient_accumulation_steps={-(-size // fits)}, or a smaller --max-length"
    if weights + texts > _REFUSED_ABOVE * free and not chosen:
        raise UserError(f"{needs}, and {there} Give {way_out}; --batch-size {size} tries it.")
    return [f"{needs}; {there}", f"That may not fit. Give {way_out}."]
