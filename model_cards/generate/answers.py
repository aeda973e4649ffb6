"""The answers of `model_cards/README.md`: which scheme for which use, as far as the committed results carry it.

The sentences stand in `answers.md.jinja`; names and numbers in them come from the results. What a sentence says beyond
those is a claim here: where the results no longer carry it, no page is written, and the error quotes the claim.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_posenc.comparison.findings import gap_range, in_brackets, quoted, seeds_range
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.references import WORD_PAIRS, WORDS
from hf_posenc.comparison.statistics import UNDECIDED, Difference
from hf_posenc.comparison.study import Study
from hf_posenc.markdown import code, render
from hf_posenc.model.package_config import PosEncConfig
from model_cards.generate.card_results import Results, read_results
from model_cards.generate.evidence import PAGE_NAME
from model_cards.generate.practitioner import (
    above,
    by_count,
    by_data,
    by_rows,
    by_set,
    contrasts,
    score_tables,
    takes,
    those,
)

PLANS = ("listops", "long", "practitioner", "practitioner_pretrained", "probes", "quickstart")
"""The comparisons that the answers rest on."""
FILES = ("conversion", "benchmark_schemes", "benchmark_8192")
"""The other results that they rest on, `results/NAME.json`."""
ORDER_SET, DIRECTION_SET = "blimp_order", "semeval2010_task8"
"""The data set in which only the order of words says anything, and one in which it tells which way a relation goes."""
CHEAP = 1.05
"""Up to so many times the time of `none` a scheme counts as costing next to nothing."""


def render_answers(folder: Path, results: Results) -> str:
    """The answers, a section for each use.

    Raises:
        ValueError: the results no longer carry what a sentence claims.
    """
    missing = [name for name in PLANS if name not in results.studies]
    missing += [name for name in FILES if not (folder / "results" / f"{name}.json").is_file()]
    if missing:
        return f"Not answered: these results aren't there: {', '.join(missing)}."
    files = {name: read_results(folder, name) for name in FILES}
    values: dict[str, Any] = {"page": PAGE_NAME}
    claims: dict[str, bool] = {}
    for part in (
        _small,
        _worth,
        _from_scratch,
        _pretrained,
        _longer,
        _order_hardly_matters,
        _places_and_distances,
        _costs,
    ):
        part_values, part_claims = part(results.studies, files)
        values |= part_values
        claims |= part_claims
    broken = [claim for claim, holds in claims.items() if not holds]
    if broken:
        raise ValueError(f"The results no longer carry: {'; '.join(broken)}. Rewrite it in answers.md.jinja.")
    return render(Path(__file__).with_name("answers.md.jinja"), **values)


Part = tuple[dict[str, Any], dict[str, bool]]
"""Names and numbers of a section, and its claims."""


def _small(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study, tuned = studies["practitioner"], studies["practitioner_pretrained"]
    default = PosEncConfig().position_embedding_type
    linear, against_default = above(study), contrasts(study, default)
    counts = [count for count in by_rows(study) if count]
    ahead = [(task, names) for task, found in against_default if (names := those(found, "better"))]
    behind = [(task, names) for task, found in against_default if (names := those(found, "worse"))]
    alone = {task.name: those(study.above(task, study.home_length(task)), "better") for task in study.tasks}
    return {
        "small_sets": len(by_data(study)),
        "small_rows": _row_counts(study),
        "small_seeds": len(study.plan.seeds),
        "small_rates": len(study.plan.search),
        "small_edges": _edges(study),
        "small_steps": _steps(study),
        "small_table": score_tables(study),
        "small_learned": _hardly_learned(study),
        "small_linear": by_count(study, linear),
        "small_alone": "; ".join(
            f"{quoted(alone[task.name])} on {code(str(task.data))} with {study.plan.train_examples_of(task):,} rows"
            for task in study.tasks
            if alone[task.name]
        ),
        "small_default": by_count(study, against_default),
        "small_order": " and ".join(code(name) for _, names in ahead for name in names),
        "small_behind": quoted(name for _, names in behind for name in names),
        "small_fewest": f"{counts[0]:,}",
        "small_most": f"{counts[-1]:,}",
        "small_tuned": _mean(tuned, tuned.plan.baseline, f"{ORDER_SET}_{counts[0]}"),
    }, {
        "the numbers of rows go up, and each set has them all": counts == sorted(counts)
        and all(len(tasks) == len(by_data(study)) for tasks in by_rows(study).values()),
        "over all sets no scheme is better than a linear model": not any(those(found, "better") for _, found in linear),
        "only where order alone decides, and with the fewest rows, is a scheme better than the default": [
            task.name for task, _ in ahead
        ]
        == [f"{ORDER_SET}_{counts[0]}"],
        "only where relations have a direction, and with the most rows, is a scheme worse than the default": [
            task.name for task, _ in behind
        ]
        == [f"{DIRECTION_SET}_{counts[-1]}"],
        "who is better than the default isn't above a linear model": not any(
            set(names) & set(alone[task.name]) for task, names in ahead
        ),
    }


def _worth(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study = studies["practitioner"]
    found = contrasts(study)
    *_, most = by_rows(study).values()
    better = {task.data for task, differences in found if those(differences, "better")}
    means = []
    for task, differences in found:
        if task in most and task.data not in better:
            gaps = [value.interval.mean for value in differences.values()]
            ends = f"{min(gaps):+.3f} to {max(gaps):+.3f}"
            means.append(f"{sum(gap > 0 for gap in gaps)} of {len(gaps)} on {code(str(task.data))} ({ends})")
    return {"worth_sets": by_count(study, found), "worth_means": ", ".join(means)}, {
        "only where order decides, alone or among others, is a scheme better than none": better
        == {ORDER_SET, DIRECTION_SET},
        "nowhere is a scheme worse than none": not any(those(differences, "worse") for _, differences in found),
    }


def _hardly_learned(study: Study) -> str:
    """The data sets on which, with some number of rows, no run is better than the majority's answers."""
    clauses = []
    for data, tasks in by_data(study).items():
        learned = {}
        for task in tasks:
            length = study.home_length(task)
            (part,) = study.parts(task, length)
            counts = [count for name in study.schemes if (count := study.learned(task, name, length, part))]
            learned[study.plan.train_examples_of(task)] = sum(c.runs for c in counts), sum(c.of for c in counts)
        if any(runs == 0 < of for runs, of in learned.values()):
            texts = [f"{runs} of {of} runs with {rows:,} rows" for rows, (runs, of) in learned.items()]
            clauses.append(f"On {code(str(data))} {' and '.join(texts)} are better than the majority's answers.")
    return " ".join(clauses)


def _steps(study: Study) -> str:
    """How long the runs train: `512 with 1,000 rows, 564 with 3,000 rows`."""
    texts = []
    for rows, tasks in by_rows(study).items():
        (steps,) = {run["steps"] for run in study.done if run["task"] in {task.name for task in tasks}}
        texts.append(f"{steps} with {rows:,} rows")
    return ", ".join(texts)


def _edges(study: Study) -> str:
    """How often the best learning rate was the lowest or the highest of those tried: `23 of 54`."""
    chosen = {(run["task"], run["scheme"]): run for run in study.done}.values()
    tried = [(run["learning_rate"], sorted(map(float, run["search"]["scores"]))) for run in chosen]
    return f"{sum(rate in (rates[0], rates[-1]) for rate, rates in tried)} of {len(tried)}"


def _row_counts(study: Study) -> str:
    """The numbers of training rows of a study: `1,000 or 3,000`."""
    return " or ".join(dict.fromkeys(f"{study.plan.train_examples_of(task):,}" for task in study.tasks))


def _from_scratch(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study = studies["quickstart"]
    (task,) = study.tasks
    length = study.home_length(task)
    default = PosEncConfig().position_embedding_type
    others = study.differences(task, length, other=default)
    schemes = [(name, score.mean) for name, score in study.ranking(task, length) if name != "none"]
    differences = study.differences(task, length)
    ((linear, score), *_) = study.linear(task, length).items()
    return {
        "default": code(default),
        "seeds": len(study.plan.seeds),
        "scratch_rows": f"{study.done[0]['train_examples']:,}",
        "scratch_scores": ", ".join(f"{code(name)} {mean:.3f}" for name, mean in schemes),
        "scratch_none": _mean(study, "none"),
        "scratch_linear": linear,
        "scratch_linear_score": f"{score:.3f}",
        "scratch_above": quoted(those(study.above(task, length), "better")),
        "scratch_gap": gap_range(others.values()),
        "scratch_seeds": seeds_range(others.values()),
    }, {
        "the default scheme has the best mean on the quick start": study.ranking(task, length)[0][0] == default,
        "each scheme of the quick start is better than none": set(those(differences, "better")) == set(differences),
        "no other scheme of the quick start is told from the default": set(those(others, UNDECIDED)) == set(others),
    }


def _pretrained(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study, parts = studies["practitioner_pretrained"], files["conversion"]["parts"]
    kept = contrasts(study)
    healed = [name for name in study.schemes if f"heal/{name}/agreement" in parts and name != "none"]
    bare = {name: parts[f"swap/{name}/agreement"]["before"]["order_r2"] for name in healed}
    after = [parts[f"heal/{name}/agreement"]["after"]["order_r2"] for name in healed]
    without = {str(task.data): found["none"] for task, found in kept}
    worse, undecided = those(without, "worse"), those(without, UNDECIDED)
    open_ones = [without[name] for name in undecided]
    return {
        "bare": ", ".join(f"{code(name)} {round(r2, 2) + 0.0:.2f}" for name, r2 in bare.items()),
        "healed": quoted(healed),
        "steps": f"{parts['heal/rope/agreement']['healing']['steps']:,}",
        "after_low": f"{min(after):.2f}",
        "after_high": f"{max(after):.2f}",
        "tuned_sets": len(study.tasks),
        "tuned_rows": _row_counts(study),
        "tuned_seeds": len(study.plan.seeds),
        "tuned_rates": len(study.plan.search),
        "tuned_edges": _edges(study),
        "tuned_epochs": study.plan.options["num_train_epochs"],
        "tuned_table": score_tables(study, bold="worse"),
        "tuned_learned": _hardly_learned(study),
        "tuned_original": by_set(kept),
        "tuned_linear": by_set(above(study)),
        "tuned_none": quoted(worse),
        "tuned_none_open": f"on {quoted(undecided)} not decided{in_brackets(takes(open_ones))}",
    }, {
        "without healing little of the order of neighbours is left": max(bare.values()) < 0.3,
        "lspe keeps the order without healing": parts["swap/lspe/agreement"]["before"]["order_r2"] > 0.9,
        "healing brings most of it back": min(after) > 0.8,
        "without positions it is worse somewhere, and better nowhere": bool(worse) and not those(without, "better"),
        "no other scheme is better than the original": not any(those(found, "better") for _, found in kept),
    }


def _longer(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    changes, lengths = {}, {}
    for name in ("listops", "probes", "long"):
        task = studies[name].tasks[0]
        home, longest = studies[name].home_length(task), studies[name].lengths(task)[-1]
        changes[name], lengths[name] = studies[name].changes(task, home, longest), (home, longest)
    study = studies["listops"]
    (task,) = study.tasks
    longest = lengths["listops"][1]
    open_ones = [study.differences(task, longest, other=other) for other in study.contrasts]
    losses = sorted(-difference.interval.mean for difference in changes["listops"].values())
    lost, gained = (_change_of_words(studies[name], *lengths[name]) for name in ("listops", "long"))
    refuse = [scheme for scheme in study.schemes if study.score(task, scheme, longest) is None]
    return {
        "times": longest // lengths["listops"][0],
        "loss_words": f"{lost:.3f}",
        "loss_none": f"{-changes['listops']['none'].interval.mean:.3f}",
        "gain_words": f"{gained:.3f}",
        "gain_none": f"{changes['long']['none'].interval.mean:.3f}",
        "loss_low": f"{losses[0]:.3f}",
        "loss_high": f"{losses[-1]:.3f}",
        "probes": _verdicts(changes["probes"]),
        "probe_times": lengths["probes"][1] // lengths["probes"][0],
        "reviews": _verdicts(changes["long"]),
        "refuse": quoted(refuse),
        "longest": f"{longest:,}",
        "longest_contrasts": " or from ".join(map(code, study.contrasts)),
        "longest_seeds": seeds_range(value for family in open_ones for value in family.values()),
        "longest_runs": len(study.plan.seeds),
        "longest_examples": next(
            test["examples"] for test in study.runs(task, "none")[0]["tests"] if test["length"] == longest
        ),
    }, {
        "every scheme gets worse on longer listops": set(those(changes["listops"], "worse")) == set(changes["listops"]),
        "no scheme gets worse on longer reviews": not those(changes["long"], "worse"),
        "nothing is decided on the longest listops": all(set(those(f, UNDECIDED)) == set(f) for f in open_ones),
        "listops and the reviews go to the same multiple": len(
            {lengths[name][1] // lengths[name][0] for name in ("listops", "long")}
        )
        == 1,
    }


def _change_of_words(study: Study, home: int, longest: int) -> float:
    """By how much longer inputs change the score of words alone."""
    task = study.tasks[0]
    scores = [study.score(task, WORDS, length, study.curve_parts(task)) for length in (home, longest)]
    before, after = (score.mean for score in scores if score is not None)
    return abs(after - before)


def _order_hardly_matters(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study = studies["long"]
    (task,) = study.tasks
    length = study.home_length(task)
    differences = study.differences(task, length, "imdb")
    beaten = study.above(task, length, "imdb")
    ((linear, score), *_) = study.linear(task, length, "imdb").items()
    scratch, tuned = studies["practitioner"], studies["practitioner_pretrained"]
    rows = [(task, _few_rows(scratch, tuned, task)) for task in tuned.tasks]
    ahead = {str(task.data): _every_run_is_better(tuned, scratch, task) for task in tuned.tasks}
    return {
        "review_length": length,
        "review_linear": f"{linear} ({score:.3f})",
        "review_gap": gap_range(differences.values()),
        "review_seeds": seeds_range(differences.values()),
        "review_none": _mean(study, "none", part="imdb"),
        "few_ahead": quoted(name for name, holds in ahead.items() if holds),
        "few_not_ahead": quoted(name for name, holds in ahead.items() if not holds),
        "few_columns": (f"{_row_counts(tuned)} rows", *rows[0][1]),
        "few_rows": [(str(task.data), *(f"{score:.3f}" for score in scores.values())) for task, scores in rows],
    }, {
        "no scheme is told from none on short reviews": set(those(differences, UNDECIDED)) == set(differences),
        "no scheme is above a linear model on short reviews": not those(beaten, "better"),
        "pretrained weights are ahead on most sets": 2 * sum(ahead.values()) > len(ahead),
    }


TUNED = "all-MiniLM-L6-v2"


def _few_rows(scratch: Study, tuned: Study, task: Task) -> dict[str, float]:
    """A data set's scores from scratch and from pretrained weights, both with few rows."""
    (same,) = [known for known in scratch.tasks if known.name == task.name]
    columns = {
        "words": (scratch, same, WORDS),
        "word pairs": (scratch, same, WORD_PAIRS),
        "`none` from scratch": (scratch, same, "none"),
        "`rope` from scratch": (scratch, same, "rope"),
        f"{TUNED} without positions": (tuned, task, "none"),
        TUNED: (tuned, task, "learned"),
    }
    scores = {name: study.score(known, row, 64) for name, (study, known, row) in columns.items()}
    return {name: score.mean for name, score in scores.items() if score is not None}


def _every_run_is_better(tuned: Study, scratch: Study, task: Task) -> bool:
    """Whether each run from pretrained weights, under their own scheme, is above all from scratch and linear models.

    Also above those with more rows.
    """
    ours = tuned.sample(task, tuned.plan.baseline, 64)
    others = [
        scratch.sample(same, name, 64)
        for same in by_data(scratch)[task.data]
        for name in (*scratch.schemes, *scratch.linear(same, 64))
    ]
    assert ours is not None
    return all(min(ours.values) > max(other.values) for other in others if other is not None)


QUESTIONS = {
    "order_near": "which of two letters is first, 1 to 3 places apart",
    "order_far": "the same, 6 to 10 places apart",
    "distance_coarse": "whether two letters are 2 to 4 places apart, or 8 to 12",
    "distance_fine": "whether they are 3 or 4 places apart, or 6 or 7",
    "place": "which of two neighbouring letters stands at one of four positions",
    "parity": "which of them stands at an even position",
}
"""What the probes ask."""


def _places_and_distances(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study = studies["probes"]
    task = study.tasks[0]
    length = study.home_length(task)
    by_part = study.differences_by_part(study.home_length)
    answers, claims = [], {}
    for part, question in QUESTIONS.items():
        learned = [scheme for scheme in study.schemes if _learned_by_all(study, task, scheme, length, part)]
        tested = {key[2]: d for key, d in by_part.items() if key[1] == part}
        claims[f"who learned {part} in every run is better than none there"] = set(learned) <= set(
            those(tested, "better")
        )
        means = [(study.score(task, scheme, length, part), scheme) for scheme in learned]
        names = ", ".join(f"{code(name)} {score.mean:.2f}" for score, name in means if score is not None)
        answers.append(f"{question} (`{part}`): {names or 'no scheme'}")
    return {"probe_length": length, "probe_runs": len(study.plan.seeds), "probe_answers": answers}, claims


def _learned_by_all(study: Study, task: Task, scheme: str, length: int, part: str) -> bool:
    counts = study.learned(task, scheme, length, part)
    return counts is not None and counts.runs == counts.of


def _costs(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    work = files["benchmark_schemes"]["settings"]["works"][-1]
    costs = {row["contender"]: row["cost"] for row in files["benchmark_schemes"]["rows"] if row["work"] == work}
    dear = sorted((cost, name) for name, cost in costs.items() if cost > CHEAP)
    memory = {row["contender"]: row["peak_mb"] for row in files["benchmark_8192"]["rows"]}
    return {
        "work": work.replace("x", " texts of ") + " tokens",
        "cheap_limit": f"{CHEAP - 1:.0%}".replace("%", " %"),
        "cheap": quoted(name for name, cost in costs.items() if cost <= CHEAP and name != "none"),
        "dear": ", ".join(f"{code(name)} {cost:.2f}" for cost, name in dear),
        "memory": ", ".join(f"{code(name)} {peak:,.0f} MB" for name, peak in memory.items()),
    }, {"a bias takes more memory than rope at 8,192 tokens": memory["rope"] < memory["alibi"]}


def _verdicts(differences: Mapping[str, Difference]) -> str:
    """What was found, and what not: `worse under `rope`; under `t5` not decided (it would take 9 seeds)`."""
    found = {verdict: those(differences, verdict) for verdict in ("better", "worse")}
    clauses = [f"{verdict} under {quoted(names)}" for verdict, names in found.items() if names]
    if names := those(differences, UNDECIDED):
        open_ones = [differences[name] for name in names]
        clauses.append(f"under {quoted(names)} not decided{in_brackets(takes(open_ones))}")
    return "; ".join(clauses)


def _points(differences: Mapping[str, Difference]) -> str:
    """Points above the baseline, with their 95 % intervals."""
    rows = ((code(name), value.interval) for name, value in differences.items())
    return ", ".join(
        f"{name} {100 * gap.mean:+.1f} [{100 * gap.ends[0]:+.1f}, {100 * gap.ends[1]:+.1f}]" for name, gap in rows
    )


def _mean(study: Study, scheme: str, task_name: str | None = None, part: str | None = None) -> str:
    task = next(task for task in study.tasks if task_name in (None, task.name))
    score = study.score(task, scheme, study.home_length(task), part)
    return "" if score is None else f"{score.mean:.3f}"
