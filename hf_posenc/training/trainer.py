"""The stock Trainer with our loss, our groups of learning rates, and three callbacks: stop, progress, exact resume."""

import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    get_scheduler,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from ..errors import Diverged, UserError, one_line
from ..optimizer import scale_position_learning_rates
from .lora import has_lora, merged_weights
from .losses import ClassificationLoss, loss_and_metrics
from .metrics import logits_in
from .progress import Bar, LogLines, is_live
from .recipe import Recipe
from .run_folder import not_finite

logger = logging.get_logger(__name__)


class RunTrainer(Trainer):
    """The stock Trainer; it overrides public methods alone."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Gives positions and new word embeddings their own learning rates."""
        if self.optimizer is None:
            super().create_optimizer(model)
            recipe, trained = cast(Recipe, self.args), cast(Any, self.model if model is None else model)
            scale_position_learning_rates(
                cast(Any, self.optimizer), trained, recipe.position_rate, words=recipe.word_rate
            )
        return cast(torch.optim.Optimizer, self.optimizer)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Makes the one-cycle schedule too, which transformers lacks."""
        if cast(Recipe, self.args).one_cycle and self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            optimizer = cast(torch.optim.Optimizer, self.optimizer if optimizer is None else optimizer)
            self.lr_scheduler = cast(Any, one_cycle_schedule(optimizer, num_training_steps, warmup))
        return super().create_scheduler(num_training_steps, optimizer)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Writes none: the report does."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves finite weights alone, low-rank changes merged, and no pickle of the arguments."""
        model = cast(torch.nn.Module, self.model)
        refuse_divergence(self.state.global_step, model, self.args)
        folder = Path(output_dir or str(self.args.output_dir))
        try:
            if not has_lora(model):
                super().save_model(str(folder), _internal_call=_internal_call)
            elif self.args.should_save:
                cast(Any, model).save_pretrained(folder, state_dict=merged_weights(model))
                cast(PreTrainedTokenizerBase, self.processing_class).save_pretrained(folder)
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
) -> tuple[RunTrainer, "Stop"]:
    """The Trainer of a run, and the callback that stops it on Ctrl-C.

    Raises:
        UserError: the schedule doesn't accept its arguments.
    """
    if not recipe.one_cycle:
        _check_schedule(recipe)  # before the Trainer makes the folder
    recipe.disable_tqdm = recipe.disable_tqdm or not is_live(console)
    trainer = RunTrainer(
        model=model,
        args=recipe,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if recipe.fp16 else None),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        compute_loss_func=loss,
        compute_metrics=lambda output: loss_and_metrics(loss, logits_in(output), np.asarray(output.label_ids)),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)
    if not recipe.disable_tqdm:
        trainer.add_callback(Bar())
    stop = Stop()
    for callback in (LogLines(console), ExactResume(), stop):
        trainer.add_callback(callback)
    if recipe.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(recipe.patience))
    return trainer, stop


def _check_schedule(recipe: Recipe) -> None:
    """Refuses arguments that the schedule doesn't take, before the Trainer makes it when it starts."""
    kind, arguments = recipe.lr_scheduler_type, recipe.lr_scheduler_kwargs
    try:
        get_scheduler(kind, torch.optim.SGD([torch.zeros(1)]), 1, 10, scheduler_specific_kwargs=cast(Any, arguments))
    except (TypeError, ValueError) as error:
        raise UserError(f"--set lr_scheduler_kwargs={arguments}: {one_line(error)}") from error


def one_cycle_schedule(
    optimizer: torch.optim.Optimizer, steps: int, warmup: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """PyTorch's one-cycle policy (Smith and Topin 2017, arXiv 1708.07120); it rises during the warm-up."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        # The Trainer advances the schedule after the last step too.
        total_steps=steps + 1,
        pct_start=min(max(warmup, 1) / steps, 1.0),
    )


def refuse_divergence(step: int, model: torch.nn.Module, recipe: TrainingArguments) -> None:
    """Raises Diverged if a weight holds NaN or infinity."""
    if bad := not_finite(model.named_parameters()):
        raise Diverged(
            f"Training diverged: after step {step} {len(bad)} weights hold NaN or infinity, {bad[0]} among them. Begin "
            f"anew with a --learning-rate below {recipe.learning_rate}, or a longer warm-up (--set warmup_steps=0.3)."
        )


class Stop(TrainerCallback):
    """Ends training before weights that aren't finite are evaluated or saved; while entered, on Ctrl-C too.

    On Ctrl-C it finishes the step, saves a checkpoint and stops; on the second it stops at once. All processes agree
    after each step, so that they stop at the same one. A terminal and a launcher may both pass on one Ctrl-C: with
    several processes, signals within two seconds count as one.
    """

    EVERY = 50
    """Steps between two looks at the weights."""

    def __init__(self) -> None:
        self.agreed = False
        self._pressed_at: float | None = None
        self._previous: Any = None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        late = self._pressed_at is not None and not self.agreed
        if late and error is None and not torch.distributed.is_initialized():  # no step was left to finish
            raise KeyboardInterrupt

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
        """Looks at the weights now and then, before an evaluation and at the end; asks the Trainer to save and stop."""
        if state.global_step % self.EVERY == 0 or control.should_evaluate or control.should_training_stop:
            refuse_divergence(state.global_step, kwargs["model"], args)
        if self._agree(args):
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Counts a Ctrl-C after the last step."""
        self._agree(args)

    def _agree(self, args: TrainingArguments) -> bool:
        """Whether Ctrl-C was pressed in any process."""
        pressed = self._pressed_at is not None
        if args.world_size > 1 and torch.distributed.is_initialized():
            anywhere = torch.tensor(pressed, dtype=torch.int32, device=args.device)
            torch.distributed.all_reduce(anywhere, torch.distributed.ReduceOp.MAX)
            pressed = bool(anywhere.item())
        self.agreed = self.agreed or pressed
        return self.agreed

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Skips the evaluation of a stopped epoch, which the uninterrupted run wouldn't have."""
        if self.agreed and not float(state.epoch or 0).is_integer():
            control.should_log = control.should_evaluate = control.should_save = False
        elif control.should_evaluate:
            refuse_divergence(state.global_step, kwargs["model"], args)
        return control


class ExactResume(TrainerCallback):
    """Restores torch's random state after an evaluation, whose data loader draws a number.

    Otherwise a run resumed from a checkpoint saved before that evaluation would draw other dropout masks.
    """

    def __init__(self) -> None:
        self._state: Any = None

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keeps the state of the step."""
        self._state = torch.get_rng_state()

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restores it."""
        if self._state is not None:
            torch.set_rng_state(self._state)
