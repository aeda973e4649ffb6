"""Statistics: each against scipy or its own definition, and how often they err, by simulation."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hf_posenc.comparison import Summary, read_plan, read_table
from hf_posenc.comparison.statistics import (
    ALPHA,
    Interval,
    above_majority,
    check_power,
    contrasts,
    group_scores,
    mean_over_seeds,
    pairs,
    scores,
    smallest_gaps,
    welch,
    what_can_be_found,
)
from hf_posenc.errors import UserError
from tests.support.comparison import made_up, toy

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"


DRAW = np.random.default_rng(0)
FIRST, SECOND = DRAW.normal(0.85, 0.01, 5).tolist(), DRAW.normal(0.82, 0.06, 4).tolist()
ZERO = [0.0] * 4
CASES = {  # ours, scipy's, tasks
    "one task is Welch's": (welch([FIRST], [SECOND], 0.01), stats.ttest_ind(FIRST, SECOND, equal_var=False), 1),
    # The mean of x and y over two tasks differs from 0 as x differs from -y.
    "two tasks are Welch's": (
        welch([FIRST, SECOND], [ZERO, ZERO], 0.01),
        stats.ttest_ind(FIRST, [-score for score in SECOND], equal_var=False),
        2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_contrast_is_the_test_of_scipy(case):
    (interval, p), known, tasks = CASES[case]
    assert p == pytest.approx(known.pvalue, abs=1e-12)
    low, high = known.confidence_interval(0.99)
    assert (tasks * interval.low, tasks * interval.high) == pytest.approx((low, high))
    mean, of_mean = mean_over_seeds(FIRST), stats.ttest_1samp(FIRST, 0).confidence_interval(0.95)
    assert (mean.low, mean.high) == pytest.approx(tuple(of_mean))


def test_where_nothing_varies_there_is_no_p_value():
    assert welch([[0.5] * 3], [[0.25] * 3]) == (Interval(0.25, 0.25, 0.25), None)
    assert welch([[0.5]], [[0.25, 0.5]]) == (Interval(0.125, None, None), None)
    assert welch([[0.5] * 3], [[0.1, 0.2, 0.3]])[1] is not None


def test_verdicts_and_equivalence_are_read_off_intervals_that_hold_at_once(tmp_path):
    """Each by scipy, with a level of .05 / 5 contrasts, whatever runs are missing."""
    means = {"none": 0.6, "rope": 0.8, "t5": 0.801, "lspe": 0.65}
    spreads = {"none": 0.005, "rope": 0.004, "t5": 0.003, "lspe": 0.05}
    draw = np.random.default_rng(1)
    drawn = {scheme: draw.normal(mean, spreads[scheme], 6) for scheme, mean in means.items()}
    plan = toy(schemes=[*means], seeds=6, test_lengths=[32], margin=0.02)
    folder = made_up(tmp_path, plan, lambda run, _: float(drawn[run.scheme][run.seed]))
    (folder / "runs" / "probes-lspe-seed5.json").unlink()
    drawn["lspe"] = drawn["lspe"][:5]
    verdicts = {}
    for contrast in contrasts(plan, read_table(folder)[0]):
        known = stats.ttest_ind(drawn[contrast.scheme], drawn[contrast.reference], equal_var=False)
        assert contrast.corrected == pytest.approx(min(1, 5 * known.pvalue))
        low, high = known.confidence_interval(1 - ALPHA / 5)
        assert (contrast.interval.low, contrast.interval.high) == pytest.approx((low, high))
        assert contrast.is_found == (low * high > 0)
        verdicts[contrast.scheme, contrast.reference] = contrast.verdict
    assert verdicts == {
        ("rope", "none"): "better",
        ("t5", "none"): "better",
        ("lspe", "none"): "not decided",
        ("t5", "rope"): "within 0.02",
        ("lspe", "rope"): "worse",
    }


def test_tasks_of_the_same_data_are_averaged_by_seed_first(tmp_path):
    tasks = [{"data": "probes", "name": name} for name in ("a", "b")]
    plan = toy(tasks=tasks, seeds=5, test_lengths=[32])
    drawn = np.random.default_rng(2).normal(0.7, 0.05, (2, 2, 5))  # scheme, task, seed
    place = {name: number for number, name in enumerate((*plan.schemes, "a", "b"))}
    folder = made_up(tmp_path, plan, lambda run, _: drawn[place[run.scheme], place[run.task.name] - 2, run.seed])
    (contrast,) = contrasts(plan, read_table(folder)[0])
    assert contrast.p == pytest.approx(stats.ttest_ind(*drawn[::-1].mean(1), equal_var=False).pvalue)


@pytest.mark.parametrize(("seeds", "tasks"), [(3, 1), (5, 3)])
def test_the_smallest_gap_is_found_in_four_of_five_cases(seeds, tasks, tmp_path):
    """By the spread of the runs, pooled over schemes, and in units of it before."""
    names = ["a", "blimp_order", "trec"][-tasks:]
    plan = read_plan({"tasks": names, "schemes": ["none", "rope", "t5"], "seeds": seeds})
    (units,) = smallest_gaps(plan).values()
    draw, spread = np.random.default_rng(seeds + tasks), 0.02
    made = draw.normal(0, spread, (2, 800, tasks, seeds))
    made[1] += units * spread
    found = np.mean([welch(y, x)[1] < ALPHA / 3 for x, y in zip(*made, strict=True)])
    assert found == pytest.approx(0.8, abs=0.04)
    variances = {"none": 1, "rope": 2, "t5": 3}
    shape = stats.zscore(np.arange(seeds), ddof=1)
    folder = made_up(tmp_path, plan, lambda run, _: 0.5 + variances[run.scheme] ** 0.5 * shape[run.seed] / 100)
    (gap,) = smallest_gaps(plan, read_table(folder)[0]).values()
    assert gap == pytest.approx(units * 2**0.5 / 100)


def test_a_plan_that_could_find_nothing_is_refused_with_the_seeds_that_it_needs():
    plan = toy(schemes=["none", "rope", "t5"], seeds=2)
    with pytest.raises(
        UserError, match=r"is too few for 6 tests: no difference below 50.7 standard .* Give (\d) seeds"
    ) as refused:
        check_power(plan)
    needed = int(re.search(r"Give (\d)", str(refused.value))[1])
    for seeds, is_enough in ((needed, True), (needed - 1, False)):
        assert (max(smallest_gaps(toy(schemes=plan.schemes, seeds=seeds)).values()) <= 4) == is_enough
    for accepted in (replace(plan, seeds=(0,)), toy(schemes=["rope"], seeds=2)):
        check_power(accepted)


def test_what_a_plan_can_find_is_said_before_it_runs():
    plan = read_plan({"tasks": ["halves", "trec"], "schemes": ["none", "rope", "t5", "lspe"], "seeds": 3})
    assert pairs(plan) == [("rope", "none"), ("t5", "none"), ("lspe", "none"), ("t5", "rope"), ("lspe", "rope")]
    (gap,) = smallest_gaps(plan).values()
    assert what_can_be_found(plan) == (
        f"With 3 seeds and 5 tests a difference must exceed {gap:.1f} standard deviations (of a scheme's scores in a "
        "task, over seeds) to be found in 4 of 5 cases."
    )
    assert what_can_be_found(replace(plan, seeds=(0,))).startswith("One seed gives no intervals")
    assert what_can_be_found(replace(plan, schemes=("rope",))) == "Nothing is compared."
    assert " on order decides, " in what_can_be_found(read_plan("practitioner_1000"))


def test_scores_are_means_over_parts_and_tasks_of_the_seeds_that_all_have():
    rows = [("a", "p", 0, 0.5), ("a", "q", 0, 0.7), ("a", "p", 1, 0.9), ("a", "q", 1, None), ("b", "b", 0, 0.8)]
    table = pd.DataFrame(
        [(*row, "rope", 8) for row in rows], columns=["task", "part", "seed", "score", "scheme", "length"]
    )
    assert scores(table, "a", "rope", 8) == {0: pytest.approx(0.6)}  # with seed 1 a part can't be tested
    assert group_scores(table, ["a", "b"], "rope", 8) == {0: pytest.approx(0.7)}
    assert scores(table, "a", "rope", 16) == {}


def test_k_of_n_runs_are_above_the_majority(tmp_path):
    values = {0: 0.5, 1: 0.57, 2: 0.58, 3: 0.9, 4: 0.1}  # of 400 examples .58 has p = .0008, .57 has .003
    plan = toy(schemes=["rope"], seeds=5, test_lengths=[32])
    table, _ = read_table(made_up(tmp_path, plan, lambda run, _: values[run.seed], majority=0.5))
    assert above_majority(table, "probes", "rope", 32) == (2, 5)
    assert above_majority(table, "probes", "t5", 32) is None
    matthews = table.assign(metric="matthews_correlation", score=table["score"] - 0.5 + 0.1)
    assert above_majority(matthews, "probes", "rope", 32) == (3, 5)  # .17 sqrt(400) is 3.4 standard deviations


def test_the_control_is_compared_with_nothing(tmp_path):
    plan = toy(tasks=["probes", "halves"], seeds=3)
    table, _ = read_table(made_up(tmp_path, plan, lambda run, length: 0.5 + run.seed / (9 + len(run.scheme))))
    made = contrasts(plan, table)
    assert [(c.group, c.length, c.scheme, c.reference) for c in made] == [
        ("probes", 32, "rope", "none"),
        ("probes", 48, "rope", "none"),
    ]


def test_the_committed_verdicts_are_those_of_an_independent_computation():
    comparison = Summary.of(RESULTS / "practitioner_3000")
    table = comparison.table
    for contrast in comparison.contrasts:
        means, parts = [], []
        for task in comparison.plan.groups[contrast.group]:
            wide = table[table["task"] == task].pivot_table("score", "seed", "scheme")
            pair = wide[[contrast.scheme, contrast.reference]]
            means.append(pair.mean().iloc[0] - pair.mean().iloc[1])
            parts += [*(pair.var() / 5)]
        freedom = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
        t = sum(means) / np.sqrt(sum(parts))
        assert contrast.p == pytest.approx(2 * stats.t.sf(abs(t), freedom))
        assert contrast.corrected == pytest.approx(min(1, contrast.p * 2 * (8 + 7)))
    assert len(comparison.contrasts) == 2 * (8 + 7)


@pytest.mark.parametrize(("seeds", "verdict"), [(3, "no test: fewer than 5 seeds, and not all learned"), (5, "better")])
def test_where_learning_is_all_or_none_three_seeds_decide_nothing(tmp_path, seeds, verdict):
    """Of schemes that learn in half of the cases three agree too often."""
    plan = toy(seeds=seeds, test_lengths=[32])
    learned = {"none": 0.5, "rope": 0.9}
    folder = made_up(
        tmp_path, plan, lambda run, _: learned[run.scheme] + (run.scheme == "rope") * run.seed / 500, majority=0.5
    )
    (contrast,) = contrasts(plan, read_table(folder)[0])
    assert contrast.verdict == verdict
    if seeds == 5:  # two of them are yet to be run
        for seed in (3, 4):
            (folder / "runs" / f"probes-rope-seed{seed}.json").unlink()
        (contrast,) = contrasts(plan, read_table(folder)[0])
        assert contrast.verdict == "no test: fewer than 5 seeds, and not all learned"


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
