"""`RunTrainer`, the Trainer of all tasks, and `run_training`, which trains, scores and saves with it."""

import contextlib
import math
import time
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
from ..quiet import errors_alone
from .arguments import RunArguments
from .assessment import to_beat
from .callbacks import (
    DescribeCheckpoints,
    EpochMetrics,
    EvaluationLeavesNoTrace,
    StopOnDivergence,
    StopOnInterrupt,
    refuse_divergence,
)
from .card import card_of
from .checkpoints import RESULTS_NAME, remove_checkpoints, step_of
from .inference import take_off_autocast
from .lora import has_lora, merge, merged_weights
from .metrics import logits_in, require_finite
from .output_folder import guarded_run, recovery_hint
from .progress import ProgressLine, main_console
from .run import Setup, TrainingResult
from .saving import metrics_at, save_run

logger = logging.get_logger(__name__)

Answers = np.ndarray | list[dict[str, Any]] | None
"""What a model says of the test rows: logits, or an answer for each; None: it isn't asked."""


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
            callbacks=setup.callbacks,
            preprocess_logits_for_metrics=setup.reduce_logits,
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
    if setup.loss is not None:
        trainer.add_callback(EpochMetrics(trainer, setup))
    trainer.add_callback(EvaluationLeavesNoTrace())
    trainer.add_callback(DescribeCheckpoints(setup))
    trainer.add_callback(StopOnDivergence())
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience, training.early_stopping_threshold))
    if training.do_train and training.one_cycle:
        # A stream has no length; it has max_steps.
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


def run_training(setup: Setup, console: Console | None, started: float) -> TrainingResult:
    """Trains, scores and saves, as far as the options say so.

    Args:
        setup: of the run.
        console: where results are printed. None: standard output.
        started: when the run began.

    Raises:
        UserError: the disk is full, or a model that is only scored answers NaN.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    console = main_console(setup.training, console)
    print_summary(setup, console)
    trainer = make_trainer(setup, console)
    metrics: dict[str, float] = {}
    with guarded_run(setup.training, is_lora=setup.options["model"]["lora"]):
        if setup.trains:
            metrics |= _train(trainer, console)
        take_off_autocast(trainer.accelerator, setup.model)
        answers = _score(trainer, metrics)
        if not setup.trains:  # a training that diverges has ended before
            require_finite(np.array([value for name, value in metrics.items() if name.endswith("_loss")]))
        if setup.assessment is not None:
            setup.assessment.show(console)
        _finish(trainer, metrics, answers, time.time() - started)
    return TrainingResult(
        setup.output_dir,
        metrics,
        setup.summary,
        trainer.state.log_history,
        assessment=setup.assessment,
        model=setup.model,
        tokenizer=setup.tokenizer,
        run=setup.kept(),
    )


def print_summary(setup: Setup, console: Console) -> None:
    """Prints the sizes of a run, its precision and what it has to beat."""
    setup.summary.show(console)
    if setup.trains and setup.training.bf16:
        text = "Training in bfloat16 mixed precision (--bf16 false: float32); scores in float32."
        console.print(text, highlight=False)
    if "majority" in setup.baselines:
        console.print(to_beat(setup.baselines, setup.metric), highlight=False)


def _train(trainer: RunTrainer, console: Console) -> dict[str, float]:
    """Trains, from `training.resume_from_checkpoint` if set; saves a checkpoint on Ctrl-C."""
    setup, resumed = trainer.setup, trainer.setup.training.resume_from_checkpoint
    start = step_of(resumed) if resumed else None  # training may delete it
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    # Checkpoints less than a second apart make it doubt the file system.
    with stop, contextlib.closing(trainer.progress), errors_alone("transformers.trainer_utils"):
        output = trainer.train(resume_from_checkpoint=resumed)
    merge(cast(Any, trainer.model))
    if stop.agreed:
        raise Interrupted(recovery_hint(setup.output_dir, setup.options["model"]["lora"]))
    if setup.training.load_best_model_at_end:
        setup.best = _find_best(trainer.state, str(setup.training.metric_for_best_model))
    show_best(setup, console)
    if output.global_step == start:
        logger.warning(f"{resumed!r} is the last step of its run: nothing was left to train.")
        return {}  # the Trainer reports a loss of 0.0
    return output.metrics


def _score(trainer: RunTrainer, metrics: dict[str, float]) -> Answers:
    """Adds the metrics of validation and test rows, assesses them, and returns what the model says of the test rows."""
    setup = trainer.setup
    history = list(trainer.state.log_history)  # without the scores of the weights that were kept
    if setup.training.do_eval:
        metrics |= trainer.evaluate(cast(Any, setup.encoded["validation"]))
        setup.assess("eval", metrics, history)
    answers: Answers = None
    if setup.training.do_predict and (setup.answer_test is None or "test" in setup.examples):
        output = trainer.predict(cast(Any, setup.encoded["test"]), metric_key_prefix="test")
        metrics |= output.metrics or {}
        setup.assess("test", metrics, history)
        answers = logits_in(output)
    if setup.training.do_predict and setup.answer_test is not None:
        answers = setup.answer_test()
    return answers


def _find_best(state: TrainerState, metric: str) -> dict[str, Any] | None:
    if state.best_model_checkpoint is None:
        return None
    checkpoint = Path(state.best_model_checkpoint).name
    step = int(checkpoint.rpartition("-")[2])
    metric = f"eval_{metric.removeprefix('eval_')}"
    for entry in state.log_history:
        if entry["step"] == step and metric in entry:
            value, epoch = entry[metric], entry["epoch"]
            return {"metric": metric, "value": value, "step": step, "epoch": epoch, "checkpoint": checkpoint}
    return None


def show_best(setup: Setup, console: Console | None = None) -> None:
    """Prints which checkpoint's weights were kept, unless the last."""
    if setup.best is not None:
        console = main_console(setup.training, console)
        text = (
            f"Kept the weights of epoch {round(setup.best['epoch'], 2):g} (step {setup.best['step']}), the best by "
            f"{setup.best['metric']}: {setup.best['value']:.4g}. --load-best-model-at-end false keeps the last ones."
        )
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _finish(trainer: RunTrainer, metrics: dict[str, float], answers: Answers, seconds: float) -> None:
    """Saves the run (see `save_run`) and, with `push_to_hub`, pushes the folder.

    Deletes its checkpoints last, unless `keep_checkpoints` is set.
    """
    setup = trainer.setup

    def save_model(folder: str) -> None:
        if trainer.is_fsdp_enabled:  # with sharded checkpoints the Trainer would save no model
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(folder, _internal_call=True)  # otherwise it pushes before the results are written

    save_run(setup, metrics, trainer.state.log_history, answers, seconds, save_model)
    setup.metrics = metrics
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    if setup.trains and not setup.training.keep_checkpoints:
        trainer.accelerator.wait_for_everyone()
        if setup.training.process_index == 0:
            remove_checkpoints(setup.output_dir)
