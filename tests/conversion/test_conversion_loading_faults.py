"""Heads that are kept or made anew, foreign keys, and files that hold something else than they should."""

import pytest
import torch
from conversion_harness import converted, edit, edit_weights, tiny_source
from safetensors.torch import load_file

from hf_posenc.conversion import convert


def _last(model):
    return getattr(model.classifier, "out_proj", model.classifier)


def _classifier(model):
    name = "classifier.out_proj.weight"
    return name if name in model.state_dict() else "classifier.weight"


@pytest.mark.parametrize(
    ("family", "own", "task", "new"),
    [
        ("bert", "token-classification", "text-classification", ["classifier.dense", "classifier.out_proj"]),
        ("bert", "text-classification", "token-classification", ["classifier"]),
        ("bert", "text-classification", "multiple-choice", ["classifier.out_proj"]),
        ("bert", "multiple-choice", "text-classification", ["classifier.out_proj"]),
        ("distilbert", "multiple-choice", "text-classification", ["classifier.dense", "classifier.out_proj"]),
        ("roberta", "text-classification", "multiple-choice", ["classifier.dense", "classifier.out_proj"]),
        ("electra", "text-classification", "token-classification", ["classifier"]),
    ],
)
def test_the_classifier_of_another_task_is_dropped_and_the_new_one_is_listed(family, own, task, new, tmp_path):
    theirs = tiny_source(tmp_path, family, own)
    model, report = converted(tmp_path, head=task)
    assert report.keys.new == [f"{name}.{kind}" for name in new for kind in ("weight", "bias")]
    name = _classifier(theirs)
    assert report.keys.dropped[name] in ("another head", f"the head of {own}; this is {task}")
    assert name not in report.keys.used
    assert _last(model).weight.abs().max() < 0.2  # a random start, not the source's, which was perturbed
    assert report.exact.hidden_max < 1e-5
    assert report.exact.logits_max is None


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("task", ["multiple-choice", "text-classification", "token-classification"])
def test_a_classifier_without_architectures_is_what_it_is_asked_to_be(family, task, tmp_path):
    theirs = tiny_source(tmp_path, family, task)
    edit(tmp_path, architectures=None)
    model, report = converted(tmp_path, head=task, measure=False)
    assert (report.keys.new, report.keys.dropped) == ([], {})
    assert torch.equal(_last(model).weight, load_file(tmp_path / "model.safetensors")[_classifier(theirs)])


def test_a_config_for_other_labels_than_the_classifier_is_refused(tmp_path):
    tiny_source(tmp_path, "bert", "text-classification")
    edit(tmp_path, id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    for task in (None, "text-classification"):
        with pytest.raises(ValueError, match=r"'classifier.weight' has shape \(3, 32\), its config.json says \(2, 32"):
            convert(tmp_path, head=task)


@pytest.mark.parametrize("flag", [False, True])
def test_without_safetensors_the_way_to_a_pickle_is_said(flag, tmp_path):
    tiny_source(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no model\.safetensors") as caught:
        convert(tmp_path, allow_pickle=flag)
    assert ("allow_pickle=True" in str(caught.value)) is not flag


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("bert", "classifier.adapter.weight"),
        ("bert", "bert.pooler.extra.weight"),
        ("bert", "cls.predictions.secret"),
        ("bert", "bert.secret.weight"),
        ("bert", "bert.embeddings.position_ids_extra"),
        ("bert", "qa_outputs.dense.weight"),
        ("bert", "pre_classifier.weight"),
        ("distilbert", "vocab_other.weight"),
        ("roberta", "lm_head.adapter.weight"),
    ],
)
def test_a_key_that_only_begins_like_a_known_one_is_refused(family, name, tmp_path):
    tiny_source(tmp_path, family)
    edit_weights(tmp_path, lambda state: {**state, name: torch.ones(2)})
    with pytest.raises(ValueError, match=f"{name.removeprefix('bert.')!r}, which a {family} model"):
        convert(tmp_path)


def test_the_known_keys_of_other_heads_are_dropped_with_their_reason(tmp_path):
    tiny_source(tmp_path, "roberta")
    heads = ("lm_head.bias", "lm_head.decoder.bias", "classifier.out_proj.weight", "qa_outputs.bias")
    foreign = {**dict.fromkeys(heads, "another head"), "pooler.dense.weight": "the pooler, which only classifiers use"}
    edit_weights(tmp_path, lambda state: {**state, **{name: torch.ones(2) for name in foreign}})
    report = convert(tmp_path, measure=False).report
    assert {name: report.keys.dropped[name] for name in foreign} == foreign


def test_a_missing_shard_is_named(tmp_path):
    theirs = tiny_source(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"{lost.name}. is damaged or cut short .No such file"):
        convert(tmp_path)


@pytest.mark.parametrize("content", [[torch.ones(2)], torch.ones(2), {0: torch.ones(2)}, "text", None])
def test_a_pickle_that_holds_no_weights_by_name_is_refused(content, tmp_path):
    tiny_source(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged, or holds more than weights"):
        convert(tmp_path, allow_pickle=True)


DATA_PARALLEL = [
    *((family, "fill-mask") for family in ("bert", "roberta", "electra", "nomic_bert", "gte", "jina_embeddings_v3")),
    ("distilbert", "text-classification"),
]


@pytest.mark.parametrize(("family", "task"), DATA_PARALLEL)
def test_keys_that_transformers_does_not_understand_are_measured_under_its_names(family, task, tmp_path):
    tiny_source(tmp_path, family, task)
    edit_weights(tmp_path, lambda state: {f"module.{key}": value for key, value in state.items()})
    report = convert(tmp_path).report
    assert report.exact.hidden_max < 1e-5
    assert report.exact.logits_max < 1e-5
