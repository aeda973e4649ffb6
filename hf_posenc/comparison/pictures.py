"""The pictures of a report."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import zip_longest
from typing import TYPE_CHECKING

from ..schemes.plots import PALETTE
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALL = 8
_LINES = ((0, (1, 2)), "--", "-", "-.", (0, (6, 1, 1, 1, 1, 1)))
"""Of the baselines."""
_APART = 0.01
"""A baseline's line isn't drawn that near to another one's, of which it would hide the dashes."""


def draw_report(summary: Summary) -> "dict[str, Figure]":
    """The pictures, by file name: scores at the train length and, where there are more, against the length.

    There are none where matplotlib isn't installed.
    """
    if find_spec("matplotlib") is None:
        return {}
    pictures = {"scores.png": _draw_scores(summary)}
    if len(summary.plan.lengths) > 1:
        pictures["lengths.png"] = _draw_lengths(summary)
    for figure in pictures.values():
        drawn = [axes.get_legend_handles_labels() for axes in figure.axes]
        lines = {label: line for of_axes in drawn for line, label in zip(*of_axes, strict=True)}
        figure.legend(lines.values(), lines, fontsize=_SMALL, loc="outside lower center", frameon=False, ncols=5)
    return pictures


def _draw_scores(summary: Summary) -> "Figure":
    """A panel for each column, the schemes in one order in all."""
    columns = [column for column in summary.columns(summary.plan.home_length) if len(column.tasks) == 1]
    wide = min(len(columns), 3)
    height = 0.7 + -(-len(columns) // wide) * (0.5 + 0.19 * len(summary.order))
    figure = _panels([column.title for column in columns], wide, 1.2 + 2.3 * wide, height)
    for axes, column in zip(figure.axes, columns, strict=False):
        for place, scheme in enumerate(summary.order):
            if (interval := summary.interval(column, scheme)) is not None:
                low, high = (interval.mean if end is None else end for end in (interval.low, interval.high))
                axes.plot([low, high], [place, place], color=PALETTE[0], linewidth=1.4)
                axes.plot([interval.mean], [place], "o", color=PALETTE[0], markersize=4)
        drawn: list[float] = []
        for line, name in [*zip(_LINES, summary.baselines, strict=False)][::-1]:  # the strongest first
            mean = column.means.get(name)
            if mean is not None and all(abs(mean - other) > _APART for other in drawn):
                axes.axvline(mean, color="0.35", linestyle=line, linewidth=1, zorder=0, label=name)
                drawn.append(mean)
        axes.set_yticks(range(len(summary.order)), summary.order)
        axes.set_ylim(len(summary.order) - 0.5, -0.5)
    return figure


def _draw_lengths(summary: Summary) -> "Figure":
    """A panel for each task: means against the length of the test."""
    tasks = [task.name for task in summary.plan.tasks]
    figure = _panels(tasks, 1, 6.5, 0.9 + 2.6 * len(tasks))
    for axes, task in zip(figure.axes, tasks, strict=True):
        columns = [summary.column("", (task,), length) for length in summary.plan.lengths]
        for scheme in summary.order:
            points = {column.length: column.means[scheme] for column in columns if scheme in column.means}
            if len(points) < 2:  # a table of positions that ends: the dots of several would look alike
                continue
            place = len(axes.lines)
            style, colour = ("-", "--", ":")[place // len(PALETTE) % 3], PALETTE[place % len(PALETTE)]
            axes.plot([*points], [*points.values()], style, color=colour, marker="o", markersize=3, label=scheme)
        axes.axvline(summary.plan.train_length, color="0.7", linewidth=0.8, zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(summary.plan.lengths, [f"{length:,}" for length in summary.plan.lengths])
        axes.minorticks_off()
        axes.set_xlabel("tokens (the line: the train length)", fontsize=_SMALL)
    return figure


def _panels(titles: Sequence[str], wide: int, width: float, height: float) -> "Figure":
    """A figure of this many inches with a panel for each title, so many in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(-(-len(titles) // wide), wide, squeeze=False, sharey=wide > 1)
    for axes, title in zip_longest(figure.axes, titles):
        axes.set_visible(title is not None)
        axes.set_title(title, fontsize=_SMALL + 1, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_SMALL)
        axes.grid(axis="both", color="0.93")
    return figure
