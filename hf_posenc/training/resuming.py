"""Checks that a run is resumed with the model and the optimizer that it began with."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import UserError
from .checkpoints import RESULTS_NAME
from .lora import has_lora

_OF_A_MODEL = (
    "model_type",
    "position_embedding_type",
    "position_embedding_kwargs",
    "rope_parameters",
    "id2label",
    "label_mean",
    "label_scale",
)
_OF_AN_OPTIMIZER = (
    *("learning_rate", "one_cycle", "lr_scheduler_type", "optim"),  # the optimizer's state brings its rate
    *("position_learning_rate_factor", "word_learning_rate_factor"),  # how many groups there are
)


def check_resumed(checkpoint: Path, model: PreTrainedModel, options: Mapping[str, dict[str, Any]]) -> None:
    """Refuses to resume a run with another model or optimizer, whose states may load without an error.

    Args:
        checkpoint: its folder.
        model: that is to be trained further.
        options: those given now; see `plain_options`.

    Raises:
        UserError: the checkpoint has another scheme, other labels or another task, schedule or optimizer.
    """
    if has_lora(model):
        raise UserError(
            f"--resume-from-checkpoint: {str(checkpoint)!r} holds merged weights, which --lora can't "
            "resume from. Start from it with --model-name-or-path, or train anew."
        )
    before = json.loads((checkpoint / "config.json").read_text())
    now = json.loads(model.config.to_json_string(use_diff=False))
    arguments = json.loads((checkpoint / RESULTS_NAME).read_text(encoding="utf-8"))["arguments"]
    before |= arguments["training"]
    now |= options["training"]
    before["freeze_word_embeddings"] = arguments["model"].get("freeze_word_embeddings", False)
    now["freeze_word_embeddings"] = not model.get_input_embeddings().weight.requires_grad
    for name in (*_OF_A_MODEL, *_OF_AN_OPTIMIZER, "freeze_word_embeddings"):
        if name in before and before[name] != now.get(name):
            raise UserError(
                f"--resume-from-checkpoint: {str(checkpoint)!r} was trained with {name}={before[name]!r}, the options "
                f"and the data now say {now.get(name)!r}. Resume with what the run began with, or train elsewhere."
            )
