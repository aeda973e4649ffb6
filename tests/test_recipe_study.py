"""The study of training's defaults: what it writes."""

import json
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
