"""Tiny checkpoints with any scheme and head, and a word tokenizer for them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from common import perturb, tiny_config
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import hf_posenc
from hf_posenc.conversion.measure import own_texts

pytest.importorskip("transformers.exporters.exporter_openvino", reason="exports of graphs need transformers 5.23")

TEXTS = ["A cat.", "Every dog chased the cat that saw a bird.", "no"]


def tokenizer(**options) -> PreTrainedTokenizerFast:
    """Knows the commonest words of the sentences that exports are compared on."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({word for text in own_texts(64) for word in text.split()})[: 101 - len(special)]
    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*special, *words])}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{"model_max_length": 64, **options},
    )


def checkpoint(folder: Path, scheme: str = "rope", head: str = "ForSequenceClassification", **fields):
    """Writes a perturbed checkpoint with its tokenizer; returns its model."""
    torch.manual_seed(0)
    name = "PosEncModel" if head == "Model" else f"PosEnc{head}"
    values = {"num_hidden_layers": 1, "type_vocab_size": 2, **fields}
    model = perturb(getattr(hf_posenc, name)(tiny_config(scheme, **values))).eval()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def batch(*shape: int, left: bool = False) -> dict[str, np.ndarray]:
    """Random inputs; the first row is half padding."""
    draw = np.random.default_rng(0)
    ids, mask = draw.integers(5, 101, shape), np.ones(shape, np.int64)
    half = shape[-1] // 2
    mask[0, ..., slice(None, half) if left else slice(half, None)] = 0 if len(ids) > 1 else 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": draw.integers(0, 2, shape)}


def expected(model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What PyTorch answers."""
    with torch.no_grad():
        outputs = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}
