"""Which family and task a checkpoint is of, and what becomes of its keys."""

import re

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING

from ..errors import UserError
from ..tasks import task_of as class_task
from .families import FAMILIES, Family

_KINDS = ("weight", "bias")
_DEBERTA = (
    "its attention and its embeddings (a mask, a convolution) aren't BERT's; its scheme alone is here, as 'deberta'"
)
_WHY_NOT = {
    **dict.fromkeys(("deberta", "deberta-v2"), _DEBERTA),
    "new": "it is a GTE that has code of its own. Take the same weights as a checkpoint of transformers' gte, such as "
    "alibaba-nlp-community/gte-multilingual-base",
    "albert": "its layers share one set of weights",
    "roberta-prelayernorm": "its layers are pre-norm with biases that post-norm BERT doesn't have",
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


def family_of(model_type: str | None, source: str) -> Family:
    """The family of a `model_type`.

    Raises:
        UserError: it isn't one that can be converted; the message lists those that can, and says why where we know.
    """
    if model_type in FAMILIES:
        check_known(model_type)
        return FAMILIES[model_type]
    reason = f": {_WHY_NOT[model_type]}" if model_type in _WHY_NOT else ""
    what = f"is a {model_type!r} model" if model_type else "has no model_type in its config.json"
    raise UserError(
        f"{source!r} {what}, which can't be converted{reason}. These can: {', '.join(FAMILIES)}, and posenc itself."
    )


def task_of(
    family: Family, architectures: list[str] | None, keys: set[str], source: str, wanted: str | None
) -> str | None:
    """The task of a checkpoint: what its config's `architectures` says, or else what its keys show.

    Keys that tell nothing else, a lone classifier's, show the `wanted` one. None: PosEnc doesn't have its head.

    Raises:
        UserError: PosEnc doesn't have its head, and none is `wanted` instead.
    """
    name = (architectures or [""])[0]
    if name.endswith("ForPreTraining"):
        return "fill-mask" if "fill-mask" in family.heads and family.model_type != "electra" else "feature-extraction"
    task = class_task(name)
    if task is not None and task in ("feature-extraction", *family.heads):
        return task
    if not name:
        for head_task in ("fill-mask", "question-answering", "text-classification", wanted or ""):
            layers = family.heads.get(head_task, {})
            needed = {f"{name}.weight" for ours, name in layers.items() if ours != "lm_head.decoder"}
            if needed and needed <= keys:
                return head_task
        return "feature-extraction"
    if wanted is not None:
        return None
    raise UserError(
        f"{source!r} holds {name}, whose head PosEnc doesn't have. Convert the encoder alone with "
        "task='feature-extraction', or another head: these are known for "
        f"{family.model_type}: {', '.join(family.heads)}."
    )


def tensors_of_the_class(stored: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The weights under the names of the class, in place of those of the files, which may hold several as one."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        for old, name in family.files.items():
            key = key.replace(old, name)
        fused = next((old for old in family.fused if old in key), "")
        names = [key.replace(fused, name) for name in family.fused[fused]] if fused else [key]
        tensors |= zip(names, tensor.chunk(len(names)), strict=True) if fused else {key: tensor}
    return tensors


def tensors_of_the_files(tensors: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The inverse of `tensors_of_the_class`, for a family whose class has the names of its files."""
    parts: dict[str, list[Tensor]] = {}
    for key, tensor in tensors.items():
        for whole, names in family.fused.items():
            for name in names:
                key = key.replace(name, whole)
        for theirs, name in family.files.items():
            key = key.replace(name, theirs)
        parts.setdefault(key, []).append(tensor)
    return {key: torch.cat(some) if len(some) > 1 else some[0] for key, some in parts.items()}


def normalise(keys: list[str], family: Family) -> dict[str, str]:
    """Their keys -> the same without the encoder's prefix and with today's names of a LayerNorm's weights."""
    wrapped = bool(keys) and all(key.startswith("module.") for key in keys)  # saved from DataParallel
    names = {}
    for key in keys:
        name = (key.removeprefix("module.") if wrapped else key).removeprefix(family.prefix)
        for old, today in (("gamma", "weight"), ("beta", "bias")):
            name = re.sub(rf"(LayerNorm|layer_norm|_norm)\.{old}$", rf"\1.{today}", name)
        names[key] = name
    return names


_DROPPED = {
    "embeddings.position_ids": "a counter, not a weight",
    "embeddings.token_type_ids": "a counter, not a weight",
    **{f"cls.seq_relationship.{kind}": "the next-sentence head, which PosEnc doesn't have" for kind in _KINDS},
    **{
        f"discriminator_predictions.{layer}.{kind}": "the replaced-token detector, which PosEnc doesn't have"
        for layer in ("dense", "dense_prediction")
        for kind in _KINDS
    },
}


def reason_to_drop(family: Family, name: str, task: str, own: str | None) -> str | None:
    """Why a weight that the converted model doesn't have may be left out, or None: then it is an error."""
    if name in ("pooler.dense.weight", "pooler.dense.bias"):
        keeps = [f"task={other_task!r}" for other_task, head in family.heads.items() if "pooler.dense" in head.values()]
        return (
            f"the pooler, which only classifiers use ({keeps[0]} keeps it)"
            if keeps
            else "the pooler, which no head uses"
        )
    if own is None and name.startswith(family.foreign):
        return "a head that PosEnc doesn't have"
    for other_task, head in family.heads.items():
        if name in {f"{layer}.{kind}" for layer in head.values() for kind in _KINDS} | {family.decoder_bias}:
            return f"the {'masked-LM head' if other_task == 'fill-mask' else 'head of another task'}; this is {task}"
    return "a head that PosEnc doesn't have" if name.startswith(family.foreign) else _DROPPED.get(name)
