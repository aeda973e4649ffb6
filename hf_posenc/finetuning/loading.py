"""Loads trained checkpoints of any family: configuration, head and weights, each checked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from ..checkpoint_files import graphs_in
from ..errors import UserError, check_is_checkpoint, check_local, sentence
from ..model.configuration_posenc import PosEncConfig
from ..quiet import errors_alone
from ..tasks import TASKS, auto_class, task_of
from ..training.arguments import ModelArguments
from ..training.checkpoints import not_finite

logger = logging.get_logger(__name__)


CLASSIFIER = "text-classification"
"""The task of the models that are trained and scored here; one of `TASKS`."""
PIPELINES = ("fill-mask", "token-classification")
"""Tasks of other heads for which transformers has a pipeline of that name."""


def has_head(config: Any, task: str) -> bool:
    """Whether a checkpoint was saved with the head of a task."""
    return any(architecture.endswith(TASKS[task]) for architecture in config.architectures or ())


def require_classifier(config: Any, name: str) -> None:
    """Refuses a checkpoint without a classifier of texts, which transformers would initialise at random.

    Args:
        config: its configuration.
        name: what the user called it.

    Raises:
        UserError: it was saved from another class.
    """
    if has_head(config, CLASSIFIER):
        return
    held = f"{name!r} holds {', '.join(config.architectures or ()) or 'no architecture'}, which doesn't classify texts"
    if task := next((task for task in PIPELINES if has_head(config, task)), None):
        raise UserError(f'{held}: use pipeline("{task}", {name!r}) of transformers.')
    raise UserError(f"{held}. Give a checkpoint that `hf-posenc train` or examples/run_classification.py wrote.")


def hub_options(arguments: ModelArguments) -> dict[str, Any]:
    """What the Auto classes take from the options."""
    return {
        "cache_dir": arguments.cache_dir,
        "revision": arguments.model_revision,
        "token": arguments.token,
        "trust_remote_code": arguments.trust_remote_code,
    }


def read_config(name: str, arguments: ModelArguments) -> Any:
    """The configuration of a checkpoint, by folder or Hub name.

    Raises:
        UserError: it can't be read.
    """
    check_local("--config-name" if name == arguments.config_name else "--model-name-or-path", name)
    try:
        return AutoConfig.from_pretrained(name, **hub_options(arguments))
    except Exception as error:  # whatever a broken file or a failed download raises
        raise UserError(f"{name!r} can't be read as a checkpoint: {sentence(error)} Give another.") from error


def load_model(arguments: ModelArguments, config: Any, task: str = CLASSIFIER) -> PreTrainedModel:
    """Loads a checkpoint in float32, whatever its weights are stored in, and checks them; its head may be new.

    Raises:
        UserError: it can't be read, or doesn't match its configuration.
    """
    saved_with, name = list(config.architectures or []), str(arguments.model_name_or_path)
    source = str(arguments.pretrained or name)
    try:
        with errors_alone("transformers.modeling_utils"):  # not its table of missing weights
            model, loaded = getattr(transformers, auto_class(task)).from_pretrained(
                name,
                config=config,
                ignore_mismatched_sizes=arguments.ignore_mismatched_sizes,
                output_loading_info=True,
                dtype=torch.float32,  # transformers' default is what the weights are stored in
                **hub_options(arguments),
            )
    except Exception as error:  # transformers and safetensors raise all kinds for files that aren't whole
        if "size mismatch" in str(error) or "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"{name!r} was trained for other labels than those of this data. Give it a new classifier with "
                "--ignore-mismatched-sizes."
            ) from error
        if "trust_remote_code=True" in str(error):
            raise UserError(sentence(error)) from error
        if "no file named" in str(error) and (graphs := graphs_in(Path(name))):
            raise UserError(
                f"{name!r} is an export for {' and '.join(graphs)}, without weights for PyTorch. Give the checkpoint "
                f"that was exported, or predict with --backend {graphs[0]}."
            ) from error
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        raise UserError(f"{name!r} can't be loaded: {kind}{sentence(error)} Download or train it anew.") from error
    poolers = {name for name in loaded["missing_keys"] if name.startswith("pooler.")}
    if poolers:  # a bare encoder saved without one: here it would be random
        model.pooler = None
        loaded["missing_keys"] -= poolers
    check_complete(model, loaded, source, saved_with)
    if loaded["missing_keys"]:
        logger.warning(f"{source!r} has no head for this task: a new one is learned.")
    return model


def load_any(checkpoint: str, *, revision: str | None = None, trust_remote_code: bool = False) -> PreTrainedModel:
    """A checkpoint with whichever head it was saved with, in float32, in evaluation mode.

    Args:
        checkpoint: folder or Hub name.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code.

    Raises:
        UserError: it can't be read, doesn't match its configuration, or was saved from a class of no known task.
    """
    check_is_checkpoint(checkpoint)
    arguments = ModelArguments(
        model_name_or_path=checkpoint, model_revision=revision or "main", trust_remote_code=trust_remote_code
    )
    config = read_config(checkpoint, arguments)
    task = next(filter(None, map(task_of, config.architectures or ())), None)
    if task is None:
        raise UserError(
            f"{checkpoint!r} holds {', '.join(config.architectures or ()) or 'no architecture'}, which has no known "
            "head. Give a checkpoint that `hf-posenc train` or `hf-posenc convert` wrote."
        )
    return load_model(arguments, config, task).eval()


def check_complete(model: Any, loaded: Mapping[str, Any], name: str, architectures: Sequence[str]) -> None:
    """Refuses a checkpoint whose weights aren't finite, or don't match its configuration.

    Missing weights would be random; surplus ones mean another model. A head that it wasn't
    saved with may be missing; an unused head or pooler may be surplus.

    Args:
        model: as it was loaded.
        loaded: the loading info of `from_pretrained`.
        name: what the user called the checkpoint.
        architectures: the classes that its configuration names.

    Raises:
        UserError: naming the weights.
    """
    other_size = {key if isinstance(key, str) else key[0] for key in loaded["mismatched_keys"]}
    missing = sorted(set(loaded["missing_keys"]) - other_size)
    if type(model).__name__ not in architectures:
        body = f"{model.base_model_prefix}."
        missing = [key for key in missing if key.startswith(body) and ".pooler." not in key]
    surplus = sorted(key for key in loaded["unexpected_keys"] if key.startswith(f"{model.base_model_prefix}."))
    surplus = [key for key in surplus if ".pooler." not in key and not key.endswith("position_ids")]
    if surplus and model.config.model_type == PosEncConfig.model_type:
        raise UserError(f"{name!r} has weights that its config.json doesn't know: {_first_four(surplus)}. Get it anew.")
    if missing:
        raise UserError(f"{name!r} lacks weights, which would be random: {_first_four(missing)}. Get it anew.")
    if bad := not_finite(model.named_parameters()):
        raise UserError(f"{name!r} has weights with NaN or infinity, {bad[0]} among them: its training diverged.")


def _first_four(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "")
