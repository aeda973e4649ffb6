"""Every field of transformers' `TrainingArguments`: taken as the stock Trainer takes it, said, or refused."""

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments

from hf_posenc import PosEncForSequenceClassification, PosEncModel, UserError
from hf_posenc.options import Options
from hf_posenc.training import trainer_fields as table
from hf_posenc.training.recipe import Recipe
from hf_posenc.training.trainer import RunTrainer
from model_cards.make_pages import field_table, fill_marks
from tests.support.common import tiny_config
from tests.support.training import ROOT, assert_same_weights, recipe_of, results, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")

TAKEN = {name for name, field in table.FIELDS.items() if field.accepts is not None and name in table.INSTALLED}
RUN: dict[str, Any] = {"save_strategy": None, "epochs": 3, "learning_rate": 1e-2, "bf16": False, "max_rows": 48}
RUN |= {"metric_for_best_model": "loss"}
"""Three steps an epoch; the best weights by the loss are those of the second epoch."""
TOGETHER = {
    *("average_tokens_across_devices", "save_total_limit", "per_device_eval_batch_size", "eval_accumulation_steps"),
    *("logging_nan_inf_filter", "report_to", "run_name", "full_determinism", "torch_empty_cache_steps"),
    *("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "auto_find_batch_size"),
}
"""Fields of memory, speed and logs, which change no weight."""
EXAMPLES = {
    "a whole number from 0": 1,
    "a whole number from 0 to 4294967295": 7,
    "a whole number from 1": 2,
    "a whole number from 1, or a share of all steps below 1": 2,
    "a whole number, or a share of all steps below 1": 0.5,
    "a number from 0": 0.5,
    "a number from 0 to below 1": 0.5,
    "true or false": True,
    "a text": "mine",
    "loss, or a metric of the problem type": "accuracy",
    "settings such as momentum=0.9,nesterov=true": "momentum=0.9",
    "none, all, or installed ones such as tensorboard": "tensorboard",
    'an object {"num_cycles": 1.5}': {"num_cycles": 2},
    'an object {"use_reentrant": false}': {"use_reentrant": False},
}
"""A value that each range accepts."""
SPECIAL: dict[str, dict[str, Any]] = {
    "optim": {"optim": "sgd"},
    "optim_args": {"optim": "sgd"},
    "lr_scheduler_kwargs": {"schedule": "cosine"},
    "eval_delay": {"eval_strategy": "epoch"},
    "run_name": {"report_to": "tensorboard"},
    "torch_compile_mode": {"torch_compile_mode": "default"},
    **{name: {name: False} for name in ("fp16", "tf32", "dataloader_pin_memory")},  # on a GPU alone
}
STEPS = {"eval_strategy": "steps", "eval_steps": 20}
NOT_INSTALLED = {"optim_target_modules"}
"""Of optimizers that the tests don't have."""


def test_the_table_has_every_field_of_the_installed_transformers():
    assert not table.INSTALLED.keys() - table.FIELDS.keys()
    # of transformers 5.24, where 5.17 has the older names alone
    assert table.FIELDS.keys() - table.INSTALLED.keys() <= {
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
    }


def test_the_documentation_shows_the_table():
    page = ROOT / "docs" / "reference" / "trainer-fields.md"
    text = page.read_text(encoding="utf-8")
    assert fill_marks(page, text, {"fields": field_table()}) == text, "run `make model-cards`"


def test_a_field_that_the_table_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    newer = dataclasses.make_dataclass("Newer", [("moe_balance", bool, False)], bases=(TrainingArguments,))
    monkeypatch.setattr(table, "INSTALLED", {item.name: item for item in dataclasses.fields(newer)})
    with pytest.raises(UserError, match="--set moe_balance can't be set: this version of hf_posenc doesn't know it"):
        table.trainer_fields(Options(set={"moe_balance": True}))
    monkeypatch.setattr(table, "INSTALLED", {})
    with pytest.raises(UserError, match="--set weight_decay: transformers .* has no such field"):
        table.trainer_fields(Options(set={"weight_decay": 0.1}))


@pytest.mark.parametrize("name", [name for name, field in table.FIELDS.items() if field.accepts is None])
def test_a_refused_field_is_refused_before_data_is_read(name: str, tmp_path: Path):
    text = re.sub(r"^`(\w+)`", lambda option: f"--{option[1].replace('_', '-')}", table.FIELDS[name].text)
    reason = re.escape(f"--set {name} can't be set: {text}. Leave it out.")
    with pytest.raises(UserError, match=reason):
        train(tmp_path / "run", data=str(tmp_path / "missing.csv"), set={name: 1})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_a_taken_field_takes_no_value_of_another_kind(name: str):
    for value in ([], -3.5, "no such", None):
        accepts = table.FIELDS[name].accepts
        if value is None and table.INSTALLED[name].default is None:
            continue
        if (
            accepts is not None
            and accepts.text.startswith(("a text", "all-linear", "loss", "none"))
            and value in ([], "no such")
        ):
            continue
        with pytest.raises(UserError, match=f"--set {name}=.* is out of range. Give "):
            table.trainer_fields(Options(set={name: value}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eval_steps": 5}, "--set eval_steps=5 has no effect without --set eval_strategy=steps. Give both."),
        ({"save_steps": 5, "save_strategy": "epoch"}, "--set save_steps=5 has no effect without --set save_strategy="),
        ({"logging_steps": 5}, "--set logging_steps=5 has no effect without --set logging_strategy=steps. Give both."),
        ({"dataloader_prefetch_factor": 2}, "has no effect without --set dataloader_num_workers. Give both."),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "has no effect without --set gradient_checkp"),
        (
            {"lr_scheduler_kwargs": {"num_cycles": 2}, "schedule": "one-cycle"},
            "has no effect on --schedule 'one-cycle'",
        ),
        ({"adam_beta1": 0.5, "schedule": "one-cycle"}, "adam_beta1=0.5 has no effect on --schedule 'one-cycle', which"),
        (
            {"optim": "sgd", "optim_args": "momentum=0.5", "schedule": "one-cycle"},
            "momentum=0.5 has no effect on --schedule 'one-cycle', which",
        ),
        ({"optim": "adagrad", "schedule": "one-cycle"}, "optimizer's momentum, and --set optim=adagrad has none. Take"),
        (
            {"warmup_steps": 5, "schedule": "constant"},
            "has no effect on --schedule 'constant'. Give constant_with_warmup",
        ),
        *(
            ({"gradient_checkpointing": True, name: False}, "--set gradient_checkpointing is an older name of")
            for name in TAKEN & {"activation_checkpointing"}
        ),
        ({"eval_on_start": True, "patience": 2}, "--set eval_on_start would count for --patience"),
        ({"optim_target_modules": ["query"]}, "--set optim_target_modules has no effect on optim=adamw_torch_fused"),
        ({"optim": "lomo"}, "--set optim=lomo can't be set: it has no learning rates by group"),
        ({"optim_args": "nonsense"}, "--set optim_args=nonsense is out of range. Give settings such as momentum=0.9"),
        (
            {"optim_args": "momentum=0.9"},
            "--set optim_args=momentum=0.9 has no effect on --set optim=adamw_torch_fused.",
        ),
        ({"optim": "sgd", "optim_args": "momentum=x"}, "--set optim=sgd can't be made: could not convert string to fl"),
        ({"optim": "sgd", "optim_args": "momentum=-1"}, "--set optim=sgd can't be made: Invalid momentum value: -1.0"),
        ({"optim": "sgd", "adam_beta1": 0.5}, "--set adam_beta1=0.5 has no effect on --set optim=sgd. Leave it out."),
        ({"optim": "grokadamw"}, "--set optim=grokadamw can't be made: Please install grokadamw"),
        ({"report_to": "wandb"}, "--set report_to=wandb is out of range. Give none, all, or installed ones such as"),
        ({"warmup_steps": 500}, "--set warmup_steps=500: the run has 30 steps, so the learning rate would never reach"),
        ({"eval_delay": 2}, "--set eval_delay counts epochs or steps, as --set eval_strategy says. Give both."),
        (
            {"eval_delay": 4, "eval_strategy": "epoch"},
            "--set eval_delay=4: the run has 3 epochs, so it would never be evaluated. Give less.",
        ),
        ({"eval_delay": 40, "eval_strategy": "steps"}, "--set eval_delay=40: the run has 30 steps, so it would never"),
        ({"tf32": True}, "--set tf32=true needs a GPU. Leave it out"),
        ({"dataloader_pin_memory": True}, "--set dataloader_pin_memory=true needs a GPU. Leave it out"),
        ({"patience": 2, "validates": False}, "--patience 2 needs evaluations. Give --validation or a --validation-sh"),
        ({"patience": 2, "eval_strategy": "no"}, "share, and no --set eval_strategy=no."),
        ({"eval_strategy": "epoch", "validates": False}, "--set eval_strategy=epoch needs validation rows"),
        ({"save_strategy": "best", "validates": False}, "--set save_strategy=best needs evaluations"),
        ({"save_strategy": "no", "load_best_model_at_end": True}, "load_best_model_at_end=true needs evaluations and"),
        ({**STEPS, "save_steps": 40}, "Evaluated every 20 steps and saved every 40 steps, the best weights may not be"),
        ({**STEPS, "save_strategy": "epoch"}, "Evaluated every 20 steps and saved each epoch, the best weights may"),
        ({"save_strategy": "no", "metric_for_best_model": "loss"}, "has no effect: the last weights are kept"),
        ({"device": "tpu"}, "--device 'tpu' can't be trained on. This machine has cpu"),
        ({"fp16": True}, "--set fp16=true needs a GPU. Leave it out; --bf16 works on a CPU"),
        ({"optim": "adamant"}, "--set optim=adamant is out of range. Give an installed one"),
    ],
)
def test_a_field_that_would_do_nothing_or_cannot_be_is_refused(given: Any, message: str):
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        recipe_of(**{"epochs": 3, **given})
    assert "\n" not in str(refused.value)


def example(name: str) -> dict[str, Any]:
    """A value that a field takes, with what it can't do without."""
    field = table.FIELDS[name]
    assert field.accepts is not None
    text, (needed, _, wanted) = field.accepts.text, (field.needs or "").partition("=")
    value = text.split(", ")[1] if text.startswith("one of ") else EXAMPLES.get(text)
    return {**({needed: wanted or example(needed)[needed]} if needed else {}), name: value, **SPECIAL.get(name, {})}


@pytest.mark.parametrize("name", sorted(TAKEN - NOT_INSTALLED))
def test_a_taken_field_goes_to_the_trainer_as_it_is_given(name: str):
    given = example(name)
    assert getattr(recipe_of(**given), name) in (given[name], [given[name]])  # report_to becomes a list


@pytest.mark.slow
def test_fields_of_memory_speed_and_logs_change_no_weight(files: dict[str, str], tmp_path: Path):
    together: dict[str, Any] = {}
    for name in TOGETHER:
        together |= example(name)
    usual, given = (train(tmp_path / name, **files, **RUN, **more) for name, more in (("a", {}), ("b", together)))
    assert_same_weights(usual.output, given.output)
    assert given.report.best["step"] == usual.report.best["step"]
    compiled = train(tmp_path / "compiled", **files, **RUN, torch_compile_backend="eager", torch_compile_mode="default")
    weights, expected = (load_file(run.output / "model.safetensors") for run in (compiled, usual))
    for key in weights:
        torch.testing.assert_close(weights[key], expected[key], atol=1e-4, rtol=0)


def test_torch_compile_compiles_each_layer_by_itself(tmp_path: Path):
    ids = [list(range(5, 7 + number // 2)) for number in range(8)]  # each two have one length
    data = Dataset.from_dict({"input_ids": ids, "labels": [0, 1] * 4})
    ends = []
    for compiled in ({}, {"torch_compile_backend": "eager"}):
        torch.manual_seed(0)
        model = PosEncForSequenceClassification(tiny_config("rope", hidden_dropout_prob=0.0))
        values: dict[str, Any] = {"max_steps": 4, "use_cpu": True, "disable_tqdm": True, **compiled}
        values["train_sampling_strategy"] = "sequential"
        arguments = Recipe(str(tmp_path), learning_rate=1e-3, per_device_train_batch_size=2, report_to="none", **values)
        trainer = RunTrainer(model, arguments, train_dataset=data)
        trainer.train()
        ends.append(model.state_dict())
    layers = trainer.model_wrapped.base_model.layers
    assert {type(layer).__name__ for layer in layers} == {"OptimizedModule"}
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"])
def test_an_installed_optimizer_trains_as_in_the_stock_trainer(optim: str, tmp_path: Path):
    ids = np.random.default_rng(0).integers(5, 50, (24, 6)).tolist()
    data = Dataset.from_dict({"input_ids": ids, "labels": [0, 1, 1] * 8})
    ends = []
    for trainer, kind in ((Trainer, TrainingArguments), (RunTrainer, Recipe)):
        torch.manual_seed(0)
        model = PosEncForSequenceClassification(tiny_config(position_embedding_type="learned"))
        values: dict[str, Any] = {"optim": optim, "max_steps": 3, "use_cpu": True, "disable_tqdm": True}
        arguments = kind(str(tmp_path), learning_rate=1e-2, report_to="none", save_strategy="no", **values)
        trainer(model, arguments, train_dataset=data).train()
        ends.append(model.state_dict())
    stock, ours = ends
    assert all(torch.equal(stock[key], ours[key]) for key in stock)


def test_where_memory_runs_out_batches_shrink_and_the_schedule_is_made_anew(files, tmp_path, monkeypatch):
    make_layout = PosEncModel.make_layout

    def limited(self: Any, input_ids: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.training and len(input_ids) > 14:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return make_layout(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(PosEncModel, "make_layout", limited)
    every = {"auto_find_batch_size": True, "logging_strategy": "steps", "logging_steps": 1}
    output = io.StringIO()
    run = train(tmp_path / "run", Console(file=output), **files, **{**RUN, **every, "schedule": "one-cycle"}).output
    assert "Batches have 14 texts: 16 don't fit into memory." in output.getvalue()
    assert results(run)["recipe"]["train_batch_size"] == 14
    rates = [entry["learning_rate"] for entry in results(run)["history"] if "learning_rate" in entry]
    assert len(rates) == 3 * 4  # 48 rows in batches of 14
    assert max(rates) == pytest.approx(1e-2, rel=0.02)
    assert rates[-1] < max(rates) / 20


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"load_best_model_at_end": False}, "load_best_model_at_end=false"),
        ({"eval_strategy": "no"}, "eval_strategy=no"),
        ({"save_strategy": "no"}, "save_strategy=no"),
        ({}, None),
        ({"save_strategy": "best"}, None),
    ],
)
def test_a_line_says_where_the_last_weights_are_kept(files, tmp_path, given, field):
    output = io.StringIO()
    train(tmp_path / "run", Console(file=output), **files, **{**RUN, "metric_for_best_model": None, **given})
    said = re.findall(
        r"The weights of the last step are kept, not the best on validation rows \((.+)\)", output.getvalue()
    )
    assert said == ([f"--set {field}"] if field else [])
