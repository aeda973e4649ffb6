"""`evaluate.evaluator` scores a checkpoint or a model.

A pipeline object is not among them: evaluate 0.4.6 asks transformers for TFPreTrainedModel then, which v5 doesn't have.
"""

from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from remote_code_harness import save_tiny, tiny_tokenizer

from hf_posenc import PosEncForSequenceClassification

NAMES = ["bad", "fair", "good"]
TEXTS = [f"{first} {second} sees the {third}" for first in "the a".split() for second in "cat dog".split()
         for third in ("old dog", "big cat", "cat that bites", "dog")]  # fmt: skip


class Accuracy(evaluate.Metric):
    """The share of right answers; evaluate's own is a script of the Hub."""

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Value("int64"), "references": Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"accuracy": float(np.mean(np.equal(predictions, references)))}


@pytest.mark.parametrize("by_name", [False, True], ids=["model", "folder"])
def test_the_evaluator_scores_what_the_model_predicts(tmp_path: Path, by_name: bool) -> None:
    model, tokenizer = PosEncForSequenceClassification.from_pretrained(save_tiny(tmp_path, "learned")), tiny_tokenizer()
    with torch.no_grad():
        predicted = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for text in TEXTS]
    right = [(number + (row % 3 == 0)) % 3 for row, number in enumerate(predicted)]  # every third is another label
    scores = evaluate.evaluator("text-classification").compute(
        model_or_pipeline=str(tmp_path) if by_name else model,
        tokenizer=None if by_name else tokenizer,
        data=Dataset.from_dict({"text": TEXTS, "label": right}),
        metric=Accuracy(),
        label_mapping={name: number for number, name in enumerate(NAMES)},
    )
    assert scores["accuracy"] == pytest.approx(10 / 16)
    assert scores["samples_per_second"] > 0
