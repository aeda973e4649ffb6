"""The pictures of a report, as png. Matplotlib is needed here alone: `pip install "hf-posenc[plots]"`."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_posenc.schemes.plots import PALETTE

from .plan import Task
from .study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":")
_MARKS = "osD^vP"
SMALL = 9
# A phone shows half as many pixels: the figure has few inches, so that words stay readable there.
WIDTH, _DPI = 5.0, 150
_WIDE, _COLUMNS = 7.5, 3
"""Width in inches, and columns, of a picture with one axes per scheme."""


def make_axes(
    rows: int, columns: int, width: float, height: float, sharey: bool = False
) -> "tuple[Figure, list[Axes]]":
    """A figure with so many axes in the style of the reports.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Reports need matplotlib. Install it with: pip install "hf-posenc[plots]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=SMALL)
    return figure, grid


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    figure, (axes,) = make_axes(1, 1, width, height)
    return figure, axes


def _png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def literal(name: str) -> str:
    """Escapes a label: matplotlib reads $...$ as a formula, and leaves labels that begin with _ out of legends."""
    text = " ".join(name.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _style(study: Study, scheme: str) -> dict[str, Any]:
    """A scheme's colour, line and mark, the same in every picture; later lines are thinner and hide no earlier ones."""
    index = study.schemes.index(scheme)
    return {
        "linewidth": max(2.6 - 0.11 * index, 1),
        "markersize": max(7 - 0.32 * index, 2.5),
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": _STYLES[index // len(PALETTE) % len(_STYLES)],
        "marker": _MARKS[index // len(PALETTE) % len(_MARKS)],
    }


def metric_name(task: Task) -> str:
    """The metric in words."""
    return task.metric.replace("_", " ")


def ranking_chart(study: Study, task: Task, length: int) -> bytes:
    """Each scheme's mean with its interval, the best at the top."""
    rows = study.ranking(task, length)[::-1]
    figure, axes = _figure(WIDTH, 1.1 + 0.28 * len(rows))
    for place, (scheme, value) in enumerate(rows):
        style = _style(study, scheme)
        axes.plot(value.ends, [place, place], color=style["color"], linewidth=2)
        axes.plot([value.mean], [place], color=style["color"], marker=style["marker"])
    others = [(name, value) for name, value in study.rows(task, length) if name not in study.schemes]
    for name, value in others:
        axes.axvline(value.mean, color="0.35", linestyle="--" if name == others[0][0] else ":", linewidth=1, zorder=0)
        axes.annotate(
            literal(name), (value.mean, 1), (2, 0), xycoords=("data", "axes fraction"), textcoords="offset points"
        )
    axes.set_xlim(*_score_limits([end for _, value in (*rows, *others) for end in value.ends]))
    axes.set_yticks(range(len(rows)), [literal(scheme) for scheme, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(f"{metric_name(task)} at {length:,} tokens", fontsize=SMALL)
    axes.grid(axis="x", color="0.9")
    return _png(figure)


def _score_limits(ends: Sequence[float]) -> tuple[float, float]:
    """Limits of the axis: wide enough that 0.001 doesn't look large, and at most 1 for scores bounded by 1."""
    low, high = min(ends), max(ends)
    pad = max(0.1 - (high - low), 0.1 * (high - low)) / 2
    return low - pad - max(high + pad - 1.01, 0), min(high + pad, 1.01)


Line = tuple[list[float], list[float], list[float], list[float]]
"""x, and at each the mean and the ends of its interval."""


def length_chart(study: Study, task: Task) -> bytes:
    """The metric against the length of the test, with intervals."""
    lengths, parts = study.lengths(task), study.curve_parts(task)
    lines: dict[str, Line] = {}
    for place, scheme in enumerate(study.schemes):
        # Side by side, so that no bar hides another.
        shift = 1.0 if are_many(study) else 1.03 ** (place - len(study.schemes) / 2)
        points = {length * shift: study.score(task, scheme, length, parts) for length in lengths}
        scores = {x: value for x, value in points.items() if value is not None}
        if scores:
            lows, highs = zip(*(value.ends for value in scores.values()), strict=True)
            lines[scheme] = ([*scores], [value.mean for value in scores.values()], [*lows], [*highs])
    figure, every = _line_axes(study, lines, bars=True)
    for axes in every:
        axes.axvline(study.plan.train_length_of(task), color="0.6", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        if lines:
            axes.set_ylim(*_score_limits([end for _, _, low, high in lines.values() for end in (*low, *high)]))
    _name_axes(figure, every, "tokens (the line: the train length)", metric_name(task))
    return _png(figure)


def are_many(study: Study) -> bool:
    """Whether there are too many schemes for one set of axes; then each scheme has its own."""
    return len(study.schemes) > len(PALETTE)


def _line_axes(study: Study, lines: dict[str, Line], bars: bool) -> "tuple[Figure, list[Axes]]":
    """All lines in one picture, or each in its own before the others in grey; intervals as bars or as bands."""
    if not are_many(study):
        figure, axes = _figure(WIDTH, 4)
        for scheme in lines:
            _draw_line(axes, lines[scheme], _style(study, scheme), bars, literal(scheme))
        figure.legend(fontsize=SMALL, loc="outside lower center", frameon=False, ncols=4)
        axes.grid(color="0.92")
        return figure, [axes]
    rows = -(-len(lines) // _COLUMNS)
    figure, every = make_axes(rows, _COLUMNS, _WIDE, 0.4 + 1.7 * rows, sharey=True)
    for axes, scheme in zip(every, lines, strict=False):
        for other in lines.values():
            axes.plot(other[0], other[1], color="0.8", linewidth=0.8, zorder=1)
        _draw_line(axes, lines[scheme], {"color": PALETTE[0], "linewidth": 2, "marker": "o", "markersize": 3}, bars)
        axes.set_title(literal(scheme), fontsize=SMALL + 1, loc="left")
        axes.grid(color="0.94")
    for axes in every[len(lines) :]:
        axes.set_visible(False)
    return figure, every[: len(lines)]


def _draw_line(axes: "Axes", line: Line, style: dict[str, Any], bars: bool, label: str | None = None) -> None:
    x, mean, low, high = line
    if bars:
        errors = [np.subtract(mean, low), np.subtract(high, mean)]
        axes.errorbar(x, mean, errors, capsize=2, elinewidth=1, label=label, zorder=3, **style)
        return
    style = {**style, "marker": None}
    axes.plot(x, mean, label=label, zorder=3, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0, zorder=2)


def _name_axes(figure: "Figure", every: "list[Axes]", x: str, y: str) -> None:
    if len(every) > 1:
        figure.supxlabel(x, fontsize=SMALL)
        figure.supylabel(y, fontsize=SMALL)
        return
    every[0].set_xlabel(x, fontsize=SMALL)
    every[0].set_ylabel(y, fontsize=SMALL)


def curve_chart(study: Study, task: Task) -> bytes:
    """The training loss against steps: the mean over seeds, and from the least to the greatest."""
    lines: dict[str, Line] = {}
    for scheme in study.schemes:
        curves = [dict(map(tuple, run["loss"])) for run in study.runs(task, scheme)]
        if not curves:
            continue
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[step] for step in steps] for curve in curves])
        lines[scheme] = (steps, values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist())
    figure, every = _line_axes(study, lines, bars=False)
    _name_axes(figure, every, "steps", "training loss")
    return _png(figure)
