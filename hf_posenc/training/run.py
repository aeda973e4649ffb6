"""What all training runs share: output folder, splits, tokenizer, schedule, Ctrl-C, and what is saved."""

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
import transformers.trainer
from rich.console import Console
from transformers import (
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
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from .. import files
from ..errors import Diverged, Interrupted, UserError, as_typed, one_line
from ..machine import versions
from ..optimizer import speed_up_positions
from . import checkpoints
from .arguments import DataArguments, ModelArguments, RunArguments, as_dict, strategy_name
from .assessment import Assessment
from .checkpoints import not_finite
from .data.columns import Columns
from .data.labels import Labels
from .lora import has_lora, merge, merged_weights
from .metrics import answers_from_logits
from .model import hub_options
from .progress import ProgressLine
from .report import Summary, display_name, model_card
from .tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer

logger = logging.get_logger(__name__)


@dataclass
class Run:
    """A run of any task, as far as reports and saving need to know it."""

    data: DataArguments
    arguments: ModelArguments
    training: RunArguments
    columns: Columns
    labels: Labels | None
    """None for a masked language model."""
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    summary: Summary
    test_rows: Sequence[int] | None = field(default=None, kw_only=True)
    """Which rows of the test data are predicted, by their numbers from 0. None: all."""
    best: dict[str, Any] | None = field(default=None, kw_only=True)
    """Whose weights were kept: `metric`, `value`, `step`, `epoch`, `checkpoint`. None: the last ones."""
    metrics: dict[str, float] | None = field(default=None, kw_only=True)
    """What was measured, once all has been."""
    search: dict[str, Any] | None = field(default=None, kw_only=True)
    """What `--search` tried and chose."""
    assessment: Assessment | None = field(default=None, kw_only=True)
    """Where a classifier stands, once it has been scored."""


@dataclass
class TrainingResult:
    """What a run leaves: also in `results.json` in its folder."""

    output_dir: Path
    metrics: dict[str, float]
    """`train_...`, `eval_...` (validation) and `test_...` numbers."""
    summary: Summary
    history: list[dict[str, Any]] = field(default_factory=list)
    """What was logged, in order: losses, learning rates, training and validation metrics of each epoch."""
    assessment: Assessment | None = field(default=None, kw_only=True, repr=False)
    """Where a classifier stands, of its test data or else its validation data."""
    model: PreTrainedModel = field(kw_only=True, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(kw_only=True, repr=False)
    run: Run | None = field(default=None, kw_only=True, repr=False)
    """What `save_run` needs to write the run elsewhere; None for a masked language model."""


def prepare_output_dir(training: RunArguments) -> Path | None:
    """Checks the output folder and finds the checkpoint to resume from, also set in `training`; deletes nothing.

    Raises:
        UserError: the folder holds another run, can't be written to, or has nothing to resume from.
    """
    output_dir = str(training.output_dir)
    checkpoints.check_output_dir(
        output_dir,
        overwrite=training.overwrite_output_dir,
        resume=bool(training.resume_from_checkpoint),
        training=training.do_train,
    )
    resume_from = checkpoints.find_resume_point(
        output_dir, training.resume_from_checkpoint, overwrite=training.overwrite_output_dir
    )
    if (
        training.resume_from_checkpoint
        and resume_from is None
        and not training.overwrite_output_dir
        and checkpoints.has_ended(output_dir)
    ):
        raise UserError(
            f"--resume_from_checkpoint: the run in {output_dir!r} has ended, and there is no checkpoint to resume from "
            "(--keep_checkpoints keeps them). Use the model as it is; train it further into a new folder with "
            f"--model_name_or_path {output_dir}; or start again with --overwrite_output_dir."
        )
    if training.resume_from_checkpoint and resume_from is None:
        logger.warning(f"No whole checkpoint in {output_dir!r}: training starts at the beginning.")
    training.resume_from_checkpoint = None if resume_from is None else str(resume_from)
    if training.device.type == "cpu":
        training.dataloader_pin_memory = False  # pinned memory is for copies to an accelerator
    return resume_from


def check_task(model: ModelArguments, training: RunArguments) -> None:
    """Raises a UserError where nothing is to be done, or without a model to do it with."""
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do_train, --do_eval, --do_predict.")
    if not training.do_train and model.model_name_or_path is None:
        raise UserError("Without --do_train there is no model. Name a trained one with --model_name_or_path.")


def check_best_metric(training: RunArguments, names: Iterable[str]) -> None:
    """Raises a UserError where no evaluation gives `metric_for_best_model`: the Trainer would see it an epoch later."""
    wanted = training.metric_for_best_model
    accepted = ("loss", *names)
    if wanted is not None and wanted.removeprefix("eval_") not in accepted:
        raise UserError(f"--metric_for_best_model {wanted!r} isn't measured here. Choose one of {', '.join(accepted)}.")


def make_tokenizer(
    arguments: ModelArguments, data: DataArguments, texts: Iterable[str], resume_from: Path | None
) -> PreTrainedTokenizerBase:
    """The tokenizer that is named, the model's or the resumed run's own, or one trained on the training texts."""
    name = arguments.tokenizer_name or arguments.model_name_or_path or (str(resume_from) if resume_from else None)
    if name is not None:
        options = hub_options(arguments)
        if arguments.tokenizer_name is None and arguments.model_name_or_path is None:
            options["revision"] = "main"
        return load_tokenizer(name, **options)
    return train_tokenizer(
        texts,
        arguments.tokenizer_type,
        arguments.vocab_size,
        model_max_length=data.max_seq_length or arguments.max_position_embeddings or DEFAULT_MAX_LENGTH,
        do_lower_case=arguments.do_lower_case,
    )


def add_callbacks_and_schedule(trainer: Trainer, run: Run) -> None:
    """What the options add to a stock Trainer: early stopping, the schedule, what a checkpoint folder says of itself.

    Raises:
        UserError: a schedule that can't be.
    """
    training = run.training
    trainer.add_callback(EvaluationLeavesNoTrace())
    trainer.add_callback(BestCheckpointIsHere())
    trainer.add_callback(DescribeCheckpoints(run))
    trainer.add_callback(StopOnDivergence())
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience, training.early_stopping_threshold))
    if not training.do_train:
        return
    if training.one_cycle:
        # A stream has no length, but steps.
        batches = len(trainer.get_train_dataloader()) if training.max_steps <= 0 else 0
        trainer.lr_scheduler = cast(Any, one_cycle_schedule(trainer.create_optimizer(), training, batches))
        return
    kind, given = training.lr_scheduler_type, training.lr_scheduler_kwargs
    try:  # the Trainer makes the schedule only when it starts
        get_scheduler(kind, torch.optim.SGD([torch.zeros(1)]), 1, 10, scheduler_specific_kwargs=cast(Any, given))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--lr_scheduler_type {strategy_name(kind)} with --lr_scheduler_kwargs {given}: {one_line(error)}"
        ) from error


def one_cycle_schedule(
    optimizer: torch.optim.Optimizer, training: RunArguments, batches_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """PyTorch's one-cycle policy (Smith and Topin 2017, arXiv 1708.07120), its rise as long as the warm-up."""
    steps = training.max_steps
    if steps <= 0:
        updates = math.ceil(batches_per_epoch / training.gradient_accumulation_steps)
        steps = math.ceil(cast(float, training.num_train_epochs) * updates)
    rise = training.warmup_steps if training.warmup_steps < 1 else training.warmup_steps / steps
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        # One step more than is taken: the Trainer advances the schedule after the last one too.
        total_steps=steps + 1,
        pct_start=min(max(rise, 1 / steps), 1.0),
    )


def run_trainer(trainer: "RunTrainer", run: Run, console: Console | None = None) -> dict[str, float]:
    """Trains, from `training.resume_from_checkpoint` where that is set; on Ctrl-C a checkpoint is saved first.

    Sets `run.best` and prints it.

    Raises:
        Interrupted: Ctrl-C; the message says how to go on.
    """
    resumed = run.training.resume_from_checkpoint
    start = checkpoints.step_of(resumed) if resumed else None  # training may delete it
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    with stop, contextlib.closing(trainer.progress):
        output = trainer.train(resume_from_checkpoint=run.training.resume_from_checkpoint)
    merge(cast(Any, trainer.model))
    if stop.agreed:
        raise Interrupted(checkpoints.what_is_left(str(run.training.output_dir), run.arguments.lora))
    if run.training.load_best_model_at_end:
        run.best = _find_best(trainer.state, str(run.training.metric_for_best_model))
    show_best(run, console)
    if output.global_step == start:
        logger.warning(f"{resumed!r} is the end of its run: nothing was left to train.")
        return {}  # else the loss of no step, 0.0
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
    """Prints which weights were kept, where these are not the last ones by default."""
    if run.best is not None and run.training.process_index == 0:
        console = console or Console()
        text = (
            f"Kept the weights of epoch {round(run.best['epoch'], 2):g} (step {run.best['step']}), the best by "
            f"{run.best['metric']}: {run.best['value']:.4g}. --load_best_model_at_end false keeps the last ones."
        )
        console.print(as_typed(text), highlight=False, soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def ending_clearly(training: RunArguments, is_lora: bool = False) -> Iterator[None]:
    """Owns the folder. A full disk becomes a UserError, Ctrl-C an Interrupted, both of which say what is left.

    A run that replaces another has `.replacement` in it as its output folder, and takes the other's place at the end.
    """
    folder = str(training.output_dir)
    owned = checkpoints.owned(folder) if training.process_index == 0 else contextlib.nullcontext()
    with checkpoints.disk_errors(folder), owned, _replacing(training):
        try:
            with checkpoints.disk_errors(folder):  # while what is left is still there to be named
                yield
        except Interrupted:
            raise
        except KeyboardInterrupt as interrupt:
            raise Interrupted(checkpoints.what_is_left(folder, is_lora)) from interrupt


@contextlib.contextmanager
def _replacing(training: RunArguments) -> Iterator[None]:
    folder, resumed = Path(str(training.output_dir)), training.resume_from_checkpoint
    began_in = Path(resumed).resolve().parent if resumed else None
    goes_on = began_in == (folder / checkpoints.REPLACEMENT).resolve()
    begins = training.do_train and training.overwrite_output_dir and began_in != folder.resolve()
    if not goes_on and not (begins and checkpoints.earlier_run(folder)):
        yield
        return
    with checkpoints.replacement(folder, goes_on, training.process_index == 0) as new:
        training.output_dir = str(new)
        try:
            yield
        finally:
            training.output_dir = str(folder)


class RunTrainer(Trainer):
    """The stock Trainer with our progress line; what it pushes has the run's card, the model's code and no pickle.

    The stock one overwrites README.md, pushes checkpoints without the files that their config names, and adds
    training_args.bin, a pickle, of which all that matters is in results.json.
    """

    def __init__(self, *, run: Run, console: Console | None = None, **kwargs: Any) -> None:
        self.run = run
        super().__init__(**kwargs)
        self.remove_callback(PrinterCallback)
        self.remove_callback(transformers.trainer.DEFAULT_PROGRESS_CALLBACK)
        shown = self.is_world_process_zero()
        self.progress = ProgressLine(console or Console(quiet=not shown), live=shown and not self.args.disable_tqdm)
        self.add_callback(self.progress)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The stock one, whose loss goes to the progress line."""
        loss = super().training_step(*args, **kwargs)
        self.progress.saw(loss.detach() * self.args.gradient_accumulation_steps)
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The stock one; an error takes the progress line away."""
        try:
            return super().evaluation_loop(*args, **kwargs)
        except BaseException:
            self.progress.close()
            raise

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The stock one, in which positions have a learning rate of their own."""
        if self.optimizer is None:
            super().create_optimizer(model)
            args, trained = cast(RunArguments, self.args), cast(Any, self.model if model is None else model)
            words = 1.0 if args.word_learning_rate_factor is None else args.word_learning_rate_factor
            speed_up_positions(cast(Any, self.optimizer), trained, args.position_learning_rate_factor, words=words)
        return cast(torch.optim.Optimizer, self.optimizer)

    def _load_best_model(self) -> None:
        merge(cast(Any, self.model))  # checkpoints are ordinary ones
        super()._load_best_model()

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Writes the run's card, with what has been measured so far."""
        if self.is_world_process_zero():
            metrics = self.run.metrics
            if metrics is None:
                metrics = _metrics_at(self.state.global_step, self.state.log_history)
            files.write_text(Path(str(self.args.output_dir)) / "README.md", _card(self.run, metrics))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.is_world_process_zero():
            self.create_model_card()
            for path in Path(checkpoint_folder).glob("*.py"):
                files.write_bytes(Path(str(self.args.output_dir)) / path.name, path.read_bytes())
        with _without_pickled_arguments(str(self.args.output_dir)):
            super()._push_from_checkpoint(checkpoint_folder)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = output_dir if output_dir is not None else str(self.args.output_dir)
        model = cast(torch.nn.Module, self.model)
        _refuse_divergence(cast(RunArguments, self.args), self.state.global_step, model)
        if has_lora(model):
            state_dict = merged_weights(model)
        with _without_pickled_arguments(folder):
            super()._save(folder, state_dict)


@contextlib.contextmanager
def _without_pickled_arguments(folder: str) -> Iterator[None]:
    """The Trainer's pickle of its arguments gets a name that isn't pushed, in the background either, and goes."""
    name = "_training_args.bin"
    with mock.patch.object(transformers.trainer, "TRAINING_ARGS_NAME", name):
        yield
    (Path(folder) / name).unlink(missing_ok=True)


def finish(
    trainer: RunTrainer, metrics: dict[str, float], test_logits: np.ndarray | str | None, seconds: float
) -> list[dict[str, Any]]:
    """Saves a Trainer's run (see `save_run`) and, with `push_to_hub`, pushes the folder; returns what was logged.

    What it could have been resumed from goes last, unless `keep_checkpoints` is set.
    """
    history = trainer.state.log_history

    def save_model(folder: str) -> None:
        if trainer.is_fsdp_enabled:  # where checkpoints are sharded the Trainer would save no model at all
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(folder, _internal_call=True)  # otherwise it pushes, before the results are there

    save_run(trainer.run, metrics, history, test_logits, seconds, save_model)
    trainer.run.metrics = metrics
    if trainer.args.push_to_hub:
        trainer.push_to_hub()
    training = trainer.run.training
    if training.do_train and not training.keep_checkpoints:
        trainer.accelerator.wait_for_everyone()
        if training.process_index == 0:
            checkpoints.remove_checkpoints(str(training.output_dir))
    return history


class StopOnDivergence(TrainerCallback):
    """Ends a training whose weights are no finite numbers any more, before they are scored and saved."""

    EVERY = 50
    """Steps."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Looks now and then."""
        if state.global_step % self.EVERY == 0 or control.should_evaluate or control.should_training_stop:
            _refuse_divergence(args, state.global_step, model)

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Looks before an evaluation."""
        if control.should_evaluate:
            _refuse_divergence(args, state.global_step, model)


def _refuse_divergence(training: RunArguments, step: int, model: torch.nn.Module) -> None:
    if bad := not_finite(model.named_parameters()):
        left = checkpoints.what_is_left(str(training.output_dir), has_lora(model), diverged=True)
        raise Diverged(
            f"Training diverged: after step {step} {len(bad)} weights hold NaN or infinity, {bad[0]} among them. "
            f"Begin anew with a --learning_rate below {training.learning_rate}, more --warmup_steps, or without other "
            f"options of the optimizer. What is left: {left}"
        )


class StopOnInterrupt(TrainerCallback):
    """While entered: on Ctrl-C, finishes the step, saves a checkpoint and stops; on the second, stops at once.

    Several processes agree after each step, so that all stop at the same one. A terminal and a launcher may both pass
    one Ctrl-C on to each of them: what comes within two seconds of the first isn't a second one there.
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
        if late and error is None and not torch.distributed.is_initialized():  # when there was no more step to finish
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
        """Asks the Trainer to save and stop."""
        if self._agree(args):
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last step: all is saved."""
        self._agree(args)

    def _agree(self, args: TrainingArguments) -> bool:
        """Whether Ctrl-C was pressed in any process."""
        pressed = torch.tensor(self._pressed_at is not None, dtype=torch.int32, device=args.device)
        if args.world_size > 1 and torch.distributed.is_initialized():
            torch.distributed.all_reduce(pressed, torch.distributed.ReduceOp.MAX)
        self.agreed = self.agreed or bool(pressed.item())
        return self.agreed

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Evaluates nothing in the middle of an epoch: the undisturbed run wouldn't, and this might be called best."""
        if self.agreed and not float(state.epoch or 0).is_integer():
            control.should_log = control.should_evaluate = control.should_save = False
        return control


class BestCheckpointIsHere(TrainerCallback):
    """Finds the best checkpoint of a resumed run in its own folder, wherever the run began."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The state has the path of where the run was then."""
        here = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if state.best_global_step and here.is_dir():
            state.best_model_checkpoint = str(here)


class DescribeCheckpoints(TrainerCallback):
    """Writes a README and the results so far into each checkpoint folder: it can be published as it is."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The folder has been written by now."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        folder = Path(str(args.output_dir)) / name
        if args.process_index != 0 or not folder.is_dir():
            return
        metrics = _metrics_at(state.global_step, state.log_history)
        files.write_text(folder / "README.md", _card(self.run, metrics, name))
        files.write_json(folder / checkpoints.RESULTS_NAME, _results(self.run, metrics, state.log_history))


def _metrics_at(step: int, history: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in history:
        if entry["step"] == step:
            found |= {key: value for key, value in entry.items() if key.startswith(("train_", "eval_"))}
    return found


class EvaluationLeavesNoTrace(TrainerCallback):
    """Gives torch's random numbers back after an evaluation, whose data loader draws one.

    Otherwise a checkpoint saved before the evaluation of its step resumes with other dropout than the undisturbed run.
    """

    def __init__(self) -> None:
        self._state: Any = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keeps the state of the step."""
        self._state = torch.get_rng_state()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restores it."""
        if self._state is not None:
            torch.set_rng_state(self._state)


def save_run(
    run: Run,
    metrics: dict[str, float],
    history: list[dict[str, Any]],
    test_logits: np.ndarray | str | None,
    seconds: float,
    save_model: Callable[[str], None],
) -> None:
    """Writes the checkpoint with its README, the results and the predictions: all of them or, if that fails, none.

    Args:
        run: what was trained. All processes call this.
        metrics: what it reached.
        history: what was logged.
        test_logits: what the model says of the test examples, if it was asked; or the lines of the file.
        seconds: how long it took.
        save_model: called with a folder, saves weights, code and tokenizer there.
    """
    training = run.training
    is_main = training.process_index == 0
    metrics = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    with files.replaced_together(str(training.output_dir), is_main) as folder:
        if training.do_train:
            save_model(str(folder))
        if not is_main:
            return
        if training.do_train:
            if bad := checkpoints.not_finite_weights(folder):
                raise Diverged(f"Training diverged: {bad} holds NaN or infinity. Give a lower --learning_rate.")
            if run.assessment is not None:
                run.assessment.draw(folder)
            files.write_text(folder / "README.md", _card(run, metrics))
        if test_logits is not None and run.labels is not None:
            lines = test_logits
            if not isinstance(lines, str):
                lines = _predictions(lines, run.labels, run.test_rows)
            files.write_text(folder / checkpoints.PREDICTIONS_NAME, lines)
        files.write_json(folder / checkpoints.RESULTS_NAME, _results(run, metrics, history, seconds))


def _results(
    run: Run, metrics: dict[str, float], history: list[dict[str, Any]], seconds: float | None = None
) -> dict[str, Any]:
    return {
        "metrics": metrics,
        "best": run.best,
        "search": run.search,
        "assessment": run.assessment and run.assessment.to_dict(),
        "problem_type": run.summary.problem_type,
        "labels": list(run.summary.labels),
        "summary": run.summary.to_dict(),
        "history": history,
        "seconds": seconds and round(seconds, 1),
        "processes": run.training.world_size,
        "versions": versions(),
        "arguments": {
            "data": as_dict(run.data),
            "model": as_dict(run.arguments),
            "training": as_dict(run.training) | {"output_dir": _name(run)},
        },
    }


def dataset_name(data: DataArguments) -> str:
    """What the data is called in reports: its Hub name, or the name of the folder or file, without the path."""
    name = data.dataset_name or data.train_file or data.validation_file or data.test_file or "unknown"
    return Path(name).name if Path(name).exists() else name


def hub_name(name: str | None) -> str | None:
    """A model's name for a model card: None for a folder of this machine, which means nothing elsewhere."""
    return None if name is None or Path(name).exists() else name


def _name(run: Run) -> str:
    return display_name(checkpoints.place(str(run.training.output_dir)))


def _card(run: Run, metrics: dict[str, float], checkpoint: str | None = None) -> str:
    training = run.training
    name = (training.hub_model_id if training.push_to_hub else None) or _name(run)
    is_new = run.arguments.model_name_or_path is None
    shown = {
        "learning_rate": training.learning_rate,
        "position_learning_rate_factor": training.position_learning_rate_factor,
        "word_learning_rate_factor": training.word_learning_rate_factor,
        "num_train_epochs": training.num_train_epochs if training.max_steps <= 0 else None,
        "max_steps": training.max_steps if training.max_steps > 0 else None,
        "batch size": training.train_batch_size * training.world_size * training.gradient_accumulation_steps,
        "schedule": "one-cycle" if training.one_cycle else strategy_name(training.lr_scheduler_type),
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "hidden_dropout_prob": getattr(run.model.config, "hidden_dropout_prob", None),
        "initializer_range": getattr(run.model.config, "initializer_range", None) if is_new else None,
        "class_weights": getattr(training, "class_weights", None),
        "mlm_probability": getattr(training, "mlm_probability", None),
        "lora_rank": run.arguments.lora_rank if run.arguments.lora else None,
        "max_seq_length": run.summary.max_length,
        "seed": training.seed,
        "weights": run.best and f"best by {run.best['metric']}: epoch {run.best['epoch']:g}",
        "parameters": f"{run.summary.parameters:,}, positional {run.summary.positional_parameters:,}",
    }
    return model_card(
        name=name if checkpoint is None else f"{name}/{checkpoint}",
        model=run.model,
        labels=run.labels,
        columns=run.columns,
        dataset=dataset_name(run.data),
        metrics=metrics,
        hyperparameters={name: value for name, value in shown.items() if value is not None},
        assessment=run.assessment,
        license=training.license,
        base_model=hub_name(run.arguments.pretrained or run.arguments.model_name_or_path),
        repo_id=name if training.push_to_hub else None,
    )


def _predictions(logits: np.ndarray, labels: Labels, rows: Sequence[int] | None) -> str:
    """One JSON line per test example: its label or labels with probabilities, or its number."""
    answers = answers_from_logits(logits, labels.names, labels.problem_type)
    numbered = zip(range(len(answers)) if rows is None else rows, answers, strict=True)
    lines = [json.dumps({"index": row, **answer}, ensure_ascii=False) for row, answer in numbered]
    return "".join(f"{line}\n" for line in lines)
