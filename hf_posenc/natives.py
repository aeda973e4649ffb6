"""The classes of transformers that can hold a PosEnc encoder, and which fields of `PosEncConfig` each needs for it.

The export to a class refuses a model that has others. Nothing here needs PyTorch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Needs = Mapping[str, tuple[Any, ...]]
"""The values that a field may have, the usual one first. Fields are named as `flat` names them."""

POOLED = ("text-classification", "multiple-choice")
"""The tasks whose classes read [CLS] in the first place."""
_UNGATED: Needs = {"mlp_gated": (False,), "attention_bias": (True,), "mlp_bias": (True,)}
"""BERT's feed-forward network, and its biases."""
_NOT_SET = ("pad_token_id", "rope_parameters.")
"""What `usual_fields` leaves out: the tokenizer's, and what fits unless it is changed."""


@dataclass(frozen=True)
class Native:
    """What one class can hold.

    Attributes:
        schemes: by `position_embedding_type`, what the class needs besides; the usual scheme first.
        dense: activation of the dense layer between [CLS] and the classifier. None: the encoder's.
        lm_act: activation of the masked-LM head. None: the encoder's.
        token_types: whether it has them. If not, type 0 is merged into the words.
        counts_tokens: whether left padding is as good as right: positions are counted from the tokens, or don't matter.
        fields: what else it needs.
    """

    schemes: Mapping[str, Needs]
    dense: str | None = "tanh"
    lm_act: str | None = None
    token_types: bool = True
    counts_tokens: bool = True
    fields: Needs = field(default_factory=lambda: {"embedding_size": (None,)})

    def needs(self, values: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """The values that fields may have, for these tasks, beside the others in `values`; see `flat`."""
        scheme, act = values.get("position_embedding_type"), values.get("hidden_act", "gelu")
        needs = {"position_embedding_type": tuple(self.schemes), **self.schemes.get(str(scheme), {})}
        needs |= {"norm_position": ("post",), "scale_embeddings": (False,), **_UNGATED, **self.fields}
        if any(task in POOLED for task in tasks):
            needs |= {"classifier_pooling": ("cls",), "classifier_hidden_act": (self.dense or act,)}
        if "fill-mask" in tasks and self.lm_act is not None:
            needs["hidden_act"] = (self.lm_act,)
        return needs


_LEARNED: dict[str, Needs] = {"learned": {"learned.dropout": (0.0,)}}
_T5: Needs = {"t5.num_buckets": (32,), "t5.max_distance": (128,), "t5.per_layer": (False,)}
_ROTATED: Needs = {
    "rope.interleaved": (False,),
    # With the other types the angles of a text depend on the longest in its batch.
    "rope_parameters.rope_type": ("default", "linear", "yarn", "llama3", "proportional"),
    "rope_parameters.partial_rotary_factor": (1.0,),
}
_HALF_SPLIT: dict[str, Needs] = {"rope": {**_ROTATED, "rope_parameters.local_rope_theta": (None,)}}
_ROBERTA = Native(_LEARNED, lm_act="gelu")

NATIVES = {
    "bert": Native(_LEARNED, counts_tokens=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Native(
        _LEARNED,
        dense="relu",
        counts_tokens=False,
        fields={"embedding_size": (None,), "type_vocab_size": (0,), "layer_norm_eps": (1e-12,)},
    ),
    "electra": Native(_LEARNED, dense="gelu", lm_act="gelu", counts_tokens=False, fields={}),
    "roformer": Native(
        {
            "rope": {
                "rope.interleaved": (True,),
                "rope_parameters.rope_type": ("default",),
                "rope_parameters.rope_theta": (10000.0,),
                "rope_parameters.local_rope_theta": (None,),
                "rope_parameters.partial_rotary_factor": (1.0,),
            }
        },
        dense=None,
        fields={},
    ),
    "jina_embeddings_v3": Native(_HALF_SPLIT, lm_act="gelu"),
    "nomic_bert": Native(
        _HALF_SPLIT,
        fields={"embedding_size": (None,), "mlp_gated": (True,), "attention_bias": (False,), "mlp_bias": (False,)},
    ),
    "modernbert": Native(
        {"rope+window": _ROTATED},
        dense=None,
        token_types=False,
        fields={
            "embedding_size": (None,),
            "norm_position": ("pre_but_first",),
            "mlp_gated": (True,),
            "attention_bias": (False,),
            "mlp_bias": (False,),
        },
    ),
    "gte": Native(_HALF_SPLIT, lm_act="gelu", fields={"embedding_size": (None,), "mlp_gated": (True,)}),
    "mpnet": Native(
        # It counts positions from token 1 as padding, whatever its configuration says.
        {"t5": _T5, "learned+t5": {**_T5, "learned.dropout": (0.0,), "pad_token_id": (1,)}},
        lm_act="gelu",
        token_types=False,
    ),
}
"""By `model_type`. Where several take a scheme, the first that fits is exported to."""


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and the arguments within them: `t5.num_buckets`, `rope_parameters.rope_type`."""
    scheme = fields.get("position_embedding_type") or ""
    own = fields.get("position_embedding_kwargs") or {}
    nested = {**(own if "+" in scheme else {scheme: own}), "rope_parameters": fields.get("rope_parameters") or {}}
    arguments = {f"{part}.{name}": value for part, values in nested.items() for name, value in values.items()}
    return {**fields, **arguments}


def mismatches(name: str, fields: Mapping[str, Any], tasks: Iterable[str]) -> list[str]:
    """What of these fields the class can't hold, with its value and those that the class can: empty if it can all.

    Args:
        name: of the class, in `NATIVES`.
        fields: of a PosEncConfig, all or some.
        tasks: those of the model.
    """
    values = flat(fields)
    needs = NATIVES[name].needs(values, tasks)
    return [
        f"{key}={values[key]!r} ({name} has {' or '.join(map(repr, accepts))})"
        for key, accepts in needs.items()
        if key in values and values[key] not in accepts
    ]


def usual_fields(name: str, scheme: str) -> dict[str, Any]:
    """The fields that a model with a scheme needs so that a class can hold it, each with its usual value.

    Args:
        name: of the class, in `NATIVES`.
        scheme: one of the class's.
    """
    fields: dict[str, Any] = {"position_embedding_type": scheme}
    arguments: dict[str, Any] = {}
    for key, accepts in NATIVES[name].needs(fields, POOLED).items():
        part, dot, argument = key.rpartition(".")
        if key in fields or key.startswith(_NOT_SET):
            continue
        if dot:
            arguments.setdefault(part, {})[argument] = accepts[0]
        else:
            fields[key] = accepts[0]
    if arguments:
        fields["position_embedding_kwargs"] = arguments if "+" in scheme else arguments[scheme]
    return fields
