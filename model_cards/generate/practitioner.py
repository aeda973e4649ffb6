"""The practitioner's tables: small data sets, from scratch and from pretrained weights; a picture, and the scores."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_posenc.comparison.charts import SMALL, make_axes, metric_name
from hf_posenc.comparison.findings import gap_range, in_brackets, quoted, seeds_range
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.references import MAJORITY, TO_BEAT
from hf_posenc.comparison.report import named
from hf_posenc.comparison.statistics import UNDECIDED, Difference, Interval, holm
from hf_posenc.comparison.study import Study
from hf_posenc.markdown import code, markdown_table
from hf_posenc.schemes.plots import PALETTE
from model_cards.generate.evidence import learned_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREY = "0.5"


PLANS = ("practitioner", "practitioner_pretrained")
"""The plans that have such a table and picture."""


Found = Sequence[tuple[Task, Mapping[str, Difference]]]
"""For each task each scheme against something."""


def contrasts(study: Study, other: str | None = None) -> Found:
    """For each task each scheme against `other` (None: the baseline), see `corrected`."""
    return corrected(study, lambda task: study.differences(task, study.home_length(task), other=other))


def above(study: Study) -> Found:
    """For each task each scheme against the better linear model, see `corrected`."""
    return corrected(study, lambda task: study.above(task, study.home_length(task)))


def corrected(study: Study, tested: Callable[[Task], Mapping[str, Difference]]) -> Found:
    """The differences, corrected for their number in all tasks with as many training rows.

    Each number of rows is a study of its own: another one changes no verdict.
    """
    found: list[tuple[Task, Mapping[str, Difference]]] = []
    for tasks in by_rows(study).values():
        every = holm({(task.name, name): value for task in tasks for name, value in tested(task).items()})
        found += [(task, {name: value for (at, name), value in every.items() if at == task.name}) for task in tasks]
    return found


def those(differences: Mapping[str, Difference], verdict: str) -> list[str]:
    """The schemes of which this was found."""
    return [scheme for scheme, difference in differences.items() if difference.verdict() == verdict]


def by_set(found: Found) -> str:
    """What was found on which data set: `better on `trec`: `rope`; all else: not decided (it would take 9 seeds)`."""
    clauses = []
    for verdict in ("better", "worse"):
        where: dict[str, list[str]] = {}
        for task, differences in found:
            if names := those(differences, verdict):
                where.setdefault(_of(names, differences), []).append(code(str(task.data)))
        clauses += [f"{verdict} on {', '.join(sets)}: {names}" for names, sets in where.items()]
    open_ones = [value for _, differences in found for value in differences.values() if value.verdict() == UNDECIDED]
    if open_ones:
        clauses.append(f"{'all else' if clauses else 'all'}: not decided{in_brackets(takes(open_ones))}")
    return "; ".join(clauses)


def _of(names: Sequence[str], schemes: Iterable[str]) -> str:
    """Some of the schemes: `all`, ``all but `rope` `` or their names."""
    left = [scheme for scheme in schemes if scheme not in names]
    if not left:
        return "all"
    return f"all but {quoted(left)}" if 2 * len(left) < len(names) else quoted(names)


def by_count(study: Study, found: Found) -> str:
    """`by_set` in a line for each number of training rows."""
    lines = []
    for count, tasks in by_rows(study).items():
        lines.append(f"- {count:,} rows: {by_set([(task, values) for task, values in found if task in tasks])}.")
    return "\n".join(lines)


def takes(open_ones: Sequence[Difference]) -> str:
    """The gaps that the tests would have found, and what those that were measured take."""
    known = [value for value in open_ones if value.gap is not None and value.gap <= value.widest]
    hopeless = sum(value.gap is not None and value.gap > value.widest for value in open_ones)
    gaps = gap_range(known)
    seeds = seeds_range(open_ones)
    texts = [
        f"gaps of {gaps} would have been found" if gaps else "",
        f"in {hopeless} of {len(open_ones)} comparisons no gap, however large" if hopeless else "",
        f"it would take {seeds} seeds" if seeds else "",
    ]
    return "; ".join(filter(None, texts))


def by_rows(study: Study) -> dict[int | None, list[Task]]:
    """The tasks by how many rows they train on."""
    return _grouped(study, lambda task: study.plan.train_examples_of(task))


def by_data(study: Study) -> dict[Any, list[Task]]:
    """The tasks by data set."""
    return _grouped(study, lambda task: task.data)


def _grouped(study: Study, key: Callable[[Task], Any]) -> dict[Any, list[Task]]:
    groups: dict[Any, list[Task]] = {}
    for task in study.tasks:
        groups.setdefault(key(task), []).append(task)
    return groups


def score_tables(study: Study, bold: str = "better") -> str:
    """For each number of rows what is to be beaten, then each scheme's mean in each data set.

    Bold where `bold` is its verdict on the baseline. Where some runs of a task are better than the majority's answers
    and others aren't, `3/5` says how many of how many.
    """
    tested = {task.name: differences for task, differences in contrasts(study)}
    tables = []
    for count, tasks in by_rows(study).items():
        rows = []
        for scheme in (*study.references[tasks[0].name], *study.schemes):
            cells = [_cell(study, task, scheme, tested[task.name], bold) for task in tasks]
            rows.append((named(study, scheme), *cells))
        tables.append(markdown_table((f"{count:,} rows", *(str(task.data) for task in tasks)), rows))
    return "\n\n".join(tables)


def _cell(study: Study, task: Task, scheme: str, differences: Mapping[str, Difference], bold: str) -> str:
    length = study.home_length(task)
    score = study.score(task, scheme, length)
    text = "" if score is None else f"{score.mean:.3f}"
    (part,) = study.parts(task, length)
    stands_out = scheme in differences and differences[scheme].verdict() == bold
    return (f"**{text}**" if stands_out else text) + learned_count(study, task, scheme, length, part)


def picture_data(study: Study) -> list[dict[str, Any]]:
    """What the picture shows: its title, and for each data set the names and their intervals, the best first."""
    return [
        {"title": _title(study)},
        *(
            {
                str(tasks[0].data): [
                    [name, *(round(end, 6) for score in scores if score is not None for end in score.ends)]
                    for name, scores in _rows(study, tasks)
                ]
            }
            for tasks in by_data(study).values()
        ),
    ]


def _title(study: Study) -> str:
    """The numbers of training rows: `1,000 rows (pale) and 3,000 rows`."""
    *fewer, most = [f"{count:,} rows" for count in by_rows(study)]
    return " and ".join([*(f"{count} (pale)" for count in fewer), most])


def _rows(study: Study, tasks: Sequence[Task]) -> list[tuple[str, list[Interval | None]]]:
    """Each name with its interval for each number of rows; the best with the most rows first."""
    *_, last = tasks
    ranked = [name for name, _ in study.rows(last, study.home_length(last)) if name != MAJORITY]
    return [(name, [study.score(task, name, study.home_length(task)) for task in tasks]) for name in ranked]


def chart(study: Study) -> "Figure":
    """For each data set the schemes and the linear models with their 95 % intervals, the best at the top.

    With several numbers of rows the intervals of the most rows are dark, and those of fewer are paler and above.
    """
    panels = list(by_data(study).values())
    lines = max(len(_rows(study, tasks)) * (0.6 + 0.4 * len(tasks)) for tasks in panels)
    columns = 2 if len(panels) in (2, 4) else 3
    rows = -(-len(panels) // columns)
    figure, grid = make_axes(rows, columns, 3.2 * columns, (1.0 + 0.22 * lines) * rows)
    for axes, tasks in zip(grid, panels, strict=False):
        ranked = _rows(study, tasks)[::-1]
        for place, (name, scores) in enumerate(ranked):
            colour = _GREY if name in TO_BEAT else "black" if name == study.plan.baseline else PALETTE[0]
            for number, (task, score) in enumerate(zip(tasks, scores, strict=True)):
                if score is not None:
                    is_dark = study.plan.train_examples_of(task) == list(by_rows(study))[-1]
                    drawn: dict[str, Any] = {"color": colour, "alpha": 1.0 if is_dark else 0.4}
                    height = place - 0.36 * (number - (len(scores) - 1) / 2)
                    axes.plot(score.ends, [height, height], linewidth=2, **drawn)
                    marker = "D" if name in TO_BEAT else "o"
                    axes.plot([score.mean], [height], marker=marker, markersize=5, **drawn)
        axes.set_yticks(range(len(ranked)), [name for name, _ in ranked])
        axes.grid(axis="x", color="0.9")
        axes.set_title(str(tasks[0].data), fontsize=SMALL + 1, loc="left")
        axes.set_xlabel(metric_name(tasks[0]), fontsize=SMALL)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(_title(study))
    return figure
