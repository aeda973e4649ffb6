"""Reads the model of an opened checkpoint: configuration, head and weights, each checked; and what it remembers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.columns import OURS, labels_of_config, notes_of, remembered_columns, remembered_dialect
from ..data.preparing import Known
from ..data.tokenizer import DEFAULT_MAX_LENGTH
from ..errors import UserError, one_line, spell
from ..model.configuration_posenc import PosEncConfig
from ..model.scheme_base import PositionScheme
from ..quiet import without_warnings
from ..tasks import auto_class
from .files import TRAINED_ON, not_finite
from .old_fields import check_old_fields, is_jina_bert
from .opening import COUNTERS, Checkpoint, quoted

logger = logging.get_logger(__name__)

CLASSIFIER = "text-classification"
"""The task of the models that are trained and scored here; one of `TASKS`."""
_NO_LIMIT = 10**6
"""A larger limit of a tokenizer means none."""
OUR_HEADS = ("classifier.", "lm_head.", "qa_outputs.")
HEAD_PREFIXES = (
    *OUR_HEADS,
    *("cls.", "pooler.", "score.", "decoder.", "head.", "pre_classifier.", "sequence_summary."),
    *("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "lm_predictions.", "mask_predictions."),
    *("generator_predictions.", "generator_lm_head.", "discriminator_predictions.", "contact_head.", "dense."),
)
"""How the names of heads and poolers begin, in any family."""


def read_model_config(checkpoint: Checkpoint) -> Any:
    """The configuration of a checkpoint, of ours or of transformers' class.

    Raises:
        UserError: a value isn't accepted, or its code isn't allowed to be run.
    """
    try:
        config = AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=checkpoint.trust_remote_code)
    except Exception as error:  # whatever a class of somebody else's raises
        raise UserError(f"{checkpoint.name!r}: config.json isn't accepted: {one_line(error)}") from error
    config.name_or_path = checkpoint.name
    return config


@dataclass(frozen=True)
class InItsClass:
    """A checkpoint's weights as a class of transformers, or ours, has read them."""

    model: PreTrainedModel
    """In float32, in evaluation mode."""
    state: dict[str, Tensor]
    """Its weights by the names of the class, without the encoder's prefix."""
    missing: set[str]
    """Those that the checkpoint doesn't have: they are random."""
    shapes: dict[str, tuple[Any, Any]]
    """Those of another shape than the configuration gives, random too: the checkpoint's shape, and the class's."""
    surplus: set[str]
    """Names in the checkpoint that the class doesn't have."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """What the class calls a weight, or holds it in, by its name in `state`, where that is another."""

    @property
    def random(self) -> set[str]:
        """The weights that aren't the checkpoint's."""
        return self.missing | set(self.shapes)


def read_in_class(checkpoint: Checkpoint, cls: Any, config: Any, prefix: str = "", **options: Any) -> InItsClass:
    """Reads a checkpoint's weights through the `from_pretrained` of a class, and says what didn't fit.

    `from_pretrained` knows older names, fused weights and several files; what is missing it draws at random.

    Args:
        checkpoint: opened.
        cls: of transformers, or ours.
        config: of the class.
        prefix: under which a class with a head holds the encoder; names here are without.
        options: further arguments of the class.

    Raises:
        UserError: there are no weights, the files can't be read, or a weight isn't finite.
    """
    _ = checkpoint.stored  # refuses what isn't to be read
    try:
        with without_warnings():  # of transformers, which draws a table of what is random
            model, info = cls.from_pretrained(
                str(checkpoint.folder),
                config=config,
                use_safetensors=not checkpoint.is_pickled,
                dtype=torch.float32,  # transformers' default is what the weights are stored in
                key_mapping={r"^module\.": ""},  # saved from DataParallel
                ignore_mismatched_sizes=True,  # here, they are listed
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # what a damaged file raises differs
        raise UserError(f"{checkpoint.name!r} can't be read by {cls.__name__}: {one_line(error)}") from error
    model.name_or_path = model.config.name_or_path = checkpoint.name
    state = {name.removeprefix(prefix): value.detach() for name, value in model.state_dict().items()}
    keys = {kind: {name.removeprefix(prefix) for name in info[f"{kind}_keys"]} for kind in ("missing", "unexpected")}
    shapes = {name.removeprefix(prefix): (tuple(has), tuple(wants)) for name, has, wants in info["mismatched_keys"]}
    check_finite(state, checkpoint.name)
    return InItsClass(model.eval(), state, keys["missing"], shapes, keys["unexpected"])


def check_finite(tensors: Mapping[str, Tensor], name: str) -> None:
    """Raises a UserError where a weight isn't a finite number: the model would give NaN, or garbage."""
    if bad := not_finite(tensors.items()):
        raise UserError(
            f"{name!r}: {quoted(bad)} holds a number that isn't finite (NaN or infinity). The checkpoint is damaged, "
            "or its training diverged: take another one."
        )


def load_model(
    checkpoint: Checkpoint, config: Any, task: str = CLASSIFIER, *, new_head: bool = False
) -> PreTrainedModel:
    """Loads a checkpoint in float32, whatever its weights are stored in, and checks them.

    Missing weights would be random; surplus ones mean another model.

    Args:
        checkpoint: opened.
        config: its configuration, perhaps changed.
        task: of the head, one of `TASKS`.
        new_head: its head may be missing, or of another size or task: then it is new.

    Raises:
        UserError: it can't be read, or doesn't match its configuration.
    """
    check_old_fields(config, checkpoint.raw, checkpoint.name)
    if is_jina_bert(checkpoint.raw) and not checkpoint.trust_remote_code:
        no_class = f"{checkpoint.name!r} is a JinaBERT v2, of which transformers has no class"
        raise UserError(f"{no_class}. Make it ours: `hf-posenc convert`.")
    auto = getattr(transformers, auto_class(task))
    read = read_in_class(checkpoint, auto, config, trust_remote_code=checkpoint.trust_remote_code)
    model: Any = read.model
    if any(key.startswith("pooler.") for key in read.missing):  # a bare encoder saved without: it would be random
        model.pooler = None
        read = replace(read, missing={key for key in read.missing if not key.startswith("pooler.")})
    keeps_head = not new_head and type(model).__name__ in (config.architectures or ())
    _check_surplus(read, checkpoint, keeps_head)
    _check_complete(read, checkpoint, keeps_head)
    return model


def _check_complete(read: InItsClass, checkpoint: Checkpoint, keeps_head: bool) -> None:
    """Refuses missing weights and those of another shape; a head that isn't kept, and a pooler beside it, may be."""
    body = f"{read.model.base_model_prefix}."

    def is_needed(key: str) -> bool:
        return keeps_head or (key.startswith(body) and ".pooler." not in key)

    other = [f"{key!r} is {has}, and should be {wants}" for key, (has, wants) in read.shapes.items() if is_needed(key)]
    if other:
        raise UserError(
            f"{checkpoint.name!r}: {'; '.join(sorted(other)[:4])} ({len(other)} in all). Weights and config.json don't "
            "belong together: get the checkpoint anew."
        )
    if lacking := {f"{key} {tuple(read.state[key].shape)}" for key in read.missing if is_needed(key)}:
        raise UserError(f"{checkpoint.name!r} lacks weights, which would be random: {quoted(lacking)}. Get it anew.")


def _check_surplus(read: InItsClass, checkpoint: Checkpoint, keeps_head: bool) -> None:
    """Refuses weights that the model doesn't have: of ours all but a head that isn't kept; of others but any head."""
    is_ours = read.model.config.model_type == PosEncConfig.model_type
    body = f"{read.model.base_model_prefix}."
    heads: tuple[str, ...] = (*HEAD_PREFIXES, f"{body}pooler.")
    if is_ours:
        heads = () if keeps_head else OUR_HEADS
    names = {key for key in read.surplus if is_ours or not key.endswith(COUNTERS)}
    if unknown := {key for key in names if not key.startswith(heads)}:
        or_older = "" if is_ours else "; or, if an older transformers wrote it, make it ours: `hf-posenc convert`"
        raise UserError(
            f"{checkpoint.name!r} has weights that its config.json doesn't know, such as {quoted(unknown)}. Get it "
            f"anew{or_older}."
        )
    if names and not is_ours:
        logger.warning(f"{checkpoint.name!r}: left out, of another head or a pooler: {quoted(names)}.")


def load_any(checkpoint: Checkpoint) -> PreTrainedModel:
    """A checkpoint with whichever head it was saved with, in float32, in evaluation mode.

    Raises:
        UserError: it can't be read, doesn't match its configuration, or was saved from a class of no known task.
    """
    if checkpoint.task is None:
        architectures = ", ".join(checkpoint.raw.get("architectures") or ()) or "no architecture"
        raise UserError(
            f"{checkpoint.name!r} holds {architectures}, which has no known head. Give a checkpoint that "
            "`hf-posenc train` or `hf-posenc convert` wrote."
        )
    return load_model(checkpoint, read_model_config(checkpoint), checkpoint.task)


def text_problem_type(config: Any) -> str:
    """Returns the problem type of a text classifier; transformers' models don't always say it."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


def knowledge(config: Any, checkpoint: Checkpoint | None) -> Known:
    """Collects what a trained classifier knows of its data and texts; nothing is known of others.

    Args:
        config: its configuration, or that of a new encoder.
        checkpoint: None: a new encoder.
    """
    if checkpoint is None or checkpoint.task != CLASSIFIER:
        return Known()
    names = tuple(map(str, labels_of_config(config)))
    if (checkpoint.raw.get("task_specific_params") or {}).get(OURS) and not notes_of(config):
        logger.warning_once(
            f"{checkpoint.name!r}: the columns and the temperature that a training noted in config.json are left out: "
            "it had labels of other names than those that stand there now."
        )
    marks = _marks(checkpoint.folder / TRAINED_ON)
    return Known(remembered_columns(config), names, text_problem_type(config), marks, remembered_dialect(config))


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
    """The number of tokens to truncate inputs to.

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
            f"is too long: {kind!r} has {limit} positions. Repeat its table with "
            f"{spell('set.max_position_embeddings', length)}, or take a scheme without one: {spell('scheme', 'rope')}.",
            parameter="max_length",
            value=length,
        )
    return length


def position_limit(model: PreTrainedModel) -> int | None:
    """The number of positions that a model has, or None if it takes any number."""
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
