"""What a run leaves is published with the model: nothing secret, nothing of this machine; and resuming is exact."""

from pathlib import Path
from typing import Any

import pytest
from common import others_slow
from training_harness import assert_same_weights, copy_until, train, write_csv

from hf_posenc.data.options import DataArguments
from hf_posenc.finetuning import make_arguments
from hf_posenc.training import UserError
from hf_posenc.training.arguments import ModelArguments, RunArguments, as_dict

EXAMPLES = [{"text": f"{word} film number {n}", "label": word} for n in range(12) for word in ("good", "bad")]


def test_no_published_file_holds_a_token_or_a_folder_of_this_machine(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "mine.csv", EXAMPLES)
    first, second = tmp_path / "first", tmp_path / "second"
    secrets = {"hub_token": "hf_SECRET", "token": "hf_OTHER"}
    train(first, train_file=data, max_steps=1, **secrets, save_strategy="steps", save_steps=1)
    train(second, train_file=data, max_steps=1, model_name_or_path=str(first), config_overrides=None, vocab_size=8000)
    files = [path for folder in (first, second) for path in folder.rglob("*") if path.is_file()]
    pickles = {"optimizer.pt", "scheduler.pt", "rng_state.pth"}  # what a checkpoint resumes from, and nothing else
    assert {path.name for path in files if path.suffix in (".bin", ".pt", ".pth", ".pkl")} == pickles
    assert all(path.parent.name == "checkpoint-1" for path in files if path.name in pickles)
    assert any("checkpoint-1" in str(path) for path in files)
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets.values()), path
        if path.suffix in (".json", ".md"):
            assert str(tmp_path).encode() not in content, path


@pytest.mark.promise("Tokens", "Published results name no folder of your machine")
def test_results_name_files_without_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients").mkdir()
    write_csv(tmp_path / "clients" / "a.csv", EXAMPLES[:2])
    asked = {"train_file": "clients/a.csv", "validation_file": "../gone/b.csv", "test_file": "~/c.csv"}
    saved = as_dict(DataArguments(**asked, text_column_delimiter="/"))
    assert [saved[name] for name in asked] == ["a.csv", "b.csv", "c.csv"]
    assert saved["text_column_delimiter"] == "/"
    model = as_dict(ModelArguments(model_name_or_path="owner/name", config_overrides='{"a": "b/c"}'))
    assert (model["model_name_or_path"], model["config_overrides"]) == ("owner/name", '{"a": "b/c"}')
    training = as_dict(
        RunArguments(output_dir="clients", accelerator_config={"gradient_accumulation_kwargs": {"a": "/b/c"}})
    )
    assert training["accelerator_config"]["gradient_accumulation_kwargs"] == {"a": "c"}


@pytest.mark.parametrize("step", others_slow([2, 3, 5], 3))
def test_a_run_resumed_after_any_step_ends_in_the_same_weights(tmp_path: Path, step: int) -> None:
    data = write_csv(tmp_path / "a.csv", EXAMPLES)
    options: dict[str, Any] = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "do_eval": True}
    options |= {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 10, "hidden_dropout_prob": 0.1}
    options |= {"train_file": data, "validation_file": data}
    train(tmp_path / "whole", **options)
    copy_until(tmp_path / "whole", tmp_path / "again", step)
    train(tmp_path / "again", **options, resume_from_checkpoint=str(tmp_path / "again" / f"checkpoint-{step}"))
    assert_same_weights(tmp_path / "whole", tmp_path / "again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "none"}, "was trained with position_embedding_type='rope'"),
        ({"label": "aaa"}, "was trained with id2label"),
        ({"lr_scheduler_type": "cosine"}, "was trained with lr_scheduler_type='linear'"),
        ({"one_cycle": True}, "was trained with one_cycle=False"),
        ({"position_learning_rate_factor": 3.0}, "was trained with position_learning_rate_factor=None"),
    ],
)
def test_a_run_is_resumed_with_what_it_began_with(tmp_path: Path, change: dict[str, str], message: str) -> None:
    data = write_csv(tmp_path / "mine.csv", EXAMPLES)
    options = {"position_embedding_type": "rope", "save_strategy": "epoch"}
    train(tmp_path / "run", train_file=data, **options)
    if "label" in change:
        renamed = [{**row, "label": change["label"] if row["label"] == "good" else "bad"} for row in EXAMPLES]
        data = write_csv(tmp_path / "mine.csv", renamed)
    else:
        options |= change
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", train_file=data, **{**options, "num_train_epochs": 2}, resume_from_checkpoint="true")


@pytest.mark.parametrize("metric", ["mse", "eval_mse", "loss"])
def test_the_best_checkpoint_by_a_metric_that_should_shrink_is_the_lowest(metric: str) -> None:
    _, _, training = make_arguments(output_dir="x", metric_for_best_model=metric)
    assert training.greater_is_better is False
    _, _, training = make_arguments(output_dir="x", metric_for_best_model="accuracy")
    assert training.greater_is_better is True
