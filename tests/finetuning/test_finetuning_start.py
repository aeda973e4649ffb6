"""What a training starts from: a new encoder, a checkpoint of ours or of the BERT family; `--lora` on it."""

import json
import re
import shutil
import sys

import pytest
import torch
from datasets import List, Value
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, DataCollatorWithPadding

from hf_posenc import UserError, convert
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.finetuning.start import _needs_conversion
from hf_posenc.options import Options
from hf_posenc.training.trainer import merge_lora
from tests.support.common import encoder, schemes_restored, word_tokenizer, write_jsonl
from tests.support.conversion import published_gte
from tests.support.training import rows, started, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A classifier of sentences, with a table of positions and attention dropout."""
    folder = tmp_path_factory.mktemp("ours")
    data = write_jsonl(folder / "train.jsonl", rows("train", 160))
    train(folder / "run", data=data, scheme="learned", attention_probs_dropout_prob=0.1)
    return folder / "run"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer([row["text"] for row in rows("train", 160)], vocab_size=300)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


KEPT = "was trained for these labels: its classifier is trained further."
NEW = "was trained for other labels: its classifier is learned anew."
AS_IT_WAS = "Converted run, learned as it was."
DROPOUT = "Attention dropout is 0 instead of 0.1: --set attention_probs_dropout_prob=0.1 keeps it."
SET = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.3, "classifier_pooling": "cls"}
LONGER = {"max_position_embeddings": 600}


@pytest.mark.parametrize(
    ("given", "is_kept", "says", "has"),
    [
        ({"scheme_kwargs": {"dropout": 0.0}}, (True, True), KEPT, {}),
        ({}, (True, True), KEPT, {"id2label": {0: "acceptable", 1: "unacceptable"}}),
        ({"scheme": "learned"}, (True, True), KEPT, {}),
        (SET, (True, True), KEPT, SET),
        ({"label_names": "yes,no"}, (True, False), NEW, {"id2label": {0: "yes", 1: "no"}}),
        (
            {"scheme": "rope"},
            (True, True),
            "Converted run from learned to rope, and healing on text of yours brings it nearer.",
            {"position_embedding_type": "rope"},
        ),
        ({**LONGER, "max_length": 600}, (True, True), AS_IT_WAS, LONGER),
    ],
    ids=["arguments", "same", "named", "set", "labels", "scheme", "longer"],
)
def test_a_checkpoint_of_ours_goes_on_as_it_is_unless_something_else_is_asked_for(
    ours, tmp_path, given, is_kept, says, has
):
    data = rows("train", 40)
    if "label_names" in given:
        data = [{**row, "label": n % 2} for n, row in enumerate(data)]
    _, tokenizer, model, notes = started(data=write_jsonl(tmp_path / "a.jsonl", data), pretrained=str(ours), **given)
    before, after = load_file(ours / "model.safetensors"), model.state_dict()
    head = "classifier.out_proj.weight"
    inner = next(name for name in before if re.search(r"layers\.0\..*dense\.weight", name))
    assert tuple(torch.equal(before[name], after[name]) for name in (inner, head)) == is_kept
    assert any(says in note for note in notes), notes
    assert (DROPOUT in notes) == (model.config.attention_probs_dropout_prob == 0)
    assert {name: getattr(model.config, name) for name in has} == has
    assert len(tokenizer) == model.config.vocab_size
    assert model.config._name_or_path == str(ours)


@pytest.mark.parametrize(("width", "converts"), [(4, False), (8, True)])
def test_arguments_that_a_combination_has_already_convert_nothing(width, converts):
    config = encoder("rope+window", position_embedding_kwargs={"window": {"sliding_window": 4}}).config
    options = Options(scheme_kwargs={"window": {"sliding_window": width}}, pretrained="a")
    assert _needs_conversion(options, config) == converts


def test_a_scheme_that_could_not_be_saved_is_refused_before_training(ours, order, tmp_path):
    path = tmp_path / "mine.py"
    imports = "from hf_posenc import load\nfrom hf_posenc import PositionScheme\n"
    path.write_text(f"{imports}class Mine(PositionScheme):\n    def embed(self, x, tokens):\n        return x\n")
    with schemes_restored("mine"), pytest.raises(UserError, match="line 1: 'from hf_posenc import load' can't"):
        started(**order, pretrained=str(ours), scheme="mine", scheme_file=str(path))


@pytest.mark.parametrize("scheme", [None, "rope+learned"])
def test_a_scheme_file_that_is_not_used_is_refused(scheme, order, tmp_path):
    path = tmp_path / "unused.py"
    hook = "    def embed(self, x, tokens):\n        return x\n"
    path.write_text(f"from hf_posenc import PositionScheme\nclass Unused(PositionScheme):\n    name = 'idle'\n{hook}")
    message = "--scheme-file '.*' defines idle, which isn't used. Name it: --scheme 'idle'."
    with schemes_restored("idle"), pytest.raises(UserError, match=message):
        started(**order, scheme=scheme, scheme_file=str(path))


@pytest.mark.parametrize(("scheme", "says"), [(None, "learned as it was"), ("rope", "learned to rope")])
def test_weights_of_the_bert_family_begin_as_a_conversion_writes_them(bert, order, scheme, says, capfd):
    _, _, model, notes = started(**order, pretrained=str(bert), scheme=scheme)
    expected = convert(bert, scheme=scheme, head="feature-extraction", seed=1, measure=False).model.state_dict()
    after = model.base_model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in expected.items())
    assert model.config.position_embedding_type == (scheme or "learned")
    assert any(says in note for note in notes)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_what_was_published_for_code_of_its_own_begins_without_it(order, tmp_path):
    published_gte(tmp_path, "text-classification", 2.0)
    _, _, model, notes = started(**{**order, "vocab_size": None}, pretrained=str(tmp_path))
    assert (model.config.model_type, model.config.position_embedding_type) == ("posenc", "rope")
    assert any("rope as it was" in note for note in notes)


@pytest.mark.parametrize(("names", "is_kept"), [(("acceptable", "unacceptable"), True), (("no", "yes"), False)])
def test_the_classifier_of_a_bert_is_kept_where_its_labels_are_those_of_the_data(bert, order, tmp_path, names, is_kept):
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    source = BertForSequenceClassification.from_pretrained(bert, **labels)
    source.save_pretrained(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bert / name, tmp_path / "source")
    _, _, model, notes = started(**order, pretrained=str(tmp_path / "source"))
    state = model.state_dict()
    assert torch.equal(state["classifier.out_proj.weight"], source.classifier.weight) == is_kept
    assert (KEPT if is_kept else NEW) in " ".join(notes)


def test_a_new_encoder_is_what_the_options_say(order):
    given = {"scheme": "t5", "scheme_kwargs": '{"num_buckets": 8}', "size": "mini", "max_length": 32}
    _, tokenizer, model, notes = started(**order, **given, hidden_size=None, vocab_size=300, do_lower_case=False)
    config = model.config
    assert (config.position_embedding_type, config.hidden_dropout_prob, config.hidden_size) == ("t5", 0.0, 256)
    assert config.position_embedding_kwargs["num_buckets"] == 8
    assert (tokenizer.model_max_length, config.vocab_size, notes) == (32, len(tokenizer), [])
    assert tokenizer.convert_ids_to_tokens(tokenizer("Who")["input_ids"])[1] != "who"
    _, tokenizer, _, notes = started(**order, **given, hidden_size=None, vocab_size=300)
    assert tokenizer("Whó")["input_ids"] == tokenizer("who")["input_ids"]
    assert notes == ["Case and accents are ignored: --set do_lower_case=false keeps them."]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pretrained": "{ours}", "vocab_size": 500}, "--set vocab_size: --pretrained '.*' was trained with its own."),
        ({"pretrained": "{ours}", "norm_position": "post"}, "--set norm_position: .* may be set attention_probs_dro"),
        ({"tokenizer": "{ours}", "vocab_size": 500}, "--set vocab_size is for a tokenizer that is trained. Leave it"),
        ({"pretrained": "{bert}", "tokenizer": "{ours}"}, "--tokenizer '.*' has other tokens than '.*bert.*' was"),
        ({"pretrained": "{ours}", "scheme_kwargs": {"theta": 1}}, "{'theta': 1} is no argument of 'learned'"),
        ({"tokenizer": "{changed}", "vocab_size": None}, r"gives other ids than .*, which reads that file alone\.$"),
        ({"pretrained": "{changed}"}, "gives other ids than its tokenizer.json for .* --allow-other-tokens"),
    ],
)
def test_what_does_not_fit_is_refused(ours, bert, order, tmp_path, given, message):
    changed = shutil.copytree(ours, tmp_path / "changed")
    cased = {**json.loads((changed / "tokenizer_config.json").read_text()), "do_lower_case": False}
    (changed / "tokenizer_config.json").write_text(json.dumps({**cased, "tokenizer_class": "BertTokenizer"}))
    places = {"{ours}": str(ours), "{bert}": str(bert), "{changed}": str(changed)}
    given = {name: places.get(str(value), value) for name, value in given.items()}
    with pytest.raises(UserError, match=message):
        started(**order, **given)


class Stopped(Exception):
    """Before a training begins."""


@pytest.mark.parametrize(
    ("labels", "kind", "numbers"),
    [
        (["x", "y"] * 3, Value("int64"), [0, 1, 0, 1, 0]),
        ([["x"], [], ["x", "y"]] * 2, List(Value("float32")), [[1, 0], [0, 0], [1, 1], [1, 0], [0, 0]]),
        ([0.5, 1.5] * 3, Value("float64"), [0.5, 1.5, 0.5, 1.5, 0.5]),
    ],
)
def test_rows_become_token_ids_with_labels_in_the_models_form(tmp_path, monkeypatch, labels, kind, numbers):
    def stop(trainer, **_):
        raise Stopped(trainer.train_dataset)

    monkeypatch.setattr("hf_posenc.data.preparing._CHUNK", 2)
    monkeypatch.setattr("transformers.Trainer.train", stop)
    words = word_tokenizer("abc")
    words.save_pretrained(tmp_path / "words")
    pairs = [("ab"[row % 2], "b c") for row in range(6)]
    rows = [{"text": a, "text_pair": b, "label": label} for (a, b), label in zip(pairs, labels, strict=True)]
    given = {"tokenizer": str(tmp_path / "words"), "vocab_size": None, "max_length": 4, "max_rows": 5}
    with pytest.raises(Stopped) as stopped:
        train(tmp_path / "run", data=write_jsonl(tmp_path / "a.jsonl", rows), **given)
    (encoded,) = stopped.value.args
    expected = words(*map(list, zip(*pairs[:5], strict=True)), truncation=True, max_length=4)
    assert encoded.column_names == [*expected, "labels"]
    assert all(encoded[name][:] == expected[name] for name in expected)
    assert (encoded.features["labels"], encoded["labels"][:]) == (kind, numbers)


# ---- low-rank changes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tupe", pytest.param("rope", marks=pytest.mark.slow)])
def test_merging_changes_no_output_and_a_scheme_is_trained_whole(order, bert, scheme):
    pytest.importorskip("peft")
    data, tokenizer, model, _ = started(**order, pretrained=str(bert), scheme=scheme, lora=True)
    own = [(name, parameter) for name, parameter in model.eval().named_parameters() if ".position." in name]
    assert bool(own) == (scheme != "rope")
    assert all(parameter.requires_grad and "lora" not in name for name, parameter in own)
    assert all("lora" not in name for name, _ in model.classifier.named_parameters())
    assert not model.get_input_embeddings().weight.requires_grad
    assert sum("lora_B" in name for name, _ in model.named_parameters()) == 2 * 4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    batch = DataCollatorWithPadding(tokenizer)([tokenizer(text) for text in data.splits["train"]["text"][:4]])
    expected = model(**batch).logits
    merge_lora(model)
    assert not any("lora" in name for name in model.state_dict())
    torch.testing.assert_close(model(**batch).logits, expected, atol=1e-5, rtol=1e-5)


def test_lora_needs_peft(order, ours, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match="pip install peft"):
        started(**order, lora=True, pretrained=str(ours))


@pytest.mark.parametrize(("given", "rates"), [({"scheme": "t5"}, "30 times for t5"), ({"scheme": "rope"}, None)])
def test_the_rate_of_the_schemes_own_weights_is_said(order, tmp_path, given, rates):
    notes = train(tmp_path / "run", **order, **given, max_steps=1).report.notes
    assert [note for note in notes if "own weights learn" in note] == (
        [] if rates is None else [f"The scheme's own weights learn at another rate: {rates} (--position-rate)."]
    )
