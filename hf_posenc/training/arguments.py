"""The options of training as `transformers.TrainingArguments`: what they decide together, and their plain values."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils import is_torch_xla_available

from ..errors import UserError
from ..options import plain_name
from .options import ModelArguments, RunOptions

_DEFAULT_SAVE_STEPS = TrainingArguments.__dataclass_fields__["save_steps"].default


@dataclass
class RunArguments(RunOptions, TrainingArguments):  # type: ignore[misc]  # some may be None until they are decided
    """`transformers.TrainingArguments`, all of them, with the defaults and additions of `RunOptions`."""

    def __post_init__(self) -> None:
        """Fills in what depends on other options, and refuses values that aren't accepted."""
        RunOptions.__post_init__(self)
        self.chooses_metric = self.metric_for_best_model is None
        self._choose_when()
        self._choose_best()
        for name in ("bf16_full_eval", "fp16_full_eval"):
            if getattr(self, name):
                raise UserError(f"--{name} rounds the weights that are saved, and scores are float32. Leave it out.")
        if not torch.accelerator.is_available() and not is_torch_xla_available():
            if self.fp16:
                raise UserError("--fp16 needs a GPU, and there is none. Use --bf16, which works on a CPU too.")
            self.use_cpu = True  # else TrainingArguments refuses bf16, and each of several processes trains alone
        TrainingArguments.__post_init__(self)
        if self.push_to_hub and plain_name(self.hub_strategy) != "end":
            raise UserError(f"--hub-strategy {plain_name(self.hub_strategy)} would push half a run. Leave it out.")

    def _choose_when(self) -> None:
        """When it is logged, evaluated and saved: once per epoch, and saved when it is evaluated."""
        strategies = (self.eval_strategy, self.save_strategy, self.logging_strategy, self.early_stopping_patience)
        self.chooses_evaluations = strategies == (None,) * 4
        self.logging_strategy = self.logging_strategy or "epoch"
        if self.eval_strategy is None:
            self.eval_strategy = "epoch" if self.do_eval and self.do_train else "no"
        evaluated = plain_name(self.eval_strategy)
        if self.save_strategy is None:
            self.save_strategy = "epoch" if evaluated == "no" else evaluated
            if evaluated == "steps" and self.save_steps == _DEFAULT_SAVE_STEPS:
                self.save_steps = self.eval_steps or self.logging_steps

    def _choose_best(self) -> None:
        """Whether the best weights are kept, and by which metric."""
        patience = self.early_stopping_patience
        if not self.do_train:  # the options of a training also serve to evaluate it
            self.load_best_model_at_end = False
        elif self.load_best_model_at_end is None:
            self.load_best_model_at_end = patience is not None or self._saves_what_it_evaluates()
        if self.metric_for_best_model is None and (patience is not None or plain_name(self.save_strategy) == "best"):
            self.metric_for_best_model = "loss"
        if patience is not None:
            if self.do_train and (plain_name(self.eval_strategy) == "no" or not self.do_eval):
                raise UserError(
                    f"--early-stopping-patience {patience} needs evaluations while training: give --do-eval, and no "
                    "--eval-strategy no."
                )
            self.restore_callback_states_from_checkpoint = self.resume_from_checkpoint is not None
        # TrainingArguments takes every metric except the loss as better when greater.
        if self.greater_is_better is None and (self.metric_for_best_model or "").removeprefix("eval_") == "mse":
            self.greater_is_better = False

    @property
    def examples_per_step(self) -> int:
        """Of all devices and processes, with accumulation."""
        return self.train_batch_size * self.world_size * self.gradient_accumulation_steps

    def _saves_what_it_evaluates(self) -> bool:
        evaluated, saved = plain_name(self.eval_strategy), plain_name(self.save_strategy)
        if evaluated == "no" or saved not in ("best", evaluated):
            return False
        return saved != "steps" or self.save_steps % (self.eval_steps or self.logging_steps) == 0

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything but the Hub token."""
        return {**self.__dict__, "hub_token": None}


def plain_options(data: Any, model: ModelArguments, training: RunArguments) -> dict[str, dict[str, Any]]:
    """The options of a run as plain values, for what is written of it: without secrets and without local folders."""
    return {"data": as_dict(data), "model": as_dict(model), "training": as_dict(training)}


def as_dict(arguments: Any) -> dict[str, Any]:
    """The options of one dataclass; see `plain_options`."""
    if isinstance(arguments, TrainingArguments):
        values = arguments.to_dict()
    else:
        values = {item.name: getattr(arguments, item.name) for item in fields(arguments)}
        if values.get("token"):
            values["token"] = "<hidden>"
    # The results file is published with the model.
    return {name: _without_folder(value) for name, value in values.items()}


def _without_folder(value: Any) -> Any:
    """Cuts a path on this machine to its last part; in lists and dictionaries too."""
    if isinstance(value, dict):
        return {name: _without_folder(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item) for item in value]
    if not isinstance(value, str) or len(Path(value).parts) < 2:
        return value
    is_here = value.startswith(("/", "~", "./", "../")) or Path(value).is_absolute() or os.path.exists(value)
    return Path(value).name if is_here else value
