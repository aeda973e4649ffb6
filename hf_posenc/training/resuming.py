"""Checks that a run is resumed with the model, optimizer and stream that it began with."""

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
_OF_A_STREAM = (
    *("data", "dataset_config_name", "train_split_name", "shuffle_buffer_size", "max_train_samples", "skip_missing"),
    *("do_eval", "validation data", "processes"),  # whether rows were set aside; which process reads which row
)
_OF_ITS_HELD_OUT = ("validation_split_percentage", "max_eval_samples")
_OF_ITS_ORDER = ("seed of the order", "per_device_train_batch_size", "gradient_accumulation_steps")


def check_resumed(
    checkpoint: Path, model: PreTrainedModel, options: Mapping[str, dict[str, Any]], processes: int
) -> None:
    """Refuses to resume a run with another model or optimizer, whose states may load without an error.

    A stream must also be the same in the same order: resuming skips as many examples as were seen.

    Args:
        checkpoint: its folder.
        model: that is to be trained further.
        options: those given now; see `plain_options`.
        processes: how many train.

    Raises:
        UserError: the checkpoint has another scheme, other labels or another task, schedule, optimizer or stream.
    """
    if has_lora(model):
        raise UserError(
            f"--resume-from-checkpoint: {str(checkpoint)!r} holds merged weights, which --lora can't "
            "resume from. Start from it with --model-name-or-path, or train anew."
        )
    before = json.loads((checkpoint / "config.json").read_text())
    now = json.loads(model.config.to_json_string(use_diff=False))
    results = json.loads((checkpoint / RESULTS_NAME).read_text(encoding="utf-8"))
    arguments = results["arguments"]
    before |= arguments["training"]
    now |= options["training"]
    before["freeze_word_embeddings"] = arguments["model"].get("freeze_word_embeddings", False)
    now["freeze_word_embeddings"] = not model.get_input_embeddings().weight.requires_grad
    before |= {**arguments["data"], **_stream(arguments["data"], before)}
    before["processes"] = results.get("processes", 1)
    now |= {**options["data"], **_stream(options["data"], now), "processes": processes}
    compared = [*_OF_A_MODEL, *_OF_AN_OPTIMIZER, "freeze_word_embeddings", "streaming"]
    if now["streaming"]:
        compared += [*_OF_A_STREAM, *_OF_ITS_ORDER]
        compared += _OF_ITS_HELD_OUT if now["train_file"] is not None and now["validation_file"] is None else ()
    for name in compared:
        if name in before and before[name] != now.get(name):
            raise UserError(
                f"--resume-from-checkpoint: {str(checkpoint)!r} was trained with {name}={before[name]!r}, the options "
                f"and the data now say {now.get(name)!r}. Resume with what the run began with, or train elsewhere."
            )


def _stream(data: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    """What determines a stream's rows and their order. Files without folders, which may have moved."""
    sources = {
        "data": data.get("train_file") or data.get("dataset_name"),
        "validation data": data.get("validation_file"),
    }
    named = {name: None if value is None else Path(str(value)).name for name, value in sources.items()}
    seed = training.get("data_seed")
    return {**named, "seed of the order": training.get("seed") if seed is None else seed}
