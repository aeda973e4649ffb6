"""From a checkpoint of the BERT family, or of ours, to a PosEnc model that computes the same.

The checkpoint is read through its own class (`checkpoints.loading.read_in_class`); then a table says which of its
weights is which of ours. Every weight gets a place in our model, or a reason why it has none.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import OUR_HEADS, InItsClass, check_finite, read_in_class, read_model_config
from ..checkpoints.old_fields import is_jina_bert
from ..checkpoints.opening import COUNTERS, Checkpoint, open_checkpoint, quoted
from ..checkpoints.tokenizers import load_tokenizer
from ..data.columns import note, notes_of
from ..errors import UserError, one_line, spell, user_errors
from ..model import modeling_posenc
from ..model.configuration_posenc import PosEncConfig
from ..model.scheme_factory import make_scheme
from ..model.scheme_table import SCHEMES
from ..schemes.support.loaded_code import declared_schemes
from ..tasks import CLASSES, TASKS
from ..tasks import task_of as class_task
from .families import FAMILIES, JINA_BERT, WEIGHT_KINDS, Family, a_model, check_known
from .fields import forget_head, our_fields
from .originals import todays_config
from .particulars import POSITIONS
from .report import Accounting

_DECODER = "lm_head.decoder.weight"


def _family_of(raw: dict[str, Any], source: str) -> Family:
    """The family of a config.json.

    Raises:
        UserError: it isn't one that can be converted; the message lists those that can.
    """
    if is_jina_bert(raw):
        return JINA_BERT
    model_type: Any = raw.get("model_type")
    if str(model_type) in FAMILIES:
        check_known(model_type)
        return FAMILIES[model_type]
    what = f"is a {model_type!r} model" if model_type else "has no model_type in its config.json"
    raise UserError(
        f"{source!r} {what}, which can't be converted. These can: {', '.join(FAMILIES)}, and posenc itself."
    )


def _task_of(family: Family, architectures: list[str] | None, source: str, wanted: str | None) -> str | None:
    """The task of a checkpoint, by its config's `architectures`; without any, an encoder.

    None: PosEnc doesn't have its head.

    Raises:
        UserError: PosEnc doesn't have its head, and none is `wanted` instead.
    """
    name = str((architectures or ["Model"])[0])
    if name.endswith("ForPreTraining"):
        return family.pretraining
    task = class_task(name)
    if task in ("feature-extraction", *family.heads):
        return task
    if wanted is not None:
        return None
    raise UserError(
        f"{source!r} holds {name}, whose head PosEnc doesn't have. Convert the encoder alone with "
        f"{spell('head', 'feature-extraction')}, or another head: these are known for "
        f"{family.model_type}: {', '.join(family.heads)}."
    )


@dataclass
class Loaded:
    """A source as a PosEnc model, in float32, with the account of its keys."""

    model: PreTrainedModel
    original: PreTrainedModel | None
    """The source in transformers' own class, to compare with; None where there is no such class."""
    task: str
    model_type: str
    source: Checkpoint
    keys: Accounting
    notes: list[str]
    tokenizer: PreTrainedTokenizerBase | None = None


def load_source(
    source: str, *, task: str | None = None, revision: str | None = None, allow_pickle: bool = False
) -> Loaded:
    """Reads a checkpoint and builds the model that computes what it does, with the scheme that it has.

    Raises:
        UserError: it can't be read, its architecture isn't supported, or a key isn't accounted for.
    """
    if task is not None:
        model_class(task)
    opened = open_checkpoint(source, revision=revision, allow_pickle=allow_pickle, needs_weights=False)
    checkpoint = replace(opened, raw=todays_config(opened.raw, source))
    is_ours = checkpoint.raw.get("model_type") == PosEncConfig.model_type
    family = None if is_ours else _family_of(checkpoint.raw, source)  # whatever its weights
    loaded = _load_posenc(checkpoint, task) if family is None else _load_family(checkpoint, family, task)
    config: Any = loaded.model.config
    return replace(loaded, tokenizer=load_tokenizer(checkpoint, config))


def source_config(checkpoint: Checkpoint) -> Any:
    """The configuration of a source, as its class of today reads it; one for code of its own needs none of that code.

    Raises:
        UserError: a value isn't accepted, it asks for what isn't there, or its code isn't allowed to be run.
    """
    today = replace(checkpoint, raw=todays_config(checkpoint.raw, checkpoint.name))
    if today.raw.get("model_type") == checkpoint.raw.get("model_type"):
        return read_model_config(checkpoint)
    family = _family_of(today.raw, checkpoint.name)
    return _read_as(CONFIG_MAPPING[family.model_type], today, family.model_type)


def model_class(task: str) -> type[PreTrainedModel]:
    """The class of a task's model.

    Raises:
        UserError: there is no such task.
    """
    if task not in TASKS:
        raise UserError(f"is unknown. Choose one of {', '.join(TASKS)}.", parameter="head", value=task)
    return getattr(modeling_posenc, f"PosEnc{TASKS[task]}")


def build_config(fields: dict[str, Any]) -> PosEncConfig:
    """A PosEncConfig, with its scheme's arguments complete; what it or the scheme refuses becomes a UserError."""
    with user_errors(), torch.device("meta"):
        config = PosEncConfig(**fields)
        make_scheme(config)
    return config


@dataclass(frozen=True)
class _Weights:
    """A checkpoint's weights, and which of them is which of ours.

    Attributes:
        read: as its class has read them.
        encoder: their names by ours, without prefixes.
        head: the same of the head.
        reasons: why a weight without a place may be left out; None: it may not.
    """

    read: InItsClass
    encoder: dict[str, str]
    head: dict[str, str]
    reasons: Mapping[str, str | None]


def _load_posenc(source: Checkpoint, wanted: str | None) -> Loaded:
    """The model of a PosEnc checkpoint, for its own task or another."""
    _check_registered(source)
    config = _read_as(PosEncConfig, source, "PosEnc")
    architecture = str((source.raw.get("architectures") or ["PosEncModel"])[0])
    if architecture not in CLASSES:
        raise UserError(
            f"{source.name!r} holds {architecture!r}, which is no PosEnc model. Known: {', '.join(CLASSES)}."
        )
    source_task = CLASSES[architecture]
    task = wanted or source_task
    read = read_in_class(source, model_class(task), config, "model.")
    encoder = {name: name for name in cast(Any, read.model).base_model.state_dict()}
    head = {name: name for name in read.state if name not in encoder}
    heads = OUR_HEADS if source_task != task else ()
    reasons = {name: f"the head of {source_task}; this is {task}" for name in read.surplus if name.startswith(heads)}
    notes = [] if source_task == task else forget_head(config, task)
    loaded = _place(source, config, task, source_task, _Weights(read, encoder, head, reasons))
    return replace(loaded, notes=notes + loaded.notes)


def _check_registered(source: Checkpoint) -> None:
    """Refuses a scheme whose code comes with the checkpoint alone: nothing of that is run."""
    scheme = str(source.raw.get("position_embedding_type"))
    bundled = declared_schemes(str(source.folder), {})
    if lacking := [name for name in scheme.split("+") if name not in SCHEMES and name in bundled]:
        file = f"{bundled[lacking[0]].partition('.')[0]}.py"
        raise UserError(
            f"{source.name!r} has the scheme {lacking[0]!r} of its author's own, whose code a conversion doesn't take "
            f"from there. Give its author's file: {spell('scheme_file', file)}, with {spell('scheme', scheme)} if its "
            "class has no name."
        )


# ---- another family -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Positions:
    """The positions that a converted model takes of a checkpoint's files, where its class has read something else."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why others are left out."""
    notes: list[str] = field(default_factory=list)


def _load_family(source: Checkpoint, family: Family, wanted: str | None) -> Loaded:
    """The model that computes what a checkpoint of a family does, for its own task or the wanted one."""
    theirs = _read_as(CONFIG_MAPPING[family.model_type], source, family.model_type)
    names = _todays_names(source, family) if family is JINA_BERT else []
    if names and source.task == "fill-mask" and not any(name.startswith("cls.") for name in names):
        theirs.architectures = None  # they name a head that published files don't hold
    source_task = _task_of(family, theirs.architectures, source.name, wanted)
    task = wanted or str(source_task)
    if task == "question-answering" and source_task != task:
        theirs.num_labels = 2  # start and end: some classes refuse another head's
    config = build_config(our_fields(family, theirs, source.raw, task, source.name))
    read = _read_apart(source, family, theirs, task)
    with torch.device("meta"):
        has = model_class(task)(config).base_model.state_dict()  # type: ignore[call-arg]
    encoder = {ours: name for ours, name in family.encoder_names(config).items() if ours in has}
    head, again = _head_of(family, task, read.state)
    needed = {*encoder.values(), *head.values()}
    if family is JINA_BERT:  # no class has said it
        read = replace(read, missing=needed - set(read.state), surplus=set(read.state) - needed)
    if not theirs.architectures and not read.random & set(head.values()):
        source_task = task
    shared = set(head.values()) & set(family.head_names(str(source_task)).values())
    if task == "fill-mask" != source_task and shared:  # ModernBERT's classifier has such names, too
        source_task = None
    of_head = _settle_head(config, theirs, task, is_kept=source_task == task)
    positions = _positions_of(source, family, theirs, config, read)
    state = read.state | positions.tensors
    zeros = {} if family.biases else _zeros(state, needed)
    counters = {name: "a counter, not a weight" for name in _todays_names(source, family) if name.endswith(COUNTERS)}
    surplus = (read.surplus | set(counters)) - set(positions.tensors)
    unlike = {name for name in state if name.startswith(family.foreign)}
    reasons = {name: _reason_to_drop(family, name) for name in surplus | unlike} | counters | again | positions.reasons
    read = replace(read, state=state | zeros, surplus=surplus)
    loaded = _place(source, config, task, source_task, _Weights(read, encoder, head, reasons))
    used = {read.whole.get(name, name) for name in loaded.keys.used if name not in zeros}
    return replace(
        loaded,
        original=None if _is_relative(config) else read.model,
        keys=replace(loaded.keys, used=sorted(used)),
        notes=loaded.notes + positions.notes + of_head,
    )


def _settle_head(config: PosEncConfig, theirs: Any, task: str, *, is_kept: bool) -> list[str]:
    """Takes over what belongs to a head that is kept, or leaves out what was another's, with a sentence on it."""
    if not is_kept:
        return forget_head(config, task)
    if task == "text-classification" and (noted := notes_of(theirs)):  # by a training of ours, whose export this is
        note(config, **noted)
    return []


def _read_apart(source: Checkpoint, family: Family, theirs: Any, task: str) -> InItsClass:
    """The weights of a checkpoint as its class reads them, with those that it holds as one apart."""
    names = _todays_names(source, family)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{source.name!r} holds {quoted(twice)} twice, under two names: one would be lost.")
    if hasattr(theirs, "legacy"):  # DeBERTa's, whose config.json doesn't say which of two masked-LM heads it has
        theirs.legacy = not any(name.startswith("lm_predictions.") for name in names)
    in_class = task if task in family.heads else "feature-extraction"  # its own head isn't like ours
    if family is JINA_BERT:
        read = _read_by_names(source, family)
    else:
        cls = family.model_class(in_class)
        read = read_in_class(source, cls, theirs, family.prefix, **family.without_pooler(in_class))
    state = family.split(read.state, theirs.num_attention_heads)
    words = state.get(f"{family.embeddings['embeddings.word_embeddings']}.weight")
    if words is not None and (decoder := family.head_names(in_class).get(_DECODER)):
        state.setdefault(decoder, words)  # some heads decode with the word embeddings
    # Its class ignores some names, and lists only others.
    unsaid = {name for name in names if name.startswith((*family.foreign, POSITIONS))} - set(read.state)
    return replace(
        read,
        state=state,
        whole={part: name for name in read.state for part in family.names_apart(name)},
        missing={part for name in read.missing for part in family.names_apart(name)},
        shapes={part: shapes for name, shapes in read.shapes.items() for part in family.names_apart(name)},
        surplus=read.surplus | unsaid,
    )


def _read_by_names(source: Checkpoint, family: Family) -> InItsClass:
    """The weights of a checkpoint of which transformers has no class."""
    state = {_todays_name(name, family): value for name, value in source.tensors("").items()}
    if norms := [name for name in state if "layer_norm_q" in name or "up_gated_layer" in name]:
        raise UserError(
            f"{source.name!r} holds {quoted(norms)}: a JinaBERT with norms on queries and keys, as those for code and "
            "for two languages have, which PosEnc's body can't express."
        )
    check_finite(state, source.name)
    return InItsClass(cast(Any, None), state, set(), {}, set())


def _todays_name(name: str, family: Family) -> str:
    """A name in the files without prefixes, and with today's names of a LayerNorm's weights."""
    name = name.removeprefix("module.").removeprefix(family.prefix)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _todays_names(source: Checkpoint, family: Family) -> list[str]:
    return [_todays_name(name, family) for name in source.stored]


def _reason_to_drop(family: Family, name: str) -> str | None:
    """Why a weight that the converted model doesn't have may be left out, or None: then it is an error."""
    if name in ("pooler.dense.weight", "pooler.dense.bias"):
        return "the pooler, which only classifiers use"
    layers = [layer for head in family.heads.values() for layer in head.values()]
    heads = {family.decoder_bias, *(f"{layer}.{kind}" for layer in layers for kind in WEIGHT_KINDS)}
    return "another head" if name in heads or name.startswith(family.foreign) else None


def _head_of(family: Family, task: str, state: Mapping[str, Tensor]) -> tuple[dict[str, str], dict[str, str]]:
    """Their names of a head's weights by ours, and why its other bias is left out, where it has two."""
    head = family.head_names(task)
    at_decoder = head.get(_DECODER, "").removesuffix("weight") + "bias"
    if at_decoder not in state:
        return head, {}
    # Where its family has two biases, this is the one that is added.
    return {**head, "lm_head.decoder.bias": at_decoder}, {str(family.decoder_bias): "the bias again"}


def _zeros(state: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The biases among these names that a family doesn't have: zeros."""
    weights = {name: state[f"{name.removesuffix('bias')}weight"] for name in names - set(state)}
    return {name: weight.new_zeros(len(weight)) for name, weight in weights.items()}


def _is_relative(config: PosEncConfig) -> bool:
    """True where transformers' class drops the scheme's tables, and adds absolute positions instead."""
    return config.position_embedding_type.startswith("relative_key")


def _positions_of(
    source: Checkpoint, family: Family, theirs: Any, config: PosEncConfig, read: InItsClass
) -> _Positions:
    """The positions of a checkpoint whose class reads them otherwise; nothing for the others."""
    if _is_relative(config):
        return _relative_tables(source, family, config)
    reasons, notes = family.particulars.left_out(config, read, source.name)
    if first := family.rows_before(theirs):
        notes = [f"The first {first} rows of its table of positions are padding's: left out."]
        return _Positions({POSITIONS: read.state[POSITIONS][first:]}, notes=notes)
    return _Positions(reasons=reasons, notes=notes)


def _relative_tables(source: Checkpoint, family: Family, config: PosEncConfig) -> _Positions:
    """The tables of relative positions, from the files."""
    scheme = config.position_embedding_type
    tables = {_todays_name(name, family): table for name, table in source.tensors("distance_embedding").items()}
    check_finite(tables, source.name)
    note = (
        f"The checkpoint has position_embedding_type={scheme!r}. transformers 5 ignores that silently and runs it with "
        "absolute positions, so that its numbers are wrong; here it has its relative positions, as in transformers up "
        "to 4.57."
    )
    return _Positions(tables, {POSITIONS: f"absolute positions, which a {scheme} model builds and doesn't add"}, [note])


# ---- each weight in its place ---------------------------------------------------------------------------------------


def _place(source: Checkpoint, config: PosEncConfig, task: str, source_task: str | None, weights: _Weights) -> Loaded:
    """The model with exactly the source's weights.

    Args:
        source: the checkpoint.
        config: of the model.
        task: of the model.
        source_task: the source's; another one than `task` was asked for, which alone allows new weights. None: its
            head isn't like ours.
        weights: its weights.

    Raises:
        UserError: a weight that the model needs isn't there or has another shape, or one that is there has no place.
    """
    fresh = _new_weights(weights, task, source_task)
    head, state = weights.head, weights.read.state
    notes: list[str] = []
    if _DECODER in head and config.tie_word_embeddings:
        words = state[weights.encoder["embeddings.word_embeddings.weight"]]
        if _DECODER in fresh or torch.equal(state[head[_DECODER]], words):
            fresh = {ours: reason for ours, reason in fresh.items() if ours != _DECODER}
            state = {**state, head[_DECODER]: words}
        else:
            notes = ["The decoder's weights differ from the token embedding: kept as they are, not tied."]
            config.tie_word_embeddings = False
    outer = "" if task == "feature-extraction" else "model."
    names = {outer + ours: name for ours, name in weights.encoder.items()}
    names |= {ours: name for ours, name in head.items() if ours not in fresh}
    read = replace(weights.read, state=state)
    _check_needed(source, read, set(names.values()))
    used = _used(state, set(names.values()))
    reasons = {**weights.reasons, **{head[ours]: reason for ours, reason in fresh.items()}}
    left = set(state) - used - read.missing | read.surplus
    dropped = _dropped(source, task, {name: reasons.get(name) for name in sorted(left)})
    model = model_class(task)(config).eval()  # type: ignore[call-arg]
    new = _fill(model, {ours: state[name] for ours, name in names.items()}, source.name)
    assert all(name in fresh or (not head and not name.startswith(outer)) for name in new), (new, fresh)
    keys = Accounting(used=sorted(used), dropped=dropped, new=new)
    return Loaded(model, None, task, str(source.raw["model_type"]), source, keys, notes)


def _new_weights(weights: _Weights, task: str, source_task: str | None) -> dict[str, str]:
    """Our names of new weights, each with the reason why the source's isn't kept.

    Only the pooler, and a whole masked-LM head, outlive a change of task: other names mean another head in each.
    """
    random, head = weights.read.random, weights.head
    if source_task == task or (source_task and task == "fill-mask" and not random & set(head.values())):
        return {}
    reason = f"the head of {source_task or 'another task'}; this is {task}"
    return {ours: reason for ours, name in head.items() if name in random or not name.startswith("pooler.")}


def _check_needed(source: Checkpoint, read: InItsClass, needed: set[str]) -> None:
    """Refuses a needed weight that isn't there or has another shape than the model."""
    if other := sorted((name, *shapes) for name, shapes in read.shapes.items() if name in needed):
        some = "; ".join(f"{name!r} has shape {has}, its config.json says {wants}" for name, has, wants in other[:4])
        raise UserError(
            f"{source.name!r}: {some} ({len(other)} in all). They don't belong together, or the checkpoint is damaged."
        )
    if lacking := {name for name in needed if name in read.missing or name not in read.state}:
        code = (
            " Or its weights are for code of its own (auto_map): take a copy in transformers' format, such as "
            "jinaai/jina-embeddings-v3-hf of Jina v3."
        )
        raise UserError(
            f"{source.name!r} lacks {quoted(lacking)}, which its config.json asks for. The checkpoint is incomplete."
            f"{code if 'auto_map' in source.raw else ''}"
        )


def _used(state: Mapping[str, Tensor], needed: set[str]) -> set[str]:
    """The needed weights, and those that are tied to one."""
    places = {state[name].data_ptr() for name in needed}
    return {name for name, value in state.items() if name in needed or value.data_ptr() in places}


def _dropped(source: Checkpoint, task: str, reasons: Mapping[str, str | None]) -> dict[str, str]:
    """Why each weight is left out; refuses one without a reason."""
    if surplus := [name for name, reason in reasons.items() if reason is None]:
        raise UserError(
            f"{source.name!r} holds {quoted(surplus)}, which {a_model(source.raw['model_type'])} for {task} doesn't "
            "have: converting it would lose something. Is config.json that of these weights?"
        )
    return cast(dict[str, str], reasons)


def _fill(model: PreTrainedModel, state: dict[str, Tensor], name: str) -> list[str]:
    """Puts weights into a model, and returns the names of its others."""
    try:
        return model.load_state_dict(state, strict=False).missing_keys
    except RuntimeError as error:
        raise UserError(f"{name!r} doesn't fit its config.json: {one_line(error)[:300]}") from error


def _read_as(config_class: Any, source: Checkpoint, what: str) -> Any:
    """A checkpoint's config.json as a class of configurations reads it."""
    try:
        return config_class.from_dict(dict(source.raw))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source.name!r}: config.json is no {what} configuration: {one_line(error)}") from error
