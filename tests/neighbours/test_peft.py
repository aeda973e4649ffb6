"""PEFT: LoRA on `query` and `value`, beside it the classifier or the positions; saved, loaded and merged."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc import PosEncForSequenceClassification
from tests.support.remote_code import BATCH, HEAD, assert_same_outputs, outputs, tiny_model

peft = pytest.importorskip("peft")

LABELS = torch.tensor([0, 1, 2, 0])


# With the dense layer of BERT's classifiers, which PEFT must save beside the last one.
WITH_DENSE = {"classifier_hidden_act": "tanh"}


def adapted(scheme: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=4, **options)
    return peft.get_peft_model(tiny_model(scheme, HEAD, **WITH_DENSE), config)


def train(model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(**BATCH, labels=LABELS).loss.backward()
        optimizer.step()
    model.eval()


def changed(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("scheme", ["learned", "rope", "t5", "tupe"])
def test_only_the_adapters_the_classifier_and_what_is_asked_for_are_trained(scheme):
    model = adapted(scheme)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(model)
    names = changed(before, model)
    assert names
    assert all("lora_" in name or "classifier.modules_to_save" in name for name in names), names
    assert {name.split(".")[-4] for name in names if "lora_" in name} == {"query", "value"}
    # Two layers; the positions of tupe have a `query` of their own.
    assert sum("lora_B" in name for name in names) == (5 if scheme == "tupe" else 4)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (peft.LoraConfig, {"query", "value"}),
        (peft.LoHaConfig, {"query", "value"}),
        (peft.IA3Config, {"key", "value", "output"}),
    ],
)
def test_a_config_without_targets_takes_those_of_bert(kind, names):
    config = kind(task_type="SEQ_CLS")
    model = peft.get_peft_model(tiny_model("rope", HEAD), config)
    assert {name.rpartition(".")[2] for name in model.targeted_module_names} == names
    assert kind is not peft.IA3Config or config.feedforward_modules == {"output"}


@pytest.mark.parametrize("modules", [None, ["position", "classifier"]], ids=["classifier", "positions"])
def test_an_adapter_is_saved_loaded_and_merged(tmp_path, modules):
    model = adapted("learned", **({"modules_to_save": modules} if modules else {}))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(model)
    assert any("position.modules_to_save" in name for name in changed(before, model)) == bool(modules)
    expected = outputs_of(model)
    model.save_pretrained(tmp_path / "adapter")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {p.name for p in (tmp_path / "adapter").iterdir()}
    base = tiny_model("learned", HEAD, **WITH_DENSE)
    with torch.no_grad():  # the head comes from the adapter alone
        for parameter in base.classifier.parameters():
            parameter.zero_()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(outputs_of(loaded), expected)
    merged_model = loaded.merge_and_unload()
    assert type(merged_model) is PosEncForSequenceClassification
    torch.testing.assert_close(outputs_of(merged_model), expected, atol=1e-5, rtol=1e-5)


def outputs_of(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(**BATCH).logits


def test_a_replicated_layer_keeps_its_origins_part_of_the_scheme():
    model = tiny_model("relative_key", HEAD).eval()
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList([layers[0], layers[1], layers[1]])
    expected = outputs(model, BATCH)
    model.model.layers = layers
    replicated = peft.get_peft_model(model, peft.LoraConfig(layer_replication=[[0, 2], [1, 2]])).eval()
    assert len(replicated.base_model.model.model.layers) == 3
    assert_same_outputs(outputs(replicated.base_model.model, BATCH), expected)


@pytest.mark.parametrize("attention", ["sdpa", "owner/flash-kernel"])
@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(target_modules=["query"], init_lora_weights=False),
        peft.RoadConfig(target_modules=["query"], init_weights=False, group_size=2),
    ],
    ids=lambda config: type(config).__name__,
)
def test_adapters_by_row_give_each_padded_row_what_its_adapter_gives_alone(config, attention, monkeypatch):
    def unpadded(*qkv, **options):
        raise AssertionError("padding would be attended to")

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "owner/flash-kernel", unpadded)
    model = peft.get_peft_model(tiny_model("rope", HEAD), config).eval()
    model.add_adapter("other", config)
    names = ["default", "other"] * (len(LABELS) // 2)
    model.config._attn_implementation = attention
    together = model(**BATCH, adapter_names=names).logits
    model.config._attn_implementation = "sdpa"
    for row, name in enumerate(names):
        model.set_adapter(name)
        torch.testing.assert_close(together[row], model(**BATCH).logits[row], atol=1e-5, rtol=1e-5)


def test_positions_of_an_adapter_are_refused_where_each_row_names_its_own():
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["position"])
    model = peft.get_peft_model(tiny_model("learned", HEAD, unpad_inputs=False), config).eval()
    model.add_adapter("other", config)
    assert model(**BATCH).logits.isfinite().all()
    with pytest.raises(ValueError, match="leave 'position' out of modules_to_save"):
        model(**BATCH, adapter_names=["default", "other"] * (len(LABELS) // 2))
