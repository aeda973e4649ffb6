"""Progress of a training: the Trainer's own bar on a terminal, a line a minute with the time left in a log."""

import time
from typing import Any

from rich.console import Console
from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

EVERY = 60.0
"""Seconds between two lines of a log."""
NO_SCORES = ("_runtime", "_per_second", "_preparation_time", "total_flos", "epoch")
"""How the names of those metrics of the Trainer end that say nothing of the model."""


def is_live(console: Console) -> bool:
    """Whether a line can be redrawn: not in a file, a pipe, a notebook or a dumb terminal."""
    return console.is_interactive and not console.is_jupyter and console.file.isatty()


def main_console(process_index: int, console: Console | None = None) -> Console:
    """Where a run prints: `console`, or standard output; of several processes the main one alone."""
    return (console or Console()) if process_index == 0 else Console(quiet=True)


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
        """Starts the clock."""
        self.started = self.printed = time.monotonic()
        self.first_step = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Prints how far it is, if a minute has passed."""
        now = time.monotonic()
        if not self.every_minute or now - self.printed < EVERY:
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
