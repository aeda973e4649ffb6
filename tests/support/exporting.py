"""Tiny checkpoints with any scheme and head, and a word tokenizer for them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizer

import hf_posenc
from hf_posenc.data.texts import own_texts
from tests.support.common import perturb, tiny_config, word_tokenizer

pytest.importorskip("transformers.exporters.exporter_openvino", reason="exports of graphs need transformers 5.23")

LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
SENTENCES = own_texts(96)
"""What exports are compared on, and more."""
TEXTS = ["A cat.", "Every dog chased the cat that saw a bird.", "no"]


def tokenizer(**options) -> BertTokenizer:
    """Knows the commonest words of the sentences that exports are compared on."""
    words = sorted({word for text in SENTENCES[:64] for word in text.split()})[:96]
    return word_tokenizer(words, **options)


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


def mean_vectors(model) -> np.ndarray:
    """What an encoder gives for `TEXTS` as a sentence-transformer without modules of its own: (3, D)."""
    inputs = dict(tokenizer()(TEXTS, padding=True, return_tensors="np"))
    mask = inputs["attention_mask"][..., None]
    return (expected(model, inputs)["last_hidden_state"] * mask).sum(1) / mask.sum(1)
