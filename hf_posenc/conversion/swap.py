"""Another scheme for trained weights: what the old one knew is carried over as far as it can be, without any text.

What is done, and why:

- **The mean of added positions stays.** A trained table isn't centred: its mean is a constant that every later layer
  has learned to expect. It moves into the token-type embedding (into the token embedding where there are no types), and
  what is special about position 0 into the token embedding of [CLS], which stands nowhere else.
- **Added -> added** (`sinusoidal`, `lspe`, `fourier`, `learned`): the new scheme is fitted to the old one's vectors.
- **RoPE** leaves q.k as it was where pairs turn slowly. Per head, q and k have a free choice of basis (q A, k A^-T give
  the same q.k); the directions with the most of q.k go to the slowest pairs, those with the least to the fastest.
- **Biases** (`t5`, `kerple`, `alibi` with learned slopes, ...) are fitted to what the old scheme did on average at each
  distance: on random tokens, the mean difference between log attention probabilities with it and without any. Where all
  layers share a bias, each layer's heads are first put in order of how local they are (which changes nothing else), so
  that the same slot means the same in all layers; `alibi`'s fixed slopes then meet the heads that they disturb least.
- **query_scale** of the new scheme is undone in the query's weights.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.configuration_posenc import PosEncConfig
from ..model.position_base import PositionScheme
from ..model.positions import given_arguments, scheme_names
from ..schemes.panels import one_text, rotated_units
from .loading import build_config

EXTENSIONS = ("tile", "interpolate", "hierarchical")
ROPE_EXTENSIONS = ("linear", "dynamic", "yarn")
_FITTED_LENGTH = 128
"""Positions below this make up nearly all of what sentence encoders see, and so of what is fitted."""

_SUITABLE: dict[str, dict[str, Any]] = {
    "t5": {"per_layer": True},
    "sinusoidal": {"learned_scale": True},
    "alibi": {"directional": True, "learned": True, "per_layer": True},  # the published don't tell left from right
}
"""Arguments that suit a conversion better than the scheme's defaults."""


def target_config(
    original: PreTrainedModel,
    *,
    position_embedding_type: str | None,
    position_embedding_kwargs: dict[str, Any] | None,
    rope_parameters: dict[str, Any] | None,
    max_position_embeddings: int | None,
    extension: str | None,
) -> tuple[PosEncConfig, bool]:
    """The configuration after the swap, and whether it differs from the one before.

    Raises:
        ValueError: the scheme or an argument doesn't exist, or the extension doesn't fit.
    """
    before = original.config
    kind = position_embedding_type or before.position_embedding_type
    same = kind == before.position_embedding_type
    length = max_position_embeddings or before.max_position_embeddings
    if extension is not None:
        rope_parameters = _check_extension(extension, kind, before, length, rope_parameters)
    values = {
        key: value
        for key, value in before.to_dict().items()
        if not key.startswith("_") and key not in ("model_type", "transformers_version", "dtype", "auto_map")
    }
    values |= {"position_embedding_type": kind, "max_position_embeddings": length}
    if not same:
        values |= {"position_embedding_kwargs": None, "rope_parameters": None}
    if position_embedding_kwargs is not None:
        values["position_embedding_kwargs"] = position_embedding_kwargs
    elif not same:
        values["position_embedding_kwargs"] = _suitable(original, kind)
    if rope_parameters is not None:
        values["rope_parameters"] = rope_parameters
    config = build_config(values)
    fields = ("position_embedding_type", "position_embedding_kwargs", "rope_parameters", "max_position_embeddings")
    return config, any(getattr(before, name) != getattr(config, name) for name in fields)


def _check_extension(
    extension: str, kind: str, before: Any, length: int, rope_parameters: dict[str, Any] | None
) -> dict[str, Any] | None:
    trained = before.max_position_embeddings
    if extension not in (*EXTENSIONS, *ROPE_EXTENSIONS):
        raise ValueError(
            f"extension={extension!r} is unknown. Choose one of {', '.join(EXTENSIONS)} for tables, "
            f"{', '.join(ROPE_EXTENSIONS)} for RoPE."
        )
    if length <= trained:
        raise ValueError(
            f"extension={extension!r} has no effect: max_position_embeddings={length} isn't more than the source's "
            f"{trained}. Leave it out, or raise max_position_embeddings."
        )
    if extension in EXTENSIONS:
        if not {"learned", "tupe"} & set(scheme_names(kind)):
            raise ValueError(f"extension={extension!r} is for tables, and {kind!r} has none. Leave it out.")
        return rope_parameters
    if "rope" not in scheme_names(kind):
        raise ValueError(f"extension={extension!r} is for RoPE, not {kind!r}. Choose one of {', '.join(EXTENSIONS)}.")
    if rope_parameters is not None and "rope_type" in rope_parameters:
        raise ValueError(f"extension={extension!r} and rope_parameters={rope_parameters!r} both scale. Give one.")
    kept = {**(before.rope_parameters or {}), **(rope_parameters or {})}
    scaled, factor = kept.get("rope_type", "default"), 1.0
    if scaled not in ("default", extension):
        raise ValueError(
            f"extension={extension!r}: the source's RoPE is scaled by {scaled!r} already. Go on with "
            f"extension={scaled!r}, or extend the checkpoint that it was made from."
        )
    if scaled == extension:  # the angles that were trained are those of the first extension's source
        factor = kept["factor"]
        if extension != "linear":
            factor, trained = 1.0, kept.get("original_max_position_embeddings", trained)
    theta = {key: kept[key] for key in ("rope_theta", "partial_rotary_factor") if key in kept}
    return {
        **theta,
        "rope_type": extension,
        "factor": factor * length / trained,
        **({} if extension == "linear" else {"original_max_position_embeddings": trained}),
    }


def _suitable(original: PreTrainedModel, kind: str) -> dict[str, Any] | None:
    names = scheme_names(kind)
    table = _added_vectors(parts_of(original), original.config)
    given: dict[str, dict[str, Any]] = {}
    kept = given_arguments(original.config)
    for name in names:
        if name in kept:
            given[name] = kept[name]
            continue
        given[name] = dict(_SUITABLE.get(name, {}))
        if name in ("sinusoidal", "lspe", "fourier") and table is not None:
            # A factor on what is added: of the size that the old scheme had.
            given[name]["rms"] = float(_centred(table).square().mean().sqrt())
    if not any(given.values()):
        return None
    return given if len(names) > 1 else given[names[0]]


def _base(model: PreTrainedModel) -> Any:
    return model.base_model


def parts_of(model: PreTrainedModel) -> dict[str, PositionScheme]:
    """The schemes of a model by name."""
    scheme = _base(model).position
    names = scheme_names(model.config.position_embedding_type)
    return {names[0]: scheme} if len(names) == 1 else {name: getattr(scheme, name) for name in names}


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
    for name in new.keys() & old.keys():
        carried += _copy_part(name, old[name], new[name], extension)
    gone = {name: part for name, part in old.items() if name not in new}
    came = {name: part for name, part in new.items() if name not in old}
    table = _added_vectors(gone, model.config)
    # What has most freedom comes last, and takes what the others leave.
    added = sorted(((name, part) for name, part in came.items() if _adds(part)), key=lambda one: _freedom(one[1]))
    if table is not None:
        left = table
        for name, part in added:
            carried.append({"scheme": name, "what": "fitted to the old vectors", **fit_vectors(part, left)})
            left = left - _vectors(part, len(table))
        carried.append(_fold_constants(model, left, tokenizer))
    for name, part in added if table is None else ():
        if any(_adds(other) for other in old.values()):
            _silence(part)
            carried.append({"scheme": name, "what": "starts without effect, beside the vectors that stay"})
        else:
            carried.append({"scheme": name, "what": "starts anew: the old scheme added no vectors"})
    scale = _query_scale(old) / _query_scale(new)
    if scale != 1.0:
        for layer in _base(model).layers:
            layer.attention.query.weight.mul_(scale)
            layer.attention.query.bias.mul_(scale)
        carried.append({"what": "query weights undo the scheme's factor", "factor": scale})
    if not gone and not came:
        return carried
    turning = [part for part in came.values() if part.uses("rotate")]
    biased = {n: p for n, p in came.items() if p.uses("bias") or p.uses("layer_bias")}
    if not turning and not biased:
        return carried
    shorter = min(original.config, model.config, key=lambda config: config.max_position_embeddings)
    rows = _random_rows(shorter, tokenizer)
    hooks = ("rotate", "bias", "layer_bias")
    if any(part.uses(hook) for name, part in new.items() if name in old for hook in hooks):
        # What stays tells positions in attention already, and is tied to q and k as they are.
        return carried + _fit_biases(model, original, biased, rows, is_tied=True)
    if turning:
        for index, layer in enumerate(_base(model).layers):
            _choose_basis(layer.attention, turning[0], _layer_input(original, rows, index), index)
        carried.append({"what": "q and k in a basis whose slow pairs hold most of q.k"})
    if biased:
        carried += _fit_biases(model, original, biased, rows)
    return carried


# Tables --------------------------------------------------------------------------------------------------------------


def extended_table(table: Tensor, length: int, how: str) -> Tensor:
    """A table of positions for another number of them: (P, D) -> (length, D).

    Fewer: the first ones. More, by `how`: `tile`, the rows from 1 on begin anew (row 0 is [CLS]'s alone), so that texts
    of up to P tokens stay as they were; `interpolate`, the rows are stretched, so that every row but the first changes;
    `hierarchical`, a row is a mixture of two of the old ones, a u_i + (1 - a) u_j for p = i P + j with a = 0.4 and
    u = (E - a E[0]) / (1 - a), which leaves the first P as they were and makes all P^2 differ (Su 2020,
    https://kexue.fm/archives/7947).
    """
    old = len(table)
    if length <= old:
        return table[:length].clone()
    places = torch.arange(length)
    if how == "tile":
        return table[torch.where(places < old, places, 1 + (places - 1) % max(old - 1, 1))]
    if how == "interpolate":
        at = places.double() * (old - 1) / (length - 1)
        low = at.floor().long().clamp(max=old - 2)
        share = (at - low).to(table.dtype).unsqueeze(-1)
        return table[low] * (1 - share) + table[low + 1] * share
    if length > old**2:
        raise ValueError(f"extension='hierarchical' reaches {old**2} positions from {old}, not {length}. Use 'tile'.")
    a = 0.4
    base = (table - a * table[0]) / (1 - a)
    return a * base[places // old] + (1 - a) * base[places % old]


def _copy_part(name: str, old: PositionScheme, new: PositionScheme, extension: str) -> list[dict[str, Any]]:
    """The same scheme: its weights, tables with another number of positions."""
    state, carried = {}, []
    before, after = old.max_length, new.max_length
    expected = new.state_dict()
    for key, value in old.state_dict().items():
        if key not in expected:
            raise ValueError(
                f"The source's {name!r} has {key!r}, which it doesn't have with the new arguments. Keep its "
                "position_embedding_kwargs."
            )
        wanted = expected[key]
        if wanted.shape == value.shape:
            state[key] = value
        elif before and after and value.shape[0] == before and wanted.shape[0] == after:
            state[key] = extended_table(value, after, extension)
            how = extension if after > before else "the first ones"
            carried.append({"scheme": name, "what": f"{before} positions -> {after}", "how": how})
        elif before and after and value.shape[0] == 2 * before - 1 and wanted.shape[0] == 2 * after - 1:
            # A vector for each distance: farther ones get the farthest.
            at = torch.arange(-(after - 1), after).clamp(-(before - 1), before - 1) + before - 1
            state[key] = value[at]
            carried.append({"scheme": name, "what": f"{key}: distances past {before - 1} are as {before - 1}"})
        else:
            raise ValueError(
                f"The source's {name!r} has {key!r} of shape {tuple(value.shape)}, the new arguments ask for "
                f"{tuple(wanted.shape)}. Keep its position_embedding_kwargs."
            )
    new.load_state_dict(state)
    return carried


# Added vectors -------------------------------------------------------------------------------------------------------


def _adds(part: PositionScheme) -> bool:
    return hasattr(part, "encodings") and getattr(part, "applies_to", "positions") == "positions"


def _freedom(part: PositionScheme) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def _silence(part: PositionScheme) -> None:
    """Nothing is added, and all of it can be learned."""
    last = getattr(part, "down", None)
    for name in ("alpha", "embedding"):
        last = last or getattr(part, name, None)
    assert last is not None, part.name
    for parameter in last.parameters():
        parameter.zero_()


def _vectors(part: PositionScheme, length: int) -> Tensor:
    return part.encodings(torch.arange(length)).float()  # type: ignore[operator]


def _added_vectors(parts: dict[str, PositionScheme], config: Any) -> Tensor | None:
    """What the schemes add to the embeddings at each position, (P, D); None if nothing."""
    found = [part for part in parts.values() if _adds(part)]
    if not found:
        return None
    length = min([part.max_length or config.max_position_embeddings for part in found])
    with torch.no_grad():
        return torch.stack([_vectors(part, length) for part in found]).sum(0)


def _importance(length: int) -> Tensor:
    """How much a position counts in a fit: near ones more, for every text has them."""
    return 1 / (1 + torch.arange(length) / _FITTED_LENGTH)


def _mean_vector(vectors: Tensor) -> Tensor:
    """The mean over the positions that texts have, without the first one, which is [CLS]'s."""
    return vectors[1:_FITTED_LENGTH].mean(0) if len(vectors) > 1 else vectors[0]


def _centred(vectors: Tensor) -> Tensor:
    return vectors[1:] - _mean_vector(vectors) if len(vectors) > 1 else vectors


def _r2(found: Tensor, wanted: Tensor, weight: Tensor) -> float:
    weight = weight / weight.sum()
    mean = (weight[:, None] * wanted).sum(0)
    left = (weight[:, None] * (wanted - found).square()).sum()
    return 1 - float(left / (weight[:, None] * (wanted - mean).square()).sum().clamp(min=1e-30))


def fit_vectors(part: PositionScheme, table: Tensor, steps: int = 300) -> dict[str, float]:
    """Fits what a scheme adds to given vectors (P, D), P its first positions; returns R^2, up to a constant.

    A table takes the vectors themselves. A network is fitted by least squares in its last layer, then as a whole by
    Adam, kept if that is better; a scale in closed form.
    """
    length = len(table)
    weight = _importance(length)
    if part.name == "learned":
        assert part.max_length is not None
        rows = extended_table(table, part.max_length, "tile")
        part.embedding.weight.copy_(rows)  # type: ignore[union-attr, operator]
        return {"r2": 1.0}
    wanted = table - _mean_vector(table)
    down = getattr(part, "down", None)
    if isinstance(down, nn.Linear):
        _least_squares(part, down, wanted, weight)
    alpha = getattr(part, "alpha", None)
    if isinstance(alpha, nn.Embedding):
        alpha.weight.fill_(1.0)
        now = _vectors(part, length)
        best = float((weight[:, None] * now * wanted).sum() / (weight[:, None] * now * now).sum())
        fitted = _r2(best * now, wanted, weight)
        # Fixed sines point elsewhere than the old table, so the best factor is about 0, with which the model would be
        # blind to order. They start at the old table's size instead.
        if fitted > 0.5:
            alpha.weight.fill_(best)
        return {"r2": fitted, "best_factor": best, "factor": float(alpha.weight)}
    if steps and any(True for _ in part.parameters()):
        _descend(part, lambda: _vectors(part, length), wanted, weight, steps)
    found = _vectors(part, length)
    return {"r2": _r2(found - _mean_vector(found), wanted, weight)}


_RIDGE = {"lspe": 0.1}
"""All of its sigmoids are positive and many alike. Without a ridge of this size their weights are fifty times larger
and cancel each other: the fit is better by a hair, and training overturns all positions in its first steps."""


def _least_squares(part: PositionScheme, down: nn.Linear, wanted: Tensor, weight: Tensor) -> None:
    inputs: list[Tensor] = []
    handle = down.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    found = _vectors(part, len(wanted))
    handle.remove()
    hidden = inputs[0].double()
    factor = getattr(part, "scale", 1.0)
    mean = (weight[:, None] * hidden).sum(0) / weight.sum()
    root = weight.double().sqrt()[:, None]
    a = (hidden - mean) * root
    b = (wanted / factor).double() * root
    gram = a.T @ a
    gram += _RIDGE.get(part.name, 1e-6) * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    solution = torch.linalg.solve(gram, a.T @ b)
    down.weight.copy_(solution.T)
    down.bias.copy_(-(mean @ solution))
    assert found.shape == wanted.shape


def _descend(
    part: nn.Module, function: Callable[[], Tensor], wanted: Tensor, weight: Tensor, steps: int, lr: float = 3e-3
) -> None:
    """Adam on a scheme's weights against given numbers; the best weights seen are kept."""
    weight = weight / weight.sum()
    parameters = [p for p in part.parameters() if p.requires_grad]
    best, kept = math.inf, [p.detach().clone() for p in parameters]
    size = wanted.square().mean().clamp(min=1e-6)
    with torch.enable_grad():
        optimizer = torch.optim.Adam(parameters, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            loss = (weight.view(-1, *[1] * (wanted.dim() - 1)) * (function() - wanted).square()).sum() / size
            if loss.item() < best:
                best, kept = loss.item(), [p.detach().clone() for p in parameters]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for parameter, value in zip(parameters, kept, strict=True):
        parameter.detach().copy_(value)
        parameter.grad = None


def _fold_constants(model: PreTrainedModel, left: Tensor, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """Moves the mean of what the new scheme doesn't add into embeddings, and what is special about position 0."""
    embeddings = _base(model).embeddings
    mean = _mean_vector(left)
    words = embeddings.word_embeddings.weight
    first = left[0] - mean
    cls = None if tokenizer is None else tokenizer.cls_token_id
    if cls is not None and cls < len(words):
        words[cls] += first / embeddings.scale
    if embeddings.token_type_embeddings is not None:
        embeddings.token_type_embeddings.weight.add_(mean)
        where = "token-type embedding"
    else:
        words.add_(mean / embeddings.scale)
        where = "token embedding"
    line = {"what": f"the old vectors' mean is in the {where}", "norm": float(mean.norm())}
    if cls is not None:
        line["position 0"] = "in the embedding of [CLS]"
    return line


# Attention -----------------------------------------------------------------------------------------------------------


def _query_scale(parts: dict[str, PositionScheme]) -> float:
    return math.prod(part.query_scale for part in parts.values())


def _random_rows(config: Any, tokenizer: PreTrainedTokenizerBase | None, rows: int = 32, length: int = 48) -> Tensor:
    """Random ordinary tokens between the special ones: (rows, length)."""
    length = min(length, config.max_position_embeddings)
    special = set() if tokenizer is None else {i for i in tokenizer.all_special_ids if i < config.vocab_size}
    ordinary = torch.tensor([i for i in range(config.vocab_size) if i not in special and i != config.pad_token_id])
    ids = ordinary[torch.randint(len(ordinary), (rows, length))]
    if tokenizer is not None and length > 2:
        if tokenizer.cls_token_id is not None:
            ids[:, 0] = tokenizer.cls_token_id
        if tokenizer.sep_token_id is not None:
            ids[:, -1] = tokenizer.sep_token_id
    return ids


def _layer_input(model: PreTrainedModel, rows: Tensor, index: int) -> Tensor:
    """What a layer's attention reads: (rows, length, D)."""
    hidden = _base(model)(rows, output_hidden_states=True).hidden_states[index]
    layer = _base(model).layers[index]
    return layer.attention_norm(hidden) if layer.pre_norm else hidden


def _turning_order(turned: Tensor) -> Tensor:
    """A head's dimensions from slow to fast, pairs together, from what `rotate` makes of unit vectors at position 1."""
    head_dim = len(turned)
    cosine = turned.diagonal()
    sine = (turned - torch.diag(cosine)).abs()
    partner = torch.where(sine.amax(-1) > 1e-9, sine.argmax(-1), torch.arange(head_dim))
    order: list[int] = []
    for place in cosine.argsort(descending=True, stable=True).tolist():
        if place not in order:
            order.append(place)
            if int(partner[place]) not in order:
                order.append(int(partner[place]))
    return torch.tensor(order)


def _choose_basis(attention: Any, part: PositionScheme, inputs: Tensor, layer: int) -> None:
    """q A and k A^-T per head, such that the directions that hold most of q.k turn slowest; q.k itself is unchanged."""
    size = attention.head_dim
    heads = attention.query.out_features // size
    turned = rotated_units(part, heads, size, 2, layer)[:, 1]
    orders = [_turning_order(head) for head in turned.expand(heads, -1, -1)]
    x = inputs.flatten(0, 1).double()
    x = torch.cat((x, x.new_ones(len(x), 1)), -1)  # the biases are part of q and k
    second = x.T @ x / len(x)
    values, vectors = torch.linalg.eigh(second)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    full = [
        torch.cat((linear.weight, linear.bias[:, None]), -1).double().unflatten(0, (-1, size))
        for linear in (attention.query, attention.key)
    ]
    for head in range(full[0].shape[0]):
        q, k = full[0][head], full[1][head]  # (d, D + 1)
        # (q root)^T (k root) has rank d: its singular vectors, by two thin decompositions.
        _, qr = torch.linalg.qr((q @ root).T)
        _, kr = torch.linalg.qr((k @ root).T)
        u, s, vh = torch.linalg.svd(qr @ kr.T)
        if s[-1] < 1e-9 * s[0]:
            continue
        # q' root = S^1/2 U^T Qq^T, so q' = A q with A = S^1/2 U^T qr^-T.
        a = s.sqrt()[:, None] * torch.linalg.solve(qr, u).T
        b = s.sqrt()[:, None] * torch.linalg.solve(kr, vh.T).T
        place = torch.empty_like(q)
        place[orders[head]] = a @ q
        full[0][head] = place
        place = torch.empty_like(k)
        place[orders[head]] = b @ k
        full[1][head] = place
    for linear, matrix in zip((attention.query, attention.key), full, strict=True):
        flat = matrix.flatten(0, 1).to(linear.weight.dtype)
        linear.weight.copy_(flat[:, :-1])
        linear.bias.copy_(flat[:, -1])


def _fit_biases(
    model: PreTrainedModel,
    original: PreTrainedModel,
    biased: dict[str, PositionScheme],
    rows: Tensor,
    is_tied: bool = False,
) -> list[dict[str, Any]]:
    """Fits biases to the old scheme's mean effect at each distance; see the module.

    Several take turns: each is fitted to what those before it leave. Where the old scheme stays (`is_tied`), or had no
    effect, they are brought as near to 0 as they can be.
    """
    lines: list[dict[str, Any]] = []
    effect = _effect_by_distance(model, original, rows)  # (L, H, 2 R + 1)
    if is_tied:
        effect = torch.zeros_like(effect)
    is_silent = bool(effect.square().mean() < _NO_EFFECT)
    if is_silent:
        effect = torch.zeros_like(effect)
    reach = (effect.shape[-1] - 1) // 2
    distance = torch.arange(-reach, reach + 1)
    weight = (rows.shape[1] - distance.abs()).float()
    # Heads are put in order once, and before anything is fitted to them.
    for number, (name, part) in enumerate(sorted(biased.items(), key=lambda one: not one[1].uses("bias"))):
        shared = part.uses("bias")
        if shared and not is_silent and number == 0:
            order = _slots(part, effect, weight)
            for index, layer in enumerate(_base(model).layers):
                _reorder_heads(layer.attention, order[index])
                effect[index] = effect[index, order[index]]
            lines.append({"scheme": name, "what": "heads of all layers in one order, by their old effect"})
        if not any(p.requires_grad for p in part.parameters()):
            lines += [{"scheme": name, "what": "its fixed biases come on top"}] * is_silent
            effect = effect - _bias_by_distance(part, torch.arange(reach + 1)[None], None, weight).permute(1, 2, 0)
            continue
        if shared and part.shift_invariant is False:  # positions themselves count: all of them must be fitted
            r2 = _fit_grid(part, effect.mean(0), model.config.max_position_embeddings)
            lines.append({"scheme": name, **_fitted(r2, is_silent)})
            effect = effect - effect.mean(0)
            continue
        target = effect.mean(0, keepdim=True) if shared else effect
        positions = torch.arange(reach + 1)[None]
        queries = None if shared else _sample_queries(model, original, rows, reach + 1)
        bias = functools.partial(_bias_by_distance, part, positions, queries, weight)
        with torch.no_grad():
            wanted = target.permute(2, 0, 1).repeat_interleave(len(bias()[0]) // len(target), dim=1)
        _descend(part, bias, wanted, weight, steps=300, lr=3e-2)
        left = (weight[:, None, None] * (bias() - wanted).square()).sum()
        r2 = 1 - float(left / (weight[:, None, None] * wanted.square()).sum().clamp(min=1e-30))
        lines.append({"scheme": name, **_fitted(r2, is_silent)})
        with torch.no_grad():
            effect = effect - bias().unflatten(1, (len(target), -1)).mean(2).permute(1, 2, 0)
    return lines


_NO_EFFECT = 1e-8


def _fitted(r2: float, is_silent: bool) -> dict[str, Any]:
    if is_silent:
        return {"what": "starts as nearly without effect as it can"}
    return {"what": "fitted to the old effect by distance", "r2": r2}


def _fit_grid(part: PositionScheme, effect: Tensor, length: int, steps: int = 150) -> float:
    """Fits a bias that sees positions, not distances alone, on the grid of up to 512 of them; returns R^2."""
    positions = torch.arange(min(length, part.max_length or length, 512))[None]
    reach = (effect.shape[-1] - 1) // 2
    distance = (positions - positions.T).clamp(-reach, reach) + reach
    wanted = effect[:, distance]  # (H, S, S)
    wanted = wanted - wanted.mean(-1, keepdim=True)

    def bias() -> Tensor:
        grid = part.ask("bias", positions, positions == 0, **one_text(positions))
        assert grid is not None
        return grid[0] - grid[0].mean(-1, keepdim=True)

    _descend(part, bias, wanted, torch.ones(len(wanted)), steps, lr=1e-2)
    return 1 - float((bias() - wanted).square().sum() / wanted.square().sum().clamp(min=1e-30))


def _bias_by_distance(
    part: PositionScheme, positions: Tensor, queries: tuple[Tensor, Tensor] | None, weight: Tensor
) -> Tensor:
    """A scheme's biases without their mean: (2 R + 1, L x samples, H), or (2 R + 1, 1, H) where `queries` is None.

    H is 1 for a scheme that tells all heads the same.
    """
    if queries is None:
        grids = [part.ask("bias", positions, positions == 0, **one_text(positions))]
    else:
        grids = []
        for layer, (q, k) in enumerate(zip(*queries, strict=True)):
            extras: dict[str, Any] = {
                "x": functools.partial(lambda q: q.transpose(1, 2).flatten(-2), q),
                **one_text(positions),
            }
            grids.append(part.ask("layer_bias", q, k, positions, layer, **extras))
    found = torch.cat([grid for grid in grids if grid is not None])  # (L x samples, H or 1, S, S)
    line = torch.cat((found[:, :, -1, :-1], found[:, :, 0, :]), -1)
    return (line - _mean(line, weight).unsqueeze(-1)).permute(2, 0, 1)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum(-1) / weight.sum()


def _slots(part: PositionScheme, effect: Tensor, weight: Tensor) -> Tensor:
    """Which head of each layer stands where, for a bias that all layers share: (L, H).

    A bias that can't be trained meets the heads whose old effect it resembles most. One that can will be fitted to the
    mean effect of the heads at each place: they stand in order of how local they are, as it does.
    """
    own = _bias_by_distance(part, torch.arange(len(weight) // 2 + 1)[None], None, weight)[:, 0].T
    own = own.expand(effect.shape[1], -1)  # (place, 2 R + 1)
    if not any(p.requires_grad for p in part.parameters()):
        cost = (weight * (own[:, None] - effect[:, None]).square()).sum(-1)  # (L, place, head)
        return torch.stack([torch.from_numpy(linear_sum_assignment(layer)[1]) for layer in cost.double().numpy()])
    away = (torch.arange(len(weight)) - len(weight) // 2).abs().float()
    away = weight * (_mean(away, weight) - away)
    places = (own * away).sum(-1).argsort(descending=True, stable=True)
    order = torch.empty(effect.shape[:2], dtype=torch.long)
    order[:, places] = (effect * away).sum(-1).argsort(descending=True, stable=True)
    return order


def _reorder_heads(attention: Any, heads: Tensor) -> None:
    """Head `heads[i]` becomes head i: what attention computes stays the same."""
    size = attention.head_dim
    rows = (heads[:, None] * size + torch.arange(size)).flatten()
    for linear in (attention.query, attention.key, attention.value):
        linear.weight.copy_(linear.weight[rows])
        linear.bias.copy_(linear.bias[rows])
    attention.dense.weight.copy_(attention.dense.weight[:, rows])


def _effect_by_distance(model: PreTrainedModel, original: PreTrainedModel, rows: Tensor) -> Tensor:
    """Mean difference of log attention probabilities, original minus a model without the new biases: (L, H, 2R + 1)."""
    with _without_positions(model):
        plain = _base(model)(rows, output_attentions=True).attentions
    theirs = _base(original)(rows, output_attentions=True).attentions
    inner = slice(1, -1) if rows.shape[1] > 4 else slice(None)  # without [CLS] and [SEP]
    size = len(range(rows.shape[1])[inner])
    index = torch.arange(size)
    distance = index[None, :] - index[:, None] + size - 1
    lines = []
    for with_, without in zip(theirs, plain, strict=True):
        change = (with_.clamp(min=1e-9).log() - without.clamp(min=1e-9).log())[:, :, inner, inner]
        change = (change - change.mean(-1, keepdim=True)).mean(0)  # (H, S, S)
        total = change.new_zeros(change.shape[0], 2 * size - 1)
        total.index_add_(1, distance.flatten(), change.flatten(1))
        count = torch.zeros(2 * size - 1).index_add_(0, distance.flatten(), torch.ones(size * size))
        lines.append(total / count)
    effect = torch.stack(lines)
    # Far distances are seen in few places: half of the length is what can be trusted.
    reach = max(1, size // 2)
    effect = effect[..., size - 1 - reach : size + reach]
    weight = (rows.shape[1] - torch.arange(-reach, reach + 1).abs()).float()
    return effect - _mean(effect, weight).unsqueeze(-1)


class _without_positions:
    """Takes a model's biases and rotations away for a while; what is added to embeddings stays."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.base = _base(model)
        self.scheme = self.base.position

    def __enter__(self) -> None:
        added = PositionScheme()
        embed = self.scheme.embed
        added.embed = lambda x, positions: embed(x, positions)  # type: ignore[method-assign, assignment]
        added.query_scale = self.scheme.query_scale
        self.base.position = added

    def __exit__(self, *_: object) -> None:
        self.base.position = self.scheme


def _sample_queries(
    model: PreTrainedModel, original: PreTrainedModel, rows: Tensor, length: int, count: int = 24
) -> tuple[Tensor, Tensor]:
    """Each layer's query and key at some tokens, the same one at every place: (L, count, H, length, d) both.

    For biases that depend on what the token is: fitted to one mean token, they would be noise at every other.
    """
    found: list[list[Tensor]] = [[], []]
    hidden = _base(original)(rows, output_hidden_states=True).hidden_states
    for index, layer in enumerate(_base(model).layers):
        x = layer.attention_norm(hidden[index]) if layer.pre_norm else hidden[index]
        x = x.flatten(0, 1)
        x = x[torch.randint(len(x), (count,))]
        for place, linear in enumerate((layer.attention.query, layer.attention.key)):
            heads = linear(x).view(count, -1, 1, layer.attention.head_dim)
            found[place].append(heads.expand(-1, -1, length, -1))
    return torch.stack(found[0]), torch.stack(found[1])


__all__ = ["EXTENSIONS", "ROPE_EXTENSIONS", "extended_table", "fit_vectors", "swap", "target_config"]
