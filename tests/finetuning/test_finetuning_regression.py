"""A regression answers in the units of its data, whatever they are, and learns as if they were standard units."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_posenc import PosEncForSequenceClassification, TrainingResult, UserError, convert, evaluate, load
from hf_posenc.data.labels import standard_units
from hf_posenc.finetuning.prediction import Asked, answers_to, load_classifier
from tests.support.common import tiny_config, word_tokenizer, write_csv
from tests.support.training import started, train

WORTH = {"shed": -1.5, "hut": -1.0, "flat": -0.5, "house": 0.5, "villa": 1.0, "castle": 1.5}
OPTIONS: dict[str, Any] = {"problem_type": "regression", "learning_rate": 3e-3, "epochs": 4, "bf16": False}


def prices(count: int, seed: int, mean: float = 1000.0, std: float = 200.0) -> list[dict[str, Any]]:
    """Texts of three words and what they are worth together."""
    draw = random.Random(seed)
    texts = [draw.choices(list(WORTH), k=3) for _ in range(count)]
    return [{"text": " ".join(words), "label": mean + std * sum(WORTH[word] for word in words)} for words in texts]


TEXTS = [row["text"] for row in prices(100, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    folder = tmp_path_factory.mktemp("prices")
    files = {"data": write_csv(folder / "train.csv", prices(500, 0))}
    files["test"] = write_csv(folder / "test.csv", prices(100, 1))
    return train(folder / "run", baselines=True, **files, **OPTIONS)


def test_prices_are_learned_far_better_than_by_their_mean_in_standard_units(run: TrainingResult) -> None:
    numbers = [row["label"] for row in prices(500, 0)]
    mean, std, config = np.mean(numbers), np.std(numbers), run.model.config
    assert (config.label_mean, config.label_scale) == (pytest.approx(mean), pytest.approx(std))
    assert (config.problem_type, run.report.calibration) == ("regression", None)
    assert run.report.metrics["test_loss"] == pytest.approx(run.report.metrics["test_mse"] / std**2, rel=1e-3)
    assert run.report.metrics["test_mse"] < 0.1 * run.report.baselines["majority"]["test_mse"]
    assert run.report.metrics["test_pearson"] > 0.95
    assert "| mse of the mean | " in run.report.card()


def test_the_answers_are_the_same_for_whoever_loads_the_checkpoint(run: TrainingResult) -> None:
    classifier = load_classifier(str(run.output), "cpu")
    with pytest.raises(UserError, match="top_k=2 is for labels, and .* predicts numbers. Leave it out"):
        list(answers_to(classifier, [("a text",)], Asked(top_k=2)))
    written = [answer["prediction"] for answer in answers_to(classifier, [(text,) for text in TEXTS])]
    errors = np.array(written) - [row["label"] for row in prices(100, 1)]
    assert np.mean(errors**2) == pytest.approx(run.report.metrics["test_mse"], rel=1e-4)
    answers = pipeline("text-classification", str(run.output))(TEXTS)
    assert [answer["score"] for answer in answers] == pytest.approx(written, rel=1e-4)
    model = AutoModelForSequenceClassification.from_pretrained(run.output).eval()
    batch = AutoTokenizer.from_pretrained(run.output)(TEXTS, padding=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = model(**batch).logits.detach()
    assert logits.reshape(-1).tolist() == pytest.approx(written, rel=1e-4)
    torch.testing.assert_close(torch.export.export(model, (), batch).module()(**batch).logits, logits)


def test_a_regression_that_goes_on_keeps_its_units(run: TrainingResult, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "more.csv", prices(40, 2, 1100.0))
    on = train(tmp_path / "on", **{**OPTIONS, "epochs": None}, data=file, pretrained=str(run.output), max_steps=1)
    assert on.model.config.label_mean == run.model.config.label_mean
    assert on.report.history[0]["loss"] < 3  # in the model's units


def test_a_new_head_on_a_trained_encoder_takes_the_units_of_its_data(run: TrainingResult, tmp_path: Path) -> None:
    convert(run.output, tmp_path / "bare", head="feature-extraction", measure=False)
    convert(run.output, tmp_path / "same", measure=False)
    kept = AutoModelForSequenceClassification.from_pretrained(tmp_path / "same").config
    assert (kept.label_mean, kept.label_scale) == (run.model.config.label_mean, run.model.config.label_scale)
    file = write_csv(tmp_path / "train.csv", prices(40, 2, 5.0, 1.0))
    data, _, model, _ = started(**OPTIONS, data=file, pretrained=str(tmp_path / "bare"), validation_share=0.1)
    numbers = data.splits["train"]["labels"][:]  # rows set aside for validation don't count
    assert len(numbers) < 40
    assert model.config.label_mean == pytest.approx(np.mean(numbers))
    rows = [{"text": row["text"], "label": "ab"[n % 2]} for n, row in enumerate(prices(40, 2))]
    for source in (str(tmp_path / "bare"), str(run.output)):
        config = started(data=write_csv(tmp_path / "words.csv", rows), pretrained=source)[2].config
        assert (config.problem_type, config.label_mean, config.label_scale) == ("single_label_classification", 0, 1)


@pytest.mark.parametrize(
    ("offset", "std", "message"),
    [
        (1.7e9, 112.0, "has training numbers of 17000.* on average that differ by little .standard deviation 1"),
        (-3e6, 100.0, "from them all, and add it to the answers"),
        (1.0, 1e-9, "float32"),
        (1e5, 112.0, None),
        (0.0, 1e-30, None),
        (5e6, 0.0, None),  # one number: there is nothing to learn, and nothing to lose
    ],
)
def test_numbers_far_from_zero_are_refused_with_what_to_subtract(
    tmp_path: Path, offset: float, std: float, message: str | None
) -> None:
    rows = prices(60, 3, offset, std)
    given = {**OPTIONS, "data": write_csv(tmp_path / "far.csv", rows), "validation_share": 0.1}
    if message is None:
        assert started(**given)[0].labels.mean == pytest.approx(offset, rel=0.01, abs=1e-20)
        return
    with pytest.raises(UserError, match=message) as refused:
        started(**given)
    subtracted = float(re.findall(r"Subtract (\S+) from", str(refused.value))[0])
    labels = [row["label"] - subtracted for row in rows]
    started(
        **{
            **given,
            "data": write_csv(tmp_path / "near.csv", [{**r, "label": n} for r, n in zip(rows, labels, strict=True)]),
        }
    )


@pytest.mark.parametrize(
    ("numbers", "mean", "std"),
    [
        ([1.0, 3.0], 2.0, 1.0),
        ([0.1] * 3, 0.1, 1.0),  # whose computed standard deviation is 1e-17
        ([1.0, 1.0 + 1e-9], 1.0, 1.0),  # the same in float32
        ([2005.0], 2005.0, 1.0),
        ([0.0, 0.0], 0.0, 1.0),
        ([1e-9, 3e-9], 2e-9, 1e-9),
    ],
)
def test_standard_units(numbers: list[float], mean: float, std: float) -> None:
    assert standard_units(numbers) == (pytest.approx(mean), pytest.approx(std))


def test_several_numbers_of_a_text_are_a_row_and_are_not_scored(tmp_path: Path) -> None:
    config = tiny_config("rope", problem_type="regression", num_labels=3)
    PosEncForSequenceClassification(config).save_pretrained(tmp_path / "model")
    word_tokenizer(["a", "cat", "dog"]).save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").predict(["a cat", "a dog"]).shape == (2, 3)
    write_csv(tmp_path / "data.csv", [{"text": "a cat", "label": 1.5}, {"text": "a dog", "label": 2.5}])
    with pytest.raises(UserError, match="predicts 3 numbers for each text, and one can be scored"):
        evaluate(tmp_path / "model", tmp_path / "data.csv")


def test_a_number_that_the_trainer_takes_for_no_label_counts(tmp_path: Path) -> None:
    """The Trainer counts the labels of a batch that aren't -100, by which the loss is divided."""
    texts = [row["text"] for row in prices(64, 2)]
    fitted = []
    for freezing in (-100.0, -100.5):
        rows = [{"text": text, "label": freezing if n % 2 else 37.5} for n, text in enumerate(texts)]
        data = write_csv(tmp_path / "rows.csv", rows)
        fitted.append(train(tmp_path / "run", data=data, **OPTIONS | {"epochs": 1}, batch_size=4, overwrite=True))
    losses = [[entry["loss"] for entry in run.report.history if "loss" in entry] for run in fitted]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
