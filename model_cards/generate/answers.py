"""The answers of `model_cards/README.md`: which scheme for which use, as far as the committed results carry it.

The sentences stand in `answers.md.jinja`; names and numbers in them come from the results. What a sentence says beyond
those is a claim here: where the results no longer carry it, no page is written, and the error quotes the claim.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.comparison.findings import gap_range, in_brackets, quoted, seeds_range
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.statistics import UNDECIDED, Difference
from hf_posenc.comparison.study import Study
from hf_posenc.markdown import code, render
from hf_posenc.model.package_config import PosEncConfig
from model_cards.generate.card_results import Results, read_results
from model_cards.generate.evidence import PAGE_NAME
from model_cards.generate.practitioner import score_table

PLANS = ("listops", "long", "practitioner", "pretrained", "probes", "quickstart")
"""The comparisons that the answers rest on."""
FILES = ("conversion", "recipe", "benchmark_schemes", "benchmark_8192")
"""The other results that they rest on, `results/NAME.json`."""
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
    for part in (_small, _from_scratch, _pretrained, _longer, _order_hardly_matters, _places_and_distances, _costs):
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
    study = studies["practitioner"]
    default = PosEncConfig().position_embedding_type
    homes = [(task, study.home_length(task)) for task in study.tasks]
    linear = [study.above(task, length) for task, length in homes]
    return {
        "small_sets": len(study.tasks),
        "small_rows": " or ".join(dict.fromkeys(f"{study.plan.train_examples_of(task):,}" for task in study.tasks)),
        "small_seeds": len(study.plan.seeds),
        "small_rates": len(study.plan.search),
        "small_table": score_table(study),
        "small_linear": _by_set(study, linear),
        "small_default": _by_set(study, [study.differences(task, length, other=default) for task, length in homes]),
        "small_none": _by_set(study, [study.differences(task, length) for task, length in homes]),
    }, {"with few rows no scheme is better than a linear model": not any(_by(above, "better") for above in linear)}


def _by_set(study: Study, tested: Sequence[Mapping[str, Difference]]) -> str:
    """What was found on which data set: `better on `trec`: `rope`; all else: not decided (it would take 9 seeds)`."""
    clauses = []
    for verdict in ("better", "worse"):
        where: dict[str, list[str]] = {}
        for task, differences in zip(study.tasks, tested, strict=True):
            if names := _by(differences, verdict):
                text = "all" if len(names) == len(differences) else quoted(names)
                where.setdefault(text, []).append(code(str(task.data)))
        clauses += [f"{verdict} on {', '.join(sets)}: {names}" for names, sets in where.items()]
    open_ones = [value for differences in tested for value in differences.values() if value.verdict() == UNDECIDED]
    if open_ones:
        takes = f"it would take {seeds_range(open_ones)} seeds" if seeds_range(open_ones) else ""
        clauses.append(f"{'all else' if clauses else 'all'}: not decided{in_brackets(takes)}")
    return "; ".join(clauses)


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
        "scratch_scores": ", ".join(f"{code(name)} {mean:.3f}" for name, mean in schemes),
        "scratch_none": _mean(study, "none"),
        "scratch_linear": linear,
        "scratch_linear_score": f"{score:.3f}",
        "scratch_above": quoted(_by(study.above(task, length), "better")),
        "scratch_gap": gap_range(others.values()),
        "scratch_seeds": seeds_range(others.values()),
    }, {
        "the default scheme has the best mean on the quick start": study.ranking(task, length)[0][0] == default,
        "each scheme of the quick start is better than none": set(_by(differences, "better")) == set(differences),
        "no other scheme of the quick start is told from the default": set(_by(others, UNDECIDED)) == set(others),
    }


def _pretrained(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study, parts = studies["pretrained"], files["conversion"]["parts"]
    tasks = {task.name: task for task in study.tasks}
    swapped, questions = (study.differences(task, 64) for task in (tasks["bshift_novels"], tasks["trec"]))
    bare = {name: parts[f"swap/{name}/agreement"]["before"]["order_r2"] for name in swapped}
    after = [parts[f"heal/{name}/agreement"]["after"]["order_r2"] for name in swapped]
    return {
        "bare": ", ".join(f"{code(name)} {round(r2, 2) + 0.0:.2f}" for name, r2 in bare.items()),
        "steps": f"{parts['heal/rope/agreement']['healing']['steps']:,}",
        "runs": len(study.plan.seeds),
        "rows": f"{study.plan.train_examples_of(tasks['trec']):,}",
        "after_low": f"{min(after):.2f}",
        "after_high": f"{max(after):.2f}",
        "swapped_kept": _mean(study, "learned", "bshift_novels"),
        "swapped_points": _points(swapped),
        "swapped_verdicts": _verdicts(swapped),
        "trec_kept": _mean(study, "learned", "trec"),
        "trec_points": _points(questions),
        "trec_verdicts": _verdicts(questions),
    }, {
        "without healing little of the order of neighbours is left": max(bare.values()) < 0.3,
        "lspe keeps the order without healing": parts["swap/lspe/agreement"]["before"]["order_r2"] > 0.9,
        "healing brings most of it back": min(after) > 0.8,
        "no healed conversion is better than the original": not _by(swapped, "better") + _by(questions, "better"),
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
    refuse = [scheme for scheme in study.schemes if study.score(task, scheme, longest) is None]
    return {
        "times": longest // lengths["listops"][0],
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
        "every scheme gets worse on longer listops": set(_by(changes["listops"], "worse")) == set(changes["listops"]),
        "no scheme gets worse on longer reviews": not _by(changes["long"], "worse"),
        "nothing is decided on the longest listops": all(set(_by(f, UNDECIDED)) == set(f) for f in open_ones),
        "listops and the reviews go to the same multiple": len(
            {lengths[name][1] // lengths[name][0] for name in ("listops", "long")}
        )
        == 1,
    }


def _order_hardly_matters(studies: Mapping[str, Study], files: Mapping[str, Any]) -> Part:
    study = studies["long"]
    (task,) = study.tasks
    length = study.home_length(task)
    differences = study.differences(task, length, "imdb")
    above = study.above(task, length, "imdb")
    ((linear, score), *_) = study.linear(task, length, "imdb").items()
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for key, run in files["recipe"]["parts"].items():
        kind, name, rows, *_ = key.split("/")
        runs.setdefault((kind, name, rows), []).append(run)
    sets = [("sst2", "5000"), ("trec", "1000"), ("subj", "1000")]
    rows = [
        (
            f"{name}, {int(size):,} rows",
            runs["scratch", name, size][0]["baselines"]["word_pairs"],
            statistics.fmean(run["test"]["accuracy"] for run in runs["scratch", name, size]),
            statistics.fmean(run["test"]["accuracy"] for run in runs["pretrained", name, size]),
        )
        for name, size in sets
    ]
    return {
        "review_length": length,
        "review_linear": f"{linear} ({score:.3f})",
        "review_gap": gap_range(differences.values()),
        "review_seeds": seeds_range(differences.values()),
        "review_none": _mean(study, "none", part="imdb"),
        "word_sets": [(name, *(f"{score:.3f}" for score in scores)) for name, *scores in rows],
    }, {
        "no scheme is told from none on short reviews": set(_by(differences, UNDECIDED)) == set(differences),
        "no scheme is above a linear model on short reviews": not _by(above, "better"),
        "from scratch rope is below word pairs where words decide": all(rope < pairs for _, pairs, rope, _ in rows),
        "pretrained weights are above word pairs where words decide": all(pairs < tuned for _, pairs, _, tuned in rows),
    }


QUESTIONS = {
    "order_near": "which of two letters is first, 1 to 3 places apart",
    "order_far": "the same, 6 to 10 places apart",
    "distance_coarse": "whether two letters are 2 to 4 places apart, or 8 to 12",
    "distance_fine": "whether they are 3 or 4 places apart, or 6 or 7",
    "place": "which of two neighbouring letters stands at a named position",
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
            _by(tested, "better")
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


def _by(differences: Mapping[str, Difference], verdict: str) -> list[str]:
    return [scheme for scheme, difference in differences.items() if difference.verdict() == verdict]


def _verdicts(differences: Mapping[str, Difference]) -> str:
    """What was found, and what not: `worse under `rope`; under `t5` not decided (it would take 9 seeds)`."""
    found = {verdict: _by(differences, verdict) for verdict in ("better", "worse")}
    clauses = [f"{verdict} under {quoted(names)}" for verdict, names in found.items() if names]
    if names := _by(differences, UNDECIDED):
        takes = seeds_range(differences[name] for name in names)
        clauses.append(f"under {quoted(names)} not decided" + (f" (it would take {takes} seeds)" if takes else ""))
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
