"""Which precision a model computes in.

Training runs in bfloat16 mixed precision where the hardware has it. Answers and final scores are computed in float32,
whatever the model was trained in; evaluations in the middle of a training only choose the best epoch, and stay in the
training's precision.
"""

from typing import Any

from torch import nn


def take_off_autocast(accelerator: Any, model: nn.Module) -> None:
    """Makes a model compute in the precision of its weights again, after it was trained in mixed precision.

    accelerate leaves autocast in an instance attribute `forward`, which no copy and no pickle of the model survives.

    Args:
        accelerator: the Trainer's; from now on it prepares no model for mixed precision.
        model: without the wrappers of distributed training.
    """
    accelerator.native_amp = False
    trained = vars(model).get("forward")
    accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    if vars(model).get("forward") is not trained:
        del model.forward  # the one put back lacks the decorators of the class's own
