"""The page of evidence and the README show what the committed results say."""

import dataclasses
import re
from pathlib import Path

import pytest
from common import SCHEMES

from hf_posenc.comparison import evidence, read_plan
from hf_posenc.comparison.executor import load_plan
from hf_posenc.comparison.plan import about

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_the_results_say():
    text = (evidence.FOLDER / evidence.PAGE_NAME).read_text()
    assert text == evidence.render_evidence(), f"Run `{evidence.COMMAND}` and commit what it writes."


def test_the_readme_shows_the_same_table_and_the_command():
    readme = (ROOT / "README.md").read_text()
    study = evidence.studies()["probes"]
    assert evidence.part_table(study, "probes", 64) in readme
    assert evidence.command("probes") in readme


def test_results_are_those_of_the_plans_that_come_along():
    for name, study in evidence.studies().items():
        plan = read_plan(name)
        plan = dataclasses.replace(plan, schemes=tuple(scheme for scheme in plan.schemes if scheme in SCHEMES))
        assert load_plan(study.folder) == plan, f"The plan {name!r} isn't the one that was run."
        assert study.missing == []
        assert study.failed == []


def test_the_time_that_a_plan_says_it_took_is_what_its_runs_took():
    readme = (ROOT / "README.md").read_text()
    assert "(82 minutes of a CPU core)" in readme
    for name, study in evidence.studies().items():
        said = re.search(r"(\d+) runs, (\d+) minutes of one CPU core", about(name))
        assert said, f"The plan {name!r} doesn't say how long it took."
        assert int(said[1]) == len(study.done)
        assert int(said[2]) == pytest.approx(sum(run["seconds"] for run in study.done) / 60, rel=0.03)


def test_the_control_and_none_are_what_they_must_be():
    study = evidence.studies()["probes"]
    probes, halves = study.tasks
    for length in study.lengths(probes):
        for part in study.parts(probes):
            found = study.score(probes, "none", length, part)
            assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)
    assert study.score(halves, "none", 64).mean > 0.99


def test_a_folder_without_comparisons_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no results/compare-"):
        evidence.render_evidence(tmp_path)
