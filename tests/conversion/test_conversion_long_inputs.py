"""The study of long inputs: the mean over windows, the rate that is chosen, and its table."""

import json
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model_cards.studies import long_inputs
from tests.support.common import word_tokenizer


def part(accuracy, **more):
    return {"accuracy": accuracy, "core_seconds": 60.0, "gigabytes": 1.5, **more}


@pytest.fixture
def results():
    parts = {f"{name}/word pairs": {"accuracy": 0.8} for name in long_inputs.DATA}
    for name, base in (("imdb", 0.7), ("review_polarity", 0.5)):
        for seed in long_inputs.SEEDS:
            parts[f"{name}/cut/{seed}"] = part(base + 0.01 * seed, windows=base + 0.01 * seed + 0.05)
            parts[f"{name}/tile/{seed}"] = part(base + 0.01 * seed + 0.02 * (seed % 2), gigabytes=4.0)
    return {"parts": parts, "tests": 400}


def test_gains_are_paired_by_seed_over_both_sets(results):
    lines = long_inputs.table(results).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert [*cells] == [long_inputs.ROWS[row] for row in ("word pairs", "cut", "cut, windows", "tile")]
    # Student's t with 4 degrees of freedom: 2.776 sd / sqrt(5), sd of 0 to 0.04 is 0.0158
    scores = ["0.720 [0.700, 0.740]", "0.520 [0.500, 0.540]; 0 of 5 learned"]
    assert cells["its own table, texts cut at 512"] == [*scores, "", "1.0", "1.5"]
    assert cells["the same, mean over windows of 512"][2:] == ["+0.050 [+0.050, +0.050]", "", ""]
    assert cells["its own table repeated to 1,536"][2].startswith("+0.008 [")
    assert cells["its own table repeated to 1,536"][3:] == ["1.0", "4.0"]
    assert cells["TF-IDF of words and word pairs, a linear model"] == ["0.800", "0.800", "", "", ""]


def test_a_study_of_more_rows_takes_its_sets_ways_and_seeds_and_goes_on(tmp_path, monkeypatch):
    """Few rows hold a fifth out to choose rates; tests of few rows count as few."""
    words = ["--rows", "1000", "--seeds", "3", "--bf16", "--sets", "imdb", "hyperpartisan"]
    words += ["--ways", "cut", "tile", "rope-cut", "rope-dynamic-1536", "--output", str(tmp_path / "long.json")]
    asked: list[long_inputs.Options] = []
    rows = {
        "imdb": [{"text": "film", "label": "good"}] * 1400,
        "hyperpartisan": [{"text": "news", "label": "yes"}] * 449,
    }
    trained = SimpleNamespace(report=SimpleNamespace(metrics={"test_accuracy": 0.6}))

    def fine_tune(options, tables, **_):
        if len(asked) == 9:
            asked.append(None)
            raise KeyboardInterrupt
        asked.append((options.bf16, options.max_length, len(tables["train"]), len(tables["test"])))
        return trained

    monkeypatch.setattr(long_inputs, "fine_tune", fine_tune)
    monkeypatch.setattr(long_inputs, "read_rows", lambda _, name, split: rows[name])
    monkeypatch.setattr(long_inputs, "in_windows", lambda *given: given[-1] / 1000)
    monkeypatch.setattr(long_inputs, "find_minilm", str)
    monkeypatch.setattr(long_inputs.Study, "start", lambda self, way: tmp_path)
    monkeypatch.setattr(long_inputs.Study, "heal", lambda self: {})
    monkeypatch.setattr(
        long_inputs, "fit_words", lambda *_: SimpleNamespace(predict=lambda texts: ["good"] * len(texts[0]))
    )
    monkeypatch.setattr("sys.argv", ["long_inputs", "--data", str(tmp_path), *words])
    with pytest.raises(KeyboardInterrupt):
        long_inputs.main()
    long_inputs.main()
    results = json.loads((tmp_path / "long.json").read_text())
    assert len(asked) - 1 == len(results["parts"]) - 3 == 2 * (2 * 3 + 3 * 4)  # each once
    assert asked[0] == (True, 512, 1000, 200)
    assert (True, 512, 360, 89) in asked
    assert (True, 1536, 449, 449) in asked
    assert results["parts"]["imdb/word pairs"]["accuracy"] == 1.0
    assert results["parts"]["imdb/rope-cut/2"]["windows of 256"] == 0.256
    shown = long_inputs.table(results)
    assert "mean over windows of 256" in shown
    assert "healed `rope`, `dynamic` to 1,536" in shown
    assert "2,048" not in shown


def test_on_a_cluster_what_a_part_needs_is_written_before_it_begins(tmp_path, monkeypatch):
    class Cluster:
        def run(self, task, name, results):
            known = {*results["parts"]}
            assert name == "heal/rope" or "heal/rope" in known
            if name.rpartition("/")[2].isdigit():
                assert {
                    f"imdb/{way}/rate/{rate:g}" for way in ("cut", "rope-cut") for rate in long_inputs.RATES
                } <= known
            future = Future()
            future.set_result({"parts": {name: {}}})
            return future

    monkeypatch.setattr("model_cards.studies.parts.Cluster", Cluster)
    monkeypatch.setattr(long_inputs, "find_minilm", str)
    made = []
    monkeypatch.setattr(long_inputs.Study, "start", lambda self, way: made.append(way))
    options = {"data": str(tmp_path), "minilm": "minilm", "work": tmp_path, "output": tmp_path / "long.json"}
    options |= {"parts": None, "ray": True, "rows": None, "tests": None, "bf16": False, "seeds": 2}
    study = long_inputs.Study(SimpleNamespace(**options, sets=["imdb"], ways=["cut", "rope-cut"]))
    study.run()
    study.parts.wait()
    assert len(study.parts.read()["parts"]) == 1 + 1 + 2 * 3 + 2 * 2
    assert len(made) == 2  # by the one who gives parts away


def test_the_rate_is_the_best_trials_and_of_equal_ones_the_middle(tmp_path):
    study = object.__new__(long_inputs.Study)
    for scores, best in (((0.6, 0.7, 0.8), 2e-4), ((0.7, 0.7, 0.6), 1e-4), ((0.7, 0.6, 0.7), 5e-5)):
        trials = {f"imdb/cut/rate/{rate:g}": part(score) for rate, score in zip(long_inputs.RATES, scores, strict=True)}
        study.parts = SimpleNamespace(read=lambda trials=trials: {"parts": trials})
        assert study.best_rate("imdb", "tile") == best


def test_a_text_is_answered_by_the_mean_over_its_windows(monkeypatch):
    tokenizer = word_tokenizer(dict.fromkeys(["good", "bad"]))
    monkeypatch.setattr(long_inputs, "open_tokenizer", lambda _: tokenizer)
    good, longest = tokenizer.convert_tokens_to_ids("good"), [512]

    class Model(torch.nn.Module):
        """Logits: how many words of a window are good, and how many aren't; no window is longer than 512."""

        device, name_or_path = torch.device("cpu"), ""
        config = SimpleNamespace(id2label={0: "yes", 1: "no"})

        def forward(self, input_ids, attention_mask, **_):
            assert input_ids.shape[1] <= longest[-1]
            share = ((input_ids == good).sum(1) / attention_mask.sum(1))[:, None]
            return SimpleNamespace(logits=torch.cat((share, 1 - share), 1) * 4)

    trained = SimpleNamespace(tokenizer=tokenizer, model=Model())
    late = "good " * 500 + "bad " * 1100  # its first window is good, all of it isn't
    short = "good " * 5
    assert long_inputs.in_windows(trained, [late, short], ["no", "yes"]) == 1.0
    assert long_inputs.in_windows(trained, [late, short], ["yes", "yes"]) == 0.5
    longest.append(256)
    assert long_inputs.in_windows(trained, [late, short], ["no", "yes"], 256) == 1.0
    assert np.isclose(long_inputs.in_windows(trained, [short], ["no"]), 0.0)
