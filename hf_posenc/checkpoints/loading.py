"""Loads trained checkpoints of any family: configuration, head and weights, each checked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.columns import remembered_columns
from ..data.preparing import Known
from ..data.tokenizer import DEFAULT_MAX_LENGTH
from ..errors import UserError, check_local, one_line
from ..model.configuration_posenc import PosEncConfig
from ..model.position_base import PositionScheme
from ..quiet import errors_alone
from ..tasks import auto_class, task_of
from .files import TRAINED_ON, not_finite

logger = logging.get_logger(__name__)

CLASSIFIER = "text-classification"
"""The task of the models that are trained and scored here; one of `TASKS`."""
_NO_LIMIT = 10**6
"""A larger limit of a tokenizer means none."""


def head_of(config: Any) -> str | None:
    """The task of the head that a checkpoint was saved with; None if its class is of no known task."""
    return next(filter(None, map(task_of, config.architectures or ())), None)


def read_config(name: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration of a checkpoint, by folder or Hub name.

    Raises:
        UserError: it can't be read.
    """
    check_local("Checkpoint", name)
    if (Path(name) / "adapter_config.json").is_file():  # which transformers would load beside other weights
        raise UserError(f"{name!r} holds a PEFT adapter. Merge it first: merge_and_unload(), save_pretrained.")
    try:
        return AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a broken file or a failed download raises
        raise UserError(f"{name!r} can't be read as a checkpoint: {one_line(error)}") from error


def load_model(
    name: str,
    config: Any,
    task: str = CLASSIFIER,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    new_head: bool = False,
) -> PreTrainedModel:
    """Loads a checkpoint in float32, whatever its weights are stored in, and checks them.

    Args:
        name: folder or Hub name.
        config: its configuration, perhaps changed.
        task: of the head, one of `TASKS`.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code.
        new_head: its head may be missing, or of another size: then it is new.

    Raises:
        UserError: it can't be read, or doesn't match its configuration.
    """
    saved_with = [] if new_head else list(config.architectures or [])
    try:
        with errors_alone("transformers.modeling_utils"):  # not its table of missing weights
            model, loaded = getattr(transformers, auto_class(task)).from_pretrained(
                name,
                config=config,
                ignore_mismatched_sizes=new_head,
                output_loading_info=True,
                dtype=torch.float32,  # transformers' default is what the weights are stored in
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:  # transformers and safetensors raise all kinds for files that aren't whole
        raise UserError(f"{name!r} can't be loaded: {type(error).__name__}: {one_line(error)}") from error
    poolers = {key for key in loaded["missing_keys"] if key.startswith("pooler.")}
    if poolers:  # a bare encoder saved without one: here it would be random
        model.pooler = None
        loaded["missing_keys"] -= poolers
    _check_complete(model, loaded, name, saved_with)
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
    config = read_config(checkpoint, revision, trust_remote_code)
    if (task := head_of(config)) is None:
        raise UserError(
            f"{checkpoint!r} holds {', '.join(config.architectures or ()) or 'no architecture'}, which has no known "
            "head. Give a checkpoint that `hf-posenc train` or `hf-posenc convert` wrote."
        )
    return load_model(checkpoint, config, task, revision=revision, trust_remote_code=trust_remote_code).eval()


def text_problem_type(config: Any) -> str:
    """What a text classifier answers; transformers' models don't always say."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


def knowledge(config: Any, checkpoint: str) -> Known:
    """What a trained classifier knows of its data, and of the texts that it was trained on; nothing is known of others.

    Args:
        config: its configuration, or that of a new encoder.
        checkpoint: its folder.
    """
    if head_of(config) != CLASSIFIER:
        return Known()
    names = tuple(str(config.id2label[number]) for number in sorted(config.id2label or {}))
    marks = _marks(Path(checkpoint) / TRAINED_ON)
    return Known(remembered_columns(config), names, text_problem_type(config), marks)


def _marks(path: Path) -> frozenset[int]:
    """The marks of the training texts in a file; none where there is no such file or, which is said, it is damaged."""
    try:
        marks = np.load(path, allow_pickle=False)
        if marks.dtype == np.uint64 and marks.ndim == 1:
            return frozenset(marks.tolist())
    except FileNotFoundError:
        return frozenset()
    except Exception:  # what a damaged file raises differs, and numpy advises to load it as a pickle
        pass
    logger.warning_once(f"{str(path)!r} is damaged: whether texts were among those trained on isn't checked.")
    return frozenset()


def longest_input(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's limit, or 512 where it names none."""
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else DEFAULT_MAX_LENGTH


def input_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> int:
    """The number of tokens to truncate inputs to; also set in the tokenizer.

    Args:
        model: whose positions may have a limit.
        tokenizer: which may have one, too.
        max_length: what was asked for.

    Raises:
        UserError: it is past the end of a table of positions.
    """
    limit, longest = position_limit(model), longest_input(tokenizer)
    length = min(longest, limit or longest) if max_length is None else max_length
    if limit is not None and length > limit:
        kind = getattr(model.config, "position_embedding_type", None) or model.config.model_type
        raise UserError(
            f"--max-length {length} is too long: {kind!r} has {limit} positions. Repeat its table with --set "
            f"max_position_embeddings={length}, or take a scheme without one: --scheme rope."
        )
    tokenizer.model_max_length = length
    return length


def position_limit(model: PreTrainedModel) -> int | None:
    """How many positions a model has, or None if it takes any number."""
    if model.config.model_type == PosEncConfig.model_type:
        return cast(PositionScheme, model.base_model.position).max_length
    tables = (("embeddings", "position_embeddings"), ("encoder", "embed_positions"))  # RoFormer's holds sines
    kept = (getattr(getattr(model.base_model, part, None), name, None) for part, name in tables)
    table = next((table for table in kept if table is not None), None)
    if table is None:
        return None
    # RoBERTa-family models start counting after the padding token.
    padding = getattr(table, "padding_idx", None)
    return table.num_embeddings - (0 if padding is None else padding + 1)


def _check_complete(model: Any, loaded: Mapping[str, Any], name: str, architectures: Sequence[str]) -> None:
    """Refuses a checkpoint whose weights aren't finite, or don't match its configuration.

    Missing weights would be random; surplus ones mean another model. A head that it wasn't saved with, as its
    `architectures` say, may be missing; an unused head or pooler may be surplus.
    """
    other_size = {key if isinstance(key, str) else key[0] for key in loaded["mismatched_keys"]}
    missing = sorted(set(loaded["missing_keys"]) - other_size)
    if type(model).__name__ not in architectures:
        body = f"{model.base_model_prefix}."
        missing = [key for key in missing if key.startswith(body) and ".pooler." not in key]
    surplus = sorted(key for key in loaded["unexpected_keys"] if key.startswith(f"{model.base_model_prefix}."))
    surplus = [key for key in surplus if ".pooler." not in key and not key.endswith("position_ids")]
    if surplus and model.config.model_type == PosEncConfig.model_type:
        raise UserError(f"{name!r} has weights that its config.json doesn't know, such as {surplus[0]}. Get it anew.")
    if missing:
        raise UserError(f"{name!r} lacks weights, which would be random: {missing[0]}. Get it anew.")
    if bad := not_finite(model.named_parameters()):
        raise UserError(f"{name!r} has weights with NaN or infinity, {bad[0]} among them: its training diverged.")
