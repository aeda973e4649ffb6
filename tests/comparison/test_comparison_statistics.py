"""Intervals and tests against scipy, scikit-learn and simulations with a known truth."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from hf_posenc.comparison.outcomes import classification_outcome, from_dict, right_outcome
from hf_posenc.comparison.spread import Spread
from hf_posenc.comparison.statistics import (
    DRAWS,
    UNDECIDED,
    Difference,
    Interval,
    Learned,
    Sample,
    has_learned,
    holm,
    interval,
    paired,
)


def sample(right, test="a"):
    """(n, U) truth values as a sample of n seeds."""
    return Sample.of({seed: {test: right_outcome(row)} for seed, row in enumerate(right)})


def difference(first, second):
    """The difference of two that are a family of their own."""
    return paired({"x": (first, second)})["x"]


def of_values(values, bounds=(-np.inf, np.inf), learned=None):
    """Values by seed, of examples that don't vary: an interval is over seeds alone."""
    every, runs = np.array(values), None if learned is None else np.array(learned)[:, None]
    return Sample(list(range(len(every))), every, np.broadcast_to(every, (DRAWS, len(every))), bounds, runs)


def test_the_mean_is_over_seeds_and_tests():
    most, half = right_outcome(np.array([True, True, True, False])), right_outcome(np.array([True, False]))
    all_right = right_outcome(np.ones(4, bool))
    scores = Sample.of({0: {"a": most, "b": half}, 1: {"a": all_right, "b": half}})
    assert scores.values.tolist() == [(0.75 + 0.5) / 2, (1 + 0.5) / 2]
    assert interval(scores).mean == pytest.approx(0.6875)
    with pytest.raises(ValueError, match="different tests"):
        Sample.of({0: {"a": most}, 1: {"b": half}})


def test_groups_are_drawn_together():
    right = np.array([True, False] * 50)  # each pair has one right: the metric can't vary
    grouped = right_outcome(right, np.repeat(np.arange(50), 2))
    assert grouped.units.shape == (50, 2)
    estimate = interval(Sample.of({0: {"a": grouped}, 1: {"a": grouped}}))
    assert (estimate.low, estimate.mean, estimate.high) == (0.5, 0.5, 0.5)
    alone = interval(Sample.of({0: {"a": right_outcome(right)}, 1: {"a": right_outcome(right)}}))
    assert alone.low < 0.45 < 0.55 < alone.high


def test_with_examples_alone_the_interval_is_scipys():
    right = np.random.default_rng(0).random(200) < 0.7
    ours = interval(sample([right, right]))
    theirs = stats.bootstrap((right.astype(float),), np.mean, method="percentile", rng=1, n_resamples=4000)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.012)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.012)


def test_where_only_seeds_vary_the_test_is_the_paired_t_test():
    first, second = [0.9, 0.8, 0.95, 0.85], [0.5, 0.5, 0.55, 0.5]
    first_sample, second_sample = of_values(first), of_values(second)
    comparison = difference(first_sample, second_sample)
    assert comparison.p == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert comparison.interval.mean == pytest.approx(np.mean(first) - np.mean(second))
    theirs = stats.ttest_1samp(first, 0).confidence_interval()
    assert interval(first_sample).ends == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert interval(of_values([0.9, 0.99], (0.0, 1.0))).high == 1.0  # no further than the metric goes


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_with_few_seeds_intervals_hold_the_truth_as_often(seeds):
    draw = np.random.default_rng(0)
    made = [interval(of_values(draw.normal(2.0, 0.1, seeds))) for _ in range(300)]
    hits = sum(estimate.low <= 2.0 <= estimate.high for estimate in made)
    assert 0.92 < hits / 300 < 0.98


@pytest.mark.parametrize(("runs", "other"), [(3, 0), (4, 0), (5, 0), (8, 0), (8, 1), (8, 2), (7, 1), (8, 4)])
def test_where_learning_is_all_or_none_the_test_agrees_with_fishers(runs, other):
    """`runs` of a scheme's runs learned, and `other` of another's; its own few seeds may all agree."""
    seeds = max(runs, other)
    first, second = (np.arange(seeds) < learned for learned in (runs, other))
    comparison = difference(*(of_values(np.where(learned, 0.9, 0.5), learned=learned) for learned in (first, second)))
    table = [[runs, seeds - runs], [other, seeds - other]]
    assert comparison.p == pytest.approx(stats.fisher_exact(table).pvalue, rel=0.5)
    assert comparison.interval.low < comparison.interval.mean
    known = difference(*(of_values(np.where(learned, 0.9, 0.5)) for learned in (first, second)))
    assert known.p < comparison.p  # where learning isn't left to chance


def test_where_all_learned_or_none_did_their_spread_is_the_measure():
    values = [0.9, 0.91, 0.92], [0.8, 0.82, 0.81]
    for learned in ((True, True), (False, False), (None, True)):
        samples = (of_values(v, learned=None if x is None else [x] * 3) for v, x in zip(values, learned, strict=True))
        assert difference(*samples).p == pytest.approx(stats.ttest_rel(*values).pvalue)


def test_the_other_schemes_of_a_plan_decide_nothing():
    draw = np.random.default_rng(0)
    base = of_values([0.5] * 3)
    family = {n: (of_values(0.6 + 0.01 * draw.normal(size=3)), base) for n in "abcd"}
    wild = (of_values([0.1, 0.5, 0.9]), base)
    alone, together = paired(family), paired({**family, "wild": wild})
    assert all(together[name] == comparison for name, comparison in alone.items())


def test_what_all_seeds_share_is_told_from_what_each_has():
    """Examples that are hard for all seeds, and answers that each seed has for itself."""
    draw = np.random.default_rng(0)
    shared, own = draw.normal(size=(1, 400)), draw.normal(size=(4, 400))
    weights = draw.multinomial(400, [1 / 400] * 400, size=2000) / 400
    for part, expected in ((shared + 0 * own, 1.0), (own, 0.0), (shared + own, 0.8)):
        spread = Spread.of(part.mean(1), weights @ part.T)
        assert spread.shared / spread.over_examples == pytest.approx(expected, abs=0.12)
        many = spread.with_seeds(400)
        assert many.over_examples == pytest.approx(spread.shared, abs=0.02 * spread.over_examples)


def test_no_interval_is_narrower_than_the_examples_allow():
    right = np.random.default_rng(0).random(200) < 0.7
    agree = sample(np.stack([right, right[::-1]]))  # the same score on other examples
    assert agree.values[0] == agree.values[1]
    ends = interval(agree).ends
    assert ends[1] - ends[0] == pytest.approx(2 * 1.96 * (0.21 / 400) ** 0.5, rel=0.1)


def test_the_smallest_gap_is_that_of_the_level_which_a_scheme_had_to_reach():
    family, spread = {"a": 0.001, "b": 0.3, "c": 0.4, "none": None}, Spread(3, 0.0004, 0.0001, 0.0001)
    differences = {n: Difference(Interval(0.02, 0.0, 0.0, 3), p, spread=spread) for n, p in family.items()}
    corrected = holm(differences)
    for found in (corrected["a"], corrected["none"]):
        assert (found.gap, found.seeds) == (None, None)
    assert corrected["b"].gap == corrected["c"].gap == spread.smallest_gap(0.05 / 2)
    assert corrected["b"].gap > spread.smallest_gap(0.05)
    assert corrected["b"].seeds == spread.seeds_to_find(0.02, 0.05 / 2)
    one_seed = holm({"x": difference(of_values([1.2]), of_values([1.0]))})["x"]
    assert (one_seed.gap, one_seed.seeds) == (None, None)


def test_a_gap_takes_the_seeds_that_are_named():
    spread = Spread(5, 0.0009, 0.0002, 0.0001)
    gap = spread.smallest_gap(0.05)
    assert spread.seeds_to_find(gap * 1.01, 0.05) == 5
    assert spread.seeds_to_find(-gap * 0.99, 0.05) == 6
    needed = spread.seeds_to_find(gap / 2, 0.05)
    powers = [spread.with_seeds(seeds).power(gap / 2, 0.05, pilot=5) for seeds in (needed - 1, needed)]
    assert powers[0] < 0.8 <= powers[1]
    assert spread.seeds_to_find(0.015, 0.05) == np.inf  # with all seeds, examples alone leave 0.01 of error
    assert Spread(5, 0.0, 0.0, 0.0).smallest_gap(0.05) is None  # two models that answer one class each
    few, many = (Spread(seeds, 0.0, 0.0001, 0.0001, all_or_none=True) for seeds in (3, 8))
    assert few.smallest_gap(0.05) == np.inf  # 3 of 3 against 0 of 3: Fisher's p is 0.1
    assert many.smallest_gap(0.05) < 0.05


def test_k_of_n_has_its_exact_interval():
    assert Learned(5, 5).ends == (pytest.approx(0.025 ** (1 / 5)), 1.0)
    assert Learned(0, 3).ends == (0.0, pytest.approx(1 - 0.025 ** (1 / 3)))


@pytest.mark.parametrize(
    ("twice", "once", "never", "is_learned"),
    [(50, 0, 0, True), (0, 50, 0, False), (10, 40, 0, True), (9, 41, 0, False), (20, 10, 20, False), (0, 0, 50, False)],
)
def test_a_run_has_learned_what_chance_would_give_one_in_a_thousand(twice, once, never, is_learned):
    pairs = [(True, True)] * twice + [(True, False)] * once + [(False, False)] * never
    outcome = right_outcome(np.array(pairs).ravel(), np.repeat(np.arange(len(pairs)), 2))
    one_of_each = replace(outcome, units=np.tile([1.0, 2.0], (len(pairs), 1)))
    assert has_learned(outcome, one_of_each) is is_learned
    assert has_learned(outcome, one_of_each) == (
        stats.binomtest(twice, max(twice + never, 1), alternative="greater").pvalue < 0.001
    )


def test_a_run_has_learned_what_the_majority_does_not_know():
    right = np.arange(200) < 130
    for majority, is_learned in ((np.arange(200) < 100, True), (np.arange(200) < 125, False), (right, False)):
        assert has_learned(right_outcome(right), right_outcome(majority)) is is_learned
    assert has_learned(right_outcome(right), None) is None
    labels = np.arange(200) % 2
    for wrong, is_learned in ((60, True), (90, False)):
        answers = np.where(np.arange(200) < wrong, 1 - labels, labels)
        outcome = classification_outcome("matthews_correlation", labels, answers, 2)
        assert has_learned(outcome, None) is is_learned
        table = np.histogram2d(labels, answers, 2)[0]
        assert is_learned == (stats.chi2_contingency(table, correction=False).pvalue / 2 < 0.001)


def test_a_score_that_is_no_number_hides_no_other():
    nothing = Interval(0.0, 0.0, 0.0, 3)
    corrected = holm({"x": Difference(nothing, float("nan")), "y": Difference(nothing, 0.001)})
    assert (corrected["y"].corrected, corrected["x"].verdict()) == (0.002, UNDECIDED)


def test_varying_examples_make_the_test_stricter():
    draw = np.random.default_rng(1)
    better, base = draw.random((5, 60)) < 0.75, draw.random((5, 60)) < 0.65
    comparison = difference(sample(better), sample(base))
    seeds_alone = stats.ttest_rel(better.mean(1), base.mean(1)).pvalue
    assert comparison.p > seeds_alone


def test_equal_schemes_and_clear_differences():
    right = np.random.default_rng(2).random((3, 100)) < 0.6
    same = holm({"x": difference(sample(right), sample(right))})["x"]
    assert (same.p, same.corrected, same.verdict()) == (1.0, 1.0, UNDECIDED)
    assert UNDECIDED == "not decided"
    always = difference(sample(np.ones((3, 100), bool)), sample(np.zeros((3, 100), bool)))
    assert holm({"x": always})["x"].verdict() == "better"


def test_one_seed_says_nothing():
    right = np.random.default_rng(2).random((1, 100)) < 0.6
    assert interval(sample(right)).low is None
    comparison = holm({"x": difference(sample(right), sample(~right))})["x"]
    assert comparison.p is None
    assert comparison.verdict() == "one seed: can't be said"


def test_only_common_seeds_are_compared():
    right = np.random.default_rng(3).random((4, 50)) < 0.5
    few, none = (replace(of_values([0.5] * len(seeds)), seeds=seeds) for seeds in ([1, 3], [7]))
    assert difference(sample(right), few).interval.seeds == 2
    assert paired({"x": (few, none)}) == {}


def test_holm_corrects_as_its_paper_says():
    nothing = Interval(0.0, 0.0, 0.0, 3)
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    corrected = holm({name: Difference(nothing, value) for name, value in p.items()})
    assert [round(corrected[name].corrected, 6) for name in "abcd"] == [0.03, 0.06, 0.06, 0.02]


@pytest.mark.parametrize("classes", [2, 4])
def test_the_matthews_correlation_is_scikit_learns(classes):
    draw = np.random.default_rng(4)
    labels = draw.integers(0, classes, 80)
    predictions = np.where(draw.random(80) < 0.5, labels, draw.integers(0, classes, 80))
    outcome = classification_outcome("matthews_correlation", labels, predictions, classes)
    assert outcome.value() == pytest.approx(matthews_corrcoef(labels, predictions))
    weights = np.random.default_rng(5).multinomial(80, [1 / 80] * 80, size=3)
    for row, score in zip(weights, outcome.scores(weights), strict=True):
        assert score == pytest.approx(matthews_corrcoef(labels.repeat(row), predictions.repeat(row)))
    assert classification_outcome("matthews_correlation", labels, np.zeros(80, int), classes).value() == 0


def test_outcomes_survive_their_json():
    right = np.random.default_rng(6).random(20) < 0.5
    outcomes = (
        right_outcome(right),
        right_outcome(right, [i // 2 for i in range(20)]),
        classification_outcome("matthews_correlation", right.astype(int), np.roll(right, 3).astype(int), 2),
    )
    for outcome in outcomes:
        again = from_dict(outcome.metric, outcome.to_dict())
        assert again.columns == outcome.columns
        assert np.array_equal(again.units, outcome.units)
    assert right_outcome(np.ones(400, bool)).to_dict() == {"right": "1x400", "of": "1x400"}
