"""`--lora`: low-rank changes of trained weights, merged in all that is saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_harness import prepared, results, train
from transformers import AutoModelForSequenceClassification

from hf_posenc.training import UserError
from hf_posenc.training import lora as lora_module
from hf_posenc.training.lora import has_lora, merge, merged_weights

pytest.importorskip("peft")


@pytest.fixture
def start(tmp_path: Path, order: dict[str, str]) -> Path:
    """A trained checkpoint, with a table of positions."""
    train(tmp_path / "start", **order, position_embedding_type="learned")
    return tmp_path / "start"


def test_what_is_saved_is_an_ordinary_checkpoint_in_which_little_is_trained_whole(
    tmp_path: Path, order: dict[str, str], start: Path
) -> None:
    options = {"model_name_or_path": str(start), "lora": True, "do_eval": True, "save_strategy": "epoch"}
    options |= {"metric_for_best_model": "loss", "greater_is_better": True}  # so that it isn't the last
    result = train(tmp_path / "run", **order, **options, num_train_epochs=2, learning_rate=5e-3)
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tmp_path / "run"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    matrices = {name for name in changed if name.endswith((".query.weight", ".key.weight", ".value.weight"))}
    assert len(matrices) == 3 * 2
    whole = changed - matrices - {name for name in changed if name.endswith("dense.weight")}
    assert any(".position." in name for name in whole)
    assert all(".position." in name or name.startswith("classifier") for name in whole), whole
    assert not has_lora(result.model)
    saved = [tmp_path / "run", *sorted((tmp_path / "run").glob("checkpoint-*"))]
    assert len(saved) == 3
    tokens = result.tokenizer(["she saw himself."], return_tensors="pt")
    scores = []
    for folder in saved:
        model, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        scores.append(model.eval()(**tokens).logits)
    torch.testing.assert_close(scores[0], result.model.eval()(**tokens).logits)
    best = [folder for folder, score in zip(saved[1:], scores[1:], strict=True) if torch.allclose(score, scores[0])]
    assert [folder.name for folder in best] == [results(tmp_path / "run")["best"]["checkpoint"]] == ["checkpoint-10"]
    with pytest.raises(UserError, match="--lora can't resume from"):
        train(tmp_path / "run", **order, **options, resume_from_checkpoint="true")


@pytest.mark.parametrize("scheme", ["tupe", "t5", "rope"])
def test_merging_changes_no_output_and_a_scheme_is_trained_whole(
    tmp_path: Path, order: dict[str, str], scheme: str
) -> None:
    train(tmp_path / "start", **order, position_embedding_type=scheme)
    options = {"model_name_or_path": str(tmp_path / "start"), "lora": True, "config_overrides": None}
    setup = prepared(tmp_path / "unused", **order, **options)
    model = setup.model.eval()
    own = [(name, parameter) for name, parameter in model.named_parameters() if ".position." in name]
    assert bool(own) == (scheme != "rope")
    assert all(parameter.requires_grad and "lora" not in name for name, parameter in own)
    assert all("lora" not in name for name, _ in model.classifier.named_parameters())
    assert not model.get_input_embeddings().weight.requires_grad
    assert sum("lora_B" in name for name, _ in model.named_parameters()) == 2 * 4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    batch = setup.collator([setup.encoded["train"][row] for row in range(4)])
    expected = model(**batch).logits
    weights = {name: value.clone() for name, value in merged_weights(model).items()}
    merge(model)
    torch.testing.assert_close(model(**batch).logits, expected, atol=1e-5, rtol=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value)


def test_lora_needs_trained_weights_and_peft(
    tmp_path: Path, order: dict[str, str], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="a new encoder has none. Give --pretrained"):
        train(tmp_path / "run", **order, lora=True)
    options: dict[str, Any] = {**order, "lora": True, "model_name_or_path": str(start)}
    with pytest.raises(UserError, match="--lora-rank 0 is out of range"):
        train(tmp_path / "run", **options, lora_rank=0)
    monkeypatch.setattr(lora_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install 'hf-posenc"):
        train(tmp_path / "run", **options)
