"""The progress of a training: lines that end nothing where they can't be printed, a bar, and Ctrl-C.

On a terminal the Trainer draws its bar; in a log stands a line a minute with the time left.
"""

import contextlib
import math
import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from tqdm import tqdm
from transformers import (
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging

from .checkpoints.files import not_finite
from .errors import Diverged, spell

logger = logging.get_logger(__name__)

LINE_EVERY = 60.0
"""Seconds between two lines of a log."""
NO_SCORES = ("_runtime", "_per_second", "_preparation_time", "total_flos", "epoch")
"""How the names of those metrics of the Trainer end that say nothing of the model."""


class ProgressConsole(Console):
    """Standard output, for lines that are dropped where its reader has left or its disk is full."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich does, with escapes for letters that the output's encoding lacks."""
        if self.is_jupyter:
            super().print(*objects, **options)
            return
        with contextlib.suppress(OSError):
            with self.capture() as captured:  # which writes out what an earlier line left behind
                super().print(*objects, **options)
            self.file.write(captured.get().encode(self.encoding, "backslashreplace").decode(self.encoding))
            self.file.flush()

    def on_broken_pipe(self) -> None:
        """Goes on, where rich's own ends the program."""


def refuse_divergence(step: int, model: torch.nn.Module, recipe: TrainingArguments) -> None:
    """Raises Diverged if a weight holds NaN or infinity."""
    if bad := not_finite(model.named_parameters()):
        hold = f"{len(bad)} weights hold NaN or infinity, {bad[0]} among them"
        raise Diverged(f"Training diverged: after step {step} {hold}. {_way_out(recipe)}")


def refuse_infinite(name: str, value: Any, step: int, rate: float, recipe: TrainingArguments) -> None:
    """Raises Diverged if a step's loss or gradient norm is NaN or infinity."""
    if not math.isfinite(number := float(value)):
        when = f"in step {step}, at a learning rate of {rate:.3g}"
        way_out = _way_out(recipe) if step > 1 else "No step has changed the weights: look at them, and at the data."
        raise Diverged(f"Training diverged: {when}, the {name} is {number}. {way_out}")


def _way_out(recipe: TrainingArguments) -> str:
    """Says what may keep a training from diverging."""
    return (
        f"Begin anew with a {spell('learning_rate')} below {recipe.learning_rate}, or a longer warm-up "
        f"({spell('set.warmup_steps', 0.3)})."
    )


class Stop(TrainerCallback):
    """While entered, Ctrl-C finishes the step, saves a checkpoint and stops; the second one stops at once.

    All processes agree after each step, so that they stop at the same one. A terminal and a launcher may both pass on
    one Ctrl-C: with several processes, signals within two seconds count as one.
    """

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
        """Looks at the weights at the end; asks for a checkpoint if any process was interrupted."""
        if control.should_training_stop:
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
    """True where a line can be redrawn: not in a file, a pipe, a notebook or a dumb terminal."""
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
