"""Older names of fields in config.json, of code that came with a checkpoint: transformers' classes don't read them."""

from collections.abc import Mapping
from typing import Any

from ..errors import UserError

GATED_ACTS = {"swiglu": "silu", "geglu": "gelu"}
"""Older names of the activation of a gated network."""
OLD_FIELDS: dict[str, dict[str, str]] = {
    "nomic_bert": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "activation_function": "hidden_act",
        "rotary_emb_base": "rope_theta",
        "rotary_emb_fraction": "partial_rotary_factor",
    },
    "eurobert": {"clf_pooling": "classifier_pooling"},
}
"""By `model_type`: older names, and today's."""


def is_jina_bert(raw: Mapping[str, Any]) -> bool:
    """True for the config.json of a JinaBERT v2."""
    return raw.get("model_type") == "bert" and raw.get("position_embedding_type") == "alibi"


def check_old_fields(config: Any, raw: Mapping[str, Any], name: str) -> None:
    """Refuses an older name whose value isn't the one that the class computes with.

    Args:
        config: of the class that loads it.
        raw: config.json as it stands.
        name: what the user called the checkpoint.

    Raises:
        UserError: the two differ.
    """
    if not type(config).__module__.startswith("transformers."):  # the code that came along reads them
        return
    rope = getattr(config, "rope_parameters", None) or {}
    values = {"partial_rotary_factor": 1.0, **config.to_dict(), **rope}
    for old, today in OLD_FIELDS.get(config.model_type, {}).items():
        if raw.get(old) is not None and GATED_ACTS.get(str(raw[old]), raw[old]) != values.get(today):
            raise UserError(
                f"{name!r}: config.json has {old}={raw[old]!r}, an older name that transformers doesn't read: it "
                f"computes with {today}={values.get(today)!r}. Delete {old} there, and give "
                f"{'rope_parameters ' * (today in rope)}the {today} that the weights need."
            )
