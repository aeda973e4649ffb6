"""`evaluate.evaluator`: scores a checkpoint or a model, with a metric that needs no Hub.

A pipeline object is not among them: evaluate 0.4.6 asks transformers for TFPreTrainedModel then, which v5 doesn't have.
"""

import evaluate
import pytest
import torch
from datasets import Dataset

from hf_posenc import PosEncForSequenceClassification
from hf_posenc.training.metrics import Accuracy
from tests.support.remote_code import LABELS, save_tiny, tiny_tokenizer

TEXTS = [f"{first} {second} sees the {third}" for first in "the a".split() for second in "cat dog".split()
         for third in ("old dog", "big cat", "cat that bites", "dog")]  # fmt: skip


@pytest.mark.parametrize("by_name", [False, True], ids=["model", "folder"])
def test_the_evaluator_gives_our_own_numbers(tmp_path, by_name):
    model, tokenizer = PosEncForSequenceClassification.from_pretrained(save_tiny(tmp_path, "learned")), tiny_tokenizer()
    with torch.no_grad():
        predicted = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for text in TEXTS]
    right = [(number + (row % 3 == 0)) % 3 for row, number in enumerate(predicted)]  # every third is another label
    given = {"model_or_pipeline": str(tmp_path)} if by_name else {"model_or_pipeline": model, "tokenizer": tokenizer}
    data = Dataset.from_dict({"text": TEXTS, "label": right})
    scorer = evaluate.evaluator("text-classification")
    scores = scorer.compute(**given, data=data, metric=Accuracy(), label_mapping=LABELS)
    expected = Accuracy().compute(predictions=predicted, references=right)
    assert scores["accuracy"] == pytest.approx(expected["accuracy"])
    assert 0 < scores["accuracy"] < 1
