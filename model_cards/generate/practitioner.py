"""The practitioner's table: small data sets, schemes from scratch; a picture to read first, and the scores."""

from typing import TYPE_CHECKING, Any

from hf_posenc.comparison.charts import SMALL, make_axes, metric_name
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.references import MAJORITY, TO_BEAT
from hf_posenc.comparison.report import named
from hf_posenc.comparison.statistics import Interval
from hf_posenc.comparison.study import Study
from hf_posenc.markdown import markdown_table
from hf_posenc.schemes.plots import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS, _GREY = 3, "0.5"


def title(study: Study, task: Task) -> str:
    """The data set and how many rows of it are trained on: `sst2, 1,000 rows`."""
    return f"{task.data}, {study.plan.train_examples_of(task):,} rows"


def score_table(study: Study) -> str:
    """What is to be beaten, then each scheme's mean in each task; bold where it is better than the baseline."""
    rows = []
    for scheme in (*study.references[study.tasks[0].name], *study.schemes):
        cells = []
        for task in study.tasks:
            length = study.home_length(task)
            score = study.score(task, scheme, length)
            tested = study.differences(task, length).get(scheme)
            text = "" if score is None else f"{score.mean:.3f}"
            cells.append(f"**{text}**" if tested is not None and tested.verdict() == "better" else text)
        rows.append((named(study, scheme), *cells))
    return markdown_table(("", *(title(study, task) for task in study.tasks)), rows)


def picture_data(study: Study) -> list[dict[str, Any]]:
    """What the picture shows, as numbers: for each task the names and their intervals, the best first."""
    return [
        {title(study, task): [[name, *(round(end, 6) for end in score.ends)] for name, score in _rows(study, task)]}
        for task in study.tasks
    ]


def _rows(study: Study, task: Task) -> list[tuple[str, Interval]]:
    return [row for row in study.rows(task, study.home_length(task)) if row[0] != MAJORITY]


def chart(study: Study) -> "Figure":
    """For each task the schemes and the linear models with their 95 % intervals, the best at the top."""
    lines = max(len(_rows(study, task)) for task in study.tasks)
    rows = -(-len(study.tasks) // _COLUMNS)
    figure, grid = make_axes(rows, _COLUMNS, 3.2 * _COLUMNS, (1.0 + 0.22 * lines) * rows)
    for axes, task in zip(grid, study.tasks, strict=False):
        ranked = _rows(study, task)[::-1]
        for place, (name, score) in enumerate(ranked):
            colour = _GREY if name in TO_BEAT else "black" if name == study.plan.baseline else PALETTE[0]
            axes.plot(score.ends, [place, place], color=colour, linewidth=2)
            axes.plot([score.mean], [place], color=colour, marker="D" if name in TO_BEAT else "o", markersize=5)
        axes.set_yticks(range(len(ranked)), [name for name, _ in ranked])
        axes.grid(axis="x", color="0.9")
        axes.set_title(title(study, task), fontsize=SMALL + 1, loc="left")
        axes.set_xlabel(metric_name(task), fontsize=SMALL)
    for axes in grid[len(study.tasks) :]:
        axes.set_visible(False)
    return figure
