"""ESM-2 and EuroBERT as they were published: exact in any batch, and what the body lacks is refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, EsmTokenizer

from hf_posenc import UserError, convert, export
from tests.support.conversion import (
    ROWS,
    assert_same,
    assert_same_in_any_batch,
    edit,
    edit_weights,
    exported,
    published,
    tiny_source,
)

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
ESM = {**published("esm2_t6_8M_UR50D"), **SIZES, "vocab_size": 101, "mask_token_id": 31}
EUROBERT = {**published("EuroBERT-210m"), **SIZES, "vocab_size": 101, "num_key_value_heads": 4, "pad_token_id": 1}
FREQUENCIES = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
AMINO_ACIDS = "LAGVSERTIDPKQNFYMHWC"


def published_esm(folder, **fields):
    """A tiny ESM-2 whose file holds what the published ones do, with frequencies rounded to 16 bits."""
    theirs = tiny_source(folder, "esm", "fill-mask", layer_norm_eps=1e-5)
    rounded = theirs.esm.rotary_embeddings.inv_freq.half().float()
    theirs.esm.rotary_embeddings.inv_freq = rounded

    def old_names(state):
        kept = {key: value for key, value in state.items() if "inv_freq" not in key}
        counters = {"esm.embeddings.position_ids": torch.arange(42)[None]}
        table = {"esm.embeddings.position_embeddings.weight": torch.ones(42, 32)}
        return {**kept, **counters, **table, **{FREQUENCIES.format(layer): rounded.clone() for layer in range(2)}}

    edit_weights(folder, old_names)
    (folder / "config.json").write_text(json.dumps({**ESM, **fields}))
    return theirs


def test_a_published_esm_is_its_class_in_any_batch_with_the_frequencies_that_it_holds_and_goes_back(tmp_path):
    theirs = published_esm(tmp_path / "source")
    done = convert(tmp_path / "source", tmp_path / "out")
    config = done.model.config
    assert (config.norm_position, config.token_dropout, config.max_position_embeddings) == ("pre_only", 31, 1026)
    assert config.rope_parameters["rope_type"] == "longrope"
    assert done.report.notes == ["Its RoPE has stored frequencies, rounded to 16 bits: kept, as factors of longrope."]
    assert done.report.keys.new == []
    assert done.report.keys.dropped["contact_head.regression.weight"] == "another head"
    assert "doesn't add" in done.report.keys.dropped["embeddings.position_embeddings.weight"]
    assert_same(done.model, theirs, "fill-mask", pad=1)
    alone = torch.cat([theirs(row[None]).logits[0] for row in ROWS])
    assert_same_in_any_batch(done.model, alone, pad=1)
    back = exported(tmp_path / "out")
    assert back.config.model_type == "esm"
    difference = back.esm.rotary_embeddings.inv_freq / theirs.esm.rotary_embeddings.inv_freq - 1
    assert difference.abs().max() < 3e-7
    assert_same(back, theirs, "fill-mask", pad=1)
    edit(tmp_path / "source", rope_theta=5000.0)
    assert "that aren't those of rope_theta=5000.0 in its config.json" in convert(tmp_path / "source").report.notes[0]


def test_a_published_eurobert_gives_its_encoder_and_its_bare_head_is_left(tmp_path):
    theirs = tiny_source(
        tmp_path, "eurobert", "fill-mask", rope_parameters={"rope_type": "default", "rope_theta": 250000}
    )
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(EUROBERT))
    with pytest.raises(
        UserError, match="holds EuroBertForMaskedLM, whose head PosEnc doesn't have.*feature-extraction"
    ):
        convert(tmp_path)
    done = convert(tmp_path, head="feature-extraction")
    config = done.model.config
    assert (config.norm_type, config.norm_position, config.hidden_act) == ("rms_norm", "pre_only", "silu")
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (8192, 250000)
    assert done.report.keys.dropped == {"lm_head.weight": "another head"}
    assert {*done.report.keys.used, "lm_head.weight"} == {name.removeprefix("model.") for name in stored}
    assert done.report.exact.hidden_max < 1e-5
    assert [note for note in done.report.notes if "carried" in note] == []
    assert_same(done.model, theirs.model, "feature-extraction", pad=1)
    classifier = convert(tmp_path, head="text-classification").model
    assert (classifier.config.classifier_pooling, classifier.config.classifier_hidden_act) == ("mean", "gelu")


def test_a_tokenizer_of_amino_acids_travels_and_an_export_to_a_graph_says_what_it_needs(tmp_path):
    published_esm(tmp_path / "source", token_dropout=False)
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *AMINO_ACIDS, "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    theirs = EsmTokenizer(str(tmp_path / "vocab.txt"))
    theirs.save_pretrained(tmp_path / "source")
    done = convert(tmp_path / "source", tmp_path / "out")
    assert "there is no tokenizer.json" in done.report.tokenizer
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("MKTAYIAK", "MK<mask>A", "mkt X"):
        assert again(text)["input_ids"] == theirs(text)["input_ids"]
    with pytest.raises(
        UserError, match="EsmTokenizer has no tokenizer.json, which servers read.*(--to native|to='native') needs none"
    ):
        export(tmp_path / "out", tmp_path / "graph", to="onnx")
    export(tmp_path / "out", tmp_path / "native", to="native")
    assert AutoTokenizer.from_pretrained(tmp_path / "native")("MKT")["input_ids"] == theirs("MKT")["input_ids"]
    assert json.loads((tmp_path / "native/config.json").read_text())["mask_token_id"] == theirs.mask_token_id
    convert(tmp_path / "source", tmp_path / "answers", head="question-answering")
    with pytest.raises(UserError, match="head for question-answering.*takes it as it is, if its folder has a tok"):
        exported(tmp_path / "answers")
