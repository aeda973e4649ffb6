"""What a training does where an option isn't given, and what `--set` may say."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_posenc import SIZES, PosEncForSequenceClassification, UserError
from hf_posenc.training.trainer import RunTrainer
from tests.support.common import tiny_config
from tests.support.training import recipe_of, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")


def test_new_weights_begin_smaller_the_wider_an_encoder_is():
    for sizes in SIZES.values():
        assert sizes["initializer_range"] == pytest.approx(sizes["hidden_size"] ** -0.5, abs=1e-4)


TRAINED = {"pretrained": "folder"}
STEPS = {"eval_strategy": "steps", "eval_steps": 20}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": None, "seen": 2.0}, {"num_train_epochs": 50, "word_rate": 4.0, "learning_rate": 1e-3}),
        # the fewer examples the more epochs: language is soon overfitted, of a small vocabulary order comes late
        *(
            (
                {"epochs": None, "batch_size": 32, "seen": seen, "examples": examples, **more},
                {"num_train_epochs": number},
            )
            for seen, examples, more, number in (
                *((16.0, 5_000, {}, 6), (16.0, 1_000, {}, 16), (16.0, 100, {}, 100), (16.0, 100, TRAINED, 20)),
                *((480.0, 8_000, {}, 40), (480.0, 100_000, {}, 6), (480.0, 1_000, TRAINED, 16)),
                (16.0, 50_000, TRAINED, 4),
            )
        ),
        # rare words learn faster, wider encoders and checkpoints slower
        *(
            ({"seen": float(seen), "examples": 100 * seen}, {"word_rate": rate})
            for seen, rate in ((2, 4.0), (56, 2.0), (225, 1.0), (10_000, 1.0))
        ),
        ({**TRAINED, "seen": 2.0}, {"word_rate": 1.0}),
        *(
            ({**more, "hidden_size": width}, {"learning_rate": rate})
            for more, rates in (({}, (1e-3, 5e-4, 1e-4)), (TRAINED, (1e-4, 1e-4, 5e-5)))
            for width, rate in zip((128, 512, 768), rates, strict=True)
        ),
        ({**TRAINED, "hidden_size": 384, "lora": True}, {"learning_rate": pytest.approx(1e-3)}),
        # labels are smoothed where rows are as few as was measured
        ({"examples": 3_000}, {"label_smoothing_factor": 0.1}),
        ({"examples": 3_001}, {"label_smoothing_factor": 0.0}),
        ({"epochs": 2.5, "word_rate": 3.0, "learning_rate": 0.0}, {"num_train_epochs": 2.5, "word_rate": 3.0}),
        ({"learning_rate": 0.0, "max_steps": 7}, {"learning_rate": 0.0, "max_steps": 7}),
        ({"adam_beta1": 0.8, "weight_decay": 0.1}, {"adam_beta1": 0.8, "weight_decay": 0.1}),
        ({}, {"save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "macro_f1"}),
        ({"validates": False}, {"save_strategy": "epoch", "eval_strategy": "no", "load_best_model_at_end": False}),
        (STEPS, {"save_strategy": "steps", "save_steps": 20, "load_best_model_at_end": True}),
        ({"save_strategy": "steps", "save_steps": 40}, {"eval_strategy": "steps", "eval_steps": 40, "save_steps": 40}),
        ({**STEPS, "save_strategy": "best"}, {"eval_steps": 20, "load_best_model_at_end": True}),
        ({"save_strategy": "epoch"}, {"eval_strategy": "epoch", "load_best_model_at_end": True}),
        ({"eval_strategy": "steps", "eval_steps": 0.25, "epochs": 2}, {"eval_steps": 5, "save_steps": 5}),
        ({**STEPS, "save_steps": 40, "load_best_model_at_end": False}, {"eval_steps": 20, "save_steps": 40}),
        ({"load_best_model_at_end": False}, {"save_strategy": "epoch", "load_best_model_at_end": False}),
        ({"eval_strategy": "no"}, {"load_best_model_at_end": False}),
        ({"patience": 1}, {"metric_for_best_model": "loss", "greater_is_better": False, "patience": 1}),
        ({"problem_type": "regression"}, {"metric_for_best_model": "loss", "greater_is_better": False}),
        ({"metric_for_best_model": "accuracy"}, {"metric_for_best_model": "accuracy", "greater_is_better": True}),
        ({"metric_for_best_model": "eval_mse", "problem_type": "regression"}, {"greater_is_better": False}),
        # 160 rows are 10 steps: 41 epochs are evaluated three at a time
        ({"epochs": 41}, {"eval_strategy": "steps", "eval_steps": 30, "save_steps": 30, "logging_steps": 30}),
        ({"epochs": 41, "eval_strategy": "epoch"}, {"eval_strategy": "epoch", "save_strategy": "epoch"}),
        ({"epochs": 20}, {"eval_strategy": "epoch"}),
        ({"max_steps": 410}, {"eval_strategy": "steps", "eval_steps": 30, "save_steps": 30}),
        ({"max_steps": 4, "seen": 480.0}, {"eval_strategy": "epoch"}),
        ({"adam_beta1": 0.2, "adam_beta2": 0.25}, {"adam_beta1": 0.2, "adam_beta2": 0.25}),
        ({"schedule": "one-cycle"}, {"one_cycle": True, "lr_scheduler_type": "linear"}),
        ({"schedule": "cosine"}, {"one_cycle": False, "lr_scheduler_type": "cosine"}),
        ({"bf16": True}, {"bf16": True, "bf16_full_eval": False}),
        ({"seen": 16.0}, {"label_smoothing_factor": 0.1}),
        ({"seen": 250.0}, {"label_smoothing_factor": 0.0}),  # a small vocabulary: order is learned after a plateau
        ({"problem_type": "multi_label_classification"}, {"label_smoothing_factor": 0.0}),
        ({"problem_type": "regression"}, {"label_smoothing_factor": 0.0}),
        ({"pretrained": "folder"}, {"label_smoothing_factor": 0.0}),
        ({"label_smoothing_factor": 0.0}, {"label_smoothing_factor": 0.0}),
    ],
)
def test_what_is_given_stays_and_the_rest_is_chosen(given: dict[str, Any], expected: dict[str, Any]):
    made = recipe_of(**given)
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"set": {"push_to_hub": 1}}, "--set push_to_hub can't be set: `hf-posenc publish`"),
        ({"set": {"position_embedding_type": "t5"}}, "--set position_embedding_type can't be set: --scheme gives it"),
        ({"set": {"adam_bet1": 1}}, "--set adam_bet1: neither TrainingArguments nor PosEncConfig has such a field"),
        ({"set": {"hidden_dropout": 1}}, "--set hidden_dropout: neither TrainingArguments nor PosEncConfig has such"),
        ({"set": {"num_labels": 3}}, "--set num_labels: neither"),
        ({"set": {"save_steps": -1}}, "--set save_steps=-1 is out of range. Give a whole number from 1, or a"),
        ({"set": {"eval_steps": 0}}, "--set eval_steps=0 is out of range. Give a "),
        ({"set": {"adam_beta1": 2}}, "--set adam_beta1=2 is out of range. Give a number from 0 to below 1."),
        ({"set": {"vocab_size": "x"}}, "--set vocab_size=x is out of range. Give a whole number from 1"),
        ({"lora": True}, "--lora trains updates of trained weights. Name a checkpoint"),
        ({"revision": "v1"}, "--revision 'v1' is for --pretrained. Leave it out"),
        (
            {"pretrained": "a/b", "size": "mini"},
            "--size 'mini' is for new encoders, and --pretrained 'a/b' has its own",
        ),
    ],
)
def test_what_cannot_be_begun_with_is_refused_before_data_is_read(given, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", data=str(tmp_path / "missing.csv"), **given)


@pytest.mark.parametrize("is_fast", [True, False])
def test_bfloat16_is_taken_where_the_machine_has_it_and_can_be_refused(monkeypatch, is_fast: bool):
    monkeypatch.setattr("hf_posenc.training.recipe.is_bf16_fast", lambda on_cpu: is_fast)
    assert [recipe_of(bf16=asked).bf16 for asked in (None, False, True)] == [is_fast, False, True]


def test_the_words_of_a_run_learn_at_their_own_rate(tmp_path: Path):
    model = PosEncForSequenceClassification(tiny_config())
    rates = recipe_of(tmp_path, validates=False, word_rate=3.0, learning_rate=0.01, weight_decay=0.1)
    optimizer = RunTrainer(model, rates).create_optimizer()
    words = model.get_input_embeddings().weight
    (group,) = [group for group in optimizer.param_groups if any(p is words for p in group["params"])]
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (pytest.approx(0.03), 0.1, 1)


def test_one_cycle_rises_and_falls_and_ends(tmp_path: Path):
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [one]}, {"params": [other], "lr": 0.3}], lr=0.01)
    rates = recipe_of(tmp_path, validates=False, schedule="one-cycle", warmup_steps=5)
    schedule = RunTrainer(PosEncForSequenceClassification(tiny_config()), rates).create_scheduler(20, optimizer)
    rates, momenta = [], []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        schedule.step()
    assert max(rates) == pytest.approx(0.01, rel=0.02)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(30 * optimizer.param_groups[0]["lr"])
    assert 3 <= int(np.argmax(rates)) <= 6
    assert rates[-1] < 0.001 > rates[0] / 10
    assert min(momenta) < 0.86 < 0.94 < max(momenta)
