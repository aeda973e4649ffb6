"""The page of evidence and the guides show what the committed results say."""

import dataclasses
import json
from pathlib import Path

import pytest
from common import SCHEMES, UNMEASURED
from comparison_harness import toy
from scipy import stats

from hf_posenc.comparison import read_plan
from hf_posenc.comparison.outcomes import from_dict
from hf_posenc.comparison.plan_file import known_plans
from hf_posenc.comparison.references import MAJORITY, PLACES, USUAL_FORM, WORD_PAIRS, WORDS, to_beat
from hf_posenc.comparison.results_folder import load_plan
from hf_posenc.comparison.study import Study
from hf_posenc.files import write_json, write_text
from model_cards.generate import evidence

ROOT = Path(__file__).parents[2]
LATER = {*UNMEASURED, "pope", "dual_triangle"}
"""Schemes that came after the plans of all schemes had run."""


@pytest.fixture(scope="module")
def studies():
    return evidence.studies()


@pytest.mark.slow  # tests all results
def test_the_page_says_what_the_results_say(studies):
    text = (evidence.FOLDER / evidence.PAGE_NAME).read_text()
    assert text == evidence.render_evidence(by_plan=studies), f"Run `{evidence.COMMAND}` and commit what it writes."


@pytest.mark.slow
def test_the_guide_shows_the_same_table_and_the_command(studies):
    guide = (ROOT / "docs/comparing.md").read_text()
    study = studies["probes"]
    assert evidence.part_table(study, "probes", 64) in guide
    assert evidence.command("probes") in guide


RENAMED = {"num_train_epochs": "epochs", "per_device_train_batch_size": "batch_size"}
RENAMED |= {"word_learning_rate_factor": "word_rate", "config_overrides": "set"}
"""Options of `train` as they were called when the results were made, and as they are now."""


def with_todays_names(options):
    today = {RENAMED.get(name, name): value for name, value in options.items()}
    fields = dict(word.split("=") for word in today.pop("set", "").split(",") if word)
    fields = {name: float(value) for name, value in fields.items()}
    fields |= {name: today.pop(name) for name in ("weight_decay", "classifier_pooling") if name in today}
    return today | ({"set": fields} if fields else {})


def test_results_are_those_of_the_plans_that_come_along(studies):
    for name, study in studies.items():
        plan = read_plan(name, checked=name != "practitioner_pretrained")  # whose checkpoints aren't here
        made = load_plan(study.folder)
        tasks = tuple(dataclasses.replace(task, options=with_todays_names(task.options)) for task in made.tasks)
        made = dataclasses.replace(made, tasks=tasks, options=with_todays_names(made.options))
        if "\nschemes: all\n" in known_plans()[name].read_text():
            plan = dataclasses.replace(plan, schemes=tuple(name for name in SCHEMES if name not in LATER))
        assert made == plan, f"The plan {name!r} isn't the one that was run."
        assert study.missing == []
        assert study.failed == []


def test_the_control_and_none_are_what_they_must_be_and_no_linear_model_answers_a_probe(studies):
    study = studies["probes"]
    probes, halves = study.tasks
    for length in study.lengths(probes):
        for part in study.parts(probes):
            score = study.score(probes, "none", length, part)
            assert (score.mean, score.low, score.high) == (0.5, 0.5, 0.5)
            linear = study.linear(probes, length, part)
            assert linear.pop(USUAL_FORM) == 0.75
            assert set(linear) == {WORDS, WORD_PAIRS, PLACES}
            assert all(abs(value - 0.5) < 0.05 for value in linear.values())
    for run in study.runs(probes, "none"):
        assert {test["examples"] for test in run["tests"]} == {1000}  # 500 pairs
    assert study.score(halves, "none", 64).mean > 0.99


def test_lengths_of_the_same_texts_are_compared_in_pairs(studies):
    """Published as "no evidence" while exact tests of each run (McNemar) said p < 0.001."""
    study = Study.read(studies["long"].folder)  # to be changed
    (task,) = study.tasks
    changes = study.changes(task, 256, 2048)
    runs = study.runs(task, "rope")
    for run in runs:
        units = [
            from_dict(test["metric"], test["units"]).units[:, 0]
            for test in run["tests"]
            if test["part"] == "imdb/test_long" and test["length"] in (256, 2048)
        ]
        more, less = (units[1] > units[0]).sum(), (units[1] < units[0]).sum()
        assert stats.binomtest(int(more), int(more + less)).pvalue < 0.001
    assert changes["rope"].p < 0.01  # of 3 seeds: that others would change as much is less sure than of each of them
    better = {scheme for scheme, change in changes.items() if change.verdict() == "better"}
    assert better == {"rope", "alibi"}
    assert all(changes[scheme].interval.mean > 0.06 for scheme in ("none", "t5"))
    study.plan = dataclasses.replace(
        study.plan, schemes=tuple(name for name in study.plan.schemes if name != "sinusoidal")
    )
    del study.schemes
    assert study.changes(task, 256, 2048)["rope"].verdict() == "better"


def test_every_comparison_has_what_is_to_be_beaten_and_it_is_measured_once(tmp_path, studies):
    for study in studies.values():
        for task in study.tasks:
            assert set(study.references[task.name]) == {MAJORITY, *to_beat(task)}
    assert evidence.measure_baselines() == []
    # Anew, of texts that their word pairs decide, and of a probe.
    rows = [{"text": text, "label": label} for text, label in (("red green", "yes"), ("green red", "no"))] * 20
    folder = tmp_path / "colours"
    for split in ("train", "test"):
        write_text(folder / f"{split}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    plan = toy(tasks=[{"data": str(folder)}, {"kind": "probes", "probes": ["order_near"]}], test_examples=40)
    write_json(tmp_path / "results" / "compare-small" / "plan.json", plan.to_dict())
    first, second = (json.loads(path.read_text())["baselines"] for path in evidence.measure_baselines(tmp_path))
    assert [[b["scheme"], b["tests"][0]["value"]] for b in first] == [[MAJORITY, 0.5], [WORDS, 0.5], [WORD_PAIRS, 1.0]]
    assert [baseline["scheme"] for baseline in second] == [MAJORITY, WORDS, WORD_PAIRS, PLACES, USUAL_FORM]
    assert {test["value"] for test in second[-1]["tests"]} == {0.75}
    assert evidence.measure_baselines(tmp_path) == []


def test_the_page_names_processors_and_commits(studies):
    study = studies["quickstart"]
    commits = ["a" * 40, f"{'a' * 40}-dirty", None]
    done = [{**run, "commit": commits[number % 3]} for number, run in enumerate(study.done)]
    said = evidence.origin(dataclasses.replace(study, done=done))
    assert said.endswith("commit aaaaaaa, aaaaaaa-dirty, unknown, seeds 0, 1, 2, 3, 4.")
    assert said.startswith("25 runs on AMD EPYC")
    assert "commit" not in evidence.origin(study)  # of results that are older than the field


def test_a_folder_without_comparisons_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no results/compare-"):
        evidence.render_evidence(tmp_path)
