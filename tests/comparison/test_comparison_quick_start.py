"""The quick start: a plan with one seed, its table and picture, and a model that is loaded without hf_posenc."""

import gzip
import json
import re
import shlex
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from comparison_harness import printed, quiet, read_run

from hf_posenc.comparison import execute, quick_start, quickstart, read_plan
from hf_posenc.comparison.quick_start import PAIR, SCHEMES, load_elsewhere
from hf_posenc.data.reading import classes_of
from hf_posenc.data.sources import example_data, read
from hf_posenc.errors import UserError
from hf_posenc.isolated_load import Answer, IsolatedLoadFailed
from hf_posenc.options import Options

FAST = {
    "set": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
    "max_steps": 20,
    "device": "cpu",
}


def test_the_pair_is_one_of_the_test_split():
    rows = read(Options(data="blimp_order"))["test"]
    first, second = (rows[rows["text"][:].index(text)] for text in PAIR)
    names = classes_of(rows, "label")
    labels = [row["label"] if names is None else names[row["label"]] for row in (first, second)]
    assert labels == ["acceptable", "unacceptable"]
    assert first["pair_id"] == second["pair_id"]
    words = [sorted(re.findall(r"[\w']+", text)) for text in PAIR]
    assert words[0] == words[1]


@pytest.fixture
def few_pairs(tmp_path_factory, monkeypatch):
    """One of ten pairs of each split stands for the data that come along."""
    folder = tmp_path_factory.mktemp("pairs")
    for path in Path(example_data()).glob("*.jsonl.gz"):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
        lines = [line for line in lines if json.loads(line)["pair_id"].endswith("0")]
        (folder / path.stem).write_text("".join(lines))
    monkeypatch.setattr("hf_posenc.data.sources.example_data", lambda: str(folder))
    monkeypatch.delenv("HF_POSENC_DATA", raising=False)  # which may have them, too


@pytest.mark.slow
@pytest.mark.usefixtures("few_pairs")
def test_it_shows_each_scheme_and_loads_the_last_elsewhere(tmp_path, monkeypatch, command, capsys):
    few = partial(read_plan, train_examples=400)
    monkeypatch.setattr(quick_start, "read_plan", few)
    console = quiet()
    study = quickstart(tmp_path, ("none", "rope"), options=FAST, console=console)
    assert "Loading weights" not in capsys.readouterr().err  # no bars between what is shown
    shown = printed(console)
    assert shown.startswith("2 encoders of 2 layers, about ")
    (task,) = study.tasks
    accuracy = {name: value.mean for name, value in study.rows(task, 64)}
    for number, scheme in enumerate(("none", "rope"), start=1):  # a line each
        line = rf"\[{number} of 2\] blimp_order-{scheme}-seed0.*: accuracy {accuracy[scheme]:.3f}, done in \d+ s"
        assert re.search(line, shown)
    # Without positions both sentences are the same bag of words.
    assert accuracy["none"] == 0.5
    row = re.search(rf"none\s+│\s+0\s+│\s+{accuracy['none']:.3f}\s+│\s+([\d.]+)\s+│\s+([\d.]+)", shown)
    assert row[1] == row[2]
    assert re.search(rf"word pairs\s+│\s+│\s+{accuracy['word pairs']:.3f}", shown)
    model = tmp_path / "runs" / "blimp_order-rope-seed0" / "model"
    assert f"{model} in a process without hf_posenc: the same logits" in shown
    assert (model / "README.md").exists()
    assert not list(model.glob("checkpoint-*"))
    picture = re.search(r"As a picture: (\S+);", shown)
    assert picture[1].endswith("blimp_order-ranking.png")
    assert (tmp_path / picture[1]).read_bytes().startswith(b"\x89PNG")
    line = next(line for line in shown.splitlines() if "--data blimp_order" in line)
    fast = ["--max-steps", 20, "--device", "cpu", "--max-rows", 400]
    fast += [word for name, value in FAST["set"].items() for word in ("--set", f"{name}={value}")]
    monkeypatch.chdir(tmp_path)
    assert command(*shlex.split(line)[1:], *fast)[0] == 0  # what it says ran can be run
    again = json.loads((tmp_path / "runs/rope/results.json").read_text())["metrics"]["test_accuracy"]
    assert again == read_run(tmp_path, "blimp_order-rope-seed0")["tests"][0]["value"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (IsolatedLoadFailed("no position_rope"), "model can't be loaded without hf_posenc: no position_rope"),
        (Answer(torch.ones(2, 2), {}, None), "model gives logits that differ by 1.0 where hf_posenc isn't installed"),
    ],
)
def test_a_model_that_is_another_elsewhere_is_an_error(monkeypatch, answer, message):
    monkeypatch.setattr(quick_start, "load_isolated", Mock(side_effect=[answer]))
    with pytest.raises(RuntimeError, match=message):
        load_elsewhere(Path("model"), np.zeros((2, 2)), quiet())


@pytest.mark.slow
def test_rope_is_above_nine_tenths(tmp_path, monkeypatch):
    """The promise of the README, for one seed, in a third of the epochs."""
    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", lambda *_: [])
    plan = read_plan("quickstart", schemes=["rope"], seeds=[4], options={"device": "cpu", "epochs": 2})
    assert execute(plan, tmp_path, console=quiet()).failed == {}
    assert read_run(tmp_path, "blimp_order-rope-seed4")["tests"][0]["value"] > 0.92


def test_an_empty_list_of_schemes_is_refused(tmp_path):
    with pytest.raises(UserError, match="names no schemes"):
        quickstart(tmp_path, ())


def test_a_failed_run_ends_it_with_the_reason(tmp_path, monkeypatch, pretended):
    pretended[0].update(dict.fromkeys(("none", "rope"), RuntimeError("it rained")))
    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", lambda *_: [])
    with pytest.raises(UserError, match="2 of 2 runs failed: RuntimeError: it rained"):
        quickstart(tmp_path, ("none", "rope"), console=quiet())


def test_its_plan_is_one_that_compare_runs():
    plan = read_plan("quickstart")
    assert set(SCHEMES) <= set(plan.schemes)
    assert plan.options == {}  # the defaults of train
    assert (plan.schemes[0], plan.schemes[-1]) == ("none", "rope")
