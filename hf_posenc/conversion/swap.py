"""Replaces the scheme of trained weights: fits the new scheme to the old one as far as possible, without any text.

What both schemes have is copied, tables at another length; the rest is fitted (see `fitting`); and the
`query_scale` of the new scheme is undone in the query's weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.sentence_modules import ACTIVATION
from ..errors import UserError, spell
from ..model.configuration_posenc import PosEncConfig
from ..model.position_rope import ROPE_COMMON
from ..model.scheme_base import PositionScheme
from ..model.scheme_factory import own_arguments, scheme_kwargs
from ..options import LENGTH, check_range
from ..schemes.names import scheme_names
from ..schemes.support import takes_rope_parameters
from ..schemes.support.loaded_code import find_scheme
from . import fitting
from .loading import build_config
from .measure import random_tokens

EXTENSIONS = ("tile", "interpolate")
"""Of tables, see `fitting.extended_table`."""
ROPE_EXTENSIONS = ("linear", "dynamic", "yarn")
SUITABLE: dict[str, dict[str, Any]] = {
    "sinusoidal": {"learned_scale": True},
    **{name: {"per_layer": True} for name in ("alibi", "t5", "toeplitz")},
}
"""Arguments that suit pretrained weights better than the defaults. Of an author's scheme: its `conversion_kwargs`."""
OF_LOGITS = ("position_embedding_type", "position_embedding_kwargs", "rope_parameters")
"""Fields of the configuration on which the logits of any text depend."""
Parts = dict[str, PositionScheme]
"""Schemes by their names."""


def parts_of(model: Any) -> Parts:
    """The schemes of a model by name."""
    scheme = model.base_model.position
    names = scheme_names(model.config.position_embedding_type)
    return {names[0]: scheme} if len(names) == 1 else {name: getattr(scheme, name) for name in names}


@dataclass(frozen=True)
class Target:
    """The scheme and the length that a model is to have, see `convert`. None: its own."""

    scheme: str | None = None
    scheme_kwargs: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    extension: str | None = None

    @property
    def at_the_old_length(self) -> "Target":
        """The same scheme alone."""
        return Target(self.scheme, self.scheme_kwargs, self.rope_parameters)

    @property
    def length_alone(self) -> "Target":
        """The same length, without a scheme."""
        return Target(max_position_embeddings=self.max_position_embeddings, extension=self.extension)


def target_config(original: PreTrainedModel, target: Target, trained: int | None = None) -> tuple[PosEncConfig, bool]:
    """The configuration after the swap, and whether it differs from the one before.

    Args:
        original: what is changed.
        target: what it is to have.
        trained: how long the texts were that it was trained on, where it was extended since.

    Raises:
        UserError: an argument doesn't exist, or the extension doesn't fit.
    """
    before, rope_parameters = original.config, target.rope_parameters
    kind = target.scheme or before.position_embedding_type
    same = kind == before.position_embedding_type
    length = target.max_position_embeddings
    check_range("max_position_embeddings", length, LENGTH)
    if length is None:
        length = before.max_position_embeddings
    if target.extension is not None:
        rope_parameters = _check_extension(target.extension, kind, original, length, rope_parameters, trained)
    left = ("model_type", "transformers_version", "dtype", "auto_map", *ACTIVATION)
    values = {key: value for key, value in before.to_dict().items() if key[0] != "_" and key not in left}
    values |= {"position_embedding_type": kind, "max_position_embeddings": length}
    if not same:
        stay = {*scheme_names(kind)} & {*scheme_names(before.position_embedding_type)}
        turns = any(takes_rope_parameters(find_scheme(before, name)) for name in stay)
        values["rope_parameters"] = before.rope_parameters if turns else None
        values["position_embedding_kwargs"] = _suitable(original, kind)
    if target.scheme_kwargs is not None:
        came = {*scheme_names(kind)} - {*scheme_names(before.position_embedding_type)}
        arguments = values["position_embedding_kwargs"] or {}
        values["position_embedding_kwargs"] = given_arguments(kind, came, arguments, target.scheme_kwargs)
    if rope_parameters is not None:  # what trained angles depend on stays unless it is given, as in loading
        angles = values["rope_parameters"] or {}
        kept = {name: angles[name] for name in ROPE_COMMON if name in angles and name != "rope_type"}
        values["rope_parameters"] = {**kept, **rope_parameters}
    config = build_config(values)
    fields = (*OF_LOGITS, "max_position_embeddings")
    return config, any(getattr(before, name) != getattr(config, name) for name in fields)


def _check_extension(
    extension: str,
    kind: str,
    original: PreTrainedModel,
    length: int,
    rope_parameters: dict[str, Any] | None,
    trained: int | None,
) -> dict[str, Any] | None:
    """RoPE's parameters under an extension, if it is one of RoPE's."""
    before = original.config
    parts = parts_of(original)
    longest = before.max_position_embeddings
    names = scheme_names(kind)
    fits = [*EXTENSIONS] if any(has_table(part) for name, part in parts.items() if name in names) else []
    fits += ROPE_EXTENSIONS if any(takes_rope_parameters(find_scheme(before, name)) for name in names) else ()
    if extension not in fits:
        way = f"Choose one of {', '.join(fits)}" if fits else "Leave it out"
        raise UserError(f"isn't one for {kind!r}. {way}.", parameter="extension", value=extension)
    if length <= longest:
        raise UserError(
            f"has no effect: {spell('max_position_embeddings', length)} isn't more than the source's {longest}. Leave "
            f"it out, or raise {spell('max_position_embeddings')}.",
            parameter="extension",
            value=extension,
        )
    if extension in EXTENSIONS:
        return rope_parameters
    if rope_parameters is not None and "rope_type" in rope_parameters:
        other = spell("rope_parameters", rope_parameters)
        raise UserError(f"and {other} both scale. Give one.", parameter="extension", value=extension)
    kept = {**(before.rope_parameters or {}), **(rope_parameters or {})}
    scaled = kept.get("rope_type", "default")
    if scaled not in ("default", extension):
        way_out = f"Go on with {spell('extension', scaled)}" if scaled in ROPE_EXTENSIONS else "Leave it out"
        raise UserError(
            f": the source's RoPE is scaled by {scaled!r} already. {way_out}, or extend the checkpoint that it was "
            "made from.",
            parameter="extension",
            value=extension,
        )
    # The trained angles are those of the source of the first extension.
    trained = trained or longest
    if extension == "linear":
        factor = kept["factor"] * length / longest if scaled == extension else length / trained
        return {**kept, "rope_type": extension, "factor": factor}
    if scaled == extension:
        trained = kept.get("original_max_position_embeddings", trained)
    return {**kept, "rope_type": extension, "factor": length / trained, "original_max_position_embeddings": trained}


def given_arguments(kind: str, came: set[str], trained: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a scheme with those that are given: the others of what was trained stay; what came has no others."""
    if len(scheme_names(kind)) == 1:
        return given if kind in came else trained | given
    stay = {name: trained.get(name, {}) for name in given if name not in came}
    return trained | {n: stay.get(n, {}) | value if isinstance(value, dict) else value for n, value in given.items()}


def _suitable(original: PreTrainedModel, kind: str) -> dict[str, Any] | None:
    names = scheme_names(kind)
    kept = scheme_kwargs(original.config)
    table = fitting.added_vectors(parts_of(original), original.config)
    arguments: dict[str, dict[str, Any]] = {}
    for name in names:
        scheme = find_scheme(original.config, name)
        arguments[name] = kept.get(name, {**getattr(scheme, "conversion_kwargs", {}), **SUITABLE.get(name, {})})
        if name not in kept and table is not None and "rms" in own_arguments(scheme):
            # A factor on what is added: the old scheme's size.
            arguments[name]["rms"] = float(fitting.centred(table).square().mean().sqrt())
    if not any(arguments.values()):
        return None
    return arguments if len(names) > 1 else arguments[names[0]]


def swap(
    original: PreTrainedModel,
    config: PosEncConfig,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    extension: str | None = None,
    seed: int = 42,
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """A model with the configuration's scheme and the original's other weights, see the module; the original stays.

    Args:
        original: any PosEnc model.
        config: see `target_config`.
        tokenizer: tells which tokens are special.
        extension: how tables grow, one of `EXTENSIONS`; `tile` if not given.
        seed: of the random tokens and of what starts at random.

    Returns:
        The model, and a line for each thing that was carried over.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = type(original)(config).eval()  # type: ignore[call-arg]
        state = {key: value for key, value in original.state_dict().items() if ".position." not in f".{key}"}
        model.load_state_dict(state, strict=False)
        carried = _carry_over(model, original.eval(), tokenizer, extension if extension in EXTENSIONS else "tile")
    return model.eval(), carried


def has_table(part: PositionScheme) -> bool:
    """True where some weight has a row for each position."""
    return part.max_length is not None and any(
        value.shape[:1] == (part.max_length,) for value in part.state_dict().values()
    )


def _copy_part(name: str, old: PositionScheme, new: PositionScheme, extension: str) -> list[dict[str, Any]]:
    """Copies the weights of the scheme, tables with another number of positions."""
    state, carried = {}, []
    before = old.max_length or 0
    after = new.max_length or 0
    expected = new.state_dict()
    for key, value in old.state_dict().items():
        sizes = (len(value), len(expected[key])) if value.dim() and key in expected else None
        if key in expected and expected[key].shape == value.shape:
            state[key] = value
        elif before and sizes == (before, after):
            state[key] = fitting.extended_table(value, after, extension)
            kept = extension if after > before else "the first ones"
            carried.append({"scheme": name, "what": f"{before} positions -> {after}", "how": kept})
        elif before and sizes == (2 * before - 1, 2 * after - 1):
            # A vector for each distance: farther ones get the farthest.
            state[key] = value[torch.arange(-(after - 1), after).clamp(-(before - 1), before - 1) + before - 1]
            carried.append({"scheme": name, "what": f"{key}: distances past {before - 1} are as {before - 1}"})
        else:
            raise UserError(
                f"The source's {name!r} has {key!r} of shape {tuple(value.shape)}, which the new arguments don't fit. "
                f"Keep its {spell('scheme_kwargs')}."
            )
    if missing := expected.keys() - state.keys():
        raise UserError(
            f"The source's {name!r} has no {min(missing)!r}, which the new arguments need. Keep its "
            f"{spell('scheme_kwargs')}."
        )
    new.load_state_dict(state)
    return carried


@torch.no_grad()
def _carry_over(
    model: Any, original: Any, tokenizer: PreTrainedTokenizerBase | None, extension: str
) -> list[dict[str, Any]]:
    old = parts_of(original)
    new = parts_of(model)
    gone = _without(old, new)
    came = _without(new, old)
    kept = _without(new, came)
    carried: list[dict[str, Any]] = []
    for name, part in kept.items():
        carried += _copy_part(name, old[name], part, extension)
    carried += _carry_vectors(model, old, gone, came, tokenizer)
    carried += _undo_query_scale(model, original)
    for name, part in {**gone, **came}.items():
        if _rotates_alone(part):
            carried.append({"scheme": name, "what": "makes q and k anew: little of what heads looked for is left"})
    # A scheme that stays acts on attention already, and depends on q and k as they are.
    is_tied = any(_uses_any(part, "rotate", "bias", "layer_bias") for part in kept.values())
    rows = random_tokens(min(original.config, model.config, key=lambda c: c.max_position_embeddings), tokenizer)
    if not is_tied:
        carried += _choose_bases(model, original, came, rows)
    biased = {name: part for name, part in came.items() if _uses_any(part, "bias", "layer_bias")}
    return carried + (fitting.fit_biases(model, original, biased, rows, is_tied) if biased else [])


def _without(parts: Parts, others: Parts) -> Parts:
    return {name: part for name, part in parts.items() if name not in others}


def _uses_any(part: PositionScheme, *hooks: str) -> bool:
    return any(map(part.uses, hooks))


def _rotates_alone(part: PositionScheme) -> bool:
    return getattr(part, "rotates_alone", False)


def _undo_query_scale(model: Any, original: Any) -> list[dict[str, Any]]:
    """Multiplies the query's weights by what the new scheme's factor changes."""
    scale = original.base_model.position.query_scale / model.base_model.position.query_scale
    if scale == 1.0:
        return []
    for layer in model.base_model.layers:
        for parameter in layer.attention.query.parameters():
            parameter.mul_(scale)
    return [{"what": "query weights undo the scheme's factor", "factor": scale}]


def _choose_bases(model: Any, original: Any, came: Parts, rows: torch.Tensor) -> list[dict[str, Any]]:
    """Gives q and k of each layer the basis in which a rotation that came changes q.k least."""
    turning = next((part for part in came.values() if part.uses("rotate") and not _rotates_alone(part)), None)
    if turning is None:
        return []
    states = original.base_model(rows, output_hidden_states=True).hidden_states
    for index, layer in enumerate(model.base_model.layers):
        inputs = fitting.layer_input(original.base_model, states[index], index)
        fitting.choose_basis(layer.attention, turning, inputs, index)
    return [{"what": "q and k in a basis whose slow pairs hold most of q.k"}]


def _carry_vectors(
    model: Any, old: Parts, gone: Parts, came: Parts, tokenizer: PreTrainedTokenizerBase | None
) -> list[dict[str, Any]]:
    """Moves the vectors that the old schemes added into the new schemes and the embeddings."""
    carried: list[dict[str, Any]] = []
    left = fitting.added_vectors(gone, model.config)
    added = [(name, part) for name, part in came.items() if fitting.is_additive(part)]
    if left is not None:
        # The scheme with most weights comes last and takes what the others leave.
        for name, part in sorted(added, key=lambda item: sum(weight.numel() for weight in item[1].parameters())):
            carried.append({"scheme": name, "what": "fitted to the old vectors", **fitting.fit_vectors(part, left)})
            left = left - fitting.vectors_of(part, len(left))
        return [*carried, fitting.fold_constants(model.base_model, left, tokenizer)]
    for name, part in added:
        if not any(fitting.is_additive(other) for other in old.values()):
            what = "starts anew: the old scheme added no vectors"
        elif fitting.zero_output(part):
            what = "starts without effect, beside the vectors that stay"
        else:
            what = "comes on top of the vectors that stay: none of its weights scales it"
        carried.append({"scheme": name, "what": what})
    return carried
