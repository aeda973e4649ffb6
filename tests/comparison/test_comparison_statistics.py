"""Statistics: each against scipy or its own definition, and how often they err, by simulation."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hf_posenc import Comparison, compare
from hf_posenc.comparison.statistics import welch
from hf_posenc.errors import UserError
from tests.support.comparison import TOY, made_up, toy

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"
ALPHA = 0.05


def findings(folder, plan, scores):
    """The findings of runs with these scores, by task, scheme and seed; of fewer seeds the others are missing."""
    places = [(task.name, scheme) for task in plan.tasks for scheme in plan.schemes]
    of_seeds = [dict(enumerate(of_scheme)) for of_task in scores for of_scheme in of_task]
    known = dict(zip(places, of_seeds, strict=True))
    made_up(folder, plan, lambda run, _: float(known[run.task.name, run.scheme].get(run.seed, 0)))
    for run in plan.runs():
        if run.seed not in known[run.task.name, run.scheme]:
            (folder / "runs" / f"{run.name}.json").unlink()
    return Comparison(folder).findings


DRAW = np.random.default_rng(0)
FIRST, SECOND = DRAW.normal(0.85, 0.01, 5).tolist(), DRAW.normal(0.82, 0.06, 4).tolist()
ZERO = [0.0] * 4
CASES = {  # scores of `none` and `rope` in each task, scipy's test
    "one task is Welch's": ([[SECOND, FIRST]], stats.ttest_ind(FIRST, SECOND, equal_var=False)),
    # The mean of x and y over two tasks differs from 0 as x differs from -y.
    "two tasks are Welch's": (
        [[ZERO, FIRST], [ZERO, SECOND]],
        stats.ttest_ind(FIRST, [-score for score in SECOND], equal_var=False),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_contrast_is_the_test_of_scipy(case, tmp_path):
    scores, known = CASES[case]
    plan = toy(tasks=["a", "b"][: len(scores)], seeds=5, test_lengths=[32])
    (finding,) = findings(tmp_path, plan, scores)
    assert finding["p"] == pytest.approx(known.pvalue, abs=1e-12)
    low, high = known.confidence_interval(1 - ALPHA)
    assert (len(scores) * finding["low"], len(scores) * finding["high"]) == pytest.approx((low, high))


def test_a_mean_has_the_interval_of_scipy(tmp_path):
    findings(tmp_path, toy(seeds=5, test_lengths=[32]), [[[*SECOND, 0.8], FIRST]])
    low, high = stats.ttest_1samp(FIRST, 0).confidence_interval(1 - ALPHA)
    assert f"| **{np.mean(FIRST):.3f}** | [{low:.3f}, {high:.3f}] |" in str(Comparison(tmp_path))


@pytest.mark.parametrize(
    ("none", "rope", "interval", "has_p"),
    [
        ([0.25] * 3, [0.5] * 3, (0.25, 0.25, 0.25), False),
        ([0.25, 0.5], [0.5], (0.125, None, None), False),
        ([0.1, 0.2, 0.3], [0.5] * 3, None, True),
    ],
)
def test_where_nothing_varies_there_is_no_p_value(none, rope, interval, has_p, tmp_path):
    (finding,) = findings(tmp_path, toy(seeds=3, test_lengths=[32]), [[none, rope]])
    assert (finding["p"] is not None) is has_p
    if interval is not None:
        assert tuple(finding[key] for key in ("difference", "low", "high")) == interval


def test_verdicts_and_equivalence_are_read_off_intervals_that_hold_at_once(tmp_path):
    """Each by scipy, with a level of .05 / 5 contrasts, whatever runs are missing."""
    means = {"none": 0.6, "rope": 0.8, "t5": 0.801, "lspe": 0.65}
    spreads = {"none": 0.005, "rope": 0.004, "t5": 0.003, "lspe": 0.05}
    draw = np.random.default_rng(1)
    drawn = {scheme: draw.normal(mean, spreads[scheme], 6) for scheme, mean in means.items()}
    drawn["lspe"] = drawn["lspe"][:5]
    plan = toy(schemes=[*means], seeds=6, test_lengths=[32], margin=0.02)
    verdicts = {}
    for finding in findings(tmp_path, plan, [drawn.values()]):
        pair = finding["scheme"], finding["reference"]
        known = stats.ttest_ind(*(drawn[name] for name in pair), equal_var=False)
        assert finding["p"] == pytest.approx(min(1, 5 * known.pvalue))
        low, high = known.confidence_interval(1 - ALPHA / 5)
        assert (finding["low"], finding["high"]) == pytest.approx((low, high))
        verdicts[pair] = finding["verdict"]
        assert (finding["verdict"] in ("better", "worse")) == (low * high > 0)
    assert verdicts == {
        ("rope", "none"): "better",
        ("t5", "none"): "better",
        ("lspe", "none"): "not decided",
        ("t5", "rope"): "within 0.02",
        ("lspe", "rope"): "worse",
    }


def test_tasks_of_the_same_data_are_averaged_by_seed_first(tmp_path):
    tasks = [{"data": "probes", "name": name} for name in ("a", "b")]
    drawn = np.random.default_rng(2).normal(0.7, 0.05, (2, 2, 5))  # task, scheme, seed
    (finding,) = findings(tmp_path, toy(tasks=tasks, seeds=5, test_lengths=[32]), drawn)
    none, rope = drawn.mean(0)
    assert finding["p"] == pytest.approx(stats.ttest_ind(rope, none, equal_var=False).pvalue)


def gap_in_units(folder, seeds, tasks):
    """The smallest gap that a report says, in units of the runs' spread, pooled over schemes."""
    variances = {"none": 0.001, "rope": 0.002, "t5": 0.003}
    shape = stats.zscore(np.arange(seeds), ddof=1)
    plan = toy(tasks=tasks, schemes=[*variances], seeds=seeds, test_lengths=[32])
    made_up(folder, plan, lambda run, _: 0.5 + variances[run.scheme] ** 0.5 * shape[run.seed])
    text = Comparison(folder).report().read_text()
    said = re.search(r"the smallest true difference that a test finds in 4 of 5 cases is (0\.\d+) on", text)
    return float(said[1]) / 0.002**0.5


@pytest.mark.parametrize(("seeds", "tasks"), [(3, ["a"]), (5, ["a", "b", "c"])])
def test_the_smallest_gap_is_found_in_four_of_five_cases(seeds, tasks, tmp_path):
    pytest.importorskip("matplotlib")
    units = gap_in_units(tmp_path, seeds, tasks)
    made = np.random.default_rng(seeds + len(tasks)).normal(0, 1, (2, 800, len(tasks), seeds))
    made[1] += units
    found = np.mean([welch(y, x)[1] < ALPHA / 3 for x, y in zip(*made, strict=True)])
    assert found == pytest.approx(0.8, abs=0.04)


def test_a_plan_that_could_find_nothing_is_refused_with_the_seeds_that_it_needs(tmp_path):
    def plan(**fields):
        return compare(plan={**TOY, **fields}, output=tmp_path / "new", dry_run=True)

    schemes = ["none", "rope", "t5"]
    refusal = r"is too few for 6 tests: no difference below 50.7 standard .* Give (\d) seeds"
    with pytest.raises(UserError, match=refusal) as refused:
        plan(schemes=schemes, seeds=2)
    needed = int(re.search(r"Give (\d)", str(refused.value))[1])
    with pytest.raises(UserError, match=f"Give {needed} seeds"):
        plan(schemes=schemes, seeds=needed - 1)
    for accepted in ({"seeds": needed}, {"seeds": [0]}, {"schemes": ["rope"], "seeds": 2}):
        plan(**{"schemes": schemes, **accepted})


def test_what_a_plan_can_find_is_said_before_it_runs(tmp_path, pretended, capsys):
    """Of two references each pair is one test, and data that share their rows are one task."""
    pytest.importorskip("matplotlib")

    def said(name, **fields):
        compare(plan={**TOY, "test_lengths": [32], **fields}, output=tmp_path / name)
        return capsys.readouterr().out

    units = gap_in_units(tmp_path / "gap", 4, ["a"])
    assert (
        f"With 4 seeds and 3 tests a difference must exceed {units:.1f} standard deviations (of a scheme's scores in a "
        "task, over seeds) to be found in 4 of 5 cases."
    ) in said("three", schemes=["none", "rope", "t5"], seeds=4)
    assert "One seed gives no intervals" in said("one seed")
    assert "Nothing is compared." in said("one scheme", schemes=["rope"], seeds=3)
    tasks = [{"data": "probes", "name": name} for name in "abc"]
    groups = {"first": ["a"], "others": ["b", "c"]}
    found = re.search(
        r"must exceed (\S+) on first, (\S+) on others standard", said("groups", tasks=tasks, groups=groups, seeds=4)
    )
    assert found[1] == found[2]


def test_scores_are_means_over_parts_and_tasks_of_the_seeds_that_all_have(tmp_path):
    """With seed 1 a part of the first task can't be tested."""
    scores = {
        ("a", 0): {"p": 0.5, "q": 0.7},
        ("a", 1): {"p": 0.9, "q": None},
        ("b", 0): 0.8,
        ("b", 1): 0.1,
    }
    tasks = [{"data": "probes", "name": name} for name in "ab"]
    folder = made_up(
        tmp_path,
        toy(tasks=tasks, schemes=["rope"], seeds=2, test_lengths=[32]),
        lambda run, _: scores[run.task.name, run.seed],
    )
    head, _, line = str(Comparison(folder)).splitlines()
    cells = dict(zip(*([cell.strip() for cell in text.split("|")[2:-1]] for text in (head, line)), strict=True))
    assert cells["mean of a"] == "**0.600 (1 seed)**"
    assert cells["mean: all tasks"] == "**0.700 (1 seed)**"


@pytest.mark.parametrize(
    ("metric", "values", "above"),
    [  # of 400 examples .58 has p = .0008, .57 has .003
        ("accuracy", (0.5, 0.57, 0.58, 0.9, 0.1), "2/5"),
        ("matthews_correlation", (0.1, 0.17, 0.18, 0.5, -0.3), "3/5"),  # .17 sqrt(400) is 3.4 standard deviations
    ],
)
def test_k_of_n_runs_are_above_the_majority(metric, values, above, tmp_path):
    plan = toy(tasks=[{"data": "a", "metric": metric}], schemes=["rope"], seeds=5, test_lengths=[32])
    with_majority = made_up(tmp_path / "with", plan, lambda run, _: values[run.seed], majority=0.5)
    without = made_up(tmp_path / "without", plan, lambda run, _: values[run.seed])
    assert f"{np.mean(values):.3f} {above}**" in str(Comparison(with_majority))
    assert f"{np.mean(values):.3f}**" in str(Comparison(without))


def test_the_control_is_compared_with_nothing(tmp_path):
    plan = toy(tasks=["probes", "halves"], seeds=3)
    folder = made_up(tmp_path, plan, lambda run, length: 0.5 + run.seed / (9 + len(run.scheme)))
    made = Comparison(folder).findings
    assert [(f["tasks"], f["length"], f["scheme"], f["reference"]) for f in made] == [
        ("probes", 32, "rope", "none"),
        ("probes", 48, "rope", "none"),
    ]


def test_the_committed_verdicts_are_those_of_an_independent_computation():
    comparison = Comparison(RESULTS / "practitioner_3000")
    table, groups = comparison.table, json.loads((comparison.folder / "plan.json").read_text())["groups"]
    for finding in comparison.findings:
        means, parts = [], []
        for task in groups[finding["tasks"]]:
            wide = table[table["task"] == task].pivot_table("score", "seed", "scheme")
            pair = wide[[finding["scheme"], finding["reference"]]]
            means.append(pair.mean().iloc[0] - pair.mean().iloc[1])
            parts += [*(pair.var() / 5)]
        freedom = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
        t = sum(means) / np.sqrt(sum(parts))
        p = 2 * stats.t.sf(abs(t), freedom)
        assert finding["p"] == pytest.approx(min(1, p * 2 * (8 + 7)))
    assert len(comparison.findings) == 2 * (8 + 7)


@pytest.mark.parametrize(("seeds", "verdict"), [(3, "no test: fewer than 5 seeds, and not all learned"), (5, "better")])
def test_where_learning_is_all_or_none_three_seeds_decide_nothing(tmp_path, seeds, verdict):
    """Of schemes that learn in half of the cases three agree too often."""
    learned = {"none": 0.5, "rope": 0.9}
    folder = made_up(
        tmp_path,
        toy(seeds=seeds, test_lengths=[32]),
        lambda run, _: learned[run.scheme] + (run.scheme == "rope") * run.seed / 500,
        majority=0.5,
    )
    (finding,) = Comparison(folder).findings
    assert finding["verdict"] == verdict
    if seeds == 5:  # two of them are yet to be run
        for seed in (3, 4):
            (folder / "runs" / f"probes-rope-seed{seed}.json").unlink()
        (finding,) = Comparison(folder).findings
        assert finding["verdict"] == "no test: fewer than 5 seeds, and not all learned"


SPREADS = {"like": (0.01, 0.01, 0.01), "unlike": (0.002, 0.01, 0.05), "all or none": None}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seeds", "most"), [("like", 3, 0.05), ("unlike", 5, 0.06), ("all or none", 5, 0.06)])
def test_a_report_of_schemes_that_are_alike_rarely_has_a_finding(kind, seeds, most):
    draw = np.random.default_rng(0)
    found = covered = 0
    for _ in range(400):
        if SPREADS[kind] is None:  # a run learns a task (.9) in half of the cases, else it stays at chance
            runs = np.where(draw.random((10, 3, seeds)) < 0.5, 0.9, 0.5) + draw.normal(0, 0.01, (10, 3, seeds))
        else:
            runs = draw.normal(0.7, np.array(SPREADS[kind])[:, None], (10, 3, seeds))
        pairs = [(i, 0) for i in range(1, 10)] + [(i, 1) for i in range(2, 10)]
        made = [welch(runs[i], runs[j], ALPHA / len(pairs)) for i, j in pairs]
        found += any(p * len(pairs) < ALPHA for _, p in made)
        covered += all(interval.low <= 0 <= interval.high for interval, _ in made)
    assert found / 400 <= most
    assert covered == 400 - found
