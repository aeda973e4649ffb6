"""The report of a comparison: one table, pictures, a few sentences, the tests."""

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..data.tables import counted
from ..errors import UserError
from ..files import write_text
from ..markdown import code, plain, render
from ..model.configuration_posenc import PosEncConfig
from ..schemes.describe import position_rates, rates_in_words
from ..schemes.plots import save_figure
from ..training.baselines import MOST_SEEN
from . import statistics
from .baselines import BASELINES, WORD_PAIRS, WORDS
from .pictures import draw_report
from .plan import Plan
from .results import RUNS_NAME, TABLE_NAME, TRIED_NAME, write_tables
from .statistics import Contrast
from .summary import Summary
from .tables import difference, difference_table, gaps_in_words, score_table, test_table

_DPI = 130


def write_report(summary: Summary, path: Path) -> None:
    """Writes the report, and its pictures, where matplotlib is installed, and the table of results beside it.

    Raises:
        UserError: there is no run; or the path is of a new report, and files that it would replace lie beside it.
    """
    if not summary.has_runs:
        raise UserError(f"{str(summary.folder)!r} holds no run of its plan. Run `hf-posenc compare` first.")
    pictures = draw_report(summary)
    is_new = path.parent.resolve() != summary.folder.resolve() and not path.exists()
    if is_new and (there := [name for name in (TABLE_NAME, TRIED_NAME, *pictures) if path.with_name(name).exists()]):
        raise UserError(f"{str(path.parent)!r} holds {there[0]}, which the report would replace. Give another folder.")
    for name, figure in pictures.items():
        save_figure(figure, path.with_name(name), dpi=_DPI)
    write_tables(summary.folder, path.parent, [contrast.to_dict() for contrast in summary.contrasts])
    write_text(path, render_report(summary, [*pictures]))


def render_report(summary: Summary, pictures: Sequence[str]) -> str:
    """The Markdown."""
    plan, folder, runs = summary.plan, summary.folder, summary.table.dropna(subset="seed")
    counts = dict.fromkeys(plan.train_examples_of(task) for task in plan.tasks)
    parts = runs.groupby(["part", "length"])["examples"].first()
    table = score_table(summary, summary.columns(plan.home_length), cost=True)
    longer = score_table(summary, columns) if (columns := summary.longer_columns()) else ""
    there = shlex.quote(folder.as_posix())
    return render(
        Path(__file__).with_name("report.md.jinja"),
        c=summary,
        plan=plan,
        pictures=pictures,
        table=table,
        longer=longer,
        tests=test_table(summary),
        differences=difference_table(summary),
        answers=list(answers(summary)),
        sentences=list(sentences(summary)),
        mixed=re.search(r"(\d+/\d+)[* |]", table + longer),  # a score that describes no run
        counted=counted,
        gaps=gaps_in_words(summary) if len(plan.seeds) > 1 else "",
        statistics=statistics,
        about=BASELINES,
        most_seen=MOST_SEEN,
        tuned=_strengths_in_words(summary),
        runs=runs,
        rows=" or ".join("all" if count is None else f"at most {count:,}" for count in counts),
        examples=" to ".join(dict.fromkeys(f"{count:,}" for count in (min(parts), max(parts)))),
        error=0.5 / min(parts) ** 0.5,
        rates=_rates_in_words(plan),
        there=there,
        own=there
        if (folder / RUNS_NAME).is_dir()
        else shlex.quote(f"results/{folder.name}"),  # none can be added to a table alone
    )


def _strengths_in_words(summary: Summary) -> str:
    """The values of `C` that were tried for linear models, in words; none where it was fixed for a task."""
    tried = summary.tried.dropna(subset="C") if "C" in summary.tried else summary.tried[:0]
    is_tried = {*tried["task"]} == {task.name for task in summary.plan.tasks}
    return ", ".join(f"{strength:g}" for strength in sorted(tried["C"].unique())) if is_tried else ""


def _rates_in_words(plan: Plan) -> str:
    """The schemes whose weights learn at another rate than the encoder, in words."""
    rates: dict[str, float] = {}
    for scheme in plan.schemes:
        with contextlib.suppress(ValueError):  # one of the user's own, whose file isn't here
            fields = {"position_embedding_kwargs": plan.scheme_kwargs.get(scheme)}
            rates |= position_rates(PosEncConfig.from_size("tiny", position_embedding_type=scheme, **fields))
    return rates_in_words(rates)


def answers(summary: Summary) -> Iterator[str]:
    """Answers for each group whether order matters: the scheme that is furthest above `none`, and word pairs.

    A scheme that is shown to be better goes before one with a higher mean that isn't.
    """
    for group, tasks in summary.plan.tested_groups.items():
        column = summary.column(group, tasks, summary.plan.home_length)
        here = [c for c in summary.contrasts if (c.group, c.length) == (group, column.length)]
        against = [c for c in here if c.reference == "none"] + [c.reversed() for c in here if c.scheme == "none"]
        if against:
            best = max(against, key=lambda c: (c.is_found and c.interval.mean > 0, c.interval.mean))
            verdict = best.verdict.replace("better", "yes").replace("worse", "not shown")
            most = max(column.scores["none"].values(), default=0.0)
            scores = column.scores[best.scheme].values()
            count = f"{sum(score > most for score in scores)} of {counted(len(scores), 'run')} above all of `none`"
            text = f"{verdict[0].upper()}{verdict[1:]} on {plain(group)}: "
            text += f"{code(best.scheme)} has {difference(best.interval)} against `none`" + f", {count}" * bool(scores)
        else:
            text = f"Not tested on {plain(group)}, for want of `none` or of a scheme beside it"
        if {WORDS, WORD_PAIRS} <= column.means.keys():
            text += f"; {WORD_PAIRS} have {column.means[WORD_PAIRS]:.3f}, {WORDS} {column.means[WORDS]:.3f}"
        yield f"{text}."


def sentences(summary: Summary) -> Iterator[str]:
    """Answers the plan's question: which scheme, by how much, and how sure."""
    for group, tasks in summary.plan.tested_groups.items():
        column = summary.column(group, tasks, summary.plan.home_length)
        below, ranked = ([n for n in column.means if n in names] for names in (summary.baselines, summary.order))
        if not ranked:
            continue
        (best, second), top = [*ranked, ""][:2], (below or [""])[0]
        here = [c for c in summary.contrasts if (c.group, c.length) == (group, summary.plan.home_length)]
        leader = f"{code(best)} has the highest mean of the schemes, {column.means[best]:.3f}"
        for c in here:
            if c.scheme == best:
                leader += f"; {difference(c.interval)} against {code(c.reference)}, {c.verdict}"
            elif (c.scheme, c.reference) == (second, best):
                leader += f"; the next, {code(second)}, has {difference(c.interval)} against it, {c.verdict}"
        ahead = top and column.means[top] > column.means[best]
        title = f"{plain(group)}: {plain(top)}, a baseline, has a higher mean" if ahead else plain(group)
        known = f" The best baseline, {plain(top)}, has {column.means[top]:.3f}." if top else ""
        yield f"**{title}**{'.' if ahead else ':'} {leader}.{known}"
    if at_edge := summary.rates_at_the_edge():
        yield f"The best rate that was tried is the least or the highest one, so that others may be better: {at_edge}."
    for reference in summary.plan.references:
        tested = [c for c in summary.contrasts if c.reference == reference and c.corrected is not None]
        if tested:
            differing = "; ".join(_differing(summary.plan, tested)) or "no scheme is shown to differ"
            yield f"Compared with {code(reference)}: {differing}."


def _differing(plan: Plan, tested: Sequence[Contrast]) -> Iterator[str]:
    """The schemes that differ, or that don't by more than the margin, by verdict, group and length."""
    differing = [contrast for contrast in tested if contrast.is_found or contrast.is_within]
    for verdict, group, length in dict.fromkeys((c.verdict, c.group, c.length) for c in differing):
        members = [c for c in differing if (c.verdict, c.group, c.length) == (verdict, group, length)]
        members.sort(key=lambda c: -abs(c.interval.mean))
        names = ", ".join(f"{code(c.scheme)} ({c.interval.mean:+.3f})" for c in members)
        at = f" at {length:,} tokens" if len(statistics.tested_lengths(plan)) > 1 else ""
        yield f"{verdict} on {plain(group)}{at} {names}"
