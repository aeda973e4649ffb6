"""The options of models and training, declared without PyTorch: `arguments` joins them to transformers' own."""

import functools
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..options import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Range,
    check_values,
    one_of,
    option,
    parse_json_option,
    plain_name,
    whole_number,
)
from .transformers_options import enumeration

_first = functools.partial(option, panel="")
_model = functools.partial(option, panel="Model")
_schedule = functools.partial(option, panel="Optimizer and schedule")
_kept = functools.partial(option, panel="Evaluation and what is kept")
_speed = functools.partial(option, panel="Speed and memory")
_FACTOR = Range("a number from 0 to 1000", lambda value: 0 <= value <= 1000)
_SHARE = Range("a number from 0 to below 1", lambda value: 0 <= value < 1)
_PROBABILITY = Range("a probability from 0 to 1", lambda value: 0 <= value <= 1)
_INTERVALS = one_of("no", "steps", "epoch")
NO_SCORES = ("_runtime", "_per_second", "_preparation_time", "total_flos", "epoch")
"""How the names of those metrics of the Trainer end that say nothing of the model."""
_OF_TRANSFORMERS = {
    "data_seed": SEED,
    "adam_beta1": _SHARE,
    "adam_beta2": _SHARE,
    "adam_epsilon": POSITIVE,
    "label_smoothing_factor": _SHARE,
    "eval_steps": POSITIVE,
    "save_steps": POSITIVE,
    "logging_steps": POSITIVE,
    "dataloader_num_workers": whole_number(0),
}
"""The ranges of options that transformers alone declares."""


@dataclass
class ModelArguments:
    """A trained model, or the sizes and the positional scheme of a new one."""

    pretrained: str | None = _model(
        None,
        "Start from these weights, of the BERT family: best for 100 to 50,000 rows.",
        "BERT, RoBERTa, DistilBERT, ELECTRA and the like, or a PosEnc checkpoint, folder or Hub name. They are "
        "converted to position_embedding_type (default: their own).",
        is_source=True,
    )
    position_embedding_type: str | None = _model(
        None, "Positional scheme: see `schemes`; default rope, or the pretrained one."
    )
    position_embedding_kwargs: dict[str, Any] | str | None = option(
        None, "The scheme's own arguments.", "A JSON object.", panel="Model"
    )
    scheme_file: str | None = _model(
        None, "A Python file with a scheme of your own.", "position_embedding_type names it."
    )
    position_augmentation: str | None = _model(
        None,
        "Positions in training: none (default), shift or random.",
        "shift is SHAPE; see PosEncConfig.",
        accepts=one_of("none", "shift", "random"),
    )
    config_preset: str | None = _model(
        None,
        "Size of a new encoder: tiny (default), mini, small, base.",
        accepts=one_of("tiny", "mini", "small", "base"),
    )
    classifier_pooling: str | None = _model(
        None, "mean (default), cls or max.", "How a PosEnc encoder pools.", accepts=one_of("mean", "cls", "max")
    )
    model_name_or_path: str | None = _model(
        None, "Start from a PosEnc checkpoint, unchanged.", "A folder or Hub name.", is_source=True
    )
    lora: bool = _model(
        False,
        "Train low-rank updates (LoRA) of pretrained weights, with PEFT.",
        "The positional scheme and the classifier are trained too, the rest is frozen: less memory. They are merged in "
        "what is saved.",
    )
    tokenizer_name: str | None = _model(
        None,
        "Tokenizer; default: the model's, or one trained on your text.",
        "A folder or Hub name.",
        is_source=True,
    )
    config_name: str | None = option(
        None, "Configuration of a new encoder: a folder or Hub name of a PosEnc model.", is_source=True
    )
    rope_parameters: dict[str, Any] | str | None = option(None, 'JSON: for rope, such as {"rope_theta": 160000}.')
    max_position_embeddings: int | None = option(
        None, "Positions of a new encoder whose scheme has a table. Default: max_seq_length, else 512.", accepts=COUNT
    )
    hidden_dropout_prob: float | None = option(None, "Dropout of a PosEnc encoder.", accepts=_PROBABILITY)
    freeze_word_embeddings: bool = option(
        False, "Leave a checkpoint's word embeddings as they are: faster steps, a smaller optimizer."
    )
    lora_rank: int = option(16, "Rank of the changes that --lora trains.", accepts=COUNT)
    config_overrides: str | None = option(
        None,
        "Any other fields of the PosEnc configuration: name=value,name=value.",
        "Values are JSON where they can be.",
    )
    tokenizer_type: str = option(
        "wordpiece", "Tokenizer to train when none is named: wordpiece or bpe.", accepts=one_of("wordpiece", "bpe")
    )
    vocab_size: int = option(8000, "Vocabulary of a tokenizer trained here, at most.")
    do_lower_case: bool = option(True, "Whether a WordPiece tokenizer trained here ignores case and accents.")
    cache_dir: str | None = option(None, "Where files from the Hub are kept.")
    model_revision: str = option("main", "Branch, tag or commit of a Hub model.")
    token: str | None = option(None, "Hub token, for private models and data sets.")
    trust_remote_code: bool = option(
        False, "Run code that comes with a model; PosEnc needs it only for a scheme of the author's own."
    )
    ignore_mismatched_sizes: bool = option(False, "Give a checkpoint with another number of labels a new classifier.")

    def __post_init__(self) -> None:
        """Refuses values out of range, and reads JSON."""
        check_values(self)
        for name in ("position_embedding_kwargs", "rope_parameters"):
            setattr(self, name, parse_json_option(name, getattr(self, name)))


@dataclass
class RunOptions:
    """What we add to `transformers.TrainingArguments`, and what has another default or a better help here.

    Defaults that differ: evaluation (with `do_eval`), logging and checkpoints once per epoch, two checkpoints kept,
    the best one's weights in the end, batches of 32, a tenth of the steps to warm up, and a learning rate that depends
    on the model.
    """

    output_dir: str | None = _first(None, "Folder for the checkpoint.", argparse={"aliases": ["-o"]})
    overwrite_output_dir: bool = _first(
        False,
        "Replace the folder's run when the new one is complete.",
        "Until then its checkpoints are in .earlier. Without it, such a folder is refused.",
    )
    resume_from_checkpoint: str | None = _first(
        None,
        "Resume from the newest whole checkpoint, or from a checkpoint-N.",
        "Give a folder; nothing or true for the newest.",
        argparse={"metavar": "BOOL|FOLDER", "nargs": "?", "const": "true"},
    )
    seed: int = _first(42, "Seed of weights and order; default 42.", accepts=SEED)
    num_train_epochs: float | None = _schedule(
        None,
        "Epochs; default: the more, the fewer rows there are.",
        "6 to 100, from a checkpoint 4 to 20.",
        accepts=POSITIVE,
    )
    max_steps: int = _schedule(
        -1,
        "Optimizer steps, instead of epochs.",
        accepts=Range("a whole number from 1, or -1 for none", lambda value: value == -1 or value >= 1),
    )
    learning_rate: float | None = _schedule(
        None,
        "Peak learning rate; default: by model size.",
        "From a checkpoint 1e-4 up to 512 wide, else 5e-5, ten times that with --lora; for a new encoder 1e-3 up to "
        "256 wide, 5e-4 up to 512, else 1e-4.",
        accepts=NOT_NEGATIVE,
    )
    lr_scheduler_type: str = _schedule(
        "linear", "linear (default), cosine, constant_with_warmup, ...", accepts=one_of(*enumeration("SchedulerType"))
    )
    one_cycle: bool = _schedule(
        False, "Use the one-cycle schedule instead.", "PyTorch's, of learning rate and momentum."
    )
    warmup_steps: float = _schedule(
        0.1, "Steps to warm up; below 1, a share of all; default 0.1.", accepts=NOT_NEGATIVE
    )
    weight_decay: float = _schedule(0.0, "Weight decay of AdamW; default 0.", accepts=NOT_NEGATIVE)
    max_grad_norm: float = _schedule(1.0, "Norm to which gradients are clipped; default 1.", accepts=NOT_NEGATIVE)
    word_learning_rate_factor: float | None = option(
        None,
        "How many times the learning rate the word embeddings of a new encoder get. Default: 1 to 4, the more the "
        "fewer tokens there are for each entry of the vocabulary.",
        accepts=_FACTOR,
    )
    position_learning_rate_factor: float | None = option(
        None,
        "How many times the learning rate the positional scheme's parameters get. Default: the scheme's own, 30 for "
        "numbers that are a bias, 10 for what makes one, else 1; docs/positions.md lists them.",
        accepts=_FACTOR,
    )
    eval_strategy: str | None = _kept(
        None,
        "When to evaluate and save: epoch (default), steps, no.",
        "The default needs --do-train --do-eval; of more than 20 epochs about 20 are evaluated.",
        accepts=_INTERVALS,
    )
    logging_strategy: str | None = option(
        None, "When to log: no, steps, epoch. Default: epoch, or when it is evaluated.", accepts=_INTERVALS
    )
    save_strategy: str | None = option(
        None,
        "When to save a checkpoint: no, steps, epoch, best. Default: when it is evaluated.",
        accepts=one_of("no", "steps", "epoch", "best"),
    )
    save_total_limit: int | None = option(2, "How many checkpoints are kept.", accepts=COUNT)
    early_stopping_patience: int | None = _kept(
        None,
        "Stop after this many evaluations without improvement.",
        "By metric_for_best_model; default there: loss.",
        accepts=COUNT,
    )
    early_stopping_threshold: float = option(
        0.0, "How much better an evaluation must be to count as better.", accepts=NOT_NEGATIVE
    )
    metric_for_best_model: str | None = _kept(
        None,
        "Metric that decides which weights are best: macro_f1 (default), accuracy, loss, ...",
        "Of numbers the loss.",
    )
    # The three-valued switches are annotated as bool: HfArgumentParser takes a bare --switch only then.
    load_best_model_at_end: bool = _kept(
        None,
        "Keep the best weights (default), or the last.",
        "By metric_for_best_model, if checkpoints are saved when they are evaluated.",
    )
    keep_checkpoints: bool = _kept(
        False,
        "Keep the checkpoint-N folders when the run has ended (default: false).",
        "A run resumes from them.",
    )
    per_device_train_batch_size: int = _speed(32, "Batch size; default 32.", "For training, per device.", accepts=COUNT)
    per_device_eval_batch_size: int = option(64, "Batch size for evaluation, per device.", accepts=COUNT)
    eval_accumulation_steps: int | None = option(
        64, "Batches of an evaluation whose answers wait on the device to go to the CPU."
    )
    gradient_accumulation_steps: int = _speed(1, "Batches per step; default 1.", accepts=COUNT)
    bf16: bool = _speed(
        False,
        "Train in mixed precision. Default: where the processor has bfloat16.",
        "That is so for hf-posenc train and the estimators; else false.",
    )
    hub_strategy: str = option("end", "When push_to_hub pushes: end, and nothing else.")
    license: str | None = option(None, "Licence of the model, for its README: apache-2.0.")
    class_weights: str | None = _schedule(
        None, 'balanced, or JSON {"rare": 5, "common": 1}: how much a label counts.', "In the loss."
    )
    score_test: bool = option(False, "Score the test split, as do_predict does, if there is one and it has labels.")
    baseline: bool = option(
        True,
        "Before training, score what an encoder has to beat: the most frequent answer, and linear models (TF-IDF) on "
        "words, and on words and word pairs. It takes seconds.",
    )

    def __post_init__(self) -> None:
        """Refuses what can be known to be wrong without PyTorch."""
        check_values(self, _OF_TRANSFORMERS)
        if str(self.resume_from_checkpoint).lower() in ("false", "no", ""):
            self.resume_from_checkpoint = None
        adam = "adam" in plain_name(getattr(self, "optim", None) or "adam")
        if self.learning_rate is not None and self.learning_rate > 1 and adam:
            raise UserError(
                f"--learning-rate {self.learning_rate} is out of range: AdamW moves each weight by about that much. "
                "Give a number from 0 to 1; usual are 1e-5 to 1e-4 from a checkpoint, 1e-4 to 3e-3 for a new encoder."
            )
