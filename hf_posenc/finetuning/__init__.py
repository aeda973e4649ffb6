"""Fine-tuning: from a file or a Hub data set to a checkpoint, and from a checkpoint to answers.

- `options` reads the options, `early` says what is wrong with them before PyTorch is imported.
- `train` owns the whole. `classification` sets a run up, with the steps in `start`; `loading` reads checkpoints,
  `model` makes the model that is trained.
- `estimator`: `fit`, `load` and the estimators of scikit-learn's kind.
- `prediction`, `prediction_files`: answers for texts and files.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .classification import set_up, train_classifier
    from .options import make_arguments
    from .train import fine_tune

__all__ = [
    "fine_tune",
    "make_arguments",
    "set_up",
    "train_classifier",
]

__getattr__ = lazy_names(__name__, __file__)
