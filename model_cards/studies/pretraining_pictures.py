"""The pictures of the pretraining study, of the parts that there are so far."""

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hf_posenc.schemes.plots import PALETTE
from model_cards.studies.early_attention import FARTHEST
from model_cards.studies.pretraining_plan import SCHEMES, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY = ("none", "rope", "alibi", "t5")
"""The schemes whose early attention is drawn."""


def curves(results: Results) -> "Figure":
    """Held-out loss of each scheme, mean of its seeds, against the tokens read, with the unigrams' as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, scheme in enumerate(SCHEMES):
        losses: dict[int, list[float]] = defaultdict(list)
        for part in (part for part in results.reported() if part["scheme"] == scheme):
            for point in part["curve"]:
                losses[point["tokens"]].append(point["test"])
        if losses:
            means = [statistics.fmean(of_seeds) for of_seeds in losses.values()]
            style, colour = ("-", "--")[number // len(PALETTE)], PALETTE[number % len(PALETTE)]
            axes.plot([tokens / 1e6 for tokens in losses], means, style, color=colour, linewidth=1.4, label=scheme)
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
