"""Texts longer than the model reads, in windows: one answer per text, by hand and by every way in."""

import json
import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import BertConfig, BertForSequenceClassification, EsmTokenizer, PreTrainedTokenizerFast

import hf_posenc
from hf_posenc import PosEncForSequenceClassification, UserError
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.finetuning.prediction import Asked, answers_to, load_classifier
from hf_posenc.inference.logits import logits_of
from hf_posenc.inference.windows import Windows
from tests.support.common import tiny_config, write_jsonl
from tests.support.training import read_jsonl, train

LENGTH = 16
WORDS = "who saw karla run over the old red hill and did not look back at all".split()
SINGLE, SEVERAL, NUMBERS = "single_label_classification", "multi_label_classification", "regression"
BERT: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def words(count: int, start: int = 0) -> str:
    return " ".join(WORDS[(start + 3 * number + number // 7) % len(WORDS)] for number in range(count))


LONG = [words(count, start) for start, count in enumerate((15, 16, 21, 28, 29, 70))]
FITTING = [words(14), "who", ""]
TEXTS = [text for pair in zip(LONG, FITTING * 2, strict=True) for text in pair]


def of_words(folder: Path) -> Any:
    return train_tokenizer([" ".join(WORDS * 20)], vocab_size=300, model_max_length=LENGTH)


def without_special_tokens(folder: Path) -> Any:
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(["[UNK]", "[PAD]", *WORDS])}, "[UNK]"))
    inner.pre_tokenizer = WhitespaceSplit()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": LENGTH}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def in_python(folder: Path) -> Any:
    """Of a class that has no tokenizer.json, with other special tokens."""
    vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", *WORDS, "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    return EsmTokenizer(str(folder / "vocab.txt"), model_max_length=LENGTH)


TOKENIZERS: dict[str, Callable[[Path], Any]] = {
    "BERT's": of_words,
    "without special tokens": without_special_tokens,
    "Python's": in_python,
}


def model_of(problem_type: str, kind: str = "posenc") -> Any:
    sizes: dict[str, Any] = {"vocab_size": 300, "initializer_range": 0.3, "problem_type": problem_type}
    sizes |= {"num_labels": 1} if problem_type == NUMBERS else {"id2label": dict(enumerate("abc"))}
    torch.manual_seed(0)
    if kind == "bert":
        return BertForSequenceClassification(BertConfig(**sizes, **BERT, max_position_embeddings=LENGTH)).eval()
    return PosEncForSequenceClassification(tiny_config("rope", **sizes)).eval()


def by_hand(model: Any, tokenizer: Any, text: str | tuple[str, str], stride: int | None) -> np.ndarray:
    """Logits (windows, C) of each window of a text alone; of a text that fits its own."""
    first, last = ("", text) if isinstance(text, str) else text
    pair = [] if isinstance(text, str) else [[first]]  # lists: an empty second text is one, too
    tokens = tokenizer.tokenize(last)
    room = LENGTH - len(tokenizer(*pair, [""])["input_ids"][0])
    step, starts = min(stride or room // 2, room), [0]
    while starts[-1] + room < len(tokens):
        starts.append(min(starts[-1] + step, len(tokens) - room))
    parts = [tokenizer.convert_tokens_to_string(tokens[start : start + room]) for start in starts]
    with torch.no_grad():
        batches = [tokenizer(*pair, [part], return_tensors="pt") for part in parts]
        assert all(batch["input_ids"].shape[1] == LENGTH for batch in batches) or len(batches) == 1
        return np.stack([model(**batch).logits[0].double().numpy() for batch in batches])


def answer(logits: np.ndarray, problem_type: str, how: str) -> np.ndarray:
    """The text's probabilities or numbers from those of its windows."""
    together = np.mean if how == "mean" else np.max
    if problem_type == NUMBERS:
        return logits.mean(0)
    if problem_type == SEVERAL:
        return together(expit(logits), 0)
    shares = together(softmax(logits, -1), 0)
    return shares / shares.sum()


@pytest.mark.parametrize(
    ("problem_type", "how"), [(SINGLE, "mean"), (SINGLE, "max"), (SEVERAL, "mean"), (SEVERAL, "max"), (NUMBERS, "mean")]
)
@pytest.mark.parametrize("stride", [None, 1, 10])
def test_an_answer_is_that_of_its_windows_put_together_by_hand(tmp_path, problem_type, how, stride):
    model, tokenizer, long = model_of(problem_type), of_words(tmp_path), dict[int, int]()
    logits = list(logits_of(model, tokenizer, TEXTS, 4, read_ahead=2, windows=Windows(how, stride), long=long))
    assert len(logits) == len(TEXTS)
    activation = {SINGLE: softmax, SEVERAL: expit, NUMBERS: np.asarray}[problem_type]
    for number, text in enumerate(TEXTS):
        windows = by_hand(model, tokenizer, text, stride)
        np.testing.assert_allclose(activation(logits[number]), answer(windows, problem_type, how), atol=1e-5)
        assert long.get(number, 1) == len(windows)
    plain = list(logits_of(model, tokenizer, FITTING))
    np.testing.assert_allclose([*logits_of(model, tokenizer, FITTING, windows=Windows(how))], plain, atol=1e-6)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("stride", [None, 2])
def test_windows_carry_the_special_tokens_and_types_of_any_tokenizer(tmp_path, kind, stride):
    """Pairs, too: the first text stands in every window, and the second is divided."""
    tokenizer = TOKENIZERS[kind](tmp_path)
    model = model_of(SINGLE, "posenc" if kind == "Python's" else "bert")
    pairs = [("who saw", text) for text in LONG] + [(words(9), LONG[-1]), ("", LONG[0]), ("who", "karla")]
    inputs = [*LONG, *pairs]
    for text, logits in zip(inputs, logits_of(model, tokenizer, inputs, windows=Windows("mean", stride)), strict=True):
        windows = by_hand(model, tokenizer, text, stride)
        np.testing.assert_allclose(softmax(logits), answer(windows, SINGLE, "mean"), atol=1e-5)


def test_batches_of_windows_have_no_padding_and_a_text_is_read_as_it_is_needed(tmp_path):
    model, tokenizer, shapes, taken, done = model_of(SINGLE), of_words(tmp_path), [], [], []
    model.register_forward_pre_hook(
        lambda module, _, batch: shapes.append(batch["attention_mask"].sum(1).tolist()), with_kwargs=True
    )
    texts = (taken.append(count) or words(count) for count in (30, 5000, 40, *[30] * 50))
    answers = logits_of(model, tokenizer, texts, 2, read_ahead=4, windows=Windows("mean"), progress=done.append)
    next(answers)
    assert shapes == [[LENGTH] * 2] * 4
    assert (len(taken), sum(done)) == (2, 1)  # of the second text only the windows of these batches are made
    assert len(list(islice(answers, 20))) == 20
    assert len(taken) < 30
    assert {size for batch in shapes for size in batch} == {LENGTH}
    list(answers)
    assert sum(done) == 53


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"windows": "median"}, "windows='median' is unknown. Choose one of mean, max."),
        ({"stride": 4}, "stride=4 is for windows, which isn't given. Leave it out."),
        ({"windows": "mean", "stride": 0}, "stride=0 is out of range. Give a whole number from 1."),
        ({"windows": "mean", "stride": 15}, "stride=15 is out of range. Give a whole number from 1 to 14."),
        ({"windows": "max"}, "windows='max' is for labels, and the model predicts numbers. Give windows='mean'."),
    ],
)
def test_what_windows_cannot_be_is_refused_with_what_they_can(tmp_path, values, message):
    model = model_of(NUMBERS)
    model.save_pretrained(tmp_path)
    of_words(tmp_path).save_pretrained(tmp_path)
    data = write_jsonl(tmp_path / "data.jsonl", [{"text": "who", "label": 0.5}])
    for ask in (
        lambda: hf_posenc.predict(tmp_path, "who", **values),
        lambda: hf_posenc.evaluate(tmp_path, data, **values),
        lambda: hf_posenc.load(tmp_path).predict(["who"], **values),
    ):
        with pytest.raises(UserError) as refused:
            ask()
        assert str(refused.value) == message
    if values.get("stride") != 15:  # which of a model to be trained isn't known yet
        with pytest.raises(UserError):
            hf_posenc.fit(["who", "karla"] * 4, [0.5, 0.25] * 4, **values)


def test_a_first_text_that_fills_the_window_is_refused(tmp_path):
    model, tokenizer = model_of(SINGLE), of_words(tmp_path)
    refused = (
        r"'.*'\.\.\., of 34 tokens, can't be read in windows of 16: they divide its last text, of 1, .*Shorten a first"
    )
    with pytest.raises(UserError, match=refused):
        list(logits_of(model, tokenizer, [(words(30), "who")], windows=Windows("mean")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier that reads 24 tokens, and a file of texts of which some are longer."""
    folder = tmp_path_factory.mktemp("windows")
    rows = [{"text": words(12, start), "label": "ab"[start % 2]} for start in range(48)]
    train(folder / "run", data=write_jsonl(folder / "train.jsonl", rows), max_length=24, epochs=2)
    config = json.loads((folder / "run" / "config.json").read_text())
    config["task_specific_params"]["hf_posenc"]["temperature"] = 3.0
    (folder / "run" / "config.json").write_text(json.dumps(config))
    return folder / "run"


def shares(answers: list[dict[str, Any]]) -> np.ndarray:
    return np.array([[answer["probabilities"][name] for name in "ab"] for answer in answers])


def test_every_way_in_gives_the_answer_and_says_what_was_read_in_windows(run, trained, tmp_path, caplog, recwarn):
    texts = [words(10), words(60), words(30)]
    asked = Asked(windows=Windows("max", 8))
    right = shares(list(answers_to(load_classifier(str(trained), "cpu"), [(text,) for text in texts], asked)))
    said = "2 texts have more than 24 tokens: read in 8 windows, by the max of their answers."
    data = write_jsonl(tmp_path / "in.jsonl", [{"text": text, "label": "a"} for text in texts])
    options = ("--windows", "max", "--stride", 8)
    code, _, err = run("predict", trained, "--data", data, "-o", tmp_path / "out.jsonl", *options)
    assert (code, said in err) == (0, True), err
    np.testing.assert_allclose(shares(read_jsonl(tmp_path / "out.jsonl")), right, atol=1e-6)
    code, out, err = run("evaluate", trained, "--data", data, "--json", *options)
    assert (code, said in err) == (0, True), err
    assert json.loads(out)["loss"] == pytest.approx(-np.log(right[:, 0]).mean(), abs=1e-5)
    with caplog.at_level(logging.INFO, "hf_posenc"):
        frame = hf_posenc.predict(trained, texts, windows="max", stride=8)
        loaded = hf_posenc.load(trained)
        np.testing.assert_allclose(loaded.predict_proba(texts, windows="max", stride=8), right, atol=1e-6)
        np.testing.assert_allclose(loaded.set_params(windows="max", stride=8).predict_proba(texts), right, atol=1e-6)
        assert hf_posenc.evaluate(trained, data, windows="max", stride=8)["loss"] == json.loads(out)["loss"]
    assert caplog.messages.count(said) == 4
    assert not [warning for warning in recwarn if "tokens" in str(warning.message)]
    np.testing.assert_allclose(frame[["probability_a", "probability_b"]].to_numpy(), right, atol=1e-6)


def test_the_temperature_divides_the_logits_of_each_window(trained):
    classifier = load_classifier(str(trained), "cpu")
    text = words(60)
    asked = Asked(calibrated=True, windows=Windows("mean", 22))
    (given,) = answers_to(classifier, [(text,)], asked)
    ids = classifier.tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = [
        [classifier.tokenizer.cls_token_id, *ids[n : n + 22], classifier.tokenizer.sep_token_id] for n in (0, 22, 38)
    ]
    logits = np.stack([*logits_of(classifier.model, classifier.tokenizer, [{"input_ids": part} for part in parts])])
    np.testing.assert_allclose(shares([given])[0], softmax(logits / 3, -1).mean(0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_exported_folder_answers_in_windows_as_the_checkpoint_does(trained, tmp_path, name):
    for package in ("transformers.exporters.exporter_openvino", "onnx", "onnxruntime", "onnxscript", "openvino"):
        pytest.importorskip(package)
    hf_posenc.export(trained, tmp_path / name, to=name)
    texts = [words(10), words(60), words(30)]
    answers = [hf_posenc.load(folder).predict_proba(texts, windows="mean") for folder in (trained, tmp_path / name)]
    np.testing.assert_allclose(*answers, atol=1e-5)


def test_an_estimator_reads_windows_wherever_it_predicts(tmp_path):
    texts, labels = [words(12, start) for start in range(24)], ["ab"[start % 2] for start in range(24)]
    fitted = hf_posenc.fit(texts, labels, windows="max", stride=5, max_length=16, max_steps=2, baselines=False)
    assert fitted.get_params()["stride"] == 5
    long = [words(60), words(70, 1)]
    own = fitted.predict_proba(long)
    assert fitted.score(long, fitted.classes_[own.argmax(1)]) == 1
    for given in ({"windows": "max", "stride": 5}, {"windows": "max"}, {"stride": 5}):
        np.testing.assert_array_equal(own, fitted.predict_proba(long, **given))
    assert np.abs(own - fitted.predict_proba(long, windows="mean")).max() > 1e-6
    assert "windows" not in fitted.report_.options
