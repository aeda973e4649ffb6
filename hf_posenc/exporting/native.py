"""Export to a class of transformers' own, which needs no remote code: the weights under other names, nothing else."""

import inspect
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import position_limit
from ..checkpoints.opening import read_config
from ..checkpoints.sentence_modules import ACTIVATION
from ..checkpoints.tokenizers import without_cuts
from ..conversion.families import FAMILIES, POOLED, SAME_FIELDS, SOURCE, Family, a_model, check_known, flat
from ..conversion.particulars import POSITIONS
from ..data.columns import remembered_columns
from ..errors import UserError, spell
from ..quiet import without_warnings
from ..tasks import CLASSES, LABELLED

_TOKENS = tuple(f"{name}_token_id" for name in ("bos", "eos", "cls", "sep", "mask"))
_KEY_BIAS = re.compile(r"\b(key|keys\.\d+)\.bias$")
_OF_PAIRS = ("question-answering", "multiple-choice")
_NO_UNITS = (0.0, 1.0)
"""Mean and scale of logits that are taken as they are."""


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
    for field in _TOKENS if checkpoint.config.token_dropout is None else _TOKENS[:-1]:  # that of which is kept
        if hasattr(model.config, field) and getattr(tokenizer, field) is not None:
            setattr(model.config, field, getattr(tokenizer, field))
    model.save_pretrained(staging)
    without_cuts(tokenizer).save_pretrained(staging)
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
    theirs: Any = CONFIG_MAPPING[family.model_type](**_their_fields(family, checkpoint, task))
    with without_warnings(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = family.model_class(task)(theirs, **family.without_pooler(task)).eval()
    _fill(model, checkpoint, family, task)
    return model, [*_notes(family, config, task), *_cast(model, family, config, task, dtype or checkpoint.dtype)]


def _fill(model: PreTrainedModel, checkpoint: PreTrainedModel, family: Family, task: str) -> None:
    """Puts the weights into a model of the family; refuses a checkpoint that doesn't hold the same ones."""
    state = model.state_dict()
    expected = {key for key in state if not key.endswith(("position_ids", "token_type_ids"))}
    heads = model.config.num_attention_heads
    written = family.join(_weights(checkpoint, family, model.config, task, expected), heads)
    if family.absent is not None:
        written |= {key: torch.zeros_like(state[key]) for key in expected if f".{family.absent}" in f".{key}"}
    if not family.biases:
        written = {key: value for key, value in written.items() if key in expected or bool(value.any())}
    for key in sorted(expected ^ written.keys()):
        raise UserError(
            f"The checkpoint and a {type(model).__name__} don't hold the same weights: only one has {key!r}. Was its "
            "config.json changed?"
        )
    model.load_state_dict(written, strict=False)


def _cast(model: Any, family: Family, config: Any, task: str, dtype: torch.dtype) -> list[str]:
    """Casts the weights to the checkpoint's type, or returns a note why not."""
    if dtype == torch.float32:
        return []
    # 16 bits can't hold 2005 (it would be 2008), nor a sum of two vectors or a table of sines as they are.
    if _units(config, task) != _NO_UNITS or family.particulars.float32 or _merges_types(family, config):
        return [f"Written in float32: {str(dtype).removeprefix('torch.')} would round what was computed anew."]
    rotary = getattr(model.base_model, "rotary_embeddings", None)  # of a class whose file holds its frequencies
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
        train = f" A model trained with {needs} can be." if needs else ""
        raise UserError(
            f"{'; '.join(problems[nearest])}: this can't be exported to {nearest}.{train} {spell('to', 'onnx')} takes "
            "it as it is, if its folder has a tokenizer.json."
        )
    return FAMILIES[nearest]


def _obstacles(family: Family, checkpoint: PreTrainedModel, task: str) -> list[str]:
    """Lists what of a PosEnc model a family can't hold."""
    config: Any = checkpoint.config
    name = family.model_type
    problems = family.mismatches(config.to_dict(), (task,))
    if task != "feature-extraction" and task not in family.heads:
        problems.append(f"a head for {task} ({name} has {', '.join(family.heads)})")
    of_keys = [key for key, value in checkpoint.state_dict().items() if _KEY_BIAS.search(key) and value.any()]
    if of_keys and not family.biases:
        problems.append(f"biases of keys that aren't zero, such as {of_keys[0]} ({name} has none)")
    if family.needs_padding and config.pad_token_id is None:
        problems.append(f"pad_token_id=None ({name} needs one)")
    columns = remembered_columns(config)
    of_pairs = task in _OF_PAIRS or (columns is not None and len(columns.text) > 1)
    if not family.token_types and config.type_vocab_size > 1 and of_pairs:
        problems.append(
            f"type_vocab_size={config.type_vocab_size} ({name} has no token types, and pairs of texts have two)"
        )
    return problems


def _their_fields(family: Family, checkpoint: PreTrainedModel, task: str) -> dict[str, Any]:
    """The fields of a family's config that computes what a PosEnc model without `_obstacles` does."""
    config: Any = checkpoint.config
    its_class = CONFIG_MAPPING[family.model_type]
    fields: dict[str, Any] = {}
    for field in SAME_FIELDS:
        theirs = family.fields.get(field, field)
        if hasattr(its_class, theirs):
            value = getattr(config, field)
            fields[theirs] = float(value) if field.endswith("_prob") else value  # not all take a whole number
    fields["max_position_embeddings"] = config.max_position_embeddings + family.rows_before(config)
    # The decoder keeps the words alone.
    fields["tie_word_embeddings"] = config.tie_word_embeddings and not _merges_types(family, config)
    if family.token_types and hasattr(its_class, "type_vocab_size"):
        fields["type_vocab_size"] = config.type_vocab_size or family.least_types
    if hasattr(its_class, "embedding_size"):
        fields["embedding_size"] = config.embedding_width
    fields |= family.particulars.theirs(config, checkpoint.state_dict())
    if params := getattr(config, "task_specific_params", None):  # the columns that `predict` and `evaluate` read
        fields["task_specific_params"] = params
    fields |= {name: getattr(config, name) for name in ACTIVATION if hasattr(config, name)}
    return fields | _head_fields(family, config, task, fields)


def _head_fields(family: Family, config: Any, task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a head, beside those of the encoder."""
    added = family.fixed_fields(task, config.hidden_act)
    dropout = family.fields.get("classifier_dropout", "classifier_dropout")
    if config.classifier_dropout is not None and dropout not in fields:
        added[dropout] = float(config.classifier_dropout)
    if (theirs := family.fields.get("classifier_hidden_act")) is not None:
        added[theirs] = config.classifier_hidden_act if task in POOLED else config.hidden_act
    if len(family.poolings) > 1 and task in POOLED:
        added["classifier_pooling"] = family.poolings[config.classifier_pooling]
    if task in LABELLED:
        added |= {"id2label": config.id2label, "label2id": config.label2id}
        if config.problem_type is not None:
            added["problem_type"] = config.problem_type
        if config.label_scale != 1.0:
            added["label_scale"] = config.label_scale  # for the loss of `evaluate`, see `write_config`
    return added


def _merges_types(family: Family, config: Any) -> bool:
    return bool(config.type_vocab_size) and not family.token_types


def _weights(
    checkpoint: PreTrainedModel, family: Family, theirs: Any, task: str, expected: Collection[str]
) -> dict[str, Tensor]:
    """Their name -> weight, in float32."""
    config: Any = checkpoint.config
    inside, outside = ("", "") if task == "feature-extraction" else ("model.", family.prefix)
    state = _computed_state(checkpoint, family, inside, task)
    names = {inside + ours: outside + name for ours, name in family.encoder_names(config).items()}
    # Some classes have the pooler in the encoder, others beside it.
    heads = family.head_names(task).items()
    names |= {ours: outside + name if outside + name in expected else name for ours, name in heads}
    written = {name: state[ours] for ours, name in names.items() if ours in state}
    scheme: Any = checkpoint.base_model.position
    computed = family.particulars.weights(scheme, theirs.max_position_embeddings)
    written |= {outside + name: value for name, value in computed.items()}
    if task == "fill-mask":  # whose bias some classes have twice
        at_decoder = names["lm_head.decoder.weight"].removesuffix("weight") + "bias"
        if at_decoder in expected:
            written[at_decoder] = state["lm_head.decoder.bias"]
    words = state[f"{inside}embeddings.word_embeddings.weight"]
    if family.rows_before(config):
        rows = written.get(outside + POSITIONS, words.new_zeros(config.max_position_embeddings, words.shape[1]))
        padding = rows.new_zeros(family.rows_before(config), rows.shape[1])
        written[outside + POSITIONS] = torch.cat((padding, rows))
    types = f"{outside}embeddings.token_type_embeddings.weight"
    if types in expected and types not in written:
        written[types] = words.new_zeros(theirs.type_vocab_size, words.shape[1])
    return written


def _units(config: Any, task: str) -> tuple[float, float]:
    """Mean and scale of the numbers that the logits are."""
    is_regression = task == "text-classification" and config.problem_type == "regression"
    return (config.label_mean, config.label_scale) if is_regression else _NO_UNITS


def _computed_state(checkpoint: PreTrainedModel, family: Family, inside: str, task: str) -> dict[str, Tensor]:
    """The checkpoint's weights in float32, with what a class has no place for in others: units, type 0."""
    config: Any = checkpoint.config
    state = {name: value.float() for name, value in checkpoint.state_dict().items()}
    last = "classifier.out_proj."
    mean, scale = _units(config, task)
    if (mean, scale) != _NO_UNITS:  # their logits have no others
        state[f"{last}weight"] = state[f"{last}weight"] * scale
        state[f"{last}bias"] = state[f"{last}bias"] * scale + mean
    if _merges_types(family, config):
        words = f"{inside}embeddings.word_embeddings.weight"
        state[words] = state[words] + state[f"{inside}embeddings.token_type_embeddings.weight"][0]
    return state


def _notes(family: Family, config: Any, task: str) -> list[str]:
    """Lists what is otherwise in the class."""
    name = family.model_type
    notes = []
    if _merges_types(family, config):
        first = "" if config.type_vocab_size == 1 else " Pairs of texts, whose second has type 1, aren't the same."
        notes.append(f"{name} has no token types: type 0 is merged into the word embeddings.{first}")
    pooler = inspect.signature(family.model_class(task)).parameters.get("add_pooling_layer")
    if pooler is not None and pooler.default:
        notes.append(f"The encoder has no pooler: transformers warns that it starts {name}'s at random.")
    if family.absent is not None:
        notes.append(
            f"PosEnc has no {family.absent.strip('.')}: its weights are zero, and what it predicts is nothing."
        )
    values = flat(config.to_dict())
    for ours, other in family.in_training.items():
        instead = values[other] if other else 0.0
        if values.get(ours) not in (None, instead):
            acts = f"{other}={instead}" if other else "no dropout"
            notes.append(f"In further training {name} has {acts} where {ours}={values[ours]} acts here.")
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
