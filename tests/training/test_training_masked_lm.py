"""Masked language models: perplexity that counts each token once, on the same masks in every run."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_posenc.data import train_tokenizer
from hf_posenc.finetuning import make_arguments, train_classifier, train_masked_lm
from hf_posenc.training import MaskedLMTrainingArguments, UserError
from hf_posenc.training.masked_lm import MaskingCollator, mask_once, token_sums, token_weighted_metrics

TEXTS = ["the dog saw the cat that karla fed", "a cat saw herself", "who fed the old dog and the cat that saw it"]


def options(output_dir: Path, **more: Any) -> dict[str, Any]:
    return {
        "dataset_name": "blimp_order",
        "output_dir": str(output_dir),
        "do_train": True,
        "do_eval": True,
        "max_train_samples": 400,
        "max_eval_samples": 100,
        "max_steps": 12,
        "vocab_size": 500,
        "max_seq_length": 48,
        "learning_rate": 3e-3,
        "logging_strategy": "steps",
        "logging_steps": 4,
        "use_cpu": True,
        "disable_tqdm": True,
        **more,
    }


def run(output_dir: Path, **more: Any):
    return train_masked_lm(*make_arguments(MaskedLMTrainingArguments, **options(output_dir, **more)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("mlm") / "run")


def test_the_loss_falls_and_results_stand_beside_the_checkpoint(trained):
    losses = [entry["loss"] for entry in trained.history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.2
    results = json.loads((trained.output_dir / "results.json").read_text())
    assert results["metrics"]["eval_perplexity"] == trained.metrics["eval_perplexity"] < 500
    card = (trained.output_dir / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert "fill_mask(" in card


def test_perplexity_is_exp_of_the_mean_over_all_masked_tokens(trained):
    """By hand, one validation text at a time, from the saved checkpoint."""
    tokenizer = AutoTokenizer.from_pretrained(trained.output_dir)
    model = AutoModelForMaskedLM.from_pretrained(trained.output_dir).eval()
    from hf_posenc.data import read_splits

    data, _, _ = make_arguments(MaskedLMTrainingArguments, **options(trained.output_dir))
    texts = read_splits(data)["validation"].columns["text"][:100]
    encoded = tokenizer(list(texts), truncation=True, max_length=48)
    masked = mask_once(Dataset.from_dict(dict(encoded)), tokenizer, 0.15)
    total, count = 0.0, 0
    for row in masked:
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0].double().log_softmax(-1)
        for place, label in enumerate(row["labels"]):
            if label != -100:
                total, count = total - float(logits[place, label]), count + 1
    assert count == trained.metrics["eval_masked_tokens"]
    assert trained.metrics["eval_perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert trained.metrics["eval_loss"] == trained.metrics["eval_nll"]  # what the best checkpoint is chosen by


def test_validation_masks_are_the_same_in_every_run_and_follow_the_recipe():
    tokenizer = train_tokenizer(TEXTS, vocab_size=80)
    encoded = Dataset.from_dict(dict(tokenizer(TEXTS * 200)))
    first, again = (mask_once(encoded, tokenizer, 0.15) for _ in range(2))
    assert first["input_ids"] == again["input_ids"]
    assert first["labels"] == again["labels"]
    special = set(tokenizer.all_special_ids)
    chosen = kept = masked = eligible = 0
    for before, after, labels in zip(encoded["input_ids"], first["input_ids"], first["labels"], strict=True):
        for old, new, label in zip(before, after, labels, strict=True):
            eligible += old not in special
            if label == -100:
                assert new == old
                continue
            assert label == old
            assert old not in special
            chosen += 1
            masked += new == tokenizer.mask_token_id
            kept += new == old
            assert new == tokenizer.mask_token_id or new not in special
    assert chosen / eligible == pytest.approx(0.15, abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.05)
    assert kept / chosen == pytest.approx(0.1, abs=0.05)


def test_token_weighting_differs_from_averaging_batches():
    logits = torch.randn(2, 4, 7)
    labels = torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100]])
    metrics = token_weighted_metrics(type("P", (), {"predictions": token_sums(logits, labels).numpy()}))
    everything = torch.nn.functional.cross_entropy(logits.view(-1, 7), labels.view(-1))
    assert metrics["nll"] == pytest.approx(everything.item(), rel=1e-6)
    by_row = [torch.nn.functional.cross_entropy(row, label) for row, label in zip(logits, labels, strict=True)]
    assert metrics["nll"] != pytest.approx(float(sum(by_row) / 2), rel=1e-3)
    with pytest.raises(UserError, match="No token of the validation text was masked"):
        token_weighted_metrics(type("P", (), {"predictions": token_sums(logits, labels * 0 - 100).numpy()}))


def test_training_goes_on_from_a_checkpoint_and_evaluation_needs_no_training(trained, tmp_path):
    source = str(trained.output_dir)
    scored = run(tmp_path / "score", model_name_or_path=source, do_train=False)
    assert scored.metrics["eval_perplexity"] == pytest.approx(trained.metrics["eval_perplexity"], rel=1e-6)
    more = run(tmp_path / "more", model_name_or_path=source, max_steps=20)
    assert more.metrics["eval_perplexity"] < trained.metrics["eval_perplexity"]


def test_texts_can_be_joined_into_full_blocks_and_read_from_plain_files(tmp_path):
    lines = [*TEXTS * 30, " ".join(TEXTS * 30)]  # the last one is longer than a block
    (tmp_path / "a.txt").write_text("\n".join(lines))
    files = {"dataset_name": None, "train_file": str(tmp_path / "a.txt"), "validation_file": str(tmp_path / "a.txt")}
    joined = run(tmp_path / "joined", **files, line_by_line=False, max_steps=2)
    apart = run(tmp_path / "apart", **files, max_steps=2)
    tokens = sum(map(len, AutoTokenizer.from_pretrained(joined.output_dir)(lines, truncation=False)["input_ids"]))
    assert joined.summary.examples["train"] == math.ceil(tokens / 48) < apart.summary.examples["train"] == 91
    assert joined.summary.padding_share < 0.2


def test_each_epoch_has_masks_of_its_own(tmp_path, monkeypatch):
    batches, collate = [], MaskingCollator.__call__
    monkeypatch.setattr(
        MaskingCollator, "__call__", lambda *arguments: batches.append(collate(*arguments)) or batches[-1]
    )
    run(tmp_path / "run", do_eval=False, max_train_samples=8, max_steps=2, train_sampling_strategy="sequential")
    first, second = (batch["labels"] for batch in batches)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_an_encoder_trained_as_a_language_model_starts_a_classifier(trained, tmp_path):
    _, _, training = made = make_arguments(
        dataset_name="blimp_order",
        model_name_or_path=str(trained.output_dir),
        output_dir=str(tmp_path / "classifier"),
        do_train=True,
        max_train_samples=32,
        max_steps=1,
        learning_rate=0.0,
        use_cpu=True,
        disable_tqdm=True,
    )
    assert training.do_train
    classifier = train_classifier(*made).model
    with pytest.raises(UserError, match="holds PosEncForSequenceClassification, which is no masked language model"):
        run(tmp_path / "scored", model_name_or_path=str(made[2].output_dir), do_train=False)
    before = trained.model.model.state_dict()
    after = classifier.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_that_diverges_ends_without_weights(tmp_path):
    with pytest.raises(UserError, match=r"Training diverged: after step \d+ .* What is left: no checkpoint"):
        run(tmp_path / "run", learning_rate=1e30, optim="sgd", save_strategy="no", max_train_samples=64, max_steps=5)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mlm_probability": 1.5}, "--mlm-probability 1.5 is out of range"),
        ({"do_predict": True}, "has no labels to predict"),
        ({"do_train": False, "do_eval": False}, "Nothing to do"),
        ({"do_train": False}, "Without --do-train there is no model"),
        ({"position_embedding_type": "rop"}, "Did you mean 'rope'"),
    ],
)
def test_bad_input_is_named(more, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", **more)
