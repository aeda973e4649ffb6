"""The effects of a positional scheme in numbers: the panels that `plots` draws.

The hooks that a scheme overrides decide which panels there are, never its name: vectors added to the
embeddings (`embed`), the rotation of queries and keys (`rotate`), and biases on the logits (`bias`, `layer_bias`). All
numbers come from the hooks themselves, so they can't differ from what the encoder computes.

Axes in the shapes below: S positions, D hidden width, H heads, d = D/H, R = 2 S - 1 distances.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_posenc.errors import UserError
from hf_posenc.model.modeling_posenc import PosEncPreTrainedModel
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.position_base import PositionScheme

from .effects_on_inputs import embedding_effect, encodings_of, rotation_effect
from .effects_on_logits import bias_effect, first_biased_layer, layer_bias_effect
from .hooks import one_text
from .panel_types import DEFAULT_POSITIONS, Effect, Lines, Maps, Note, Panel, curves, signed_distances, to_numpy
from .sources import Source, Subject, initial_scheme, read_source

__all__ = [
    "Lines",
    "Maps",
    "Note",
    "Panel",
    "Source",
    "attention_panels",
    "initial_scheme",
    "position_panels",
]


MOST_POSITIONS = 2048
"""More would need gigabytes: matrices are (H, S, S)."""


def position_panels(
    source: Source,
    *,
    max_positions: int | None = None,
    layer: int | None = None,
    config: PosEncConfig | None = None,
    revision: str | None = None,
) -> list[Panel]:
    """The effects of a scheme as numbers, for each hook that it uses.

    - Added vectors e(p): heat map; cosine of all pairs of positions, and against distance; cosine of neighbours;
      mean, deviation and norm by position.
    - Rotation: R(i) x . R(j) x over x . x, for each turned pair of entries and for their mean, against distance (that
      of the scheme's defaults beside it, where they differ); wavelengths.
    - Bias: against distance for each head, with its sign; the attention that it gives to tokens of equal content; all
      pairs of positions for each head, where distance alone doesn't decide.
    - Bias by entries that are appended to q and k: the same.
    - Bias that depends on q and k: deviation over q and k of unit variance, cosines between the vectors of distances,
      and a few draws.

    Args:
        source: a scheme's name (base size, initial weights), a config (initial weights), a model, a checkpoint's folder
            or Hub name, or a scheme. A name of a scheme wins over a folder of that name: write ./rope for the folder.
        max_positions (int, optional): S. None: 128, or as many as the scheme has.
        layer (int, optional): the layer, from 0, of what differs by layer. None: the first that has a bias, or 0.
        config (PosEncConfig, optional): the config with the sizes of a bare scheme.
        revision (str, optional): branch, tag or commit of a checkpoint on the Hub.

    Returns:
        list[Panel]: `Lines`, `Maps`, or a `Note` where there is nothing to show.

    Raises:
        UserError: the source is nothing that can be plotted, or an argument is out of range.
        OSError: the Hub has no such checkpoint.
    """
    subject = read_source(source, config, revision)
    return [panel for effect in read_effects(subject, max_positions, layer) for panel in effect.panels]


@torch.no_grad()
def attention_panels(
    model: PosEncPreTrainedModel, input_ids: Tensor, *, layer: int = 0, words: Sequence[str] = ()
) -> list[Panel]:
    """How far a model attends in a text: attention probabilities against distance, averaged over positions.

    At distance t it is the mean of P_h(i, j) over all i, j with j - i = t: by layer (mean of the heads), by head of one
    layer; and the mean of layers and heads for all i, j.

    Args:
        model: any PosEnc model; it isn't changed.
        input_ids (Tensor): (1, S) token ids of a text.
        layer (int): the layer, from 0, whose heads are shown.
        words: S words or word pieces, one for each token, to name rows and columns with; none: their numbers.

    Raises:
        UserError: not one text of 2 to 2,048 tokens, no such layer, or not a word for each token.
    """
    if input_ids.dim() != 2 or input_ids.shape[0] != 1 or not 2 <= input_ids.shape[1] <= MOST_POSITIONS:
        raise UserError(
            f"input_ids of shape {tuple(input_ids.shape)} can't be shown. Give one text, (1, S), of 2 to "
            f"{MOST_POSITIONS} tokens."
        )
    if len(words) not in (0, input_ids.shape[1]):
        raise UserError(f"words are {len(words)}, for {input_ids.shape[1]} tokens. Give one for each, or none.")
    last = model.config.num_hidden_layers - 1
    if not 0 <= layer <= last:
        raise UserError(f"layer={layer!r} is out of range. The model has layers 0 to {last}.")
    training = model.training
    model.eval()
    try:
        attentions = model.base_model(input_ids.to(model.device), output_attentions=True).attentions
    finally:
        model.train(training)
    weights = torch.stack(attentions)[:, 0].float().cpu()  # (L, H, S, S)
    distances = signed_distances(weights.shape[-1])
    by_distance = torch.stack([weights.diagonal(t, -2, -1).mean(-1) for t in distances.tolist()], -1)  # (L, H, R)
    mean = weights.mean((0, 1))
    of_weights: dict[str, Any] = {"y_label": "attention weight, mean of places", "limits": (0, None)}
    by_layer, by_head = by_distance.mean(1), by_distance[layer]
    title = "Attention by distance"
    return [
        curves(f"{title}, mean of heads", distances, by_layer, range(len(by_layer)), group="layer", **of_weights),
        curves(f"{title}, layer {layer}", distances, by_head, range(len(by_head)), group="head", **of_weights),
        Maps(
            title="Attention, mean of layers and heads",
            values=to_numpy(mean)[None],
            x_label="looks at" if words else "key position j",
            y_label="word" if words else "query position i",
            x_names=tuple(words),
            y_names=tuple(words),
            value_label="attention weight",
            limits=(0.0, float(mean.max())),
        ),
    ]


@torch.no_grad()
def read_effects(subject: Subject, max_positions: int | None, layer: int | None) -> list[Effect]:
    """The effects of a scheme, hook by hook; one effect without a plot if it has none."""
    scheme = subject.scheme
    length = _length(scheme, max_positions)
    if layer is None:
        layer = first_biased_layer(subject) if scheme.uses("layer_bias") else 0
    if subject.config is not None and not 0 <= layer < subject.config.num_hidden_layers:
        last = subject.config.num_hidden_layers - 1
        raise UserError(f"layer={layer!r} is out of range. The model has layers 0 to {last}.")
    effects = []
    if scheme.uses("embed"):
        encodings = encodings_of(subject, length)
        if encodings.any():
            effects.append(embedding_effect(encodings))
    if scheme.uses("rotate"):
        effects.append(rotation_effect(subject, length, layer))
    if scheme.uses("bias"):
        bias = scheme.bias(one_text(length))
        if bias is not None:
            effects.append(bias_effect(bias[0].float(), "bias", ""))
    if scheme.uses("layer_bias"):
        effects.append(layer_bias_effect(subject, length, layer))
    if not effects:
        note = Note("No positions", "Nothing is added to the embeddings, nothing is turned,\nno logit is biased.")
        effects.append(Effect("nothing", (note,), None, None))
    return effects


def _length(scheme: PositionScheme, max_positions: int | None) -> int:
    limit = scheme.max_length
    if max_positions is None:
        length = DEFAULT_POSITIONS if limit is None else min(DEFAULT_POSITIONS, limit)
        if length < 2:
            raise UserError("The scheme has one position alone: there is nothing to plot.")
        return length
    most = MOST_POSITIONS if limit is None else min(MOST_POSITIONS, limit)
    if isinstance(max_positions, bool) or not isinstance(max_positions, int) or not 2 <= max_positions <= most:
        why = ", as many as the scheme has" if most == limit else ""
        raise UserError(f"max_positions={max_positions!r} is out of range. Give a whole number from 2 to {most}{why}.")
    return max_positions
