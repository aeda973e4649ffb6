"""The study of training's defaults: what it writes."""

import json
import os
import sys
from pathlib import Path

import pytest

from model_cards.studies import recipe


@pytest.mark.slow
def test_a_part_is_measured_once_and_shown(tmp_path: Path, monkeypatch, capsys):
    output = str(tmp_path / "recipe.json")
    options = json.dumps({"max_steps": 2, "max_rows": 64})
    words = ["study", "--data", "nowhere", "--output", output, "--seeds", "2", "--parts", "scratch/comparisons"]
    monkeypatch.setattr(sys, "argv", [*words, "--options", options])
    recipe.main()
    results = json.loads(Path(output).read_text())
    assert list(results["parts"]) == [f"scratch/comparisons/8000/rope/{seed}" for seed in (0, 1)]
    assert results["options"]["max_steps"] == 2
    first, _ = results["parts"].values()
    assert first["baselines"].keys() == {"majority", "words", "word_pairs"}
    assert capsys.readouterr().out.count("scratch/comparisons") == 2
    recipe.main()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "argv", ["study", "--output", output, "--table"])
    recipe.main()
    assert "| comparisons | 8000 | " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif("HF_POSENC_DATA" not in os.environ, reason="needs HF_POSENC_DATA")
def test_smoothing_is_compared_on_training_rows_that_no_one_trained_on(tmp_path: Path, monkeypatch, capsys):
    data = Path(os.environ["HF_POSENC_DATA"])
    rows = recipe.splits(data, "trec", 1000, develop=True)
    assert [len(rows[split]) for split in ("train", "test")] == [1000, recipe.DEVELOPMENT]
    whole = {row["text"] for row in recipe.read_rows(data, "trec", "train")}
    assert {*rows["test"]["text"]} <= whole
    words = ["study", "--data", str(data), "--output", str(tmp_path / "few.json"), "--parts", "few/trec/1000"]
    options = json.dumps({"max_steps": 2, "max_rows": 200, "max_length": 16})
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "2", "--options", options])
    recipe.main()
    monkeypatch.setattr(sys, "argv", ["study", "--output", str(tmp_path / "few.json"), "--table"])
    recipe.main()
    assert "| trec | 1,000 | 0." in capsys.readouterr().out
