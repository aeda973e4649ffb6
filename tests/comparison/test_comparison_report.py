"""The report: its table, sentences, pictures, and what it says of what is missing."""

import html
import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from hf_posenc import SCHEMES, Comparison
from hf_posenc.comparison.results import load_plan, read_result, write_result
from hf_posenc.errors import UserError
from hf_posenc.markdown import code, markdown_table, plain
from tests.support.comparison import done_run, made_up, row, toy

pytest.importorskip("matplotlib")

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"
LEVELS = {"none": 0.5, "rope": 0.8, "learned": 0.7, "t5": 0.79}


def level(run, length):
    """By scheme, with a spread over seeds; `learned` ends at 32 tokens."""
    if run.scheme == "learned" and length > 32:
        return None
    return LEVELS[run.scheme] - (length - 32) / 1000 + 0.001 * (run.seed * (1 + list(LEVELS).index(run.scheme)) % 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    plan = toy(schemes=[*LEVELS], seeds=5, tasks=[{"data": "probes", "name": "order"}])
    return made_up(tmp_path_factory.mktemp("made"), plan, level, majority=0.5, word_pairs=0.75)


@pytest.fixture(scope="module")
def text(folder):
    return report(folder)


def report(folder):
    return Comparison(folder).report().read_text()


def cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_table_has_the_baselines_above_a_line_and_the_best_scheme_first(text):
    table = text.split("\n\n")[3].splitlines()[2:]
    assert [line.split("|")[1].strip() for line in table] == [
        *("majority", "word pairs", "—"),
        *("`rope`", "`t5`", "`learned`", "`none`"),
    ]
    mean, interval, seconds, weights = cells(text, "`rope`")
    assert (mean, seconds, weights) == ("**0.802**", "3", "1,000")
    assert re.fullmatch(r"\[0.\d{3}, 0.\d{3}\]", interval)
    assert cells(text, "`none`")[0] == "0.502 0/5"  # runs above the majority
    assert cells(text, "word pairs") == ["0.750", "", "", ""]


def test_a_stranger_learns_which_scheme_by_how_much_and_how_sure(text):
    answer = "Yes on order: `rope` has +0.300 [+0.296, +0.304] against `none`, 5 of 5 runs above all of `none`."
    assert text.split("\n\n")[1] == f"**Does order matter in this data?** {answer}"
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert re.fullmatch(
        r"- \*\*order\*\*: `rope` has the highest mean of the schemes, 0.802; \+0.300 \[\+0.296, \+0.304\] against "
        r"`none`, better; the next, `t5`, has -0.010 \[-0.014, -0.006\] against it, worse. "
        r"The best baseline, word pairs, has 0.750.",
        lines[0],
    ), lines[0]
    assert lines[1].startswith("- Compared with `none`: better on order at 32 tokens `rope` (+0.300), `t5` (+0.29")
    assert lines[2].startswith("- Compared with `rope`: worse on order at 32 tokens `learned` (-0.100), ")
    assert len(lines) <= 5
    rows = [line for line in text.splitlines() if line.startswith("| order |")]
    assert len(rows) == 3 + 2  # at 32 and at 48 tokens, where `learned` can't be tested
    assert all(line.count("|") == 8 for line in rows)
    assert re.search(r"\| `t5` \| \+0.29. \[\S+ \S+\] \| better \(p \S+\) \| -0.01", rows[2]), rows[2]


def test_other_lengths_stand_in_a_table_of_their_own(text):
    longer = text.partition("## At other lengths")[2]
    assert cells(longer, "`learned`")[0] == "too long"
    assert cells(longer, "`rope`")[0].startswith("**0.78")
    assert "scores.png" in text
    assert "lengths.png" in text


def test_a_report_fits_two_screens_and_ends_with_its_command(folder, text):
    committed = [path.read_text() for path in RESULTS.glob("*/report.md")]
    assert len(committed) == 5
    assert all(len(report.splitlines()) <= 100 for report in (*committed, text))
    assert f"hf-posenc compare --plan {folder}/plan.json -o {folder} --seeds 10" in text
    assert max(len(re.split(r"(?<=[.;:]) ", line)[0].split()) for line in text.splitlines() if line[:1] == "-") <= 30


def test_few_seeds_of_which_some_learn_nothing_are_explained(tmp_path):
    """With the number of seeds that would do; a legend of 0/3 stands where such a score does."""
    legend = "0/3 after a score: so many runs are above the majority's answers (p < .001), and the others aren't."
    plan = toy(schemes=["none", "rope"], seeds=3, test_lengths=[32])
    text = report(made_up(tmp_path / "a", plan, level, majority=0.5))
    assert "1 difference couldn't be tested: where some runs aren't above the majority, fewer than 5 seeds of a" in text
    assert re.search(r"\+0.30\d \| no test: fewer than 5 seeds, and not all learned \|", text)  # nor an interval
    assert legend in text
    text = report(made_up(tmp_path / "b", plan, level, majority=0.2))
    assert "0/3" not in text
    assert "after a score" not in text
    assert "be tested" not in text


def test_seeds_that_ran_at_several_rates_are_said(tmp_path):
    """As where trials were made anew on another machine, and chose another rate."""
    plan = toy(schemes=["none", "rope"], seeds=3, test_lengths=[32])
    folder = made_up(tmp_path / "a", plan, level)
    assert "another rate" not in report(folder)
    last = plan.runs()[-1]
    write_result(folder, plan, last, {"rows": done_run(plan, last, rate=0.003)})
    said = "**Some seeds ran at another rate than others, so they don't compare:** `rope` on probes (0.001, 0.003)."
    assert said in report(folder)


LEADS = {"schemes": ["none", "rope", "t5"], "reference": "rope", "seeds": 5, "test_lengths": [32]}
AHEAD = "**probes: words, a baseline, has a higher mean**. `rope` has the highest mean of the schemes, 0.80"


@pytest.mark.parametrize(
    ("fields", "baselines", "said", "end"),
    [
        (LEADS, {"majority": 0.2}, "`rope` has the highest mean of the schemes, 0.802; the next, `t5`, has -0.01", ""),
        ({"seeds": 2}, {"words": 0.9}, AHEAD, "The best baseline, words, has 0.900."),
        ({}, {}, "of the schemes, 0.800; +0.300 against `none`, no test: one seed.", ""),
    ],
)
def test_what_leads_is_said_first_be_it_the_reference_or_a_baseline(fields, baselines, said, end, tmp_path):
    text = report(made_up(tmp_path, toy(**fields), level, **baselines))
    first = next(line for line in text.splitlines() if line.startswith("- "))
    assert said in first
    assert first.endswith(end)


@pytest.mark.parametrize(
    ("scores", "said"),
    [  # of five seeds; `rope` has the highest mean in the first two
        ({"none": (50, 1), "rope": (79, 30), "t5": (70, 1)}, "Yes on probes: `t5` has +0.200 ["),
        ({"none": (50, 1), "rope": (52, 0.5), "t5": (51, 0.5)}, "Yes, within 0.05 on probes: `rope` has +0.020 ["),
        ({"none": (90, 1), "rope": (80, 1), "t5": (70, 1)}, "Not shown on probes: `rope` has -0.100 ["),
        ({"none": (50, 9), "rope": (52, 9), "t5": (51, 9)}, "Not decided on probes: `rope` has +0.020 ["),
    ],
)
def test_order_matters_where_any_scheme_is_shown_to_be_better_than_none(scores, said, tmp_path):
    plan = toy(schemes=[*scores], seeds=5, test_lengths=[32], margin=0.05)
    folder = made_up(
        tmp_path, plan, lambda run, _: (scores[run.scheme][0] + scores[run.scheme][1] * (run.seed - 2) / 2) / 100
    )
    assert f"**Does order matter in this data?** {said}" in report(folder)


def test_the_table_for_others_has_contrasts_and_trials(tmp_path, run):
    """They are read again where the runs aren't there; a rate at the edge of what was tried is said."""
    plan = toy(seeds=3, test_lengths=[32], search=[1, 2], tasks=[{"data": "probes", "name": "a_b"}])
    folder = made_up(tmp_path / "made", plan, level, words=0.5)
    for scheme in plan.schemes:
        for trial in plan.trials(plan.tasks[0], scheme):
            rows = done_run(plan, trial, rate=0.001 * (trial.factor or 1))
            write_result(folder, plan, trial, {"rows": rows})
    diverged = plan.trials(plan.tasks[0], "rope")[0]
    rows = done_run(plan, diverged, [{"part": "a_b", "score": None}], rate=0.0005, diverged="it rose")
    write_result(folder, plan, diverged, {"rows": rows})
    linear = [{**rows[0], "scheme": "words", "C": strength, "score": 0.5} for strength in (10.0, 1.0)]
    of_task = read_result(folder, plan, plan.tasks[0])
    write_result(folder, plan, plan.tasks[0], {**of_task, "tried": linear})
    Comparison(folder).report()
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "trials")
    scores, tried = (pd.read_csv(folder / name) for name in ("results.csv", "trials.csv"))
    contrast = scores[scores["reference"].notna()].iloc[0]
    assert (contrast["task"], contrast["scheme"], contrast["reference"], contrast["verdict"]) == (
        *("a_b", "rope minus none", "none"),
        "better",
    )
    assert contrast["low"] < contrast["score"] < contrast["high"]
    assert [*tried["rate"]][:4] == [0.001, 0.002, 0.0005, 0.002]
    assert [*tried["C"].dropna()] == [10.0, 1.0]
    assert [*tried["diverged"].dropna()][:1] == ["it rose"]
    text = report(folder)
    assert "so that others may be better: `none` on 1 of 1." in text
    assert "Their C is the best of 1, 10 on the rows by which rates were chosen." in text
    assert len(pd.read_csv(folder / "results.csv")) == len(scores)
    code, out, _ = run("report", folder, "--format", "latex")
    assert code == 0
    assert r"a\_b" in out.replace(r"a\_b", r"a\_b")
    assert r"rope & \textbf{0.802} (0.00" in out.replace(r"	extbf", r"\textbf")
    assert r"commit 12e3456" in out


def test_that_linear_models_are_tuned_is_said_where_all_are(tmp_path):
    tasks = [{"data": "probes", "name": name} for name in ("a", "b")]
    plan = toy(seeds=3, test_lengths=[32], search=[1, 2], tasks=tasks)
    folder = made_up(tmp_path, plan, level, words=0.5)
    (folder / "trials").mkdir()
    for task in plan.tasks:
        assert "Their C is" not in report(folder)
        tried = {"task": task.name, "part": "a", "scheme": "words", "C": 1.0, "score": 0.5, "commit": "0123456"}
        write_result(folder, plan, task, {**read_result(folder, plan, task), "tried": [tried]})
    assert "Their C is the best of 1 on" in report(folder)
    Comparison(folder).report()
    shutil.rmtree(folder / "trials")
    Comparison(folder).report()
    assert "0123456" in (folder / "trials.csv").read_text()


def test_without_matplotlib_the_report_says_what_its_pictures_need(folder, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = Comparison(folder).report(tmp_path / "report.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "results.csv"}
    needed = [line for line in without.splitlines() if line not in text.splitlines()]
    assert needed == [f"Its pictures need matplotlib: `pip install matplotlib`, then `hf-posenc report {folder}`."]


def test_several_tasks_are_told_apart_and_their_differences_have_no_verdict(tmp_path):
    tasks = [{"data": "probes", "name": name} for name in ("a", "b")]
    folder = made_up(tmp_path, toy(tasks=[*tasks, "halves"], seeds=3), level, majority=0.5)
    text = report(folder)
    assert "|  | a | b | halves | mean: all tasks | seconds a run | weights |" in text
    apart = text.partition("## Task by task")[2].partition("##")[0]
    assert re.search(r"\| `rope` \| \+0.30\d \[\+0.\d+, \+0.\d+\] \|", apart)
    assert not re.search("better|worse|decided", apart)


def test_one_seed_has_no_intervals_and_says_so(tmp_path):
    text = Comparison(made_up(tmp_path, toy(), level)).report().read_text()
    assert "One seed gives no intervals and no tests: give 2 seeds or more." in text
    assert "## Tests" not in text
    assert "[" not in text.split("\n\n")[3]


def test_one_scheme_has_a_report_without_tests(tmp_path):
    text = report(made_up(tmp_path, toy(schemes=["rope"], seeds=3), level))
    assert cells(text, "`rope`")[1].startswith("[0.79")
    assert "## Tests" not in text


def intervals(folder):
    return {(f["scheme"], f["reference"]): (f["low"], f["high"]) for f in Comparison(folder).findings}


def test_missing_runs_are_named(tmp_path):
    folder = made_up(tmp_path, toy(seeds=2), level)
    (folder / "runs" / "probes-rope-seed1.json").unlink()
    (folder / "runs" / "probes-none-seed0.json").unlink()
    text = report(folder)
    assert "**2 runs are missing. A scheme's scores and tests are of the seeds that it has.**" in text
    assert "\n- `probes-none-seed0`\n- `probes-rope-seed1`\n" in text
    folder = made_up(tmp_path / "one", toy(schemes=["none", "rope", "t5"], seeds=4), level)
    before = intervals(folder)
    (folder / "runs" / "probes-rope-seed1.json").unlink()
    after = intervals(folder)
    pair = ("t5", "none")  # which lacks nothing
    assert after[pair] == before[pair]
    assert after["rope", "none"] != before["rope", "none"]
    text = report(folder)
    assert "3 schemes, 1 task with at most 64 training rows, 4 seeds: 11 runs" in text
    assert "\n- `probes-rope-seed1`\n" in text
    assert cells(text, "`rope`")[0] == "**0.802 (3 seeds)**"
    assert re.search(r"rope & .textbf.0.802. \(0.00\d\) \(3 seeds\) ", Comparison(folder).to_latex())
    assert text.index("**1 run is missing.") < text.index("| `rope` |")
    for path in (tmp_path / "runs").glob("*"):
        path.unlink()
    with pytest.raises(UserError, match="holds no run of its plan. Run `hf-posenc compare` first"):
        Comparison(tmp_path).report()


def test_a_mean_over_tasks_is_the_one_that_is_tested(tmp_path):
    """Whichever seeds a task lacks, also where no seed has all; and no gap is said of tests that can't be made."""
    plan = toy(schemes=["none", "rope"], seeds=5, tasks=["a", "b"])
    folder = made_up(
        tmp_path, plan, lambda run, n: None if n > 32 and run.task.name == "a" else 0.5 + 0.08 * run.seed, majority=0.4
    )
    for missing, mean in (
        (("a-rope-seed0", "a-rope-seed1"), 0.7),
        (("b-rope-seed2", "b-rope-seed3", "a-rope-seed4"), 2 / 3),
    ):
        for name in missing:
            (folder / "runs" / f"{name}.json").unlink()
        text = report(folder)
        assert cells(text, "`rope`")[2].startswith(f"**{mean:.3f} (")
        assert f"{mean:.3f}; {mean - 0.66:+.3f} " in text
        assert "in 4 of 5 cases is 0." in text
        assert "at 48 tokens" not in text
    assert "runs above all of `none`" not in text  # no seed has all tasks


def test_a_run_that_diverged_has_no_score_past_the_end_of_its_table(tmp_path):
    """Where the other runs of its scheme have none."""
    folder = made_up(tmp_path, toy(schemes=["none", "learned"], seeds=5), level, majority=0.45)
    plan = load_plan(folder)
    for run in plan.runs()[1::4]:
        rows = done_run(plan, run, [row(plan, run, 0.45, length) for length in plan.lengths], diverged="a loss")
        write_result(folder, plan, run, {"rows": rows})
    text = report(folder)
    assert cells(text, "`learned`")[0].startswith("**0.5")
    assert cells(text.partition("## At other")[2], "`learned`")[0] == "too long"
    assert [finding["length"] for finding in Comparison(folder).findings] == [32]
    assert pd.read_csv(folder / "results.csv").query("scheme == 'learned' and length == 48")["score"].isna().all()


def test_a_plan_may_name_fewer_schemes_than_its_folder_has(tmp_path):
    folder = made_up(tmp_path, toy(schemes=["none", "rope", "t5"], seeds=3), level)
    fewer, all_of_them = toy(seeds=3).to_dict(), (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(json.dumps(fewer))
    for kept in ("runs", "a table"):
        text = report(folder)
        assert "2 schemes, 1 task with at most 64 training rows, 3 seeds: 6 runs" in text, kept
        assert "The folder has runs of more schemes, which the plan doesn't name: `t5`." in text
        (folder / "plan.json").write_text(all_of_them)
        report(folder)
        (folder / "plan.json").write_text(json.dumps(fewer))
        shutil.rmtree(folder / "runs", ignore_errors=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("seed", "sead", 1), "the column 'seed' is missing"),
        (lambda text: text[: text.rindex(",", 0, -20)], "line 5 isn't whole"),
        (lambda text: text.replace("0.8", "0,8", 1), "is damaged"),
        (lambda text: re.sub(r".*,(none|rope),.*\n", "", text), "holds no run"),
    ],
)
def test_a_table_that_is_damaged_is_refused(tmp_path, damage, message):
    folder = made_up(tmp_path, toy(schemes=["rope"], seeds=2), level)  # without tests, which stand below the scores
    report(folder)
    for path in (folder / "runs").glob("*"):
        path.unlink()
    (folder / "runs").rmdir()
    path = folder / "results.csv"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UserError, match=f"{tmp_path}.*{message}"):
        Comparison(folder).report()


def test_a_table_alone_is_the_table_of_its_runs(tmp_path):
    """Whatever a task or a commit is called."""
    tasks = [{"data": "probes", "name": name} for name in ("1000", "NA", "null")]
    plan = toy(schemes=["none", "learned"], seeds=2, tasks=tasks)
    folder = made_up(tmp_path, plan, level, majority=0.5)
    before, text = Comparison(folder).table, report(folder)
    shutil.rmtree(folder / "runs")
    after = Comparison(folder)
    names, commits = [*after.table["task"].unique()], set(after.table["commit"].dropna())
    assert (after.missing, names, commits) == ([], ["1000", "NA", "null"], {"12e3456"})
    assert after.table.equals(before)
    alone = report(folder)
    assert alone.partition("## Again")[0] == text.partition("## Again")[0]
    assert f"-o results/{folder.name} --seeds 4" in alone  # no run can be added to a table


def test_a_scheme_with_no_finished_run_is_a_row_without_numbers(tmp_path):
    folder = made_up(tmp_path, toy(schemes=["none", "rope", "learned"], seeds=2), level)
    for path in (folder / "runs").glob("*-learned-*"):
        path.unlink()
    text = report(folder)
    assert not any(cells(text, "`learned`"))
    assert "--seeds" not in text.partition("## Again")[2]  # the same seeds are to be made


@pytest.fixture
def figures(monkeypatch):
    """Those that are saved."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *to, **how: saved.append(self) or save(self, *to, **how))
    return saved


def test_baselines_that_would_overprint_are_one_line(tmp_path, figures):
    report(made_up(tmp_path, toy(seeds=2), level, majority=0.5, words=0.505, word_pairs=0.6))
    (axes,) = figures[0].axes
    baselines = ("majority", "words", "word pairs")
    assert [line.get_label() for line in axes.lines if line.get_label() in baselines] == ["word pairs", "words"]


def test_many_schemes_are_drawn(tmp_path, figures):
    schemes = [name for name in SCHEMES if name != "learned"]
    report(made_up(tmp_path, toy(schemes=schemes, seeds=2), lambda run, _: 0.5 + run.seed / 50))
    scored, by_length = figures
    assert len(scored.axes[0].get_yticklabels()) == len(schemes)
    assert len(by_length.legends[0].get_texts()) == len(schemes)


AWKWARD = (
    *("a|b", "a\\|b", "*x*", "__x__", "_x_ a_b", "`t`", "a`b``c", "**", "~~x~~", "$a$ \\$", "# x", "\\", "'\""),
    *("[x](y)", "![x](y)", "http://a.b www.a.b", "<b>x</b>", "</code>", "&amp; &#42;", "a\n\n- b"),
)


def read_markdown(text):
    """Another's reading of our Markdown, as HTML."""
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"linkify": False}).render(text)


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("write", [plain, code])
def test_a_text_is_shown_as_it_is(write, text):
    """In a paragraph and in a table."""
    table = read_markdown(markdown_table(("a",), [(f"q {write(text)} q",)]))
    assert table.count("<td>") == 1
    (cell,) = re.findall(r"<td>q (.*) q</td>", table, re.DOTALL)
    paragraph = read_markdown(f"q {write(text)} q").removeprefix("<p>q ").removesuffix(" q</p>\n")
    for shown in (cell, paragraph):
        assert set(re.findall(r"<[^>]*>", shown)) <= {"<code>", "</code>"}
        assert html.unescape(re.sub("</?code>", "", shown)) == " ".join(text.split())


def test_a_folder_whose_baselines_are_lost_has_no_report(tmp_path):
    made_up(tmp_path, toy(), lambda run, length: 0.5, majority=0.5)
    for file in (tmp_path / "baselines").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="The baselines of .* are missing in .*Run `hf-posenc compare` again"):
        Comparison(tmp_path)
