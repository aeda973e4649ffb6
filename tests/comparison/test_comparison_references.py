"""What schemes have to beat stands beside them, measured on the same examples."""

import json
import shutil

import numpy as np
import pytest
from comparison_harness import SMALL, made_up, quiet, read_run, toy, write_text_data

from hf_posenc.comparison import execute
from hf_posenc.comparison.findings import conclusions
from hf_posenc.comparison.outcomes import right_outcome
from hf_posenc.comparison.references import MAJORITY, WORD_PAIRS, WORDS, _segments
from hf_posenc.comparison.report import write_report
from hf_posenc.comparison.results_folder import load_references
from hf_posenc.comparison.study import Study
from hf_posenc.errors import UserError
from hf_posenc.files import write_json
from model_cards.generate.evidence import part_table

pytest.importorskip("matplotlib")


def row(text, first):
    return next(line for line in text.splitlines() if line.startswith(f"| {first} "))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two schemes on texts that one word decides."""
    folder = tmp_path_factory.mktemp("compared")
    data = write_text_data(folder / "colours")
    task = {"data": str(data), "extra_tests": "test_long.jsonl"}
    options = {**SMALL, "epochs": 1, "learning_rate": 1e-5}  # too little to learn it
    plan = toy(tasks=[task], train_length=24, test_lengths=[24, 36], test_examples=None, options=options)
    assert execute(plan, folder / "results", console=quiet()).failed == {}
    return plan, folder / "results"


def test_the_baselines_are_tested_on_the_examples_of_the_runs(compared):
    _, results = compared
    run = read_run(results, "colours-none-seed0")
    baselines = json.loads((results / "baselines" / "colours.json").read_text())["baselines"]
    assert [baseline["scheme"] for baseline in baselines] == [MAJORITY, WORDS, WORD_PAIRS]
    for reference in baselines:
        keys = ("part", "length", "examples", "data")
        assert [[t[k] for k in keys] for t in reference["tests"]] == [[t[k] for k in keys] for t in run["tests"]]
    for linear in baselines[1:]:
        assert {test["value"] for test in linear["tests"]} == {1.0}  # "good" and "bad" are words
        assert linear["development"] == {"colours": 1.0}
    assert baselines[0]["tests"][0]["value"] == 0.5


def test_a_table_that_a_linear_model_wins_says_so_first(compared, tmp_path):
    results = shutil.copytree(compared[1], tmp_path / "results")
    run = read_run(results, "colours-none-seed0")
    longer = next(test for test in run["tests"] if test["length"] == 36)
    longer["units"] = right_outcome(np.zeros(longer["examples"])).to_dict()  # else both lengths have the same answers
    write_json(results / "runs/colours-none-seed0/run.json", run)
    study = Study.read(results)
    sentences = conclusions(study)
    assert sentences[0].startswith("**colours, 24 tokens: words win** with 1.000; the best scheme")
    text = write_report(results).read_text()
    assert row(text, "word pairs").endswith("| 1.000 |")  # the table of all tasks
    ranking = text[text.index("### colours: ranking") : text.index("### colours: accuracy against")]
    assert ranking.splitlines()[2] == f"{sentences[0]}"
    lines = [line for line in ranking.splitlines() if line.startswith("|")]
    assert lines[2].startswith("| words | 1.000 ")
    assert lines[3].startswith("| word pairs | 1.000 ")
    assert lines[4].startswith("| 1. ")  # places are those of schemes
    assert row(ranking, "majority").endswith("| no encoder |  |")
    assert row(text[text.index("against length") :], "word pairs").count("1.000") == 2
    assert row(part_table(study, "colours", 24), "word pairs") == "| word pairs | 1.000 | 1.000 |"


def test_baselines_of_other_examples_are_refused(compared, tmp_path):
    _, results = compared
    write_json(tmp_path / "baselines" / "colours.json", json.loads((results / "baselines/colours.json").read_text()))
    other = read_run(results, "colours-none-seed0")
    other["tests"][0]["data"] = "another"
    with pytest.raises(UserError, match="was measured on other examples of 'colours' than the runs. Delete it"):
        load_references(tmp_path, [other])


def test_baselines_have_the_intervals_of_their_examples(tmp_path):
    plan = toy(seeds=3, tasks=[{"kind": "probes", "probes": ["order_near"]}], schemes=["none", "rope"])
    folder = made_up(tmp_path, plan, {"none": 0.5, "rope": 0.9}, units=400)
    tests = read_run(folder, "probes-none-seed0")["tests"]
    reference = {"task": "probes", "scheme": WORD_PAIRS, "tests": [{**test, "data": None} for test in tests]}
    write_json(folder / "baselines" / "probes.json", {"baselines": [reference]})
    study = Study.read(folder)
    value = study.score(study.tasks[0], WORD_PAIRS, 32)
    assert value.high - value.low == pytest.approx(2 * 1.96 * (0.25 / 400) ** 0.5, rel=0.1)
    assert study.rows(study.tasks[0], 32)[0][0] == "rope"
    assert study.unbeaten(study.tasks[0], 32) is None
    assert study.schemes == ["none", "rope"]


def test_texts_of_a_pair_stay_two():
    assert _segments([101, 7, 8, 102, 9, 102, 0, 0], {101, 102, 0}) == [[7, 8], [9], []]
    assert _segments([0, 7, 2, 2, 9, 2], {0, 2}) == [[7], [9], []]


def test_above_means_above_the_better_linear_model(tmp_path):
    """Words beat word pairs here: who beats only word pairs isn't above."""
    plan = toy(seeds=3, tasks=[{"kind": "probes", "probes": ["order_near"]}], schemes=["none", "rope"])
    folder = made_up(tmp_path, plan, {"none": 0.5, "rope": 0.8}, units=400)
    tests = read_run(folder, "probes-none-seed0")["tests"]
    made = []
    for name, right in {WORD_PAIRS: 0.5, WORDS: 0.9}.items():
        units = right_outcome(np.arange(800) < 800 * right, np.arange(800) // 2)
        scored = [{**test, "data": None, "units": units.to_dict(), "value": units.value()} for test in tests]
        made.append({"task": "probes", "scheme": name, "tests": scored})
    write_json(folder / "baselines" / "probes.json", {"baselines": made})
    study = Study.read(folder)
    assert study.linear(study.tasks[0], 32) == {WORDS: 0.9, WORD_PAIRS: 0.5}
    assert study.above(study.tasks[0], 32)["rope"].interval.mean < 0
    assert conclusions(study)[0].startswith("**probes, 32 tokens: words win** with 0.900; the best scheme, `rope`")
    for entry, value in zip(made, (0.7, 0.6), strict=True):  # word pairs are better where that is chosen
        entry["development"] = {"order_near": value}
    write_json(folder / "baselines" / "probes.json", {"baselines": made})
    study = Study.read(folder)
    assert list(study.linear(study.tasks[0], 32)) == [WORD_PAIRS, WORDS]
    assert study.above(study.tasks[0], 32)["rope"].interval.mean > 0
    write_json(folder / "baselines" / "probes.json", {"baselines": made[:1]})
    assert Study.read(folder).above(study.tasks[0], 32)["rope"].interval.mean > 0
    write_json(folder / "baselines" / "probes.json", {"baselines": [{**made[1], "scheme": MAJORITY}]})
    majority = Study.read(folder)
    assert majority.above(majority.tasks[0], 32) == {}
    assert conclusions(majority)[0].startswith("**probes, 32 tokens: majority wins** with 0.900")
