"""The BERT family under PosEnc's names: what each architecture calls its sizes, its weights and its heads.

Every table maps our name of a weight to theirs, so that one table serves both directions.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TASKS = {
    "feature-extraction": "PosEncModel",
    "fill-mask": "PosEncForMaskedLM",
    "text-classification": "PosEncForSequenceClassification",
    "token-classification": "PosEncForTokenClassification",
    "question-answering": "PosEncForQuestionAnswering",
    "multiple-choice": "PosEncForMultipleChoice",
}
"""What a converted model is for, and the class that it becomes."""

_SUFFIXES = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "feature-extraction",
}

_KINDS = ("weight", "bias")
_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.dense": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_DISTILBERT_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.dense": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "intermediate": "ffn.lin1",
    "output": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
_POOLED = {"dense": "pooler.dense", "classifier": "classifier"}
_ROBERTA_HEAD = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
_PER_TOKEN = {"token-classification": {"classifier": "classifier"}, "question-answering": {"qa_outputs": "qa_outputs"}}
_BERT_LM = {
    "dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.LayerNorm",
    "decoder": "cls.predictions.decoder",
}
_ROBERTA_LM = {"dense": "lm_head.dense", "head_norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"}


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        model_type: what config.json calls it.
        class_prefix: what its class names begin with.
        prefix: under which its heads hold the encoder.
        heads: for each task, our name of each linear layer or norm of the head, and theirs.
        classifier_act: activation of the dense layer before the classifier. None: the encoder's.
        decoder_bias: where the decoder's bias is, if not at the decoder.
        layer: names in a layer.
        layers: where the layers are.
        fixed_lm_act: whether the masked-LM head has gelu whatever the encoder has.
    """

    model_type: str
    class_prefix: str
    prefix: str
    heads: dict[str, dict[str, str]]
    classifier_act: str | None = "tanh"
    decoder_bias: str | None = None
    layer: dict[str, str] = field(default_factory=lambda: _BERT_LAYER)
    layers: str = "encoder.layer"
    fixed_lm_act: bool = False

    def encoder_names(self, config: Any) -> dict[str, str]:
        """Our name -> their name of each weight of the encoder, without prefixes. `config` is ours."""
        names = {
            "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
            "embeddings.norm.weight": "embeddings.LayerNorm.weight",
            "embeddings.norm.bias": "embeddings.LayerNorm.bias",
        }
        if config.type_vocab_size and self.model_type != "distilbert":
            names["embeddings.token_type_embeddings.weight"] = "embeddings.token_type_embeddings.weight"
        if config.embedding_size is not None:
            names |= {f"embeddings.projection.{kind}": f"embeddings_project.{kind}" for kind in _KINDS}
        if config.position_embedding_type == "learned":
            names["position.embedding.weight"] = "embeddings.position_embeddings.weight"
        for index in range(config.num_hidden_layers):
            for ours, theirs in self.layer.items():
                for kind in _KINDS:
                    names[f"layers.{index}.{ours}.{kind}"] = f"{self.layers}.{index}.{theirs}.{kind}"
            if config.position_embedding_type.startswith("relative_key"):
                table = f"{self.layers}.{index}.attention.self.distance_embedding.weight"
                names[f"position.tables.{index}.weight"] = table
        return names

    def head_names(self, task: str) -> dict[str, str]:
        """Our name -> their name of each weight of a task's head."""
        names = {
            f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in self.heads.get(task, {}).items() for kind in _KINDS
        }
        if task == "fill-mask" and self.decoder_bias is not None:
            names["decoder.bias"] = self.decoder_bias
        return names


_ROBERTA: dict[str, Any] = {
    "prefix": "roberta.",
    "heads": {
        "fill-mask": _ROBERTA_LM,
        "text-classification": _ROBERTA_HEAD,
        "multiple-choice": _POOLED,
        **_PER_TOKEN,
    },
    "decoder_bias": "lm_head.bias",
    "fixed_lm_act": True,
}

FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            "bert",
            "Bert",
            "bert.",
            {"fill-mask": _BERT_LM, "text-classification": _POOLED, "multiple-choice": _POOLED, **_PER_TOKEN},
            decoder_bias="cls.predictions.bias",
        ),
        Family("roberta", "Roberta", **_ROBERTA),
        Family("xlm-roberta", "XLMRoberta", **_ROBERTA),
        Family("camembert", "Camembert", **_ROBERTA),
        Family(
            "distilbert",
            "DistilBert",
            "distilbert.",
            {
                "fill-mask": {
                    "dense": "vocab_transform",
                    "head_norm": "vocab_layer_norm",
                    "decoder": "vocab_projector",
                },
                "text-classification": {"dense": "pre_classifier", "classifier": "classifier"},
                "multiple-choice": {"dense": "pre_classifier", "classifier": "classifier"},
                **_PER_TOKEN,
            },
            classifier_act="relu",
            layer=_DISTILBERT_LAYER,
            layers="transformer.layer",
        ),
        Family(
            "electra",
            "Electra",
            "electra.",
            {
                "fill-mask": {
                    "dense": "generator_predictions.dense",
                    "head_norm": "generator_predictions.LayerNorm",
                    "decoder": "generator_lm_head",
                },
                "text-classification": _ROBERTA_HEAD,
                "multiple-choice": {"dense": "sequence_summary.summary", "classifier": "classifier"},
                **_PER_TOKEN,
            },
            classifier_act="gelu",
            fixed_lm_act=True,
        ),
        Family(
            "roformer",
            "RoFormer",
            "roformer.",
            {"fill-mask": _BERT_LM, "text-classification": _ROBERTA_HEAD, **_PER_TOKEN},
            classifier_act=None,
            decoder_bias="cls.predictions.bias",
        ),
    )
}
"""The architectures that can be converted."""

_WHY_NOT = {
    "modernbert": "its layers have no biases, gated feed-forward networks, and windows of 128 tokens in two layers of "
    "three, none of which PosEnc's body has",
    "deberta": "its attention and its embeddings (a mask, a convolution) aren't BERT's; its scheme alone is here, as "
    "'deberta'",
    "deberta-v2": "its attention and its embeddings (a mask, a convolution) aren't BERT's; its scheme alone is here, "
    "as 'deberta'",
    "albert": "its layers share one set of weights",
    "roberta-prelayernorm": "its layers are pre-norm with biases that post-norm BERT doesn't have",
    "nomic_bert": "its feed-forward networks are gated",
}


def family_of(model_type: str | None, source: str) -> Family:
    """The family of a `model_type`.

    Raises:
        ValueError: it isn't one that can be converted; the message lists those that can, and says why where we know.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    reason = f": {_WHY_NOT[model_type]}" if model_type in _WHY_NOT else ""
    what = f"is a {model_type!r} model" if model_type else "has no model_type in its config.json"
    raise ValueError(
        f"{source!r} {what}, which can't be converted{reason}. These can: {', '.join(FAMILIES)}, and posenc itself."
    )


def task_of(
    family: Family, architectures: list[str] | None, keys: set[str], source: str, wanted: str | None = None
) -> str:
    """The task of a checkpoint: what its config's `architectures` says, or else what its keys show.

    Keys that tell nothing else, a lone classifier's, show the `wanted` one.

    Raises:
        ValueError: it has a head that PosEnc doesn't have.
    """
    name = (architectures or [""])[0]
    if name.endswith("ForPreTraining"):
        return "fill-mask" if "fill-mask" in family.heads and family.model_type != "electra" else "feature-extraction"
    for suffix, task in _SUFFIXES.items():
        if name.endswith(suffix):
            if task != "feature-extraction" and task not in family.heads:
                break
            return task
    if not name:
        found = {names for names, head in family.heads.items() if _complete(family, names, head, keys)}
        for task in ("fill-mask", "question-answering", "text-classification", wanted or ""):
            if task in found:
                return task
        return "feature-extraction"
    raise ValueError(
        f"{source!r} holds {name}, whose head PosEnc doesn't have. Convert the encoder alone with "
        "task='feature-extraction', or another head: these are known for "
        f"{family.model_type}: {', '.join(family.heads)}."
    )


def _complete(family: Family, task: str, head: dict[str, str], keys: set[str]) -> bool:
    wanted = {f"{name}.weight" for ours, name in head.items() if ours != "decoder"}
    return bool(wanted) and wanted <= keys


def normalise(keys: list[str], family: Family) -> dict[str, str]:
    """Their keys -> the same without the encoder's prefix and with today's names of a LayerNorm's weights."""
    wrapped = bool(keys) and all(key.startswith("module.") for key in keys)  # saved from DataParallel
    names = {}
    for key in keys:
        name = key.removeprefix("module.") if wrapped else key
        name = name.removeprefix(family.prefix)
        name = re.sub(r"(LayerNorm|layer_norm|_norm)\.gamma$", r"\1.weight", name)
        names[key] = re.sub(r"(LayerNorm|layer_norm|_norm)\.beta$", r"\1.bias", name)
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


def reason_to_drop(family: Family, name: str, task: str) -> str | None:
    """Why a weight that the converted model doesn't have may be left out, or None: then it is an error."""
    if name in ("pooler.dense.weight", "pooler.dense.bias"):
        keeps = [f"task={one!r}" for one, head in family.heads.items() if "pooler.dense" in head.values()]
        return (
            f"the pooler, which only classifiers use ({keeps[0]} keeps it)"
            if keeps
            else "the pooler, which no head uses"
        )
    for one, head in family.heads.items():
        names = {f"{layer}.{kind}" for layer in head.values() for kind in _KINDS}
        if name in names or name in family.head_names(one).values():
            return f"the {'masked-LM head' if one == 'fill-mask' else 'head of another task'}; this is {task}"
    return _DROPPED.get(name)


def our_fields(family: Family, config: Any, raw: dict[str, Any], task: str, source: str) -> dict[str, Any]:
    """The fields of a PosEncConfig that computes what a model of this family does.

    Args:
        config: theirs, of the transformers class.
        raw: config.json as it stands, with what that class drops.

    Raises:
        ValueError: it asks for something that our body doesn't have.
    """
    kind = raw.get("position_embedding_type") or "absolute"
    for name, why in (
        ("is_decoder", "a decoder"),
        ("add_cross_attention", "a model with cross-attention"),
        ("rotary_value", "a RoFormer that rotates values"),
        ("pruned_heads", "a model with pruned heads"),
        ("is_encoder_decoder", "an encoder-decoder"),
        ("quantization_config", "a quantised model"),
    ):
        if value := raw.get(name):
            raise ValueError(f"{source!r} is {why} ({name}={value!r}), which PosEnc's body can't express.")
    if family.prefix == "roberta." and config.pad_token_id is None:
        raise ValueError(
            f"{source!r} has pad_token_id=None, and a {family.model_type} model counts positions from it. Put the "
            "padding token's number into its config.json."
        )
    distil = family.model_type == "distilbert"
    positions = config.max_position_embeddings
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.hidden_dim if distil else config.intermediate_size,
        "hidden_act": config.activation if distil else config.hidden_act,
        "hidden_dropout_prob": config.dropout if distil else config.hidden_dropout_prob,
        "attention_probs_dropout_prob": (config.attention_dropout if distil else config.attention_probs_dropout_prob),
        "layer_norm_eps": 1e-12 if distil else config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "max_position_embeddings": positions,
        "type_vocab_size": 0 if distil else config.type_vocab_size,
        "pad_token_id": config.pad_token_id,
        "norm_position": "post",
        "classifier_pooling": "cls",
        "classifier_hidden_act": family.classifier_act or config.hidden_act,
        "classifier_dropout": config.seq_classif_dropout if distil else getattr(config, "classifier_dropout", None),
        "tie_word_embeddings": config.tie_word_embeddings is not False,
    }
    if distil and task == "token-classification":
        fields["classifier_dropout"] = None
    if getattr(config, "embedding_size", None) not in (None, config.hidden_size):
        fields["embedding_size"] = config.embedding_size
    if family.model_type == "roformer":
        fields |= {"position_embedding_type": "rope", "position_embedding_kwargs": {"interleaved": True}}
    elif kind == "absolute":
        fields["position_embedding_type"] = "learned"
        if family.prefix == "roberta.":
            fields["max_position_embeddings"] = positions - first_position(config)
    elif kind in ("relative_key", "relative_key_query") and not distil:
        fields["position_embedding_type"] = kind
    else:
        raise ValueError(
            f"{source!r} has position_embedding_type={kind!r}, which a {family.model_type} model can't have. Known are "
            "absolute, relative_key and relative_key_query."
        )
    if task == "fill-mask" and family.fixed_lm_act and config.hidden_act != "gelu":
        raise ValueError(
            f"{source!r} has hidden_act={config.hidden_act!r}, and a masked-LM head with gelu as all of its family. "
            "PosEnc's head has the encoder's activation. Convert the encoder alone: task='feature-extraction'."
        )
    if family.model_type == "electra" and task == "multiple-choice":
        expected = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
        for name, wanted in expected.items():
            if getattr(config, name) != wanted:
                raise ValueError(
                    f"{source!r} has {name}={getattr(config, name)!r}; PosEnc's multiple choice can express {wanted!r}."
                )
    if task in ("text-classification", "token-classification"):
        names = {int(number): name for number, name in config.id2label.items()}
        twice = {name for name, count in Counter(names.values()).items() if count > 1}
        names = {number: f"{name}_{number}" if name in twice else name for number, name in names.items()}
        fields["id2label"] = names  # label2id follows from it: many checkpoints keep another's
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields


def first_position(config: Any) -> int:
    """The row of RoBERTa's table of positions at which counting starts: after the padding token's number."""
    return int(config.pad_token_id) + 1


def their_fields(family: Family, config: Any, task: str) -> dict[str, Any]:
    """The fields of a family's config that computes what a `learned` PosEnc model does.

    Raises:
        ValueError: the family can't express it.
    """
    problems = []
    distil, electra = family.model_type == "distilbert", family.model_type == "electra"
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
    if config.embedding_size is not None and not electra:
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
    if problems:
        raise ValueError(f"A {family.model_type} model can't hold this checkpoint: {'; '.join(problems)}.")
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "pad_token_id": config.pad_token_id,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    shared = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
    if distil:
        fields |= {
            "dim": config.hidden_size,
            "n_layers": config.num_hidden_layers,
            "n_heads": config.num_attention_heads,
            "hidden_dim": config.intermediate_size,
            "activation": config.hidden_act,
            "dropout": config.hidden_dropout_prob,
            "attention_dropout": config.attention_probs_dropout_prob,
        }
        if config.classifier_dropout is not None:
            fields["seq_classif_dropout"] = config.classifier_dropout
    else:
        more = ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "classifier_dropout")
        fields |= {name: getattr(config, name) for name in (*shared, *more)}
        # Where we have no token types they get rows of zeros, one for each that tokenizers of pairs give.
        fields["type_vocab_size"] = config.type_vocab_size or 2
    if electra:
        fields["embedding_size"] = config.embedding_width
    if family.prefix == "roberta.":
        fields["max_position_embeddings"] += first_position(config)
    if task in ("text-classification", "token-classification"):
        fields |= {"id2label": config.id2label, "label2id": config.label2id}
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields
