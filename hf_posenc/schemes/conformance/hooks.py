"""Checks of the protocol: arguments and results of a scheme's constructor and hooks, and whether they are used."""

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...model.modeling_posenc import PosEncModel
from ...model.scheme_base import PositionScheme
from ...model.scheme_factory import FROM_CONFIG, own_arguments
from ...model.unpadding import Tokens
from .case import (
    DIFFERENT,
    HOOKS,
    SEQUENCES,
    Case,
    Failure,
    Skip,
    describe,
    largest_difference,
    pad_batch,
    perturb,
    require_same,
    watch,
)

_UNUSUAL_SEED = 7_919_321
"""None that a hook would choose, so that one that seeds is seen."""

_OTHER_SIZES = {"num_hidden_layers": 3, "num_attention_heads": 2}
"""Of a second encoder: a scheme that was made for the first fails in it, or refuses it."""


def check_signature(case: Case) -> None:
    """Keyword-only sizes and own arguments with JSON defaults; hooks that take the encoder's arguments."""
    problems = []
    if case.declared_name is not None and not str(case.declared_name).isidentifier():
        problems.append(f"name={case.declared_name!r} can't name a scheme: use letters, digits and underscores")
    for scheme in case.classes:
        if scheme.__init__ is not nn.Module.__init__:
            problems += _bad_arguments(scheme)
        for hook in (*HOOKS, "init_weights"):
            takes = list(inspect.signature(getattr(PositionScheme, hook)).parameters)
            try:
                inspect.signature(getattr(scheme, hook)).bind(*takes)
            except TypeError as error:
                problems.append(f"{hook} doesn't take ({', '.join(takes)}): {error}")
    if problems:
        raise Failure("; ".join(problems) + ". PositionScheme says what its constructor and hooks take.")


def _bad_arguments(scheme: type[PositionScheme]) -> Iterator[str]:
    arguments = own_arguments(scheme)
    for name, parameter in itertools.islice(inspect.signature(scheme.__init__).parameters.items(), 1, None):
        if parameter.kind is not parameter.KEYWORD_ONLY:
            yield f"argument {name!r} isn't keyword-only, so that no config reaches it: write a * before it"
        elif name in FROM_CONFIG:
            continue
        elif parameter.default is parameter.empty:
            sizes = ", ".join(FROM_CONFIG)
            yield f"argument {name!r} is no size that a config knows ({sizes}) and has no default"
        else:
            try:
                kept = json.loads(json.dumps(arguments[name])) == arguments[name]
            except (TypeError, ValueError):
                kept = False
            if not kept:
                yield f"the default {name}={arguments[name]!r} doesn't survive a config.json: use what JSON holds"


def check_repeats(case: Case) -> None:
    """The same input and weights give the same output, and no hook changes its arguments or seeds random numbers."""
    model, new = (case.classifier().model for _ in range(2))
    for hook in HOOKS:
        setattr(model.position, hook, _without_changes(hook, getattr(model.position, hook)))
    ids, mask = pad_batch(case.sequences, "left")
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    torch.default_generator.manual_seed(_UNUSUAL_SEED)
    for model.config.unpad_inputs in (False, True):
        with torch.no_grad():
            first, again = (model(**batch).last_hidden_state for _ in range(2))
        cause = "In evaluation mode a hook may draw no random numbers, nor keep anything of one call for the next."
        require_same(again, first, "Hidden states of the same input twice", cause)
    _check_memory(model, new, batch)


def _check_memory(used: PosEncModel, new: PosEncModel, batch: dict[str, Tensor]) -> None:
    """A model that has evaluated and trained, and whose weights moved since, gives what a new one with them gives."""
    with torch.no_grad():
        before = used(**batch).last_hidden_state
    used.train()(**batch)
    perturb(used.position)
    new.load_state_dict(used.state_dict())
    with torch.no_grad():
        moved, expected = (model.eval()(**batch).last_hidden_state for model in (used, new))
    what = "Hidden states of a model that was used before, and of a new one with its weights"
    cause = "A hook keeps something of one call for the next, which no checkpoint has: compute it in each call."
    require_same(moved, expected, what, cause)
    difference = largest_difference(moved, before)
    if any(True for _ in used.position.parameters()) and not difference >= DIFFERENT:
        raise Failure(
            f"the scheme's weights are moved, and in evaluation hidden states change by {difference:.1e}, less than "
            f"{DIFFERENT:g}. A hook keeps, perhaps in a variable of its module, what it computed from earlier weights: "
            "compute it in each call. (Weights that act in training alone fail this check alone.)"
        )


def _without_changes(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)

    def call(*arguments: Any) -> Any:
        tensors = dict(_tensors(dict(zip(names, arguments, strict=False))))
        versions = {name: tensor._version for name, tensor in tensors.items()}
        seed = torch.initial_seed()
        result = function(*arguments)
        for name, tensor in tensors.items():
            if tensor._version != versions[name]:
                raise Failure(f"{hook} changes {name} in place, which others read, too. Compute a new tensor.")
        if torch.initial_seed() != seed:
            raise Failure(
                f"{hook} seeds PyTorch's random numbers, so that each step of a training draws the same dropout. Draw "
                "in init_weights what is to stay, or from a torch.Generator."
            )
        return result

    return call


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors among a hook's arguments and in its tokens, by name."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Tokens):
            yield from _tensors({f"{name}.{held}": tensor for held, tensor in vars(value).items()})


def check_shapes(case: Case) -> None:
    """Every hook returns the shape and dtype that the protocol gives, in float32 and bfloat16, and in other sizes."""
    for dtype in (torch.float32, torch.bfloat16):
        _check_encoder(case.classifier().model.to(dtype))
    try:
        other = case.classifier(**_OTHER_SIZES).model
    except ValueError as error:
        if error.__cause__ is None:  # it says what sizes it takes
            return
        raise
    try:
        _check_encoder(other)
    except Exception as error:
        sizes = ", ".join(f"{name}={size}" for name, size in _OTHER_SIZES.items())
        raise Failure(
            f"an encoder of another size ({sizes}) fails: {describe(error).rstrip('.')}. Compute every size from "
            "what the constructor is given: num_heads, head_dim, num_layers and hidden_size."
        ) from error


def _check_encoder(model: PosEncModel) -> None:
    watch(model.position, functools.partial(_check_shape, model.config.num_attention_heads))
    ids, mask = pad_batch(SEQUENCES, "left")
    for model.config.unpad_inputs in (True, False):
        for batch in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
            hidden = model(**batch).last_hidden_state
            if hidden.dtype != model.dtype or hidden.shape != (*ids.shape, model.config.hidden_size):
                raise Failure(f"the encoder gives {_form(hidden)} for {tuple(ids.shape)} tokens in {model.dtype}.")


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _check_shape(heads: int, hook: str, arguments: tuple[Any, ...], result: Any) -> None:
    if hook == "embed":
        _check_embed(arguments[0], result)
    elif hook == "rotary":
        _check_angles(result)
    elif hook != "rotate" and result is not None:  # of what rotate gives PyTorch's attention takes nothing else
        tokens = next(argument for argument in arguments if isinstance(argument, Tokens))
        _check_logits(hook, tokens.positions, heads, result)


def _check_embed(hidden_states: Tensor, result: Any) -> None:
    if _form(result) != _form(hidden_states):
        raise Failure(
            f"embed returns {_form(result)} for hidden states {_form(hidden_states)}. Give their shape and dtype "
            "back: hidden_states + encodings.to(hidden_states.dtype)."
        )


def _check_angles(state: Any) -> None:
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, Tensor) and part.dtype in (torch.bfloat16, torch.float16):
            raise Failure(f"rotary returns {_form(part)}. Angles must be float32: bfloat16 holds 8 bits of them.")


def _check_logits(hook: str, positions: Tensor, heads: int, result: Any) -> None:
    rows, length = positions.shape
    shapes = itertools.product((1, rows, len(SEQUENCES)), (1, heads), (length,), (length,))
    is_floating = isinstance(result, Tensor) and result.is_floating_point()
    if not is_floating or tuple(result.shape) not in shapes:
        raise Failure(
            f"{hook} returns {_form(result)} for {rows} rows of {length} places and {heads} heads. Give "
            "floating-point logits (1 or B, H or 1, S, S), with every axis: bias[:, None] adds one for the heads."
        )


def check_used(case: Case) -> None:
    """Every hook that the scheme overrides is called, and leaving it out changes the logits."""
    position = case.position
    if position.order_blind:
        raise Skip("the scheme declares order_blind: leaving it out may change nothing.")
    if position.uses("rotary") and not position.uses("rotate"):
        raise Failure("rotary is overridden and rotate isn't: nobody uses the state. Override rotate.")
    hooks = [hook for hook in HOOKS if hook != "rotary" and position.uses(hook)]
    if not hooks:
        raise Failure(f"the scheme uses no hook. Override one of {', '.join(HOOKS)}.")
    ids, mask = pad_batch(case.sequences)
    expected = case.classifier()(ids, attention_mask=mask).logits
    for hook in hooks:
        model = case.classifier()
        _leave_out(model.model.position, hook)
        difference = largest_difference(model(ids, attention_mask=mask).logits, expected)
        if not difference >= DIFFERENT:
            raise Failure(
                f"without {hook} the logits change by {difference:.1e}, less than {DIFFERENT:g}: it has no effect. "
                "So has a bias that is equal for all keys of a query (softmax), one number added to all entries of an "
                "embedding (LayerNorm), and a term multiplied by zero."
            )


def _leave_out(scheme: PositionScheme, hook: str) -> None:
    uses = scheme.uses
    scheme.uses = lambda name: name != hook and uses(name)  # type: ignore[method-assign,assignment]
    if hook == "embed":
        scheme.embed = lambda hidden_states, tokens: hidden_states  # type: ignore[method-assign]
