"""The BERT family: what each architecture calls its sizes, weights and heads, and which encoders its class can hold.

Every table maps our name of a weight to theirs, so that one table serves both directions.
"""

import inspect
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from ..errors import UserError
from ..tasks import LABELLED, TASKS
from .particulars import Disentangled, LocalWindows, Particulars, SineTable, StoredAngles


@dataclass(frozen=True)
class Same:
    """Among the values that a field may have: that of another field."""

    field: str


Needs = Mapping[str, tuple[Any, ...]]
"""The values that a field of ours may have, the usual one first. Fields are named as `flat` names them."""

SOURCE = "hf_posenc_source"
"""Where `task_specific_params` of a converted checkpoint name its family, to which a native export goes back."""
POOLED = ("text-classification", "multiple-choice")
"""The tasks whose classes read [CLS] in the first place."""
SAME_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "pad_token_id", "layer_norm_eps"),
)
"""Fields that mean the same in both, under the names of `Family.fields`."""
_UNGATED: Needs = {"mlp_gated": (False,), "attention_bias": (True,), "mlp_bias": (True,)}
"""BERT's feed-forward network, and its biases."""
_GATED: Needs = {"embedding_size": (None,), "mlp_gated": (True,)}
_NO_BIASES: Needs = {"attention_bias": (False,), "mlp_bias": (False,)}
_NOT_SET = ("position_embedding_type", "pad_token_id", "rope_parameters.")
"""What `usual_fields` and `mended` leave out: the scheme, the tokenizer's, and what fits unless it is changed."""
_LEARNED: dict[str, Needs] = {"learned": {"learned.dropout": (0.0,)}}
_T5: Needs = {"t5.num_buckets": (32,), "t5.max_distance": (128,), "t5.per_layer": (False,)}
_ROTATED: Needs = {
    "rope.interleaved": (False,),
    # With the other types the angles of a text depend on the longest in its batch.
    "rope_parameters.rope_type": ("default", "linear", "yarn", "llama3", "proportional"),
    "rope_parameters.partial_rotary_factor": (1.0,),
}
_HALF_SPLIT: dict[str, Needs] = {"rope": {**_ROTATED, "rope_parameters.local_rope_theta": (None,)}}
_INTERLEAVED: Needs = {
    **_HALF_SPLIT["rope"],
    "rope.interleaved": (True,),
    "rope_parameters.rope_type": ("default",),
    "rope_parameters.rope_theta": (10000.0,),
}
_STORED_ANGLES: Needs = {
    **_HALF_SPLIT["rope"],
    "rope_parameters.rope_type": ("default", "longrope"),
    "rope_parameters.short_factor": (Same("rope_parameters.long_factor"),),
    "rope_parameters.attention_factor": (1.0,),
    "rope_parameters.factor": (1.0,),
}
"""Of ESM, which holds a frequency for each pair: those of `longrope` with one list of factors."""
_WINDOWS: Needs = {
    **_ROTATED,
    "rope_parameters.global_attn_every_n_layers": (Same("window.global_attn_every_n_layers"),),
}
_DISTANCES: Needs = {"deberta.norm_eps": (None, Same("layer_norm_eps"))}
_PLAIN_DISTANCES: Needs = {
    "deberta.position_buckets": (None,),
    "deberta.share_att_key": (False,),
    "deberta.norm_eps": (None,),
}

WEIGHT_KINDS = ("weight", "bias")
_LAYER = (
    *("attention.query", "attention.key", "attention.value", "attention.dense"),
    *("attention_norm", "intermediate", "output", "output_norm"),
)


def _layer(*theirs: str) -> dict[str, str]:
    """Names in a layer, in the order of `_LAYER`; of a gated network its second half's behind `intermediate`'s."""
    ours = _LAYER if len(theirs) == len(_LAYER) else (*_LAYER[:6], "up", *_LAYER[6:])
    return dict(zip(ours, theirs, strict=True))


def _lm(*theirs: str) -> dict[str, str]:
    """Names in a masked-LM head: of its dense layer, its norm and its decoder."""
    return dict(zip(("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"), theirs, strict=True))


_EMBEDDINGS = {"embeddings.word_embeddings": "embeddings.word_embeddings", "embeddings.norm": "embeddings.LayerNorm"}
_BERT_LAYER = _layer(
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
_DISTILBERT_LAYER = _layer(
    *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)
_DEBERTA_LAYER = {
    **_BERT_LAYER,
    **{f"attention.{name}": f"attention.self.{name}_proj" for name in ("query", "key", "value")},
}
_JINA_BERT_MLP = {"intermediate": "mlp.gate", "up": "mlp.up", "output": "mlp.wo", "output_norm": "mlp.layernorm"}
_MPNET_LAYER = {
    **_BERT_LAYER,
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.dense": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
_JINA_LAYER = _layer(
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("post_attention_layernorm", "mlp.fc1", "mlp.fc2", "post_mlp_layernorm"),
)
_GATED_LAYER = {**_JINA_LAYER, "intermediate": "mlp.gate_proj", "up": "mlp.up_proj", "output": "mlp.down_proj"}
_MODERNBERT_LAYER = _layer(
    *("attn.query", "attn.key", "attn.value", "attn.Wo"),
    *("attn_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.Wo", "mlp_norm"),
)
_EUROBERT_LAYER = {**_GATED_LAYER, "attention_norm": "input_layernorm", "output_norm": "post_attention_layernorm"}
_ESM_LAYER = {**_BERT_LAYER, "attention_norm": "attention.LayerNorm", "output_norm": "LayerNorm"}
_RELATIVE = {"tables.{}": "encoder.layer.{}.attention.self.distance_embedding"}
_DISENTANGLED = {
    "embedding": "encoder.rel_embeddings",
    "norm": "encoder.LayerNorm",
    "keys.{}": "encoder.layer.{}.attention.self.pos_key_proj",
    "queries.{}": "encoder.layer.{}.attention.self.pos_query_proj",
}
_OF_SCHEMES = {
    "learned": {"embedding": "embeddings.position_embeddings"},
    "relative_key": _RELATIVE,
    "relative_key_query": _RELATIVE,
    "t5": {"tables.0": "encoder.relative_attention_bias"},
    "deberta": _DISENTANGLED,
}
"""Our name of each table of a scheme, and theirs; {} is the layer."""
_POOLED = {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"}
_SUMMARY = {"classifier.dense": "sequence_summary.summary", "classifier.out_proj": "classifier"}
_ROBERTA_HEAD = {name: name for name in ("classifier.dense", "classifier.out_proj")}
_NORMED_HEAD = {"classifier.dense": "head.dense", "classifier.layer_norm": "head.norm"}
_NORMED_HEAD |= {"classifier.out_proj": "classifier"}
_PER_TOKEN = {"token-classification": {"classifier": "classifier"}, "question-answering": {"qa_outputs": "qa_outputs"}}
_BERT_LM = _lm(*(f"cls.predictions.{part}" for part in ("transform.dense", "transform.LayerNorm", "decoder")))
_LM_PREDICTIONS = {
    "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
"""The masked-LM head of published DeBERTas, which decodes with the word embeddings: its names, and BERT's."""
_NOMIC_LM = {**_BERT_LM, "lm_head.layer_norm": "cls.predictions.transform.layer_norm"}
_ROBERTA_LM = {name: name for name in ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")}
_BERT_HEADS = {"fill-mask": _BERT_LM, "text-classification": _POOLED, "multiple-choice": _POOLED, **_PER_TOKEN}
_ROBERTA_HEADS = {**_BERT_HEADS, "fill-mask": _ROBERTA_LM, "text-classification": _ROBERTA_HEAD}
_SUMMARY_HEADS = {**_BERT_HEADS, "text-classification": _ROBERTA_HEAD, "multiple-choice": _SUMMARY}
_HIDDEN_DROPOUT = {"classifier_dropout": "hidden_dropout_prob"}
_FEW_HEADS = {name: _BERT_HEADS[name] for name in LABELLED}


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        model_type: what config.json calls it.
        heads: for each task, our name of each linear layer or norm of the head, and theirs.
        pretraining: the task of its class for pre-training.
        decoder_bias: where the decoder's bias is, if not at the decoder.
        fields: our name of a field of the configuration, and theirs, where it has another one.
        layer: names in a layer.
        layers: where the layers are.
        embeddings: names in the embeddings.
        fused: what holds several weights in its class, one below the other, and what they are called here.
        fused_by_head: they are one below the other in each head.
        renamed: parts of names in its class, and what they are called here.
        foreign: how names begin that belong to heads which PosEnc hasn't.
        absent: of these the part of an encoder, which an export fills with zeros.
        biases: whether all its layers, norms and heads have biases. Ours that it lacks are zero.
        needs_padding: its class doesn't run without the padding token's number.
        first_row: of its table of positions, position 0's. None: the row after the padding token's number.
        schemes: by `position_embedding_type`, what its class needs besides; first that of its checkpoints, unless they
            name another one.
        needed: what else its class needs; nothing: any value.
        poolings: of its classifiers, and their names of them; the usual one first.
        head_norm: a norm lies between that layer and the classifier.
        dense: activation of the dense layer between [CLS] and the classifier. None: the encoder's, or one
            of its own, where `fields` names it.
        lm_act: activation of the masked-LM head. None: the encoder's.
        fixed: fields of its configuration that must have a value, for we have no others.
        fixed_pooler: the same where a head has the pooler.
        in_training: a dropout of ours, and the one that acts in its place, if any.
        token_types: whether it has them. If not, type 0 is merged into the words.
        least_types: how many it has where ours has none: rows of zeros, one for each that tokenizers of pairs give.
        counts_tokens: whether left padding is as good as right: positions are counted from the tokens, or don't matter.
        particulars: what no table can say.
    """

    model_type: str
    heads: dict[str, dict[str, str]]
    pretraining: str = "fill-mask"
    decoder_bias: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    layer: dict[str, str] = field(default_factory=lambda: _BERT_LAYER)
    layers: str = "encoder.layer"
    embeddings: dict[str, str] = field(default_factory=lambda: _EMBEDDINGS)
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fused_by_head: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ("cls.seq_relationship.", "discriminator_predictions.")
    absent: str | None = None
    biases: bool = True
    needs_padding: bool = False
    first_row: int | None = 0
    schemes: Mapping[str, Needs] = field(default_factory=lambda: _LEARNED)
    needed: Needs = field(default_factory=lambda: {"embedding_size": (None,)})
    poolings: dict[str, str] = field(default_factory=lambda: {"cls": "cls"})
    head_norm: bool = False
    dense: str | None = "tanh"
    lm_act: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    fixed_pooler: Mapping[str, Any] = field(default_factory=dict)
    in_training: Mapping[str, str | None] = field(default_factory=dict)
    token_types: bool = True
    least_types: int = 2
    counts_tokens: bool = True
    particulars: Particulars = field(default_factory=Particulars)

    @property
    def scheme(self) -> str:
        """Of its checkpoints, unless they name another one."""
        return next(iter(self.schemes))

    def mismatches(self, fields: Mapping[str, Any], tasks: Iterable[str]) -> list[str]:
        """Lists the fields of a PosEncConfig that its class can't hold, each with its value and those that it can.

        Args:
            fields: all or some.
            tasks: those of the model.
        """
        values = flat(fields)
        return [
            f"{key}={reprlib.repr(values[key])} ({self.model_type} has {' or '.join(map(reprlib.repr, accepts))})"
            for key, accepts in self._unmet(values, tasks)
        ]

    def mended(self, fields: Mapping[str, Any], tasks: Iterable[str]) -> list[tuple[str, Any]]:
        """The fields among these that its class can't hold and a training may set, with a value that it can."""
        unmet = self._unmet(flat(fields), tasks)
        return [(key, accepts[0]) for key, accepts in unmet if not ("." in key or key in _NOT_SET)]

    def _unmet(self, values: Mapping[str, Any], tasks: Iterable[str]) -> list[tuple[str, tuple[Any, ...]]]:
        needs = self._needs(values, tasks).items()
        return [(key, accepts) for key, accepts in needs if key in values and values[key] not in accepts]

    def usual_fields(self, scheme: str) -> dict[str, Any]:
        """The fields that a model with a scheme needs so that its class can hold it, each with its usual value."""
        fields: dict[str, Any] = {"position_embedding_type": scheme}
        arguments: dict[str, dict[str, Any]] = {part: {} for part in scheme.split("+")}
        for key, accepts in self._needs(fields, POOLED).items():
            part, _, name = key.rpartition(".")
            if not key.startswith(_NOT_SET):
                (arguments[part] if part else fields)[name] = accepts[0]
        fields["position_embedding_kwargs"] = arguments if "+" in scheme else arguments[scheme]
        return fields

    def _needs(self, values: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """The values that fields may have, for these tasks, beside the others in `values`; see `flat`."""
        scheme = values.get("position_embedding_type")
        act = values.get("hidden_act", "gelu")
        needs = {"position_embedding_type": tuple(self.schemes), **self.schemes.get(str(scheme), {})}
        needs |= {"norm_position": ("post",), "norm_type": ("layer_norm",), "token_dropout": (None,)}
        needs |= {"scale_embeddings": (False,), **_UNGATED, **self.needed}
        if any(task in POOLED for task in tasks):
            dense = self.dense or act
            if "classifier_hidden_act" in self.fields:  # any, but there is a dense layer
                dense = values.get("classifier_hidden_act") or dense
            needs |= {"classifier_pooling": tuple(self.poolings), "classifier_hidden_act": (dense,)}
            needs["classifier_norm"] = (self.head_norm,)
        if "fill-mask" in tasks and self.lm_act is not None:
            needs["hidden_act"] = (self.lm_act,)
        return {
            field: tuple(values.get(accepted.field) if isinstance(accepted, Same) else accepted for accepted in accepts)
            for field, accepts in needs.items()
            if accepts
        }

    def fixed_fields(self, task: str, hidden_act: str) -> dict[str, Any]:
        """The fields of its configuration that must have a value, for a task's model and activation."""
        fields = {**self.fixed, **(self.fixed_pooler if task in POOLED else {})}
        if self.heads.get(task, {}).get("classifier.dense") != "sequence_summary.summary":
            return fields
        summary = {"summary_type": "first", "summary_use_proj": True, "summary_activation": self.dense or hidden_act}
        return {**fields, **summary}

    def rows_before(self, config: Any) -> int:
        """Number of rows in its table of positions before that of position 0; `config` is ours or theirs."""
        if getattr(config, "position_embedding_type", None) in ("rotary", "rope"):
            return 0
        return int(config.pad_token_id) + 1 if self.first_row is None else self.first_row

    def model_class(self, task: str) -> Any:
        """transformers' class of its models for a task."""
        return getattr(transformers, str(MODEL_MAPPING_NAMES[self.model_type]).removesuffix("Model") + TASKS[task])

    @property
    def prefix(self) -> str:
        """Under which its heads hold the encoder."""
        return f"{self.model_class('feature-extraction').base_model_prefix}."

    def without_pooler(self, task: str) -> dict[str, bool]:
        """The argument by which a bare encoder is made without a pooler, where its class has one."""
        has_one = "add_pooling_layer" in inspect.signature(self.model_class(task)).parameters
        return {"add_pooling_layer": False} if has_one else {}

    def encoder_names(self, config: Any) -> dict[str, str]:
        """Our name -> their name of each weight that the encoder may have, without prefixes. `config` is ours."""
        names = {"embeddings.projection": "embeddings_project", "norm": "final_norm", **self.embeddings}
        if self.token_types:
            names["embeddings.token_type_embeddings"] = "embeddings.token_type_embeddings"
        names |= {f"layers.{{}}.{ours}": f"{self.layers}.{{}}.{theirs}" for ours, theirs in self.layer.items()}
        scheme = config.position_embedding_type
        for part in scheme.split("+"):
            prefix = f"position.{part}." if part != scheme else "position."
            names |= {prefix + ours: theirs for ours, theirs in _OF_SCHEMES.get(part, {}).items()}
        return {
            f"{ours}.{kind}".format(layer): f"{theirs}.{kind}".format(layer)
            for layer in range(config.num_hidden_layers)
            for ours, theirs in names.items()
            for kind in WEIGHT_KINDS
        }

    def names_apart(self, name: str) -> list[str]:
        """Names here of a weight of its class: several where it holds several."""
        for theirs, ours in (*_LM_PREDICTIONS.items(), *self.renamed.items()):
            name = name.replace(theirs, ours)
        whole = next((whole for whole in self.fused if whole in name), None)
        return [name] if whole is None else [name.replace(whole, part) for part in self.fused[whole]]

    def split(self, tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
        """The weights of its class, of so many heads, with those that it holds as one apart."""
        apart: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            names = self.names_apart(key)
            if len(names) == 1:
                apart[names[0]] = tensor
                continue
            parts = tensor.unflatten(0, (heads if self.fused_by_head else 1, len(names), -1)).unbind(1)
            apart |= {name: part.flatten(0, 1) for name, part in zip(names, parts, strict=True)}
        return apart

    def join(self, tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
        """The inverse of `split`."""
        parts: dict[str, list[Tensor]] = {}
        for key, tensor in tensors.items():
            for theirs, ours in self.renamed.items():
                key = key.replace(ours, theirs)
            for whole, names in self.fused.items():
                for name in names:
                    key = key.replace(name, whole)
            parts.setdefault(key, []).append(tensor)
        shape = (heads if self.fused_by_head else 1, -1)

        def joined(several: list[Tensor]) -> Tensor:
            return torch.stack([part.unflatten(0, shape) for part in several], 1).flatten(0, 2)

        return {key: joined(several) if len(several) > 1 else several[0] for key, several in parts.items()}

    def head_names(self, task: str) -> dict[str, str]:
        """Our name -> their name of each weight of a task's head."""
        names = {
            f"{ours}.{kind}": f"{theirs}.{kind}"
            for ours, theirs in self.heads.get(task, {}).items()
            for kind in WEIGHT_KINDS
        }
        if task == "fill-mask" and self.decoder_bias is not None:
            names["lm_head.decoder.bias"] = self.decoder_bias
        return names


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and the arguments within them: `t5.num_buckets`, `rope_parameters.rope_type`."""
    scheme = fields.get("position_embedding_type") or ""
    kwargs = fields.get("position_embedding_kwargs") or {}
    nested = {**(kwargs if "+" in scheme else {scheme: kwargs}), "rope_parameters": fields.get("rope_parameters") or {}}
    arguments = {f"{part}.{name}": value for part, values in nested.items() for name, value in values.items()}
    return {**fields, **arguments}


_DISTILBERT_CLASSIFIER = {"classifier.dense": "pre_classifier", "classifier.out_proj": "classifier"}

_OLD_DEBERTA: dict[str, Any] = {
    "fused": {"self.in_proj": ("self.query_proj", "self.key_proj", "self.value_proj")},
    "fused_by_head": True,
    "biases": False,
    "renamed": {
        "self.q_bias": "self.query_proj.bias",
        "self.v_bias": "self.value_proj.bias",
        "self.pos_proj.": "self.pos_key_proj.",
        "self.pos_q_proj.": "self.pos_query_proj.",
    },
}
"""DeBERTa's first version, told by what its second calls a weight: keys, of content and of distances, have no bias."""

_ALL = (
    Family("bert", _BERT_HEADS, decoder_bias="cls.predictions.bias", counts_tokens=False),
    *(
        Family(name, _ROBERTA_HEADS, decoder_bias="lm_head.bias", needs_padding=True, first_row=None, lm_act="gelu")
        for name in ("roberta", "xlm-roberta", "camembert")
    ),
    Family(
        "distilbert",
        {
            "fill-mask": _lm("vocab_transform", "vocab_layer_norm", "vocab_projector"),
            "text-classification": _DISTILBERT_CLASSIFIER,
            "multiple-choice": _DISTILBERT_CLASSIFIER,
            **_PER_TOKEN,
        },
        fields={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "classifier_dropout": "seq_classif_dropout",
        },
        layer=_DISTILBERT_LAYER,
        layers="transformer.layer",
        needed={"embedding_size": (None,), "type_vocab_size": (0,), "layer_norm_eps": (1e-12,)},
        dense="relu",
        counts_tokens=False,
    ),
    Family(
        "electra",
        {
            **_SUMMARY_HEADS,
            "fill-mask": _lm("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
        },
        pretraining="feature-extraction",
        needed={},
        dense="gelu",
        lm_act="gelu",
        counts_tokens=False,
    ),
    Family(
        "roformer",
        _SUMMARY_HEADS,
        decoder_bias="cls.predictions.bias",
        fields=_HIDDEN_DROPOUT,
        schemes={"rope": _INTERLEAVED},
        needed={},
        dense=None,
        in_training=_HIDDEN_DROPOUT,
        particulars=SineTable(),
    ),
    Family(
        "jina_embeddings_v3",
        {task: head for task, head in _ROBERTA_HEADS.items() if task != "multiple-choice"},
        decoder_bias="lm_head.bias",
        layer=_JINA_LAYER,
        layers="layers",
        schemes=_HALF_SPLIT,
        lm_act="gelu",
    ),
    Family(
        "nomic_bert",
        {"fill-mask": _NOMIC_LM, **_FEW_HEADS},
        decoder_bias="cls.predictions.bias",
        layer=_GATED_LAYER,
        layers="layers",
        needs_padding=True,
        schemes=_HALF_SPLIT,
        needed={**_GATED, **_NO_BIASES},
    ),
    Family(
        "modernbert",
        {
            "fill-mask": {
                "lm_head.dense": "head.dense",
                "lm_head.layer_norm": "head.norm",
                "lm_head.decoder": "decoder",
            },
            **dict.fromkeys(POOLED, _NORMED_HEAD),
        },
        fields={
            "hidden_act": "hidden_activation",
            "classifier_hidden_act": "classifier_activation",
            "hidden_dropout_prob": "mlp_dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "layer_norm_eps": "norm_eps",
        },
        layer=_MODERNBERT_LAYER,
        layers="layers",
        embeddings={"embeddings.word_embeddings": "embeddings.tok_embeddings", "embeddings.norm": "embeddings.norm"},
        fused={"attn.Wqkv": ("attn.query", "attn.key", "attn.value"), "mlp.Wi": ("mlp.gate_proj", "mlp.up_proj")},
        foreign=("head.", "classifier."),
        biases=False,
        schemes={"rope+window": _WINDOWS},
        needed={**_GATED, **_NO_BIASES, "norm_position": ("pre_but_first",)},
        poolings={"cls": "cls", "mean": "mean"},
        head_norm=True,
        dense=None,
        token_types=False,
        particulars=LocalWindows(),
    ),
    Family(
        "gte",
        {"fill-mask": _ROBERTA_LM, **_FEW_HEADS},
        layer=_GATED_LAYER,
        layers="layers",
        schemes=_HALF_SPLIT,
        needed=_GATED,
        lm_act="gelu",
        least_types=0,
    ),
    *(
        Family(
            name,
            {task: head for task, head in _BERT_HEADS.items() if name == "deberta-v2" or task != "multiple-choice"},
            decoder_bias="cls.predictions.bias",
            fields={"classifier_dropout": "cls_dropout"},
            layer=_DEBERTA_LAYER,
            foreign=("lm_predictions.", "mask_predictions.", "cls.seq_relationship."),
            schemes={"deberta": needs, "learned+deberta": {**needs, "learned.dropout": (0.0,)}},
            dense="gelu",
            fixed={"relative_attention": True},
            fixed_pooler={"pooler_hidden_act": "gelu"},
            in_training={"deberta.dropout": "hidden_dropout_prob"},
            least_types=0,
            counts_tokens=False,
            particulars=Disentangled(has_buckets=name == "deberta-v2"),
            **names,
        )
        for name, needs, names in (("deberta-v2", _DISTANCES, {}), ("deberta", _PLAIN_DISTANCES, _OLD_DEBERTA))
    ),
    Family(
        "esm",
        {**_FEW_HEADS, "fill-mask": _ROBERTA_LM, "text-classification": _ROBERTA_HEAD},
        decoder_bias="lm_head.bias",
        fields=_HIDDEN_DROPOUT,
        layer=_ESM_LAYER,
        embeddings={
            **_EMBEDDINGS,
            "embeddings.norm": "embeddings.layer_norm",
            "norm": "encoder.emb_layer_norm_after",
        },
        foreign=("contact_head.",),
        absent="contact_head.",
        needs_padding=True,
        first_row=None,
        schemes={"rope": _STORED_ANGLES, **_LEARNED},
        needed={
            "embedding_size": (None,),
            "hidden_act": ("gelu",),
            "norm_position": ("pre_only", "pre"),
            "token_dropout": (),
            "type_vocab_size": (0,),
        },
        in_training=_HIDDEN_DROPOUT,
        token_types=False,
        particulars=StoredAngles(),
    ),
    Family(
        "eurobert",
        {**_FEW_HEADS, "text-classification": {"classifier.dense": "dense", "classifier.out_proj": "classifier"}},
        fields={"attention_probs_dropout_prob": "attention_dropout", "layer_norm_eps": "rms_norm_eps"},
        layer=_EUROBERT_LAYER,
        layers="layers",
        embeddings={"embeddings.word_embeddings": "embed_tokens", "norm": "norm"},
        foreign=("lm_head.",),
        biases=False,
        schemes=_HALF_SPLIT,
        needed={**_GATED, **_NO_BIASES, "norm_position": ("pre_only",), "norm_type": ("rms_norm",)},
        poolings={"mean": "mean", "cls": "bos"},
        dense="gelu",
        in_training={"hidden_dropout_prob": None},
        token_types=False,
    ),
    Family(
        "mpnet",
        _ROBERTA_HEADS,
        decoder_bias="lm_head.bias",
        fields=_HIDDEN_DROPOUT,
        layer=_MPNET_LAYER,
        first_row=2,
        # It counts positions from token 1 as padding, whatever its configuration says.
        schemes={"learned+t5": {**_T5, "learned.dropout": (0.0,), "pad_token_id": (1,)}, "t5": _T5},
        lm_act="gelu",
        fixed={"relative_attention_num_buckets": 32},
        in_training=_HIDDEN_DROPOUT,
        token_types=False,
    ),
)
JINA_BERT = Family(
    "bert",
    _BERT_HEADS,
    decoder_bias="cls.predictions.bias",
    layer={**_BERT_LAYER, **_JINA_BERT_MLP},
    fused={"mlp.gated_layers": ("mlp.gate", "mlp.up")},
    schemes={"alibi": {"alibi.directional": (False,), "alibi.learned": (False,), "alibi.per_layer": (False,)}},
    needed=_GATED,
)
"""JinaBERT v2, which calls itself a BERT. transformers has no class of it: its weights are read by their names."""
FAMILIES = {family.model_type: family for family in _ALL}
"""The architectures that can be converted, and exported to: where several hold a scheme, the first that fits."""


def a_model(model_type: str) -> str:
    """Words for a model of a type, with the article."""
    return f"a{'n' * model_type.startswith(('esm', 'electra'))} {model_type} model"


def check_known(model_type: str) -> None:
    """Refuses a type that this transformers hasn't.

    Raises:
        UserError: it is too old.
    """
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"transformers {transformers.__version__} has no {model_type}. Update it: pip install -U transformers."
        )
