"""Statistics: each against scipy or its own definition, and how often they err, by simulation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from comparison_harness import made_up, toy
from scipy import stats

from hf_posenc.comparison import Summary, read_plan, read_table
from hf_posenc.comparison.statistics import (
    ALPHA,
    MOST_SEEDS,
    Contrast,
    Interval,
    _corrected,
    above_majority,
    contrasts,
    group_scores,
    mean_difference,
    pairs,
    power,
    scores,
    what_can_be_found,
)

RESULTS = Path(__file__).parents[2] / "model_cards" / "results"


def test_a_contrast_of_one_task_is_the_paired_t_test():
    differences = [0.03, 0.05, -0.01, 0.04]
    (interval, p), known = mean_difference([differences]), stats.ttest_1samp(differences, 0)
    assert p == pytest.approx(known.pvalue)
    assert (interval.low, interval.high) == pytest.approx(tuple(known.confidence_interval(0.95)))


def test_a_contrast_of_two_tasks_is_welchs_test():
    """The mean of x and y over two tasks differs from 0 as x differs from -y: Welch's test of the two."""
    draw = np.random.default_rng(0)
    first, second = draw.normal(0.05, 0.01, 5), draw.normal(0.02, 0.06, 5)
    known = stats.ttest_ind(first, -second, equal_var=False)
    interval, p = mean_difference([first.tolist(), second.tolist()])
    assert p == pytest.approx(known.pvalue)
    low, high = known.confidence_interval(0.95)
    assert (2 * interval.low, 2 * interval.high) == pytest.approx((low, high))


def test_where_no_difference_varies_there_is_no_p_value():
    interval, p = mean_difference([[0.5, 0.5, 0.5]])
    assert (p, interval.mean) == (None, 0.5)
    assert Contrast("", 0, "", "", interval, p).verdict == "no test: no difference varies"
    assert mean_difference([[0.5]]) == (Interval(0.5, None, None), None)
    assert Contrast("", 0, "", "", *mean_difference([[0.5]])).verdict == "no test: one seed"
    assert mean_difference([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]])[1] is not None


def test_holm_corrects_as_its_paper_says():
    made = [replace(Contrast("", 0, "", "", Interval(0, 0, 0)), p=p) for p in (0.01, 0.04, None, 0.03, 0.005)]
    assert [c.corrected for c in _corrected(made)] == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert [c.is_found for c in _corrected(made)] == [True, False, False, False, True]


@pytest.mark.parametrize(("seeds", "tasks", "level"), [(3, 1, ALPHA), (5, 1, ALPHA / 18), (5, 3, ALPHA / 18)])
def test_the_gap_is_found_in_four_of_five_cases(seeds, tasks, level):
    """With the true spread; of several tasks roughly, since their degrees of freedom vary."""
    draw = np.random.default_rng(seeds + tasks)
    fixed = [(0.01 * (task + 1) * stats.zscore(np.arange(seeds), ddof=1)).tolist() for task in range(tasks)]
    gap, _ = power(fixed, level)
    drawn = draw.normal(gap, [[0.01 * (task + 1)] for task in range(tasks)], (600, tasks, seeds))
    found = np.mean([mean_difference(case)[1] < level for case in drawn.tolist()])
    assert found == pytest.approx(0.8, abs=0.05 if tasks == 1 else 0.1)


def test_the_seeds_that_are_named_suffice():
    values = [0.01, 0.05, 0.03, 0.02]
    _, seeds = power([values], ALPHA / 4)

    def gap(count):
        of_same_spread = np.std(values, ddof=1) * stats.zscore(np.arange(count), ddof=1)
        return power([of_same_spread.tolist()], ALPHA / 4)[0]

    assert gap(seeds) <= np.mean(values) < gap(seeds - 1)
    assert power([[0.001, -0.05, 0.05]], ALPHA / 4)[1] == MOST_SEEDS + 1


def test_what_a_plan_can_find_is_said_before_it_runs():
    plan = read_plan({"tasks": ["halves", "trec"], "schemes": ["none", "rope", "t5", "lspe"], "seeds": 3})
    assert pairs(plan) == [("rope", "none"), ("t5", "none"), ("lspe", "none"), ("t5", "rope"), ("lspe", "rope")]
    gap, _ = power([stats.zscore(np.arange(3), ddof=1).tolist()], ALPHA / 5)
    assert what_can_be_found(plan) == (
        f"With 3 seeds and 5 tests a gap must exceed {gap:.1f} standard deviations to be found in 4 of 5 cases."
    )
    assert what_can_be_found(replace(plan, seeds=(0,))).startswith("One seed gives no intervals")
    assert what_can_be_found(replace(plan, schemes=("rope",))) == "Nothing is compared."
    assert "standard deviations of one task" in what_can_be_found(read_plan("practitioner_1000"))


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
        means, variances, differences = [], [], []
        for task in comparison.plan.groups[contrast.group]:
            wide = table[table["task"] == task].pivot_table("score", "seed", "scheme")
            difference = wide[contrast.scheme] - wide[contrast.reference]
            differences.append([*difference])
            means.append(difference.mean())
            variances.append(difference.var() / 5)
        freedom = sum(variances) ** 2 / sum(variance**2 / 4 for variance in variances)
        t = np.mean(means) / (np.sqrt(sum(variances)) / len(means))
        assert contrast.p == pytest.approx(2 * stats.t.sf(abs(t), freedom))
        if contrast.scheme == "pope":
            assert (contrast.gap, contrast.seeds) == pytest.approx(power(differences, ALPHA / 30))
    order = sorted(comparison.contrasts, key=lambda contrast: contrast.p)
    assert order[0].corrected == pytest.approx(order[0].p * len(order))
    assert len(order) == 2 * (8 + 7)


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
@pytest.mark.parametrize(("kind", "seeds", "most"), [("like", 3, 0.05), ("unlike", 5, 0.1), ("all or none", 5, 0.05)])
def test_a_report_of_schemes_that_are_alike_rarely_has_a_finding(kind, seeds, most):
    draw = np.random.default_rng(0)
    found = covered = 0
    for _ in range(400):
        if SPREADS[kind] is None:  # a run learns a task (.9) in half of the cases, else it stays at chance
            runs = np.where(draw.random((10, 3, seeds)) < 0.5, 0.9, 0.5) + draw.normal(0, 0.01, (10, 3, seeds))
        else:
            runs = draw.normal(0.7, np.array(SPREADS[kind])[:, None], (10, 3, seeds))
        pairs = [(i, 0) for i in range(1, 10)] + [(i, 1) for i in range(2, 10)]
        made = _corrected([Contrast("", 0, "", "", *mean_difference((runs[i] - runs[j]).tolist())) for i, j in pairs])
        found += any(contrast.is_found for contrast in made)
        covered += made[0].interval.low <= 0 <= made[0].interval.high
    assert found / 400 <= most
    assert covered / 400 >= 0.92
