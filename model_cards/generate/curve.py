"""The curve of a scheme's card: its score against the length of the test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_posenc.comparison.charts import SMALL, WIDTH, make_axes
from hf_posenc.schemes.plots import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scheme_chart(panels: Sequence[dict[str, Any]], scheme: str) -> "Figure":
    """One scheme's score against the length of the test, among the others in grey and the baseline in black.

    Args:
        panels: each with a line of the scheme.
        scheme: the one in colour.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = make_axes(rows, columns, 4.2 * columns if columns > 1 else WIDTH, 3 * rows)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        for name, line in panel["lines"].items():
            x, mean, low, high = zip(*line, strict=True)
            style: dict[str, Any] = {"color": "0.75", "linewidth": 1, "markersize": 2.5, "zorder": 1}
            label = "others"
            if name == scheme:
                style, label = {"color": PALETTE[0], "linewidth": 2, "markersize": 4, "zorder": 4}, scheme
                if None not in low:
                    below, above = np.subtract(mean, low), np.subtract(high, mean)
                    axes.errorbar(x, mean, [below, above], fmt="none", ecolor=PALETTE[0], capsize=3, zorder=3)
                if x[-1] < panel["lengths"][-1]:
                    end = (x[-1], mean[-1])
                    axes.annotate("ends here", end, (8, 0), textcoords="offset points", fontsize=SMALL, va="center")
            elif name == panel["baseline"]:
                style, label = {**style, "color": "black", "linewidth": 1.2, "linestyle": "--", "zorder": 2}, name
            (drawn,) = axes.plot(x, mean, marker="o", **style)
            handles.setdefault(label, drawn)
        axes.axvline(panel["train"], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel["lengths"], [f"{length:,}" for length in panel["lengths"]])
        axes.set_xlim(panel["lengths"][0] / 1.15, panel["lengths"][-1] * 1.15)
        axes.minorticks_off()
        axes.set_title(panel["title"], fontsize=SMALL + 1, loc="left")
        axes.set_xlabel("tokens", fontsize=SMALL)
        axes.set_ylabel(panel["metric"], fontsize=SMALL)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    labels = sorted(handles, key=lambda label: (label != scheme, label == "others"))
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside upper right", ncols=3, fontsize=SMALL, frameon=False
    )
    return figure
