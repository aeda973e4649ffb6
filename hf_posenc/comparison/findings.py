"""What the numbers allow one to say: sentences on each task, and the words for scores and differences in them."""

from collections.abc import Iterable, Iterator, Mapping

from hf_posenc.markdown import code, plain

from .charts import metric_name
from .plan import Task
from .references import MAJORITY, USUAL_FORM
from .spread import MOST_SEEDS
from .statistics import UNDECIDED, Difference, Interval, Learned
from .study import Study

NOTHING = "Nothing: fewer than two schemes have a result at one length."


def conclusions(study: Study) -> list[str]:
    """What the tests support, a sentence for each task at its train length and at its longest inputs."""
    return [sentence for _, sentence in findings(study)] or [NOTHING]


def findings(study: Study) -> Iterator[tuple[str, str]]:
    """The same sentences, each with the heading of its table."""
    for task in study.tasks:
        home, longest = study.home_length(task), study.lengths(task)[-1]
        if (unbeaten := baseline_warning(study, task, home)) is not None:
            yield ranking_heading(task, home), unbeaten
        for length in dict.fromkeys((home, longest)):
            where = ranking_heading(task, home) if length == home else length_heading(task)
            yield from ((where, sentence) for sentence in _contrasts(study, task, length))
        changes = study.changes(task, home, longest) if longest > home else {}
        if changes and len(study.plan.seeds) > 1:
            clauses = _by_verdict(changes)
            sentence = f"**{plain(task.name)}, from {home:,} to {longest:,} tokens**: {'; '.join(clauses)}."
            yield length_heading(task), sentence


def _contrasts(study: Study, task: Task, length: int) -> Iterator[str]:
    """The schemes against the baseline, then against the default scheme; at last those without a score."""
    start = f"**{plain(task.name)}, {length:,} tokens**: "
    for other in study.contrasts_of(task):
        score, differences = study.score(task, other, length), study.differences(task, length, other=other)
        if score is not None and differences:
            clauses = _by_verdict(differences)
            yield f"{start}against {code(other)} ({score.mean:.3f}) {'; '.join(clauses)}."
    if unable := [scheme for scheme in study.schemes if study.score(task, scheme, length) is None]:
        yield f"{start}can't be tested: {quoted(unable)}."


def baseline_warning(study: Study, task: Task, length: int) -> str | None:
    """The warning where a baseline beats every scheme; None where none does."""
    unbeaten, ranking = study.unbeaten(task, length), study.ranking(task, length)
    if unbeaten is None or not ranking or task.kind == "halves":
        return None
    (name, score), (best, value) = unbeaten, ranking[0]
    wins = "wins" if name in (MAJORITY, USUAL_FORM) else "win"
    return (
        f"**{plain(task.name)}, {length:,} tokens: {plain(name)} {wins}** with {score.mean:.3f}; the best scheme, "
        f"{code(best)}, has {value.mean:.3f}. What follows tells schemes apart, and not that an encoder is worth its "
        "training here."
    )


def ranking_heading(task: Task, length: int) -> str:
    """The heading of a task's ranking."""
    return f"{plain(task.name)}: ranking at {length:,} tokens"


def length_heading(task: Task) -> str:
    """The heading of a task's table of lengths."""
    return f"{plain(task.name)}: {metric_name(task)} against length"


def _by_verdict(differences: Mapping[str, Difference]) -> list[str]:
    """The schemes by verdict: better, worse, not decided."""
    groups: dict[str, list[str]] = {}
    for scheme, value in differences.items():
        verdict = value.verdict()
        shown = f" ({value.interval.mean:+.3f})" if verdict in ("better", "worse") else ""
        groups.setdefault(verdict, []).append(f"{code(scheme)}{shown}")
    if list(groups) == [UNDECIDED] and len(differences) > 1:
        groups[UNDECIDED] = [f"all {len(differences)}"]
    takes = {UNDECIDED: in_brackets(what_it_takes(differences.values()))}
    return [f"{verdict}: {', '.join(groups[verdict])}{takes.get(verdict, '')}" for verdict in sorted(groups)]


def what_it_takes(differences: Iterable[Difference]) -> str:
    """The smallest gaps that the tests of these schemes would have found, and the seeds that they would take."""
    values = list(differences)
    texts = {"smallest gap found in 80 % of cases": gap_range(values), "seeds to decide": seeds_range(values)}
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def gap_range(differences: Iterable[Difference]) -> str:
    """The least and the greatest of the smallest gaps: `0.033 to 0.123`."""
    return text_range((value.gap, gap_number(value)) for value in differences if value.gap is not None)


def seeds_range(differences: Iterable[Difference]) -> str:
    """The least and the greatest number of seeds that would find the differences measured: `7 to over 100`."""
    return text_range((value.seeds, seeds_number(value)) for value in differences if value.seeds is not None)


def text_range(values: Iterable[tuple[float, str]]) -> str:
    """The texts of the least and the greatest value."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(text for _, text in (*ordered[:1], *ordered[-1:])))


def in_brackets(text: str) -> str:
    """` (text)`, or nothing."""
    return f" ({text})" if text else ""


def quoted(schemes: Iterable[str]) -> str:
    """Schemes in a sentence."""
    return ", ".join(map(code, schemes))


def interval_text(value: Interval, signed: bool = False) -> str:
    """The mean and the interval: `0.912 [0.897, 0.925]`."""
    sign = "+" if signed else ""
    mean = f"{value.mean:{sign}.3f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} [{value.low:{sign}.3f}, {value.high:{sign}.3f}]"


def gap_number(difference: Difference | None) -> str:
    """The smallest gap that the test finds in 80 % of cases; nothing where it found one."""
    if difference is None or difference.gap is None:
        return ""
    return gap_text(difference.gap, difference.widest)


def gap_text(gap: float, widest: float) -> str:
    """A gap, or that it is more than the metric allows."""
    return f"{gap:.3f}" if gap <= widest else "beyond the metric"


def seeds_number(difference: Difference | None) -> str:
    """How many seeds would find the difference that was measured; nothing where it was found."""
    return "" if difference is None or difference.seeds is None else seeds_text(difference.seeds)


def seeds_text(seeds: float) -> str:
    """A number of seeds, or that it is more than anybody runs."""
    return f"over {MOST_SEEDS}" if seeds > MOST_SEEDS else f"{seeds:.0f}"


def learned_text(learned: Learned | None) -> str:
    """How many runs learned it, and the exact interval of the probability: `4 of 5 [0.28, 0.99]`."""
    if learned is None:
        return ""
    low, high = learned.ends
    return f"{learned.runs} of {learned.of} [{low:.2f}, {high:.2f}]"
