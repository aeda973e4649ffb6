"""Plots of positional schemes: `plot_position` for one, `plot_comparison` for several on one sheet.

Figures are plain `matplotlib.figure.Figure` objects; pyplot isn't imported and no setting is changed. They need
matplotlib: `pip install "hf-posenc[plots]"`. `panels.position_panels` has the numbers without plots.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.utils import logging

from hf_posenc.errors import UserError
from hf_posenc.files import write_bytes
from hf_posenc.model.modeling_posenc import PosEncPreTrainedModel
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.schemes.panel_types import Effect, Lines, Maps, Note, Panel
from hf_posenc.schemes.panels import attention_panels, read_effects
from hf_posenc.schemes.sources import Source, Subject, heading, read_source

logger = logging.get_logger(__name__)

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMATS = ("png", "svg", "pdf")

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
_SMALL, _MEDIUM, _LARGE = 8, 9.5, 11
_HEADS = 6
"""The most curves in one axes; more heads get an axes each."""
_WORDS = 20
"""Beside a map of text, at most."""


def plot_position(
    source: Source,
    *,
    max_positions: int | None = None,
    layer: int | None = None,
    config: PosEncConfig | None = None,
    revision: str | None = None,
) -> "Figure":
    """Draws what a scheme does to embeddings, to queries and keys, or to logits, with its initial or trained weights.

    Args:
        source, max_positions, layer, config, revision: as in `panels.position_panels`, which describes the plots.

    Returns:
        matplotlib.figure.Figure: not known to pyplot; `save_figure` writes it, notebooks show it with `display`.

    Raises:
        ImportError: matplotlib isn't installed.
        UserError, OSError: as `panels.position_panels`.
    """
    subject = read_source(source, config, revision)
    effects = read_effects(subject, max_positions, layer)
    panels = [panel for effect in effects for panel in effect.panels]
    return _draw_panels(panels, heading(subject))


def plot_comparison(
    sources: Sequence[Source],
    *,
    max_positions: int | None = None,
    layer: int | None = None,
    revision: str | None = None,
) -> "Figure":
    """Draws schemes below each other: the similarity or bias of all pairs of positions, and against distance.

    Distances have the same axis in every row; cosines have the same axes and colours too. A bias has a scale of its
    own in each row: compare its shape. A scheme that acts in two ways has two rows.

    Args:
        sources: what `plot_position` takes, several of them.
        max_positions (int, optional): S. None: 128; schemes with fewer positions show those.
        layer (int, optional): as in `plot_position`.
        revision (str, optional): as in `plot_position`.

    Raises:
        ImportError, UserError, OSError: as `plot_position`, or there is nothing to compare.
    """
    if isinstance(sources, str) or len(sources) < 1:
        raise UserError(f"sources={sources!r} is nothing to compare. Give a list of schemes, configs or checkpoints.")
    rows = []
    for subject in (read_source(source, None, revision) for source in sources):
        limit = subject.scheme.max_length
        shown = min(max_positions, limit) if max_positions is not None and limit is not None else max_positions
        rows += [(subject, effect) for effect in read_effects(subject, shown, layer)]
    return _draw_rows(rows)


def plot_attention(
    model: PosEncPreTrainedModel,
    input_ids: "torch.Tensor",
    *,
    layer: int = 0,
    words: Sequence[str] = (),
    title: str | None = None,
) -> "Figure":
    """Draws how far a model attends in a text; the arguments are those of `panels.attention_panels`.

    Args:
        model, input_ids, layer, words: as there.
        title (str, optional): over the picture. None: the model's scheme.

    Raises:
        ImportError: matplotlib isn't installed.
        UserError: as there.
    """
    shown = title or f"Attention of {model.config.position_embedding_type} in {type(model).__name__}"
    return _draw_panels(attention_panels(model, input_ids, layer=layer, words=words), shown)


def save_figure(figure: "Figure", path: str | Path, *, dpi: int = 150, metadata: dict[str, Any] | None = None) -> None:
    """Writes a figure, whole or not at all, in the format of the file's suffix; the same bytes every time.

    Args:
        figure: a figure of this module, or any other.
        path: ends in .png, .svg or .pdf. An existing file is replaced, a missing folder is made.
        dpi (int): pixels per inch, for png.
        metadata (dict, optional): further metadata of the file; see matplotlib's `savefig`.

    Raises:
        UserError: the suffix names no format, or the path is a folder.
    """
    import matplotlib

    suffix = check_picture_path(path)
    unsaid = {"png": ("Software",), "svg": ("Date",), "pdf": ("CreationDate", "Creator", "Producer")}[suffix]
    buffer = io.BytesIO()
    # The names of an svg's parts are drawn at random without a salt.
    with matplotlib.rc_context({"svg.hashsalt": "hf_posenc"}):
        figure.savefig(buffer, format=suffix, dpi=dpi, metadata={**dict.fromkeys(unsaid), **(metadata or {})})
    write_bytes(path, buffer.getvalue())


@contextlib.contextmanager
def drawing(what: str) -> Iterator[None]:
    """Turns an error while a run's plot is drawn into a warning, so that the run doesn't fail.

    Without matplotlib there is neither a plot nor a warning.
    """
    try:
        yield
    except ImportError:
        pass
    except Exception as error:
        logger.warning(f"There is no picture of {what}: {type(error).__name__}: {error}")


def check_picture_path(path: str | Path) -> str:
    """The format that a path's suffix names; else a UserError that says which there are."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UserError(f"{str(path)!r} names no format. End it in one of .{', .'.join(FORMATS)}.")
    if Path(path).is_dir():
        raise UserError(f"{str(path)!r} is a folder. Give the name of a file.")
    return suffix


def _new_figure(width: float, height: float) -> "Figure":
    """A figure of this many inches, with room between its parts."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Plots need matplotlib. Install it with: pip install "hf-posenc[plots]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    return figure


def _draw_panels(panels: list[Panel], heading: str) -> "Figure":
    """Panels of one axes each in rows of three; one of many maps, or heads, below them over the whole width."""
    single = [panel for panel in panels if not _are_many(panel)]
    many = [panel for panel in panels if isinstance(panel, Maps | Lines) and _are_many(panel)]
    if all(isinstance(panel, Note) for panel in panels):
        figure = _new_figure(6, 1.6)
        axes = figure.subplots()
        axes.set_axis_off()
        axes.text(0.5, 0.5, _words(panels), ha="center", va="center", fontsize=_LARGE)
        figure.suptitle(heading, fontsize=_LARGE, fontweight="bold")
        return figure
    columns = 3 if any(isinstance(panel, Lines) for panel in many) else min(3, len(single))
    rows = -(-len(single) // columns)
    map_columns = 6 if any(len(panel.names) in (5, 6) or len(panel.names) > 8 for panel in many) else 4
    map_rows = [-(-len(panel.names) // map_columns) for panel in many]
    # Square maps fill the width.
    heights = [max(2.9 * rows, 0.01), *(0.6 + n * (0.3 + 3.4 * columns / map_columns) for n in map_rows)]
    figure = _new_figure(4 * columns, 0.4 + sum(heights))
    figure.suptitle(heading, fontsize=_LARGE, fontweight="bold")
    parts = figure.subfigures(1 + len(many), 1, height_ratios=heights, squeeze=False)[:, 0]
    grid = list(parts[0].subplots(rows, columns, squeeze=False).flat) if single else []
    for axes in grid[len(single) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, single, strict=False):
        _draw_panel(parts[0], axes, panel)
    for part, panel, n in zip(parts[1:], many, map_rows, strict=True):
        others = "; the others in grey" if isinstance(panel, Lines) else ""
        part.suptitle(f"{panel.title}{others}", fontsize=_MEDIUM)
        shown = part.subplots(n, map_columns, squeeze=False, sharex=True, sharey=True)
        for axes in shown.flat[len(panel.names) :]:
            axes.set_axis_off()
        for index, axes in enumerate(shown.flat[: len(panel.names)]):
            if isinstance(panel, Lines):
                _draw_one_line(axes, panel, index)
            else:
                image = _draw_map(axes, panel, index)
                axes.set_title(panel.names[index], fontsize=_SMALL)
            axes.label_outer()
        if isinstance(panel, Maps):
            _colour_bar(part, image, list(shown.flat), panel)
        else:
            part.supxlabel(panel.x_label, fontsize=_SMALL)
            part.supylabel(panel.y_label, fontsize=_SMALL)
    return figure


def _are_many(panel: Panel) -> bool:
    """Whether a panel has an axes for each of its maps, or of its heads where one axes couldn't tell them apart."""
    if isinstance(panel, Lines):
        return panel.group == "head" and len(panel.names) > _HEADS
    return isinstance(panel, Maps) and len(panel.names) > 1


def _draw_one_line(axes: "Axes", panel: Lines, index: int) -> None:
    """One curve before the others."""
    for curve in panel.y:
        axes.plot(panel.x, curve, color="0.85", linewidth=0.6)
    axes.plot(panel.x, panel.y[index], color=PALETTE[0], linewidth=1.4, zorder=3)
    axes.set_title(f"{panel.group} {panel.names[index]}", fontsize=_SMALL)
    _finish_lines(axes, panel)
    axes.set(xlabel="", ylabel="")  # the part's own


def _draw_rows(rows: list[tuple[Subject, Effect]]) -> "Figure":
    """A row for each effect: its name, its matrix, its profile."""
    heights = [0.7 if effect.matrix is None else 2.4 for _, effect in rows]
    figure = _new_figure(10, 0.2 + sum(heights))
    grid = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 3.4), height_ratios=heights)
    reach = max((float(effect.profile.x[-1]) for _, effect in rows if effect.profile is not None), default=1.0)
    labels = [subject.label for subject, _ in rows]
    for (left, right), (subject, effect) in zip(grid, rows, strict=True):
        name = subject.label
        if labels.count(name) > 1:
            name += f" ({effect.kind})"
        if any(True for _ in subject.scheme.parameters()):
            name += f", {subject.weights}"
        if effect.matrix is None or effect.profile is None:
            left.set_axis_off()
            right.set_axis_off()
            left.set_title(name, fontsize=_MEDIUM, fontweight="bold", loc="left")
            # Wider than its column, which must not grow with it.
            left.text(0, 1, _words(effect.panels).replace("\n", " "), fontsize=_SMALL, va="top").set_in_layout(False)
            continue
        _draw_panel(figure, left, effect.matrix)
        left.set_title(effect.matrix.title, fontsize=_SMALL)
        left.set_title(f"{name}\n", fontsize=_MEDIUM, fontweight="bold", loc="left")
        left.set_anchor("W")
        _draw_panel(figure, right, effect.profile)
        right.set_title(effect.profile.title, fontsize=_SMALL)
        right.set_xlim(-reach, reach)
    return figure


def _words(panels: Sequence[Panel]) -> str:
    return "\n".join(panel.text for panel in panels if isinstance(panel, Note))


def _draw_panel(figure: "Figure | SubFigure", axes: "Axes", panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=_MEDIUM)
    axes.tick_params(labelsize=_SMALL)
    if isinstance(panel, Maps):
        _colour_bar(figure, _draw_map(axes, panel, 0), [axes], panel)
    elif isinstance(panel, Lines):
        _draw_lines(figure, axes, panel)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, panel.text, ha="center", va="center", fontsize=_MEDIUM)


def _draw_map(axes: "Axes", panel: Maps, index: int) -> Any:
    values = panel.values[index]
    low, high = panel.limits
    rows, columns = values.shape
    left, top = panel.x_start - 0.5, panel.y_start - 0.5
    image = axes.imshow(
        values,
        cmap="RdBu_r" if low < 0 < high else "viridis",
        vmin=low,
        vmax=high,
        aspect="equal" if rows == columns else "auto",
        extent=(left, left + columns, top + rows, top),
        interpolation="nearest",
    )
    axes.set_xlabel(panel.x_label, fontsize=_SMALL)
    axes.set_ylabel(panel.y_label, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)
    if panel.x_names:  # words: as many as have room
        chosen = list(range(0, columns, -(-columns // _WORDS)))
        axes.set_xticks(chosen, [panel.x_names[column] for column in chosen], rotation=90)
        axes.set_yticks(chosen, [panel.y_names[row] for row in chosen])
    elif panel.y_names:
        chosen = sorted({round(step * (rows - 1) / 6) for step in range(7)})
        axes.set_yticks(chosen, [panel.y_names[row] for row in chosen])
    elif rows <= 16:
        axes.set_yticks(range(rows))
    return image


def _colour_bar(figure: "Figure | SubFigure", image: Any, axes: "list[Axes]", panel: Maps) -> None:
    low, high = panel.limits
    slack = 1e-4 * (high - low)
    above, below = panel.values.max() > high + slack, panel.values.min() < low - slack
    extend = "both" if above and below else "max" if above else "min" if below else "neither"
    place = _bar_place(axes[0]) if len(axes) == 1 else {"ax": axes, "fraction": 0.05, "pad": 0.02, "aspect": 25}
    bar = figure.colorbar(image, extend=extend, **place)
    bar.set_label(panel.value_label, fontsize=_SMALL)
    bar.ax.tick_params(labelsize=_SMALL)
    bar.outline.set_visible(False)


def _bar_place(axes: "Axes") -> dict[str, Any]:
    """Where a colour bar stands beside one axes: at its edge, also where a square map doesn't fill its cell."""
    return {"cax": axes.inset_axes((1.03, 0, 0.04, 1))}


def _draw_lines(figure: "Figure | SubFigure", axes: "Axes", panel: Lines) -> None:
    count = len(panel.names)
    colours: list[Any] = [PALETTE[index % len(PALETTE)] for index in range(count)]
    if panel.group and count > 1:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        # Without the yellow end, which white paper swallows.
        colours = list(colormaps["viridis"](np.linspace(0, 0.9, count)))
        scale = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(colours))
        bar = figure.colorbar(scale, **_bar_place(axes))
        bar.set_label(panel.group, fontsize=_SMALL)
        ticks = range(0, count, 1 if count <= 16 else -(-count // 8))
        bar.set_ticks(list(ticks), labels=[panel.names[tick] for tick in ticks])
        bar.ax.tick_params(labelsize=_SMALL, length=0)
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
    for curve, name, colour in zip(panel.y, panel.names, colours, strict=True):
        axes.plot(panel.x, curve, color=colour, linewidth=1.2, label=name)
    _finish_lines(axes, panel)
    if not panel.group and count > 1:
        axes.legend(fontsize=_SMALL, framealpha=0.8, edgecolor="none")


def _finish_lines(axes: "Axes", panel: Lines) -> None:
    """Labels and limits."""
    axes.tick_params(labelsize=_SMALL)
    axes.set_xlabel(panel.x_label, fontsize=_SMALL)
    axes.set_ylabel(panel.y_label, fontsize=_SMALL)
    axes.set_xlim(float(panel.x[0]), float(panel.x[-1]))
    if panel.log:
        axes.set_yscale("log")
    low, high = panel.limits
    if (low, high) != (None, None):
        axes.set_ylim(low, 1.08 * float(np.nanmax(panel.y)) if high is None else high)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
