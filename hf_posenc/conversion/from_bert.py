"""Loads a checkpoint of the BERT family: every weight gets a place in our model, or a reason why it has none."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from ..errors import UserError
from ..model.package_config import PosEncConfig
from .building import Loaded, build_config, fill, model_class, other_labels, read_as, set_labels
from .families import Family
from .fields import our_fields
from .recognition import normalise, reason_to_drop, task_of, tensors_of_the_class
from .report import Accounting
from .sources import Source

_TABLE = "embeddings.position_embeddings.weight"


def load_bert(source: Source, family: Family, wanted: str | None, num_labels: int | None, seed: int) -> Loaded:
    """The model that computes what a checkpoint of a family does, for its own task or the wanted one."""
    name = source.name
    theirs = read_as(CONFIG_MAPPING[family.model_type], source, family.model_type)
    tensors = tensors_of_the_class(source.tensors, family)
    state = _by_name(tensors, normalise(list(tensors), family), name)
    own = task_of(family, theirs.architectures, set(state), name, wanted)
    task = wanted or own
    assert task is not None
    labels = set_labels(theirs, task, num_labels, wanted, name)
    config = build_config(our_fields(family, theirs, source.raw, task, name))
    places = _Places(name, family, task, state, _notes(config, theirs, task))
    names = places.encoder(config, theirs)
    head = family.head_names(task)
    if not head and task != "feature-extraction":  # the family's own isn't like ours
        with torch.device("meta"):
            new = model_class(task)(config).state_dict()  # type: ignore[call-arg]
        places.new += [name for name in new if not name.startswith("model.")]
    if task == "fill-mask":
        config.tie_word_embeddings = places.masked_lm_head(head, theirs)
    else:
        places.other_head(head, own, wanted is not None, labels)
    if family.model_type == "roformer":
        places.drop |= _check_sines(state, config, name)
    places.drop_the_rest(config, own)
    model = fill(model_class(task), config, places.ours, places.new, name, {**names, **head}, seed)
    keys = Accounting(used=sorted(places.used), dropped=dict(sorted(places.drop.items())), new=places.new)
    return Loaded(model, task, family.model_type, source.folder, source.dtype, source.fingerprint, keys, places.notes)


def _by_name(tensors: dict[str, Tensor], names: dict[str, str], source: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for key, name in names.items():
        if name in state and not torch.equal(state[name], tensors[key]):
            raise UserError(f"{source!r} holds {name!r} twice, with different numbers ({key!r} is one of them).")
        state[name] = tensors[key]
    return state


def _notes(config: PosEncConfig, theirs: Any, task: str) -> list[str]:
    notes = []
    if config.position_embedding_type.startswith("relative_key"):
        notes.append(
            f"The checkpoint has position_embedding_type={config.position_embedding_type!r}. transformers 5 ignores "
            "that silently and runs it with absolute positions, so that its numbers are wrong; here it has its "
            "relative positions, as in transformers up to 4.57."
        )
    if scaling := getattr(theirs, "rotary_scaling_factor", None):
        notes.append(
            f"The checkpoint has rotary_scaling_factor={scaling!r}, with which Nomic's own code stretches RoPE for "
            "texts longer than in training. transformers ignores it, and so does this: extension='dynamic' does the "
            "like."
        )
    labels = [str(name) for name in (theirs.id2label or {}).values()]
    if len(set(labels)) < len(labels) and task in ("text-classification", "token-classification"):
        notes.append("Several labels have the same name: each has its number added to it.")
    return notes


@dataclass
class _Places:
    """Where each weight of a checkpoint goes."""

    source: str
    family: Family
    task: str
    state: dict[str, Tensor]
    """The checkpoint's weights by their normalised names."""
    notes: list[str]
    ours: dict[str, Tensor] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    drop: dict[str, str] = field(default_factory=dict)
    """What is left out, with the reason."""
    new: list[str] = field(default_factory=list)
    """Our weights that start at random."""

    def take(self, ours: str, name: str) -> None:
        """Copies a weight of the source under our name; a bias that its family lacks is zero."""
        if name in self.state:
            self.ours[ours] = self.state[name]
            self.used.add(name)
        else:
            weight = self.state[f"{name.removesuffix('bias')}weight"]
            self.ours[ours] = weight.new_zeros(len(weight))

    def has(self, name: str) -> bool:
        """Whether the source has a weight, or a bias that its family lacks."""
        is_zero = not self.family.biases and name.endswith(("norm.bias", "LayerNorm.bias", "dense.bias"))
        return name in self.state or (is_zero and f"{name.removesuffix('bias')}weight" in self.state)

    def encoder(self, config: PosEncConfig, theirs: Any) -> dict[str, str]:
        """Places the encoder's weights; returns their names by ours."""
        prefix = "" if self.task == "feature-extraction" else "model."
        names = {prefix + ours: name for ours, name in self.family.encoder_names(config).items()}
        for ours, name in names.items():
            if not self.has(name):
                raise UserError(
                    f"{self.source!r} lacks {name!r}, which its config.json asks for. The checkpoint is incomplete."
                )
            self.take(ours, name)
        first = self.family.rows_before(theirs)
        table = next((ours for ours, name in names.items() if name == _TABLE), None)
        if first and table is not None:
            # The first rows belong to padding and to no token.
            self.ours[table] = self.ours[table][first:]
            self.notes.append(f"The first {first} rows of its table of positions are padding's: left out.")
        return names

    def masked_lm_head(self, head: dict[str, str], theirs: Any) -> bool:
        """Places a masked-LM head; returns whether the decoder shares the token embedding."""
        tied = theirs.tie_word_embeddings is not False
        # ModernBERT's classifiers have layers of the same names before their last one, and no decoder.
        has_bias = self.family.biases or theirs.decoder_bias or "classifier.weight" in self.state
        words = self.ours["model.embeddings.word_embeddings.weight"]
        at_decoder = head["lm_head.decoder.weight"].removesuffix("weight") + "bias"
        for mine, name in head.items():
            if mine == "lm_head.decoder.bias" and name != at_decoder and at_decoder in self.state:
                # Where both are there, the decoder's is the one that is added.
                if name in self.state:
                    self.drop[name] = "the bias again"
                name = at_decoder
            if mine == "lm_head.decoder.weight" and tied:
                stored = self.state.get(name)
                if stored is not None and not torch.equal(stored, words):
                    self.notes.append(
                        "The decoder's weights differ from the token embedding: kept as they are, not tied."
                    )
                    tied = False
                elif stored is not None:
                    self.drop[name] = "the token embedding again (tied)"
                if tied:
                    self.ours[mine] = words
                    continue
            if mine == "lm_head.decoder.bias" and not has_bias:
                self.ours[mine] = words.new_zeros(len(words))
                continue
            if not self.has(name):
                raise UserError(f"{self.source!r} lacks {name!r}: it holds no whole masked-LM head. Use another task.")
            self.take(mine, name)
        return tied

    def other_head(self, head: dict[str, str], own: str | None, asked: bool, labels: int | None) -> None:
        """Places any other head; only a task that was asked for may have new weights.

        Args:
            head: their names by ours.
            own: the source's task. Only the pooler outlives a change of task: other names mean another head in each.
            asked: whether the task was asked for.
            labels: how many were asked for.
        """
        for mine, name in head.items():
            if name not in self.state:
                if not asked or own == self.task:
                    raise UserError(
                        f"{self.source!r} lacks {name!r}, which its architecture asks for. The checkpoint is "
                        "incomplete."
                    )
                self.new.append(mine)
            elif own != self.task and not name.startswith("pooler."):
                self.drop[name] = f"the head of {own or 'another task'}; this is {self.task}"
                self.new.append(mine)
            elif reason := other_labels(mine, self.state[name], labels):
                self.drop[name] = reason
                self.new.append(mine)
            else:
                self.take(mine, name)

    def drop_the_rest(self, config: PosEncConfig, own: str | None) -> None:
        """Gives a reason for every weight that has no place yet; `own` is the source's task."""
        for name in sorted(self.state.keys() - self.used - self.drop.keys()):
            reason = reason_to_drop(self.family, name, self.task, own)
            if name == _TABLE:
                reason = f"absolute positions, which a {config.position_embedding_type} model builds and doesn't add"
            if reason is None:
                raise UserError(
                    f"{self.source!r} holds {name!r}, which a {self.family.model_type} model for {self.task} doesn't "
                    "have: converting it would lose something. Is config.json that of these weights?"
                )
            self.drop[name] = reason


def _check_sines(state: dict[str, Tensor], config: PosEncConfig, source: str) -> dict[str, str]:
    """RoFormer saves its table of sines; ours are computed, so it must be that table."""
    name = "encoder.embed_positions.weight"
    if name not in state:
        return {}
    table = state[name]
    half = config.hidden_size // config.num_attention_heads // 2
    angle = torch.arange(table.shape[0], dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(half, dtype=torch.float64) / half
    )
    expected = torch.cat((angle.sin(), angle.cos()), -1)
    if table.shape != expected.shape or (table - expected).abs().max() > 1e-3:
        raise UserError(f"{source!r}: {name!r} isn't RoFormer's table of sines, which PosEnc's 'rope' computes.")
    return {name: "a table of sines, which is computed"}
