"""The examples on the stock Trainer: a masked language model, and a labeller of words that starts from it."""

import contextlib
import io
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from training_harness import ROOT, SMALL, rows, write_jsonl
from transformers import AutoModel, AutoModelForMaskedLM, EvalPrediction, pipeline

from hf_posenc.finetuning import fine_tune, make_arguments

MLM, NER = (ROOT / "examples" / f"run_{name}.py" for name in ("mlm", "ner"))
FEW = {"max_steps": 3, "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8}


def run(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Runs a script in this process, as from a command line; returns what it printed."""
    words = [str(word) for name, value in {**FEW, **options}.items() for word in (f"--{name}", value)]
    monkeypatch.setattr("sys.argv", [str(path), *words])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("mlm")
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n\n" for row in rows("train", 64)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        options = {"train_file": folder / "texts.txt", "scheme": "alibi", "vocab_size": 300, "max_length": 32}
        return folder, run(MLM, monkeypatch, **options, output_dir=folder / "run")


def test_a_masked_language_model_fills_masks(language_model: tuple[Path, str]) -> None:
    folder, printed = language_model
    perplexity = float(printed.splitlines()[-1].removeprefix("Perplexity on held-out text: "))
    assert 100 < perplexity < 600  # of 300 tokens, hardly trained
    answers: Any = pipeline("fill-mask", str(folder / "run"))("who saw <mask>")
    assert len(answers) == 5
    assert AutoModel.from_pretrained(folder / "run").config.position_embedding_type == "alibi"


def test_all_schemes_get_the_same_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_jsonl(tmp_path / "texts.jsonl", [{"body": row["text"]} for row in rows("train", 64)])
    seen: list[Any] = []

    class Recorder(transformers.Trainer):
        def train(self, **_: Any) -> Any:
            batches = [batch["labels"].tolist() for batch in self.get_train_dataloader()]
            seen.append((batches, list(self.eval_dataset["input_ids"]), list(self.eval_dataset["labels"])))

        def evaluate(self, **_: Any) -> Any:
            return {"eval_perplexity": 1.0}

    monkeypatch.setattr(transformers, "Trainer", Recorder)
    for scheme in ("none", "learned"):
        options = {"train_file": data, "text_column": "body", "scheme": scheme, "vocab_size": 300, "max_length": 32}
        run(MLM, monkeypatch, **options, output_dir=tmp_path / scheme)
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 8
    assert any(label != -100 for labels in seen[0][2] for label in labels)


def test_perplexity_counts_each_masked_token_once() -> None:
    script = runpy.run_path(str(MLM))
    sums = np.array([[4.0, 1.0], [3.0, 6.0]], dtype=np.float32)
    assert script["perplexity"](EvalPrediction(sums, sums))["perplexity"] == pytest.approx(np.e)


def test_words_are_labelled_from_a_language_model(
    language_model: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [row["text"].split() for row in rows("train", 64)]
    examples = [{"tokens": row, "ner_tags": ["B-PER" if word == "who" else "O" for word in row]} for row in words]
    files = {"train_file": write_jsonl(tmp_path / "a.jsonl", examples)}
    files["validation_file"] = write_jsonl(tmp_path / "b.jsonl", examples[:8])
    options = {**files, "model": language_model[0] / "run", "learning_rate": 1e-2, "max_steps": 40}
    assert "'eval_f1':" in run(NER, monkeypatch, **options, output_dir=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "B-PER", "1": "O"}
    classify: Any = pipeline("token-classification", str(tmp_path / "run"), aggregation_strategy="first")
    assert [(group["start"], group["entity_group"]) for group in classify("dogs saw who slept")] == [(9, "PER")]


def test_a_classifier_starts_from_a_masked_language_model(language_model: tuple[Path, str], tmp_path: Path) -> None:
    source = language_model[0] / "run"
    options = {**SMALL, "config_overrides": None, "max_train_samples": 32, "learning_rate": 0.0, "baseline": False}
    options |= {"dataset_name": "blimp_order", "pretrained": str(source), "output_dir": str(tmp_path)}
    model = fine_tune(*make_arguments(**options), console=Console(file=io.StringIO())).model
    assert type(model).__name__ == "PosEncForSequenceClassification"
    before, after = AutoModelForMaskedLM.from_pretrained(source).base_model.state_dict(), model.base_model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("B-A I-A O B-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("I-A I-A O I-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_entities_are_those_of_conlleval(labels: str, expected: set[Any]) -> None:
    assert runpy.run_path(str(NER))["entities"](labels.split()) == expected


def test_an_entity_counts_only_whole() -> None:
    names = ["O", "B-A", "I-A", "B-B"]
    labels = np.array([[-100, 1, 2, 0, -100], [-100, 3, 0, -100, 1]])
    predicted = np.array([[0, 1, 0, 0, 1], [1, 3, 0, 3, 3]])
    measured = runpy.run_path(str(NER))["scores"](names, EvalPrediction(predicted, labels))
    assert measured == pytest.approx({"accuracy": 4 / 6, "precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3})
