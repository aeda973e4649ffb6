"""The recipe: from the options to transformers' `TrainingArguments`, with defaults that depend on data and model.

Its batches are checked against the memory that is free, by a formula.

How the defaults were chosen: docs/recipe.md.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psutil
import torch
from accelerate import PartialState
from datasets import Dataset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_tf32_available

from ..errors import UserError, dashed, one_line, user_errors
from ..model.position_base import PositionScheme
from ..options import Options
from .metrics import METRICS
from .trainer_fields import strategies, trainer_fields

MANY = 200
"""Tokens per vocabulary entry from which the data counts as formal language (a small vocabulary)."""
LEAST = {"small vocabulary": (10_000, 6, 100), "natural language": (500, 6, 100), "checkpoint": (500, 4, 20)}
"""Least number of steps, within a least and a greatest number of epochs."""
FEW = 3_000
"""Up to so many training rows labels are smoothed; it was measured on no more."""
MOST_EVALUATIONS = 20
"""More epochs than this are evaluated several at a time: an evaluation may take longer than a short epoch."""
_STEPS_APART = 500
"""Transformers' own number of steps, where a strategy is `steps` and no number is given."""
_OF_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
_VALIDATION = "Give --validation or a --validation-share, and no --set eval_strategy=no."


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
    hardware, problem_type = _hardware(options, chosen), str(model.config.problem_type)
    examples = len(encoded["train"]["input_ids"])
    seen = sum(map(len, encoded["train"]["input_ids"])) / len(tokenizer)
    word_rate, smoothing = (1.0, 0.0) if is_trained else defaults_of_language(seen, examples, problem_type)
    rate = default_learning_rate(is_trained, model.config.hidden_size, options.lora)
    texts_per_device = options.batch_size or 32
    batch = texts_per_device * devices(hardware["use_cpu"]) * chosen.get("gradient_accumulation_steps", 1)
    length = RunLength(
        epochs=options.epochs or default_epochs(is_trained, seen, examples, batch),
        steps_per_epoch=math.ceil(examples / batch),
        max_steps=options.max_steps,
    )
    _check_length(chosen, length)
    defaults: dict[str, Any] = {
        "output_dir": options.output,
        "per_device_train_batch_size": texts_per_device,
        "per_device_eval_batch_size": 64,
        "num_train_epochs": length.epochs,
        "max_steps": -1 if options.max_steps is None else options.max_steps,
        "learning_rate": rate if options.learning_rate is None else options.learning_rate,
        "lr_scheduler_type": "linear" if options.schedule == "one-cycle" else options.schedule,
        "seed": options.seed,
        "warmup_steps": 0.1,
        "save_total_limit": 2,
        "eval_accumulation_steps": 64,
        "report_to": "none",
        "restore_callback_states_from_checkpoint": True,
        "one_cycle": options.schedule == "one-cycle",
        "patience": options.patience,
        "position_rate": options.position_rate,
        "word_rate": word_rate if options.word_rate is None else options.word_rate,
        "label_smoothing_factor": smoothing,
    }
    evaluations = evaluations_of(options, chosen, length, problem_type, validates="validation" in encoded)
    with user_errors():
        recipe = Recipe(**{**defaults, **hardware, **chosen, **evaluations})
    if chosen.keys() & {"optim", "optim_args", *_OF_ADAM}:
        check_optimizer(recipe, model, chosen)
    return recipe


@dataclass(frozen=True)
class RunLength:
    """How long a run is: `max_steps`, or else so many epochs."""

    epochs: float
    steps_per_epoch: int
    max_steps: int | None = None

    @property
    def steps(self) -> int:
        """All steps."""
        return self.max_steps or math.ceil(self.epochs * self.steps_per_epoch)


def _check_length(chosen: Mapping[str, Any], length: RunLength) -> None:
    """Refuses a warm-up or a delay that lasts longer than the run."""
    warmup, delay, steps = chosen.get("warmup_steps", 0), chosen.get("eval_delay", 0), length.steps
    if warmup > steps:
        raise UserError(
            f"--set warmup_steps={warmup}: the run has {steps:,} steps, so the learning rate would never reach its "
            "peak. Give fewer, or a share of them: warmup_steps=0.1."
        )
    by_steps = strategies(chosen)["eval_strategy"] == "steps"
    whole, unit = (steps, "steps") if by_steps else (steps / length.steps_per_epoch, "epochs")
    if delay > whole:
        raise UserError(
            f"--set eval_delay={delay}: the run has {whole:g} {unit}, so it would never be evaluated. Give less."
        )


def evaluations_of(
    options: Options, chosen: Mapping[str, Any], length: RunLength, problem_type: str, *, validates: bool
) -> dict[str, Any]:
    """When a run logs, evaluates and saves, and whether it keeps the best weights, as fields.

    Args:
        options: of the run.
        chosen: what `--set` names.
        length: of the run.
        problem_type: the task.
        validates: there are validation rows.

    Raises:
        UserError: what is asked for leaves no choice of the best weights, and it isn't said that there need be none.
    """
    asked, apart = strategies(chosen), math.ceil(length.epochs / MOST_EVALUATIONS)
    usual = "epoch" if apart == 1 else "steps"

    def steps_of(what: str, other: str) -> int:
        given = chosen.get(f"{what}_steps") or chosen.get(f"{other}_steps")
        if given is not None:
            return int(given) if given >= 1 else math.ceil(given * length.steps)
        return _STEPS_APART if asked[f"{what}_strategy"] == "steps" else apart * length.steps_per_epoch

    values = {
        "eval_strategy": (asked["eval_strategy"] or usual) if validates else "no",
        "save_strategy": asked["save_strategy"] or usual,
        "logging_strategy": asked["logging_strategy"] or usual,
        "eval_steps": steps_of("eval", "save"),
        "save_steps": steps_of("save", "eval"),
        "logging_steps": steps_of("logging", "logging"),
    }
    if asked["eval_strategy"] not in (None, "no") and "eval_strategy" in chosen and not validates:
        raise UserError(f"--set eval_strategy={asked['eval_strategy']} needs validation rows. {_VALIDATION}")
    if options.patience is not None and values["eval_strategy"] == "no":
        raise UserError(f"--patience {options.patience} needs evaluations. {_VALIDATION}")
    keeps_best = _keeps_best(chosen, values)
    is_compared = keeps_best or options.patience is not None or values["save_strategy"] == "best"
    metric = _metric_for_best(options, chosen, problem_type, is_compared=is_compared)
    return {**values, "load_best_model_at_end": keeps_best, **metric}


def _keeps_best(chosen: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether the best weights are kept: where they are evaluated and saved at the same steps, or nothing is said.

    Raises:
        UserError: they can't be, and it isn't said that the last ones are kept.
    """
    evaluated, saved = values["eval_strategy"], values["save_strategy"]
    can_choose = "no" not in (evaluated, saved)
    keeps_best: bool = chosen.get("load_best_model_at_end", can_choose)
    if saved == "best" and evaluated == "no":
        raise UserError(f"--set save_strategy=best needs evaluations. {_VALIDATION}")
    if keeps_best and not can_choose:
        raise UserError("--set load_best_model_at_end=true needs evaluations and checkpoints on the way. Leave it out.")
    are_saved = saved == "best" or saved == evaluated != "steps" or values["eval_steps"] == values["save_steps"]
    if keeps_best and not (are_saved and saved in ("best", evaluated)):
        told = {"steps": " every {} steps", "epoch": " each epoch"}
        when = [told[values[f"{what}_strategy"]].format(values[f"{what}_steps"]) for what in ("eval", "save")]
        raise UserError(
            f"Evaluated{when[0]} and saved{when[1]}, the best weights may not be saved. Give both alike, or "
            "--set save_strategy=best; or keep the last ones: --set load_best_model_at_end=false."
        )
    return keeps_best


def _metric_for_best(
    options: Options, chosen: Mapping[str, Any], problem_type: str, *, is_compared: bool
) -> dict[str, Any]:
    """The metric by which weights are best, and in which direction."""
    usual = "loss" if problem_type == "regression" or options.patience is not None else "macro_f1"
    best = chosen.get("metric_for_best_model", usual)
    key, known = best.removeprefix("eval_"), [metric.key for metric in METRICS[problem_type]]
    if key not in ("loss", *known):
        raise UserError(f"--set metric_for_best_model={best} isn't measured here. Choose loss, {', '.join(known)}.")
    if "metric_for_best_model" in chosen and not is_compared:
        raise UserError(f"--set metric_for_best_model={best} has no effect: the last weights are kept. Leave it out.")
    return {"metric_for_best_model": best, "greater_is_better": key not in ("loss", "mse")}


def last_weights_note(recipe: Recipe, options: Options) -> list[str]:
    """A sentence where weights could be chosen by evaluations, and `--set` keeps the last ones."""
    given = {"load_best_model_at_end": False, "eval_strategy": "no", "save_strategy": "no"}
    said = [f"--set {name}={value}".lower() for name, value in given.items() if options.assigned.get(name) == value]
    if recipe.load_best_model_at_end or not said:
        return []
    return [f"The weights of the last step are kept, not the best on validation rows ({said[0]})."]


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

    spelt_optimizer = f"optim={OptimizerNames(recipe.optim).value}"
    try:
        kind, keywords = arguments()
        weights = keywords.pop("params", [torch.nn.Parameter(torch.zeros(1))])
        kind(weights, **keywords)
    except (ValueError, TypeError, ImportError, AttributeError, RuntimeError) as error:
        raise UserError(f"--set {spelt_optimizer} can't be made: {one_line(error)}") from error
    others = {name: {name: chosen[name] / 2 + 0.1} for name in _OF_ADAM if name in chosen}
    settings = recipe.optim_args.replace(" ", "").split(",") if recipe.optim_args else []
    for setting in settings:
        others[f"optim_args={setting}"] = {"optim_args": ",".join(other for other in settings if other != setting)}
    for spelt, changed in others.items():
        if repr(arguments(**changed)) == repr(arguments()):
            raise UserError(f"--set {spelt} has no effect on {spelt_optimizer}. Leave it out.")


def devices(on_cpu: bool) -> int:
    """How many devices share a step: those of all processes, or all GPUs of one."""
    processes = PartialState(cpu=on_cpu).num_processes
    return processes if on_cpu or processes > 1 else max(torch.cuda.device_count(), 1)


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
    for name in ("fp16", "tf32", "dataloader_pin_memory"):
        if chosen.get(name) and on_cpu:
            raise UserError(f"--set {name}=true needs a GPU. Leave it out; --bf16 works on a CPU, too.")
    if chosen.get("tf32") and not is_torch_tf32_available():
        raise UserError("--set tf32=true needs an NVIDIA GPU of the Ampere generation or a later one. Leave it out.")
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
