"""The study of training's defaults: what it makes up, and what it writes."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from hf_posenc.training.baseline import baseline_scores
from model_cards.studies import recipe


def test_word_pairs_say_nothing_about_comparisons_and_reading_them_does():
    rows = list(recipe.comparisons(3000, seed=1))
    assert rows == list(recipe.comparisons(3000, seed=1))
    assert min(Counter(row["label"] for row in rows).values()) > 1350
    for row in rows:
        (first, _, degree, word, _, second), (other, _, other_degree, same_word, _, last) = (
            row[side].split() for side in ("text", "text_pair")
        )
        assert word == same_word
        assert {first, second} == {other, last}
        means_the_same = (degree == other_degree) == (first == other)
        assert row["label"] == ("same" if means_the_same else "other")
    texts = tuple([row[side] for row in rows] for side in ("text", "text_pair"))
    numbers = [int(row["label"] == "same") for row in rows]
    parts = [tuple(column[part] for column in texts) for part in (slice(2000), slice(2000, None))]
    scores = baseline_scores(
        (parts[0], numbers[:2000]), {"test": (parts[1], numbers[2000:])}, "single_label_classification"
    )
    assert scores["word_pairs"]["test_accuracy"] == pytest.approx(0.5, abs=0.06)


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
    assert results["parts"]["scratch/comparisons/8000/rope/0"]["baselines"].keys() == {
        "majority",
        "words",
        "word_pairs",
    }
    assert capsys.readouterr().out.count("scratch/comparisons") == 2
    recipe.main()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "argv", ["study", "--output", output, "--table"])
    recipe.main()
    assert "| comparisons | 8000 | " in capsys.readouterr().out
