"""What the numbers allow one to say: sentences on each task, and the words for scores and differences in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hf_posenc.markdown import code, plain

from .charts import metric_name
from .plan import Task
from .references import MAJORITY
from .statistics import NO_EVIDENCE, Difference, Interval
from .study import Study, lower_is_better

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
            differences = study.differences(task, length)
            baseline = study.score(task, study.plan.baseline, length)
            clauses = _by_verdict(differences, lower_is_better(task))
            unable = [scheme for scheme in study.schemes if study.score(task, scheme, length) is None]
            if unable:
                clauses.append(f"can't be tested: {quoted(unable)}")
            if not clauses:
                continue
            against = "" if baseline is None else f"against {code(study.plan.baseline)} ({baseline.mean:.3f}) "
            sentence = f"**{plain(task.name)}, {length:,} tokens**: {against}{'; '.join(clauses)}."
            where = ranking_heading(task, home) if length == home else length_heading(task)
            yield where, sentence + _best_scheme_sentence(study, task, length)
        changes = study.changes(task, home, longest) if longest > home else {}
        if changes and len(study.plan.seeds) > 1:
            clauses = _by_verdict(changes, lower_is_better(task))
            sentence = f"**{plain(task.name)}, from {home:,} to {longest:,} tokens**: {'; '.join(clauses)}."
            yield length_heading(task), sentence


def baseline_warning(study: Study, task: Task, length: int) -> str | None:
    """The warning where a baseline (majority, words, word pairs) beats every scheme; None where none does."""
    unbeaten, ranking = study.unbeaten(task, length), study.ranking(task, length)
    if unbeaten is None or not ranking or task.kind == "halves":
        return None
    (name, score), (best, value) = unbeaten, ranking[0]
    wins = "wins" if name == MAJORITY else "win"
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


def _by_verdict(differences: Mapping[str, Difference], lower: bool) -> list[str]:
    """The schemes by verdict: better, worse, no evidence of a difference."""
    groups: dict[str, list[str]] = {}
    for scheme, value in differences.items():
        verdict = value.verdict(lower)
        shown = f" ({value.interval.mean:+.3f})" if verdict in ("better", "worse") else ""
        groups.setdefault(verdict, []).append(f"{code(scheme)}{shown}")
    if list(groups) == [NO_EVIDENCE] and len(differences) > 1:
        groups[NO_EVIDENCE] = [f"all {len(differences)}"]
    gaps = {NO_EVIDENCE: in_brackets(gap_text(differences.values()))}
    return [f"{verdict}: {', '.join(groups[verdict])}{gaps.get(verdict, '')}" for verdict in sorted(groups)]


def gap_text(differences: Iterable[Difference]) -> str:
    """The range of the smallest gaps that the tests of these schemes would have found."""
    gaps = sorted((value.gap, gap_number(value)) for value in differences if value.gap is not None)
    shown = dict.fromkeys(text for _, text in (*gaps[:1], *gaps[-1:]))
    return f"smallest gap found in 80 % of cases: {' to '.join(shown)}" if shown else ""


def in_brackets(text: str) -> str:
    """` (text)`, or nothing."""
    return f" ({text})" if text else ""


def compare_to_best(study: Study, task: Task, length: int) -> tuple[str, list[str], dict[str, Difference]]:
    """The scheme with the best mean, the schemes it beats, and those without evidence of a difference.

    Corrected for all pairs of schemes, since the best one is found by looking at all.
    """
    (best, _), *others = study.ranking(task, length)
    pairs = study.pairs(task, length)
    differences = {scheme: pairs.get((best, scheme)) or pairs[scheme, best] for scheme, _ in others}
    beaten = [scheme for scheme, difference in differences.items() if difference.is_found]
    return best, beaten, {scheme: difference for scheme, difference in differences.items() if not difference.is_found}


def _best_scheme_sentence(study: Study, task: Task, length: int) -> str:
    if task.kind == "halves" or len(study.plan.seeds) < 2 or len(study.ranking(task, length)) < 3:
        return ""
    best, beaten, equal = compare_to_best(study, task, length)
    return f" Best mean: {code(best)}, {best_text(beaten, equal)}, corrected for all pairs."


def best_text(beaten: Sequence[str], equal: Mapping[str, Difference]) -> str:
    """What `compare_to_best` found, in words."""
    gap = in_brackets(gap_text(equal.values()))
    if not beaten:
        return f"{NO_EVIDENCE} from any other{gap}"
    text = f"better than {quoted(beaten) if equal else 'all others'}"
    return f"{text}; {NO_EVIDENCE} from {quoted(equal)}{gap}" if equal else text


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
    return f"{difference.gap:.3f}" if difference.gap <= difference.widest else "beyond the metric"
