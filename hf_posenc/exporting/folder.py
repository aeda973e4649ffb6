"""Files beside an exported model: configuration, tokenizer, a sentence-transformer's modules, the card."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCardData
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.opening import Checkpoint
from ..checkpoints.sentence_modules import read_modules, write_modules
from ..checkpoints.tokenizers import without_cuts
from ..errors import UserError, spell
from ..files import json_text, write_json
from ..markdown import HERE, render
from ..model.configuration_posenc import PosEncConfig
from ..tasks import auto_class, task_of

if TYPE_CHECKING:
    from .run import ExportReport

_READ_AS = "bert"
"""The model type of an exported PosEnc encoder: Transformers, and what is built on it, load only types that they know.
The graph alone says what is computed."""


def write_config(model: PreTrainedModel, longest: int, staging: Path) -> None:
    """Writes config.json: labels, sizes, the longest input, the class that was exported, and no code.

    Args:
        model: the checkpoint.
        longest: the most tokens that it is read with, to which servers truncate: `max_position_embeddings`.
        staging: where it goes.
    """
    values = model.config.to_dict()
    if model.config.model_type == PosEncConfig.model_type:
        known = BertConfig().to_dict()
        our_fields = PosEncConfig.__dataclass_fields__
        values = {name: value for name, value in values.items() if name in known or name not in our_fields}
        values["model_type"] = _READ_AS
    for name in ("auto_map", "_name_or_path"):
        values.pop(name, None)
    values |= {
        "architectures": [type(model).__name__],
        "max_position_embeddings": longest,
        "dtype": "float32",
    }
    if (scale := getattr(model.config, "label_scale", 1.0)) != 1.0:
        values["label_scale"] = scale  # of a regression, whose loss `evaluate` gives in these units
    write_json(staging / "config.json", values)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, staging: Path) -> None:
    """Writes the tokenizer's files.

    Raises:
        UserError: there is no tokenizer.json among them, which servers read.
    """
    without_cuts(tokenizer).save_pretrained(staging)
    if not (staging / "tokenizer.json").is_file():
        raise UserError(
            f"{tokenizer.name_or_path!r}: {type(tokenizer).__name__} has no tokenizer.json, which servers read. Put "
            f"that of a fast tokenizer with the same ids into the folder; {spell('to', 'native')} needs none."
        )


def megabytes(folder: Path) -> float:
    """The size of the model's files, without tokenizer."""
    kinds = (".onnx", ".data", ".xml", ".bin", ".safetensors")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in kinds) / 1e6


def write_sentence_modules(model: PreTrainedModel, checkpoint: Checkpoint, longest: int, staging: Path) -> list[str]:
    """Writes what sentence-transformers and embedding servers read; returns notes.

    An encoder without modules gets a mean over tokens.

    Args:
        model: the checkpoint.
        checkpoint: its files.
        longest: the most tokens that its tokenizer gives.
        staging: where they go.
    """
    task = task_of(type(model).__name__)
    files, notes = read_modules(checkpoint.folder, checkpoint.name, task=task)
    if not files and task == "feature-extraction":
        pooling = {"word_embedding_dimension": model.config.hidden_size, "pooling_mode": "mean"}
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        files = {
            "modules.json": json_text(modules, 2).encode(),
            "1_Pooling/config.json": json_text(pooling, 2).encode(),
        }
        notes = notes or ["As a sentence-transformer it takes the mean of the token vectors."]
    write_modules(staging, {name: _for_servers(name, content, model, longest) for name, content in files.items()})
    return notes


def _for_servers(name: str, content: bytes, model: PreTrainedModel, longest: int) -> bytes:
    """A module's file with the keys of older sentence-transformers too, without which embedding servers don't start."""
    values: dict[str, Any] = {}
    if name == "1_Pooling/config.json":
        values = json.loads(content)
        modes = values.get("pooling_mode")
        if modes is not None:
            modes = [modes] if isinstance(modes, str) else modes
            keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
            values |= {f"pooling_mode_{key}": mode in modes for mode, key in keys.items()}
    elif name == "sentence_bert_config.json":
        values = json.loads(content)
        if not values.get("max_seq_length"):
            values["max_seq_length"] = longest
    return json_text(values, 2).encode() if values else content


def write_card(report: "ExportReport", checkpoint: Checkpoint, model: PreTrainedModel, staging: Path) -> None:
    """Writes README.md: what it is, how exact, and what loads it."""
    task = task_of(type(model).__name__)
    metadata = ModelCardData(
        library_name="transformers" if report.target == "native" else report.target,
        pipeline_tag=task,
        **checkpoint.lineage,
        **(report.int8.metadata() if report.int8 else {}),
        tags=[report.target, "posenc"],
    )
    text = render(
        Path(__file__).with_name("card.md.jinja"),
        metadata=metadata.to_yaml(),
        report=report,
        source=checkpoint.hub_name,
        task=task,
        scheme=getattr(model.config, "position_embedding_type", None),
        auto_class=auto_class(str(task)),
        place=HERE,
    )
    (staging / "README.md").write_text(text, encoding="utf-8")
