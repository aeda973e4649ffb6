"""Export to a class of transformers' own, which needs no remote code: the weights under other names, nothing else."""

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import position_limit
from ..checkpoints.opening import read_config
from ..checkpoints.sentence_modules import ACTIVATION
from ..conversion.families import FAMILIES, POOLED, SAME_FIELDS, SOURCE, Family, a_model, check_known, summary
from ..conversion.fields import TERMS
from ..data.columns import remembered_columns
from ..errors import UserError, spell
from ..quiet import without_warnings
from ..tasks import CLASSES

_EVERY = "global_attn_every_n_layers"
_DEBERTAS = ("deberta-v2", "deberta")
_KEY_BIAS = re.compile(r"\b(key|keys\.\d+)\.bias$")
_OF_PAIRS = ("question-answering", "multiple-choice")


def write(
    checkpoint: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    staging: Path,
    *,
    like: str | None = None,
    dtype: torch.dtype | None = None,
) -> list[str]:
    """Writes a PosEnc model as one of transformers' own: configuration, weights and tokenizer, without code.

    Hidden states and logits are the same. In a batch padded on the left, classifiers of transformers read the padding
    in place of [CLS], and BERT, DistilBERT and ELECTRA count it as positions, so the tokenizer is written to pad on the
    right.

    Args:
        checkpoint: of any head.
        tokenizer: its own; gets what the class needs.
        staging: an existing folder.
        like: the `model_type` to write, one of `FAMILIES`. None: the source's, or the first that can hold it.
        dtype: of the weights that are written. None: the checkpoint's.

    Returns:
        Notes for the user: what is otherwise than in the checkpoint.

    Raises:
        UserError: no such class can hold it. The message names each value that is in the way.
    """
    model, notes = to_native(checkpoint, like, dtype)
    notes += _fit_tokenizer(tokenizer, model)
    kind = model.config.model_type
    names = ["bos", "eos", "cls", "sep", "mask"] if kind in ("modernbert", "eurobert") else []
    if kind == "esm" and model.config.mask_token_id is None:
        names = ["mask"]
    for field in (f"{name}_token_id" for name in names):
        if hasattr(model.config, field) and getattr(tokenizer, field) is not None:
            setattr(model.config, field, getattr(tokenizer, field))
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    return notes


def what_holds(checkpoint: PreTrainedModel, folder: Path) -> dict[str, bool]:
    """In which of `parity.batches` the model in a folder answers as the checkpoint does."""
    native = FAMILIES[read_config(folder, str(folder))["model_type"]]
    return {
        "padded_left": native.counts_tokens and CLASSES[type(checkpoint).__name__] not in POOLED,
        "pairs": native.token_types or checkpoint.config.type_vocab_size < 2,
    }


@torch.no_grad()
def to_native(
    checkpoint: PreTrainedModel, like: str | None = None, dtype: torch.dtype | None = None
) -> tuple[PreTrainedModel, list[str]]:
    """The model of transformers that computes what a PosEnc model does, in evaluation mode, and notes; see `write`."""
    config: Any = checkpoint.config
    if type(checkpoint).__name__ not in CLASSES:
        raise UserError(f"{config.name_or_path!r} is {a_model(config.model_type)} of transformers' own already.")
    task = CLASSES[type(checkpoint).__name__]
    family = _target(checkpoint, task, like)
    check_known(family.model_type)
    fields = _their_fields(family, config, task)
    if family.model_type == "modernbert":  # its norms and heads usually lack them
        ours = checkpoint.state_dict()
        names = ("norm.bias", "dense.bias")
        has_some = any(bool(value.any()) for name, value in ours.items() if name.endswith(names))
        fields |= dict.fromkeys(("norm_bias", "classifier_bias"), has_some)
    theirs: Any = CONFIG_MAPPING[family.model_type](**fields)
    with without_warnings(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = family.model_class(task)(theirs, **family.without_pooler(task)).eval()
    written = family.join(_weights(checkpoint, family, theirs, task), theirs.num_attention_heads)
    state = model.state_dict()
    written |= {key: torch.zeros_like(value) for key, value in state.items() if ".contact_head." in f".{key}"}
    expected = {key for key in state if not key.endswith(("position_ids", "token_type_ids"))}
    if not family.biases:
        written = {key: value for key, value in written.items() if key in expected or bool(value.any())}
    for key in sorted(expected ^ written.keys()):
        raise UserError(
            f"The checkpoint and a {type(model).__name__} don't hold the same weights: only one has {key!r}. Was its "
            "config.json changed?"
        )
    model.load_state_dict(written, strict=False)
    return model, [*_notes(family, config, task), *_cast(model, family, config, dtype or checkpoint.dtype)]


def _cast(model: Any, family: Family, config: Any, dtype: torch.dtype) -> list[str]:
    """Casts the weights to the checkpoint's type, or returns a note why not."""
    if dtype == torch.float32:
        return []
    # 16 bits can't hold 2005 (it would be 2008), nor a sum of two vectors or a table of sines as they are.
    rounded = (config.label_mean, config.label_scale) != (0.0, 1.0) or family.model_type == "roformer"
    if rounded or (not family.token_types and config.type_vocab_size):
        return [f"Written in float32: {str(dtype).removeprefix('torch.')} would round what was computed anew."]
    rotary = getattr(model.base_model, "rotary_embeddings", None)  # of an ESM, whose file holds its frequencies
    frequencies = None if rotary is None else rotary.inv_freq
    model.to(dtype)
    if rotary is not None:
        rotary.inv_freq = frequencies
    return []


def _target(checkpoint: PreTrainedModel, task: str, like: str | None) -> Family:
    """The named class; else that of the source, or the first that can hold the checkpoint."""
    config: Any = checkpoint.config
    scheme = config.position_embedding_type
    params = getattr(config, "task_specific_params", None) or {}
    fit = [name for name in FAMILIES if scheme in FAMILIES[name].schemes]
    fit.sort(key=lambda name: name != params.get(SOURCE))
    asked = fit if like is None else [like]
    if not asked:
        raise UserError(
            f"position_embedding_type={scheme!r}: no class of transformers has this scheme. "
            f"{spell('to', 'onnx')} takes every scheme."
        )
    problems = {name: _obstacles(FAMILIES[name], checkpoint, task) for name in asked}
    nearest = min(asked, key=lambda name: len(problems[name]))
    if problems[nearest]:
        mended = FAMILIES[nearest].mended(config.to_dict(), (task,))
        needs = ", ".join(spell(f"set.{name}", value) for name, value in mended)
        # ESM's tokenizers are slow.
        files = ", with a fast tokenizer's tokenizer.json in its folder" if params.get(SOURCE) == "esm" else ""
        train = f" A model trained with {needs} can be." if needs else ""
        raise UserError(
            f"{'; '.join(problems[nearest])}: this can't be exported to {nearest}.{train} {spell('to', 'onnx')} takes "
            f"it as it is{files}."
        )
    return FAMILIES[nearest]


def _obstacles(family: Family, checkpoint: PreTrainedModel, task: str) -> list[str]:
    """Lists what of a PosEnc model a family can't hold."""
    config: Any = checkpoint.config
    name = family.model_type
    problems = family.mismatches(config.to_dict(), (task,))
    if task != "feature-extraction" and task not in family.heads:
        problems.append(f"a head for {task} ({name} has {', '.join(family.heads)})")
    if name == "modernbert" and not problems:
        every = config.position_embedding_kwargs["window"][_EVERY]
        if config.rope_parameters.get(_EVERY, every) != every:
            problems.append(f"rope_parameters.{_EVERY}={config.rope_parameters[_EVERY]} (window has {every})")
    if name in _DEBERTAS and not problems:
        eps = _disentangled(config)["norm_eps"]
        if eps not in (None, config.layer_norm_eps):
            problems.append(f"deberta.norm_eps={eps!r} ({name} has layer_norm_eps, {config.layer_norm_eps!r})")
        of_keys = {key: value for key, value in checkpoint.state_dict().items() if _KEY_BIAS.search(key)}
        if not family.biases and any(bool(value.any()) for value in of_keys.values()):
            problems.append(f"biases of keys that aren't zero, such as {next(iter(of_keys))} ({name} has none)")
    rope = config.rope_parameters or {}
    if name == "esm" and (rope.get("short_factor") != rope.get("long_factor") or rope.get("attention_factor", 1) != 1):
        problems.append(
            "longrope with two lists of factors, or an attention_factor (esm has a frequency for each pair)"
        )
    if config.pad_token_id is None and (family.first_row is None or name == "nomic_bert"):
        why = (
            "needs one"
            if name == "nomic_bert" or config.position_embedding_type == "rope"
            else "counts positions from the padding token's number"
        )
        problems.append(f"pad_token_id=None ({name} {why})")
    columns = remembered_columns(config)
    of_pairs = task in _OF_PAIRS or (columns is not None and len(columns.text) > 1)
    if not family.token_types and config.type_vocab_size > 1 and of_pairs:
        problems.append(
            f"type_vocab_size={config.type_vocab_size} ({name} has no token types, and pairs of texts have two)"
        )
    return problems


def _their_fields(family: Family, config: Any, task: str) -> dict[str, Any]:
    """The fields of a family's config that computes what a PosEnc model without `_obstacles` does."""
    name = family.model_type
    merged = _merges_types(family, config)
    has = {field for field in SAME_FIELDS if hasattr(CONFIG_MAPPING[name], family.fields.get(field, field))}
    fields: dict[str, Any] = {family.fields.get(field, field): getattr(config, field) for field in has}
    for field in has & {"hidden_dropout_prob", "attention_probs_dropout_prob"}:  # not every class takes a whole number
        fields[family.fields.get(field, field)] = float(getattr(config, field))
    fields["max_position_embeddings"] = config.max_position_embeddings + family.rows_before(config)
    fields["tie_word_embeddings"] = config.tie_word_embeddings and not merged  # the decoder keeps the words alone
    if name != "distilbert":
        fields[family.fields.get("layer_norm_eps", "layer_norm_eps")] = config.layer_norm_eps
        if family.token_types:
            # Without token types of ours, theirs get rows of zeros: one for each type that tokenizers of pairs give.
            fields["type_vocab_size"] = config.type_vocab_size or (0 if name in ("gte", *_DEBERTAS) else 2)
    dropout = family.fields.get("classifier_dropout", "classifier_dropout")
    if config.classifier_dropout is not None and dropout not in fields:
        fields[dropout] = float(config.classifier_dropout)
    if name in ("electra", "roformer"):
        fields["embedding_size"] = config.embedding_width
    if name in _DEBERTAS:
        fields |= _deberta_fields(config, name)
    if name == "modernbert":
        fields |= _modernbert_fields(config, task)
    elif name == "esm":
        fields |= _esm_fields(config)
    elif family.scheme == "rope" and name != "roformer":
        fields["rope_parameters"] = dict(config.rope_parameters)
    if len(family.poolings) > 1 and task in POOLED:
        is_first = config.classifier_pooling == "cls"
        fields["classifier_pooling"] = "bos" if is_first and name == "eurobert" else config.classifier_pooling
    fields |= summary(family, task, config.hidden_act)
    if params := getattr(config, "task_specific_params", None):  # the columns that `predict` and `evaluate` read
        fields["task_specific_params"] = params
    fields |= {name: getattr(config, name) for name in ACTIVATION if hasattr(config, name)}
    if task in ("text-classification", "token-classification"):
        fields |= {"id2label": config.id2label, "label2id": config.label2id}
        if config.problem_type is not None:
            fields["problem_type"] = config.problem_type
    return fields


def _deberta_fields(config: Any, name: str) -> dict[str, Any]:
    """DeBERTa's fields for its positions, and for its pooler."""
    arguments = _disentangled(config)
    fields = {
        "relative_attention": True,
        "position_biased_input": "+" in config.position_embedding_type,
        "pos_att_type": TERMS[arguments["terms"]],
        "max_relative_positions": arguments["max_distance"],
        "pooler_hidden_size": config.hidden_size,
    }
    if name == "deberta":
        return fields
    newer = {"position_buckets": arguments["position_buckets"] or -1, "share_att_key": arguments["share_att_key"]}
    return {**fields, **newer, "norm_rel_ebd": "none" if arguments["norm_eps"] is None else "layer_norm"}


def _disentangled(config: Any) -> dict[str, Any]:
    """The arguments of the scheme `deberta`, alone or in a combination."""
    kwargs = config.position_embedding_kwargs
    return kwargs["deberta"] if "+" in config.position_embedding_type else kwargs


def _esm_fields(config: Any) -> dict[str, Any]:
    """ESM's fields for its positions, its norms and its token dropout."""
    fields = {
        "position_embedding_type": "absolute" if config.position_embedding_type == "learned" else "rotary",
        "emb_layer_norm_before": config.norm_position == "pre",
        "token_dropout": config.token_dropout is not None,
        "mask_token_id": config.token_dropout,
    }
    return fields | ({"rope_theta": float(config.rope_parameters["rope_theta"])} if config.rope_parameters else {})


def _modernbert_fields(config: Any, task: str) -> dict[str, Any]:
    """ModernBERT's fields for its local and global layers, and its head's activation."""
    window = config.position_embedding_kwargs["window"]
    whole = dict(config.rope_parameters)
    local = whole.pop("local_rope_theta", None)
    layers = range(config.num_hidden_layers)
    whole.pop(_EVERY, None)
    return {
        "layer_types": ["sliding_attention" if n % window[_EVERY] else "full_attention" for n in layers],
        "local_attention": 2 * window["sliding_window"],
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": whole if local is None else {"rope_type": "default", "rope_theta": local},
        },
        "embedding_dropout": float(config.hidden_dropout_prob),
        "classifier_activation": config.classifier_hidden_act if task in POOLED else config.hidden_act,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def _merges_types(family: Family, config: Any) -> bool:
    return bool(config.type_vocab_size) and not family.token_types


def _weights(checkpoint: PreTrainedModel, family: Family, theirs: Any, task: str) -> dict[str, Tensor]:
    """Their name -> weight, in float32."""
    config = checkpoint.config
    inside, outside = ("", "") if task == "feature-extraction" else ("model.", family.prefix)
    state: dict[str, Tensor] = {name: value.float() for name, value in checkpoint.state_dict().items()}
    if task == "text-classification" and config.problem_type == "regression":  # their logits have no other units
        last = "classifier.out_proj."
        state[f"{last}weight"] = state[f"{last}weight"] * config.label_scale
        state[f"{last}bias"] = state[f"{last}bias"] * config.label_scale + config.label_mean
    words = f"{inside}embeddings.word_embeddings.weight"
    if _merges_types(family, config):
        state[words] = state[words] + state[f"{inside}embeddings.token_type_embeddings.weight"][0]
    names = {inside + ours: outside + name for ours, name in family.encoder_names(config).items()}
    for ours, name in family.head_names(task).items():
        is_inside = name.startswith("pooler.") and family.model_type not in _DEBERTAS
        names[ours] = outside + name if is_inside else name
    written = {name: state[ours] for ours, name in names.items() if ours in state}
    scheme: Any = checkpoint.base_model.position
    if family.model_type == "roformer":  # it saves its table: ours, digit for digit
        cos, sin = scheme.cos_sin(torch.arange(theirs.max_position_embeddings)).chunk(2, -1)
        written[f"{outside}encoder.embed_positions.weight"] = torch.cat((sin[:, ::2], cos[:, ::2]), -1)
    if family.model_type == "esm" and config.position_embedding_type == "rope":
        written[f"{outside}rotary_embeddings.inv_freq"] = scheme.angles(torch.ones(1, dtype=torch.int64))[0]
    table = f"{outside}embeddings.position_embeddings.weight"
    if table in written or family.rows_before(config):
        rows = written.get(table, state[words].new_zeros(config.max_position_embeddings, config.hidden_size))
        written[table] = torch.cat((rows.new_zeros(family.rows_before(config), rows.shape[1]), rows))
    if not config.type_vocab_size and getattr(theirs, "type_vocab_size", None) and family.token_types:
        types = f"{outside}embeddings.token_type_embeddings.weight"
        written[types] = state[words].new_zeros(2, config.embedding_width)
    if task == "fill-mask" and family.model_type != "esm":  # whose decoder has no other bias
        decoder = names["lm_head.decoder.weight"].removesuffix("weight")
        written[f"{decoder}bias"] = state["lm_head.decoder.bias"]
    return written


def _notes(family: Family, config: Any, task: str) -> list[str]:
    """Lists what is otherwise in the class."""
    name, notes = family.model_type, []
    if _merges_types(family, config):
        first = "" if config.type_vocab_size == 1 else " Pairs of texts, whose second has type 1, aren't the same."
        notes.append(f"{name} has no token types: type 0 is merged into the word embeddings.{first}")
    pooler = inspect.signature(family.model_class(task)).parameters.get("add_pooling_layer")
    if pooler is not None and pooler.default:
        notes.append(f"The encoder has no pooler: transformers warns that it starts {name}'s at random.")
    if name == "esm":
        notes.append("PosEnc has no head for contacts: its weights are zero, and predict_contacts() says nothing.")
    if name == "eurobert" and config.hidden_dropout_prob:
        notes.append(f"In further training {name} has no hidden_dropout_prob, here {config.hidden_dropout_prob}.")
    dropout = family.fields.get("classifier_dropout")
    if dropout == "hidden_dropout_prob" and config.classifier_dropout not in (None, config.hidden_dropout_prob):
        notes.append(
            f"In further training {name} has its hidden_dropout_prob={config.hidden_dropout_prob} before the "
            f"classifier, not classifier_dropout={config.classifier_dropout}."
        )
    if name in _DEBERTAS and (drop := _disentangled(config)["dropout"]) != config.hidden_dropout_prob:
        notes.append(
            f"In further training {name} drops its relative positions with hidden_dropout_prob="
            f"{config.hidden_dropout_prob}, not dropout={drop}."
        )
    return notes


def _fit_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[str]:
    """Sets what the class needs of the tokenizer: padding on the right, and texts no longer than its table."""
    notes = []
    if tokenizer.padding_side != "right":
        tokenizer.padding_side = "right"
        notes.append("The tokenizer pads on the right now: transformers' classes look for [CLS] in the first place.")
    longest = position_limit(model)
    if longest is not None and tokenizer.model_max_length > longest:
        tokenizer.model_max_length = longest
        notes.append(f"Texts are cut to {longest} tokens: {model.config.model_type} has a table of positions.")
    return notes
