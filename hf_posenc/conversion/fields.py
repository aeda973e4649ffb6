"""Translates a family's configuration into ours and back, to one that computes the same."""

from typing import Any

from transformers import CONFIG_MAPPING

from ..checkpoints.files import read_json
from ..checkpoints.old_fields import OLD_FIELDS, check_old_fields
from ..checkpoints.opening import Checkpoint
from ..checkpoints.sentence_modules import ACTIVATION
from ..data.columns import OURS
from ..errors import UserError, spell
from ..tasks import LABELLED
from ..tasks import task_of as class_task
from .families import SAME_FIELDS, Family, a_model

_CANT = (
    *("is_decoder", "is_encoder_decoder", "add_cross_attention", "pruned_heads"),
    *("rotary_value", "logn_attention_scale"),  # RoFormer's, GTE's
    *("conv_kernel_size", "talking_head", "is_folding_model"),  # DeBERTa's, ESM's
    *("prenorm", "use_rms_norm", "causal", "parallel_block", "moe_every_n_layers"),  # NomicBERT's
    *("rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor", "scale_attn_by_inverse_layer_idx"),
)
"""Fields that must not be set: our body lacks these features."""
_BIASES = ("attention_bias", "mlp_bias")
"""The same, of a family without biases; in others they may say what is so anyway."""
_USUAL_LABELS = 2
"""Labels in transformers' configurations that name none."""


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
    for name in _CANT if family.biases else (*_CANT, *_BIASES):
        if value := raw.get(name):
            what = f"is {a_model(family.model_type)} with {name}={value!r}"
            raise UserError(f"{source!r} {what}, which PosEnc's body can't express.")
    if family.needs_padding and config.pad_token_id is None:
        raise UserError(
            f"{source!r} has pad_token_id=None, and {a_model(family.model_type)} needs one. Put the padding token's "
            "number into its config.json."
        )
    _check_heads(config, source)
    check_old_fields(config, raw, source)
    fields = _body(family, config, task)
    _set_positions(fields, family, config, raw.get("position_embedding_type") or "absolute", source)
    _check_head(family, config, task, fields["hidden_act"], source)
    if task in LABELLED:
        # label2id follows from it: in many checkpoints it belongs to another model.
        fields["id2label"] = {int(row): name for row, name in config.id2label.items()}
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields


def forget_head(config: Any, task: str) -> list[str]:
    """Sets the fields of a head as a new one has them, where the source's is of another task; a sentence on these.

    A new head has as many labels as the source, as in transformers, and none of their names.

    Args:
        config: a PosEncConfig.
        task: of the model.
    """
    before = config.to_dict()
    params = getattr(config, "task_specific_params", None) or {}
    labels = config.num_labels if task in LABELLED else _USUAL_LABELS
    config.id2label = None
    config.num_labels = labels  # with the usual names
    config.problem_type = None
    config.label_mean = 0.0
    config.label_scale = 1.0
    if OURS in params:
        config.task_specific_params = {name: value for name, value in params.items() if name != OURS} or None
    for name in ACTIVATION:
        vars(config).pop(name, None)
    after = config.to_dict()
    changed = [name for name in sorted(before) if name != "label2id" and after.get(name) != before[name]]
    return [f"Of the source's head, which isn't kept, these fields are left out: {', '.join(changed)}."] * bool(changed)


def _check_heads(config: Any, source: str) -> None:
    """Raises a UserError where heads have another width than ours, or share a key."""
    width = config.hidden_size
    heads = config.num_attention_heads
    for name in ("head_dim", "attention_head_size"):
        head_dim = getattr(config, name, None)
        if head_dim is not None and head_dim * heads != width:
            raise UserError(
                f"{source!r} has {name}={head_dim}, and PosEnc's heads are hidden_size / num_attention_heads = "
                f"{width} / {heads} wide. Take a checkpoint whose heads are."
            )
    if (keys := getattr(config, "num_key_value_heads", heads)) != heads:
        raise UserError(
            f"{source!r} has num_key_value_heads={keys}: several of its {heads} heads share a key, which PosEnc's body "
            "can't express."
        )


def _body(family: Family, config: Any, task: str) -> dict[str, Any]:
    """Sizes, dropouts, activations, pooling."""
    fields = family.usual_fields(family.scheme)
    fields |= {name: getattr(config, family.fields.get(name, name), fields.get(name, 0.0)) for name in SAME_FIELDS}
    pooling = getattr(config, "classifier_pooling", None)
    dense = family.dense or fields["hidden_act"]
    fields |= {
        "type_vocab_size": getattr(config, "type_vocab_size", 0) if family.token_types else 0,
        "classifier_hidden_act": getattr(config, family.fields.get("classifier_hidden_act", ""), dense),
        "classifier_pooling": next(
            (ours for ours, name in family.poolings.items() if name == pooling), fields["classifier_pooling"]
        ),
        "classifier_dropout": getattr(config, family.fields.get("classifier_dropout", "classifier_dropout"), None),
        "tie_word_embeddings": config.tie_word_embeddings is not False,
    }
    if task == "token-classification" and "classifier_dropout" in family.fields:  # by such a name texts' alone
        fields["classifier_dropout"] = None
    if getattr(config, "embedding_size", None) not in (None, config.hidden_size):
        fields["embedding_size"] = config.embedding_size
    return fields


def _set_positions(fields: dict[str, Any], family: Family, config: Any, kind: str, source: str) -> None:
    """Sets the scheme with its arguments, and how many positions it has; refuses what the class can't hold."""
    fields["max_position_embeddings"] = config.max_position_embeddings
    if family.scheme == "learned" and kind != "absolute":
        if kind not in ("relative_key", "relative_key_query"):
            raise UserError(
                f"{source!r} has position_embedding_type={kind!r}. Known are absolute, relative_key and "
                "relative_key_query."
            )
        fields |= {"position_embedding_type": kind, "position_embedding_kwargs": None}
        return
    fields["max_position_embeddings"] -= family.rows_before(config)
    fields |= family.particulars.ours(config, source)
    if problems := family.mismatches(fields, ()):
        raise UserError(f"{source!r} has {'; '.join(problems)}: PosEnc wouldn't compute the same.")


def _check_head(family: Family, config: Any, task: str, act: str, source: str) -> None:
    head_act = getattr(config, "classifier_activation", family.lm_act or act)
    if task == "fill-mask" and head_act != act:
        raise UserError(
            f"{source!r} has a masked-LM head with {head_act}, and PosEnc's has the encoder's activation, {act}. "
            f"Convert the encoder alone: {spell('head', 'feature-extraction')}."
        )
    is_classifier = task == "text-classification" and class_task((config.architectures or [""])[0]) == task
    if is_classifier and getattr(config, "classifier_pooling", None) == "late":
        raise UserError(
            f"{source!r} has classifier_pooling='late', a mean of the tokens' scores; PosEnc's classifiers score a "
            f"mean. Convert the encoder alone: {spell('head', 'feature-extraction')}."
        )
    of_encoder = family.fixed_fields("feature-extraction", act)
    for name, wanted in family.fixed_fields(task, act).items():
        value = getattr(config, name, None)
        if value != wanted:
            way_out = (
                "" if name in of_encoder else f" Convert the encoder alone: {spell('head', 'feature-extraction')}."
            )
            raise UserError(f"{source!r} has {name}={value!r}. PosEnc can express {wanted!r} alone.{way_out}")


_TRANSLATED = (
    *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "auto_map"),
    *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "tie_word_embeddings", "use_cache"),
    *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "embedding_size", "head_dim", "layer_types"),
    *("position_embedding_type", "rope_parameters", "rope_theta", "rope_scaling", "relative_attention_num_buckets"),
    *("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers", "local_attention"),
    *("norm_bias", "decoder_bias", "classifier_bias", "classifier_activation"),
    *("summary_type", "summary_use_proj", "summary_activation"),
    *("relative_attention", "pos_att_type", "max_relative_positions", "position_biased_input", "position_buckets"),
    *("layer_norm_type", "pack_qkv", "unpad_inputs", "use_memory_efficient_attention"),
    *("emb_layer_norm_before", "token_dropout", "mask_token_id", "clf_pooling", "classifier_pooling", "rms_norm_eps"),
    *("bos_token", "eos_token", "pad_token", "mask_token", "num_key_value_heads"),
    *("n_positions", "resid_pdrop", "attn_pdrop", "scale_attn_weights", "use_flash_attn"),
    *("share_att_key", "norm_rel_ebd", "pooler_hidden_size", "pooler_hidden_act", "attention_head_size", "legacy"),
)
"""Fields of config.json that are read above, refused, or about the file alone."""
_OF_FILES = (
    *("name_or_path", "special_tokens_map_file", "tokenizer_file", "tokenizer_class", "added_tokens_decoder"),
    "additional_special_tokens",
)
"""Keys of tokenizer_config.json that are about files, or stand in tokenizer.json."""


def not_carried(family: Family, config: Any, tokenizer: Any, source: Checkpoint) -> list[str]:
    """A sentence for each file on the keys that the result lacks; none on those at transformers' default.

    Args:
        family: of the source.
        config: of the result.
        tokenizer: of the result, or None.
        source: the checkpoint.
    """
    raw = source.raw
    usual = CONFIG_MAPPING[family.model_type]().to_dict()
    ours = config.to_dict()
    kept = {name: raw[name] for name in raw if raw[name] in (usual.get(name), ours.get(name))}
    known = {"config.json": {*_TRANSLATED, *family.fields.values(), *OLD_FIELDS.get(family.model_type, ()), *kept}}
    if tokenizer is not None:
        known["tokenizer_config.json"] = {*_OF_FILES, *tokenizer.init_kwargs}
    known["generation_config.json"] = {"_from_model_config", "transformers_version", *raw, *ours}
    notes = []
    for file, names in known.items():
        path = source.folder / file
        values = read_json(path, source.name, dict) if path.is_file() else {}
        if params := values.get("task_specific_params"):  # of which each has a name of its own
            has = ours.get("task_specific_params") or {}
            values["task_specific_params"] = {name: value for name, value in params.items() if name not in has}
        lost = [f"{name}={value!r}" for name, value in sorted(values.items()) if value and name not in names]
        notes += [f"Of its {file} this isn't carried over: {', '.join(lost)}."] if lost else []
    return notes
