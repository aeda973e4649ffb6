"""Intervals and tests against scipy, scikit-learn and simulations with a known truth."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from hf_posenc.comparison.outcomes import classification_outcome, from_dict, likelihood_outcome, right_outcome
from hf_posenc.comparison.statistics import (
    DRAWS,
    NO_EVIDENCE,
    Difference,
    Interval,
    Sample,
    holm,
    interval,
    learned,
    paired,
    smallest_gap,
)


def sample(right, test="a"):
    """(n, U) truth values as a sample of n seeds."""
    return Sample.of({seed: {test: right_outcome(row)} for seed, row in enumerate(right)})


def difference(first, second):
    """The difference of two that are a family of their own."""
    return paired({"x": (first, second)})["x"]


def of_values(values, bounds=(-np.inf, np.inf)):
    """Values by seed, of examples that don't vary: an interval is over seeds alone."""
    every = np.array(values)
    return Sample(list(range(len(every))), every, np.broadcast_to(every, (DRAWS, len(every))), bounds)


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


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Seeds and examples both vary, and each example's difficulty is the same for all seeds."""
    draw = np.random.default_rng(0)
    hits, narrow = 0, 0
    for _ in range(80):
        hard = draw.normal(0, 0.15, 120)
        luck = draw.normal(0, 0.05, 6)
        right = draw.random((6, 120)) < np.clip(0.7 + hard[None] + luck[:, None], 0, 1)
        estimate = interval(sample(right))
        hits += estimate.low <= 0.7 <= estimate.high
        middle = interval(sample(right[:1].repeat(2, 0)))
        narrow += middle.low <= 0.7 <= middle.high
    assert hits / 80 > 0.87
    assert narrow < hits + 8  # one seed's examples alone are no better


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


def test_seeds_that_agree_by_chance_are_no_proof():
    """Schemes that learn (1.0) or don't (0.5) with one chance: a scheme's own seeds may agree, the family's don't."""
    draw = np.random.default_rng(0)
    wrong, alone = 0, 0
    for _ in range(60):
        samples = {name: of_values(draw.choice([0.5, 1.0], 3)) for name in range(6)}
        family = {two: (samples[two[0]], samples[two[1]]) for two in itertools.combinations(samples, 2)}
        wrong += any(comparison.corrected < 0.05 for comparison in holm(paired(family)).values())
        alone += any(
            comparison.corrected < 0.05 for comparison in holm({k: difference(*v) for k, v in family.items()}).values()
        )
    assert wrong <= 6 < alone


def test_one_scheme_whose_seeds_differ_much_decides_nothing_of_the_others():
    draw = np.random.default_rng(0)
    base = of_values([0.5] * 3)
    family = {n: (of_values(0.6 + 0.01 * draw.normal(size=3)), base) for n in "abcd"}
    wild = (of_values([0.1, 0.5, 0.9]), base)
    alone, together = paired(family), paired({**family, "wild": wild})
    for name, comparison in alone.items():
        assert comparison.p < 0.01
        assert together[name].p == pytest.approx(comparison.p, rel=1.0)


def test_a_gap_of_the_named_size_is_found_in_80_percent_of_cases():
    """Against a simulation of the whole test: draws with that true difference."""
    draw = np.random.default_rng(0)
    base = of_values(np.ones(5))
    spread = Difference(Interval(0.0, 0.0, 0.0, 5), 0.5, error=0.1 / 5**0.5, freedom=4)
    gap = smallest_gap(spread, 0.05)
    assert smallest_gap(replace(spread, error=0.0), 0.05) is None  # two models that answer one class each
    significant = [difference(of_values(1 + gap + 0.1 * draw.normal(size=5)), base).p < 0.05 for _ in range(400)]
    assert sum(significant) / 400 == pytest.approx(0.8, abs=0.05)


def test_the_smallest_gap_is_that_of_the_level_which_a_scheme_had_to_reach():
    family = {"a": 0.001, "b": 0.3, "c": 0.4, "none": None}
    differences = {n: Difference(Interval(0.0, 0.0, 0.0, 3), p, error=0.02, freedom=10.0) for n, p in family.items()}
    corrected = holm(differences)
    assert corrected["a"].gap is None  # it was found
    assert corrected["none"].gap is None
    assert corrected["b"].gap == corrected["c"].gap == smallest_gap(differences["b"], 0.05 / 2)
    assert corrected["b"].gap > smallest_gap(differences["b"], 0.05)
    one_seed = holm({"x": difference(of_values([1.2]), of_values([1.0]))})["x"]
    assert one_seed.gap is None


@pytest.mark.parametrize(
    ("twice", "once", "never", "is_learned"),
    [(50, 0, 0, True), (0, 50, 0, False), (10, 40, 0, True), (9, 41, 0, False), (20, 10, 20, False), (0, 0, 50, False)],
)
def test_a_run_has_learned_what_chance_would_give_one_in_a_thousand(twice, once, never, is_learned):
    pairs = [(True, True)] * twice + [(True, False)] * once + [(False, False)] * never
    outcome = right_outcome(np.array(pairs).ravel(), np.repeat(np.arange(len(pairs)), 2))
    assert learned(outcome) is is_learned
    assert learned(outcome) == (stats.binomtest(twice, max(twice + never, 1), alternative="greater").pvalue < 0.001)


def test_a_score_that_is_no_number_hides_no_other():
    nothing = Interval(0.0, 0.0, 0.0, 3)
    corrected = holm({"x": Difference(nothing, float("nan")), "y": Difference(nothing, 0.001)})
    assert (corrected["y"].corrected, corrected["x"].verdict()) == (0.002, NO_EVIDENCE)


def test_varying_examples_make_the_test_stricter():
    draw = np.random.default_rng(1)
    better, base = draw.random((5, 60)) < 0.75, draw.random((5, 60)) < 0.65
    comparison = difference(sample(better), sample(base))
    seeds_alone = stats.ttest_rel(better.mean(1), base.mean(1)).pvalue
    assert comparison.p > seeds_alone


def test_equal_schemes_and_clear_differences():
    right = np.random.default_rng(2).random((3, 100)) < 0.6
    same = holm({"x": difference(sample(right), sample(right))})["x"]
    assert (same.p, same.corrected, same.verdict()) == (1.0, 1.0, NO_EVIDENCE)
    assert NO_EVIDENCE == "no evidence of a difference"
    always = difference(sample(np.ones((3, 100), bool)), sample(np.zeros((3, 100), bool)))
    assert holm({"x": always})["x"].verdict() == "better"
    assert holm({"x": always})["x"].verdict(lower_is_better=True) == "worse"


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


def test_perplexity_weighs_tokens():
    outcome = likelihood_outcome(np.array([2.0, 4.0]), np.array([1.0, 3.0]))
    assert outcome.value() == pytest.approx(np.exp(6 / 4))


def test_outcomes_survive_their_json():
    right = np.random.default_rng(6).random(20) < 0.5
    outcomes = (
        right_outcome(right),
        right_outcome(right, [i // 2 for i in range(20)]),
        likelihood_outcome(np.array([1.25, 3.0]), np.array([2.0, 2.0])),
        classification_outcome("matthews_correlation", right.astype(int), np.roll(right, 3).astype(int), 2),
    )
    for outcome in outcomes:
        again = from_dict(outcome.metric, outcome.to_dict())
        assert again.columns == outcome.columns
        assert np.array_equal(again.units, outcome.units)
    assert right_outcome(np.ones(400, bool)).to_dict() == {"right": "1x400", "of": "1x400"}
