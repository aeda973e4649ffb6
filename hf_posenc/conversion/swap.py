"""Replaces the scheme of trained weights: fits the new scheme to the old one as far as possible, without any text.

The steps, and why:

- **The mean of added positions stays.** A trained table isn't centred: its mean is a constant that every later layer
  has learned to expect. It moves into the token-type embedding (or, without types, into the token embedding). What is
  special about position 0 moves into the token embedding of [CLS], which occurs at no other position.
- **Added -> added** (`sinusoidal`, `lspe`, `fourier`, `learned`): the new scheme is fitted to the old one's vectors.
- **RoPE** keeps q.k where pairs rotate slowly. Per head, q and k have a free choice of basis (q A, k A^-T give
  the same q.k); the directions with the most of q.k go to the slowest pairs, those with the least to the fastest.
- **Biases** (`t5`, `kerple`, `alibi` with learned slopes, ...) are fitted to the old scheme's mean effect at each
  distance: on random tokens, the mean difference between log attention probabilities with it and without any. Where all
  layers share a bias, each layer's heads are first put in order of how local they are (which changes nothing else), so
  that the same slot means the same in all layers; `alibi`'s fixed slopes are assigned to the heads that they disturb
  least.
- **query_scale** of the new scheme is undone in the query's weights.
"""

import math
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import UserError, user_errors
from ..model.hints import scheme_names
from ..model.package_config import PosEncConfig, scheme_class, takes_rope_parameters
from ..model.position_base import PositionScheme
from ..model.position_rope import ROPE_COMMON
from ..model.positions import own_arguments, scheme_kwargs
from .added_vectors import (
    added_vectors,
    centred,
    fit_vectors,
    fold_constants,
    is_additive,
    num_params,
    vectors_of,
    zero_output,
)
from .biases import fit_biases
from .fitting import base_of, layer_input, parts_of
from .loading import build_config
from .measure import random_tokens
from .rotations import choose_basis
from .sentence_modules import ACTIVATION
from .tables import EXTENSIONS, copy_part, has_table

ROPE_EXTENSIONS = ("linear", "dynamic", "yarn")
Parts = dict[str, PositionScheme]
"""Schemes by their names."""


def target_config(
    original: PreTrainedModel,
    position_embedding_type: str | None,
    position_embedding_kwargs: dict[str, Any] | None,
    rope_parameters: dict[str, Any] | None,
    max_position_embeddings: int | None,
    extension: str | None,
) -> tuple[PosEncConfig, bool]:
    """The configuration after the swap, and whether it differs from the one before.

    Raises:
        UserError: the scheme or an argument doesn't exist, or the extension doesn't fit.
    """
    before = original.config
    kind = position_embedding_type or before.position_embedding_type
    same = kind == before.position_embedding_type
    with user_errors():
        for name in scheme_names(kind):
            scheme_class(name)
    length = max_position_embeddings or before.max_position_embeddings
    if extension is not None:
        rope_parameters = _check_extension(extension, kind, original, length, rope_parameters)
    values = {
        key: value
        for key, value in before.to_dict().items()
        if not key.startswith("_")
        and key not in ("model_type", "transformers_version", "dtype", "auto_map", *ACTIVATION)
    }
    values |= {"position_embedding_type": kind, "max_position_embeddings": length}
    if not same:
        stay = {*scheme_names(kind)} & {*scheme_names(before.position_embedding_type)}
        turns = any(takes_rope_parameters(scheme_class(name)) for name in stay)
        values |= {"position_embedding_kwargs": None, "rope_parameters": before.rope_parameters if turns else None}
    if position_embedding_kwargs is not None:
        values["position_embedding_kwargs"] = position_embedding_kwargs
    elif not same:
        values["position_embedding_kwargs"] = _suitable(original, kind)
    if rope_parameters is not None:  # what trained angles depend on stays unless it is given, as in loading
        trained = values["rope_parameters"] or {}
        kept = {name: trained[name] for name in ROPE_COMMON if name in trained and name != "rope_type"}
        values["rope_parameters"] = {**kept, **rope_parameters}
    config = build_config(values)
    fields = ("position_embedding_type", "position_embedding_kwargs", "rope_parameters", "max_position_embeddings")
    return config, any(getattr(before, name) != getattr(config, name) for name in fields)


def _check_extension(
    extension: str, kind: str, original: PreTrainedModel, length: int, rope_parameters: dict[str, Any] | None
) -> dict[str, Any] | None:
    before, parts = original.config, parts_of(original)
    trained = before.max_position_embeddings
    if extension not in (*EXTENSIONS, *ROPE_EXTENSIONS):
        raise UserError(
            f"extension={extension!r} is unknown. Choose one of {', '.join(EXTENSIONS)} for tables, "
            f"{', '.join(ROPE_EXTENSIONS)} for RoPE."
        )
    if length <= trained:
        raise UserError(
            f"extension={extension!r} has no effect: max_position_embeddings={length} isn't more than the source's "
            f"{trained}. Leave it out, or raise max_position_embeddings."
        )
    has_tables = any(has_table(part) for name, part in parts.items() if name in scheme_names(kind))
    if extension in EXTENSIONS:
        if not has_tables:
            raise UserError(f"extension={extension!r} is for tables, and {kind!r} keeps none. Leave it out.")
        return rope_parameters
    if not any(takes_rope_parameters(scheme_class(name)) for name in scheme_names(kind)):
        way = f"Choose one of {', '.join(EXTENSIONS)}" if has_tables else "Leave it out"
        raise UserError(f"extension={extension!r} is for RoPE, not {kind!r}. {way}.")
    if rope_parameters is not None and "rope_type" in rope_parameters:
        raise UserError(f"extension={extension!r} and rope_parameters={rope_parameters!r} both scale. Give one.")
    kept = {**(before.rope_parameters or {}), **(rope_parameters or {})}
    scaled, factor = kept.get("rope_type", "default"), 1.0
    if scaled not in ("default", extension):
        raise UserError(
            f"extension={extension!r}: the source's RoPE is scaled by {scaled!r} already. Go on with "
            f"extension={scaled!r}, or extend the checkpoint that it was made from."
        )
    if scaled == extension:  # the trained angles are those of the source of the first extension
        factor = kept["factor"]
        if extension != "linear":
            factor, trained = 1.0, kept.get("original_max_position_embeddings", trained)
    return {
        **kept,
        "rope_type": extension,
        "factor": factor * length / trained,
        **({} if extension == "linear" else {"original_max_position_embeddings": trained}),
    }


def _suitable(original: PreTrainedModel, kind: str) -> dict[str, Any] | None:
    names, kept = scheme_names(kind), scheme_kwargs(original.config)
    table = added_vectors(parts_of(original), original.config)
    arguments: dict[str, dict[str, Any]] = {}
    for name in names:
        scheme = scheme_class(name)
        arguments[name] = kept.get(name, dict(scheme.conversion_kwargs))
        if name not in kept and table is not None and "rms" in own_arguments(scheme):
            # A factor on what is added: the old scheme's size.
            arguments[name]["rms"] = float(centred(table).square().mean().sqrt())
    if not any(arguments.values()):
        return None
    return arguments if len(names) > 1 else arguments[names[0]]


def swap(
    original: PreTrainedModel,
    config: PosEncConfig,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    extension: str | None = None,
    seed: int = 0,
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
        table = extension if extension in EXTENSIONS else "tile"
        carried = _carry_over(model, original.eval(), tokenizer, table)
    return model.eval(), carried


@torch.no_grad()
def _carry_over(
    model: PreTrainedModel, original: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, extension: str
) -> list[dict[str, Any]]:
    old, new = parts_of(original), parts_of(model)
    carried: list[dict[str, Any]] = []
    kept = [name for name in new if name in old]
    for name in kept:
        carried += copy_part(name, old[name], new[name], extension)
    gone = {name: part for name, part in old.items() if name not in kept}
    came = {name: part for name, part in new.items() if name not in kept}
    carried += _carry_vectors(model, old, gone, came, tokenizer)
    scale = _query_scale(old) / _query_scale(new)
    if scale != 1.0:
        for layer in base_of(model).layers:
            layer.attention.query.weight.mul_(scale)
            if layer.attention.query.bias is not None:
                layer.attention.query.bias.mul_(scale)
        carried.append({"what": "query weights undo the scheme's factor", "factor": scale})
    stays = [new[name] for name in kept]
    return carried + _carry_attention(model, original, gone, came, stays, tokenizer)


def _carry_vectors(
    model: PreTrainedModel, old: Parts, gone: Parts, came: Parts, tokenizer: PreTrainedTokenizerBase | None
) -> list[dict[str, Any]]:
    """Moves the vectors that the old schemes added into the new schemes and the embeddings."""
    carried: list[dict[str, Any]] = []
    table = added_vectors(gone, model.config)
    # The scheme with most weights comes last and takes what the others leave.
    added = sorted(
        ((name, part) for name, part in came.items() if is_additive(part)), key=lambda item: num_params(item[1])
    )
    if table is not None:
        left = table
        for name, part in added:
            carried.append({"scheme": name, "what": "fitted to the old vectors", **fit_vectors(part, left)})
            left = left - vectors_of(part, len(table))
        return [*carried, fold_constants(model, left, tokenizer)]
    for name, part in added:
        if not any(is_additive(other) for other in old.values()):
            what = "starts anew: the old scheme added no vectors"
        elif zero_output(part):
            what = "starts without effect, beside the vectors that stay"
        else:
            what = "comes on top of the vectors that stay: none of its weights scales it"
        carried.append({"scheme": name, "what": what})
    return carried


def _carry_attention(
    model: PreTrainedModel,
    original: PreTrainedModel,
    gone: Parts,
    came: Parts,
    stays: list[PositionScheme],
    tokenizer: PreTrainedTokenizerBase | None,
) -> list[dict[str, Any]]:
    """Fits new rotations and biases to the old schemes' effect on attention."""
    anew = [name for name, part in came.items() if getattr(part, "rotates_alone", False)]
    carried: list[dict[str, Any]] = [
        {"scheme": name, "what": "makes q and k anew: little of what heads looked for is left"}
        for name, part in {**gone, **came}.items()
        if getattr(part, "rotates_alone", False)
    ]
    turning = [part for name, part in came.items() if part.uses("rotate") and name not in anew]
    biased = {n: p for n, p in came.items() if p.uses("bias") or p.uses("layer_bias")}
    if not turning and not biased:
        return carried
    shorter = min(original.config, model.config, key=lambda config: config.max_position_embeddings)
    rows = random_tokens(shorter, tokenizer)
    # A scheme that stays acts on attention already, and depends on q and k as they are.
    is_tied = any(part.uses(hook) for part in stays for hook in ("rotate", "bias", "layer_bias"))
    if turning and not is_tied:
        for index, layer in enumerate(base_of(model).layers):
            choose_basis(layer.attention, turning[0], layer_input(original, rows, index), index)
        carried.append({"what": "q and k in a basis whose slow pairs hold most of q.k"})
    if not biased:
        return carried
    return carried + fit_biases(model, original, biased, rows, is_tied)


def _query_scale(parts: Parts) -> float:
    return math.prod(part.query_scale for part in parts.values())
