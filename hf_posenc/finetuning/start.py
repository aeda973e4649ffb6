"""The start of a run of any task: its output folder, tokenizer, model and encoded data."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging

from ..data.options import DataArguments
from ..data.passes import Passes
from ..data.prepared import PreparedData, Use
from ..data.preparing import prepare
from ..data.splits import read_splits
from ..data.tokenizer import DEFAULT_MAX_LENGTH, load_tokenizer, train_tokenizer
from ..errors import UserError, dashed
from ..options import plain_name, refuse_given
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
    output_dir, overwrite = str(training.output_dir), training.overwrite_output_dir
    resumed = training.resume_from_checkpoint
    checkpoints.check_run_folder(training)
    resume_from = checkpoints.find_resume_point(output_dir, resumed, overwrite=overwrite)
    if resumed and resume_from is None and not overwrite and checkpoints.has_ended(output_dir):
        raise UserError(
            f"--resume-from-checkpoint: the run in {output_dir!r} has ended, and there is no checkpoint to resume from "
            f"(--keep-checkpoints keeps them). Train it further with --model-name-or-path {output_dir}, or start again "
            "with --overwrite-output-dir."
        )
    if resumed and resume_from is None:
        logger.warning(f"No whole checkpoint in {output_dir!r}: training starts at the beginning.")
    training.resume_from_checkpoint = None if resume_from is None else str(resume_from)
    if training.device.type == "cpu":
        training.dataloader_pin_memory = False  # pinned memory is for copies to an accelerator
    return resume_from


def read_data(data: DataArguments, arguments: ModelArguments, training: RunArguments) -> dict[str, Any]:
    """The splits that the options name; what comes from the Hub is fetched by the first process."""
    with training.main_process_first(desc="reading the data") if data.dataset_name else contextlib.nullcontext():
        return read_splits(data, arguments.token, arguments.cache_dir)


def check_best_metric(training: RunArguments, names: Iterable[str]) -> None:
    """Raises a UserError if `metric_for_best_model` isn't measured, before the Trainer notices after an epoch."""
    wanted = training.metric_for_best_model
    accepted = ("loss", *names)
    if wanted is not None and wanted.removeprefix("eval_") not in accepted:
        raise UserError(f"--metric-for-best-model {wanted!r} isn't measured here. Choose one of {', '.join(accepted)}.")


@dataclass(frozen=True)
class Start:
    """The options of a run, and what it starts from."""

    data: DataArguments
    arguments: ModelArguments
    training: Any
    resume_from: Path | None
    """The checkpoint to resume from."""
    config: Any
    """Of the checkpoint to start from. None: a new encoder."""

    @classmethod
    def check(cls, data: DataArguments, arguments: ModelArguments, training: RunArguments, head: str) -> "Start":
        """Prepares the output folder, and finds the checkpoint and the configuration to start from.

        Args:
            data, arguments, training: the options.
            head: the ending of the class names of models that can be evaluated; see `require_head`.

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
        return cls(data, arguments, training, resume_from, config)

    def texts_trained_on(self) -> frozenset[int]:
        """The marks of the texts that a checkpoint in a folder was trained on; empty where that isn't known."""
        path = Path(str(self.arguments.model_name_or_path)) / TRAINED_ON
        if self.training.do_train or not path.is_file():
            return frozenset()
        return frozenset(np.load(path, allow_pickle=False).tolist())

    def prepare(self, splits: Mapping[str, Any] | None, use: Use) -> PreparedData:
        """The splits, read if they haven't been, as a run uses them."""
        splits = read_data(self.data, self.arguments, self.training) if splits is None else splits
        return prepare(splits, self.data, use)

    def make_tokenizer(self, prepared: PreparedData) -> PreTrainedTokenizerBase:
        """The named tokenizer, else the model's or the resumed run's, else one trained on the training texts."""
        arguments = self.arguments
        name = arguments.tokenizer_name or arguments.model_name_or_path or self.resume_from
        if name is not None:
            options = hub_options(arguments)
            if name == self.resume_from:
                options["revision"] = "main"
            return load_tokenizer(str(name), **options)
        return train_tokenizer(
            prepared.training_texts(),
            arguments.tokenizer_type,
            arguments.vocab_size,
            model_max_length=self.data.max_seq_length or arguments.max_position_embeddings or DEFAULT_MAX_LENGTH,
            do_lower_case=arguments.do_lower_case,
        )

    def make_run(
        self,
        prepared: PreparedData,
        tokenizer: PreTrainedTokenizerBase,
        fill: Callable[[Any, ModelArguments, Summary, int], None] = fill_in,
    ) -> tuple[Run, Mapping[str, Any]]:
        """Makes the model and encodes the data.

        Args:
            prepared: the data, its rows chosen.
            tokenizer: of the run.
            fill: sets the options that depend on data and model, as `recipe.fill_in`.

        Returns:
            The run, and the splits as token ids.

        Raises:
            UserError: an option isn't accepted, or a checkpoint can't be read or doesn't fit.
        """
        training, splits = self.training, prepared.splits
        set_seed(training.seed)
        model = make_model(self.arguments, self.data, self.config, tokenizer, prepared.labels)
        max_length = input_length(self.data, model, tokenizer)
        encoded = prepared.encode(tokenizer, max_length)
        if isinstance(passes := encoded.get("train"), Passes):
            passes.seed = training.seed if training.data_seed is None else training.data_seed
            resumed = self.resume_from
            passes.ended = resumed is not None and training.max_steps <= checkpoints.step_of(resumed)
        batch = training.train_batch_size
        summary = summarize(model, prepared.labels, encoded, max_length, len(tokenizer), batch, prepared.summary)
        fill(training, self.arguments, summary, model.config.hidden_size)
        if self.resume_from is not None:
            check_resumed(self.resume_from, model, training, self.data)
        run = Run(
            data=self.data,
            arguments=self.arguments,
            training=training,
            columns=prepared.columns,
            labels=prepared.labels,
            tokenizer=tokenizer,
            model=model,
            summary=summary,
            test_rows=splits["test"].rows if "test" in splits else None,
            trained_on=splits["train"].marks if "train" in splits else None,
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
        refuse_given(data, ("shuffle_buffer_size", "class_names"), "is for --streaming")
        return
    if not training.do_train:
        raise UserError("--streaming is for training data, and there is no --do-train. Leave it out.")
    if training.max_steps <= 0:
        raise UserError("--streaming needs --max-steps: a stream doesn't say how long it is. One pass: rows / batch.")
    if data.shuffle_buffer_size is not None and data.shuffle_buffer_size < 1:
        raise UserError(f"--shuffle-buffer-size {data.shuffle_buffer_size} is out of range. Give 1 or more.")
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
            raise UserError(f"{dashed(name)} {plain_name(value)} can't be with --streaming: {why}. Leave one out.")
    tenth = max(1, training.max_steps // 10)
    for kind in ("eval", "save", "logging"):
        strategy = getattr(training, f"{kind}_strategy")
        if plain_name(strategy) == "epoch":
            setattr(training, f"{kind}_strategy", type(strategy)("steps"))
            if getattr(training, f"{kind}_steps") == DEFAULT_STEPS[kind]:  # else it was given
                setattr(training, f"{kind}_steps", tenth)
    # Each process reads the stream itself: dispatched batches would need equal lengths.
    training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]
