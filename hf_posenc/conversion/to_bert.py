"""`export_bert`: back from a PosEnc checkpoint with a learned table to transformers' own BERT, RoBERTa, ..."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.utils import logging

from ..errors import UserError
from ..quiet import without_warnings
from .families import FAMILIES, Family
from .fields import first_position, obstacles, their_fields
from .loading import load
from .measure import compare, encode, own_texts, random_rows
from .output import check_free, load_tokenizer, write_model
from .report import Agreement
from .sentence_modules import read_modules

logger = logging.get_logger(__name__)

_TARGETS = [name for name in FAMILIES if name != "roformer"]  # which has no learned table


def export_bert(
    source: str | Path,
    out: str | Path | None = None,
    *,
    model_type: str | None = None,
    overwrite: bool = False,
    revision: str | None = None,
) -> tuple[PreTrainedModel, Agreement]:
    """Converts a PosEnc checkpoint with the scheme `learned` and BERT's body to a model of transformers.

    Args:
        source: a PosEnc checkpoint, folder or Hub name.
        out: the folder to write, with the tokenizer and a sentence-transformer's modules; whole or not at all. None:
            writes nothing.
        model_type: `bert`, `roberta`, `xlm-roberta`, `camembert`, `distilbert` or `electra`. None: the first of bert,
            distilbert, electra that can hold it.
        overwrite: replace the model in `out`.
        revision: branch, tag or commit on the Hub.

    Returns:
        The model in evaluation mode, and its measured agreement with the source. A bare encoder has no pooler:
        transformers warns that it initialises one at random.

    Raises:
        UserError: the source isn't ours, or no such model can hold it.
    """
    if model_type is not None and model_type not in _TARGETS:
        raise UserError(f"model_type={model_type!r} can't be exported to. Choose one of {', '.join(_TARGETS)}.")
    source = str(source)
    if out is not None:
        check_free(out, overwrite, source)
    loaded = load(source, revision=revision)
    if loaded.model_type != "posenc":
        raise UserError(f"{source!r} is a {loaded.model_type} model already. Give a PosEnc checkpoint.")
    modules, notes = read_modules(loaded.folder, source, None)
    if notes and not modules:
        logger.warning(notes[0])
    config, task = loaded.model.config, loaded.task
    family = _target(source, config, task, model_type)
    theirs = CONFIG_MAPPING[family.model_type](**their_fields(family, config, task))
    model = _empty(family, theirs, task)
    _fill(model, loaded.model, family, theirs, task)
    tokenizer = load_tokenizer(loaded.folder, source)
    if tokenizer is None:
        rows, texts = random_rows(config.vocab_size, min(config.max_position_embeddings, 64)), "random tokens"
    else:
        rows = encode(tokenizer, own_texts(64), min(config.max_position_embeddings, 512))
        texts = "blimp_order, which comes along"
    head = task != "feature-extraction"
    agreement = compare(loaded.model, model, rows, texts, head=head, choices=task == "multiple-choice")
    has_units = (config.label_mean, config.label_std) != (0.0, 1.0)  # which 16 bits can't hold: 2005 would be 2008
    if loaded.dtype != torch.float32 and not has_units:
        model.to(loaded.dtype)
    if out is not None:
        write_model(out, model, tokenizer, modules)
    return model, agreement


def _target(source: str, config: Any, task: str, wanted: str | None) -> Family:
    """The first family that can hold the checkpoint, or the wanted one."""
    problems = {name: obstacles(FAMILIES[name], config, task) for name in _TARGETS}
    asked = ["bert", "distilbert", "electra"] if wanted is None else [wanted]
    for name in asked:
        if not problems[name]:
            return FAMILIES[name]
    everywhere = [problem for problem in problems[asked[0]] if all(problem in problems[name] for name in asked)]
    reason = "; ".join(everywhere) or "; ".join(f"{name}: {', '.join(problems[name])}" for name in asked)
    fitting = [name for name in _TARGETS if not problems[name]]
    others = f" It can be exported to {', '.join(fitting)}." if fitting else ""
    raise UserError(f"{source!r} can't be exported to {' or '.join(asked)}: {reason}.{others}")


def _empty(family: Family, theirs: Any, task: str) -> Any:
    """A new model of the family; a bare encoder without the pooler, where its class allows that."""
    bare = task == "feature-extraction" and family.prefix in ("bert.", "roberta.")
    cls: Any = getattr(transformers, family.class_name(task))
    with without_warnings("transformers"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return cls(theirs, **({"add_pooling_layer": False} if bare else {})).eval()


@torch.no_grad()
def _fill(model: PreTrainedModel, ours: PreTrainedModel, family: Any, theirs: Any, task: str) -> None:
    config = ours.config
    inside, outside = ("", "") if task == "feature-extraction" else ("model.", family.prefix)
    state: dict[str, Tensor] = dict(ours.state_dict())
    if task == "text-classification" and config.problem_type == "regression":  # their logits have no other units
        state["classifier.weight"] = state["classifier.weight"] * config.label_std
        state["classifier.bias"] = state["classifier.bias"] * config.label_std + config.label_mean
    names = {inside + mine: outside + name for mine, name in family.encoder_names(config).items()}
    head = family.head_names(task)
    if task in ("text-classification", "multiple-choice") and head.get("dense.weight") == "pooler.dense.weight":
        head |= {f"dense.{kind}": f"{outside}pooler.dense.{kind}" for kind in ("weight", "bias")}
    names |= head
    written = {name: state[mine] for mine, name in names.items()}
    table = f"{outside}embeddings.position_embeddings.weight"
    if family.prefix == "roberta.":
        rows = written[table]
        written[table] = torch.cat((rows.new_zeros(first_position(theirs), rows.shape[1]), rows))
    if not config.type_vocab_size and family.model_type != "distilbert":
        types = f"{outside}embeddings.token_type_embeddings.weight"
        written[types] = state[f"{inside}embeddings.word_embeddings.weight"].new_zeros(2, config.embedding_width)
    if task == "fill-mask":
        at_decoder = head["decoder.weight"].removesuffix("weight") + "bias"
        written[at_decoder] = state["decoder.bias"]
    expected = model.state_dict()
    left = {
        key for key in expected.keys() - written.keys() if ".position_ids" not in key and "token_type_ids" not in key
    }
    for key in sorted(left):
        raise UserError(f"A {type(model).__name__} has {key!r}, which this checkpoint can't fill.")
    model.load_state_dict(written, strict=False)
