"""Transformers' zero-shot-classification: a PosEnc model of entailment asked whether a text entails each label."""

from pathlib import Path

import pytest
import torch
from remote_code_harness import save_tiny, tiny_tokenizer
from transformers import pipeline

from hf_posenc import PosEncForSequenceClassification

TEXTS = ["the old cat chased the dog", "a big dog sees that cat"]
LABELS = ["cat", "old dog", "big"]
TEMPLATE = "the {} bites"
NAMES = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    labels = {"id2label": NAMES, "label2id": {name: number for number, name in NAMES.items()}}
    return save_tiny(tmp_path, "rope", **labels)


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
def test_the_pipeline_gives_the_probabilities_of_entailment(folder: Path, several: bool) -> None:
    model, tokenizer = PosEncForSequenceClassification.from_pretrained(folder).eval(), tiny_tokenizer()
    pipe = pipeline("zero-shot-classification", str(folder), trust_remote_code=True)
    results = pipe(TEXTS, LABELS, hypothesis_template=TEMPLATE, multi_label=several)
    assert pipe.entailment_id == 2
    for text, result in zip(TEXTS, results, strict=True):
        logits = []
        for label in LABELS:  # one pair at a time: no padding
            with torch.no_grad():
                logits.append(model(**tokenizer(text, TEMPLATE.format(label), return_tensors="pt")).logits[0])
        scores = torch.stack(logits)
        expected = scores[:, [0, 2]].softmax(-1)[:, 1] if several else scores[:, 2].softmax(-1)
        assert result["labels"] == [LABELS[number] for number in expected.argsort(descending=True)]
        assert result["scores"] == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-5)
