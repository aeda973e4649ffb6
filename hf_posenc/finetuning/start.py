"""The start of a run: its output folder, tokenizer, model and encoded data."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

from ..data.options import DataArguments
from ..data.prepared import PreparedData
from ..data.splits import read_splits
from ..data.tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer
from ..errors import UserError
from ..training.arguments import ModelArguments, RunArguments, plain_options
from ..training.checkpoints import find_resume_point
from ..training.output_folder import check_run_folder
from ..training.recipe import fill_in
from ..training.resuming import check_resumed
from ..training.run import PREFIXES, TRAINED_ON, Setup
from ..training.summary import summarize
from .loading import hub_options, require_classifier
from .model import input_length, load_config, make_model

logger = logging.get_logger(__name__)


def begin(arguments: ModelArguments, training: RunArguments) -> Any:
    """Checks the output folder, and finds the checkpoint to resume from and the one to start from; deletes nothing.

    Args:
        arguments: which model.
        training: `resume_from_checkpoint` becomes a folder, or None.

    Returns:
        The configuration of the checkpoint to start from. None: a new encoder.

    Raises:
        UserError: there is nothing to do, or no model to do it with; the folder holds another run, can't be written
            to, or has nothing to resume from.
    """
    if not (training.do_train or training.do_eval or training.do_predict):
        raise UserError("Nothing to do. Give at least one of --do-train, --do-eval, --do-predict.")
    if not training.do_train and arguments.model_name_or_path is None:
        raise UserError("Without --do-train there is no model. Name a trained one with --model-name-or-path.")
    check_run_folder(training)
    output_dir, resumed = str(training.output_dir), training.resume_from_checkpoint
    resume_from = find_resume_point(output_dir, resumed, overwrite=training.overwrite_output_dir)
    training.resume_from_checkpoint = None if resume_from is None else str(resume_from)
    if training.device.type == "cpu":
        training.dataloader_pin_memory = False  # pinned memory is for copies to an accelerator
    config = load_config(arguments)
    if not training.do_train:
        require_classifier(config, str(arguments.model_name_or_path))
    return config


def read_data(data: DataArguments, arguments: ModelArguments, training: RunArguments) -> dict[str, Any]:
    """The splits that the options name; what comes from the Hub is fetched by the first process."""
    with training.main_process_first(desc="reading the data") if data.dataset_name else contextlib.nullcontext():
        return read_splits(data, arguments.token, arguments.cache_dir)


def texts_trained_on(checkpoint: str | None) -> frozenset[int]:
    """The marks of the texts that a checkpoint in a folder was trained on; empty where that isn't known."""
    path = Path(str(checkpoint)) / TRAINED_ON
    return frozenset(np.load(path, allow_pickle=False).tolist()) if path.is_file() else frozenset()


def choose_metric(training: RunArguments, names: Iterable[str], best: str | None = None) -> None:
    """Sets what the best weights are chosen by, where that wasn't given, and checks it before the first epoch.

    Args:
        training: the options; changed in place.
        names: the metrics of the task.
        best: the one to choose by. None: the loss.

    Raises:
        UserError: `metric_for_best_model` isn't measured.
    """
    if best is not None and training.chooses_metric and training.metric_for_best_model:
        training.metric_for_best_model, training.greater_is_better = best, True
    wanted, accepted = training.metric_for_best_model, ("loss", *names)
    if wanted is not None and wanted.removeprefix("eval_") not in accepted:
        raise UserError(f"--metric-for-best-model {wanted!r} isn't measured here. Choose one of {', '.join(accepted)}.")


def make_tokenizer(
    arguments: ModelArguments, resumed: str | None, prepared: PreparedData, max_length: int | None
) -> PreTrainedTokenizerBase:
    """The named tokenizer, else the model's or the resumed run's, else one trained on the training texts."""
    name = arguments.tokenizer_name or arguments.model_name_or_path or resumed
    if name is not None:
        options = hub_options(arguments)
        if name == resumed:
            options["revision"] = "main"
        return load_tokenizer(name, **options)
    return train_tokenizer(
        prepared.training_texts(),
        arguments.tokenizer_type,
        arguments.vocab_size,
        model_max_length=max_length or arguments.max_position_embeddings or DEFAULT_MAX_LENGTH,
        do_lower_case=arguments.do_lower_case,
    )


def make_setup(
    prepared: PreparedData,
    data: DataArguments,
    arguments: ModelArguments,
    training: Any,
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    **task: Any,
) -> Setup:
    """Makes the model and encodes the data.

    Args:
        prepared: the data, its rows chosen.
        data, arguments, training: the options.
        config: of the checkpoint to start from.
        tokenizer: of the run.
        **task: how the model is trained and scored; see `Setup`.

    Raises:
        UserError: an option isn't accepted, or a checkpoint can't be read or doesn't fit.
    """
    splits = prepared.splits
    set_seed(training.seed)
    model = make_model(arguments, config, tokenizer, prepared.labels, data.max_seq_length)
    max_length = input_length(model, tokenizer, data.max_seq_length)
    encoded = prepared.encode(tokenizer, max_length)
    batch = training.train_batch_size
    summary = summarize(model, prepared.labels, encoded, max_length, len(tokenizer), batch, prepared.summary)
    is_trained = arguments.model_name_or_path is not None
    fill_in(training, summary, model.config.hidden_size, is_trained=is_trained, lora=arguments.lora)
    record = _record(data, arguments, training)
    if training.resume_from_checkpoint is not None:
        check_resumed(Path(training.resume_from_checkpoint), model, record["options"])
    examples = {prefix: splits[split] for split, prefix in PREFIXES.items() if split in splits}
    return Setup(
        **record,
        columns=prepared.columns,
        labels=prepared.labels,
        tokenizer=tokenizer,
        model=model,
        summary=summary,
        test_rows=splits["test"].rows if "test" in splits else None,
        trained_on=splits["train"].marks if "train" in splits else None,
        training=training,
        encoded=encoded,
        examples={prefix: part for prefix, part in examples.items() if part.labels is not None},
        **task,
    )


def _record(data: DataArguments, arguments: ModelArguments, training: RunArguments) -> dict[str, Any]:
    """What a `Run` keeps of the options."""
    output_dir, model = Path(str(training.output_dir)), arguments.pretrained or arguments.model_name_or_path
    return {
        "output_dir": output_dir,
        "options": plain_options(data, arguments, training),
        "base_model": None if model is None or Path(model).exists() else model,
        "repo_id": (training.hub_model_id or output_dir.resolve().name) if training.push_to_hub else None,
        "batch_size": training.examples_per_step,
        "processes": training.world_size,
    }
