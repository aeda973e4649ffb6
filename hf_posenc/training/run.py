"""What the tasks share: the `Run`, its preparation, and its output folder."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

from ..errors import Interrupted, UserError
from . import checkpoints
from .arguments import DataArguments, ModelArguments, RunArguments
from .assessment import Assessment, to_beat
from .data.columns import Columns
from .data.labels import Labels
from .data.source import Source
from .model import hub_options, input_length, load_config, make_model, require_head
from .recipe import fill_in
from .report import Summary, summarize
from .resuming import check_resumed
from .tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer

logger = logging.get_logger(__name__)


@dataclass
class Run:
    """A run of any task: what reports and saving need."""

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
    """Where the kept weights are from: `metric`, `value`, `step`, `epoch`, `checkpoint`. None: the last step."""
    metrics: dict[str, float] | None = field(default=None, kw_only=True)
    """All metrics, at the end."""
    search: dict[str, Any] | None = field(default=None, kw_only=True)
    """What `--search` tried and chose."""
    assessment: Assessment | None = field(default=None, kw_only=True)
    """Set when a classifier has been scored."""

    @property
    def start(self) -> dict[str, Any]:
        """What `assess` wants to know of the model: whether it began with trained weights, and has positions."""
        scheme = getattr(self.model.config, "position_embedding_type", None)
        return {"pretrained": self.arguments.model_name_or_path is not None, "positions": scheme != "none"}


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
    """Of the test data, else the validation data."""
    model: PreTrainedModel = field(kw_only=True, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(kw_only=True, repr=False)
    run: Run = field(kw_only=True, repr=False)
    """What `save_run` needs to write the run elsewhere."""


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


def prepare_start(arguments: ModelArguments, training: RunArguments, head: str) -> tuple[Path | None, Any]:
    """Prepares the output folder, and finds the checkpoint and the configuration to start from.

    Args:
        arguments: which model.
        training: the options.
        head: the ending of the class names of models that can be evaluated; see `require_head`.

    Returns:
        The checkpoint to resume from, and the configuration of the model to start from; each may be None.

    Raises:
        UserError: see `prepare_output_dir`; or there is nothing to do, or no model to do it with.
    """
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do_train, --do_eval, --do_predict.")
    if not training.do_train and arguments.model_name_or_path is None:
        raise UserError("Without --do_train there is no model. Name a trained one with --model_name_or_path.")
    resume_from = prepare_output_dir(training)
    config = load_config(arguments)
    if not training.do_train:
        require_head(config, str(arguments.model_name_or_path), head)
    return resume_from, config


def check_best_metric(training: RunArguments, names: Iterable[str]) -> None:
    """Raises a UserError if `metric_for_best_model` isn't measured, before the Trainer notices after an epoch."""
    wanted = training.metric_for_best_model
    accepted = ("loss", *names)
    if wanted is not None and wanted.removeprefix("eval_") not in accepted:
        raise UserError(f"--metric_for_best_model {wanted!r} isn't measured here. Choose one of {', '.join(accepted)}.")


def make_tokenizer(
    arguments: ModelArguments, data: DataArguments, texts: Iterable[str], resume_from: Path | None
) -> PreTrainedTokenizerBase:
    """The named tokenizer, else the model's or the resumed run's, else one trained on the training texts."""
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


def make_model_and_encode(
    source: Source,
    arguments: ModelArguments,
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    resume_from: Path | None,
    fill: Callable[[Any, ModelArguments, Summary, int], None] = fill_in,
) -> tuple[Run, Mapping[str, Any]]:
    """Makes the model and encodes the data.

    Args:
        source: the data, its rows chosen.
        arguments: which model.
        config: that of the checkpoint to start from.
        tokenizer: of the run.
        resume_from: the checkpoint to resume from.
        fill: sets the options that depend on data and model, as `recipe.fill_in`.

    Returns:
        The run, and the splits as token ids.

    Raises:
        UserError: an option isn't accepted, or a checkpoint can't be read or doesn't fit.
    """
    data, training, labels = source.data, source.training, source.labels
    set_seed(training.seed)
    model = make_model(arguments, data, config, tokenizer, labels)
    max_length = input_length(data, model, tokenizer)
    with training.main_process_first(desc="tokenizing"):
        encoded = source.encode(tokenizer, max_length)
    summary = summarize(model, labels, encoded, max_length, len(tokenizer), training.train_batch_size)
    fill(training, arguments, summary, model.config.hidden_size)
    if resume_from is not None:
        check_resumed(resume_from, model, training, data)
    run = Run(
        data=data,
        arguments=arguments,
        training=training,
        columns=source.columns,
        labels=labels,
        tokenizer=tokenizer,
        model=model,
        summary=summary,
        test_rows=source.rows.get("test"),
    )
    return run, encoded


def introduce(
    run: Run, console: Console, baselines: Mapping[str, Mapping[str, float]] | None = None, metric: str = ""
) -> None:
    """Prints the sizes of a run and, by a metric, what it has to beat."""
    if run.training.process_index == 0:
        run.summary.show(console)
        if "majority" in (baselines or {}):
            console.print(to_beat(baselines or {}, metric), highlight=False)


@contextlib.contextmanager
def ending_clearly(training: RunArguments, is_lora: bool = False) -> Iterator[None]:
    """Locks the folder. Turns a full disk into a UserError and Ctrl-C into an Interrupted that say what is left.

    A run that replaces another is written to `.replacement` in its folder, and takes its place at the end.
    """
    folder = str(training.output_dir)
    owned = checkpoints.owned(folder) if training.process_index == 0 else contextlib.nullcontext()
    with checkpoints.disk_errors(folder), owned, _replacing(training):
        try:
            with checkpoints.disk_errors(folder):  # inside, while the files it names still exist
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
