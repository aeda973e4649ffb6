"""`--search`: trials on the validation split before training."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from training_harness import SMALL, results, rows, write_jsonl

from hf_posenc.errors import Diverged
from hf_posenc.finetuning import fine_tune, make_arguments
from hf_posenc.finetuning import search as searching
from hf_posenc.training import UserError
from hf_posenc.training.trainer import RunTrainer

START = {"config_overrides": SMALL["config_overrides"].replace(",initializer_range=0.05", "")}


def run(folder: Path, data: dict[str, str], **options: Any) -> str:
    arguments = {**SMALL, **START, **data, "output_dir": str(folder), "do_eval": True, "baseline": False, **options}
    console = Console(file=StringIO(), width=100)
    fine_tune(*make_arguments(**arguments), console=console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_best_trial_is_trained_with_and_each_is_told(tmp_path: Path, order: dict[str, str]) -> None:
    shown = run(tmp_path / "run", order, search=3, save_strategy="epoch")
    saved = results(tmp_path / "run")
    trials, best = saved["search"]["trials"], saved["search"]["best"]
    assert len(trials) == 3
    assert len({trial["learning_rate"] for trial in trials}) == 3
    assert all(trials[0]["learning_rate"] / 4 <= trial["learning_rate"] <= 4e-3 for trial in trials)
    assert f"eval_{saved['search']['metric']}" == saved["best"]["metric"] == "eval_macro_f1"  # as epochs are compared
    assert trials[best]["macro_f1"] == max(trial["macro_f1"] for trial in trials)
    assert saved["arguments"]["training"]["learning_rate"] == trials[best]["learning_rate"]
    if best:
        assert saved["arguments"]["model"]["hidden_dropout_prob"] == trials[best]["hidden_dropout_prob"]
        start = f"initializer_range={trials[best]['initializer_range']}"
        assert start in saved["arguments"]["model"]["config_overrides"]
    assert all(f"Search: trial {number} of 3" in shown for number in (1, 2, 3))
    assert "(best)" in shown
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"| learning_rate | {trials[best]['learning_rate']} |" in card
    assert f"| hidden_dropout_prob | {trials[best]['hidden_dropout_prob']} |" in card
    assert f"| initializer_range | {trials[best]['initializer_range']} |" in card
    assert all(f"{trial['loss']:.4f}" in shown for trial in trials)


@pytest.mark.slow
def test_the_trials_are_silent_about_what_training_says_again(
    tmp_path: Path, order: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [{**row, "label": str(number % 12)} for number, row in enumerate(rows("train", 160))]
    numbered = write_jsonl(tmp_path / "numbered.jsonl", [{**row, "label": int(row["label"])} for row in lines])
    run(tmp_path / "run", {"train_file": numbered}, search=2, max_steps=2)
    assert caplog.text.count("has 12 different whole numbers") == 1


def test_a_search_never_sees_the_test_split(
    tmp_path: Path, order: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = searching.set_up

    def watched(*arguments: Any) -> Any:
        setup = original(*arguments)
        seen.append((set(setup.encoded), setup.training.max_steps))
        return setup

    monkeypatch.setattr(searching, "set_up", watched)
    run(tmp_path / "run", order, search=2, score_test=True, do_predict=True)
    assert [splits for splits, _ in seen] == [{"train", "validation"}] * 2
    assert "test_accuracy" in results(tmp_path / "run")["metrics"]


def test_the_best_of_equals_has_the_lowest_loss_and_one_that_diverged_is_last() -> None:
    trials = [
        {"accuracy": 0.5, "mse": 2.0, "loss": 0.7},
        {"accuracy": 0.5, "mse": 1.0, "loss": 0.6},
        {"accuracy": 0.9, "mse": 0.0, "loss": float("nan")},
        {"accuracy": 0.6, "mse": 3.0, "loss": 0.8},
    ]
    by = {name: sorted(range(4), key=lambda n: searching._sort_key(trials[n], name)) for name in ("accuracy", "mse")}
    assert by == {"accuracy": [3, 1, 0, 2], "mse": [1, 0, 3, 2]}


def test_a_trial_that_diverges_is_the_worst_and_the_search_goes_on(
    tmp_path: Path, order: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = RunTrainer.train
    seen: list[int] = []

    def diverge_first(self: RunTrainer, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        if len(seen) == 1:
            raise Diverged("no numbers any more")
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "train", diverge_first)
    run(tmp_path / "run", order, search=2, max_steps=3)
    search = results(tmp_path / "run")["search"]
    assert search["best"] == 1
    assert search["trials"][0]["loss"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": 1}, "--search 1 is out of range"),
        ({"search": 2, "do_eval": False}, "--search 2 chooses on validation data"),
        ({"search": 2, "resume_from_checkpoint": "true"}, "--search 2 can't resume"),
    ],
)
def test_a_search_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    data = {"train_file": write_jsonl(tmp_path / "train.jsonl", rows("train", 8))}
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", data, **options)


@pytest.mark.slow
def test_a_given_rate_is_kept(tmp_path: Path, order: dict[str, str]) -> None:
    run(tmp_path / "run", order, search=2, learning_rate=2e-3)
    saved = results(tmp_path / "run")
    assert saved["arguments"]["training"]["learning_rate"] == 2e-3
    assert "learning_rate" not in saved["search"]["trials"][0]
