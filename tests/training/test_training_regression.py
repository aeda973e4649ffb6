"""A regression answers in the units of its data, whatever they are, and learns as if they were standard units."""

import logging
import random
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from training_harness import prepared, read_jsonl, train, write_csv
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    pipeline,
)

from hf_posenc.conversion import convert
from hf_posenc.data.labels import standard_units
from hf_posenc.training import ClassificationLoss, TrainingResult, UserError

WORTH = {"shed": -1.5, "hut": -1.0, "flat": -0.5, "house": 0.5, "villa": 1.0, "castle": 1.5}
OPTIONS: dict[str, Any] = {"task": "regression", "learning_rate": 3e-3, "num_train_epochs": 4, "bf16": False}


def prices(count: int, seed: int, mean: float = 1000.0, std: float = 200.0) -> list[dict[str, Any]]:
    """Texts of three words and what they are worth together."""
    draw = random.Random(seed)
    texts = [draw.choices(list(WORTH), k=3) for _ in range(count)]
    return [{"text": " ".join(words), "label": mean + std * sum(WORTH[word] for word in words)} for words in texts]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    folder = tmp_path_factory.mktemp("prices")
    files = {"train_file": write_csv(folder / "train.csv", prices(500, 0))}
    files["test_file"] = write_csv(folder / "test.csv", prices(100, 1))
    return train(folder / "run", **files, **OPTIONS, do_predict=True)


def test_prices_are_learned_far_better_than_by_their_mean(run: TrainingResult) -> None:
    assert run.summary.problem_type == "regression"
    assert run.assessment is not None
    assert run.metrics["test_mse"] < 0.1 * run.assessment.baselines["majority"]
    assert run.metrics["test_pearson"] > 0.95
    assert run.metrics["test_spearman"] > 0.9


def test_the_loss_is_in_standard_units_and_the_summary_names_them(run: TrainingResult) -> None:
    numbers = [row["label"] for row in prices(500, 0)]
    mean, std = np.mean(numbers), np.std(numbers)
    config = run.model.config
    assert (config.label_mean, config.label_scale) == (pytest.approx(mean), pytest.approx(std))
    assert run.metrics["test_loss"] == pytest.approx(run.metrics["test_mse"] / std**2, rel=1e-3)
    console = Console(file=StringIO(), width=200)
    run.summary.show(console)
    line = f"targets standardised: mean {mean:.6g}, standard deviation {std:.6g} of the training rows"
    assert line in console.file.getvalue()  # type: ignore[attr-defined]


def batch_and_logits(run: TrainingResult) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """The checkpoint, the test texts as a batch, and its answers to them."""
    model = AutoModelForSequenceClassification.from_pretrained(run.output_dir).eval()
    texts = [row["text"] for row in prices(100, 1)]
    batch = AutoTokenizer.from_pretrained(run.output_dir)(texts, padding=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return model, batch, model(**batch).logits.detach()


def test_the_answers_are_the_same_for_whoever_loads_the_checkpoint(run: TrainingResult) -> None:
    written = [line["prediction"] for line in read_jsonl(run.output_dir / "predictions.jsonl")]
    answers = pipeline("text-classification", str(run.output_dir))([row["text"] for row in prices(100, 1)])
    assert [answer["score"] for answer in answers] == pytest.approx(written, rel=1e-4)
    model, batch, logits = batch_and_logits(run)
    assert logits.reshape(-1).tolist() == pytest.approx(written, rel=1e-4)
    torch.testing.assert_close(torch.export.export(model, (), batch).module()(**batch).logits, logits)


def test_a_regression_that_goes_on_keeps_its_units_and_says_so_where_they_are_others(
    run: TrainingResult, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hf_posenc"), "propagate", True)
    options = {**OPTIONS, "model_name_or_path": str(run.output_dir), "config_overrides": None, "vocab_size": None}
    for mean, is_said in ((1100.0, False), (50000.0, True)):
        file = write_csv(tmp_path / f"{mean}.csv", prices(40, 2, mean))
        caplog.clear()
        setup = prepared(tmp_path / "on", **options, train_file=file)
        assert setup.model.config.label_mean == run.model.config.label_mean
        assert setup.loss.label_scale == run.model.config.label_scale
        assert ("keeps its own units" in caplog.text) == is_said


def test_a_new_head_on_a_trained_encoder_takes_the_units_of_its_data(run: TrainingResult, tmp_path: Path) -> None:
    convert(run.output_dir, tmp_path / "bare", task="feature-extraction", measure=False)
    convert(run.output_dir, tmp_path / "same", measure=False)
    kept = AutoModelForSequenceClassification.from_pretrained(tmp_path / "same").config
    assert (kept.label_mean, kept.label_scale) == (run.model.config.label_mean, run.model.config.label_scale)
    file = write_csv(tmp_path / "train.csv", prices(40, 2, 5.0, 1.0))
    options = {"model_name_or_path": str(tmp_path / "bare"), "config_overrides": None}
    setup = prepared(tmp_path, **OPTIONS, **options, train_file=file)
    assert setup.model.config.label_mean == pytest.approx(5, abs=1)
    rows = [{"text": row["text"], "label": "ab"[n % 2]} for n, row in enumerate(prices(40, 2))]
    options |= {"task": "classification", "train_file": write_csv(tmp_path / "words.csv", rows)}
    config = prepared(tmp_path, **options).model.config
    assert (config.problem_type, config.label_mean, config.label_scale) == ("single_label_classification", 0.0, 1.0)


def test_a_model_of_another_family_says_that_it_learns_the_raw_numbers(
    run: TrainingResult, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hf_posenc"), "propagate", True)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(run.tokenizer), num_labels=1, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    run.tokenizer.save_pretrained(tmp_path / "bert")
    options = {**OPTIONS, "model_name_or_path": str(tmp_path / "bert"), "config_overrides": None}
    for mean, std, is_said in ((1000.0, 200.0, True), (0.0, 1.0, False)):
        caplog.clear()
        file = write_csv(tmp_path / f"{mean}.csv", prices(40, 2, mean, std))
        setup = prepared(tmp_path / "run", **options, train_file=file)
        assert (setup.loss.label_scale, setup.summary.label_scale) == (1.0, 1.0)
        assert ("Targets aren't standardised: they have mean 1" in caplog.text) == is_said


def test_rows_set_aside_for_validation_do_not_count(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "train.csv", prices(60, 0))
    setup = prepared(tmp_path / "run", **OPTIONS, train_file=file, do_eval=True)
    numbers = setup.encoded["train"]["labels"]  # type: ignore[index]
    assert len(numbers) < 60
    assert setup.model.config.label_mean == pytest.approx(np.mean(numbers))


def test_a_run_is_not_resumed_in_other_units(tmp_path: Path) -> None:
    options = {**OPTIONS, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    train(tmp_path / "run", train_file=write_csv(tmp_path / "a.csv", prices(60, 0)), **options)
    other = {"train_file": write_csv(tmp_path / "b.csv", prices(60, 0, 2000.0)), "max_steps": 6}
    with pytest.raises(UserError, match=r"was trained with label_mean=\d+.*, the options and the data now say"):
        train(tmp_path / "run", **{**options, **other}, resume_from_checkpoint="true")


@pytest.mark.parametrize(
    ("numbers", "mean", "std"),
    [
        ([1.0, None, 3.0], 2.0, 1.0),
        ([0.1] * 3, 0.1, 1.0),  # whose computed standard deviation is 1e-17
        ([1.0, 1.0 + 1e-9], 1.0, 1.0),  # the same in float32
        ([2005.0], 2005.0, 1.0),
        ([0.0, 0.0], 0.0, 1.0),
        ([1e-9, 3e-9], 2e-9, 1e-9),
    ],
)
def test_standard_units(numbers: list[float | None], mean: float, std: float) -> None:
    assert standard_units(numbers) == (pytest.approx(mean), pytest.approx(std))


def test_the_loss_divides_by_the_standard_deviation() -> None:
    loss = ClassificationLoss("regression")
    loss.label_scale = 200.0
    logits, labels = torch.tensor([[1000.0], [1400.0]]), torch.tensor([1200.0, 1400.0])
    assert loss({"logits": logits}, labels).item() == pytest.approx(0.5)
