"""The start of a run of any task: its output folder, tokenizer, model and encoded data."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

from ..data.options import DataArguments
from ..data.passes import Passes
from ..data.prepared import PreparedData
from ..data.splits import read_splits
from ..data.tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer
from ..errors import UserError, dashed
from ..options import plain_name
from ..training import checkpoints
from ..training.arguments import DEFAULT_STEPS, ClassificationTrainingArguments, ModelArguments, RunArguments
from ..training.assessment import to_beat
from ..training.recipe import fill_in
from ..training.report import Summary, summarize
from ..training.resuming import check_resumed
from ..training.run import TRAINED_ON, Run
from .model import hub_options, input_length, load_config, make_model, require_head

logger = logging.get_logger(__name__)


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
            f"--resume-from-checkpoint: the run in {output_dir!r} has ended, and there is no checkpoint to resume from "
            "(--keep-checkpoints keeps them). Use the model as it is; train it further into a new folder with "
            f"--model-name-or-path {output_dir}; or start again with --overwrite-output-dir."
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
        raise UserError("Nothing to do. Give at least one of --do-train, --do-eval, --do-predict.")
    if not training.do_train and arguments.model_name_or_path is None:
        raise UserError("Without --do-train there is no model. Name a trained one with --model-name-or-path.")
    resume_from = prepare_output_dir(training)
    config = load_config(arguments)
    if not training.do_train:
        require_head(config, str(arguments.model_name_or_path), head)
    return resume_from, config


def read_data(data: DataArguments, arguments: ModelArguments, training: RunArguments) -> dict[str, Any]:
    """The splits that the options name; what comes from the Hub is fetched by the first process."""
    with training.main_process_first(desc="reading the data") if data.dataset_name else contextlib.nullcontext():
        return read_splits(data, arguments.token, arguments.cache_dir)


def texts_trained_on(arguments: ModelArguments, training: RunArguments) -> frozenset[int]:
    """The marks of the texts that a checkpoint in a folder was trained on; empty where that isn't known."""
    path = Path(str(arguments.model_name_or_path)) / TRAINED_ON
    if training.do_train or not path.is_file():
        return frozenset()
    return frozenset(np.load(path, allow_pickle=False).tolist())


def check_best_metric(training: RunArguments, names: Iterable[str]) -> None:
    """Raises a UserError if `metric_for_best_model` isn't measured, before the Trainer notices after an epoch."""
    wanted = training.metric_for_best_model
    accepted = ("loss", *names)
    if wanted is not None and wanted.removeprefix("eval_") not in accepted:
        raise UserError(f"--metric-for-best-model {wanted!r} isn't measured here. Choose one of {', '.join(accepted)}.")


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
    prepared: PreparedData,
    data: DataArguments,
    arguments: ModelArguments,
    training: RunArguments,
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    resume_from: Path | None,
    fill: Callable[[Any, ModelArguments, Summary, int], None] = fill_in,
) -> tuple[Run, Mapping[str, Any]]:
    """Makes the model and encodes the data.

    Args:
        prepared: the data, its rows chosen.
        data: the options.
        arguments: which model.
        training: the options.
        config: that of the checkpoint to start from.
        tokenizer: of the run.
        resume_from: the checkpoint to resume from.
        fill: sets the options that depend on data and model, as `recipe.fill_in`.

    Returns:
        The run, and the splits as token ids.

    Raises:
        UserError: an option isn't accepted, or a checkpoint can't be read or doesn't fit.
    """
    set_seed(training.seed)
    model = make_model(arguments, data, config, tokenizer, prepared.labels)
    max_length = input_length(data, model, tokenizer)
    encoded = prepared.encode(tokenizer, max_length)
    if isinstance(passes := encoded.get("train"), Passes):
        passes.seed = training.seed if training.data_seed is None else training.data_seed
        passes.ended = resume_from is not None and training.max_steps <= checkpoints.step_of(resume_from)
    batch = training.train_batch_size
    summary = summarize(model, prepared.labels, encoded, max_length, len(tokenizer), batch, prepared.summary)
    fill(training, arguments, summary, model.config.hidden_size)
    if resume_from is not None:
        check_resumed(resume_from, model, training, data)
    run = Run(
        data=data,
        arguments=arguments,
        training=training,
        columns=prepared.columns,
        labels=prepared.labels,
        tokenizer=tokenizer,
        model=model,
        summary=summary,
        test_rows=prepared.splits["test"].rows if "test" in prepared.splits else None,
        trained_on=prepared.splits["train"].marks if "train" in prepared.splits else None,
    )
    return run, encoded


def introduce(
    run: Run, console: Console, baselines: Mapping[str, Mapping[str, float]] | None = None, metric: str = ""
) -> None:
    """Prints the sizes of a run, its precision and, by a metric, what it has to beat."""
    run.summary.show(console)
    if run.training.do_train and run.training.bf16:
        text = "Training in bfloat16 mixed precision (--bf16 false: float32); scores in float32."
        console.print(text, highlight=False)
    if "majority" in (baselines or {}):
        console.print(to_beat(baselines or {}, metric), highlight=False)


def check_streaming(data: DataArguments, training: ClassificationTrainingArguments) -> None:
    """Refuses options that don't go with a stream; what happens once per epoch happens ten times in the run instead.

    Raises:
        UserError: an option doesn't go with a stream, or needs one.
    """
    if not data.streaming:
        for name in ("shuffle_buffer_size", "class_names"):
            if getattr(data, name) is not None:
                raise UserError(
                    f"{dashed(name)} {getattr(data, name)} is for --streaming. Give that too, or leave it out."
                )
        return
    if not training.do_train:
        raise UserError("--streaming is for training data, and there is no --do-train. Leave it out.")
    if training.max_steps <= 0:
        raise UserError(
            "--streaming needs --max-steps: a stream doesn't say how long it is. One pass is the number of training "
            "examples divided by the batch size."
        )
    if data.shuffle_buffer_size is not None and data.shuffle_buffer_size < 1:
        raise UserError(
            f"--shuffle-buffer-size {data.shuffle_buffer_size} is out of range. Give 1 or more; 1: in order."
        )
    refused: dict[str, tuple[Any, str]] = {
        "class_weights": (training.class_weights, "they are scaled by the labels of all training examples"),
        "train_sampling_strategy": (
            plain_name(training.train_sampling_strategy) != "random" and training.train_sampling_strategy,
            "examples come in the order of the stream, shuffled in a buffer (--shuffle-buffer-size)",
        ),
        "dataloader_num_workers": (
            training.dataloader_num_workers > 1 and training.dataloader_num_workers,
            "one process reads the stream",
        ),
    }
    for name, (value, why) in refused.items():
        if value:
            raise UserError(
                f"{dashed(name)} {plain_name(value)} can't be with --streaming: {why}. Leave one of them out."
            )
    tenth = max(1, training.max_steps // 10)
    for kind in ("eval", "save", "logging"):
        strategy = getattr(training, f"{kind}_strategy")
        if plain_name(strategy) == "epoch":
            setattr(training, f"{kind}_strategy", type(strategy)("steps"))
            if getattr(training, f"{kind}_steps") == DEFAULT_STEPS[kind]:  # else it was given
                setattr(training, f"{kind}_steps", tenth)
    # Each process reads the stream itself: dispatched batches would need equal lengths.
    training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]
