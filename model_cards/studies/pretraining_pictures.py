"""The pictures of the pretraining study, of the parts that there are so far."""

import statistics
from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

from hf_posenc.schemes.plots import PALETTE
from model_cards.studies.early_attention import FARTHEST
from model_cards.studies.pretraining_plan import SCHEMES, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY = ("none", "rope", "alibi", "t5")
"""The schemes whose early attention is drawn."""


def curves(results: Results) -> "Figure":
    """Held-out loss of each scheme, mean of its seeds, against the tokens read; the unigrams' as a line.

    What was trained for longer goes on as a thin curve for each seed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    reported, longer = results.reported(), results.longer()
    for scheme, (style, colour) in zip(SCHEMES, product(("-", "--"), PALETTE), strict=False):
        losses: dict[int, list[float]] = defaultdict(list)
        for point in (point for part in reported if part["scheme"] == scheme for point in part["curve"]):
            if point["test"] is not None:
                losses[point["tokens"]].append(point["test"])
        if losses:
            means = [statistics.fmean(of_seeds) for of_seeds in losses.values()]
            axes.plot([tokens / 1e6 for tokens in losses], means, style, color=colour, linewidth=1.4, label=scheme)
        for part in (part for part in longer if part["scheme"] == scheme):
            rest = [point for point in part["curve"] if point["tokens"] >= max(losses)]
            axes.plot([p["tokens"] / 1e6 for p in rest], [p["test"] for p in rest], style, color=colour, linewidth=0.7)
    axes.axhline(results.unigrams, color="0.6", linewidth=1)
    axes.annotate("unigrams", (0.02, results.unigrams), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes.set(xlabel="million tokens", ylabel="loss in unseen novels (nats)")
    _plain(axes)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def early_attention(measured: dict[str, Any]) -> "Figure":
    """Mean attention weight against distance: a panel for each scheme, a curve for each layer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    panels = figure.subplots(1, len(EARLY), sharey=True)
    for axes, scheme in zip(panels, EARLY, strict=True):
        for layer, weights in enumerate(measured[scheme]["after"]):
            axes.plot(range(-FARTHEST, FARTHEST + 1), weights, color=PALETTE[layer], label=f"layer {layer}")
        axes.set_title(scheme, fontsize=9, loc="left")
        axes.set_xlabel("distance j - i (tokens)", fontsize=8)
        _plain(axes)
    panels[0].set_ylabel("mean attention weight", fontsize=8)
    panels[0].set_ylim(bottom=0)
    panels[0].legend(fontsize=7, frameon=False)
    return figure


def _plain(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
