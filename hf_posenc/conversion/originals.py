"""Configurations for code of their own, GTE's `new` and Nomic's `n_embd`, as transformers' classes read them today.

These classes know the old names of weights; of the old configurations they would take other values, or none. And
JinaBERT v2, which has no such class.
"""

from typing import Any

from ..checkpoints.old_fields import GATED_ACTS, OLD_FIELDS, is_jina_bert
from ..errors import UserError, fits

_GTE = {
    "vocab_size": 30528,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "rope_theta": 10000.0,
}
"""What `new` takes where config.json is silent, and transformers' class something else or nothing."""
_NOMIC = {"activation_function": "gelu", "rotary_emb_fraction": 0.0, "prenorm": True, "scale_attn_weights": True}
"""The same of Nomic's code."""
_NOMIC_FIELDS = {
    **OLD_FIELDS["nomic_bert"],
    "n_positions": "max_position_embeddings",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}


def todays_config(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """A config.json as transformers' class reads it; the same, unless it is older code's.

    Raises:
        UserError: it asks for something that the class of today doesn't have.
    """
    if raw.get("model_type") == "new":
        return _gte({**_GTE, **raw}, source)
    if raw.get("model_type") == "nomic_bert" and "n_embd" in raw:
        return _nomic({**_NOMIC, **raw}, source)
    if is_jina_bert(raw):
        gated = {"geglu": "gelu", "reglu": "relu"}.get(raw.get("feed_forward_type", "original"))
        _refuse(raw, source, "feed_forward_type", gated == raw.get("hidden_act", "gelu"))
    return raw


def _gte(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """A `new` as a `gte`: fixed NTK scaling by s is a linear one by s^(2/d), with s times the theta."""
    scaling = raw.get("rope_scaling") or {"type": "ntk", "factor": 1.0}
    known = isinstance(scaling, dict) and fits(scaling.get("factor"), int | float)
    is_plain = known and scaling.get("type") == "ntk" and scaling.get("mixed_b") is None
    _refuse(raw, source, "position_embedding_type", raw["position_embedding_type"] == "rope")
    _refuse(raw, source, "layer_norm_type", raw["layer_norm_type"] == "layer_norm")
    _refuse(raw, source, "rope_scaling", is_plain)
    for name in ("hidden_size", "num_attention_heads"):
        _refuse(raw, source, name, fits(raw[name], int) and raw[name] > 0)
    factor = scaling["factor"]
    width = raw["hidden_size"] // raw["num_attention_heads"]
    rope = {"rope_type": "linear", "rope_theta": raw["rope_theta"] * factor, "factor": factor ** (2 / width)}
    left_out = ("rope_theta", "rope_scaling", "position_embedding_type")
    kept = {name: value for name, value in raw.items() if name not in left_out}
    return {**kept, "model_type": "gte", "rope_parameters": rope}


def _nomic(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Nomic's fields beside those of today, which stay where both are given."""
    _refuse(raw, source, "activation_function", raw["activation_function"] in GATED_ACTS)
    _refuse(raw, source, "scale_attn_weights", raw["scale_attn_weights"])
    fields = {today: raw[old] for old, today in _NOMIC_FIELDS.items() if raw.get(old) is not None}
    fields["hidden_act"] = GATED_ACTS[fields["hidden_act"]]
    rope = {name: fields.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in fields}
    if "rope_theta" not in raw:
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, **rope}
    return {**fields, **raw}


def _refuse(raw: dict[str, Any], source: str, name: str, fits: bool) -> None:
    if not fits:
        raise UserError(f"{source!r} has {name}={raw.get(name)!r}, which can't be converted.")
