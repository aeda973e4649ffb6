"""Perplexity of a masked language model: each masked token counts once, and every model gets the same masks."""

import math

import pytest
import torch
from common import tiny_config

from hf_posenc import PosEncForMaskedLM
from hf_posenc.conversion.measure import encode, mask_once, perplexity
from hf_posenc.data.tokenizer import train_tokenizer

TEXTS = ["the dog saw the cat that karla fed", "a cat saw herself", "who fed the old dog and the cat that saw it"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=80)


def test_masks_are_the_same_each_time_and_follow_the_recipe(tokenizer):
    rows = encode(tokenizer, TEXTS * 200, 64)
    first = mask_once(rows, tokenizer)
    assert mask_once(rows, tokenizer) == first
    special = set(tokenizer.all_special_ids)
    chosen = kept = masked = eligible = 0
    for row, changed in zip(rows, first, strict=True):
        for old, new, label in zip(row["input_ids"], changed["input_ids"], changed["labels"], strict=True):
            eligible += old not in special
            if label == -100:
                assert new == old
                continue
            assert label == old
            assert old not in special
            chosen += 1
            masked += new == tokenizer.mask_token_id
            kept += new == old
            assert new == tokenizer.mask_token_id or new not in special
    assert chosen / eligible == pytest.approx(0.15, abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.05)
    assert kept / chosen == pytest.approx(0.1, abs=0.05)


def test_perplexity_is_exp_of_the_mean_over_all_masked_tokens(tokenizer):
    """By hand, one text at a time, in float64."""
    rows = encode(tokenizer, TEXTS * 10, 64)
    config = tiny_config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, initializer_range=0.3)
    model = PosEncForMaskedLM(config).eval()
    measured = perplexity(model, rows, tokenizer)
    total, count = 0.0, 0
    for row in mask_once(rows, tokenizer):
        with torch.no_grad():
            scores = model.double()(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        for place, label in enumerate(row["labels"]):
            if label != -100:
                total, count = total - float(scores[place, label]), count + 1
    assert measured == pytest.approx(math.exp(total / count), rel=1e-5)
    assert perplexity(model, encode(tokenizer, [""], 64), tokenizer) is None
