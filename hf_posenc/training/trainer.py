"""`RunTrainer`, the Trainer of all tasks, and `carry_out`, which trains, scores and saves with it."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, Trainer, TrainerState, get_scheduler
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from .. import files
from ..errors import Interrupted, UserError, one_line
from ..optimizer import speed_up_positions
from ..options import plain_name
from ..training import checkpoints
from .arguments import RunArguments
from .callbacks import (
    DescribeCheckpoints,
    EvaluationLeavesNoTrace,
    StopOnDivergence,
    StopOnInterrupt,
    refuse_divergence,
)
from .inference import take_off_autocast
from .lora import has_lora, merge, merged_weights
from .metrics import require_finite
from .progress import ProgressLine, errors_alone, main_console
from .run import Run, TrainingResult, ending_clearly
from .saving import card_of, metrics_at, save_run

logger = logging.get_logger(__name__)


class RunTrainer(Trainer):
    """The stock Trainer with our progress line, the run's own card, and no training_args.bin, a pickle.

    It overrides public methods alone; what else happens to checkpoints is done by callbacks.

    Args:
        run: what is trained.
        encoded: the splits as token ids: `train`, `validation`.
        console: where progress is shown. None: standard output of the first process.
        options: collator, loss and metrics, as the stock one takes them.
    """

    def __init__(
        self, run: Run, encoded: Mapping[str, Any], console: Console | None = None, **options: Callable[..., Any] | None
    ) -> None:
        self.run = run
        super().__init__(
            model=run.model,
            args=run.training,
            train_dataset=encoded.get("train"),
            eval_dataset=encoded.get("validation"),
            processing_class=run.tokenizer,
            **cast(Any, options),
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
        self.progress = ProgressLine(main_console(self.args, console), live=not self.args.disable_tqdm)
        self.add_callback(self.progress)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Shows the loss in the progress line."""
        loss = super().training_step(*args, **kwargs)
        self.progress.saw(loss.detach() * self.args.gradient_accumulation_steps)
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Removes the progress line on an error."""
        try:
            return super().evaluation_loop(*args, **kwargs)
        except BaseException:
            self.progress.close()
            raise

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Gives positions their own learning rate."""
        if self.optimizer is None:
            super().create_optimizer(model)
            args, trained = cast(RunArguments, self.args), cast(Any, self.model if model is None else model)
            words = 1.0 if args.word_learning_rate_factor is None else args.word_learning_rate_factor
            speed_up_positions(cast(Any, self.optimizer), trained, args.position_learning_rate_factor, words=words)
        return cast(torch.optim.Optimizer, self.optimizer)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Writes the run's card, with what has been measured so far."""
        if self.is_world_process_zero():
            metrics = self.run.metrics
            if metrics is None:
                metrics = metrics_at(self.state.global_step, self.state.log_history)
            files.write_text(Path(str(self.args.output_dir)) / "README.md", card_of(self.run, metrics))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves finite weights alone, low-rank changes merged, and no pickle of the options: results.json has them."""
        args, model = cast(RunArguments, self.args), cast(torch.nn.Module, self.model)
        refuse_divergence(args, self.state.global_step, model)
        folder = Path(output_dir or str(args.output_dir))
        if args.should_save and folder.parent == Path(str(args.output_dir)):
            (folder / checkpoints.RESULTS_NAME).unlink(missing_ok=True)  # of a run that was stopped: now it isn't whole
        try:
            if not has_lora(model):
                super().save_model(str(folder), _internal_call=_internal_call)
            elif args.should_save:
                cast(Any, model).save_pretrained(folder, state_dict=merged_weights(model))
                cast(PreTrainedTokenizerBase, self.processing_class).save_pretrained(folder)
        finally:
            if args.should_save:
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


def add_callbacks_and_schedule(trainer: RunTrainer) -> None:
    """Adds what the options ask for: early stopping, the schedule, described checkpoints.

    Raises:
        UserError: the schedule doesn't accept its arguments.
    """
    training = trainer.run.training
    trainer.add_callback(EvaluationLeavesNoTrace())
    trainer.add_callback(DescribeCheckpoints(trainer.run))
    trainer.add_callback(StopOnDivergence())
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience, training.early_stopping_threshold))
    if not training.do_train:
        return
    if training.one_cycle:
        # A stream has no length; it has max_steps.
        batches = len(trainer.get_train_dataloader()) if training.max_steps <= 0 else 0
        trainer.lr_scheduler = cast(Any, one_cycle_schedule(trainer.create_optimizer(), training, batches))
        return
    kind, given = training.lr_scheduler_type, training.lr_scheduler_kwargs
    try:  # the Trainer makes the schedule only when it starts
        get_scheduler(kind, torch.optim.SGD([torch.zeros(1)]), 1, 10, scheduler_specific_kwargs=cast(Any, given))
    except (TypeError, ValueError) as error:
        raise UserError(f"--lr-scheduler-kwargs {given} for {plain_name(kind)}: {one_line(error)}") from error


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


def carry_out(
    trainer: RunTrainer,
    score: Callable[[dict[str, float]], np.ndarray | str | None],
    started: float,
    console: Console | None = None,
) -> TrainingResult:
    """Trains, scores and saves, as far as the options say so.

    Args:
        trainer: of the run.
        score: called with the metrics when training has ended. It adds those of the other splits, and returns what the
            model says of the test examples: logits, or the lines of the file.
        started: when the run began.
        console: where results are printed. None: standard output.

    Raises:
        UserError: the disk is full, or a model that is only scored answers NaN.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    run, metrics = trainer.run, dict[str, float]()
    with ending_clearly(run.training, is_lora=run.arguments.lora):
        if run.training.do_train:
            metrics |= _train(trainer, console)
        take_off_autocast(trainer.accelerator, run.model)
        predictions = score(metrics)
        if not run.training.do_train:  # a training that diverges has ended before
            require_finite(np.array([value for name, value in metrics.items() if name.endswith("_loss")]))
        if run.assessment is not None:
            run.assessment.show(main_console(run.training, console))
        _finish(trainer, metrics, predictions, time.time() - started)
    return TrainingResult(
        Path(str(run.training.output_dir)),
        metrics,
        run.summary,
        trainer.state.log_history,
        assessment=run.assessment,
        model=run.model,
        tokenizer=run.tokenizer,
        run=Run(**{item.name: getattr(run, item.name) for item in fields(Run)}),  # without a task's data
    )


def _train(trainer: RunTrainer, console: Console | None) -> dict[str, float]:
    """Trains, from `training.resume_from_checkpoint` if set; saves a checkpoint on Ctrl-C."""
    run, resumed = trainer.run, trainer.run.training.resume_from_checkpoint
    start = checkpoints.step_of(resumed) if resumed else None  # training may delete it
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    # Checkpoints less than a second apart make it doubt the file system.
    with stop, contextlib.closing(trainer.progress), errors_alone("transformers.trainer_utils"):
        output = trainer.train(resume_from_checkpoint=resumed)
    merge(cast(Any, trainer.model))
    if stop.agreed:
        raise Interrupted(checkpoints.what_is_left(str(run.training.output_dir), run.arguments.lora))
    if run.training.load_best_model_at_end:
        run.best = _find_best(trainer.state, str(run.training.metric_for_best_model))
    show_best(run, console)
    if output.global_step == start:
        logger.warning(f"{resumed!r} is the last step of its run: nothing was left to train.")
        return {}  # the Trainer reports a loss of 0.0
    return output.metrics


def _find_best(state: TrainerState, metric: str) -> dict[str, Any] | None:
    if state.best_model_checkpoint is None:
        return None
    checkpoint = Path(state.best_model_checkpoint).name
    step = int(checkpoint.rpartition("-")[2])
    metric = f"eval_{metric.removeprefix('eval_')}"
    found = next((entry for entry in state.log_history if entry["step"] == step and metric in entry), None)
    if found is None:
        return None
    return {
        "metric": metric,
        "value": found[metric],
        "step": step,
        "epoch": found["epoch"],
        "checkpoint": checkpoint,
    }


def show_best(run: Run, console: Console | None = None) -> None:
    """Prints which checkpoint's weights were kept, unless the last."""
    if run.best is not None:
        console = main_console(run.training, console)
        text = (
            f"Kept the weights of epoch {round(run.best['epoch'], 2):g} (step {run.best['step']}), the best by "
            f"{run.best['metric']}: {run.best['value']:.4g}. --load-best-model-at-end false keeps the last ones."
        )
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _finish(
    trainer: RunTrainer, metrics: dict[str, float], predictions: np.ndarray | str | None, seconds: float
) -> None:
    """Saves the run (see `save_run`) and, with `push_to_hub`, pushes the folder.

    Deletes its checkpoints last, unless `keep_checkpoints` is set.
    """

    def save_model(folder: str) -> None:
        if trainer.is_fsdp_enabled:  # with sharded checkpoints the Trainer would save no model
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(folder, _internal_call=True)  # otherwise it pushes before the results are written

    save_run(trainer.run, metrics, trainer.state.log_history, predictions, seconds, save_model)
    trainer.run.metrics = metrics
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    training = trainer.run.training
    if training.do_train and not training.keep_checkpoints:
        trainer.accelerator.wait_for_everyone()
        if training.process_index == 0:
            checkpoints.remove_checkpoints(str(training.output_dir))
