"""Fields of a family that are computed, in both directions, and weights beside them: what its table can't say."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.configuration_posenc import PosEncConfig
from ..model.scheme_factory import make_scheme

POSITIONS = "embeddings.position_embeddings.weight"
"""Of a table of positions, in every class that has one."""
_EVERY = "global_attn_every_n_layers"


class Particulars:
    """Of a family whose table says nearly everything: RoPE's parameters are the same in both.

    Attributes:
        float32: 16 bits can't hold a weight that its class saves and ours computes.
    """

    float32 = False

    def ours(self, config: Any, source: str) -> dict[str, Any]:
        """Fields of a PosEncConfig beside the family's usual ones, from theirs; refuses what our body doesn't have."""
        rope = getattr(config, "rope_parameters", None)
        return {"rope_parameters": dict(rope)} if rope else {}

    def theirs(self, config: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fields of their config, from our config and weights; those of a model that the class can hold."""
        return {"rope_parameters": dict(config.rope_parameters)} if config.rope_parameters else {}

    def weights(self, scheme: Any, rows: int) -> dict[str, Tensor]:
        """Weights that its class saves and our scheme computes, for so many positions."""
        return {}

    def left_out(self, config: PosEncConfig, read: Any, source: str) -> tuple[dict[str, str], list[str]]:
        """Weights of positions that ours doesn't take, with reasons, and notes; our config gets what these say."""
        return {}, []


class SineTable(Particulars):
    """RoFormer, which saves a table of the sines and cosines by which it turns pairs."""

    float32 = True

    def theirs(self, config: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """No fields: its angles are fixed."""
        return {}

    def weights(self, scheme: Any, rows: int) -> dict[str, Tensor]:
        """The table, ours digit for digit."""
        cos, sin = scheme.cos_sin(torch.arange(rows)).chunk(2, -1)
        return {"encoder.embed_positions.weight": torch.cat((sin[:, ::2], cos[:, ::2]), -1)}

    def left_out(self, config: PosEncConfig, read: Any, source: str) -> tuple[dict[str, str], list[str]]:
        """The table; refuses one that has been trained."""
        sines = read.model.base_model.encoder.embed_positions
        if (sines.weight - sines.create_weight()).abs().max() > 1e-3:
            raise UserError(f"{source!r}: its table of positions isn't RoFormer's sines, which 'rope' computes.")
        return {"encoder.embed_positions.weight": "a table of sines, which is computed"}, []


class LocalWindows(Particulars):
    """ModernBERT, which has local and global layers, and biases of norms and heads or none."""

    def ours(self, config: Any, source: str) -> dict[str, Any]:
        """The window, and a theta for each kind of layer."""
        kinds = list(config.layer_types)
        every = next((n for n in range(1, len(kinds)) if kinds[n] == "full_attention"), max(len(kinds), 2))
        whole, local = (config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention"))
        plain = {"rope_type": "default", "rope_theta": local["rope_theta"]}
        fits = {
            "layer_types": kinds == _layer_types(len(kinds), every) and every > 1,
            "rope_parameters": local == plain and None not in (whole["rope_theta"], local["rope_theta"]),
            "local_attention": config.sliding_window > 0,
        }
        can = (
            "a global layer and then the same number of local ones, again and again; local layers with a theta, whose "
            "RoPE isn't scaled; and windows of a token or more to either side."
        )
        refuse_unlike(config, fits, source, can)
        return {
            "position_embedding_kwargs": {"window": {"sliding_window": config.sliding_window, _EVERY: every}},
            "rope_parameters": {**whole, "local_rope_theta": local["rope_theta"], _EVERY: every},
        }

    def theirs(self, config: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Local and global layers, the dropout of embeddings, and biases where one isn't zero."""
        window = config.position_embedding_kwargs["window"]
        whole = dict(config.rope_parameters)
        theta = whole.pop("local_rope_theta", None)
        whole.pop(_EVERY, None)
        local = whole if theta is None else {"rope_type": "default", "rope_theta": theta}
        optional = [value for name, value in state.items() if name.endswith(("norm.bias", "dense.bias"))]
        return {
            "layer_types": _layer_types(config.num_hidden_layers, window[_EVERY]),
            "local_attention": 2 * window["sliding_window"],
            "rope_parameters": {"full_attention": whole, "sliding_attention": local},
            "embedding_dropout": float(config.hidden_dropout_prob),
            **dict.fromkeys(("norm_bias", "classifier_bias"), any(bool(value.any()) for value in optional)),
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
        }


def _layer_types(layers: int, every: int) -> list[str]:
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]


class Disentangled(Particulars):
    """DeBERTa, in its first version (without buckets) or its second."""

    terms = {"c2p": ["c2p"], "p2c": ["p2c"], "both": ["p2c", "c2p"]}
    """What the scheme `deberta` calls a DeBERTa's `pos_att_type`, and that."""

    def __init__(self, *, has_buckets: bool) -> None:
        """Of one of the two versions."""
        self.has_buckets = has_buckets

    def ours(self, config: Any, source: str) -> dict[str, Any]:
        """The scheme, with its arguments."""
        norms = getattr(config, "norm_rel_ebd", "none")
        kinds = sorted(config.pos_att_type or (), reverse=True)
        fits = {
            "pos_att_type": kinds in self.terms.values(),
            "norm_rel_ebd": norms in ("none", "layer_norm"),
            "pooler_hidden_size": config.pooler_hidden_size == config.hidden_size,
        }
        can = "pos_att_type c2p, p2c or both, norm_rel_ebd none or layer_norm, and a pooler as wide as the encoder."
        refuse_unlike(config, fits, source, can)
        buckets = getattr(config, "position_buckets", -1)
        longest = config.max_relative_positions
        arguments = {
            "terms": next(terms for terms, types in self.terms.items() if types == kinds),
            "max_distance": longest if longest > 0 else config.max_position_embeddings,
            "position_buckets": buckets if buckets > 0 else None,
            "share_att_key": bool(getattr(config, "share_att_key", False)),
            "norm_eps": config.layer_norm_eps if norms == "layer_norm" else None,
            "dropout": config.hidden_dropout_prob,
        }
        if not config.position_biased_input:
            return {"position_embedding_type": "deberta", "position_embedding_kwargs": arguments}
        both = {"learned": {"dropout": 0.0}, "deberta": arguments}
        return {"position_embedding_type": "learned+deberta", "position_embedding_kwargs": both}

    def theirs(self, config: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fields for its positions, and for its pooler."""
        is_added = "+" in config.position_embedding_type
        arguments = config.position_embedding_kwargs
        arguments = arguments["deberta"] if is_added else arguments
        fields = {
            "position_biased_input": is_added,
            "pos_att_type": self.terms[arguments["terms"]],
            "max_relative_positions": arguments["max_distance"],
            "pooler_hidden_size": config.hidden_size,
        }
        if not self.has_buckets:
            return fields
        norms = "none" if arguments["norm_eps"] is None else "layer_norm"
        buckets = {"position_buckets": arguments["position_buckets"] or -1, "norm_rel_ebd": norms}
        return {**fields, **buckets, "share_att_key": arguments["share_att_key"]}

    def left_out(self, config: PosEncConfig, read: Any, source: str) -> tuple[dict[str, str], list[str]]:
        """The table that is there and isn't added."""
        unused = config.position_embedding_type == "deberta"
        return ({POSITIONS: "a table of positions, which the model doesn't add"} if unused else {}), []


class StoredAngles(Particulars):
    """ESM, which holds a frequency for each pair, has two places of norms, and drops masked tokens from its scale."""

    frequencies = "rotary_embeddings.inv_freq"

    def ours(self, config: Any, source: str) -> dict[str, Any]:
        """The scheme, its norms and its token dropout."""
        kind = config.position_embedding_type
        fits = {
            "position_embedding_type": kind in ("rotary", "absolute"),
            "mask_token_id": not config.token_dropout or config.mask_token_id is not None,
        }
        refuse_unlike(config, fits, source, "rotary and absolute positions, and a token dropout of the mask token.")
        fields = {
            "norm_position": "pre" if config.emb_layer_norm_before else "pre_only",
            "token_dropout": config.mask_token_id if config.token_dropout else None,
        }
        if kind == "absolute":
            return {**fields, "position_embedding_type": "learned", "position_embedding_kwargs": None}
        return {**fields, "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}

    def theirs(self, config: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fields for its positions, its norms and its token dropout."""
        rope = config.rope_parameters
        return {
            "position_embedding_type": "rotary" if rope else "absolute",
            "emb_layer_norm_before": config.norm_position == "pre",
            "token_dropout": config.token_dropout is not None,
            "mask_token_id": config.token_dropout,
            **({"rope_theta": float(rope["rope_theta"])} if rope else {}),
        }

    def weights(self, scheme: Any, rows: int) -> dict[str, Tensor]:
        """The frequencies."""
        return {self.frequencies: _frequencies(scheme)} if scheme.uses("rotate") else {}

    def left_out(self, config: PosEncConfig, read: Any, source: str) -> tuple[dict[str, str], list[str]]:
        """The frequencies, taken as factors of `longrope` where its config.json says others."""
        if self.frequencies not in read.state:
            return {}, []
        reasons = {
            POSITIONS: "a table of positions, which the model doesn't add",
            self.frequencies: "RoPE's frequencies, which are computed",
        }
        stored = read.state[self.frequencies]
        computed = _frequencies(make_scheme(config))
        if torch.allclose(computed, stored, rtol=3e-7, atol=0):
            return reasons, []
        factors = (computed.double() / stored.double()).tolist()
        rope: dict[str, Any] = config.rope_parameters  # type: ignore[assignment]
        config.rope_parameters = {
            **rope,
            "rope_type": "longrope",
            "original_max_position_embeddings": config.max_position_embeddings,
            **dict.fromkeys(("short_factor", "long_factor"), factors),
            **dict.fromkeys(("factor", "attention_factor"), 1.0),
        }
        is_rounded = torch.allclose(computed, stored, rtol=2**-8, atol=0)
        unlike = f"that aren't those of rope_theta={rope['rope_theta']} in its config.json"
        said = ", rounded to 16 bits" if is_rounded else f" {unlike}, and its class computes with them"
        return reasons, [f"Its RoPE has stored frequencies{said}: kept, as factors of longrope."]


def _frequencies(rope: Any) -> Tensor:
    """The angle of each pair at position 1."""
    return rope.angles(torch.ones(1, dtype=torch.int64))[0]


def refuse_unlike(config: Any, fits: Mapping[str, bool], source: str, can: str) -> None:
    """Raises a UserError that names the fields which don't fit, each with its value, and what our body can."""
    if unlike := [f"{name}={getattr(config, name, None)!r}" for name in fits if not fits[name]]:
        raise UserError(f"{source!r} has {', '.join(unlike)}. PosEnc can express {can}")
