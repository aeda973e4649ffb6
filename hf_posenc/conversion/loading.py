"""From a checkpoint of the BERT family, or of ours, to a PosEnc model that computes the same.

The checkpoint is read through its own class (`checkpoints.loading.read_in_class`); then a table says which of its
weights is which of ours. Every weight gets a place in our model, or a reason why it has none.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import InItsClass, check_finite, read_in_class
from ..checkpoints.opening import COUNTERS, Checkpoint, open_checkpoint, quoted
from ..checkpoints.tokenizers import load_tokenizer
from ..errors import UserError, one_line, spell, user_errors
from ..model import modeling_posenc
from ..model.package_config import PosEncConfig
from ..model.scheme_factory import make_scheme
from ..tasks import CLASSES, TASKS
from ..tasks import task_of as class_task
from .families import FAMILIES, WEIGHT_KINDS, Family, check_known
from .fields import our_fields
from .report import Accounting

_TABLE = "embeddings.position_embeddings.weight"

_WHY_NOT = {
    "new": "it is a GTE that has code of its own. Take the same weights as a checkpoint of transformers' gte, such as "
    "alibaba-nlp-community/gte-multilingual-base",
    "eurobert": "its norms are RMSNorm and its keys are shared by several heads, which the body here doesn't have",
}


def _family_of(model_type: Any, source: str) -> Family:
    """The family of a `model_type`.

    Raises:
        UserError: it isn't one that can be converted; the message lists those that can, and says why where we know.
    """
    if str(model_type) in FAMILIES:
        check_known(model_type)
        return FAMILIES[model_type]
    reason = f": {_WHY_NOT[model_type]}" if str(model_type) in _WHY_NOT else ""
    what = f"is a {model_type!r} model" if model_type else "has no model_type in its config.json"
    raise UserError(
        f"{source!r} {what}, which can't be converted{reason}. These can: {', '.join(FAMILIES)}, and posenc itself."
    )


def _task_of(family: Family, architectures: list[str] | None, source: str, wanted: str | None) -> str | None:
    """The task of a checkpoint, by its config's `architectures`; without any, an encoder.

    None: PosEnc doesn't have its head.

    Raises:
        UserError: PosEnc doesn't have its head, and none is `wanted` instead.
    """
    name = str((architectures or ["Model"])[0])
    if name.endswith("ForPreTraining"):
        return "feature-extraction" if family.model_type == "electra" else "fill-mask"
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
    checkpoint = open_checkpoint(source, revision=revision, allow_pickle=allow_pickle, needs_weights=False)
    model_type = checkpoint.raw.get("model_type")
    family = None if model_type == PosEncConfig.model_type else _family_of(model_type, source)  # whatever its weights
    loaded = _load_posenc(checkpoint, task) if family is None else _load_family(checkpoint, family, task)
    config: Any = loaded.model.config
    loaded.tokenizer = load_tokenizer(checkpoint, config)
    return loaded


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


def _load_posenc(source: Checkpoint, wanted: str | None) -> Loaded:
    """The model of a PosEnc checkpoint, for its own task or another."""
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
    heads = ("classifier.", "lm_head.", "qa_outputs.") if source_task != task else ()
    reasons = {name: f"the head of {source_task}; this is {task}" for name in read.surplus if name.startswith(heads)}
    return _place(source, read, config, task, source_task, encoder, head, reasons)


def _reason_to_drop(family: Family, name: str) -> str | None:
    """Why a weight that the converted model doesn't have may be left out, or None: then it is an error."""
    if name in ("pooler.dense.weight", "pooler.dense.bias"):
        return "the pooler, which only classifiers use"
    layers = [layer for head in family.heads.values() for layer in head.values()]
    heads = {family.decoder_bias, *(f"{layer}.{kind}" for layer in layers for kind in WEIGHT_KINDS)}
    return "another head" if name in heads or name.startswith(family.foreign) else None


def _load_family(source: Checkpoint, family: Family, wanted: str | None) -> Loaded:
    """The model that computes what a checkpoint of a family does, for its own task or the wanted one."""
    theirs = _read_as(CONFIG_MAPPING[family.model_type], source, family.model_type)
    source_task = _task_of(family, theirs.architectures, source.name, wanted)
    task = wanted or source_task
    assert task is not None
    plain = Counter(_todays_name(name, family) for name in source.stored)
    if twice := [name for name, count in plain.items() if count > 1]:
        raise UserError(f"{source.name!r} holds {quoted(twice)} twice, under two names: one would be lost.")
    if task == "question-answering" and source_task != task:
        theirs.num_labels = 2  # start and end: some classes refuse another head's
    config = build_config(our_fields(family, theirs, source.raw, task, source.name))
    in_class = task if task in family.heads else "feature-extraction"  # its own head isn't like ours
    cls, bare = family.model_class(in_class), family.without_pooler(in_class)
    read = read_in_class(source, cls, theirs, family.prefix, **bare)
    read.state = family.split(read.state)
    with torch.device("meta"):
        has = model_class(task)(config).base_model.state_dict()  # type: ignore[call-arg]
    encoder = {ours: name for ours, name in family.encoder_names(config).items() if ours in has}
    head = family.head_names(task)
    reasons: dict[str, str | None] = {name: "a counter, not a weight" for name in plain if name.endswith(COUNTERS)}
    read.surplus |= set(reasons)
    at_decoder = head.get("lm_head.decoder.weight", "").removesuffix("weight") + "bias"
    if at_decoder in read.state:  # where its family has two biases, this is the one that is added
        head["lm_head.decoder.bias"] = at_decoder
        reasons[str(family.decoder_bias)] = "the bias again"
    if not theirs.architectures and not read.random & set(head.values()):
        source_task = task
    notes = []
    is_relative = config.position_embedding_type.startswith("relative_key")
    if is_relative:  # the class has dropped these tables, and adds absolute positions instead
        notes.append(
            f"The checkpoint has position_embedding_type={config.position_embedding_type!r}. transformers 5 ignores "
            "that silently and runs it with absolute positions, so that its numbers are wrong; here it has its "
            "relative positions, as in transformers up to 4.57."
        )
        tables = {_todays_name(name, family): table for name, table in source.tensors("distance_embedding").items()}
        check_finite(tables, source.name)
        read.state |= tables
        read.surplus -= set(tables)
        reasons[_TABLE] = f"absolute positions, which a {config.position_embedding_type} model builds and doesn't add"
    if family.model_type == "roformer":
        sines = cast(Any, read.model).base_model.encoder.embed_positions
        if (sines.weight - sines.create_weight()).abs().max() > 1e-3:
            raise UserError(f"{source.name!r}: its table of positions isn't RoFormer's sines, which 'rope' computes.")
        reasons["encoder.embed_positions.weight"] = "a table of sines, which is computed"
    if (first := family.rows_before(theirs)) and _TABLE in encoder.values():
        read.state[_TABLE] = read.state[_TABLE][first:]
        notes.append(f"The first {first} rows of its table of positions are padding's: left out.")
    zeros = set() if family.biases else {*encoder.values(), *head.values()} - set(read.state)
    for name in zeros:
        weight = read.state[f"{name.removesuffix('bias')}weight"]
        read.state[name] = weight.new_zeros(len(weight))
    reasons = {name: _reason_to_drop(family, name) for name in read.surplus} | reasons
    loaded = _place(source, read, config, task, source_task, encoder, head, reasons)
    loaded.notes += notes
    loaded.keys.used = sorted(set(loaded.keys.used) - zeros)
    loaded.original = None if is_relative else read.model
    return loaded


def _place(
    source: Checkpoint,
    read: InItsClass,
    config: PosEncConfig,
    task: str,
    source_task: str | None,
    encoder: dict[str, str],
    head: dict[str, str],
    reasons: Mapping[str, str | None],
) -> Loaded:
    """The model with exactly the source's weights.

    Args:
        source: the checkpoint.
        read: its weights.
        config: of the model.
        task: of the model.
        source_task: the source's; another one than `task` was asked for, which alone allows new weights. None: its
            head isn't like ours. Only the pooler, and a whole masked-LM head, outlive a change of task: other names
            mean another head in each.
        encoder: their names by ours, without prefixes.
        head: the same of the head.
        reasons: why a weight without a place may be left out.

    Raises:
        UserError: a weight that the model needs isn't there or has another shape, or one that is there has no place.
    """
    fresh: dict[str, str] = {}  # our names of new weights, each with the reason why the source's isn't kept
    if source_task != task and not (source_task and task == "fill-mask" and not read.random & set(head.values())):
        reason = f"the head of {source_task or 'another task'}; this is {task}"
        fresh = {ours: reason for ours, name in head.items() if name in read.random or not name.startswith("pooler.")}
    decoder = "lm_head.decoder.weight"
    notes: list[str] = []
    if decoder in head and config.tie_word_embeddings:
        words = read.state[encoder["embeddings.word_embeddings.weight"]]
        if decoder in fresh or torch.equal(read.state[head[decoder]], words):
            fresh = {ours: reason for ours, reason in fresh.items() if ours != decoder}
            read.state[head[decoder]] = words
        else:
            notes.append("The decoder's weights differ from the token embedding: kept as they are, not tied.")
            config.tie_word_embeddings = False
    outer = "" if task == "feature-extraction" else "model."
    names = {outer + ours: name for ours, name in encoder.items()}
    names |= {ours: name for ours, name in head.items() if ours not in fresh}
    needed = set(names.values())
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
    places = {read.state[name].data_ptr() for name in needed}
    used = {name for name, value in read.state.items() if name in needed or value.data_ptr() in places}  # or tied to it
    reasons = {**reasons, **{head[ours]: reason for ours, reason in fresh.items()}}
    dropped = {name: reasons.get(name) for name in sorted(set(read.state) - used - read.missing | read.surplus)}
    if surplus := [name for name, reason in dropped.items() if reason is None]:
        raise UserError(
            f"{source.name!r} holds {quoted(surplus)}, which a {source.raw['model_type']} model for {task} doesn't "
            "have: converting it would lose something. Is config.json that of these weights?"
        )
    model = model_class(task)(config).eval()  # type: ignore[call-arg]
    try:
        new = model.load_state_dict({ours: read.state[name] for ours, name in names.items()}, strict=False).missing_keys
    except RuntimeError as error:
        raise UserError(f"{source.name!r} doesn't fit its config.json: {one_line(error)[:300]}") from error
    assert all(name in fresh or (not head and not name.startswith(outer)) for name in new), (new, fresh)
    keys = Accounting(used=sorted(used), dropped=cast(dict[str, str], dropped), new=new)
    return Loaded(model, None, task, str(source.raw["model_type"]), source, keys, notes)


def _read_as(config_class: Any, source: Checkpoint, what: str) -> Any:
    """A checkpoint's config.json as a class of configurations reads it."""
    try:
        return config_class.from_dict(dict(source.raw))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source.name!r}: config.json is no {what} configuration: {one_line(error)}") from error


def _todays_name(name: str, family: Family) -> str:
    """A name in the files without prefixes, and with today's names of a LayerNorm's weights."""
    name = name.removeprefix("module.").removeprefix(family.prefix)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
