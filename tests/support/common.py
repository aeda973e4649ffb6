"""Helpers of the test suite."""

import contextlib
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertTokenizer

from hf_posenc import SCHEMES, PosEncConfig, PosEncForSequenceClassification, PosEncModel
from hf_posenc.schemes.conformance.case import pad_batch, perturb

padded = pad_batch

BUILTIN = list(SCHEMES)
"""The published schemes: a new one is picked up from the table."""

UNMEASURED = {"toeplitz", "cable", "window"}
"""Those of which no results are committed in model_cards/results."""

COMBINED = ["tupe+t5", "sinusoidal+rope+relative_key"]
"""Combinations that meet in every hook."""

EVERY_HOOK_AT_ONCE = "sinusoidal+rope+t5+relative_key"
"""For what takes seconds: exporters, compilers."""

BY_HOOK = ["none", "learned", "rope", "t5", "deberta", COMBINED[1]]
"""A scheme for each kind of hook, and a combination: for what doesn't depend on the scheme, but may on its hooks.

What every scheme has to keep, `check_scheme` checks of each (test_conformance.py).
"""

EVERY_HOOK = [*BUILTIN, "test_slope", "test_layer_distance", *COMBINED]
"""And two of a user's own."""


def home_of(thing: Any) -> ModuleType:
    """The module that defines a public function or class, wherever that lies."""
    return sys.modules[thing.__module__]


def others_slow(values: Iterable, *quick) -> list:
    """Parameters of a test, of which all but the quick ones are slow."""
    rest = (value if isinstance(value, tuple) else (value,) for value in values if value not in quick)
    return [*quick, *(pytest.param(*value, marks=pytest.mark.slow) for value in rest)]


def tiny_config(scheme: str = "rope", **overrides) -> PosEncConfig:
    values = {
        "vocab_size": 101,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "hidden_dropout_prob": 0.0,
        "max_position_embeddings": 64,
        "position_embedding_type": scheme,
    }
    if scheme == "window":  # one that texts of tests reach beyond
        values["position_embedding_kwargs"] = {"sliding_window": 2}
    return PosEncConfig(**{**values, **overrides})


def encoder(scheme: str = "rope", **overrides) -> PosEncModel:
    """A tiny encoder in evaluation mode with perturbed weights."""
    torch.manual_seed(0)
    return perturb(PosEncModel(tiny_config(scheme, **overrides))).eval()


def tiny_classifier(folder: Path, texts: list[str], labels: Iterable[str], **overrides: Any) -> None:
    """Writes a random classifier with these labels, and a tokenizer of these texts."""
    from hf_posenc.data.tokenizer import train_tokenizer  # which needs more than a GPU image has

    tokenizer = train_tokenizer(texts, vocab_size=60, model_max_length=64)
    fields = {"id2label": dict(enumerate(labels)), "problem_type": "single_label_classification", **overrides}
    config = tiny_config("learned", vocab_size=len(tokenizer), **fields)
    PosEncForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def word_tokenizer(words: Iterable[str], **options) -> BertTokenizer:
    """A tokenizer whose vocabulary is these words, after the five special tokens."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    return BertTokenizer(vocab=vocabulary, **{"do_lower_case": False, "model_max_length": 64, **options})


def tokens(*shape: int, vocab: int = 101, seed: int = 1) -> Tensor:
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))


def assert_equal_with_gradients(got: Tensor, expected: Tensor, *leaves: Tensor, atol: float = 1e-5) -> None:
    """Values, and the gradients of a random projection of them; the expected ones may be in float64."""
    torch.testing.assert_close(got.to(expected.dtype), expected, atol=atol, rtol=atol)
    target = torch.randn(got.shape)
    mine, theirs = (torch.autograd.grad((t * target).sum(), leaves, retain_graph=True) for t in (got, expected))
    torch.testing.assert_close(mine, theirs, atol=atol, rtol=atol)


def write_jsonl(path: Path, examples: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))
    return str(path)


def write_csv(path: Path, examples: list[dict[str, Any]], **options: Any) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(examples[0]), **options)
        writer.writeheader()
        writer.writerows(examples)
    return str(path)


@contextlib.contextmanager
def schemes_restored(*modules: str) -> Iterator[None]:
    """Afterwards the schemes are those of before, and these modules, and what is in them, aren't imported any more."""
    before = dict(SCHEMES)
    try:
        yield
    finally:
        SCHEMES.clear()
        SCHEMES.update(before)
        for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
            del sys.modules[name]
