"""`hf-posenc compare` and `hf-posenc report`: exit codes, messages, and a small comparison from end to end."""

import shutil
from pathlib import Path

import pytest
from comparison_harness import made_up, toy
from filelock import FileLock

from hf_posenc import POSITIONS
from hf_posenc.comparison.plan import DEVELOPMENT_SEED
from hf_posenc.comparison.plan_file import read_plan
from hf_posenc.comparison.results_folder import record_plan


def test_runs_can_be_listed_without_being_made(command, tmp_path):
    words = ("--data", "probes", "--data", "halves", "--data", "sst2", "--schemes", "rope,none", "--seeds", "3,4")
    code, out, _ = command("compare", "-o", tmp_path / "new", *words, "--dry-run")
    assert code == 0
    first = ["probes-rope-seed3", "probes-none-seed3", "halves-rope-seed3", "halves-none-seed3"]
    assert (out.splitlines()[:4], len(out.splitlines())) == (first, 12)
    assert not (tmp_path / "new").exists()


def test_trials_are_listed_before_the_runs_that_need_them(command, tmp_path):
    words = ("--plan", "quick", "--schemes", "none", "--search", "--dry-run")
    listed = command("compare", "-o", tmp_path / "new", *words)[1].split()
    assert len(listed) == 3 + 1
    trials = [f"blimp_order-none-rate{factor}x-seed{DEVELOPMENT_SEED}" for factor in ("0.3", "1", "3")]
    assert listed[:4] == [*trials, "blimp_order-none-seed0"]


def test_the_guide_says_how_many_trainings_the_practitioners_plan_has_at_base_size():
    plan = read_plan("practitioner", preset="base")
    work = plan.work()
    trials = len(work) - len(plan.runs())
    guide = " ".join((Path(__file__).parents[2] / "docs/comparing.md").read_text().split())
    assert f"{len(work)} trainings of 512 to 564 steps each; {trials} of the trainings choose learning rates" in guide
    assert all(plan.options_of(task)["size"] == "base" for task in plan.tasks)


def test_options_replace_the_plans(command, tmp_path):
    options = ("--plan", "quick", "--schemes", "all", "--seeds", "1", "--data", "halves", "--baseline", "rope")
    code, out, _ = command("compare", "-o", tmp_path, *options, "--dry-run")
    assert (code, len(out.splitlines())) == (0, len(POSITIONS))
    assert all(line.startswith("halves-") for line in out.splitlines())
    by_itself = command("compare", "-o", tmp_path, "--plan", "quick", "--dry-run")[1]
    assert by_itself.split() == ["blimp_order-none-seed0", "blimp_order-rope-seed0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "names no tasks"),
        (["--plan", "nowhere.yaml"], "There is no plan 'nowhere.yaml'"),
        (["--plan", "quick", "--schemes", "ropee"], "Did you mean 'rope'?"),
        (["--plan", "quick", "--seeds", "many"], "--seeds 'many' are no whole numbers"),
        (["--plan", "quick", "--test-lengths", "64,x"], "--test-lengths '64,x'"),
        (["--plan", "quick", "--options", "[1]"], "no JSON object"),
        (["--plan", "quick", "--options", '{"learning_rat": 1}'], "learning_rat"),
        (["--data", "no/where", "--schemes", "rope"], "no/where"),
    ],
)
def test_bad_input_ends_in_one_line_and_code_2(command, tmp_path, words, message):
    code, _, err = command("compare", "-o", tmp_path / "new", *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_failed_runs_make_the_exit_code_1(command, tmp_path, pretended, monkeypatch):
    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", lambda *_: [])
    pretended[0]["none"] = RuntimeError("it rained")
    code, out, _ = command("compare", "-o", tmp_path / "new", "--plan", "quick", "--schemes", "none", "--seeds", "1")
    assert code == 1
    assert "failed: RuntimeError: it rained" in out
    assert "0 runs made, 0 were there, 1 failed" in out
    assert "tries those that failed again" in out


def test_the_scores_and_the_report_come_when_no_run_is_missing(command, tmp_path, pretended, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", lambda *_: [])
    results = tmp_path / "results"
    words = (
        "compare",
        "-o",
        results,
        "--plan",
        "quick",
        "--data",
        "halves",
        "--data",
        "probes",
        "--schemes",
        "none,rope",
    )
    (results / ".locks").mkdir(parents=True)
    record_plan(read_plan("quick", tasks=["halves", "probes"]), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "plan.json", results)
    with FileLock(results / ".locks" / "halves-rope-seed0.lock"):  # another process makes it
        code, out, _ = command(*words)
    assert (code, "3 runs made, 0 were there, 1 are another process's" in out) == (0, True)
    assert "Runs that are missing: 1. What is there: hf-posenc report" in out
    assert not (results / "report.md").exists()
    code, out, _ = command(*words)
    assert (code, "1 runs made, 3 were there" in out) == (0, True)
    assert "| positions | halves | probes |" in out
    assert {line.split()[1] for line in out.splitlines() if line.startswith("| ")} >= {"none", "rope"}
    assert (results / "report.md").exists()


def test_the_report_is_written_and_its_absence_explained(command, tmp_path):
    pytest.importorskip("matplotlib")
    folder = made_up(tmp_path / "results", toy(seeds=2), {"none": 0.5, "rope": 0.9})
    code, out, _ = command("report", folder, "-o", tmp_path / "out")
    assert code == 0
    assert str(tmp_path / "out" / "report.md") in out
    assert (tmp_path / "out" / "report.md").exists()
    code, _, err = command("report", tmp_path / "nowhere")
    assert (code, "holds no results" in err) == (2, True)


@pytest.mark.slow
def test_the_quick_plan_from_end_to_end(command, tmp_path):
    """What the README promises of the quick start: few lines, `none` at one half, `rope` well above word pairs."""
    pytest.importorskip("matplotlib")
    words = ("compare", "--plan", "quick", "-o", tmp_path / "results", "--keep-models")
    code, out, _ = command(*words)
    assert code == 0
    assert len(out.splitlines()) <= 25
    assert "2 runs made, 0 were there, 0 failed" in out
    rows = dict(line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| "))
    assert rows["none"] == rows["words"] == "0.500"
    assert float(rows["rope"]) > float(rows["word pairs"]) + 0.05
    assert (tmp_path / "results" / "report.md").exists()
    assert list((tmp_path / "results" / "report_pictures").glob("*.png"))
    assert (tmp_path / "results" / "runs" / "blimp_order-rope-seed0" / "model" / "config.json").exists()
    assert out.rstrip().endswith("hf-posenc train -o runs/mine --data mine.csv")
    assert "0 runs made, 2 were there" in command(*words)[1]
