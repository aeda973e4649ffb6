"""What a positional scheme does, in numbers: the panels that `plots` draws.

Which panels there are follows from the hooks that a scheme overrides, never from its name: vectors added to the
embeddings (`embed`), the rotation of queries and keys (`rotate`), and biases on the logits (`bias`, `layer_bias`). All
numbers are read through the hooks themselves, so that they can't differ from what the encoder computes.

Axes in the shapes below: S positions, D hidden width, H heads, d = D/H, R = 2 S - 1 distances.
"""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hf_posenc.model import modeling_posenc
from hf_posenc.model.configuration_posenc import PosEncConfig
from hf_posenc.model.modeling_posenc import PosEncModel, PosEncPreTrainedModel
from hf_posenc.model.position_base import PositionScheme
from hf_posenc.model.positions import POSITIONS, make_position

Source = str | PosEncConfig | PosEncPreTrainedModel | PositionScheme
"""What can be plotted: a scheme's name, a config, a model, a checkpoint's folder or Hub name, or a scheme."""

DEFAULT_POSITIONS = 128
"""Positions shown when the caller doesn't say: each is a pixel or two at the width of a page."""
MOST_POSITIONS = 2048
"""More would need gigabytes: matrices are (H, S, S)."""
_MOST_MAPS = 12
_MOST_ROWS = 128
_DRAWS = 2
_MEASURED = 256
"""Drawn queries and keys over which a bias is measured that isn't linear in them."""


_DISTANCE = "distance j - i (tokens)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Lines:
    """Curves over one axis."""

    title: str
    x: np.ndarray
    """(N,)"""
    y: np.ndarray
    """(n, N), a row for each curve; NaN where it has no value."""
    names: tuple[str, ...]
    """One for each curve."""
    group: str = ""
    """What the names count, such as `head`: a colour bar says which is which. Empty: a legend does."""
    x_label: str = _DISTANCE
    y_label: str
    limits: tuple[float | None, float | None] = (None, None)
    """Of the y axis; None: by the numbers."""
    log: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Maps:
    """Heat maps that share one colour scale; row 0 is at the top."""

    title: str
    values: np.ndarray
    """(n, rows, columns)"""
    names: tuple[str, ...] = ("",)
    """One for each map."""
    x_label: str = _DISTANCE
    y_label: str
    value_label: str
    limits: tuple[float, float]
    """Of the colours."""
    x_start: float = 0
    """What the first column is."""
    y_start: float = 0
    y_names: tuple[str, ...] = ()
    """Names of the rows, where their numbers say nothing."""
    x_names: tuple[str, ...] = ()
    """The same for the columns."""


@dataclass(frozen=True)
class Note:
    """Words in place of a picture."""

    title: str
    text: str


Panel = Lines | Maps | Note


@dataclass(frozen=True)
class Effect:
    """One way in which a scheme acts: all its panels, and the two that stand in a comparison."""

    kind: str
    """`embeddings`, `rotation`, `bias` or `layer bias`."""
    panels: tuple[Panel, ...]
    matrix: Maps | None
    """Positions against positions, one map."""
    profile: Lines | None
    """Against the signed distance."""


@dataclass(frozen=True)
class Subject:
    """A scheme in float32 on the CPU, and what the hooks can't say of it."""

    label: str
    weights: str
    scheme: PositionScheme
    config: PosEncConfig | None


def position_panels(
    source: Source,
    *,
    max_positions: int | None = None,
    layer: int = 0,
    config: PosEncConfig | None = None,
    revision: str | None = None,
) -> list[Panel]:
    """What a scheme does, as numbers: for each hook that it uses.

    - Added vectors e(p): heat map; cosine of all pairs of positions, and against distance; cosine of neighbours;
      mean, deviation and norm by position.
    - Rotation: R(i) x . R(j) x over x . x, for each turned pair of entries and for their mean, against distance (that
      of the scheme's defaults beside it, where they differ); wavelengths.
    - Bias: against distance for each head, with its sign; the attention that it gives to tokens of equal content; all
      pairs of positions for each head, where distance alone doesn't decide.
    - Bias that depends on q and k: deviation over q and k of unit variance, cosines between the vectors of distances,
      and a few draws.

    Args:
        source: a scheme's name (base size, initial weights), a config (initial weights), a model, a checkpoint's folder
            or Hub name, or a scheme. A name of a scheme wins over a folder of that name: write ./rope for the folder.
        max_positions (int, optional): S. None: 128, or as many as the scheme has.
        layer (int): the layer, from 0, of what differs by layer.
        config (PosEncConfig, optional): for a scheme alone, the config that says its sizes.
        revision (str, optional): branch, tag or commit of a checkpoint on the Hub.

    Returns:
        list[Panel]: `Lines`, `Maps`, or a `Note` where there is nothing to show.

    Raises:
        ValueError: the source is nothing that can be plotted, or an argument is out of range.
        OSError: the Hub has no such checkpoint.
    """
    subject = read_source(source, config, revision)
    return [panel for effect in read_effects(subject, max_positions, layer) for panel in effect.panels]


@torch.no_grad()
def attention_panels(
    model: PosEncPreTrainedModel, input_ids: Tensor, *, layer: int = 0, words: Sequence[str] = ()
) -> list[Panel]:
    """How far a model looks in a text: its attention probabilities against distance, averaged over places.

    At distance t it is the mean of P_h(i, j) over all i, j with j - i = t: by layer (mean of the heads), by head of one
    layer; and the mean of layers and heads for all i, j.

    Args:
        model: any PosEnc model; it isn't changed.
        input_ids (Tensor): (1, S) token ids of a text.
        layer (int): the layer, from 0, whose heads are shown.
        words: S words or word pieces, one for each token, to name rows and columns with; none: their numbers.

    Raises:
        ValueError: not one text of 2 to 2,048 tokens, no such layer, or not a word for each token.
    """
    if input_ids.dim() != 2 or input_ids.shape[0] != 1 or not 2 <= input_ids.shape[1] <= MOST_POSITIONS:
        raise ValueError(
            f"input_ids of shape {tuple(input_ids.shape)} can't be shown. Give one text, (1, S), of 2 to "
            f"{MOST_POSITIONS} tokens."
        )
    if len(words) not in (0, input_ids.shape[1]):
        raise ValueError(f"words are {len(words)}, for {input_ids.shape[1]} tokens. Give one for each, or none.")
    last = model.config.num_hidden_layers - 1
    if not 0 <= layer <= last:
        raise ValueError(f"layer={layer!r} is out of range. The model has layers 0 to {last}.")
    training = model.training
    model.eval()
    try:
        found = model.base_model(input_ids.to(model.device), output_attentions=True).attentions
    finally:
        model.train(training)
    weights = torch.stack(found)[:, 0].float().cpu()  # (L, H, S, S)
    length = weights.shape[-1]
    distances = np.arange(-(length - 1), length)
    by_distance = torch.stack([weights.diagonal(t, -2, -1).mean(-1) for t in distances.tolist()], -1)  # (L, H, R)
    label = "attention weight, mean of places"
    return [
        Lines(
            title="Attention by distance, mean of heads",
            x=distances,
            y=_numpy(by_distance.mean(1)),
            names=tuple(map(str, range(last + 1))),
            group="layer",
            y_label=label,
            limits=(0, None),
        ),
        Lines(
            title=f"Attention by distance, layer {layer}",
            x=distances,
            y=_numpy(by_distance[layer]),
            names=tuple(map(str, range(weights.shape[1]))),
            group="head",
            y_label=label,
            limits=(0, None),
        ),
        Maps(
            title="Attention, mean of layers and heads",
            values=_numpy(weights.mean((0, 1)))[None],
            x_label="looks at" if words else "key position j",
            y_label="word" if words else "query position i",
            x_names=tuple(words),
            y_names=tuple(words),
            value_label="attention weight",
            limits=(0.0, float(weights.mean((0, 1)).max())),
        ),
    ]


def read_source(source: Source, config: PosEncConfig | None = None, revision: str | None = None) -> Subject:
    """The scheme that a source names: see `position_panels`."""
    if isinstance(source, PositionScheme):
        name = getattr(source, "name", type(source).__name__)
        return Subject(name, "weights as they are", _detached(source), config)
    if isinstance(source, PosEncPreTrainedModel):
        scheme = _detached(cast(PositionScheme, source.base_model.position))
        found = source.config
        return Subject(f"{found.position_embedding_type} in {type(source).__name__}", "its weights", scheme, found)
    if isinstance(source, PosEncConfig):
        return Subject(source.position_embedding_type, "initial weights", initial_scheme(source), source)
    if not isinstance(source, str):
        raise ValueError(
            f"source={source!r} can't be plotted. Give a scheme's name, a PosEncConfig, a PosEnc model, a checkpoint's "
            "folder or Hub name, or a PositionScheme."
        )
    if is_scheme(source):
        return read_source(PosEncConfig.from_preset("base", position_embedding_type=source))
    return _read_checkpoint(source, revision)


def is_scheme(name: str) -> bool:
    """Whether a name is that of a scheme, or of schemes joined by +, and not of a checkpoint."""
    return all(part in POSITIONS for part in name.split("+"))


def _read_checkpoint(source: str, revision: str | None) -> Subject:
    folder = Path(source).expanduser()
    local = folder.exists() or source.startswith((".", "/", "~"))
    if (local and not (folder / "config.json").is_file()) or (not local and "/" not in source):
        raise ValueError(
            f"{source!r} is neither a scheme ({', '.join(POSITIONS)}) nor a checkpoint. Give one of these, a folder "
            "with config.json and weights, or a name on the Hub such as user/model."
        )
    place = str(folder) if local else source
    values, _ = PosEncConfig.get_config_dict(place, revision=revision or "main")
    if values.get("model_type") != PosEncConfig.model_type:
        raise ValueError(f"{source!r} is a {values.get('model_type')} model, not a PosEnc one: it can't be plotted.")
    # The class that was saved: another would report the weights of its head as unexpected.
    saved = getattr(modeling_posenc, next(iter(values.get("architectures") or []), ""), None)
    known = isinstance(saved, type) and issubclass(saved, PosEncPreTrainedModel)
    model_class: Any = saved if known else PosEncModel
    model, loading = model_class.from_pretrained(place, revision=revision or "main", output_loading_info=True)
    missing = [name for name in loading["missing_keys"] if re.match(r"(model\.)?position\.", name)]
    if missing:
        raise ValueError(f"{source!r} lacks weights of its scheme: {', '.join(missing)}. Save or copy it anew.")
    numbers = model.base_model.position.named_parameters()
    if bad := [name for name, weight in numbers if not bool(weight.isfinite().all())]:
        raise ValueError(f"{source!r} has NaN or infinity in position.{bad[0]}: its training diverged.")
    label = f"{model.config.position_embedding_type} in {folder.resolve().name if local else source}"
    return Subject(label, "trained weights", _detached(model.base_model.position), model.config)


def _detached(scheme: PositionScheme) -> PositionScheme:
    """A copy in float32 on the CPU, without dropout; the original isn't touched."""
    if any(parameter.device.type == "meta" for parameter in scheme.parameters()):
        raise ValueError(f"{type(scheme).__name__} has no weights yet: it is on the meta device. Load it first.")
    return copy.deepcopy(scheme).to(device="cpu", dtype=torch.float32).eval()


@torch.no_grad()
def initial_scheme(config: PosEncConfig, seed: int = 0) -> PositionScheme:
    """A config's scheme with the weights that a new model gives it, drawn from a seed, in evaluation mode."""
    with torch.device("meta"):
        model: Any = PosEncModel(copy.deepcopy(config))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        scheme = make_position(config)
        for module in scheme.modules():
            model._init_weights(module)
        scheme.init_weights(config.initializer_range)
    return scheme.eval()


def heading(subject: Subject) -> str:
    """The title over a picture: what it is, its sizes, and whose weights it shows."""
    config = subject.config
    parts = [subject.label]
    if config is not None:
        sizes = f"D = {config.hidden_size}, {config.num_attention_heads} heads"
        parts.append(f"{sizes}, {config.num_hidden_layers} layers")
    if any(True for _ in subject.scheme.parameters()):
        parts.append(subject.weights)
    return " · ".join(parts)


# What a scheme does, in numbers


@torch.no_grad()
def read_effects(subject: Subject, max_positions: int | None, layer: int) -> list[Effect]:
    """What a scheme does, hook by hook; one effect without a picture where it does nothing."""
    scheme = subject.scheme
    length = _length(scheme, max_positions)
    if subject.config is not None and not 0 <= layer < subject.config.num_hidden_layers:
        last = subject.config.num_hidden_layers - 1
        raise ValueError(f"layer={layer!r} is out of range. The model has layers 0 to {last}.")
    effects = []
    if scheme.uses("embed"):
        encodings = _encodings(subject, length)
        if encodings.any():
            effects.append(_embedding_effect(encodings))
    if scheme.uses("rotate"):
        effects.append(_rotation_effect(subject, length, layer))
    if scheme.uses("bias"):
        positions, first = _grid(length)
        bias = scheme.ask("bias", positions, first, **one_text(positions))
        if bias is not None:
            effects.append(_bias_effect(bias[0].float(), "bias", ""))
    if scheme.uses("layer_bias"):
        effects.append(_layer_bias_effect(subject, length, layer))
    if not effects:
        note = Note("No positions", "Nothing is added to the embeddings, nothing is turned,\nno logit is biased.")
        effects.append(Effect("nothing", (note,), None, None))
    return effects


def _length(scheme: PositionScheme, max_positions: int | None) -> int:
    limit = scheme.max_length
    if max_positions is None:
        length = DEFAULT_POSITIONS if limit is None else min(DEFAULT_POSITIONS, limit)
        if length < 2:
            raise ValueError("The scheme has one position alone: there is nothing to plot.")
        return length
    most = MOST_POSITIONS if limit is None else min(MOST_POSITIONS, limit)
    if isinstance(max_positions, bool) or not isinstance(max_positions, int) or not 2 <= max_positions <= most:
        why = ", as many as the scheme has" if most == limit else ""
        raise ValueError(f"max_positions={max_positions!r} is out of range. Give a whole number from 2 to {most}{why}.")
    return max_positions


def _grid(length: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(length).unsqueeze(0)
    return positions, positions == 0


def _size(subject: Subject, name: str, from_config: Callable[[PosEncConfig], int]) -> int:
    if subject.config is not None:
        return from_config(subject.config)
    size = getattr(subject.scheme, name, None)
    if not isinstance(size, int):
        raise ValueError(
            f"A {type(subject.scheme).__name__} alone doesn't say its {name}. Give config=, the config that it was "
            "built with, or plot the model."
        )
    return size


def _encodings(subject: Subject, length: int) -> Tensor:
    """What is added to embeddings of zero: (S, D)."""
    scheme = subject.scheme
    table = getattr(scheme, "embedding", None)
    if subject.config is None and isinstance(table, torch.nn.Embedding):
        width = table.embedding_dim
    elif subject.config is None and not hasattr(scheme, "hidden_size") and not hasattr(scheme, "encodings"):
        width = 1  # `none` adds nothing whatever the width
    else:
        width = _size(subject, "hidden_size", lambda config: config.embedding_width)
    positions = torch.arange(length).unsqueeze(0)
    return scheme.ask("embed", torch.zeros(1, length, width), positions, **one_text(positions))[0].float()


def _embedding_effect(encodings: Tensor) -> Effect:
    length, width = encodings.shape
    unit = torch.nn.functional.normalize(encodings, dim=-1)
    cosine = unit @ unit.T
    positions = np.arange(length)
    mean = encodings.mean(-1)
    deviation = encodings.std(-1, unbiased=False)
    # A few outliers of a random table would leave all else pale; the colour bar's points say that there are some.
    bound = float(np.quantile(np.abs(_numpy(encodings)), 0.999))
    # More rows than pixels would show patterns that aren't there. Pairs, because a sine's neighbour is its cosine.
    starts = torch.linspace(0, width - 2, _MOST_ROWS // 2).long() // 2 * 2 if width > _MOST_ROWS else None
    shown = torch.arange(width) if starts is None else torch.stack((starts, starts + 1), 1).flatten()
    heat = Maps(
        title="What is added" + ("" if starts is None else f" ({_MOST_ROWS} of {width} dimensions)"),
        values=_numpy(encodings.T[shown])[None],
        x_label="position",
        y_label="dimension",
        value_label="value",
        limits=(-bound, bound),
        y_names=tuple(str(int(row)) for row in shown),
    )
    matrix = Maps(
        title="Cosine of positions",
        values=_numpy(cosine)[None],
        x_label="position",
        y_label="position",
        value_label="cosine",
        limits=(-1, 1),
    )
    queries = _queries(length, 3)
    distances = np.arange(-(length - 1), length)
    by_distance = np.full((len(queries), distances.size), np.nan)
    for row, query in enumerate(queries):
        by_distance[row, length - 1 - query : 2 * length - 1 - query] = _numpy(cosine[query])
    profile = Lines(
        title="Cosine against distance",
        x=distances,
        y=by_distance,
        names=tuple(str(query) for query in queries),
        group="from position i",
        y_label="cosine",
        limits=(-1.05, 1.05),
    )
    neighbours = Lines(
        title="Cosine of neighbours",
        x=positions[:-1],
        y=_numpy(cosine.diagonal(1))[None],
        names=("p and p + 1",),
        x_label="position",
        y_label="cosine",
        limits=(-1.05, 1.05),
    )
    moments = Lines(
        title=f"Mean and deviation over {width} dimensions",
        x=positions,
        y=_numpy(torch.stack((mean, deviation))),
        names=("mean", "deviation"),
        x_label="position",
        y_label="value",
    )
    norm = Lines(
        title="Norm",
        x=positions,
        y=_numpy(encodings.norm(dim=-1))[None],
        names=("norm",),
        x_label="position",
        y_label="Euclidean norm",
        limits=(0, None),
    )
    return Effect("embeddings", (heat, matrix, profile, neighbours, moments, norm), matrix, profile)


def one_text(positions: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What hooks may ask for beside positions (1, S): one text of equal tokens."""
    return {
        "input_ids": lambda: torch.zeros_like(positions),
        "sequence": lambda: torch.zeros_like(positions),
        "lengths": lambda: torch.full_like(positions, positions.shape[-1]),
    }


def rotated_units(scheme: PositionScheme, heads: int, head_dim: int, length: int, layer: int) -> Tensor:
    """The rotated unit vectors, R_h(p) e_a: (H, S, d, d), a row for each a; H is 1 where all heads are turned alike."""
    positions = torch.arange(length).unsqueeze(0)
    state = scheme.ask("rotary", positions, **one_text(positions))
    rows = []
    for unit in torch.eye(head_dim):
        q = unit.expand(1, length, heads, head_dim)
        rows.append(scheme.rotate(q, q, state, layer)[0][0].float())
    turned = torch.stack(rows, 2).transpose(0, 1)
    return turned[:1] if bool(torch.isclose(turned, turned[:1], rtol=1e-5, atol=1e-7).all()) else turned


def _decay(turned: Tensor) -> Tensor:
    """R(0) x . R(p) x for unit vectors x: (H, S, d, d) -> (H, d, S)."""
    return torch.einsum("hab,hpab->hap", turned[:, 0], turned)


def _pairs(turned: Tensor) -> tuple[list[int], np.ndarray]:
    """The first entry of each turned pair of a head, the fastest first, and the pairs' wavelengths in tokens."""
    diagonal = turned.diagonal(dim1=1, dim2=2)
    # Entry a turns together with the one other that its image reaches; one that reaches none isn't turned.
    reach = (turned - torch.diag_embed(diagonal)).abs().amax(0)
    partner = reach.argmax(-1)
    # One step of positions gives the speed.
    angle = torch.linalg.vector_norm(turned[1] - diagonal[1].diag(), dim=-1).atan2(diagonal[1])
    pairs = [a for a in range(len(reach)) if reach[a].max() > 0 and a < int(partner[a])]
    pairs.sort(key=lambda a: -float(angle[a]))
    return pairs, _numpy(2 * torch.pi / angle[pairs])


def _rotation_effect(subject: Subject, length: int, layer: int) -> Effect:
    head_dim = _size(subject, "head_dim", lambda config: config.hidden_size // config.num_attention_heads)
    heads = subject.config.num_attention_heads if subject.config else getattr(subject.scheme, "num_heads", 1)
    turned = rotated_units(subject.scheme, heads, head_dim, length, layer)
    if turned.shape[-1] != head_dim:
        said = f"{head_dim} entries of queries and keys become {turned.shape[-1]}:\nthere are no angles to draw."
        return Effect("queries", (Note("Queries and keys", said),), None, None)
    decay = _decay(turned)
    found = [_pairs(head) for head in turned]
    pairs, wavelengths = found[0]
    distances = np.arange(length)
    means = _numpy(decay.mean(1))  # (H, S)
    # Above 1 where a scaling multiplies cos and sin by a factor.
    most = max(1.0, float(decay.abs().max()))
    names, group, where = ["this one"], "", ""
    curves, waves = means, [wavelengths]
    if len(turned) > 1:
        names, group, where = [str(head) for head in range(len(turned))], "head", ", head 0"
        longest = max(row.size for _, row in found)
        waves = [np.pad(row, (0, longest - row.size), constant_values=np.nan) for _, row in found]
    elif (default := _default_of(subject)) is not None:
        other = rotated_units(default, heads, head_dim, length, layer)
        other_means = _numpy(_decay(other).mean(1))
        if other_means.shape == means.shape and not np.allclose(other_means, means, atol=1e-4):
            names, curves = ["as configured", "the default"], np.concatenate((means, other_means))
            waves = [row for row in (wavelengths, _pairs(other[0])[1]) if row.size == wavelengths.size]
    size = 2 * len(pairs)
    heat = Maps(
        title=f"q.k of each pair of entries{where}",
        values=_numpy(decay[0][pairs])[None],
        y_label="wavelength of the pair (tokens)",
        value_label="q.k over q.k unturned",
        limits=(-most, most),
        y_names=tuple(_short(wave) for wave in wavelengths),
    )
    line = Lines(
        title=f"Mean of {head_dim} entries" + (f", {size} of them turned" if size < head_dim else ""),
        x=distances,
        y=curves,
        names=tuple(names),
        group=group,
        y_label="q.k over q.k unturned",
        limits=(-1.05 * most, 1.05 * most),
    )
    wave = Lines(
        title="Wavelengths",
        x=np.arange(len(waves[0])),
        y=np.stack(waves),
        names=tuple(names[: len(waves)]),
        group=group,
        x_label="pair of entries, fastest first",
        y_label="tokens per turn",
        log=True,
    )
    both = np.arange(-(length - 1), length)
    matrix = Maps(
        title="Mean of rotated q.k" + (", mean of heads" if group else ""),
        values=means.mean(0)[np.abs(distances[:, None] - distances[None, :])][None],
        x_label="position",
        y_label="position",
        value_label="q.k over q.k unturned",
        limits=(-most, most),
    )
    profile = Lines(
        title="Mean of rotated q.k against distance",
        x=both,
        y=means[:, np.abs(both)],
        names=tuple(names) if group else ("q = k",),
        group=group,
        y_label="q.k over q.k unturned",
        limits=(-1.05 * most, 1.05 * most),
    )
    # A head of which nothing is turned has no pair to show.
    return Effect("rotation", (*([heat] if pairs else []), line, *([wave] if len(waves[0]) else [])), matrix, profile)


def _default_of(subject: Subject) -> PositionScheme | None:
    """The scheme with its defaults, where the config doesn't have them."""
    if subject.config is None:
        return None
    config = subject.config
    given = (config.position_embedding_kwargs, config.rope_parameters)
    try:
        default = PosEncConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_hidden_layers=config.num_hidden_layers,
            max_position_embeddings=config.max_position_embeddings,
            position_embedding_type=config.position_embedding_type,
        )
    except ValueError:  # a scheme whose arguments have no defaults
        return None
    if given == (default.position_embedding_kwargs, default.rope_parameters):
        return None
    return initial_scheme(default)


def _by_distance(bias: Tensor) -> Tensor:
    """The last row and the first of a matrix, joined: (..., S, S) -> (..., R), all of it where distance decides."""
    return torch.cat((bias[..., -1, :-1], bias[..., 0, :]), -1)


def _distance_decides(bias: Tensor) -> bool:
    length = bias.shape[-1]
    positions = torch.arange(length)
    rebuilt = _by_distance(bias)[..., positions[None, :] - positions[:, None] + length - 1]
    return bool((bias - rebuilt).abs().max() <= 1e-5 * bias.abs().max() + 1e-9)


def _heads(values: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Rows by head, or one where all heads are alike."""
    if bool(torch.isclose(values, values[:1], rtol=1e-5, atol=1e-8).all()):
        return values[:1], ("all heads",)
    return values, tuple(str(head) for head in range(values.shape[0]))


def _bias_effect(bias: Tensor, kind: str, where: str) -> Effect:
    """Panels of (H or 1, S, S)."""
    length = bias.shape[-1]
    middle = length // 2
    from_middle = np.arange(length) - middle
    steady = _distance_decides(bias)
    distances = np.arange(-(length - 1), length)
    rows, names = _heads(_by_distance(bias) if steady else bias[:, middle])
    profile = Lines(
        title=f"Bias against distance{where}" if steady else f"Bias from position {middle}{where}",
        x=distances if steady else from_middle,
        y=_numpy(rows),
        names=names,
        group="head",
        y_label="bias (logit)",
    )
    panels: list[Panel] = [profile]
    limits = _colour_limits(bias)
    if steady and len(names) > 1:
        panels.append(
            Maps(
                title=f"The same by head{where}",
                values=_numpy(rows)[None],
                y_label="head",
                value_label="bias (logit)",
                limits=limits,
                x_start=-(length - 1),
            )
        )
    if not steady:
        queries = _queries(length, 3)
        curves = np.full((len(queries), distances.size), np.nan)
        for row, query in enumerate(queries):
            curves[row, length - 1 - query : 2 * length - 1 - query] = _numpy(bias[0, query])
        panels.append(
            Lines(
                title=f"Head 0 from several positions{where}",
                x=distances,
                y=curves,
                names=tuple(str(query) for query in queries),
                group="from position i",
                y_label="bias (logit)",
            )
        )
    weights, weight_names = _heads(bias[:, middle].softmax(-1))
    panels.append(
        Lines(
            title=f"Attention among equal tokens, i = {middle}",
            x=from_middle,
            y=_numpy(weights),
            names=weight_names,
            group="head",
            y_label="attention weight",
            limits=(0, None),
        )
    )
    if not steady:
        maps, names = _heads(bias)
        shown = f", the first {_MOST_MAPS} of {len(names)} heads" if len(names) > _MOST_MAPS else ""
        panels.append(
            Maps(
                title=f"Bias of each pair of positions{shown}{where}",
                values=_numpy(maps[:_MOST_MAPS]),
                names=tuple(f"head {name}" for name in names[:_MOST_MAPS]),
                x_label="key position j",
                y_label="query position i",
                value_label="bias (logit)",
                limits=limits,
            )
        )
    mean = bias.mean(0, keepdim=True)
    matrix = Maps(
        title="Bias, mean of heads",
        values=_numpy(mean),
        x_label="key position j",
        y_label="query position i",
        value_label="bias (logit)",
        limits=_colour_limits(mean),
    )
    return Effect(kind, tuple(panels), matrix, profile)


def _layer_bias_effect(subject: Subject, length: int, layer: int) -> Effect:
    """Panels of a bias of one layer: with vectors for q and k if they matter."""
    heads = _size(subject, "num_heads", lambda config: config.num_attention_heads)
    head_dim = _size(subject, "head_dim", lambda config: config.hidden_size // config.num_attention_heads)
    positions, _ = _grid(length)

    def bias(q: Tensor, k: Tensor) -> Tensor:
        """q and k (n, H, d), the same at every place -> (n, H, S, S)."""
        q, k = (t[:, :, None].expand(-1, -1, length, -1) for t in (q, k))
        try:
            x = torch.zeros(len(q), length, heads * head_dim)
            found = subject.scheme.ask("layer_bias", q, k, positions, layer, x=lambda: x, **one_text(positions))
        except IndexError as error:
            raise ValueError(f"layer={layer!r} is out of range: the scheme has no such layer.") from error
        assert found is not None
        return found.float().expand(q.shape[0], heads, -1, -1)

    where = f", layer {layer}"
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, _DRAWS, heads, head_dim, generator=generator)
    draws = bias(q, k)
    if torch.allclose(draws[0], draws[1], rtol=1e-5, atol=1e-8):
        return _bias_effect(draws[0], "layer bias", where)
    vectors, constant = _vectors(bias, heads, head_dim)
    foretold = constant + torch.einsum("nhd,hrd->nhr", q, vectors[0]) + torch.einsum("nhd,hrd->nhr", k, vectors[1])
    if torch.allclose(foretold, _by_distance(draws), rtol=1e-3, atol=1e-4 * float(draws.abs().max())):
        spread = vectors.square().sum((0, 3)).sqrt()
        alike = vectors[:, 0].transpose(0, 1).flatten(1)
        what = "Cosine of the distances' vectors"
    else:  # no sum of products: what it does to many drawn q and k
        count = _MEASURED if length <= DEFAULT_POSITIONS else _MEASURED // 8
        q, k = torch.randn(2, count, heads, head_dim, generator=generator)
        many = torch.cat([_by_distance(bias(q[n : n + 1], k[n : n + 1])) for n in range(count)])  # (n, H, R)
        spread = many.std(0)
        alike = (many - many.mean(0))[:, 0].T
        what = f"Correlation of distances over {count} draws"
    return _content_effect(draws, spread, alike, what, where)


def _vectors(bias: Callable[[Tensor, Tensor], Tensor], heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """What a bias that is linear in q and k multiplies them by, (2, H, R, d), and what it adds, (H, R).

    Read off unit vectors, one entry at a time, for all of them at once are (d, H, S, S).
    """
    zero = torch.zeros(1, heads, head_dim)
    nothing = _by_distance(bias(zero, zero))[0]
    entries = []
    for unit in torch.eye(head_dim):
        e = unit.expand_as(zero)
        entries.append(torch.stack([_by_distance(one)[0] - nothing for one in (bias(e, zero), bias(zero, e))]))
    return torch.stack(entries, -1), nothing


def _content_effect(draws: Tensor, spread: Tensor, alike: Tensor, what: str, where: str) -> Effect:
    """Panels of a bias that depends on q and k.

    Args:
        draws: (n, H, S, S), the bias of random q and k.
        spread: (H, R), its deviation by distance.
        alike: (R, N), a row for each distance, whose cosines are shown.
        what: what those cosines are.
        where: the layer.
    """
    length = draws.shape[-1]
    distances = np.arange(-(length - 1), length)
    spread, names = _heads(spread)
    size = Lines(
        title=f"Deviation of the bias over random q, k{where}",
        x=distances,
        y=_numpy(spread),
        names=names,
        group="head",
        y_label="deviation (logit)",
        limits=(0, None),
    )
    unit = torch.nn.functional.normalize(alike, dim=-1)
    cosine = Maps(
        title=f"{what}, {'all heads' if len(names) == 1 else 'head 0'}",
        values=_numpy(unit @ unit.T)[None],
        y_label="distance j - i (tokens)",
        value_label=what.split()[0].lower(),
        limits=(-1, 1),
        x_start=-(length - 1),
        y_start=-(length - 1),
    )
    examples = Lines(
        title=f"Bias of {_DRAWS} random q, k (unit variance), head 0",
        x=distances,
        y=_numpy(_by_distance(draws[:, 0])),
        names=tuple(str(draw) for draw in range(_DRAWS)),
        group="draw",
        y_label="bias (logit)",
    )
    grid = torch.arange(length)
    matrix_values = spread.mean(0)[grid[None, :] - grid[:, None] + length - 1]
    matrix = Maps(
        title="Deviation, mean of heads",
        values=_numpy(matrix_values)[None],
        x_label="key position j",
        y_label="query position i",
        value_label="logit",
        limits=(0.0, float(matrix_values.max())),
    )
    return Effect("layer bias", (size, cosine, examples), matrix, size)


def _queries(length: int, count: int) -> list[int]:
    """Positions from the first to the last, evenly spread."""
    return sorted({round(step * (length - 1) / (count - 1)) for step in range(count)})


def _colour_limits(values: Tensor) -> tuple[float, float]:
    """Symmetric about 0 for numbers of both signs, from 0 for those of one."""
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        bound = max(-low, high)
        return -bound, bound
    return min(low, 0.0), max(high, 0.0)


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().double().numpy()


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= 10 * size or (unit == "M" and number >= size):
            return f"{number / size:.3g}{unit}"
    return f"{number:.1f}" if number < 20 else f"{number:.0f}"
