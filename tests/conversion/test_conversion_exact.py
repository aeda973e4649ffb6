"""What a converted model computes is what the source computes, and back again, for every family and head."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertModel,
    DistilBertModel,
    ModernBertForSequenceClassification,
)

from hf_posenc import PosEncForSequenceClassification, UserError, convert
from hf_posenc.conversion.families import FAMILIES
from tests.support.common import others_slow
from tests.support.conversion import (
    CASES,
    NOMIC_OLD,
    ROWS,
    SIZES,
    assert_same,
    batch,
    converted,
    edit,
    edit_weights,
    exported,
    packed,
    sentences,
    tiny_source,
    tiny_tokenizer,
)

GATED = ["nomic_bert", "gte"]


# Names differ by family in these two heads; the other families name them like RoBERTa.
NAMED_APART = ("fill-mask", "text-classification")
LIKE_ROBERTA = ("xlm-roberta", "camembert")
QUICK = [
    (family, task) for family, task in CASES if family == "bert" or (task in NAMED_APART and family not in LIKE_ROBERTA)
]


@pytest.mark.parametrize(("family", "task"), others_slow(CASES, *QUICK))
def test_every_head_of_every_family_equals_transformers_own_and_goes_back(family, task, tmp_path):
    theirs = tiny_source(tmp_path / "source", family, task)
    if task == "multiple-choice" and getattr(theirs.base_model, "pooler", theirs) is None:
        pytest.skip(f"this transformers gives {family}'s multiple-choice head no pooler, and can't run it")
    pad = theirs.config.pad_token_id
    model, report = converted(tmp_path / "source", tmp_path / "out")
    assert report.to_scheme == FAMILIES[family].scheme
    assert report.keys.new == []
    assert report.exact.hidden_max < 1e-5
    assert (report.exact.logits_max is None) == (task == "feature-extraction")
    assert_same(model, theirs, task, pad)
    loaded = type(model).from_pretrained(tmp_path / "out")
    assert_same(loaded, theirs, task, pad)
    if task in ("text-classification", "token-classification"):
        assert loaded.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    back = exported(tmp_path / "out", family)
    back.save_pretrained(tmp_path / "back")
    assert type(back) is type(theirs)
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert_same(again, theirs, task, pad)


YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SHAPES = [
    {"num_attention_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    {"num_attention_heads": 8, "type_vocab_size": 1},
    {"hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 3, "type_vocab_size": 3},
    {"vocab_size": 128, "pad_token_id": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-5},
    {"rope_parameters": YARN},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}},
]


LOCAL = {"rope_type": "default", "rope_theta": 50.0}
MODERN = [
    {},
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 7, "local_attention": 2},
    {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    {"num_hidden_layers": 2, "norm_bias": True, "classifier_bias": True},
    {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3, "pad_token_id": 3, "norm_eps": 1e-3},
    {"num_hidden_layers": 4, "rope_parameters": {"full_attention": YARN, "sliding_attention": LOCAL}},
]
BODIES = [*((family, shape) for family in GATED for shape in SHAPES), ("gte", {"type_vocab_size": 0})]
BODIES += [("modernbert", shape) for shape in MODERN]
WIDE = {"hidden_size": 48, "num_attention_heads": 3, "layer_norm_eps": 1e-3}
ABSOLUTE = {"position_embedding_type": "absolute", "emb_layer_norm_before": True}
ESM = [
    {},
    {"token_dropout": False, "mask_token_id": None},
    {"emb_layer_norm_before": True},
    {**WIDE, "rope_theta": 500.0},
    ABSOLUTE,
    WIDE,
]
BODIES += [("esm", shape) for shape in ESM]
BODIES += [("eurobert", shape) for shape in ({}, *SHAPES[4:], {"hidden_size": 48, "num_attention_heads": 3})]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "shape"), others_slow(BODIES, *BODIES[::3]))  # of each family some
def test_a_gated_encoder_of_any_shape_is_exact_in_any_batch_and_goes_back_byte_for_byte(family, shape, tmp_path):
    task = "token-classification" if family == "eurobert" else "fill-mask"
    theirs = tiny_source(tmp_path / "source", family, task, **shape)
    model, report = converted(tmp_path / "source", tmp_path / "out")
    assert report.exact.hidden_max < 1e-5
    assert report.keys.new == []
    model = type(model).from_pretrained(tmp_path / "out").eval()
    right = torch.stack(batch(theirs.config.pad_token_id))
    left = right.gather(2, right[1].argsort(dim=1, stable=True).expand_as(right))
    wide = torch.nn.functional.pad(right, (0, -right.shape[-1] % 8))  # to a multiple of 8
    for ids, mask in (right, left, wide):
        inputs = {"input_ids": ids, "attention_mask": mask}
        if count := getattr(theirs.config, "type_vocab_size", 0):
            inputs["token_type_ids"] = (torch.arange(ids.shape[1]) % count).expand_as(ids)
        with torch.no_grad():
            got, expected = (each(**inputs, output_hidden_states=True) for each in (model, theirs))
        for a, b in zip((got.logits, *got.hidden_states), (expected.logits, *expected.hidden_states), strict=True):
            torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        alone = torch.cat([theirs(row[None]).logits[0] for row in ROWS])
        torch.testing.assert_close(model(**packed(ROWS)).logits[0], alone, atol=1e-5, rtol=1e-5)
    exported(tmp_path / "out", family).save_pretrained(tmp_path / "back")
    both = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("source", "back")]
    assert both[0] == both[1]
    configs = [type(theirs.config).from_pretrained(tmp_path / folder).to_dict() for folder in ("source", "back")]
    different = {name for name, value in configs[0].items() if configs[1][name] != value}
    assert different <= {"_name_or_path", "rope_parameters", "classifier_pooling"}  # ours says the defaults too
    own, again = (config.get("rope_parameters", {}) for config in configs)
    for kind in ("full_attention", "sliding_attention") if family == "modernbert" else ():
        assert own.pop(kind).items() <= again.pop(kind).items()
    assert own.items() <= again.items()


def test_a_modernbert_whose_decoder_has_no_bias_gets_one_of_zero(tmp_path):
    theirs = tiny_source(tmp_path / "source", "modernbert", "fill-mask", decoder_bias=False)
    model = convert(tmp_path / "source", tmp_path / "out").model
    assert not model.lm_head.decoder.bias.any()
    assert_same(model, theirs, "fill-mask", pad=0)
    assert_same(exported(tmp_path / "out"), theirs, "fill-mask", pad=0)


def test_layers_of_a_modernberts_classifier_are_no_masked_lm_head(tmp_path):
    config = tiny_source(tmp_path, "modernbert", decoder_bias=False).config
    ModernBertForSequenceClassification(config).save_pretrained(tmp_path)
    report = convert(tmp_path, head="fill-mask").report
    layers = {"lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"}
    assert {name.rpartition(".")[0] for name in report.keys.new} == layers
    assert report.keys.dropped["head.dense.weight"] == "the head of another task; this is fill-mask"
    report = convert(tmp_path, head="token-classification").report
    names = ("classifier.bias", "classifier.weight", "head.dense.weight", "head.norm.weight")
    assert report.keys.dropped == dict.fromkeys(names, "another head")
    report = convert(tmp_path).report
    assert (report.keys.dropped, report.keys.new) == ({}, [])


def test_a_head_that_computes_something_else_than_its_class_is_refused(tmp_path, monkeypatch):
    tiny_source(tmp_path / "source", "bert", "text-classification")
    monkeypatch.setitem(FAMILIES, "bert", replace(FAMILIES["bert"], dense="gelu"))
    with pytest.raises(UserError, match="a head for text-classification that PosEnc's doesn't equal: .* up to 0"):
        convert(tmp_path / "source", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_account_holds_every_key_of_the_source(tmp_path):
    BertForPreTraining(BertConfig(**SIZES)).save_pretrained(tmp_path)
    model, report = converted(tmp_path)
    assert type(model).__name__ == "PosEncForMaskedLM"
    names = {key.removeprefix("bert.") for key in load_file(tmp_path / "model.safetensors")}
    assert {*report.keys.used, *report.keys.dropped} >= names
    assert report.keys.dropped["cls.seq_relationship.weight"] == "another head"
    assert report.keys.dropped["pooler.dense.weight"] == "the pooler, which only classifiers use"


def test_an_untied_decoder_stays_untied(tmp_path):
    theirs = tiny_source(tmp_path, "bert", "fill-mask", tie_word_embeddings=False)
    model = convert(tmp_path, tmp_path / "out").model
    assert model.config.tie_word_embeddings is False
    assert_same(type(model).from_pretrained(tmp_path / "out"), theirs, "fill-mask")


def test_a_bare_encoder_becomes_a_classifier_with_its_pooler(tmp_path):
    tiny_source(tmp_path, "bert", "feature-extraction")
    model, report = converted(tmp_path, head="text-classification")
    assert isinstance(model, PosEncForSequenceClassification)
    assert report.keys.new == ["classifier.out_proj.weight", "classifier.out_proj.bias"]
    assert torch.equal(model.classifier.dense.weight, load_file(tmp_path / "model.safetensors")["pooler.dense.weight"])
    again = convert(tmp_path, head="text-classification").model
    assert torch.equal(model.classifier.out_proj.weight, again.classifier.out_proj.weight)


def test_the_tokenizer_comes_along_and_its_length_follows(tmp_path):
    tiny_source(tmp_path / "source")
    before = tiny_tokenizer(tmp_path / "source", model_max_length=10**30)
    convert(tmp_path / "source", tmp_path / "out")
    after = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert after(sentences(3))["input_ids"] == before(sentences(3))["input_ids"]
    assert after.model_max_length == 40
    assert json.loads((tmp_path / "out/conversion.json").read_text())["exact"]["texts"].startswith("blimp_order")


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_bert_is_loaded_with_its_relative_positions_and_says_so(kind, tmp_path):
    golden = load_file(Path(__file__).parents[1] / "peers" / f"bert_{kind}.safetensors")
    part = {
        name: {k.removeprefix(f"{name}."): v for k, v in golden.items() if k.startswith(f"{name}.")}
        for name in ("weight", "input", "output")
    }
    save_file(part["weight"], tmp_path / "model.safetensors", {"format": "pt"})
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_labels": 3}
    config = BertConfig(num_hidden_layers=2, max_position_embeddings=12, **sizes)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    edit(tmp_path, position_embedding_type=kind)
    model, report = converted(tmp_path)
    assert report.from_scheme == kind
    assert "transformers 5 ignores that silently" in report.notes[0]
    assert report.notes[-1].startswith("How exact it is can't be measured")
    assert "doesn't add" in report.keys.dropped["embeddings.position_embeddings.weight"]
    inputs = part["input"]
    mine = model(inputs["ids"], attention_mask=inputs["mask"], token_type_ids=inputs["types"])
    torch.testing.assert_close(mine.logits, part["output"]["logits"], atol=1e-5, rtol=1e-5)


def test_a_distilbert_encoder_goes_into_bert_too(tmp_path):
    theirs = tiny_source(tmp_path / "source", "distilbert")
    convert(tmp_path / "source", tmp_path / "out", measure=False)
    for family, kind in (("bert", BertModel), (None, DistilBertModel)):
        back = exported(tmp_path / "out", family)
        assert isinstance(back, kind)
        assert_same(back, theirs, "feature-extraction")


def old_names(folder, theirs):
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    counter = {"bert.embeddings.position_ids": torch.arange(40)[None]}
    pattern = "|".join(names)
    edit_weights(
        folder,
        lambda state: {
            **{re.sub(pattern, lambda name: names[name[0]], f"bert.{key}"): state[key] for key in state},
            **counter,
        },
    )


def prefix_of_gtes_own_code(folder, theirs):
    edit_weights(folder, lambda state: {re.sub("^gte", "new", key): value for key, value in state.items()})


def several_files(folder, theirs):
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()


def what_is_so_anyway(folder, theirs):
    edit(folder, attention_bias=True, mlp_bias=True, causal=False)


def a_field_that_its_class_lacks(folder, theirs):
    edit(folder, type_vocab_size=2)


def fields_of_nomics_own_code(folder, theirs):
    edit(folder, **NOMIC_OLD)


@pytest.mark.parametrize(
    ("family", "task", "change"),
    [
        ("bert", "feature-extraction", old_names),
        ("gte", "fill-mask", prefix_of_gtes_own_code),
        ("bert", "fill-mask", several_files),
        ("bert", "feature-extraction", what_is_so_anyway),
        ("gte", "feature-extraction", what_is_so_anyway),
        ("modernbert", "feature-extraction", a_field_that_its_class_lacks),
        ("nomic_bert", "feature-extraction", fields_of_nomics_own_code),
    ],
)
def test_files_that_were_written_elsewhere_are_understood(family, task, change, tmp_path):
    theirs = tiny_source(tmp_path, family, task)
    change(tmp_path, theirs)
    model, report = converted(tmp_path, measure=False)
    assert_same(model, theirs, task, theirs.config.pad_token_id)
    assert change is not old_names or "counter" in report.keys.dropped["embeddings.position_ids"]
