"""Training: from prepared data and a model to a checkpoint with its results.

- Options: `options` declares them, with those of `transformers_options`; `arguments` makes transformers' own of them;
  `recipe` sets what depends on data and model.
- `run`: what a run is. `loop` trains, scores and saves it, with `trainer` and its `callbacks`; `losses`, `lora`,
  `progress`. `inference`: from texts to logits.
- On disk: `output_folder`, `checkpoints`, `resuming`, `saving`.
- What a run says of itself: `summary` (its sizes), `metrics`, `baseline`, `assess` and the `assessment`
  that it makes, `card`.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ..errors import Interrupted, UserError
    from .checkpoints import is_complete, last_complete_checkpoint
    from .losses import ClassificationLoss
    from .metrics import MSE, Accuracy, MacroF1, Matthews, Pearson, Spearman
    from .run import TrainingResult
    from .summary import Summary

__all__ = [
    "MSE",
    "Accuracy",
    "ClassificationLoss",
    "Interrupted",
    "MacroF1",
    "Matthews",
    "Pearson",
    "Spearman",
    "Summary",
    "TrainingResult",
    "UserError",
    "is_complete",
    "last_complete_checkpoint",
]

__getattr__ = lazy_names(__name__, __file__)
