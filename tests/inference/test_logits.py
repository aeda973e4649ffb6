"""One way from texts to logits: in order, in float32, whatever the batches, the model or the kind of input."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hf_posenc
from hf_posenc import PosEncForSequenceClassification
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.finetuning.prediction import answers_to, load_classifier
from hf_posenc.inference.logits import logits_of
from tests.support.common import tiny_config, write_jsonl
from tests.support.training import rows

TEXTS = [row["text"] for row in rows("train", 60)] + ["", "karla " * 70]
PAIRS = [(text, other) for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]
SIZES: dict[str, Any] = {"vocab_size": 500, "id2label": dict(enumerate("abc")), "initializer_range": 0.2}
BERT: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, vocab_size=500, model_max_length=64)


def model_of(kind: str) -> Any:
    if kind == "bert":
        return BertForSequenceClassification(BertConfig(**SIZES, **BERT, max_position_embeddings=64)).eval()
    return PosEncForSequenceClassification(tiny_config(**SIZES)).eval()


def one_by_one(model: Any, tokenizer: Any, inputs: list[Any]) -> Iterator[np.ndarray]:
    """Each alone, in float64."""
    model = model.double()
    for text in inputs:
        parts = [[part] for part in ((text,) if isinstance(text, str) else text)]  # an empty second text is one, too
        batch = tokenizer(*parts, truncation=True, return_tensors="pt")
        with torch.no_grad():
            yield model(**batch).logits[0].numpy()
    model.float()


def test_a_model_with_streams_runs_as_many_batches_at_once(tokenizer: Any) -> None:
    model = model_of("texts")
    expected = list(logits_of(model, tokenizer, TEXTS, 7))
    together = threading.Barrier(3, timeout=20)  # a batch waits until three are under way

    class Streams:
        device, name_or_path, streams = model.device, "", 3

        def eval(self) -> None: ...

        def __call__(self, **batch: Any) -> Any:
            together.wait()
            return model(**batch)

    answers = list(logits_of(Streams(), tokenizer, iter(TEXTS[:42]), 7))
    np.testing.assert_allclose(answers, expected[:42], atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "side"),
    [("texts", "right"), ("texts", "left"), ("bert", "right")],
)
@pytest.mark.parametrize("read_ahead", [1, 32])
def test_logits_are_those_of_each_input_alone_in_order(tokenizer: Any, kind: str, side: str, read_ahead: int) -> None:
    model = model_of(kind)
    inputs = [*TEXTS, *PAIRS[:9], *TEXTS[:5]]
    expected = list(one_by_one(model, tokenizer, inputs))
    tokenizer.padding_side = side
    logits = list(logits_of(model, tokenizer, iter(inputs), 7, read_ahead=read_ahead))
    assert len(logits) == len(inputs)
    assert {own.dtype for own in logits} == {np.dtype("float32")}
    for own, right in zip(logits, expected, strict=True):
        np.testing.assert_allclose(own, right, atol=2e-5)
    tokenizer.padding_side = "right"
    encoded = [dict(tokenizer(text, truncation=True)) for text in TEXTS]
    for own, right in zip(logits_of(model, tokenizer, encoded, 7), expected, strict=False):
        np.testing.assert_allclose(own, right, atol=2e-5)


@pytest.mark.parametrize("kind", ["texts", "bert"])
def test_a_text_without_a_token_is_answered_alone_as_beside_others(kind: str) -> None:
    """A tokenizer without special tokens gives an empty text none."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "karla": 2}, "[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    model = model_of(kind)
    assert tokenizer("")["input_ids"] == []
    expected = list(logits_of(model, tokenizer, ["", "karla"]))
    answers = list(logits_of(model, tokenizer, ["", "karla", ""], 1))
    np.testing.assert_allclose(answers, [*expected, expected[0]], atol=1e-6)


def test_batches_are_of_like_lengths_and_a_generator_is_read_as_it_is_needed(tokenizer: Any) -> None:
    model, shapes, taken, done = model_of("texts"), [], [], []
    model.register_forward_pre_hook(
        lambda module, _, batch: shapes.append(batch["attention_mask"].sum(1).tolist()), with_kwargs=True
    )
    inputs = (taken.append(text) or text for text in TEXTS * 3)
    answers = logits_of(model, tokenizer, inputs, 8, read_ahead=4, progress=done.append)
    next(answers)
    assert (len(taken), sum(done)) == (32, 32)
    assert all(min(longer) >= max(shorter) for longer, shorter in pairwise(shapes))
    assert len(list(answers)) == 3 * len(TEXTS) - 1
    assert sum(done) == 3 * len(TEXTS)
    assert max(done) == 8


def test_texts_that_are_truncated_are_named(tokenizer: Any) -> None:
    cut: dict[int, int] = {}
    texts = [*TEXTS, "who " * 62]  # the last one just fits
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    list(logits_of(model_of("texts"), tokenizer, texts * 2, 4, read_ahead=2, long=cut))
    expected = [number for number, length in enumerate(lengths) if length > 64]
    assert expected
    assert lengths[-1] == 64
    assert cut == dict.fromkeys([*expected, *(number + len(texts) for number in expected)], 1)


def test_in_bfloat16_the_layers_run_in_it_and_the_logits_are_float32(tokenizer: Any) -> None:
    model, kinds = model_of("texts").train(), set()
    model.model.layers[0].attention.query.register_forward_hook(lambda module, _, result: kinds.add(result.dtype))
    exact = np.stack(list(logits_of(model, tokenizer, TEXTS)))
    assert kinds == {torch.float32}
    assert not model.training  # no dropout
    rounded = np.stack(list(logits_of(model, tokenizer, TEXTS, bf16=True)))
    assert kinds == {torch.float32, torch.bfloat16}
    assert rounded.dtype == np.float32
    assert 1e-4 < np.abs(rounded - exact).max() < 0.1


def test_weights_stored_in_half_precision_answer_and_are_scored_in_float32(tokenizer: Any, tmp_path: Path) -> None:
    model, folder = model_of("texts").to(torch.bfloat16), tmp_path / "half"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    expected = torch.from_numpy(np.stack(list(one_by_one(model, tokenizer, TEXTS)))).softmax(-1).numpy()
    classifier = load_classifier(str(folder), "cpu")
    for answer, right in zip(answers_to(classifier, [(text,) for text in TEXTS]), expected, strict=True):
        assert [answer["probabilities"][name] for name in "abc"] == pytest.approx(right, abs=1e-5)
    np.testing.assert_allclose(hf_posenc.load(folder).predict_proba(TEXTS), expected, atol=1e-5)
    labels = ["abc"[row.argmax()] for row in expected]
    examples = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True) if text]
    file = write_jsonl(tmp_path / "test.jsonl", examples)
    assert classifier.model.dtype == torch.float32
    assert hf_posenc.evaluate(folder, file)["accuracy"] == 1


def test_a_text_beyond_the_positions_is_cut_where_the_tokenizer_names_no_limit(tokenizer: Any, tmp_path: Path) -> None:
    model_of("bert").save_pretrained(tmp_path)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    tokenizer.model_max_length = 64
    classifier = load_classifier(str(tmp_path), "cpu")
    whole, cut = answers_to(classifier, [("karla " * 500,), ("karla " * 62,)])
    assert whole["probabilities"] == pytest.approx(cut["probabilities"], abs=1e-6)
