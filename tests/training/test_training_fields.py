"""Every field of transformers' `TrainingArguments`: taken as the stock Trainer takes it, said, or refused."""

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import tiny_config
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from training_harness import LAUNCH, ROOT, TRAIN, command, in_processes, results, rows, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from hf_posenc import PosEncForSequenceClassification
from hf_posenc.errors import UserError
from hf_posenc.model.modeling_posenc import PosEncModel
from hf_posenc.options import Options
from hf_posenc.training import trainer_fields as table
from hf_posenc.training.recipe import Recipe
from hf_posenc.training.trainer import RunTrainer
from model_cards.make_pages import field_table, fill_marks

pytestmark = pytest.mark.usefixtures("spelt_by_train")

TAKEN = {name for name, field in table.FIELDS.items() if field.accepts is not None and name in table.INSTALLED}
RUN: dict[str, Any] = {"save_strategy": None, "epochs": 3, "learning_rate": 1e-2, "bf16": False, "max_rows": 48}
RUN |= {"metric_for_best_model": "loss"}
"""Three steps an epoch; the best weights by the loss are those of the second epoch."""
WORKER = {"dataloader_num_workers": 1}
COMPILED = {"torch_compile_backend": "eager"}

# What each field may be, and what that changes: the weights that are kept, what is logged, or nothing of either.
TRIED: dict[str, tuple[Any, str] | tuple[Any, str, dict[str, Any]]] = {
    "optim": ("adagrad", "weights"),
    "optim_args": ("momentum=0.9", "weights", {"optim": "sgd"}),
    "weight_decay": (0.5, "weights"),
    "adam_beta1": (0.5, "weights"),
    "adam_beta2": (0.5, "weights"),
    "adam_epsilon": (1e-2, "weights"),
    "max_grad_norm": (0.1, "weights"),
    "warmup_steps": (5, "weights"),
    "lr_scheduler_kwargs": ({"num_cycles": 2}, "weights", {"schedule": "cosine"}),
    "gradient_accumulation_steps": (2, "weights"),
    "auto_find_batch_size": (True, "nothing"),
    "label_smoothing_factor": (0.0, "weights"),
    "neftune_noise_alpha": (5.0, "weights"),
    "average_tokens_across_devices": (False, "nothing"),
    "eval_strategy": ("no", "weights", {"metric_for_best_model": None}),
    "save_strategy": ("no", "weights", {"metric_for_best_model": None}),
    "load_best_model_at_end": (False, "weights", {"metric_for_best_model": None}),
    "metric_for_best_model": ("accuracy", "weights"),
    "eval_steps": (2, "log", {"eval_strategy": "steps"}),
    "save_steps": (0.25, "log", {"save_strategy": "steps"}),
    "eval_delay": (2.5, "weights", {"eval_strategy": "epoch"}),
    "eval_on_start": (True, "log"),
    "save_total_limit": (1, "nothing"),
    "per_device_eval_batch_size": (3, "nothing"),
    "eval_accumulation_steps": (1, "nothing"),
    "logging_strategy": ("no", "log"),
    "logging_steps": (1, "log", {"logging_strategy": "steps"}),
    "logging_first_step": (True, "log"),
    "logging_nan_inf_filter": (False, "nothing"),
    "include_num_input_tokens_seen": ("non_padding", "log"),
    "disable_tqdm": (False, "nothing"),
    "report_to": ("tensorboard", "nothing"),
    "run_name": ("mine", "nothing", {"report_to": "tensorboard"}),
    "train_sampling_strategy": ("group_by_length", "weights"),
    "data_seed": (7, "weights"),
    "full_determinism": (True, "nothing"),
    "dataloader_num_workers": (1, "nothing"),
    "dataloader_prefetch_factor": (3, "nothing", WORKER),
    "dataloader_persistent_workers": (True, "nothing", WORKER),
    "dataloader_multiprocessing_context": ("fork", "nothing", WORKER),
    "dataloader_pin_memory": (False, "nothing"),
    "fp16": (False, "nothing"),
    "tf32": (False, "nothing"),
    "activation_checkpointing": (True, "nothing"),
    "activation_checkpointing_kwargs": ({"use_reentrant": False}, "nothing", {"activation_checkpointing": True}),
    "gradient_checkpointing": (True, "nothing"),
    "gradient_checkpointing_kwargs": ({"use_reentrant": True}, "nothing", {"gradient_checkpointing": True}),
    "torch_compile": (True, "rounding", COMPILED),
    "torch_compile_backend": ("aot_eager", "rounding"),
    "torch_compile_mode": ("default", "rounding", COMPILED),
    "torch_empty_cache_steps": (1, "nothing"),
    "ddp_find_unused_parameters": (True, "nothing"),
    "ddp_bucket_cap_mb": (1, "nothing"),
    "ddp_broadcast_buffers": (False, "nothing"),
    "ddp_static_graph": (True, "nothing"),
}
NOT_INSTALLED = {"optim_target_modules"}
"""Of optimizers that the tests don't have."""


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]) -> Path:
    """A run without any of these fields."""
    return train(tmp_path_factory.mktemp("usual") / "run", **files, **RUN).output


def logged(folder: Path) -> list[dict[str, float]]:
    """What was logged, without times."""
    return [
        {name: round(value, 6) for name, value in entry.items() if not name.endswith(("_runtime", "_second"))}
        for entry in results(folder)["history"]
    ]


def test_the_table_has_every_field_of_the_installed_transformers():
    assert not table.INSTALLED.keys() - table.FIELDS.keys()
    # of transformers 5.24, where 5.17 has the older names alone
    assert table.FIELDS.keys() - table.INSTALLED.keys() <= {
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
    }
    assert TRIED.keys() >= TAKEN - NOT_INSTALLED


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
        (
            {"warmup_steps": 5, "schedule": "constant"},
            "has no effect on --schedule 'constant'. Give constant_with_warmup",
        ),
        *(
            ({"gradient_checkpointing": True, name: False}, "--set gradient_checkpointing is an older name of")
            for name in TAKEN & {"activation_checkpointing"}
        ),
        ({"eval_on_start": True, "patience": 2}, "--set eval_on_start=true would count for --patience"),
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
        ({"warmup_steps": 500}, "--set warmup_steps=500: the run has 9 steps, so the learning rate would never reach"),
        ({"eval_delay": 2}, "--set eval_delay counts epochs or steps, as --set eval_strategy says. Give both."),
        (
            {"eval_delay": 4, "eval_strategy": "epoch"},
            "--set eval_delay=4: the run has 3 epochs, so it would never be evaluated. Give less.",
        ),
        ({"eval_delay": 10, "eval_strategy": "steps"}, "--set eval_delay=10: the run has 9 steps, so it would never"),
        ({"tf32": True}, "--set tf32=true needs a GPU. Leave it out"),
        ({"dataloader_pin_memory": True}, "--set dataloader_pin_memory=true needs a GPU. Leave it out"),
    ],
)
def test_a_field_that_would_do_nothing_is_refused(files: dict[str, str], tmp_path: Path, given: Any, message: str):
    with pytest.raises(UserError, match=re.escape(message)):
        train(tmp_path / "run", **files, **{**RUN, **given})
    assert not (tmp_path / "run").exists()


def score_of(folder: Path, split: list[dict[str, Any]]) -> dict[str, float]:
    """The loss and accuracy of a saved model, by transformers and NumPy."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)([row["text"] for row in split], padding=True, return_tensors="pt")
    labels = torch.tensor([model.config.label2id[str(row["label"])] for row in split])
    with torch.no_grad():
        logits = model(**batch).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    return {"loss": loss.item(), "accuracy": (logits.argmax(-1) == labels).float().mean().item()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TAKEN - NOT_INSTALLED))
def test_a_taken_field_changes_what_it_is_for_and_scores_are_those_of_what_is_saved(
    name: str, files: dict[str, str], usual: Path, tmp_path: Path
):
    value, changes, *others = TRIED[name]
    both = {**RUN, **(others[0] if others else {})}
    run = train(tmp_path / "run", **files, **{**both, name: value}).output
    metrics = results(run)["metrics"]
    for split, prefix in (("validation", "eval"), ("test", "test")):
        scores = score_of(run, rows(split, 64))
        assert {key: metrics[f"{prefix}_{key}"] for key in scores} == pytest.approx(scores, abs=1e-4)
    weights, expected = load_file(run / "model.safetensors"), load_file(usual / "model.safetensors")
    if changes == "rounding":
        for key in weights:
            torch.testing.assert_close(weights[key], expected[key], atol=1e-4, rtol=0)
        return
    assert all(torch.equal(weights[key], expected[key]) for key in weights) is (changes != "weights")
    if changes != "weights":
        assert (logged(run) == logged(usual)) is (changes == "nothing")


INSTALLED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")


@pytest.mark.parametrize("optim", [name.value for name in OptimizerNames])
def test_an_installed_optimizer_trains_as_in_the_stock_trainer(optim: str, tmp_path: Path):
    try:
        Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(str(tmp_path), optim=optim, use_cpu=True))
    except (ImportError, ValueError):
        assert optim not in INSTALLED_OPTIMIZERS
        pytest.skip(f"{optim} isn't installed, or wants settings")
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


def test_where_memory_runs_out_batches_shrink_and_the_schedule_is_made_anew(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
def test_a_line_says_where_the_last_weights_are_kept(
    files: dict[str, str], tmp_path: Path, given: dict[str, Any], field: str | None
):
    output = io.StringIO()
    train(tmp_path / "run", Console(file=output), **files, **{**RUN, "metric_for_best_model": None, **given})
    said = re.findall(
        r"The weights of the last step are kept, not the best on validation rows \((.+)\)", output.getvalue()
    )
    assert said == ([f"--set {field}"] if field else [])


@pytest.mark.slow
def test_fields_of_several_processes_change_no_weight_but_by_rounding(files: dict[str, str], tmp_path: Path):
    fields: dict[str, Any] = {
        "ddp_find_unused_parameters": True,
        "ddp_bucket_cap_mb": 1,
        "ddp_broadcast_buffers": False,
    }
    fields |= {"average_tokens_across_devices": False}
    values = {**RUN, "batch_size": 8, "adam_epsilon": 1e-6}
    for name, given in (("usual", {}), ("set", fields), ("static", {"ddp_static_graph": True})):
        in_processes([*LAUNCH, *TRAIN, *command(tmp_path / name, **files, **values, **given)])
    expected = load_file(tmp_path / "usual" / "model.safetensors")
    for name in ("set", "static"):
        weights = load_file(tmp_path / name / "model.safetensors")
        for key in weights:
            torch.testing.assert_close(weights[key], expected[key], atol=2e-4, rtol=0)
