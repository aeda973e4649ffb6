"""GTE and Nomic as they were published, for code of their own: its names of fields and of weights."""

import json

import pytest
import torch
from safetensors.torch import load_file

from hf_posenc import convert
from tests.support.conversion import (
    GTE_SIZES,
    JINA,
    NOMIC,
    NOMIC_SIZES,
    ROWS,
    assert_same,
    assert_same_in_any_batch,
    jina,
    published_gte,
    tiny_source,
    tiny_tokenizer,
)
from tests.support.references import jina_bert


@pytest.mark.parametrize(
    ("task", "factor"), [("feature-extraction", 2.0), ("fill-mask", 8.0), ("text-classification", None)]
)
def test_a_published_gte_is_its_class_with_the_frequencies_of_its_own_code(task, factor, tmp_path):
    theirs = published_gte(tmp_path, task, factor)
    done = convert(tmp_path)
    assert done.report.exact.hidden_max < 1e-5
    assert done.report.keys.new == []
    assert [note for note in done.report.notes if "carried" in note] == []
    # As its code has it: theta times s, and all frequencies over s^(2/d).
    scale = factor or 1.0
    frequencies = (500000 * scale) ** (-torch.arange(0, 8, 2).float() / 8) / scale ** (2 / 8)
    theirs.base_model.rotary_emb.inv_freq = frequencies
    assert_same(done.model, theirs, task)


def test_a_published_nomic_is_its_class_with_the_values_of_the_old_fields(tmp_path):
    theirs = tiny_source(tmp_path, "nomic_bert", rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
    assert "encoder.layers.0.attn.Wqkv.weight" in load_file(tmp_path / "model.safetensors")  # the old names
    (tmp_path / "config.json").write_text(json.dumps({**NOMIC, **NOMIC_SIZES}))
    tiny_tokenizer(tmp_path)
    done = convert(tmp_path)
    assert done.report.exact.hidden_max < 1e-5
    assert done.model.config.max_position_embeddings == 8192
    assert_same(done.model, theirs, "feature-extraction")


def test_a_jinabert_computes_what_its_paper_describes_and_is_said_not_to_be_compared(tmp_path):
    state = jina(tmp_path)
    done = convert(tmp_path)
    assert done.report.keys.new == []
    assert done.report.keys.dropped["pooler.dense.weight"].startswith("the pooler")
    assert {*done.report.keys.used, *done.report.keys.dropped} == set(state)
    assert any("can't be measured" in note for note in done.report.notes)
    expected = torch.cat([jina_bert(state, {**JINA, **GTE_SIZES}, row) for row in ROWS]).float()
    assert_same_in_any_batch(done.model, expected)


def test_heads_of_a_jinabert_are_kept_or_new(tmp_path):
    jina(tmp_path / "mlm", "fill-mask")
    assert type(convert(tmp_path / "mlm").model).__name__ == "PosEncForMaskedLM"
    labels = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "architectures": ["JinaBertForSequenceClassification"]}
    state = jina(tmp_path / "ranker", "text-classification", **labels)
    model = convert(tmp_path / "ranker").model
    assert torch.equal(model.classifier.dense.weight, state["bert.pooler.dense.weight"])
    assert torch.equal(model.classifier.out_proj.weight, state["classifier.weight"])
    jina(tmp_path / "bare")
    report = convert(tmp_path / "bare", head="text-classification").report
    assert report.keys.new == ["classifier.out_proj.weight", "classifier.out_proj.bias"]
