"""The stock Trainer with our loss and groups of learning rates, low-rank changes, Ctrl-C, and progress.

On a terminal it draws its own bar; in a log stands a line a minute with the time left.
"""

import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from accelerate import Accelerator
from datasets import Dataset
from rich.console import Console
from tqdm import tqdm
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from ..checkpoints.files import not_finite
from ..errors import Diverged, require_packages, spell
from ..optimizer import scale_position_learning_rates
from .metrics import ClassificationLoss, loss_and_metrics
from .recipe import Recipe

logger = logging.get_logger(__name__)

_LORA_RANK = 16
LINE_EVERY = 60.0
"""Seconds between two lines of a log."""
NO_SCORES = ("_runtime", "_per_second", "_preparation_time", "total_flos", "epoch")
"""How the names of those metrics of the Trainer end that say nothing of the model."""


class RunTrainer(Trainer):
    """The stock Trainer; it overrides public methods alone.

    Attributes:
        has_ended: it goes on from a checkpoint of the last step: none is trained, and the best weights are loaded.
    """

    args: Recipe
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    has_ended = False

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Trains no epoch where the run has ended: the stock Trainer looks for its last step only after a step."""
        epochs, *others = super().set_initial_training_values(args, dataloader)
        return (0 if self.has_ended else epochs, *others)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Gives positions and new word embeddings their own learning rates."""
        if self.optimizer is None:
            super().create_optimizer(model)
            trained = self.model if model is None else model
            scale_position_learning_rates(self.optimizer, trained, self.args.position_rate, self.args.word_rate)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Makes PyTorch's one-cycle schedule too (Smith and Topin 2017, arXiv 1708.07120); it rises in the warm-up.

        With `auto_find_batch_size` it is made anew for each number of steps, from the same peaks.
        """
        if self.args.one_cycle:
            groups = (self.optimizer if optimizer is None else optimizer).param_groups
            warmup = self.args.get_warmup_steps(num_training_steps)
            schedule: Any = torch.optim.lr_scheduler.OneCycleLR(
                self.optimizer if optimizer is None else optimizer,
                max_lr=[group.get("max_lr", group["lr"]) for group in groups],
                total_steps=num_training_steps + 1,  # the Trainer advances it after the last step too
                pct_start=min(max(warmup, 1) / num_training_steps, 1.0),
            )
            self.lr_scheduler = schedule
        return super().create_scheduler(num_training_steps, optimizer)

    def evaluate(self, *given: Any, **options: Any) -> dict[str, float]:
        """Evaluates finite weights alone, and restores torch's random state, of which its data loader draws a number.

        Otherwise a run resumed from a checkpoint saved before that evaluation would draw other dropout masks.
        """
        refuse_divergence(self.state.global_step, self.model, self.args)
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*given, **options)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves finite weights alone, and no pickle of the arguments."""
        step, folder = self.state.global_step, Path(output_dir or str(self.args.output_dir))
        refuse_divergence(step, self.model, self.args)
        try:
            super().save_model(str(folder), _internal_call=_internal_call)
        finally:
            if self.args.should_save:
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Mapping[str, Dataset],
    recipe: Recipe,
    loss: ClassificationLoss,
    console: Console,
) -> RunTrainer:
    """The Trainer of a run."""
    trainer = RunTrainer(
        model=model,
        args=recipe,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if recipe.fp16 else None),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        compute_loss_func=loss,
        compute_metrics=lambda output: loss_and_metrics(loss, *cast(Any, (output.predictions, output.label_ids))),
        preprocess_logits_for_metrics=lambda outputs, _: outputs[0] if isinstance(outputs, tuple) else outputs,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)
    if not recipe.disable_tqdm and is_live(console):
        trainer.add_callback(Bar())
    trainer.add_callback(LogLines(console))
    if recipe.patience is not None:
        trainer.add_callback(Patience(recipe.patience))
    return trainer


def add_lora(model: PreTrainedModel) -> None:
    """Adds low-rank changes (Hu et al. 2021, arXiv 2106.09685), which alone are trained, with scheme and classifier.

    Raises:
        UserError: PEFT isn't installed.
    """
    require_packages(spell("lora", True), "peft")
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=_LORA_RANK,
        lora_alpha=2 * _LORA_RANK,
        target_modules=["query", "key", "value", "dense"],
        # The head and the scheme's own matrices (tupe has some of these names) are trained whole.
        exclude_modules=r"(.*\.)?position\..*|classifier\..*",
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if name.startswith("classifier.") or ".position." in name:
            parameter.requires_grad_(True)


def merge_lora(model: torch.nn.Module) -> None:
    """Merges low-rank changes, if there are any, into the model, which becomes an ordinary one."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    model.requires_grad_(True)


def refuse_divergence(step: int, model: torch.nn.Module, recipe: TrainingArguments) -> None:
    """Raises Diverged if a weight holds NaN or infinity."""
    if bad := not_finite(model.named_parameters()):
        raise Diverged(
            f"Training diverged: after step {step} {len(bad)} weights hold NaN or infinity, {bad[0]} among them. Begin "
            f"anew with a {spell('learning_rate')} below {recipe.learning_rate}, or a longer warm-up "
            f"({spell('set.warmup_steps', 0.3)})."
        )


class Patience(EarlyStoppingCallback):
    """Early stopping, also of a resumed run whose patience had ended: it takes one step, and keeps nothing of it."""

    is_over = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Stops if the counter, which a checkpoint restores, has reached its end."""
        self.is_over = self.early_stopping_patience_counter >= self.early_stopping_patience
        control.should_training_stop = self.is_over
        return control

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Neither evaluates nor saves a step too many."""
        if self.is_over:
            control.should_log = control.should_evaluate = control.should_save = False
        return control

    on_epoch_end = on_step_end


class Stop(TrainerCallback):
    """While entered, Ctrl-C finishes the step, saves a checkpoint and stops; the second one stops at once.

    All processes agree after each step, so that they stop at the same one. A terminal and a launcher may both pass on
    one Ctrl-C: with several processes, signals within two seconds count as one.
    """

    EVERY = 50
    """Steps between two looks at the weights."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._agreed = False
        self._pressed_at: float | None = None
        self._previous: Any = None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self._pressed_at is not None and error is None and not torch.distributed.is_initialized():
            raise KeyboardInterrupt  # no step was left to finish

    def _press(self, number: int, frame: FrameType | None) -> None:
        several = torch.distributed.is_initialized()
        if self._pressed_at is not None and not (several and time.monotonic() < self._pressed_at + 2):
            raise KeyboardInterrupt
        if self._pressed_at is None:
            self._pressed_at = time.monotonic()
            logger.warning_once("Finishing this step and saving a checkpoint. Ctrl-C again stops at once.")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Looks at the weights now and then and at the end; asks for a checkpoint if any process was interrupted."""
        if state.global_step % self.EVERY == 0 or control.should_training_stop:
            refuse_divergence(state.global_step, kwargs["model"], args)
        self._agreed = self._pressed_at is not None
        if args.world_size > 1:
            if self._agreed:
                self._accelerator.set_trigger()
            self._agreed = self._accelerator.check_trigger()
        if self._agreed and not float(state.epoch or 0).is_integer() and not control.should_training_stop:
            control.should_save = True
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Saves after the evaluation of a finished epoch, or of the last step, as the uninterrupted run would."""
        control.should_save = control.should_save or self._agreed
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stops."""
        if self._agreed:
            raise KeyboardInterrupt


def is_live(console: Console) -> bool:
    """Whether a line can be redrawn: not in a file, a pipe, a notebook or a dumb terminal."""
    return console.is_interactive and not console.is_jupyter and console.file.isatty()


class Bar(ProgressCallback):
    """The Trainer's bar without its lines, which `LogLines` prints in words."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Prints nothing."""


class LogLines(TrainerCallback):
    """Prints a line for each evaluation and, where no bar can be drawn, a line a minute."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.every_minute = not is_live(console)
        self.started = self.printed = 0.0
        self.first_step = 0
        self.loss = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Starts the clock, and says how large batches are where those that were asked for don't fit."""
        if args.auto_find_batch_size and state.train_batch_size != args.train_batch_size:
            self._print(f"Batches have {state.train_batch_size} texts: {args.train_batch_size} don't fit into memory.")
        self.started = self.printed = time.monotonic()
        self.first_step = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Prints how far it is, if a minute has passed."""
        now = time.monotonic()
        if not self.every_minute or now - self.printed < LINE_EVERY:
            return
        self.printed = now
        left = (now - self.started) / (state.global_step - self.first_step) * (state.max_steps - state.global_step)
        self._print(
            f"Epoch {state.epoch or 0:.1f}, step {state.global_step:,} of {state.max_steps:,}{self.loss}, "
            f"{tqdm.format_interval(left)} left"
        )

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        """Keeps the loss for the next line."""
        if "loss" in logs:
            self.loss = f", loss {float(logs['loss']):.3f}"

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Prints the metrics of an evaluation."""
        epoch = state.epoch or 0.0
        when = f"Epoch {epoch:g}" if epoch.is_integer() else f"Step {state.global_step:,}, epoch {epoch:.2f}"
        scores = ", ".join(
            f"{name.removeprefix('eval_')} {value:.4g}"
            for name, value in metrics.items()
            if name.startswith("eval_") and not name.endswith(NO_SCORES)
        )
        self._print(f"{when}{self.loss}; validation: {scores}")

    def _print(self, text: str) -> None:
        with tqdm.external_write_mode(file=self.console.file):  # the bar isn't to be in its way
            self.console.print(text, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)
