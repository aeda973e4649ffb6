"""Training: from a file or a Hub data set to a checkpoint. What the scripts and the command line share.

- Options and defaults: `arguments`; `recipe` has the defaults that depend on data and model.
- Data: `data`, `tokenizer`. Model: `model`, `lora`.
- A run: `classification`, `tokens` and `masked_lm` by task; `run` prepares it, `trainer` trains, stops early and
  keeps the best weights; `callbacks` (Ctrl-C, divergence), `losses`, `search`.
- Output folders: `checkpoints` (whole, damaged, locked, replaced), `resuming`, `saving`.
- Scores: `metrics`, `word_metrics`, `baseline`; `assess` computes an `assessment`; `report` writes the card.
- Use of a checkpoint: `prediction`, `prediction_files`.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ..errors import Interrupted, UserError, run_script
    from .arguments import (
        ClassificationTrainingArguments,
        DataArguments,
        MaskedLMTrainingArguments,
        ModelArguments,
        make_arguments,
        parse_arguments,
    )
    from .checkpoints import is_complete, last_complete_checkpoint
    from .classification import Setup, epoch_metrics, set_up, train_classifier
    from .data import Columns, Labels, example_data
    from .losses import ClassificationLoss
    from .masked_lm import train_masked_lm
    from .metrics import MSE, Accuracy, MacroF1, Matthews, Pearson, Spearman, compute_metrics_for, metrics_for
    from .quick_start import quickstart
    from .report import Summary
    from .run import TrainingResult, ending_clearly
    from .saving import save_run
    from .tokenizer import load_tokenizer, train_tokenizer
    from .trainer import show_best

__all__ = [
    "MSE",
    "Accuracy",
    "ClassificationLoss",
    "ClassificationTrainingArguments",
    "Columns",
    "DataArguments",
    "Interrupted",
    "Labels",
    "MacroF1",
    "MaskedLMTrainingArguments",
    "Matthews",
    "ModelArguments",
    "Pearson",
    "Setup",
    "Spearman",
    "Summary",
    "TrainingResult",
    "UserError",
    "compute_metrics_for",
    "ending_clearly",
    "epoch_metrics",
    "example_data",
    "is_complete",
    "last_complete_checkpoint",
    "load_tokenizer",
    "make_arguments",
    "metrics_for",
    "parse_arguments",
    "quickstart",
    "run_script",
    "save_run",
    "set_up",
    "show_best",
    "train_classifier",
    "train_masked_lm",
    "train_tokenizer",
]

# `python -m hf_posenc.training.quick_start` warns if its module is imported already.
__getattr__ = lazy_names(__name__, __file__)
