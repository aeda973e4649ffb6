"""The recipe: from the options to transformers' `TrainingArguments`, with defaults that depend on data and model.

Its batches are checked against the memory that is free, by a formula.

How the defaults were chosen: docs/recipe.md.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from accelerate import PartialState
from datasets import Dataset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from ..errors import UserError, one_line, spell, user_errors
from ..machine import step_bytes
from ..options import Options
from .evaluations import RunLength, check_run_length, evaluations_of
from .trainer_fields import trainer_fields

MANY = 200
"""Tokens per vocabulary entry from which the data counts as formal language (a small vocabulary)."""
LEAST = {"small vocabulary": (10_000, 6, 100), "natural language": (500, 6, 100), "checkpoint": (500, 4, 20)}
"""Least number of steps, within a least and a greatest number of epochs."""
FEW = 3_000
"""Up to so many training rows labels are smoothed; it was measured on no more."""
_OF_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")


@dataclass
class Recipe(TrainingArguments):
    """`transformers.TrainingArguments`, and what the Trainer has no field for.

    Attributes:
        word_rate, position_rate: how many times the learning rate the word embeddings and the scheme get; None: the
            scheme's own factors.
        one_cycle: PyTorch's one-cycle schedule.
        patience: evaluations without gain after which training stops. None: it doesn't.
        least_gain: what counts as a gain.
        least_steps: it doesn't stop before.
    """

    word_rate: float = 1.0
    position_rate: float | None = None
    one_cycle: bool = False
    patience: int | None = None
    least_gain: float = 0.0
    least_steps: int = 0


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
    """Values that a new encoder needs that has read so little: a factor for new word embeddings, and label smoothing.

    Word embeddings get 15 / sqrt(seen) times the learning rate, from 1 to 4. A rare word must leave its random start in
    a few steps, or it stays noise. In a small vocabulary such a rate makes words alike before the model can tell them
    apart. The share of a label's probability that is spread over all labels is .1 on few rows of language. It hinders
    what is learned after a plateau.

    Args:
        seen: tokens per vocabulary entry.
        examples: of the training split.
        problem_type: a key of `METRICS`.
    """
    is_few = seen < MANY and examples <= FEW and problem_type == "single_label_classification"
    return round(min(max(15 / math.sqrt(max(seen, 1)), 1.0), 4.0), 2), 0.1 if is_few else 0.0


def make_recipe(
    options: Options,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Mapping[str, Dataset],
    ending: Mapping[str, Any] = {},
) -> Recipe:
    """Decides how a run is trained: the options, what `set` names, and the defaults of what neither says.

    Logged, evaluated and saved is once per epoch, of more than 20 epochs about 20 times; the weights that are kept are
    the best by macro F1 on the validation rows, of numbers and with `patience` by the loss.

    Args:
        options: of the run.
        model, tokenizer: what is trained.
        encoded: the splits.
        ending: `least_gain` and `least_steps`.

    Raises:
        UserError: an option isn't accepted, or not by transformers.
    """
    chosen, problem_type = trainer_fields(options), str(model.config.problem_type)
    hardware = _hardware(options, chosen)
    examples = len(encoded["train"]["input_ids"])
    seen = sum(map(len, encoded["train"]["input_ids"])) / len(tokenizer)
    texts_per_device = options.batch_size or 32
    batch = texts_per_device * devices(hardware["use_cpu"]) * chosen.get("gradient_accumulation_steps", 1)
    length = RunLength(
        epochs=options.epochs or default_epochs(options.pretrained is not None, seen, examples, batch),
        steps_per_epoch=math.ceil(examples / batch),
        max_steps=options.max_steps,
    )
    check_run_length(chosen, length)
    defaults: dict[str, Any] = {
        "output_dir": options.output,
        "per_device_train_batch_size": texts_per_device,
        "per_device_eval_batch_size": 64,
        "num_train_epochs": length.epochs,
        "max_steps": -1 if options.max_steps is None else options.max_steps,
        "lr_scheduler_type": "linear" if options.schedule == "one-cycle" else options.schedule,
        "one_cycle": options.schedule == "one-cycle",
        "seed": options.seed,
        "warmup_steps": 0.1,
        "save_total_limit": 2,
        "restore_callback_states_from_checkpoint": True,  # of its patience
        "eval_accumulation_steps": 64,
        "report_to": "none",
        "patience": options.patience,
        **ending,
        **_rates(options, model, seen, examples),
    }
    evaluations = evaluations_of(options, chosen, length, problem_type, validates="validation" in encoded)
    with user_errors():
        recipe = Recipe(**{**defaults, **hardware, **chosen, **evaluations})
    if chosen.keys() & {"optim", "optim_args", *_OF_ADAM}:
        check_optimizer(recipe, model, chosen)
    return recipe


def check_optimizer(recipe: Recipe, model: PreTrainedModel, chosen: Mapping[str, Any]) -> None:
    """Makes the optimizer once, of a single weight, to see that it can be made and reads what is set for it.

    Raises:
        UserError: it can't be made, as it isn't installed or a value isn't accepted, or a field has no effect on it.
    """

    def arguments(**values: Any) -> tuple[Any, dict[str, Any]]:
        probe = copy.copy(recipe)
        for name, value in values.items():
            setattr(probe, name, value)
        return Trainer.get_optimizer_cls_and_kwargs(probe, model)

    optimizer = spell("set.optim", OptimizerNames(recipe.optim).value)
    try:
        kind, keywords = arguments()
        weights = keywords.pop("params", [torch.nn.Parameter(torch.zeros(1))])
        made = kind(weights, **keywords)
    except (ValueError, TypeError, ImportError, AttributeError, RuntimeError) as error:
        raise UserError(f"{optimizer} can't be made: {one_line(error)}") from error
    if recipe.one_cycle:
        _check_momentum(made, optimizer, chosen)
    others: dict[str, dict[str, Any]] = {}
    for name in filter(chosen.__contains__, _OF_ADAM):
        others[spell(f"set.{name}", chosen[name])] = {name: 0.5 if chosen[name] == 0.25 else 0.25}
    settings = recipe.optim_args.replace(" ", "").split(",") if recipe.optim_args else []
    for setting in settings:
        without = ",".join(other for other in settings if other != setting)
        others[spell("set.optim_args", setting)] = {"optim_args": without}
    for spelt, changed in others.items():
        if repr(arguments(**changed)) == repr(arguments()):
            raise UserError(f"{spelt} has no effect on {optimizer}. Leave it out.")


def _check_momentum(made: torch.optim.Optimizer, optimizer: str, chosen: Mapping[str, Any]) -> None:
    """Refuses with one-cycle an optimizer that has no momentum, and a momentum, which that schedule sets itself."""
    schedule = spell("schedule", "one-cycle")
    if not made.defaults.keys() & {"momentum", "betas"}:
        raise UserError(f"{schedule} changes an optimizer's momentum, and {optimizer} has none. Take another schedule.")
    settings = str(chosen.get("optim_args", "")).replace(" ", "").split(",")
    given = [spell("set.optim_args", setting) for setting in settings if setting.startswith("momentum=")]
    given += [spell(f"set.{name}", value) for name, value in chosen.items() if name == "adam_beta1"]
    if given:
        way_out = "which takes momentum from .95 to .85 and back. Leave it out, or take another schedule."
        raise UserError(f"{given[0]} has no effect on {schedule}, {way_out}")


def _rates(options: Options, model: PreTrainedModel, seen: float, examples: int) -> dict[str, Any]:
    """Learning rates, and label smoothing, as fields."""
    is_trained, problem_type = options.pretrained is not None, str(model.config.problem_type)
    word_rate, smoothing = (1.0, 0.0) if is_trained else defaults_of_language(seen, examples, problem_type)
    rate = default_learning_rate(is_trained, model.config.hidden_size, options.lora)
    return {
        "learning_rate": rate if options.learning_rate is None else options.learning_rate,
        "word_rate": word_rate if options.word_rate is None else options.word_rate,
        "position_rate": options.position_rate,
        "label_smoothing_factor": smoothing,
    }


def devices(on_cpu: bool) -> int:
    """Number of devices that share a step: those of all processes, or all GPUs of one."""
    processes = PartialState(cpu=on_cpu).num_processes
    return processes if on_cpu or processes > 1 else max(torch.cuda.device_count(), 1)


def trains_on_cpu(options: Options) -> bool:
    """True where a run is trained on the processor."""
    return options.device == "cpu" or not torch.accelerator.is_available()


def is_bf16_fast(on_cpu: bool) -> bool:
    """True where the hardware multiplies bfloat16: AVX512-BF16, AMX, or a GPU; emulated it is slower than float32."""
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
        raise UserError(f"can't be trained on. This machine has {there}.", parameter="device", value=options.device)
    for name in ("fp16", "tf32", "dataloader_pin_memory"):
        if chosen.get(name) and on_cpu:
            way_out = f"needs a GPU. Leave it out; {spell('bf16', True)} works on a CPU, too."
            raise UserError(way_out, parameter=f"set.{name}", value=True)
    bf16 = options.bf16
    if bf16 is None:
        bf16 = not chosen.get("fp16") and is_bf16_fast(on_cpu)
    # `use_cpu`: else TrainingArguments refuses bf16, and each of several processes trains alone.
    return {"use_cpu": on_cpu, "bf16": bf16, "dataloader_pin_memory": not on_cpu}


_REFUSED_ABOVE = 1.3


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
    accumulated = spell("set.gradient_accumulation_steps", -(-size // fits))
    way_out = f"{spell('batch_size', fits)} with {accumulated}, or a smaller {spell('max_length')}"
    if weights + texts > _REFUSED_ABOVE * free and not chosen:
        raise UserError(f"{needs}, and {there} Give {way_out}; {spell('batch_size', size)} tries it.")
    return [f"{needs}; {there}", f"That may not fit. Give {way_out}."]
