"""Trainer callbacks: stop on Ctrl-C and divergence, resume exactly, describe checkpoints."""

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from transformers.utils import logging

from .. import files
from ..errors import Diverged
from .arguments import RunArguments
from .card import card_of
from .checkpoints import RESULTS_NAME, not_finite
from .lora import has_lora
from .output_folder import recovery_hint
from .run import Run
from .saving import metrics_at, results_of, write_trained_on

logger = logging.get_logger(__name__)


class StopOnDivergence(TrainerCallback):
    """Ends training when weights hold NaN or infinity, before they are evaluated or saved."""

    EVERY = 50
    """Steps."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Checks every `EVERY` steps, before an evaluation, and at the end."""
        if state.global_step % self.EVERY == 0 or control.should_evaluate or control.should_training_stop:
            refuse_divergence(args, state.global_step, model)

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Checks before an evaluation."""
        if control.should_evaluate:
            refuse_divergence(args, state.global_step, model)


def refuse_divergence(training: RunArguments, step: int, model: torch.nn.Module) -> None:
    """Raises Diverged if a weight holds NaN or infinity; the message says what is left."""
    if bad := not_finite(model.named_parameters()):
        left = recovery_hint(str(training.output_dir), has_lora(model), diverged=True)
        raise Diverged(
            f"Training diverged: after step {step} {len(bad)} weights hold NaN or infinity, {bad[0]} among them. "
            f"Begin anew with a --learning-rate below {training.learning_rate}, more --warmup-steps, or without other "
            f"options of the optimizer. What is left: {left}"
        )


class StopOnInterrupt(TrainerCallback):
    """While entered: on Ctrl-C, finishes the step, saves a checkpoint and stops; on the second, stops at once.

    All processes agree after each step, so that they stop at the same one. A terminal and a launcher may both pass
    on one Ctrl-C: with several processes, signals within two seconds count as one.
    """

    def __init__(self) -> None:
        self.agreed = False
        self._pressed_at: float | None = None
        self._previous: Any = None

    def __enter__(self) -> "StopOnInterrupt":
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

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Asks the Trainer to save and stop."""
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

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Skips the evaluation of a stopped epoch, which the uninterrupted run wouldn't have."""
        if self.agreed and not float(state.epoch or 0).is_integer():
            control.should_log = control.should_evaluate = control.should_save = False
        return control


class EvaluationLeavesNoTrace(TrainerCallback):
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


class DescribeCheckpoints(TrainerCallback):
    """Writes a README and the results so far into each checkpoint folder, which makes it whole, and deletes older ones.

    In this order: the Trainer itself would delete them before.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.limit: int | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Takes the limit from the Trainer, and the best checkpoint from here, if the run began elsewhere."""
        self.limit, args.save_total_limit = args.save_total_limit, None
        best = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if state.best_global_step and best.is_dir():
            state.best_model_checkpoint = str(best)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Gives it back."""
        args.save_total_limit = self.limit

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called after the Trainer has written the folder."""
        PartialState().wait_for_everyone()  # each process has written its random state
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        folder = Path(str(args.output_dir)) / name
        if not args.should_save or not folder.is_dir():
            return
        metrics = metrics_at(state.global_step, state.log_history)
        files.write_text(folder / "README.md", card_of(self.run, metrics, name))
        write_trained_on(self.run, folder)
        files.write_json(folder / RESULTS_NAME, results_of(self.run, metrics, state.log_history))
        rotate_checkpoints(str(folder.parent), self.limit, state.best_model_checkpoint, use_mtime=True)
