"""What a training does where an option isn't given."""

from pathlib import Path

import pytest
from training_harness import prepared, results, train, write_jsonl

from hf_posenc import PRESETS
from hf_posenc.training.recipe import default_epochs, default_learning_rate, default_word_factor

NO_EPOCHS = {"num_train_epochs": None}


@pytest.mark.parametrize(
    ("is_trained", "seen", "examples", "epochs"),
    [
        (False, 16.0, 5_000, 6),  # natural language: soon overfitted
        (False, 16.0, 1_000, 16),
        (False, 16.0, 100, 100),
        (True, 16.0, 100, 20),
        (False, 480.0, 8_000, 40),  # a small vocabulary: order comes late
        (False, 480.0, 100_000, 6),
        (True, 480.0, 1_000, 16),
        (True, 16.0, 50_000, 4),
    ],
)
def test_the_fewer_examples_the_more_epochs(is_trained: bool, seen: float, examples: int, epochs: int):
    assert default_epochs(is_trained, seen, examples, 32) == epochs


def test_rare_words_learn_faster():
    assert [default_word_factor(False, seen) for seen in (2, 56, 225, 10_000)] == [4.0, 2.0, 1.0, 1.0]
    assert default_word_factor(True, 2) == 1.0
    assert default_word_factor(False, 0) == 1.0


def test_wider_encoders_and_checkpoints_learn_slower():
    assert [default_learning_rate(False, width) for width in (128, 512, 768)] == [1e-3, 5e-4, 1e-4]
    assert [default_learning_rate(True, width) for width in (128, 512, 768)] == [1e-4, 1e-4, 5e-5]
    assert default_learning_rate(True, 384, lora=True) == pytest.approx(1e-3)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_starts_with_weights_that_fit_its_width(preset: str):
    sizes = PRESETS[preset]
    assert sizes["initializer_range"] == pytest.approx(sizes["hidden_size"] ** -0.5, abs=1e-4)


def test_what_is_not_given_is_chosen_and_recorded(tmp_path: Path, order: dict[str, str]):
    setup = prepared(tmp_path / "run", **NO_EPOCHS, **order, max_steps=1)
    seen = setup.summary.tokens / setup.summary.vocab_size
    assert setup.training.num_train_epochs == default_epochs(False, seen, 160, 16)
    assert setup.training.word_learning_rate_factor == default_word_factor(False, seen)
    assert setup.model.config.hidden_dropout_prob == 0.0
    train(tmp_path / "run", **NO_EPOCHS, **order, max_steps=1)
    kept = results(tmp_path / "run")["arguments"]["training"]
    assert kept["word_learning_rate_factor"] == setup.training.word_learning_rate_factor


def test_what_is_given_stays(tmp_path: Path, order: dict[str, str]):
    options = {"num_train_epochs": 2.0, "word_learning_rate_factor": 3.0, "learning_rate": 0.5}
    setup = prepared(tmp_path / "run", **order, **options, hidden_dropout_prob=0.3, do_eval=True, save_strategy="epoch")
    assert {name: getattr(setup.training, name) for name in options} == options
    assert setup.model.config.hidden_dropout_prob == 0.3
    assert setup.training.metric_for_best_model == "macro_f1"
    other = prepared(tmp_path / "run", **order, do_eval=True, save_strategy="epoch", metric_for_best_model="loss")
    assert (other.training.metric_for_best_model, other.training.greater_is_better) == ("loss", False)


def test_the_words_of_a_run_learn_at_their_own_rate(tmp_path: Path, order: dict[str, str]):
    from hf_posenc.training.trainer import make_trainer

    options = {"word_learning_rate_factor": 3.0, "learning_rate": 0.01, "weight_decay": 0.1}
    setup = prepared(tmp_path / "run", **order, **options)
    optimizer = make_trainer(setup).create_optimizer()
    words = setup.model.get_input_embeddings().weight
    (group,) = [group for group in optimizer.param_groups if any(p is words for p in group["params"])]
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (pytest.approx(0.03), 0.1, 1)


def test_of_numbers_the_loss_decides(tmp_path: Path):
    rows = [{"text": f"a b {n % 7}", "label": n / 4 + 0.1} for n in range(30)]
    file = write_jsonl(tmp_path / "n.jsonl", rows)
    setup = prepared(tmp_path / "run", train_file=file, do_eval=True, save_strategy="epoch")
    assert setup.training.metric_for_best_model == "loss"


def test_epochs_of_a_few_steps_are_evaluated_and_saved_together(tmp_path: Path, order: dict[str, str]):
    options = {"do_eval": True, "per_device_train_batch_size": 32, "save_strategy": None, "num_train_epochs": 41}
    training = prepared(tmp_path / "run", **order, **options).training
    assert (training.eval_strategy, training.eval_steps) == ("steps", 3 * 5)  # 160 examples are 5 steps
    assert training.save_steps == training.logging_steps == training.eval_steps
    for option, value in (("num_train_epochs", 20), ("eval_strategy", "epoch"), ("early_stopping_patience", 3)):
        assert prepared(tmp_path / "run", **order, **{**options, option: value}).training.eval_strategy == "epoch"
