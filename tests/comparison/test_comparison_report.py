"""Reports say what the numbers allow, hold everything they show, and name what is missing."""

import html
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from comparison_harness import change_json, change_runs, made_up, read_run, toy

from hf_posenc import POSITIONS
from hf_posenc.comparison import charts
from hf_posenc.comparison.charts import curve_chart, length_chart, ranking_chart
from hf_posenc.comparison.findings import conclusions, interval_text, seeds_number
from hf_posenc.comparison.power import power
from hf_posenc.comparison.report import anchor, make_report, write_report
from hf_posenc.comparison.results_folder import load_runs
from hf_posenc.comparison.statistics import UNDECIDED, Interval
from hf_posenc.comparison.study import Study
from hf_posenc.errors import UserError
from hf_posenc.files import write_json
from hf_posenc.markdown import code, markdown_table, plain
from hf_posenc.schemes.plots import PALETTE

pytest.importorskip("matplotlib")

RATES = {"none": 0.5, "learned": 0.52, "rope": 0.95}
PNG = b"\x89PNG"


@pytest.fixture
def drawn(monkeypatch):
    """The figures of the charts, which aren't written as pictures: that takes longer than the rest of a report."""
    figures = []
    monkeypatch.setattr(charts, "_png", lambda figure: figures.append(figure) or PNG)
    return figures


def plan(**overrides):
    return toy(**{"schemes": list(RATES), "seeds": 5} | overrides)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("report") / "results", plan(tasks=["halves", *plan().tasks]), RATES)


@pytest.fixture(scope="module")
def report(untouched):
    """What is written about the results: for tests that read it."""
    return write_report(untouched)


@pytest.fixture
def results(untouched, tmp_path):
    """The same, to change."""
    ignored = shutil.ignore_patterns("report*")
    return shutil.copytree(untouched, tmp_path / "results", ignore=ignored)


def row(text, *cells):
    """The line of a Markdown table that begins with these cells."""
    return next(line for line in text.splitlines() if line.startswith("| " + " | ".join(cells)))


def test_markdown_says_who_is_better_and_who_cannot_be_told(report):
    text = report.read_text()
    assert "**probes, 32 tokens**: against `none`" in text
    assert re.search(r"better: `rope` \(\+0\.\d+\); not decided: `learned` \(smallest gap", text)
    assert "can't be tested: `learned`" in text
    assert row(text, "1. `rope`").endswith("| better |")
    assert re.match(r"\| 1\. `rope` \| 0\.9\d\d \[0\.9\d\d, (0\.9|1\.0)\d\d\] \| \+0\.4\d\d \[", row(text, "1. `rope`"))
    assert re.search(r"\| `learned` \| 0\.\d+ \[[^|]+\] \| learned has 32 positions \|", text)
    assert "The control: are most words" in text
    for name in re.findall(r"!\[[^]]+\]\((\S+)\)", text):
        assert (report.parent / name).read_bytes().startswith(b"\x89PNG")
    names = {"probes-ranking", "probes-lengths", "probes-curves", "halves-ranking"}
    assert {f"report_pictures/{name}.png" for name in names} <= set(re.findall(r"\((report_\S+)\)", text))


def test_every_link_leads_to_a_heading(report):
    """From counts and schemes to tasks, from verdicts to tables."""
    text = report.read_text()
    headings = {anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
    assert "[Table](#probes-ranking-at-32-tokens)" in text
    assert "### probes: ranking at 32 tokens" in text
    rope = text[text.index("### `rope`") :]
    assert "Rotated queries and keys" in rope
    assert "[probes](#probes-ranking-at-32-tokens): place 1 of 3 at 32 tokens" in rope


def test_a_report_says_how_much_it_rests_on(report):
    text = report.read_text()
    assert row(text, "[probes](#probes)") == "| [probes](#probes) | 64 |  | 4 | 100 | 5 | 15 of 15 |"
    assert "**One learning rate for all schemes**: 0.001. It was tuned for none of them" in text


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


def test_names_in_a_report_are_no_markup(tmp_path, drawn):
    """Of data, parts, baselines and machines, and what errors say; in pictures `$\\frac$` would be half a formula."""
    evil = "$\\frac$ | <img src=x> ![x](y) `*z*`\n# h"
    data = {"data": f"data/{evil}", "name": "_odd_", "metric": "accuracy"}
    machine = {"device": evil, "threads": evil}
    folder = made_up(tmp_path, plan(tasks=[data], seeds=2), RATES, machine=machine, versions={evil: evil})

    def spoil(run):
        tests = [{**test, **({"skipped": evil} if "skipped" in test else {})} for test in run["tests"]]
        return {**run, "tests": tests + [{**test, "part": f"_odd_/{evil}"} for test in tests]}

    change_runs(folder, spoil)
    change_json(folder / "runs" / "_odd_-rope-seed0" / "run.json", status="failed", error=evil)
    reference = {"task": "_odd_", "scheme": f"_{evil}", "tests": read_run(folder, "_odd_-none-seed0")["tests"][:1]}
    write_json(folder / "baselines" / "odd.json", {"baselines": [reference]})
    (folder / "runs" / "<b>").mkdir()
    (folder / "runs" / "<b>" / "run.json").write_text("<i>")
    text = read_markdown(write_report(folder).read_text())
    assert text.count("<img ") == 3
    assert not re.search(r"<img src=.?x|<b>&lt;|<strong>&lt;|<i>|<em>(?!Means|Training|Accuracy)", text)
    assert text.count("<h1>") == 1
    assert html.unescape(re.sub("</?code>", "", text)).count(" ".join(evil.split())) >= 9


def test_a_scheme_whose_name_begins_with_an_underscore_is_in_the_legend(tmp_path, drawn):
    own = replace(plan(seeds=2), schemes=("none", "_mine"), baseline="none")
    study = Study.read(made_up(tmp_path, own, {"none": 0.5, "_mine": 0.7}))
    length_chart(study, study.tasks[0])
    assert [text.get_text().strip() for text in drawn[0].legends[0].get_texts()] == ["none", "_mine"]


@pytest.mark.parametrize(
    ("pretrained", "sentence"),
    [
        (None, "the initial weights (but the scheme's own), the data, their order"),
        ("MiniLM", "the initial weights (but the scheme's own), the data, their order"),
        ("healed/{scheme}", "the same. Each scheme starts from a checkpoint of its own, `healed/{scheme}`, so"),
    ],
)
def test_a_report_says_what_all_runs_share(untouched, drawn, pretrained, sentence):
    study = Study.read(untouched)
    study = replace(study, plan=replace(study.plan, pretrained=pretrained))
    assert sentence in make_report(study)[1]


def test_the_cost_of_a_scheme_is_the_seconds_of_its_runs_against_those_of_none(results, drawn):
    """With the seeds that both have, and without runs that were resumed."""
    change_runs(results, lambda run: {**run, "seconds": 4.0 + run["seed"]}, "probes-rope-*")  # 4 to 8, `none` has 3
    change_json(results / "runs" / "probes-rope-seed4" / "run.json", resumed=True)
    (results / "runs" / "probes-none-seed0" / "run.json").unlink()
    text = write_report(results).read_text()
    cost = text[text.index("### probes: cost") : text.index("## Schemes")]
    assert row(cost, "`none`") == "| `none` | 1,000 | 10 | 3.0 | 1.00 |"
    assert row(cost, "`rope`") == "| `rope` | 1,000 | 10 | 5.5 | 2.00 |"  # 5 + 6 + 7 to 3 + 3 + 3


def test_each_is_compared_with_the_default_and_with_itself_at_other_lengths(tmp_path):
    rates = {"none": 0.5, "rope": 0.93, "t5": 0.93, "alibi": 0.7}
    folder = made_up(tmp_path / "four", plan(schemes=list(rates), seeds=5), rates, units=400)
    study = Study.read(folder)
    (task,) = study.tasks
    assert study.contrasts == ["none", "rope"]
    verdicts = {name: value.verdict() for name, value in study.differences(task, 32, other="rope").items()}
    assert verdicts == {"t5": UNDECIDED, "alibi": "worse"}  # `none` is compared with `rope` already
    alone = replace(study, plan=replace(study.plan, schemes=("none", "t5", "rope")))
    fewer, more = (value.differences(task, 32)["rope"] for value in (alone, study))
    assert fewer.p == more.p  # who else is in the plan decides nothing else than the correction
    assert (fewer.corrected, more.corrected) == (pytest.approx(2 * fewer.p), pytest.approx(3 * more.p))

    # Longer inputs: make those of `rope` worse, and leave the others.
    worse = made_up(tmp_path / "worse", plan(schemes=list(rates), seeds=5), {**rates, "rope": 0.6}, units=400)

    def worsen(run):
        other = read_run(worse, f"probes-rope-seed{run['seed']}")
        tests = [test for test in run["tests"] if test["length"] == 32]
        return {**run, "tests": tests + [test for test in other["tests"] if test["length"] == 48]}

    change_runs(folder, worsen, "probes-rope-*")
    study = Study.read(folder)
    changes = study.changes(task, 32, 48)
    assert {scheme for scheme, value in changes.items() if value.verdict() != UNDECIDED} == {"rope"}
    sentences = conclusions(study)
    assert re.search(
        r"against `rope` \(0\.9\d\d\) not decided: `t5` \(smallest gap found in 80 % of cases: 0\.\d+; "
        r"seeds to decide: (over 100|\d+)\); worse: `alibi`",
        sentences[1],
    )
    assert re.search(
        r"not decided: `none`, `t5`, `alibi` \(smallest gap found in 80 % of cases: 0\.\d+ to 0\.\d+; "
        r"seeds to decide: .+\); worse: `rope` \(-0\.3",
        sentences[-1],
    )


def test_a_report_says_what_its_plan_can_find(untouched, report, tmp_path):
    study = Study.read(untouched)
    rows = power(study)
    assert [(row.task.name, row.length, row.other) for row in rows] == [
        *(("halves", length, "none") for length in (32, 48)),
        *(("probes", 32, other) for other in ("none", "rope")),
        ("probes", 48, "none"),  # nothing else than `none` has that length, and it is compared with `rope` already
    ]
    row_of_probes = rows[2]
    assert set(row_of_probes.gaps) == {"learned", "rope"}
    assert set(row_of_probes.seeds) == {"learned"}
    assert (row_of_probes.undecided, row_of_probes.compared) == (1, 2)
    differences = study.differences(study.tasks[1], 32)
    assert row_of_probes.seeds["learned"] == differences["learned"].seeds > 5
    assert row_of_probes.gaps["learned"] == differences["learned"].spread.smallest_gap(0.05 / 2)
    text = report.read_text()
    middle = f"{np.median(list(row_of_probes.gaps.values())):.3f}"
    line = row(text, "probes", "32", "`none`", middle)
    assert line.endswith(f"| 1 of 2 | {seeds_number(differences['learned'])} |")
    assert power(Study.read(made_up(tmp_path, plan(seeds=1), RATES))) == []


def test_missing_and_failed_runs_are_named(results, drawn):
    change_json(results / "runs" / "probes-rope-seed3" / "run.json", status="failed", error="it rained")
    (results / "runs" / "probes-rope-seed2" / "run.json").unlink()
    text = write_report(results).read_text()
    assert "**Failed**: `probes-rope-seed3`: it rained" in text
    assert "**Not run yet**: `probes-rope-seed2`." in text
    assert Study.read(results).score(plan().tasks[0], "rope", 32).seeds == 3


def test_a_scheme_that_has_no_run_is_left_out(results):
    for path in (results / "runs").glob("*-learned-*"):
        (path / "run.json").unlink()
    study = Study.read(results)
    assert study.schemes == ["none", "rope"]
    assert len(study.missing) == 10
    assert "`learned`" not in "".join(conclusions(study))


def test_without_the_baseline_no_scheme_is_better_than_it(results, drawn):
    for path in (results / "runs").glob("*-none-*"):
        (path / "run.json").unlink()
    text = "".join(conclusions(Study.read(results)))
    assert "against `none`" not in text
    assert "can't be tested: `learned`" in text
    assert "to 48 tokens**: " in text
    assert len(make_report(Study.read(results))) > 10


def test_one_scheme_alone_and_lengths_that_none_can_do(tmp_path, drawn):
    alone = made_up(tmp_path / "alone", plan(schemes=["none"], test_lengths=[32]), RATES)
    assert conclusions(Study.read(alone)) == ["Nothing: fewer than two schemes have a result at one length."]
    unable = made_up(tmp_path / "unable", plan(schemes=["learned"], test_lengths=[40, 48]), RATES)
    assert "Nothing to rank: learned has 32 positions." in write_report(unable).read_text()


def test_a_length_at_which_every_answer_is_the_same_has_no_column(tmp_path, drawn):
    """One text of a thousand is longer, as in sst2; what is generated anew for each length keeps its columns."""
    schemes = {"schemes": ["none", "rope"], "test_lengths": [32, 40, 48]}
    folder = made_up(tmp_path, plan(tasks=[{"data": "hans"}, "halves"], **schemes), RATES)

    def repeat(run):
        first, second, third = run["tests"]
        return {**run, "tests": [first, {**second, "units": first["units"]}, third]}

    change_runs(folder, repeat)
    study = Study.read(folder)
    assert [study.lengths(task) for task in study.tasks] == [[32, 48], [32, 40, 48]]
    text = write_report(folder).read_text()
    assert "tested at 32, 48; at 40 every answer is the same" in text
    assert "| scheme | 32 | 48 |" in text


def test_one_seed_has_no_intervals_and_says_so(tmp_path, drawn):
    folder = made_up(tmp_path / "one", plan(seeds=1), RATES)
    text = write_report(folder).read_text()
    assert "One seed was run: there are no intervals" in text
    assert "one seed: can't be said" in text
    assert "[" not in row(text, "1. `rope`")


def test_another_plans_run_is_named(results, tmp_path):
    stray = made_up(tmp_path / "other", plan(train_length=40), RATES) / "runs" / "probes-none-seed0" / "run.json"
    place = results / "runs" / "probes-none-seed0" / "run.json"
    own = place.read_text()
    place.write_text(stray.read_text())
    with pytest.raises(UserError, match="probes-none-seed0' is a run of another plan .* differs in train_length"):
        Study.read(results)
    place.write_text(own)
    change_json(place, seed=9)
    with pytest.raises(UserError, match="differs in its tasks, schemes or seeds"):
        Study.read(results)


def with_test(**fields):
    return lambda run: {**run, "tests": [{**run["tests"][0], **fields}, *run["tests"][1:]]}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: b"", "it can't be read: Expecting value"),
        (lambda run: json.dumps(run).encode()[:600], "it can't be read"),
        (lambda run: json.dumps(run).encode("utf-16"), "it can't be read: 'utf-8' codec can't decode"),
        (lambda run: b"[" * 100_000, "it can't be read: maximum recursion depth exceeded"),
        (lambda run: [run], "which is no object"),
        (lambda run: {**run, "seed": 10**30}, "the number 1000.* is too large"),
        (lambda run: {**run, "seed": "0"}, "Field 'seed' expected int, got str"),
        (lambda run: {**run, "status": None}, "its status is None, neither 'done' nor 'failed'"),
        (lambda run: {**run, "status": "failed"}, "Field 'error' is required but missing"),
        (lambda run: {"status": "done", "task": "probes"}, "Field 'scheme' is required but missing"),
        (lambda run: {**run, "tests": []}, "Field 'tests' is empty"),
        (lambda run: {**run, "loss": [[1, float("nan")]]}, r"'loss\[0\]\[1\]' with value None"),
        (lambda run: {**run, "loss": [[1]]}, "something else than pairs of a step and a number"),
        (lambda run: {**run, "machine": {}}, "machine: Field 'device' is required but missing"),
        (lambda run: {**run, "seed": 1}, "it is the run probes-none-seed1, in the folder of another"),
        (with_test(units=None), r"tests\[0\]: Field 'units' expected a dict"),
        (with_test(length="32"), r"tests\[0\]: Field 'length' expected int"),
        (with_test(length=33), r"tests\[0\] isn't of one of the task's lengths"),
        (with_test(metric="matthews_correlation"), r"tests\[0\] .* or of another metric"),
        (with_test(units={"right": "1x100"}), "the accuracy has the columns 'right'"),
        (with_test(units={"right": "1x99", "of": "1x100"}), "have 99, 100 units"),
        (with_test(units={"right": "nanx100", "of": "1x100"}), "isn't finite"),
        (with_test(units={"right": "2x100", "of": "1x100"}), "more right answers than examples"),
        (with_test(units={"right": "1x10000000000000", "of": "1x100"}), "isn't 1 to 1,000,000 units"),
        (with_test(units={"right": "a", "of": "b"}), "could not convert string to float"),
        (with_test(units={"right": "1x101", "of": "1x101"}), "101 units, and 100 examples"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(results, caplog, damage, reason):
    """One cut file of many: the others are reported."""
    place = results / "runs" / "probes-none-seed0" / "run.json"
    damaged = damage(json.loads(place.read_text()))
    place.write_bytes(damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode())
    study = Study.read(results)
    assert len(study.done) == 2 * 15 - 1
    assert re.search(reason, study.damaged["probes-none-seed0"])
    assert study.missing == []
    (warning,) = caplog.messages
    assert re.search(f"probes-none-seed0 in .* is damaged and left out: .*{reason}.* Delete it, and run", warning)
    with pytest.raises(UserError, match=f"probes-none-seed0.run.json' is damaged: .*{reason}.* Delete it, and run"):
        load_runs(results, study.plan)


def test_the_report_names_what_is_damaged(results, drawn):
    (results / "runs" / "probes-none-seed0" / "run.json").write_text("{")
    (results / "runs" / "probes-rope-seed0 (copy)").mkdir()
    copied = (results / "runs" / "probes-rope-seed0" / "run.json").read_text()
    (results / "runs" / "probes-rope-seed0 (copy)" / "run.json").write_text(copied)
    (results / "baselines").mkdir()
    (results / "baselines" / "probes.json").write_text('{"baselines": [{}]}')
    text = write_report(results).read_text()
    assert "- **Damaged, and left out**: `probes-none-seed0`: it can't be read: " in text
    assert "`probes-rope-seed0 (copy)`: it is the run probes-rope-seed0, in the folder of another." in text
    assert r"`probes.json`: baselines\[0\]: Field 'task' is required but missing." in text
    assert row(text, "[probes](#probes)").endswith("| 5 | 14 of 15 |")


def test_counts_mean_the_same_in_any_order(results):
    """A tool that formats JSON may sort its keys."""
    before = Study.read(results).score(plan().tasks[0], "rope", 32)
    change_runs(results, lambda run: json.loads(json.dumps(run, sort_keys=True)))
    assert Study.read(results).score(plan().tasks[0], "rope", 32) == before


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no results: plan.json is missing. Give a folder of `compare`"):
        write_report(tmp_path)
    folder = made_up(tmp_path / "none", plan(seeds=1, schemes=["none"]), RATES, status="failed", error="it rained")
    with pytest.raises(UserError, match="No run in .* is done. 1 failed: it rained Run `hf-posenc compare` first"):
        write_report(folder)


def test_many_schemes_stay_apart_in_the_pictures(tmp_path, drawn):
    many = plan(schemes="all", seeds=2)
    study = Study.read(made_up(tmp_path / "all", many, dict.fromkeys(many.schemes, 0.7)))
    styles = [tuple(charts._style(study, scheme).values()) for scheme in study.schemes]
    assert len(set(styles)) == len(styles) == len(POSITIONS) >= 15
    ranking_chart(study, study.tasks[0], 32)
    (names,) = [[text.get_text() for text in axes.get_yticklabels()] for figure in drawn for axes in figure.axes]
    assert set(names) >= set(study.schemes)


@pytest.mark.parametrize("schemes", [["none", "rope"], [*POSITIONS][: len(PALETTE) + 1]], ids=["few", "many"])
def test_every_picture_has_intervals(tmp_path, monkeypatch, drawn, schemes):
    """As bars or as bands, each scheme's own where there are many."""
    lines = {"bars": 0, "bands": 0}
    draw = charts._draw_line

    def counted(axes, line, style, bars, label=None):
        assert np.all(np.less(line[2], line[3])[1:])
        lines["bars" if bars else "bands"] += 1
        draw(axes, line, style, bars, label)

    monkeypatch.setattr(charts, "_draw_line", counted)
    small = plan(schemes=schemes, seeds=3)
    study = Study.read(made_up(tmp_path / "some", small, dict.fromkeys(small.schemes, 0.7)))
    length_chart(study, study.tasks[0])
    curve_chart(study, study.tasks[0])
    assert lines == {"bars": len(study.schemes), "bands": len(study.schemes)}
    assert [len([axes for axes in figure.axes if axes.get_visible()]) for figure in drawn] == [
        len(study.schemes) if charts.are_many(study) else 1
    ] * 2


def test_numbers_are_written_alike():
    assert interval_text(Interval(0.5, 0.4, 0.6, 3)) == "0.500 [0.400, 0.600]"
    assert interval_text(Interval(0.5, -0.4, 0.6, 3), signed=True) == "+0.500 [-0.400, +0.600]"
    assert interval_text(Interval(0.5, None, None, 1)) == "0.500"
    assert markdown_table(("a", "b", "c"), [("x", "1.0", "y")]).splitlines()[1] == "| --- | ---: | --- |"
