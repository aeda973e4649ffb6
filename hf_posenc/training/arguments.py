"""The options of training, as dataclasses for `transformers.HfArgumentParser`; names as in transformers' scripts."""

import json
import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import is_torch_xla_available

from ..data.options import COUNT, Range
from ..errors import UserError


@dataclass
class ModelArguments:
    """A trained model, or the sizes and the positional scheme of a new one."""

    pretrained: str | None = field(
        default=None,
        metadata={
            "help": "Pretrained weights to start from: BERT, RoBERTa, DistilBERT, ELECTRA and the like, or a PosEnc "
            "checkpoint, folder or Hub name. They are converted to position_embedding_type (default: their own)."
        },
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A checkpoint to start from: folder or Hub name. Default: a new PosEnc encoder."},
    )
    config_name: str | None = field(
        default=None, metadata={"help": "Configuration of a new encoder: a folder or Hub name of a PosEnc model."}
    )
    config_preset: str | None = field(
        default=None, metadata={"help": "Size of a new encoder: tiny (default), mini, small or base."}
    )
    position_embedding_type: str | None = field(
        default=None, metadata={"help": "Positional scheme of a new encoder: rope (default), none, learned, ..."}
    )
    scheme_file: str | None = field(
        default=None,
        metadata={"help": "A Python file with a scheme of your own, for position_embedding_type to name."},
    )
    position_embedding_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "JSON: arguments of the positional scheme."}
    )
    rope_parameters: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'JSON: for rope, such as {"rope_theta": 160000}.'}
    )
    max_position_embeddings: int | None = field(
        default=None,
        metadata={"help": "Positions of a new encoder whose scheme has a table. Default: max_seq_length, else 512."},
    )
    position_augmentation: str | None = field(
        default=None,
        metadata={"help": "Positions in training: none (default), shift (SHAPE) or random; see PosEncConfig."},
    )
    classifier_pooling: str | None = field(
        default=None, metadata={"help": "How a PosEnc encoder pools: mean (default), cls or max."}
    )
    hidden_dropout_prob: float | None = field(default=None, metadata={"help": "Dropout of a PosEnc encoder."})
    freeze_word_embeddings: bool = field(
        default=False,
        metadata={"help": "Leave a checkpoint's word embeddings as they are: faster steps, a smaller optimizer."},
    )
    lora: bool = field(
        default=False,
        metadata={
            "help": "Train low-rank changes of trained matrices, the positional scheme and the classifier, and freeze "
            "the rest (LoRA): less memory. They are merged in what is saved. Needs PEFT."
        },
    )
    lora_rank: int = field(default=16, metadata={"help": "Rank of the changes that --lora trains."})
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Any other fields of the PosEnc configuration: name=value,name=value."},
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": "A trained tokenizer: folder or Hub name. Default: the model's; for a new encoder, one trained on "
            "the training text."
        },
    )
    tokenizer_type: str = field(
        default="wordpiece",
        metadata={"help": "Tokenizer to train when none is named: wordpiece or bpe."},
    )
    vocab_size: int = field(default=8000, metadata={"help": "Vocabulary of a tokenizer trained here, at most."})
    do_lower_case: bool = field(
        default=True, metadata={"help": "Whether a WordPiece tokenizer trained here ignores case and accents."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where files from the Hub are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of a Hub model."})
    token: str | None = field(default=None, metadata={"help": "Hub token, for private models and data sets."})
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Run code that comes with a model; PosEnc needs it only for a scheme of the author's own."},
    )
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Give a checkpoint with another number of labels a new classifier."}
    )


_POSITIVE = Range("a positive number", lambda value: 0 < value < math.inf)
_NOT_NEGATIVE = Range("0 or a positive number", lambda value: 0 <= value < math.inf)
_FACTOR = Range("a number from 0 to 1000", lambda value: 0 <= value <= 1000)
_SHARE = Range("a number from 0 to below 1", lambda value: 0 <= value < 1)
_SEED = Range("a whole number from 0 to 4294967295", lambda value: 0 <= value < 2**32)
_RANGES = {
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "gradient_accumulation_steps": COUNT,
    "num_train_epochs": _POSITIVE,
    "max_steps": Range("a whole number from 1, or -1 for none", lambda value: value == -1 or value >= 1),
    "learning_rate": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "position_learning_rate_factor": _FACTOR,
    "word_learning_rate_factor": _FACTOR,
    "max_grad_norm": _NOT_NEGATIVE,
    "warmup_steps": _NOT_NEGATIVE,
    "adam_beta1": _SHARE,
    "adam_beta2": _SHARE,
    "adam_epsilon": _POSITIVE,
    "label_smoothing_factor": _SHARE,
    "eval_steps": _POSITIVE,
    "save_steps": _POSITIVE,
    "logging_steps": _POSITIVE,
    "save_total_limit": COUNT,
    "early_stopping_patience": COUNT,
    "early_stopping_threshold": _NOT_NEGATIVE,
    "dataloader_num_workers": Range("a whole number from 0", lambda value: value >= 0),
    "errors_shown": Range("a whole number from 0", lambda value: value >= 0),
    "search": Range("a whole number from 2", lambda value: value >= 2 and value == int(value)),
    "seed": _SEED,
    "data_seed": _SEED,
}
_STRATEGIES = {
    "eval_strategy": [strategy.value for strategy in IntervalStrategy],
    "save_strategy": [strategy.value for strategy in SaveStrategy],
    "logging_strategy": [strategy.value for strategy in IntervalStrategy],
}
DEFAULT_STEPS = {
    kind: TrainingArguments.__dataclass_fields__[f"{kind}_steps"].default for kind in ("eval", "save", "logging")
}
"""Transformers' defaults of `eval_steps`, `save_steps` and `logging_steps`."""


def strategy_name(strategy: Any) -> str:
    """The name of a transformers enum's member, or of a strategy that still is a string."""
    return str(getattr(strategy, "value", strategy))


@dataclass
class RunArguments(TrainingArguments):
    """`transformers.TrainingArguments`, all of them, with other defaults and a few additions.

    Defaults that differ: evaluation (with `do_eval`), logging and checkpoints once per epoch, two checkpoints kept,
    the best one's weights in the end, batches of 32, a tenth of the steps to warm up, and a learning rate that depends
    on the model.
    """

    learning_rate: float | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Peak learning rate of AdamW. Default: from a checkpoint 1e-4 up to 512 wide, else 5e-5, "
            "ten times that with --lora; for a new encoder 1e-3 up to 256 wide, 5e-4 up to 512, else 1e-4."
        },
    )
    num_train_epochs: float | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Passes over the training data. Default: 6 to 100 (4 to 20 from a checkpoint), the more the fewer "
            "examples there are."
        },
    )
    word_learning_rate_factor: float | None = field(
        default=None,
        metadata={
            "help": "How many times the learning rate the word embeddings of a new encoder get. Default: 1 to 4, "
            "the more the fewer tokens there are for each entry of the vocabulary."
        },
    )
    position_learning_rate_factor: float | None = field(
        default=None,
        metadata={
            "help": "How many times the learning rate the positional scheme's parameters get. Default: the scheme's, "
            "30 for the biases of t5, kerple and alibi with learned slopes and for the learned scale of sinusoidal, 10 "
            "for fire, mlp_bias, relative_key and relative_key_query, else 1."
        },
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Batch size for training, per device."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Batch size for evaluation, per device."})
    eval_accumulation_steps: int | None = field(
        default=64, metadata={"help": "Batches of an evaluation whose answers wait on the device to go to the CPU."}
    )
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps over which the learning rate rises; below 1, a share of all steps."}
    )
    eval_strategy: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "When to evaluate: no, steps, epoch. Default: epoch with --do_train --do_eval; of more than 20 "
            "epochs about 20 of them."
        },
    )
    logging_strategy: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "When to log: no, steps, epoch. Default: epoch, or when it is evaluated."}
    )
    save_strategy: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "When to save a checkpoint: no, steps, epoch, best. Default: when it is evaluated."},
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "How many checkpoints are kept."})
    # The three-valued switches are annotated as bool: HfArgumentParser takes a bare --switch only then.
    load_best_model_at_end: bool = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Keep the weights of the best evaluation, by metric_for_best_model (default: macro_f1; with --task "
            "tokens span_f1 where labels mark spans; of numbers and masked tokens the loss), not the last ones. "
            "Default: if checkpoints are saved when they are evaluated."
        },
    )
    keep_checkpoints: bool = field(
        default=False,
        metadata={
            "help": "Keep the checkpoint-N folders, which hold what a run resumes from, when training has ended. "
            "Default: they go once the model is saved."
        },
    )
    one_cycle: bool = field(
        default=False,
        metadata={"help": "PyTorch's one-cycle schedule (learning rate and momentum) instead of lr_scheduler_type."},
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after this many evaluations without a better metric_for_best_model (default: loss)."},
    )
    early_stopping_threshold: float = field(
        default=0.0, metadata={"help": "How much better an evaluation must be to count as better."}
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={
            "help": "Replace the run that output_dir holds, when the new one has ended; until then its checkpoints are "
            "in .earlier. Without it, such a folder is refused."
        },
    )
    hub_strategy: str = field(default="end", metadata={"help": "When push_to_hub pushes: end, and nothing else."})
    license: str | None = field(default=None, metadata={"help": "Licence of the model, for its README: apache-2.0."})

    def __post_init__(self) -> None:
        """Fills in what depends on other options, and refuses numbers out of range."""
        for name, accepted in _RANGES.items():
            value = getattr(self, name, None)
            if value is not None and not accepted.holds(value):
                raise UserError(f"--{name} {value} is out of range. Give {accepted.text}.")
        for name, accepted_names in _STRATEGIES.items():
            strategy = getattr(self, name)
            if strategy is not None and strategy_name(strategy) not in accepted_names:
                raise UserError(f"--{name} {strategy!r} is unknown. Choose one of {', '.join(accepted_names)}.")
        if self.learning_rate is not None and self.learning_rate > 1 and "adam" in strategy_name(self.optim):
            raise UserError(
                f"--learning_rate {self.learning_rate} is out of range: AdamW moves each weight by about that much. "
                "Give a number from 0 to 1; usual are 1e-5 to 1e-4 from a checkpoint, 1e-4 to 3e-3 for a new encoder."
            )
        self.chooses_metric = self.metric_for_best_model is None
        strategies = (self.eval_strategy, self.save_strategy, self.logging_strategy, self.early_stopping_patience)
        self.chooses_evaluations, self.epochs_together = strategies == (None,) * 4, 1
        self.logging_strategy = self.logging_strategy or "epoch"
        if self.eval_strategy is None:
            self.eval_strategy = "epoch" if self.do_eval and self.do_train else "no"
        evaluated = strategy_name(self.eval_strategy)
        if self.save_strategy is None:
            self.save_strategy = "epoch" if evaluated == "no" else evaluated
            if evaluated == "steps" and self.save_steps == DEFAULT_STEPS["save"]:
                self.save_steps = self.eval_steps or self.logging_steps
        if not self.do_train:  # the options of a training also serve to evaluate it
            self.load_best_model_at_end = False
        elif self.load_best_model_at_end is None:
            self.load_best_model_at_end = self.early_stopping_patience is not None or self._saves_what_it_evaluates()
        if self.metric_for_best_model is None and (
            self.early_stopping_patience is not None or strategy_name(self.save_strategy) == "best"
        ):
            self.metric_for_best_model = "loss"
        if self.early_stopping_patience is not None:
            if self.do_train and (evaluated == "no" or not self.do_eval):
                raise UserError(
                    f"--early_stopping_patience {self.early_stopping_patience} needs evaluations while training: give "
                    "--do_eval, and leave --eval_strategy out or set it to epoch or steps."
                )
            self.restore_callback_states_from_checkpoint = self.resume_from_checkpoint is not None
        for name in ("bf16_full_eval", "fp16_full_eval"):
            if getattr(self, name):
                raise UserError(f"--{name} rounds the weights that are saved, and scores are float32. Leave it out.")
        if not torch.accelerator.is_available() and not is_torch_xla_available():
            if self.fp16:
                raise UserError("--fp16 needs a GPU, and there is none. Use --bf16, which works on a CPU too.")
            self.use_cpu = True  # else TrainingArguments refuses bf16, and each of several processes trains alone
        # TrainingArguments takes every metric except the loss as better when greater.
        shrinking = ("mse", "perplexity", "nll")
        if self.greater_is_better is None and (self.metric_for_best_model or "").removeprefix("eval_") in shrinking:
            self.greater_is_better = False
        super().__post_init__()

        if self.push_to_hub and strategy_name(self.hub_strategy) != "end":
            raise UserError(
                f"--hub_strategy {strategy_name(self.hub_strategy)} would publish a run that isn't whole, and pickles. "
                "Leave it out: the run is pushed when it has ended."
            )

    def _saves_what_it_evaluates(self) -> bool:
        evaluated, saved = strategy_name(self.eval_strategy), strategy_name(self.save_strategy)
        if evaluated == "no" or saved not in ("best", evaluated):
            return False
        return saved != "steps" or self.save_steps % (self.eval_steps or self.logging_steps) == 0

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything but the Hub token."""
        return {**self.__dict__, "hub_token": None}


@dataclass
class ClassificationTrainingArguments(RunArguments):
    """`RunArguments`, and what only classification has."""

    score_test: bool = field(
        default=False,
        metadata={"help": "Score the test split, as do_predict does, if there is one and it has labels."},
    )
    baseline: bool = field(
        default=True,
        metadata={
            "help": "Before training, score what an encoder has to beat: the most frequent answer, and a linear model "
            "on words and word pairs (TF-IDF). It takes seconds."
        },
    )
    compare_none: bool = field(
        default=False,
        metadata={"help": "Train the same without positions first, and say whether that would do as well."},
    )
    search: int | None = field(
        default=None,
        metadata={
            "help": "Before training, try this many combinations of learning rate, dropout and, for a new encoder, "
            "initializer_range, in a third of the steps each, and train with the one that is best on the validation "
            "data."
        },
    )
    errors_shown: int = field(
        default=10,
        metadata={"help": "How many of the most confident errors results.json and the card list. 0: no texts there."},
    )
    class_weights: str | None = field(
        default=None,
        metadata={
            "help": 'balanced, or JSON with a weight for each label ({"rare": 5, "common": 1}): how much an example '
            "of a label counts in the loss."
        },
    )


@dataclass
class MaskedLMTrainingArguments(RunArguments):
    """`RunArguments`, and what only masked language models have."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that are to be predicted."})
    line_by_line: bool = field(
        default=True,
        metadata={
            "help": "Each text is an input of its own, with its [CLS] and [SEP]. False: texts are joined and cut into "
            "blocks of max_seq_length tokens."
        },
    )


def parse_json_option(name: str, value: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """The value of an option that is a JSON object.

    Raises:
        UserError: it isn't one.
    """
    if value is None or isinstance(value, dict):
        return value
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise UserError(f"--{name} {value!r} is no JSON ({error}). Give an object: '{{\"name\": 1}}'.") from error
    if not isinstance(parsed, dict):
        raise UserError(f"--{name} {value!r} is no JSON object. Give one: '{{\"name\": 1}}'.")
    return parsed


def as_dict(arguments: Any) -> dict[str, Any]:
    """Options as plain values for a results file, without secrets and without local folders."""
    if isinstance(arguments, TrainingArguments):
        values = arguments.to_dict()
    else:
        values = {item.name: getattr(arguments, item.name) for item in fields(arguments)}
        if values.get("token"):
            values["token"] = "<hidden>"
    # The results file is published with the model.
    return {name: _without_folder(value) for name, value in values.items()}


def _without_folder(value: Any) -> Any:
    """Cuts a path on this machine to its last part; in lists and dictionaries too."""
    if isinstance(value, dict):
        return {name: _without_folder(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item) for item in value]
    if not isinstance(value, str) or len(Path(value).parts) < 2:
        return value
    is_here = value.startswith(("/", "~", "./", "../")) or Path(value).is_absolute() or os.path.exists(value)
    return Path(value).name if is_here else value
