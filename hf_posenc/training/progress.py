"""Progress: one live line in a terminal, a few plain lines in a log file."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from .options import NO_SCORES

_LIVE_EVERY = 0.25
_PLAIN_EVERY = 30.0
"""Seconds."""


def is_live(console: Console) -> bool:
    """Whether a line can be redrawn: not in a file, a pipe, a notebook or a dumb terminal."""
    return console.is_interactive and not console.is_jupyter and console.file.isatty()


def main_console(training: TrainingArguments, console: Console | None = None) -> Console:
    """Where a run prints: `console`, or standard output; of several processes the main one alone."""
    return (console or Console()) if training.process_index == 0 else Console(quiet=True)


@contextlib.contextmanager
def working(what: str, console: Console) -> Iterator[None]:
    """Shows a status while entered, in a terminal."""
    with console.status(what) if is_live(console) else contextlib.nullcontext():
        yield


class ProgressLine(TrainerCallback):
    """Step, loss, learning rate and the time left on one line, and a line for each evaluation.

    Args:
        console: where they go.
        live: redraw one line, if the console can.
    """

    def __init__(self, console: Console, *, live: bool = True) -> None:
        self.console = console
        self.live = live and is_live(console)
        self.bar: Progress | None = None
        self.loss: torch.Tensor | None = None
        self.logged: dict[str, float] = {}
        self.training = False
        self.scored = 0
        self.drawn = 0.0

    def update_loss(self, loss: torch.Tensor) -> None:
        """Updates the moving average of the loss."""
        self.loss = loss if self.loss is None else 0.9 * self.loss + 0.1 * loss

    def close(self) -> None:
        """Removes the live line."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Draws the line."""
        self.training, self.drawn = True, time.monotonic()
        self._draw("starting", state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Redraws the line; without a live line prints one every `_PLAIN_EVERY` seconds."""
        now = time.monotonic()
        if now - self.drawn < (_LIVE_EVERY if self.live else _PLAIN_EVERY):
            return
        self.drawn = now
        rate = kwargs["lr_scheduler"].get_last_lr()[0]
        loss = "" if self.loss is None else f"  loss {self.loss.item():.3f}"
        text = f"epoch {state.epoch or 0:.1f}  step {state.global_step}/{state.max_steps}{loss}  rate {rate:.1e}"
        if self.live:
            self._draw(text, state.global_step, state.max_steps)
        else:
            self._print(text.capitalize())

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Shows the progress of an evaluation."""
        self.scored += 1
        now = time.monotonic()
        if not self.live or now - self.drawn < _LIVE_EVERY:
            return
        self.drawn = now
        batches = kwargs.get("eval_dataloader")
        total = len(batches) if has_length(batches) else None  # type: ignore[arg-type]
        text = f"scoring: batch {self.scored}{f'/{total}' if total else ''}"
        if self.training:
            self._draw(text, state.global_step, state.max_steps)
        else:
            self._draw(text, self.scored, total)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        """Prints the mean loss, unless an evaluation follows, whose line has it."""
        if not state.is_world_process_zero or "loss" not in logs:
            return
        self.logged = logs
        if not control.should_evaluate:
            self._print(f"{_when(state)}: loss {self.logged['loss']:.3f}")
            self.logged = {}

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Prints the metrics of an evaluation during training; the final ones are in the table of results."""
        self.scored = 0
        if not self.training or not state.is_world_process_zero:
            self.close()
            return
        training = f"loss {self.logged['loss']:.3f}; " if "loss" in self.logged else ""
        scores = ", ".join(
            f"{name.removeprefix('eval_')} {value:.4g}"
            for name, value in metrics.items()
            if name.startswith("eval_") and not name.endswith(NO_SCORES)
        )
        self._print(f"{_when(state)}: {training}validation {scores}")
        self.logged = {}

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any) -> None:
        """Removes the line."""
        self.scored = 0
        self.close()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Removes the line."""
        self.training = False
        self.close()

    def _draw(self, text: str, done: int, total: int | None) -> None:
        if not self.live:
            return
        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(None), TimeRemainingColumn(), TextColumn("left"))
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True, refresh_per_second=1)
            self.bar.add_task(text)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], description=text, completed=done, total=total, refresh=True)

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)


def _when(state: TrainerState) -> str:
    epoch = state.epoch or 0.0
    return f"Epoch {epoch:g}" if epoch.is_integer() else f"Step {state.global_step}, epoch {epoch:.2f}"
