"""`hf_posenc.compare`, its command and `hf-posenc report`: messages, exit codes, and a small comparison as a whole."""

import pytest
from filelock import FileLock

import hf_posenc
from hf_posenc.comparison.tasks import TaskData
from hf_posenc.errors import UserError
from tests.support.common import BUILTIN
from tests.support.comparison import made_up, toy


def test_runs_can_be_listed_and_options_replace_the_plans(run, tmp_path):
    options = ("--plan", "quick", "--schemes", "all", "--seeds", "1", "--data", "halves", "--reference", "rope")
    code, out, _ = run("compare", "-o", tmp_path / "new", *options, "--dry-run")
    assert not (tmp_path / "new").exists()
    assert (code, len(out.splitlines())) == (0, len(BUILTIN))
    assert all(line.startswith("halves-") for line in out.splitlines())
    searching = run("compare", "-o", tmp_path, "--plan", "quick", "--schemes", "none", "--search", "--dry-run")[1]
    trials = [f"blimp_order-none-rate{factor}x-seed1000000" for factor in ("0.3", "1", "3")]
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
    assert "Compare again, and those that failed are tried again." in out


def test_the_scores_and_the_report_come_when_no_run_is_missing(run, tmp_path, pretended):
    pytest.importorskip("matplotlib")
    results = tmp_path / "results"
    tasks = ("--data", "halves", "--data", "probes", "--schemes", "none,rope")
    words = ("compare", "-o", results, "--plan", "quick", *tasks)
    (results / ".locks").mkdir(parents=True)
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
    pretended[0]["t5"] = RuntimeError("no *bananas* in '/home/me/b.csv'")
    code, out, _ = run(*words[:-1], "none,rope,t5")
    text = (results / "report.md").read_text()
    assert (code, f"The report is in {results / 'report.md'}" in out, text[:1]) == (1, True, "#")
    assert "\n- `halves-t5-seed0`: RuntimeError: no \\*bananas\\* in 'b.csv'\n" in text
    with FileLock(results / ".locks" / "halves-t5-seed0.lock"):
        code, out, _ = run(*words[:-1], "t5", "--seeds", "5")
    assert (code, (results / "report.md").read_text().startswith("**This report is old: ")) == (1, True)


def test_the_report_is_written_and_its_absence_explained(run, tmp_path):
    pytest.importorskip("matplotlib")
    folder = made_up(tmp_path / "results", toy(seeds=2), lambda run, _: 0.5 + run.seed / 10)
    code, out, _ = run("report", folder)
    assert (code, out.split()[-1]) == (0, str(folder / "report.md"))
    assert {"report.md", "scores.png", "lengths.png", "results.csv"} <= {path.name for path in folder.iterdir()}
    code, _, err = run("report", tmp_path / "nowhere")
    assert (code, "holds no results" in err) == (2, True)


def test_the_function_returns_what_the_command_prints(tmp_path, pretended):
    pytest.importorskip("matplotlib")
    fields = {"plan": "quick", "schemes": ("rope", "none"), "seeds": range(3), "output": tmp_path / "new"}
    planned = hf_posenc.compare("probes", **fields, dry_run=True)
    assert planned.runs == planned.missing == [f"probes-{name}-seed{n}" for n in range(3) for name in ("rope", "none")]
    assert (planned.table.empty, planned.findings, planned.folder.exists()) == (True, [], False)
    with pytest.raises(UserError, match="holds no run of its plan"):
        planned.report()
    pretended[0]["rope"] = RuntimeError("it rained")
    assert hf_posenc.compare("probes", **fields).failed == dict.fromkeys(planned.runs[::2], "RuntimeError: it rained")
    del pretended[0]["rope"]
    made = hf_posenc.compare("probes", **fields)
    assert (made.failed, made.missing, made.runs) == ({}, [], planned.runs)
    numbers = {"length": 32, "difference": 0, "low": 0, "high": 0, "p": None}
    words = {"tasks": "probes", "scheme": "rope", "reference": "none", "verdict": "no test: no score varies"}
    assert made.findings == [{**words, **numbers}]
    assert str(made).startswith("|  | probes | 95 % interval |")
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")}
    read = hf_posenc.Comparison(made.folder)
    assert read.table.equals(made.table)
    assert read.report(tmp_path / "mine.md").read_text() == (made.folder / "report.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"new", "mine.md", "scores.png", "results.csv"}
    with pytest.raises(UserError, match="holds results.csv, which the report would replace. Give another folder"):
        read.report(tmp_path / "another.md")
    read.report(tmp_path / "mine.md")  # once more
    assert {path: path.stat().st_mtime_ns for path in made.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"epochs": 0}}, "options={'epochs': 0} is out of range"),
        (
            {"options": {"epochs": 1, "max_steps": 1}},
            "options={'epochs': 1} has no effect beside options={'max_steps': ",
        ),
        ({"options": {"set": {"optim": "adam"}}}, "options={'set': {'optim': 'adam'}} is out of range"),
        ({"options": {"label_delimiter": ""}}, "options={'label_delimiter': ''} separates no labels"),
        ({"delimiter": "::"}, "delimiter='::' can't separate"),
        ({"schemes": []}, "There are no schemes. Give schemes, or"),
        ({"reference": "t5"}, "reference names 't5', which isn't among none"),
    ],
)
def test_an_error_names_a_parameter_as_it_was_given(tmp_path, given, message):
    with pytest.raises(UserError) as refused:
        hf_posenc.compare("halves", output=tmp_path / "new", **{"schemes": "none", **given})
    assert message in str(refused.value)


def test_columns_and_delimiter_are_options_of_the_run(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("body;kind\n" + "".join(f"a{n};x\nb{n};y\n" for n in range(20)))
    seen = []
    monkeypatch.setattr("hf_posenc.comparison.compare.execute", lambda plan, *_, **__: seen.append(plan) or exit(7))
    words = ["-o", "new", "--data", "mine.csv", "--schemes", "none", "--delimiter", ";"]
    code, _, err = run("compare", *words, "--text-column", "body", "--label-column", "kind")
    assert code == 7, err
    assert TaskData(seen[0], seen[0].tasks[0]).splits["train"].names == ["body", "kind"]
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
