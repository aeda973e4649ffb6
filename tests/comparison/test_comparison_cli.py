"""`hf-posenc compare` and `hf-posenc report`: exit codes, messages, and a small comparison from end to end."""

import shutil

import pytest
from comparison_harness import made_up, toy
from filelock import FileLock

from hf_posenc.comparison.plan import DEVELOPMENT_SEED
from hf_posenc.comparison.plan_file import read_plan
from hf_posenc.comparison.results import record_plan
from hf_posenc.comparison.tasks import load_task
from hf_posenc.data.reading import names_of
from hf_posenc.schemes.names import known_schemes


def test_runs_can_be_listed_and_options_replace_the_plans(run, tmp_path):
    options = ("--plan", "quick", "--schemes", "all", "--seeds", "1", "--data", "halves", "--baseline", "rope")
    code, out, _ = run("compare", "-o", tmp_path / "new", *options, "--dry-run")
    assert not (tmp_path / "new").exists()
    assert (code, len(out.splitlines())) == (0, len(known_schemes()))
    assert all(line.startswith("halves-") for line in out.splitlines())
    searching = run("compare", "-o", tmp_path, "--plan", "quick", "--schemes", "none", "--search", "--dry-run")[1]
    trials = [f"blimp_order-none-rate{factor}x-seed{DEVELOPMENT_SEED}" for factor in ("0.3", "1", "3")]
    assert searching.split() == [*trials, "blimp_order-none-seed0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "There are no tasks. Give --data, or tasks: [...] in a plan"),
        (["--plan", "quick", "--seeds", "many"], "Invalid value for '--seeds': "),
        (["--plan", "quick", "--options", "[1]"], "no JSON object"),
        (["--data", "no/where", "--schemes", "rope"], "no/where"),
    ],
)
def test_bad_input_ends_in_one_line_and_code_2(run, tmp_path, words, message):
    code, _, err = run("compare", "-o", tmp_path / "new", *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_failed_runs_make_the_exit_code_1(run, tmp_path, pretended):
    pretended[0]["none"] = RuntimeError("it rained")
    code, out, _ = run("compare", "-o", tmp_path / "new", "--plan", "quick", "--schemes", "none", "--seeds", "1")
    assert code == 1
    assert "failed: RuntimeError: it rained" in out
    assert "0 runs made, 0 were there, 1 failed" in out
    assert "tries those that failed again" in out


def test_the_scores_and_the_report_come_when_no_run_is_missing(run, tmp_path, pretended):
    pytest.importorskip("matplotlib")
    results = tmp_path / "results"
    tasks = ("--data", "halves", "--data", "probes", "--schemes", "none,rope")
    words = ("compare", "-o", results, "--plan", "quick", *tasks)
    (results / ".locks").mkdir(parents=True)
    record_plan(read_plan("quick", tasks=["halves", "probes"]), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "plan.json", results)
    with FileLock(results / ".locks" / "halves-rope-seed0.lock"):  # another process makes it
        code, out, _ = run(*words)
    assert "halves-rope-seed0: another process is making it" in out
    assert (code, "3 runs made, 0 were there, 1 are another process's" in out) == (0, True)
    assert "Runs that are missing: 1. What is there: hf-posenc report" in out
    assert not (results / "report.md").exists()
    code, out, _ = run(*words)
    assert (code, "1 runs made, 3 were there" in out) == (0, True)
    assert "|  | halves | probes |" in out
    assert {line.split()[1] for line in out.splitlines() if line.startswith("| ")} >= {"`none`", "`rope`"}
    assert {"report.md", "scores.png", "results.csv"} <= {path.name for path in results.iterdir()}


def test_the_report_is_written_and_its_absence_explained(run, tmp_path):
    pytest.importorskip("matplotlib")
    folder = made_up(tmp_path / "results", toy(seeds=2), lambda run, _: 0.5 + run.seed / 10)
    code, out, _ = run("report", folder)
    assert (code, out.split()[-1]) == (0, str(folder / "report.md"))
    assert {"report.md", "scores.png", "lengths.png", "results.csv"} <= {path.name for path in folder.iterdir()}
    code, _, err = run("report", tmp_path / "nowhere")
    assert (code, "holds no results" in err) == (2, True)


def test_columns_and_delimiter_are_options_of_the_run(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("body;kind\n" + "".join(f"a{n};x\nb{n};y\n" for n in range(20)))
    seen = []
    monkeypatch.setattr("hf_posenc.comparison.execute", lambda plan, *_, **__: seen.append(plan) or exit(7))
    words = ["-o", "new", "--data", "mine.csv", "--schemes", "none", "--delimiter", ";"]
    code, _, err = run("compare", *words, "--text-column", "body", "--label-column", "kind")
    assert code == 7, err
    assert names_of(load_task(seen[0], seen[0].tasks[0])["train"]) == ["body", "kind"]
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_quick_plan_from_end_to_end(run, tmp_path):
    """What the README promises of the quick start: few lines, `none` at one half, `rope` well above word pairs."""
    pytest.importorskip("matplotlib")
    words = ("compare", "--plan", "quick", "-o", tmp_path / "results", "--keep-models")
    code, out, _ = run(*words)
    assert code == 0
    assert len(out.splitlines()) <= 25
    assert "2 runs made, 0 were there, 0 failed" in out
    rows = dict(line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| ") and "." in line)
    assert rows["`none`"].split()[0] == rows["words"] == "0.500"
    assert float(rows["`rope`"].strip("*")) > float(rows["word pairs"]) + 0.05
    assert (tmp_path / "results" / "report.md").exists()
    assert (tmp_path / "results" / "models" / "blimp_order-rope-seed0" / "config.json").exists()
    assert out.rstrip().endswith("hf-posenc train -o runs/mine --data mine.csv")
    assert "0 runs made, 2 were there" in run(*words)[1]
