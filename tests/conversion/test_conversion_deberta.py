"""DeBERTas, from v1 to v3, under their published names: exact with any of their options, in any batch, and back."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoTokenizer, DebertaV2Config, DebertaV2ForMaskedLM

from hf_posenc import UserError, convert
from hf_posenc.exporting.native import to_native
from tests.support.conversion import (
    DISENTANGLED,
    ROWS,
    assert_same,
    assert_same_in_any_batch,
    batch,
    edit,
    edit_weights,
    exported,
    packed,
    published,
    sentences,
    tiny_source,
)

SHRUNK = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
SHRUNK |= {"num_attention_heads": 4, "attention_head_size": 8}


def test_the_published_configuration_says_what_the_scheme_computes(tmp_path):
    fields = {**published("deberta-v3-base"), **SHRUNK}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    theirs = DebertaV2ForMaskedLM(DebertaV2Config(**fields, legacy=False))
    theirs.save_pretrained(tmp_path / "made")
    (tmp_path / "made/model.safetensors").rename(tmp_path / "model.safetensors")
    model = convert(tmp_path).model
    assert model.config.position_embedding_type == "deberta"
    assert model.config.position_embedding_kwargs == {
        "terms": "both",
        "max_distance": 512,
        "position_buckets": 256,
        "share_att_key": True,
        "norm_eps": 1e-7,
        "dropout": 0.1,
        "std": 0.02,
    }
    names = ("norm_position", "type_vocab_size", "layer_norm_eps", "pad_token_id", "max_position_embeddings")
    assert [getattr(model.config, name) for name in names] == ["post", 0, 1e-7, 0, 512]
    assert {name for name in model.state_dict() if name.startswith("position.")} == {
        *("position.embedding.weight", "position.norm.weight", "position.norm.bias")
    }


SHAPES = [
    *(("deberta-v2", shape) for shape in ({}, {"share_att_key": False}, {"norm_rel_ebd": "none"})),
    ("deberta-v2", {"position_buckets": -1, "pos_att_type": "c2p"}),
    ("deberta-v2", {"max_relative_positions": 12, "pos_att_type": ["p2c"], "share_att_key": False}),
    ("deberta-v2", {"position_biased_input": True, "type_vocab_size": 2}),
    ("deberta-v2", {"hidden_size": 48, "num_attention_heads": 3, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    ("deberta", {}),
    ("deberta", {"max_relative_positions": 8, "pos_att_type": "c2p", "position_biased_input": True}),
    ("deberta", {"num_attention_heads": 2, "pos_att_type": ["p2c"], "type_vocab_size": 2}),
]


@pytest.mark.parametrize(("family", "shape"), SHAPES)
def test_a_deberta_of_any_shape_is_exact_in_any_batch_with_its_gradients_and_goes_back(family, shape, tmp_path):
    theirs = tiny_source(tmp_path / "source", family, "fill-mask", **shape)
    conversion = convert(tmp_path / "source", tmp_path / "out")
    assert conversion.report.exact.hidden_max < 1e-5
    model = conversion.model
    alone = torch.cat([theirs(row[None]).logits[0] for row in ROWS])
    assert_same_in_any_batch(model, alone)
    mine = model(**packed(ROWS)).logits[0]
    weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(0)) / mine.numel()
    for logits in (mine, alone):
        (logits * weight).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    own = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    pairs = {"model.position.embedding.weight": "deberta.encoder.rel_embeddings.weight"}
    if "learned" in model.config.position_embedding_type:
        pairs = {name.replace("position.", "position.deberta."): other for name, other in pairs.items()}
    pairs["model.layers.0.output.weight"] = "deberta.encoder.layer.0.output.dense.weight"
    if family == "deberta-v2":
        pairs["model.layers.1.attention.key.weight"] = "deberta.encoder.layer.1.attention.self.key_proj.weight"
    for ours, name in pairs.items():
        torch.testing.assert_close(gradients[ours], own[name], atol=1e-6, rtol=1e-4)
    back = exported(tmp_path / "out")
    assert type(back) is type(theirs)
    state = theirs.state_dict()
    assert {name for name, value in back.state_dict().items() if not torch.equal(value, state[name])} == set()
    same = {"relative_attention", "pos_att_type", "position_biased_input", "pooler_hidden_act", "type_vocab_size"}
    assert {name for name in same if getattr(back.config, name) != getattr(theirs.config, name)} == set()


@pytest.mark.parametrize("family", DISENTANGLED)
@pytest.mark.parametrize("task", ["question-answering", "text-classification"])
def test_a_pooler_that_only_classifiers_have_is_no_obstacle_to_other_heads(family, task, tmp_path):
    tiny_source(tmp_path, family, task, pooler_hidden_act="tanh")
    head = "feature-extraction" if task == "text-classification" else None
    report = convert(tmp_path, head=head).report
    assert report.exact.hidden_max < 1e-5
    assert (report.exact.logits_max is None) == (head is not None)


def published_names(state):
    """A file as Microsoft's own code wrote it."""
    names = {"cls.predictions.bias": "lm_predictions.lm_head.bias"}
    names |= {
        f"cls.predictions.transform.{part}.{kind}": f"lm_predictions.lm_head.{part}.{kind}"
        for part in ("dense", "LayerNorm")
        for kind in ("weight", "bias")
    }
    more = {"mask_predictions.dense.weight": torch.ones(32, 32), "mask_predictions.classifier.bias": torch.ones(1)}
    more["deberta.embeddings.position_embeddings.weight"] = torch.ones(40, 32)
    kept = {key: value for key, value in state.items() if "decoder" not in key}
    return {**{names.get(key, key): value for key, value in kept.items()}, **more}


@pytest.mark.parametrize("family", DISENTANGLED)
def test_a_published_files_head_is_found_by_its_names_and_every_weight_is_accounted_for(family, tmp_path):
    theirs = tiny_source(tmp_path, family, "fill-mask")
    edit_weights(tmp_path, published_names)
    edit(tmp_path, architectures=None)
    encoder = convert(tmp_path, measure=False)
    assert type(encoder.model).__name__ == "PosEncModel"
    done = convert(tmp_path, head="fill-mask")
    assert done.report.keys.new == []
    assert done.report.exact.logits_max < 1e-5
    assert_same(done.model, theirs, "fill-mask")
    stored = {name.removeprefix("deberta.") for name in load_file(tmp_path / "model.safetensors")}
    for report in (encoder.report, done.report):
        assert {*report.keys.used, *report.keys.dropped} >= {name for name in stored if "lm_" not in name}
        assert report.keys.dropped["mask_predictions.dense.weight"] == "another head"
        assert "doesn't add" in report.keys.dropped["embeddings.position_embeddings.weight"]
    assert encoder.report.keys.dropped["lm_predictions.lm_head.bias"] == "another head"


def test_lora_on_the_key_acts_on_positions_too_as_in_transformers(tmp_path):
    theirs = tiny_source(tmp_path, "deberta-v2")
    mine = convert(tmp_path, measure=False).model
    tuned = []
    for model, target in ((mine, "key"), (theirs, "key_proj")):
        torch.manual_seed(0)
        tuned.append(get_peft_model(model, LoraConfig(r=4, target_modules=[target], init_lora_weights=False)).eval())
    ids, mask = batch()
    with torch.no_grad():
        got, expected = (each(ids, attention_mask=mask).last_hidden_state[mask.bool()] for each in tuned)
        with tuned[0].disable_adapter():
            assert (tuned[0](ids, attention_mask=mask).last_hidden_state[mask.bool()] - got).abs().max() > 1e-2
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_first_version_whose_keys_have_learned_biases_goes_into_the_second(tmp_path):
    tiny_source(tmp_path / "source", "deberta", "text-classification")
    model = convert(tmp_path / "source", tmp_path / "out").model
    torch.nn.init.normal_(model.model.position.keys[1].bias)
    with pytest.raises(UserError, match=r"biases of keys that aren't zero, such as .* \(deberta has none\)"):
        to_native(model, "deberta")
    back = to_native(model)[0]
    assert back.config.model_type == "deberta-v2"
    assert_same(back, model.eval(), "text-classification")


def test_under_rope_it_keeps_its_weights_and_its_logits_scale(tmp_path):
    tiny_source(tmp_path, "deberta-v2")
    done = convert(tmp_path, scheme="rope")
    assert done.model.config.rope_parameters["rope_type"] == "default"
    factor = next(line["factor"] for line in done.report.carried if "factor" in line)
    assert factor == pytest.approx(3**-0.5)
    assert done.report.before.distance < 1


def spm_vocabulary(folder):
    """Writes a SentencePiece vocabulary as DeBERTa-v3 has it, and returns its processor."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (folder / "texts").write_text("\n".join(sentences(400)))
    pieces = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "texts"), model_prefix=str(folder / "spm"), vocab_size=43, minloglevel=2, **pieces, **names
    )
    for name in ("texts", "spm.vocab"):
        (folder / name).unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def test_a_tokenizer_of_a_sentencepiece_file_alone_gives_its_ids_and_travels(tmp_path, monkeypatch):
    tiny_source(tmp_path / "source", "deberta-v2")
    pieces = spm_vocabulary(tmp_path / "source")
    (tmp_path / "source/tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    done = convert(tmp_path / "source", tmp_path / "out")
    assert "there is no tokenizer.json" in done.report.tokenizer
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in sentences(20, seed=1):
        assert again(text)["input_ids"] == [1, *pieces.encode(text), 2]
    assert again.convert_tokens_to_ids("[MASK]") == 43
    monkeypatch.setattr("hf_posenc.checkpoints.tokenizers.is_sentencepiece_available", lambda: False)
    with pytest.raises(UserError, match="spm.model.*pip install sentencepiece protobuf"):
        convert(tmp_path / "source")
