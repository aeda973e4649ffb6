"""Plots of a positional scheme: what it adds, turns or biases, and what of order the model sees.

Figures are plain `matplotlib.figure.Figure` objects; pyplot isn't imported and no setting is changed. They need
matplotlib: `pip install matplotlib`. All numbers come from the scheme's hooks and the model's own forward.

Axes in the shapes below: S positions, D hidden width, H heads, d = D/H.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, user_errors
from ..files import expanded, written_whole
from ..model.configuration_posenc import PosEncConfig
from ..model.modeling_posenc import PosEncModel, PosEncPreTrainedModel
from .hooks import one_text, rotated_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
MOST_POSITIONS = 512
_DISTANCE = "distance j - i (tokens)"
_MASKED = -1000.0
"""A logit below this hides a token."""
_DRAWS = 128
_TEXTS = 8


class _Panel(NamedTuple):
    """Curves over x, one for each row of the values, or without x a map of them, with row 0 at the top."""

    title: str
    x_label: str
    y_label: str
    values: Tensor
    x: Tensor | None = None
    group: str = "head"
    """What the curves are."""
    from_zero: bool = False


@torch.no_grad()
def plot_position(
    source: PosEncConfig | PosEncPreTrainedModel,
    *,
    max_positions: int | None = None,
    layer: int | None = None,
    input_ids: Tensor | None = None,
) -> "Figure":
    """Draws a scheme in at most four panels, by the hooks that it uses: see `hf_posenc.plot`.

    Args:
        source: a model, or a config, which stands for a new model with the weights of seed 0.
        max_positions (int, optional): S. None: 128, or as many as the scheme has.
        layer (int, optional): the layer, from 0, of what differs by layer. None: the first that has a bias, or 0.
        input_ids (Tensor, optional): (1, S) tokens of a text whose attention is shown. None: random words.

    Raises:
        ImportError: matplotlib isn't installed.
        UserError: an argument is out of range.
    """
    is_new = isinstance(source, PosEncConfig)
    with torch.random.fork_rng(devices=[]), user_errors():
        torch.default_generator.manual_seed(0)
        model: Any = copy.deepcopy(source)
        model = PosEncModel(model) if is_new else model.base_model
    model = model.to(device="cpu", dtype=torch.float32).eval()
    scheme, config = model.position, model.config
    most = min(MOST_POSITIONS, scheme.max_length or MOST_POSITIONS)
    length = min(128, most) if max_positions is None else max_positions
    if not 2 <= length <= most:
        wanted = f"is out of range. Give a whole number from 2 to {most}."
        raise UserError(wanted, parameter="max_positions", value=length)
    if layer is None:
        layer = _first_biased_layer(model) if scheme.uses("layer_bias") else 0
    if not 0 <= layer < config.num_hidden_layers:
        wanted = f"is out of range. The model has layers 0 to {config.num_hidden_layers - 1}."
        raise UserError(wanted, parameter="layer", value=layer)
    effects = [panels for panels in _effects(model, length, layer) if panels]
    panels = [first for first, *_ in effects] if len(effects) > 1 else [panel for panels in effects for panel in panels]
    if len(panels) < 3 and (not is_new or scheme.uses("bias") or scheme.uses("layer_bias")):
        panels.append(_attention_panel(model, length, layer, input_ids))
    sizes = f"D = {config.hidden_size}, {config.num_attention_heads} heads, {config.num_hidden_layers} layers"
    title = f"{config.position_embedding_type} · {sizes} · {'new' if is_new else 'given'} weights"
    return _figure([*panels[:3], _order_panel(model, length)], title)


def save_figure(figure: "Figure", path: str | Path, *, dpi: int = 150) -> None:
    """Writes a figure, whole or not at all, in the format of the file's suffix; the same bytes every time.

    Args:
        figure: a figure of this module, or any other.
        path: ends in .png, .svg or .pdf. An existing file is replaced, a missing folder is made.
        dpi (int): pixels per inch, for png.

    Raises:
        UserError: the suffix names no format, or the path is a folder.
    """
    import matplotlib

    path = expanded(path)
    suffix = check_picture_path(path)
    unsaid = {"png": ("Software",), "svg": ("Date",), "pdf": ("CreationDate", "Creator", "Producer")}[suffix]
    # The names of an svg's parts are drawn at random without a salt.
    with matplotlib.rc_context({"svg.hashsalt": "hf_posenc"}), written_whole(path) as temporary:
        figure.savefig(temporary, format=suffix, dpi=dpi, metadata=dict.fromkeys(unsaid))


def check_picture_path(path: str | Path) -> str:
    """The format that a path's suffix names; else a UserError that says which there are."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        wanted = f"names no format. End it in one of .{', .'.join(FORMATS)}."
        raise UserError(wanted, parameter="output", value=str(path))
    if Path(path).is_dir():
        raise UserError("is a folder. Give the name of a file.", parameter="output", value=str(path))
    return suffix


# ---- what the scheme does -------------------------------------------------------------------------------------------


def _effects(model: Any, length: int, layer: int) -> Iterator[list[_Panel]]:
    """The panels of each hook."""
    scheme, tokens = model.position, one_text(length)
    if scheme.uses("embed"):
        added = scheme.embed(torch.zeros(1, length, model.config.embedding_width), tokens)[0]
        yield _added_panels(added) if added.any() else []
    if scheme.uses("rotate"):
        yield _rotation_panels(model, length, layer)
    if scheme.uses("bias"):
        bias = scheme.bias(tokens)
        yield [] if bias is None else _bias_panels(bias[0].float(), "Bias")
    if scheme.uses("layer_bias"):
        draws = _layer_bias(model, _DRAWS, length, layer)
        if draws is not None and torch.allclose(draws, draws[:1], rtol=1e-5, atol=1e-8):
            yield _bias_panels(draws[0], f"Bias of layer {layer}")
        elif draws is not None:
            yield _content_panels(draws[:, :, length // 2], layer)


def _added_panels(added: Tensor) -> list[_Panel]:
    """Panels of what is added at each position, (S, D)."""
    unit = torch.nn.functional.normalize(added, dim=-1)
    return [
        _Panel("What is added to embeddings", "position", "dimension", added.T),
        _Panel("Cosine of what is added", "position", "position", unit @ unit.T),
    ]


def _rotation_panels(model: Any, length: int, layer: int) -> list[_Panel]:
    """q.k of equal vectors against distance, and that of each entry alone where q and k keep their width."""
    scheme, heads, width = model.position, model.config.num_attention_heads, model.layers[0].attention.head_dim
    # Orthogonal vectors: the mean over them is exact where q and k are turned alone.
    drawn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(0)))[0] * width**0.5
    q = drawn[:, None, None].expand(-1, length, heads, -1)
    turned, turned_k = scheme.rotate(q, q, scheme.rotary(one_text(length)), layer)
    products = torch.einsum("nhd,nshd->hs", turned[:, length // 2], turned_k) / drawn.square().sum()
    panels = [_Panel("q.k of equal vectors, over q.q", _DISTANCE, "share", products, _from_middle(length))]
    if turned.shape[-1] == width:
        units = rotated_units(scheme, heads, width, length, layer)[0]  # (S, d, d)
        alone = torch.einsum("ab,pab->ap", units[0], units)
        slowest_last = alone[alone[:, 1].argsort(stable=True)]
        panels.append(_Panel("q.k of each entry of head 0", "distance (tokens)", "entry, fastest first", slowest_last))
    return panels


def _bias_panels(bias: Tensor, name: str) -> list[_Panel]:
    """Panels of (H or 1, S, S)."""
    middle, pairs = bias.shape[-1] // 2, ("key position j", "query position i")
    if float(bias.min()) < _MASKED:
        seen = (bias - bias.amax(-1, keepdim=True)).exp()
        heads = sorted({0, len(seen) - 1} if not torch.equal(seen[0], seen[-1]) else {0})
        title = "Attention among equal tokens, 1: a query's most"
        return [_Panel(f"{title}, head {head}" if len(heads) > 1 else title, *pairs, seen[head]) for head in heads]
    title = f"{name}, from position {middle}"
    panels = [_Panel(title, _DISTANCE, "logit", bias[:, middle], _from_middle(bias.shape[-1]))]
    if not torch.allclose(bias[:, 1:, 1:], bias[:, :-1, :-1], rtol=1e-4, atol=1e-5 * float(bias.abs().max())):
        panels.append(_Panel(f"{name}, head 0", *pairs, bias[0]))
    return panels


def _layer_bias(model: Any, count: int, length: int, layer: int) -> Tensor | None:
    """The bias (n, H, S, S) of one layer for random q, k and hidden states, each draw the same at all places."""
    heads, width = model.config.num_attention_heads, model.layers[0].attention.head_dim
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, count, 1, heads, 1, width, generator=generator).expand(-1, -1, -1, -1, length, -1)
    x = torch.randn(count, 1, 1, heads * width, generator=generator).expand(-1, -1, length, -1)
    attention = model.layers[layer].attention
    texts = [replace(one_text(length, row), projections=(attention.query, attention.key)) for row in x]
    rows = [model.position.layer_bias(q[n], k[n], texts[n], layer) for n in range(count)]
    return None if rows[0] is None else torch.cat(rows).float()


def _first_biased_layer(model: Any) -> int:
    layers = range(model.config.num_hidden_layers)
    return next((layer for layer in layers if _layer_bias(model, 1, 2, layer) is not None), 0)


def _content_panels(draws: Tensor, layer: int) -> list[_Panel]:
    """Panels of a bias that depends on the content, from the middle position: (n, H, S)."""
    x, title = _from_middle(draws.shape[-1]), f"Bias of layer {layer}"
    return [
        _Panel(f"{title}: deviation over content", _DISTANCE, "logit", draws.std(0), x, from_zero=True),
        _Panel(f"{title}, head 0: three draws", _DISTANCE, "logit", draws[:3, 0], x, "draw"),
    ]


# ---- what the model sees --------------------------------------------------------------------------------------------


def _random_words(model: Any, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def _attention_panel(model: Any, length: int, layer: int, input_ids: Tensor | None) -> _Panel:
    """Attention of each head by distance, mean of all places."""
    words = _random_words(model, _TEXTS, length) if input_ids is None else input_ids
    weights = model(words, output_attentions=True).attentions[layer].mean(0)  # (H, S, S)
    x = _from_middle(weights.shape[-1])
    by_distance = torch.stack([weights.diagonal(t, -2, -1).mean(-1) for t in x.tolist()], -1)
    title = f"Attention in {'random words' if input_ids is None else 'the text'}, layer {layer}"
    return _Panel(title, _DISTANCE, "weight, mean of places", by_distance, x, from_zero=True)


def _order_panel(model: Any, length: int) -> _Panel:
    """Change of the mean of the hidden states when two words swap places, by their distance."""
    words = _random_words(model, _TEXTS, length)
    rows = torch.arange(_TEXTS)
    generator = torch.Generator().manual_seed(2)

    def pooled(ids: Tensor) -> Tensor:
        return model(ids).last_hidden_state.mean(1)

    before, other = pooled(words), words.clone()
    other[:, [length // 4, length // 2]] = _random_words(model, _TEXTS, 2, seed=3)
    scale = (pooled(other) - before).norm()
    distances, changes = [2**n for n in range(length.bit_length()) if 2**n < length], []
    for distance in distances:
        first, swapped = torch.randint(length - distance, (_TEXTS,), generator=generator), words.clone()
        swapped[rows, first], swapped[rows, first + distance] = words[rows, first + distance], words[rows, first]
        changes.append((pooled(swapped) - before).norm() / scale)
    title, y_label = "What two words that swap places change", "share of what two new words change"
    values = torch.stack(changes)[None]
    return _Panel(title, "distance of the two (tokens)", y_label, values, torch.tensor(distances), from_zero=True)


# ---- drawing --------------------------------------------------------------------------------------------------------


def _from_middle(length: int) -> Tensor:
    return torch.arange(length) - length // 2


def _figure(panels: list[_Panel], title: str) -> "Figure":
    """Up to three panels beside each other, four in two rows."""
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else len(panels)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns + 0.6, 3.4 * rows + 0.3), layout="constrained")
    figure.suptitle(title, fontsize=11, fontweight="bold")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        _draw_map(axes, panel) if panel.x is None else _draw_curves(axes, panel)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.x_label, fontsize=8)
        axes.set_ylabel(panel.y_label, fontsize=8)
        axes.tick_params(labelsize=8)
    return figure


def _draw_map(axes: "Axes", panel: _Panel) -> None:
    values = panel.values.numpy()
    # A few outliers of a random table would make all other values pale.
    bound, is_signed = float(np.quantile(np.abs(values), 0.999)), values.min() < 0
    colours: dict[str, Any] = {"cmap": "RdBu_r" if is_signed else "viridis", "vmin": -bound if is_signed else 0}
    image = axes.imshow(values, vmax=bound, aspect="auto", interpolation="nearest", **colours)
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=8)


def _draw_curves(axes: "Axes", panel: _Panel) -> None:
    """One curve where all are alike."""
    from matplotlib import colormaps

    assert panel.x is not None
    values, x = panel.values, panel.x.numpy()
    rows = values[:1] if torch.allclose(values, values[:1], rtol=1e-4, atol=1e-6) else values
    colours = PALETTE if len(rows) <= 4 else colormaps["viridis"](np.linspace(0, 0.9, len(rows)))
    for number, (row, colour) in enumerate(zip(rows.numpy(), colours, strict=False)):
        axes.plot(x, row, color=colour, linewidth=1.2, label=str(number))
    if len(rows) > 1:
        axes.legend(title=panel.group, fontsize=7, title_fontsize=7, ncols=-(-len(rows) // 6), framealpha=0.7)
    if x[0] > 0:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [str(distance) for distance in x])
    if panel.from_zero:
        axes.set_ylim(0, max(0.01, 1.08 * float(rows.max())))
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
