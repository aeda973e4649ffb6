"""`RunTrainer`, the Trainer of a run, with the callbacks and the schedule that the options ask for."""

import math
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, Trainer, get_scheduler
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from .. import files
from ..errors import UserError, one_line
from ..optimizer import scale_position_learning_rates
from ..options import plain_name
from .arguments import RunArguments
from .callbacks import (
    DescribeCheckpoints,
    EvaluationLeavesNoTrace,
    StopOnDivergence,
    refuse_divergence,
)
from .card import card_of
from .checkpoints import RESULTS_NAME
from .lora import has_lora, merged_weights
from .progress import ProgressLine, main_console
from .run import Setup
from .saving import metrics_at

logger = logging.get_logger(__name__)


class RunTrainer(Trainer):
    """The stock Trainer with our progress line, the run's own card, and no training_args.bin, a pickle.

    It overrides public methods alone; what else happens to checkpoints is done by callbacks.

    Args:
        setup: what is trained, and how.
        console: where progress is shown. None: standard output of the first process.
    """

    def __init__(self, setup: Setup, console: Console | None = None) -> None:
        self.setup = setup
        super().__init__(
            model=setup.model,
            args=setup.training,
            data_collator=setup.collator,
            train_dataset=setup.encoded.get("train"),
            eval_dataset=setup.encoded.get("validation"),
            processing_class=setup.tokenizer,
            compute_loss_func=setup.loss,
            compute_metrics=setup.compute_metrics,
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
        self.progress = ProgressLine(main_console(self.args, console), live=not self.args.disable_tqdm)
        self.add_callback(self.progress)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Shows the loss in the progress line."""
        loss = super().training_step(*args, **kwargs)
        self.progress.update_loss(loss.detach() * self.args.gradient_accumulation_steps)
        return loss

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Gives positions their own learning rate."""
        if self.optimizer is None:
            super().create_optimizer(model)
            args, trained = cast(RunArguments, self.args), cast(Any, self.model if model is None else model)
            words = 1.0 if args.word_learning_rate_factor is None else args.word_learning_rate_factor
            scale_position_learning_rates(
                cast(Any, self.optimizer), trained, args.position_learning_rate_factor, words=words
            )
        return cast(torch.optim.Optimizer, self.optimizer)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Writes the run's card, with what has been measured so far."""
        if self.is_world_process_zero():
            metrics = self.setup.metrics
            if metrics is None:
                metrics = metrics_at(self.state.global_step, self.state.log_history)
            files.write_text(self.setup.output_dir / "README.md", card_of(self.setup, metrics))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves finite weights alone, low-rank changes merged, and no pickle of the options: results.json has them."""
        args, model = cast(RunArguments, self.args), cast(torch.nn.Module, self.model)
        refuse_divergence(args, self.state.global_step, model)
        folder = self.setup.output_dir if output_dir is None else Path(output_dir)
        if args.should_save and folder.parent == self.setup.output_dir:
            (folder / RESULTS_NAME).unlink(missing_ok=True)  # of a run that was stopped: now it isn't whole
        try:
            if not has_lora(model):
                super().save_model(str(folder), _internal_call=_internal_call)
            elif args.should_save:
                cast(Any, model).save_pretrained(folder, state_dict=merged_weights(model))
                cast(PreTrainedTokenizerBase, self.processing_class).save_pretrained(folder)
        finally:
            if args.should_save:
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


def make_trainer(setup: Setup, console: Console | None = None) -> RunTrainer:
    """The Trainer of a run, with its callbacks and the schedule that its options ask for.

    Raises:
        UserError: the schedule doesn't accept its arguments.
    """
    trainer, training = RunTrainer(setup, console), setup.training
    trainer.add_callback(EvaluationLeavesNoTrace())
    trainer.add_callback(DescribeCheckpoints(setup))
    trainer.add_callback(StopOnDivergence())
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience, training.early_stopping_threshold))
    if training.do_train and training.one_cycle:
        batches = len(trainer.get_train_dataloader()) if training.max_steps <= 0 else 0
        trainer.lr_scheduler = cast(Any, one_cycle_schedule(trainer.create_optimizer(), training, batches))
    elif training.do_train:
        _check_schedule(training)
    return trainer


def _check_schedule(training: RunArguments) -> None:
    """Refuses arguments that the schedule doesn't take, before the Trainer makes it when it starts."""
    kind, arguments = training.lr_scheduler_type, training.lr_scheduler_kwargs
    try:
        get_scheduler(kind, torch.optim.SGD([torch.zeros(1)]), 1, 10, scheduler_specific_kwargs=cast(Any, arguments))
    except (TypeError, ValueError) as error:
        raise UserError(f"--lr-scheduler-kwargs {arguments} for {plain_name(kind)}: {one_line(error)}") from error


def one_cycle_schedule(
    optimizer: torch.optim.Optimizer, training: RunArguments, batches_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """PyTorch's one-cycle policy (Smith and Topin 2017, arXiv 1708.07120); it rises during the warm-up."""
    steps = training.max_steps
    if steps <= 0:
        updates = math.ceil(batches_per_epoch / training.gradient_accumulation_steps)
        steps = math.ceil(cast(float, training.num_train_epochs) * updates)
    rise = training.warmup_steps if training.warmup_steps < 1 else training.warmup_steps / steps
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        # The Trainer advances the schedule after the last step too.
        total_steps=steps + 1,
        pct_start=min(max(rise, 1 / steps), 1.0),
    )
