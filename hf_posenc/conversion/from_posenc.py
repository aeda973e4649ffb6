"""Loads a PosEnc checkpoint: its weights as they are, with another head if one is asked for."""

import torch

from ..errors import UserError
from ..model.package_config import PosEncConfig
from ..tasks import CLASSES
from .building import Loaded, fill, model_class, other_labels, read_as, set_labels
from .report import Accounting
from .sources import Source


def load_posenc(source: Source, wanted: str | None, num_labels: int | None, seed: int) -> Loaded:
    """The model of a PosEnc checkpoint, for its own task or another."""
    name, tensors = source.name, source.tensors
    config = read_as(PosEncConfig, source, "PosEnc")
    architecture = (source.raw.get("architectures") or ["PosEncModel"])[0]
    if architecture not in CLASSES:
        raise UserError(f"{name!r} holds {architecture!r}, which is no PosEnc model. Known: {', '.join(CLASSES)}.")
    has = CLASSES[architecture]
    task = wanted or has
    labels = set_labels(config, task, num_labels, wanted, name)
    head = {} if has == "feature-extraction" else {k: v for k, v in tensors.items() if not k.startswith("model.")}
    bare = {key.removeprefix("model."): value for key, value in tensors.items() if key not in head}
    if task != has:
        drop = dict.fromkeys(head, f"the head of {has}; this is {task}")
    else:
        reasons = {key: other_labels(key, value, labels) for key, value in head.items()}
        drop = {key: reason for key, reason in reasons.items() if reason}
    head = {key: value for key, value in head.items() if key not in drop}
    prefix = "" if task == "feature-extraction" else "model."
    state = {prefix + key: value for key, value in bare.items()} | head
    cls = model_class(task)
    with torch.device("meta"):
        expected = set(cls(config).state_dict())  # type: ignore[call-arg]
    if task == "fill-mask" and config.tie_word_embeddings:
        state["lm_head.decoder.weight"] = state["model.embeddings.word_embeddings.weight"]
    new = sorted(drop if task == has else (key for key in expected - state.keys() if not key.startswith(prefix)))
    for key in sorted(expected - state.keys() - set(new)):
        raise UserError(f"{name!r} lacks {key!r}. The checkpoint is incomplete.")
    for key in sorted(state.keys() - expected):
        raise UserError(f"{name!r} holds {key!r}, which a {cls.__name__} with its config.json doesn't have.")
    model = fill(cls, config, state, new, name, {}, seed)
    used = sorted(key for key in tensors if key not in drop)
    return Loaded(
        model, task, "posenc", source.folder, source.dtype, source.fingerprint, Accounting(used, drop, new), []
    )
