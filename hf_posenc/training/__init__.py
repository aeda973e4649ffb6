"""Training: the Trainer, its callbacks, checkpoints, losses, metrics and reports.

- `arguments`: options and defaults; `recipe`: the defaults that depend on data and model.
- `run`: what a run is; `trainer` trains, stops early and keeps the best weights; `callbacks` (Ctrl-C, divergence),
  `losses`, `masked_lm`, `lora`.
- Output folders: `checkpoints` (whole, damaged, locked, replaced), `resuming`, `saving`.
- Scores: `metrics`, `word_metrics`, `baseline`; `assess` computes an `assessment`; `report` writes the card.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ..errors import Interrupted, UserError
    from .arguments import ClassificationTrainingArguments, MaskedLMTrainingArguments, ModelArguments
    from .checkpoints import is_complete, last_complete_checkpoint
    from .losses import ClassificationLoss
    from .metrics import MSE, Accuracy, MacroF1, Matthews, Pearson, Spearman, compute_metrics_for, metrics_for
    from .output_folder import guarded_run
    from .report import Summary
    from .run import TrainingResult
    from .saving import save_run
    from .trainer import show_best

__all__ = [
    "MSE",
    "Accuracy",
    "ClassificationLoss",
    "ClassificationTrainingArguments",
    "Interrupted",
    "MacroF1",
    "MaskedLMTrainingArguments",
    "Matthews",
    "ModelArguments",
    "Pearson",
    "Spearman",
    "Summary",
    "TrainingResult",
    "UserError",
    "compute_metrics_for",
    "guarded_run",
    "is_complete",
    "last_complete_checkpoint",
    "metrics_for",
    "save_run",
    "show_best",
]

__getattr__ = lazy_names(__name__, __file__)
