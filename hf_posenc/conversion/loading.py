"""From a checkpoint of the BERT family, or of ours, to a PosEnc model that computes the same."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

from ..model import modeling_posenc
from ..model.configuration_posenc import PosEncConfig
from .families import (
    FAMILIES,
    TASKS,
    Family,
    family_of,
    first_position,
    normalise,
    our_fields,
    reason_to_drop,
    task_of,
)
from .report import Accounting
from .sources import common_dtype, find_folder, fingerprint, read_config, read_weights


@dataclass
class Loaded:
    """A source as a PosEnc model, in float32, with the account of its keys."""

    model: PreTrainedModel
    task: str
    model_type: str
    folder: Path
    dtype: torch.dtype
    keys: Accounting
    notes: list[str]
    fingerprint: str = ""
    """Of the source's weights, see `sources.fingerprint`."""


def model_class(task: str) -> type[PreTrainedModel]:
    """The class of a task's model.

    Raises:
        ValueError: there is no such task.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r} is unknown. Choose one of {', '.join(TASKS)}.")
    return getattr(modeling_posenc, TASKS[task])


def load(
    source: str,
    *,
    task: str | None = None,
    num_labels: int | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    seed: int = 0,
) -> Loaded:
    """Reads a checkpoint and builds the model that computes what it does, with the scheme that it has.

    Raises:
        ValueError: it can't be read, its architecture isn't supported, or a key isn't accounted for.
    """
    if task is not None:
        model_class(task)
    folder = find_folder(source, revision, allow_pickle)
    raw = read_config(folder, source)
    is_ours = raw.get("model_type") == PosEncConfig.model_type
    family = None if is_ours else family_of(raw.get("model_type"), source)  # whatever its weights are
    tensors = read_weights(folder, source, allow_pickle)
    dtype = common_dtype(tensors.values())
    digest = fingerprint(tensors)
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    if family is None:
        loaded = _load_ours(source, folder, raw, tensors, task, num_labels, dtype, seed)
    else:
        loaded = _load_theirs(source, folder, raw, tensors, family, task, num_labels, dtype, seed)
    return replace(loaded, fingerprint=digest)


def _load_theirs(
    source: str,
    folder: Path,
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    family: Family,
    wanted: str | None,
    num_labels: int | None,
    dtype: torch.dtype,
    seed: int,
) -> Loaded:
    try:
        theirs = CONFIG_MAPPING[family.model_type].from_dict(raw)
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{source!r}: config.json is no {family.model_type} configuration: {_line(error)}") from error
    names = normalise(list(tensors), family)
    state = _by_name(tensors, names, source)
    own: str | None = None
    try:
        own = task_of(family, theirs.architectures, set(state), source, wanted)
    except ValueError:
        if wanted is None:
            raise
    has = wanted or own
    assert has is not None
    if has != "feature-extraction" and has not in family.heads:
        raise ValueError(f"task={has!r} isn't known for {family.model_type}. Choose one of {', '.join(family.heads)}.")
    labels = _set_labels(theirs, has, num_labels, wanted, source)
    config = build_config(our_fields(family, theirs, raw, has, source))
    notes: list[str] = []
    if config.position_embedding_type.startswith("relative_key"):
        notes.append(
            f"The checkpoint has position_embedding_type={config.position_embedding_type!r}. transformers 5 ignores "
            "that silently and runs it with absolute positions, so that its numbers are wrong; here it has its "
            "relative positions, as in transformers up to 4.57."
        )
    given = [str(name) for name in (theirs.id2label or {}).values()]
    if len(set(given)) < len(given) and has in ("text-classification", "token-classification"):
        notes.append("Several labels have the same name: each has its number added to it.")

    wanted_keys = family.encoder_names(config)
    prefix = "" if has == "feature-extraction" else "model."
    names_of = {prefix + ours: name for ours, name in wanted_keys.items()}
    head = family.head_names(has)
    ours, used = {}, set()
    for mine, name in names_of.items():
        if name not in state:
            raise ValueError(
                f"{source!r} lacks {name!r}, which its config.json asks for. The checkpoint is incomplete."
            )
        ours[mine] = state[name]
        used.add(name)
    drop: dict[str, str] = {}
    new: list[str] = []
    if has == "fill-mask":
        config.tie_word_embeddings = _masked_lm_head(state, head, theirs, family, source, ours, used, drop, notes)
    else:
        new = _other_head(state, head, has, own, wanted is not None, labels, source, ours, used, drop)
    if family.prefix == "roberta." and config.position_embedding_type == "learned":
        # The first rows belong to padding and to no token.
        key = f"{prefix}position.embedding.weight"
        ours[key] = ours[key][first_position(theirs) :]
        notes.append(f"The first {first_position(theirs)} rows of its table of positions are padding's: left out.")
    if family.model_type == "roformer":
        drop |= _check_sines(state, config, source)
    for name in sorted(state.keys() - used - drop.keys()):
        reason = reason_to_drop(family, name, has)
        if name == "embeddings.position_embeddings.weight" and config.position_embedding_type != "learned":
            reason = f"absolute positions, which a {config.position_embedding_type} model builds and doesn't add"
        if reason is None:
            raise ValueError(
                f"{source!r} holds {name!r}, which a {family.model_type} model for {has} doesn't have: converting it "
                "would lose something. Is config.json that of these weights?"
            )
        drop[name] = reason
    model = _fill(model_class(has), config, ours, new, source, {v: k for k, v in {**names_of, **head}.items()}, seed)
    keys = Accounting(used=sorted(used), dropped=dict(sorted(drop.items())), new=new)
    return Loaded(model, has, family.model_type, folder, dtype, keys, notes)


def _by_name(tensors: dict[str, Tensor], names: dict[str, str], source: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for key, name in names.items():
        if name in state and not torch.equal(state[name], tensors[key]):
            raise ValueError(f"{source!r} holds {name!r} twice, with different numbers ({key!r} is one of them).")
        state[name] = tensors[key]
    return state


def _masked_lm_head(
    state: dict[str, Tensor],
    head: dict[str, str],
    theirs: Any,
    family: Family,
    source: str,
    ours: dict[str, Tensor],
    used: set[str],
    drop: dict[str, str],
    notes: list[str],
) -> bool:
    """Adds the head's weights to `ours`; returns whether the decoder shares the token embedding."""
    words = ours["model.embeddings.word_embeddings.weight"]
    tied = theirs.tie_word_embeddings is not False
    for mine, name in head.items():
        at_decoder = head["decoder.weight"].removesuffix("weight") + "bias"
        if mine == "decoder.bias" and name != at_decoder and at_decoder in state:
            # Where both are there, the decoder's is the one that is added.
            if name in state:
                drop[name] = "the bias again"
            name = at_decoder
        if mine == "decoder.weight" and tied:
            stored = state.get(name)
            if stored is not None and not torch.equal(stored, words):
                notes.append("The decoder's weights differ from the token embedding: kept as they are, not tied.")
                tied = False
            elif stored is not None:
                drop[name] = "the token embedding again (tied)"
            if tied:
                ours[mine] = words
                continue
        if name not in state:
            raise ValueError(f"{source!r} lacks {name!r}: it holds no whole masked-LM head. Use another task.")
        ours[mine] = state[name]
        used.add(name)
    return tied


def _set_labels(config: Any, task: str, wanted_labels: int | None, wanted: str | None, source: str) -> int | None:
    """Sets the number of labels that was asked for; returns it, or None where none was or the task has no labels.

    Raises:
        ValueError: it isn't the source's, and no task was asked for, which alone makes a new head.
    """
    if wanted_labels is None or task not in ("text-classification", "token-classification"):
        return None
    if wanted is None and wanted_labels != config.num_labels:
        raise ValueError(
            f"num_labels={wanted_labels}, but the classifier of {source!r} has {config.num_labels} labels. Leave it "
            f"out, or ask for a new classifier with task={task!r} too."
        )
    config.num_labels = wanted_labels
    return wanted_labels


def _other_labels(value: Tensor, labels: int | None) -> str | None:
    """Why a classifier's weight can't be kept for this many labels, or None: then it can."""
    if labels is None or value.shape[:1] == (labels,):
        return None
    return f"a classifier for {value.shape[:1].numel()} labels; this has {labels}"


def _other_head(
    state: dict[str, Tensor],
    head: dict[str, str],
    task: str,
    own: str | None,
    asked: bool,
    labels: int | None,
    source: str,
    ours: dict[str, Tensor],
    used: set[str],
    drop: dict[str, str],
) -> list[str]:
    """Adds the head's weights to `ours`; returns those that are new, which only a task that was asked for may have.

    Args:
        own: the source's task. Only the pooler outlives a change of task: other names mean another head in each.
        labels: how many were asked for.
    """
    new = []
    for mine, name in head.items():
        if name not in state:
            if not asked or own == task:
                raise ValueError(
                    f"{source!r} lacks {name!r}, which its architecture asks for. The checkpoint is incomplete."
                )
            new.append(mine)
        elif own != task and not name.startswith("pooler."):
            drop[name] = f"the head of {own or 'another task'}; this is {task}"
            new.append(mine)
        elif mine.startswith("classifier.") and (reason := _other_labels(state[name], labels)):
            drop[name] = reason
            new.append(mine)
        else:
            ours[mine] = state[name]
            used.add(name)
    return new


def _check_sines(state: dict[str, Tensor], config: PosEncConfig, source: str) -> dict[str, str]:
    """RoFormer saves its table of sines; ours are computed, so it must be that table."""
    name = "encoder.embed_positions.weight"
    if name not in state:
        return {}
    found = state[name]
    half = config.hidden_size // config.num_attention_heads // 2
    angle = torch.arange(found.shape[0], dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(half, dtype=torch.float64) / half
    )
    expected = torch.cat((angle.sin(), angle.cos()), -1)
    if found.shape != expected.shape or (found - expected).abs().max() > 1e-3:
        raise ValueError(f"{source!r}: {name!r} isn't RoFormer's table of sines, which PosEnc's 'rope' computes.")
    return {name: "a table of sines, which is computed"}


def _load_ours(
    source: str,
    folder: Path,
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    wanted: str | None,
    num_labels: int | None,
    dtype: torch.dtype,
    seed: int,
) -> Loaded:
    try:
        config = PosEncConfig.from_dict(dict(raw))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{source!r}: config.json is no PosEnc configuration: {_line(error)}") from error
    classes = {name: task for task, name in TASKS.items()}
    architecture = (raw.get("architectures") or ["PosEncModel"])[0]
    if architecture not in classes:
        raise ValueError(f"{source!r} holds {architecture!r}, which is no PosEnc model. Known: {', '.join(classes)}.")
    has = classes[architecture]
    task = wanted or has
    labels = _set_labels(config, task, num_labels, wanted, source)
    bare = {
        key.removeprefix("model."): value
        for key, value in tensors.items()
        if has == "feature-extraction" or key.startswith("model.")
    }
    head = {} if has == "feature-extraction" else {k: v for k, v in tensors.items() if not k.startswith("model.")}
    drop: dict[str, str] = {}
    if task != has:
        drop = dict.fromkeys(head, f"the head of {has}; this is {task}")
    else:
        found = {key: _other_labels(value, labels) for key, value in head.items() if key.startswith("classifier.")}
        drop = {key: reason for key, reason in found.items() if reason}
    head = {key: value for key, value in head.items() if key not in drop}
    prefix = "" if task == "feature-extraction" else "model."
    state = {prefix + key: value for key, value in bare.items()} | head
    cls = model_class(task)
    with torch.device("meta"):
        expected = set(cls(config).state_dict())  # type: ignore[call-arg]
    if task == "fill-mask" and config.tie_word_embeddings:
        state["decoder.weight"] = state["model.embeddings.word_embeddings.weight"]
    new = sorted(drop if task == has else (key for key in expected - state.keys() if not key.startswith(prefix)))
    for key in sorted(expected - state.keys() - set(new)):
        raise ValueError(f"{source!r} lacks {key!r}. The checkpoint is incomplete.")
    for key in sorted(state.keys() - expected):
        raise ValueError(f"{source!r} holds {key!r}, which a {TASKS[task]} with its config.json doesn't have.")
    model = _fill(cls, config, state, new, source, {}, seed)
    used = sorted(key for key in tensors if key not in drop)
    return Loaded(model, task, "posenc", folder, dtype, Accounting(used, drop, new), [])


def build_config(fields: dict[str, Any]) -> PosEncConfig:
    """A PosEncConfig; what transformers' type checks say becomes a ValueError."""
    try:
        return PosEncConfig(**fields)
    except StrictDataclassError as error:
        raise ValueError(_line(error)) from error


def _fill(
    cls: type[PreTrainedModel],
    config: PosEncConfig,
    state: dict[str, Tensor],
    new: list[str],
    source: str,
    theirs: dict[str, str],
    seed: int,
) -> PreTrainedModel:
    """The model with exactly these weights; only those in `new` keep their random start."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = cls(config).eval()  # type: ignore[call-arg]
    expected = model.state_dict()
    back = {ours: name for name, ours in theirs.items()}
    for key, value in state.items():
        if key in expected and value.shape != expected[key].shape:
            raise ValueError(
                f"{source!r}: {back.get(key, key)!r} has shape {tuple(value.shape)}, its config.json says "
                f"{tuple(expected[key].shape)}. They don't belong together, or the checkpoint is damaged."
            )
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= set(new), (missing, new)
    assert not unexpected, unexpected
    return model


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


__all__ = ["FAMILIES", "Loaded", "build_config", "load", "model_class"]
