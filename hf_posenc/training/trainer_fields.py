"""The fields of transformers' `TrainingArguments`, one table: what `set` may name, and what becomes of it.

docs/reference/trainer-fields.md shows the table. A field that it lacks is refused, so that a new version of
transformers can't change silently what is trained, scored or kept.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple

from transformers import TrainingArguments
from transformers import __version__ as transformers_version
from transformers.integrations import get_available_reporting_integrations
from transformers.training_args import OptimizerNames

from ..errors import NO_VALUE, UserError, spell
from ..options import BOOLEAN, COUNT, SEED, SHARE, Options, Range, whole_number

INSTALLED: dict[str, Field[Any]] = {item.name: item for item in fields(TrainingArguments)}
"""The fields that the installed transformers has."""


class TrainerField(NamedTuple):
    """Treatment of a field.

    Attributes:
        treatment: `taken`, it goes to the Trainer as it is; `said`, a line says what it changes, too; or `refused`.
        text: what the line says, or why the field is refused.
        accepts: the values that are taken.
        needs: another field, without which this one would do nothing.
    """

    treatment: str
    text: str = ""
    accepts: Range | None = None
    needs: str | None = None


def _taken(accepts: Range, *, needs: str | None = None, text: str = "") -> TrainerField:
    return TrainerField("taken", text, accepts, needs)


def _said(accepts: Range, text: str) -> TrainerField:
    return TrainerField("said", text, accepts)


def _refused(reason: str, *names: str) -> dict[str, TrainerField]:
    return dict.fromkeys(names, TrainerField("refused", reason))


def _one_of(*choices: str) -> Range:
    return Range(f"one of {', '.join(choices)}", lambda value: value in choices)


def _is_steps(value: Any) -> bool:
    return 0 < value < 1 or (value >= 1 and float(value).is_integer())


def _is_reentrant(value: Any) -> bool:
    return isinstance(value, dict) and [*value] == ["use_reentrant"] and isinstance(value["use_reentrant"], bool)


def _is_cycles(value: Any) -> bool:
    return isinstance(value, dict) and [*value] == ["num_cycles"] and 0 < value["num_cycles"] < math.inf


def _are_settings(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w+=[^,=]+(, ?\w+=[^,=]+)*", value) is not None


def _are_installed(value: Any) -> bool:
    named = [value] if isinstance(value, str) else [*value]
    return named == ["none"] or set(named) <= {"all", *get_available_reporting_integrations()}


_NOT_NEGATIVE = Range("a number from 0", lambda value: 0 <= value < math.inf)
_STEPS = Range("a whole number from 1, or a share of all steps below 1", _is_steps)
_WARMUP = Range("a whole number, or a share of all steps below 1", lambda value: value == 0 or _is_steps(value))
_TEXT = Range("a text", lambda value: isinstance(value, str))
_SETTINGS = Range("settings such as momentum=0.9,nesterov=true", _are_settings)
_MODULES = Range("all-linear, or names of modules", lambda value: isinstance(value, str | list))
_CYCLES = Range('an object {"num_cycles": 1.5}', _is_cycles)
_REENTRANT = Range('an object {"use_reentrant": false}', _is_reentrant)
_LOSSES = Range("loss, or a metric of the problem type", lambda value: isinstance(value, str))
_APART = ("lomo", "adalomo", *(name.value for name in OptimizerNames if name.value.endswith("_layerwise")))
"""Optimizers that update each weight by itself, so that no group could have a learning rate of its own."""
_OPTIMIZERS = Range(
    "an installed one of transformers' such as adamw_torch, adafactor, adagrad, sgd",
    lambda value: value in [name.value for name in OptimizerNames],
)

_BACKENDS = _one_of("eager", "aot_eager", "inductor", "cudagraphs")
_INTEGRATIONS = Range("none, all, or installed ones such as tensorboard", _are_installed)

FIELDS: dict[str, TrainerField] = {
    # Optimizer and schedule
    "optim": _taken(_OPTIMIZERS),
    "optim_args": _taken(_SETTINGS),
    "optim_target_modules": _taken(_MODULES),
    "weight_decay": _taken(_NOT_NEGATIVE),
    "adam_beta1": _taken(SHARE),
    "adam_beta2": _taken(SHARE),
    "adam_epsilon": _taken(_NOT_NEGATIVE),
    "max_grad_norm": _taken(_NOT_NEGATIVE, text="0: gradients aren't clipped"),
    "warmup_steps": _taken(_WARMUP, text="at most all steps"),
    "lr_scheduler_kwargs": _taken(_CYCLES, text="with the schedule cosine"),
    # Batches and loss
    "gradient_accumulation_steps": _taken(COUNT),
    "auto_find_batch_size": _said(BOOLEAN, "how large batches became; it begins anew from the weights as they are"),
    "label_smoothing_factor": _taken(SHARE, text="with one label per text"),
    "neftune_noise_alpha": _taken(_NOT_NEGATIVE),
    "average_tokens_across_devices": _taken(BOOLEAN, text="with several processes"),
    # Evaluating, saving, and which weights are kept
    "eval_strategy": _said(_one_of("no", "steps", "epoch"), "that `no` keeps the last weights"),
    "save_strategy": _said(_one_of("no", "steps", "epoch", "best"), "that `no` keeps the last weights"),
    "load_best_model_at_end": _said(BOOLEAN, "that `false` keeps the last weights"),
    "metric_for_best_model": _taken(_LOSSES),
    "eval_steps": _taken(_STEPS, needs="eval_strategy=steps"),
    "save_steps": _taken(_STEPS, needs="save_strategy=steps"),
    "eval_delay": _taken(_NOT_NEGATIVE, text="epochs or steps, as eval_strategy says; below the length of the run"),
    "eval_on_start": _taken(BOOLEAN, text="without `patience`"),
    "save_total_limit": _taken(COUNT),
    "per_device_eval_batch_size": _taken(COUNT),
    "eval_accumulation_steps": _taken(COUNT),
    # Logging
    "logging_strategy": _taken(_one_of("no", "steps", "epoch")),
    "logging_steps": _taken(_STEPS, needs="logging_strategy=steps"),
    "logging_first_step": _taken(BOOLEAN),
    "logging_nan_inf_filter": _taken(BOOLEAN),
    "include_num_input_tokens_seen": _taken(_one_of("no", "all", "non_padding")),
    "disable_tqdm": _taken(BOOLEAN),
    "report_to": _taken(_INTEGRATIONS),
    "run_name": _taken(_TEXT, needs="report_to", text="for loggers that show it"),
    # Order of the rows and reading
    "train_sampling_strategy": _taken(_one_of("random", "sequential", "group_by_length", "batch_rebalance")),
    "data_seed": _taken(SEED),
    "full_determinism": _taken(BOOLEAN),
    "dataloader_num_workers": _taken(whole_number(0)),
    "dataloader_prefetch_factor": _taken(COUNT, needs="dataloader_num_workers"),
    "dataloader_persistent_workers": _taken(BOOLEAN, needs="dataloader_num_workers"),
    "dataloader_multiprocessing_context": _taken(
        _one_of("fork", "forkserver", "spawn"), needs="dataloader_num_workers"
    ),
    "dataloader_pin_memory": _taken(BOOLEAN, text="on a GPU"),
    # Memory and speed
    "fp16": _taken(BOOLEAN, text="on a GPU"),
    "tf32": _taken(BOOLEAN, text="on a GPU that has it"),
    "activation_checkpointing": _taken(BOOLEAN),
    "activation_checkpointing_kwargs": _taken(_REENTRANT, needs="activation_checkpointing"),
    "gradient_checkpointing": _taken(BOOLEAN, text="the older name of activation_checkpointing"),
    "gradient_checkpointing_kwargs": _taken(_REENTRANT, needs="gradient_checkpointing"),
    "torch_compile": _taken(BOOLEAN, text="each layer by itself, for any number of tokens"),
    "torch_compile_backend": _taken(_BACKENDS, text="sets torch_compile"),
    "torch_compile_mode": _taken(
        _one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"), text="sets torch_compile"
    ),
    "torch_empty_cache_steps": _taken(COUNT),
    # Several processes
    "ddp_find_unused_parameters": _taken(BOOLEAN, text="with several processes"),
    "ddp_bucket_cap_mb": _taken(COUNT, text="with several processes"),
    "ddp_broadcast_buffers": _taken(BOOLEAN, text="with several processes"),
    "ddp_static_graph": _taken(BOOLEAN, text="with several processes"),
    # What an option says
    **_refused("`output` names the folder", "output_dir"),
    **_refused("`epochs` gives it", "num_train_epochs"),
    **_refused("`max_steps` gives it", "max_steps"),
    **_refused("`batch_size` gives it", "per_device_train_batch_size"),
    **_refused("`learning_rate` gives it", "learning_rate"),
    **_refused("`schedule` gives it", "lr_scheduler_type"),
    **_refused("`seed` gives it", "seed"),
    **_refused("`bf16` gives it", "bf16"),
    **_refused("`device` gives it", "use_cpu"),
    **_refused("`resume` goes on with a run", "resume_from_checkpoint"),
    **_refused("a resumed run goes on as it would have", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
    **_refused("Ctrl-C saves a checkpoint", "enable_jit_checkpoint"),
    **_refused("`hf-posenc publish` uploads a finished run", "push_to_hub", "hub_token", "hub_private_repo"),
    **_refused("`hf-posenc publish` uploads a finished run", "hub_model_id", "hub_strategy", "hub_always_push"),
    **_refused("`hf-posenc publish` uploads a finished run", "hub_revision"),
    **_refused("logs stay on this machine", "project", "trackio_space_id", "trackio_bucket_id"),
    **_refused("logs stay on this machine", "trackio_static_space_id"),
    **_refused("TRANSFORMERS_VERBOSITY, a variable, gives it", "log_level", "log_level_replica"),
    # What would make scores or weights untrue
    **_refused("every row is used", "dataloader_drop_last"),
    **_refused("a run with the same seed reads its rows in the same order", "dataloader_in_order"),
    **_refused("it follows from metric_for_best_model", "greater_is_better"),
    **_refused("no metrics could be computed", "prediction_loss_only", "batch_eval_metrics", "eval_do_concat_batches"),
    **_refused("the metrics read answers and labels alone", "include_for_metrics", "eval_use_gather_object"),
    **_refused("memory isn't a score", "skip_memory_metrics"),
    **_refused("it would round the weights that are saved", "bf16_full_eval", "fp16_full_eval"),
    **_refused("a run wouldn't go on as it began", "save_only_model"),
    **_refused("it changes how many rows a step has", "accelerator_config"),
    # What has no effect here, or isn't tried
    **_refused("training, validation and test follow from the data", "do_train", "do_eval", "do_predict"),
    **_refused("the data has these columns alone", "remove_unused_columns", "label_names", "length_column_name"),
    **_refused("an encoder has no cache", "use_cache"),
    **_refused("Liger has no kernels for these models", "use_liger_kernel", "liger_kernel_config"),
    **_refused("it stops by itself where the loss isn't finite", "debug"),
    **_refused("the launcher gives it", "local_rank", "ddp_backend", "ddp_timeout"),
    **_refused("the first process prints and saves", "log_on_each_node", "save_on_each_node"),
    **_refused("the settings of accelerate give it: docs/gpus.md", "fsdp", "fsdp_config", "deepspeed"),
    **_refused("it splits layers, which these models don't plan", "parallelism_config"),
}


def strategies(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """When it evaluates, saves and logs, as far as it is chosen: what isn't of the first two follows the other."""
    evaluated, saved = chosen.get("eval_strategy"), chosen.get("save_strategy")
    if evaluated is None and saved in ("steps", "epoch"):
        evaluated = saved
    if saved is None and evaluated in ("steps", "epoch"):
        saved = evaluated
    return {"eval_strategy": evaluated, "save_strategy": saved, "logging_strategy": chosen.get("logging_strategy")}


def trainer_fields(options: Options) -> dict[str, Any]:
    """Fields of transformers' `TrainingArguments` that `set` names.

    Raises:
        UserError: a field is refused or unknown here, its value isn't accepted, or it would have no effect.
    """
    chosen = {name: value for name, value in options.assigned.items() if name in FIELDS or name in INSTALLED}
    for name, value in chosen.items():
        _check(name, value)
    for name in chosen:
        _check_effect(name, chosen)
    if {"gradient_checkpointing", "activation_checkpointing"} <= chosen.keys():
        older = "is an older name of activation_checkpointing. Give one of them."
        raise UserError(older, parameter="set.gradient_checkpointing")
    _check_together(chosen, options)
    return chosen


def _check_together(chosen: Mapping[str, Any], options: Options) -> None:
    """Refuses fields that another field or an option makes useless."""
    schedule = spell("schedule", options.schedule)
    optimizer = chosen.get("optim", "adamw_torch_fused")
    is_low_rank = optimizer.startswith(("galore", "apollo"))
    evaluates = strategies(chosen)["eval_strategy"] in ("steps", "epoch")
    useless = {
        "lr_scheduler_kwargs": (options.schedule != "cosine", f"has no effect on {schedule}. Leave it out."),
        "warmup_steps": (options.schedule == "constant", f"has no effect on {schedule}. Give constant_with_warmup."),
        "optim_target_modules": (not is_low_rank, f"has no effect on optim={optimizer}. Leave it out."),
        "eval_delay": (not evaluates, f"counts epochs or steps, as {spell('set.eval_strategy')} says. Give both."),
        "eval_on_start": (options.patience is not None, f"would count for {spell('patience')}. Leave one of them out."),
    }
    for name, (is_useless, why) in useless.items():
        if chosen.get(name) and is_useless:
            raise UserError(why, parameter=f"set.{name}")


def _check(name: str, value: Any) -> None:
    """Refuses a field that the table refuses or lacks, or transformers lacks, and a value that isn't accepted."""
    field, parameter = FIELDS.get(name), f"set.{name}"
    if field is None:
        unknown = "can't be set: this version of hf_posenc doesn't know it. Leave it out."
        raise UserError(unknown, parameter=parameter)
    if field.accepts is None:
        reason = re.sub(r"^`(\w+)`", lambda option: spell(option[1]), field.text)  # "`epochs` gives it"
        raise UserError(f"can't be set: {reason}. Leave it out.", parameter=parameter)
    if name not in INSTALLED:
        unknown = f": transformers {transformers_version} has no such field. Leave it out."
        raise UserError(unknown, parameter=parameter)
    fault = field.accepts.fault(value)
    if name == "optim" and value in _APART:
        fault = f"can't be set: it has no learning rates by group. Give {field.accepts.text}."
    if value is None and INSTALLED[name].default not in (None, MISSING):
        fault = f"is out of range. Give {field.accepts.text}."
    if fault:
        raise UserError(fault, parameter=parameter, value=value)


def _check_effect(name: str, chosen: Mapping[str, Any]) -> None:
    """Refuses a field that would do nothing, as another one isn't set."""
    needed, _, wanted = (FIELDS[name].needs or "").partition("=")
    if not needed or chosen[name] is None:
        return
    value = strategies(chosen)[needed] if wanted else chosen.get(needed)
    if value == wanted or (not wanted and value not in (None, False, 0, "none")):
        return
    condition = spell(f"set.{needed}", wanted or NO_VALUE)
    raise UserError(f"has no effect without {condition}. Give both.", parameter=f"set.{name}", value=chosen[name])
