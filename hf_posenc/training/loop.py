"""Trains, scores and saves a run."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from transformers import TrainerState
from transformers.utils import logging

from ..errors import Interrupted
from ..quiet import errors_alone, without_bars
from .arguments import RunArguments
from .assessment import to_beat
from .callbacks import StopOnInterrupt
from .checkpoints import remove_checkpoints, step_of
from .inference import take_off_autocast
from .lora import merge
from .metrics import logits_in, require_finite
from .output_folder import guarded_run, recovery_hint
from .progress import main_console, working
from .run import Setup, TrainingResult
from .saving import save_run
from .trainer import RunTrainer, make_trainer

logger = logging.get_logger(__name__)


@without_bars()
def run_training(set_up: Callable[[], Setup], training: RunArguments, console: Console | None) -> TrainingResult:
    """Sets a run up, and trains, scores and saves it, as far as the options say so.

    Args:
        set_up: makes the run: data, tokenizer, model, what is to be beaten.
        training: its options.
        console: where results are printed. None: standard output.

    Raises:
        UserError: something in the options or the data is wrong, the disk is full, or a model that is only scored
            answers NaN.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    started, console = time.time(), main_console(training, console)
    with working("Preparing data, tokenizer and model", console):
        setup = set_up()
    print_summary(setup, console)
    trainer = make_trainer(setup, console)
    metrics: dict[str, float] = {}
    lora = setup.options["model"]["lora"]
    with guarded_run(setup.training, is_lora=lora), contextlib.closing(trainer.progress):
        if setup.trains:
            metrics |= _train(trainer, console)
        take_off_autocast(trainer.accelerator, setup.model)
        test_logits = _score(trainer, metrics)
        if not setup.trains:  # a training that diverges has ended before
            require_finite(np.array([value for name, value in metrics.items() if name.endswith("_loss")]))
        if setup.assessment is not None:
            setup.assessment.show(console)
        _finish(trainer, metrics, test_logits, time.time() - started)
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
    with stop, errors_alone("transformers.trainer_utils"):
        output = trainer.train(resume_from_checkpoint=resumed)
    merge(cast(Any, trainer.model))
    if stop.agreed:
        raise Interrupted(recovery_hint(setup.output_dir, setup.options["model"]["lora"]))
    if setup.training.load_best_model_at_end:
        setup.best = _find_best(trainer.state, str(setup.training.metric_for_best_model))
    _show_best(setup, console)
    if output.global_step == start:
        logger.warning(f"{resumed!r} is the last step of its run: nothing was left to train.")
        return {}  # the Trainer reports a loss of 0.0
    return output.metrics


def _score(trainer: RunTrainer, metrics: dict[str, float]) -> np.ndarray | None:
    """Adds the metrics of validation and test rows, assesses them, and returns the logits of the test rows."""
    setup = trainer.setup
    history = list(trainer.state.log_history)  # without the scores of the weights that were kept
    if setup.training.do_eval:
        metrics |= trainer.evaluate(cast(Any, setup.encoded["validation"]))
        setup.assess("eval", metrics, history)
    if not setup.training.do_predict:
        return None
    output = trainer.predict(cast(Any, setup.encoded["test"]), metric_key_prefix="test")
    metrics |= output.metrics or {}
    setup.assess("test", metrics, history)
    return logits_in(output)


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


def _show_best(setup: Setup, console: Console) -> None:
    """Prints which checkpoint's weights were kept, unless the last."""
    if setup.best is not None:
        text = (
            f"Kept the weights of epoch {round(setup.best['epoch'], 2):g} (step {setup.best['step']}), the best by "
            f"{setup.best['metric']}: {setup.best['value']:.4g}. --load-best-model-at-end false keeps the last ones."
        )
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _finish(trainer: RunTrainer, metrics: dict[str, float], test_logits: np.ndarray | None, seconds: float) -> None:
    """Saves the run (see `save_run`) and, with `push_to_hub`, pushes the folder.

    Deletes its checkpoints last, unless `keep_checkpoints` is set.
    """
    setup = trainer.setup

    def save_model(folder: str) -> None:
        if trainer.is_fsdp_enabled:  # with sharded checkpoints the Trainer would save no model
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(folder, _internal_call=True)  # otherwise it pushes before the results are written

    save_run(setup, metrics, trainer.state.log_history, test_logits, seconds, save_model)
    setup.metrics = metrics
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    if setup.trains and not setup.training.keep_checkpoints:
        trainer.accelerator.wait_for_everyone()
        if setup.training.process_index == 0:
            remove_checkpoints(setup.output_dir)
