"""Translates a family's configuration into ours and back, to one that computes the same."""

from collections import Counter
from typing import Any

from ..errors import UserError
from .families import Family

_CANT = {
    "is_decoder": "a decoder",
    "add_cross_attention": "a model with cross-attention",
    "rotary_value": "a RoFormer that rotates values",
    "pruned_heads": "a model with pruned heads",
    "is_encoder_decoder": "an encoder-decoder",
    "quantization_config": "a quantised model",
}
"""Fields that must not be set: our body lacks these features."""

_SAME = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "pad_token_id"),
)
"""Fields that mean the same in both, under the names of `Family.fields`."""


def our_fields(family: Family, config: Any, raw: dict[str, Any], task: str, source: str) -> dict[str, Any]:
    """The fields of a PosEncConfig that computes what a model of this family does.

    Args:
        family: of the model.
        config: theirs, of the transformers class.
        raw: config.json as it stands, with what that class drops.
        task: of the converted model.
        source: for messages.

    Raises:
        UserError: it asks for something that our body doesn't have.
    """
    for name, why in _CANT.items():
        if value := raw.get(name):
            raise UserError(f"{source!r} is {why} ({name}={value!r}), which PosEnc's body can't express.")
    if family.prefix == "roberta." and config.pad_token_id is None:
        raise UserError(
            f"{source!r} has pad_token_id=None, and a {family.model_type} model counts positions from it. Put the "
            "padding token's number into its config.json."
        )
    fields = _body(family, config, task)
    fields |= _positions(family, config, raw.get("position_embedding_type") or "absolute", source)
    _check_head(family, config, task, source)
    if task in ("text-classification", "token-classification"):
        names = {int(number): name for number, name in config.id2label.items()}
        twice = {name for name, count in Counter(names.values()).items() if count > 1}
        names = {number: f"{name}_{number}" if name in twice else name for number, name in names.items()}
        fields["id2label"] = names  # label2id follows from it: in many checkpoints it belongs to another model
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields


def _body(family: Family, config: Any, task: str) -> dict[str, Any]:
    """Sizes, dropouts, activations, pooling."""
    distil = family.model_type == "distilbert"
    fields: dict[str, Any] = {name: getattr(config, family.fields.get(name, name)) for name in _SAME}
    fields |= {
        "layer_norm_eps": 1e-12 if distil else config.layer_norm_eps,
        "type_vocab_size": 0 if distil else config.type_vocab_size,
        "norm_position": "post",
        "classifier_pooling": "cls",
        "classifier_hidden_act": family.classifier_act or config.hidden_act,
        "classifier_dropout": getattr(config, family.fields.get("classifier_dropout", "classifier_dropout"), None),
        "tie_word_embeddings": config.tie_word_embeddings is not False,
    }
    if distil and task == "token-classification":
        fields["classifier_dropout"] = None
    if getattr(config, "embedding_size", None) not in (None, config.hidden_size):
        fields["embedding_size"] = config.embedding_size
    return fields


def _positions(family: Family, config: Any, kind: str, source: str) -> dict[str, Any]:
    """The scheme, and how many positions it has."""
    fields = {"max_position_embeddings": config.max_position_embeddings}
    if family.model_type == "roformer":
        return {**fields, "position_embedding_type": "rope", "position_embedding_kwargs": {"interleaved": True}}
    if kind == "absolute":
        if family.prefix == "roberta.":
            fields["max_position_embeddings"] -= first_position(config)
        return {**fields, "position_embedding_type": "learned"}
    if kind in ("relative_key", "relative_key_query") and family.model_type != "distilbert":
        return {**fields, "position_embedding_type": kind}
    raise UserError(
        f"{source!r} has position_embedding_type={kind!r}, which a {family.model_type} model can't have. Known are "
        "absolute, relative_key and relative_key_query."
    )


def _check_head(family: Family, config: Any, task: str, source: str) -> None:
    if task == "fill-mask" and family.fixed_lm_act and config.hidden_act != "gelu":
        raise UserError(
            f"{source!r} has hidden_act={config.hidden_act!r}, and a masked-LM head with gelu as all of its family. "
            "PosEnc's head has the encoder's activation. Convert the encoder alone: task='feature-extraction'."
        )
    if family.model_type == "electra" and task == "multiple-choice":
        expected = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
        for name, wanted in expected.items():
            if getattr(config, name) != wanted:
                raise UserError(
                    f"{source!r} has {name}={getattr(config, name)!r}; PosEnc's multiple choice can express {wanted!r}."
                )


def first_position(config: Any) -> int:
    """The row of position 0 in RoBERTa's table: the one after the padding token's id."""
    return int(config.pad_token_id) + 1


def their_fields(family: Family, config: Any, task: str) -> dict[str, Any]:
    """The fields of a family's config that computes what a `learned` PosEnc model does, without `obstacles`."""
    fields: dict[str, Any] = {family.fields.get(name, name): getattr(config, name) for name in _SAME}
    fields |= {name: getattr(config, name) for name in ("max_position_embeddings", "tie_word_embeddings")}
    if family.model_type != "distilbert":
        fields["layer_norm_eps"] = config.layer_norm_eps
        # Without token types of ours, theirs get rows of zeros: one for each type that tokenizers of pairs give.
        fields["type_vocab_size"] = config.type_vocab_size or 2
    if config.classifier_dropout is not None:
        fields[family.fields.get("classifier_dropout", "classifier_dropout")] = config.classifier_dropout
    if family.model_type == "electra":
        fields["embedding_size"] = config.embedding_width
    if family.prefix == "roberta.":
        fields["max_position_embeddings"] += first_position(config)
    if task in ("text-classification", "token-classification"):
        fields |= {"id2label": config.id2label, "label2id": config.label2id}
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields


def obstacles(family: Family, config: Any, task: str) -> list[str]:
    """What of a PosEnc model a family can't express."""
    problems = []
    distil = family.model_type == "distilbert"
    if family.prefix == "roberta." and config.pad_token_id is None:
        problems.append("pad_token_id=None: it counts positions from the padding token's number")
    if config.position_embedding_type != "learned":
        problems.append(f"position_embedding_type={config.position_embedding_type!r}: it has a learned table only")
    if config.norm_position != "post":
        problems.append(f"norm_position={config.norm_position!r}: its layers are post-norm")
    if config.scale_embeddings:
        problems.append("scale_embeddings=True: it doesn't scale them")
    if (config.position_embedding_kwargs or {}).get("dropout"):
        problems.append("a dropout on positions: it has none")
    if config.embedding_size is not None and family.model_type != "electra":
        problems.append(f"embedding_size={config.embedding_size}: only electra projects embeddings")
    if distil and config.type_vocab_size:
        problems.append(f"type_vocab_size={config.type_vocab_size}: it has no token types")
    if distil and config.layer_norm_eps != 1e-12:
        problems.append(f"layer_norm_eps={config.layer_norm_eps}: its is 1e-12")
    if task == "fill-mask" and family.fixed_lm_act and config.hidden_act != "gelu":
        problems.append(f"hidden_act={config.hidden_act!r}: its masked-LM head has gelu")
    if task in ("text-classification", "multiple-choice"):
        act = family.classifier_act or config.hidden_act
        if config.classifier_pooling != "cls" or config.classifier_hidden_act != act:
            problems.append(
                f"a classifier with pooling {config.classifier_pooling!r} and activation "
                f"{config.classifier_hidden_act!r}: its has 'cls' and {act!r}"
            )
    return problems
