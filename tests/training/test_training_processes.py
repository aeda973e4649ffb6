"""What works in one process works in two, with the same results: the same global batch, no dropout."""

import logging
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hf_posenc.training.arguments import RunArguments
from hf_posenc.training.run import shared_folder
from rich.console import Console
from training_harness import (
    ENVIRONMENT,
    LAUNCH,
    TRAIN,
    command,
    in_processes,
    read_jsonl,
    results,
    rows,
    train_by_command,
    write_jsonl,
)
from transformers import BertConfig, BertForMaskedLM

from hf_posenc.data import train_tokenizer
from hf_posenc.training import run
from hf_posenc.training.progress import main_console

BEST = {"do_eval": True, "save_strategy": "epoch", "num_train_epochs": 3, "learning_rate": 1e-2}
BEST |= {"metric_for_best_model": "loss"}


def test_every_process_works_in_the_folder_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = RunArguments(output_dir=str(tmp_path))
    with shared_folder(training, ".mine-") as folder:
        assert folder.parent == tmp_path
    assert not folder.exists()
    folder.mkdir()
    monkeypatch.setattr(RunArguments, "process_index", 1)
    monkeypatch.setattr(run, "broadcast_object_list", lambda names: names.__setitem__(0, str(folder)))
    with shared_folder(training, ".mine-") as other:
        assert other == folder
    assert folder.exists()  # the first deletes it
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_alone_prints(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunArguments, "process_index", rank)
    console = Console(file=StringIO())
    assert (main_console(RunArguments(output_dir=str(tmp_path)), console) is console) == (rank == 0)
    assert main_console(RunArguments(output_dir=str(tmp_path))).quiet == (rank == 1)


@pytest.mark.parametrize(("rank", "level"), [("0", logging.WARNING), ("1", logging.ERROR)])
def test_the_first_process_alone_gives_notices(rank: str, level: int) -> None:
    asked = "import hf_posenc, logging; print(logging.getLogger('hf_posenc.training.x').getEffectiveLevel())"
    environment = {**ENVIRONMENT, "RANK": rank}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == level


def a_bert(folder: Path) -> Path:
    """A tiny BERT with a tokenizer."""
    tokenizer = train_tokenizer([row["text"] for row in rows("train", 160)], vocab_size=300)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes)
    BertForMaskedLM(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    return folder / "bert"


def split_files(folder: Path, labels: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """Sentences of each split with what is made of each."""
    return {
        f"{split}_file": write_jsonl(folder / f"m{split}.jsonl", [labels(row["text"]) for row in rows(split, count)])
        for split, count in (("train", 160), ("validation", 61), ("test", 35))
    }


def price(text: str) -> dict[str, Any]:
    """Far from 0, so that the units of the data matter."""
    return {"text": text, "label": 1000.0 + 25.5 * len(text)}


CASES: dict[str, Any] = {
    "texts": lambda folder: {"max_eval_samples": 61, "learning_rate": None, "max_seq_length": 8},
    "pretrained": lambda folder: {"pretrained": a_bert(folder), "config_overrides": None},
    "adapted": lambda folder: {"pretrained": a_bert(folder), "config_overrides": None, "lora": True},
    "numbers": lambda folder: {**split_files(folder, price), "do_predict": True},
}


@pytest.mark.promise(
    "Numbers",
    "Two processes choose the best weights of one, also with `--pretrained` and `--lora`",
)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_where_one_ends(
    case: str, order: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = CASES[case](tmp_path)
    options = {**order, **BEST, "hidden_dropout_prob": 0, **own}
    assert train_by_command(monkeypatch, **{**options, "output_dir": tmp_path / "one"}) == 0
    options |= {"output_dir": tmp_path / "two", "per_device_train_batch_size": 8}  # each has half of the batch
    printed = in_processes([*LAUNCH, *TRAIN, *command(options)])
    one_process, two_processes = results(tmp_path / "one"), results(tmp_path / "two")
    assert [one_process["processes"], two_processes["processes"]] == [1, 2]
    best = two_processes["best"]
    # both hold the best weights
    assert two_processes["metrics"][best["metric"]] == pytest.approx(best["value"], abs=1e-6)
    assert best["step"] == one_process["best"]["step"]
    assert best["step"] < 30 or case == "numbers"  # which are learned better and better
    for name in ("train_loss", "eval_loss"):
        assert two_processes["metrics"][name] == pytest.approx(one_process["metrics"][name], abs=1e-4), name
    if case == "texts":
        baselines = [run["assessment"]["baselines"] for run in (one_process, two_processes)]
        assert baselines[1] == pytest.approx(baselines[0], abs=1e-6)
        assert printed.count("train inputs (") == 1
    if "do_predict" in own:
        first, second = (read_jsonl(tmp_path / name / "predictions.jsonl") for name in ("one", "two"))
        assert len(first) == len(second) == 35
        for mine, other in zip(first, second, strict=True):
            assert other["prediction"] == pytest.approx(mine["prediction"], rel=1e-4)
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith("[transformers]")]
    print(printed)
    assert sorted(set(lines)) == sorted(lines)
    assert not [path.name for path in (tmp_path / "two").iterdir() if path.name.startswith(".")]
