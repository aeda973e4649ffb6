"""Which family and task a checkpoint is of, and what becomes of its keys."""

from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from ..errors import UserError
from ..tasks import task_of as class_task
from .families import FAMILIES, Family

_KINDS = ("weight", "bias")
_WHY_NOT = {
    "new": "it is a GTE that has code of its own. Take the same weights as a checkpoint of transformers' gte, such as "
    "alibaba-nlp-community/gte-multilingual-base",
    "eurobert": "its norms are RMSNorm and its keys are shared by several heads, which the body here doesn't have",
}


def check_known(model_type: str) -> None:
    """Refuses a type that this transformers hasn't.

    Raises:
        UserError: it is too old.
    """
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"transformers {transformers.__version__} has no {model_type}. Update it: pip install -U transformers."
        )


def family_of(model_type: Any, source: str) -> Family:
    """The family of a `model_type`.

    Raises:
        UserError: it isn't one that can be converted; the message lists those that can, and says why where we know.
    """
    if str(model_type) in FAMILIES:
        check_known(model_type)
        return FAMILIES[model_type]
    reason = f": {_WHY_NOT[model_type]}" if str(model_type) in _WHY_NOT else ""
    what = f"is a {model_type!r} model" if model_type else "has no model_type in its config.json"
    raise UserError(
        f"{source!r} {what}, which can't be converted{reason}. These can: {', '.join(FAMILIES)}, and posenc itself."
    )


def task_of(family: Family, architectures: list[str] | None, source: str, wanted: str | None) -> str | None:
    """The task of a checkpoint, by its config's `architectures`; without any, an encoder.

    None: PosEnc doesn't have its head.

    Raises:
        UserError: PosEnc doesn't have its head, and none is `wanted` instead.
    """
    name = str((architectures or ["Model"])[0])
    if name.endswith("ForPreTraining"):
        return "fill-mask" if "fill-mask" in family.heads and family.model_type != "electra" else "feature-extraction"
    task = class_task(name)
    if task is not None and task in ("feature-extraction", *family.heads):
        return task
    if wanted is not None:
        return None
    raise UserError(
        f"{source!r} holds {name}, whose head PosEnc doesn't have. Convert the encoder alone with "
        "task='feature-extraction', or another head: these are known for "
        f"{family.model_type}: {', '.join(family.heads)}."
    )


_NO_HEAD_HERE = frozenset(
    f"{layer}.{kind}"
    for layer in (
        "cls.seq_relationship",
        "discriminator_predictions.dense",
        "discriminator_predictions.dense_prediction",
    )
    for kind in _KINDS
)
"""The next-sentence head, and the replaced-token detector."""


def reason_to_drop(family: Family, name: str) -> str | None:
    """Why a weight that the converted model doesn't have may be left out, or None: then it is an error."""
    if name in ("pooler.dense.weight", "pooler.dense.bias"):
        return "the pooler, which only classifiers use"
    heads = {f"{layer}.{kind}" for head in family.heads.values() for layer in head.values() for kind in _KINDS}
    is_head = name in heads | _NO_HEAD_HERE | {family.decoder_bias} or name.startswith(family.foreign)
    return "another head" if is_head else None
