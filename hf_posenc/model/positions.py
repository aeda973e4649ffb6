"""How a scheme is registered, and how one is built from a config."""

import contextlib
import difflib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from .position_base import PositionScheme

POSITIONS: dict[str, type[PositionScheme]] = {}
"""Every scheme by its name: what `config.position_embedding_type` accepts. `configuration_posenc` fills it."""

# Constructor arguments that a config fills by name ...
_SIZES = ("hidden_size", "head_dim", "num_heads", "num_layers", "max_positions", "token_rms", "rope_parameters")
# ... and those that only make sense for a scheme used on plain tensors, or that have their own place in the config.
_ELSEWHERE = {
    "batch_first": "A model is batch-first; batch_first is for schemes used on plain tensors.",
    "rope_theta": "Give it as rope_parameters={'rope_theta': ...}.",
}
# These start at the root mean square of the token embeddings unless the config says otherwise.
_TOKEN_SCALED = ("rms", "std")


def register_position(name: str, scheme: type[PositionScheme]) -> None:
    """Adds a scheme to the table, so that `position_embedding_type=name` selects it in this process.

    Raises:
        ValueError: the name is taken by another class, isn't a plain word, or the class overrides no hook.
    """
    if not isinstance(scheme, type) or not hasattr(scheme, "uses"):
        raise ValueError(f"scheme={scheme!r} is no PositionScheme. Give the class, a subclass of PositionScheme.")
    if not name.isidentifier():
        raise ValueError(f"name={name!r} can't name a scheme. Use letters, digits and underscores; '+' joins schemes.")
    if name in POSITIONS and POSITIONS[name] is not scheme:
        raise ValueError(f"name={name!r} is taken by {POSITIONS[name].__name__}. Register under another name.")
    if scheme in POSITIONS.values() and POSITIONS.get(name) is not scheme:
        raise ValueError(
            f"{scheme.__name__} is registered as {scheme.name!r} already. Register a subclass as {name!r}."
        )
    hooks = ("embed", "encodings", "rotary", "rotate", "bias", "layer_bias")
    if not any(hook in vars(base) for base in scheme.__mro__[:-1] for hook in hooks if _is_own(base)):
        raise ValueError(f"{scheme.__name__} overrides no hook. Override one of {', '.join(hooks)}.")
    scheme.name = name
    POSITIONS[name] = scheme


def _is_own(base: type) -> bool:
    return not base.__module__.endswith("position_base")


def scheme_class(name: str) -> type[PositionScheme]:
    """The class of a scheme.

    Raises:
        ValueError: no scheme has this name; the message lists those that exist.
    """
    if name not in POSITIONS:
        near = difflib.get_close_matches(str(name), POSITIONS, n=1)
        renamed = {"absolute": "learned", "rotary": "rope", "sin": "sinusoidal", "nope": "none"}.get(str(name))
        meant = renamed or (near[0] if near else None)
        raise ValueError(
            f"position_embedding_type={name!r} is unknown. {f'Did you mean {meant!r}? ' if meant else ''}"
            f"Choose one of {', '.join(POSITIONS)}."
        )
    return POSITIONS[name]


def own_arguments(scheme: type[PositionScheme]) -> dict[str, Any]:
    """What `position_embedding_kwargs` may hold for a scheme, with the defaults."""
    parameters = inspect.signature(scheme.__init__).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in (*_SIZES, *_ELSEWHERE)
    }


def resolve_position_config(config: Any) -> None:
    """Writes every argument of the config's scheme back into it, and checks them by building the scheme."""
    scheme = scheme_class(config.position_embedding_type)
    accepted = own_arguments(scheme)
    given = dict(config.position_embedding_kwargs or {})
    _check_given(config, given, accepted)
    for name in _TOKEN_SCALED:
        if name in accepted and name not in given:
            given[name] = config.token_rms
    defaults = {name: value for name, value in accepted.items() if value is not inspect.Parameter.empty}
    config.position_embedding_kwargs = {**defaults, **given}
    if "rope_parameters" in inspect.signature(scheme.__init__).parameters:
        config.rope_parameters = scheme.complete_rope_parameters(  # type: ignore[attr-defined]
            config.rope_parameters, max_positions=config.max_position_embeddings
        )
    built = check_position_config(config)
    # "None: as wide as ..." is resolved by the constructor; what it chose is what must be recorded.
    for name, value in config.position_embedding_kwargs.items():
        if value is None and getattr(built, name, None) is not None:
            config.position_embedding_kwargs[name] = getattr(built, name)


def check_position_config(config: Any) -> PositionScheme:
    """Raises a ValueError if the config's scheme can't be built; allocates nothing."""
    if config.rope_parameters is not None and "rope" not in config.position_embedding_type.split("+"):
        raise ValueError(
            f"rope_parameters={config.rope_parameters!r} has no effect on "
            f"position_embedding_type={config.position_embedding_type!r}. Leave it out, or set it to None."
        )
    with torch.device("meta"):
        return make_position(config)


def make_position(config: Any) -> PositionScheme:
    """Builds the scheme that a config names.

    Raises:
        ValueError: the scheme or one of its arguments doesn't exist, or an argument is out of range.
    """
    scheme = scheme_class(config.position_embedding_type)
    given = dict(config.position_embedding_kwargs or {})
    accepted = own_arguments(scheme)
    _check_given(config, given, accepted)
    sizes = {
        # What is added to the embeddings is as wide as they are.
        "hidden_size": config.embedding_width if _embeds(scheme) else config.hidden_size,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "max_positions": config.max_position_embeddings,
        "token_rms": config.token_rms,
        "rope_parameters": config.rope_parameters,
    }
    wanted = inspect.signature(scheme.__init__).parameters
    try:
        return scheme(**{name: size for name, size in sizes.items() if name in wanted}, **given)
    except TypeError as error:
        raise ValueError(
            f"position_embedding_kwargs={given!r} doesn't fit {config.position_embedding_type!r}: {error}. "
            f"Its arguments and defaults are {accepted}."
        ) from error


def _embeds(scheme: type[PositionScheme]) -> bool:
    return any("embed" in vars(base) or "encodings" in vars(base) for base in scheme.__mro__ if _is_own(base))


def _check_given(config: Any, given: dict[str, Any], accepted: dict[str, Any]) -> None:
    for name, value in given.items():
        if name in accepted:
            if isinstance(accepted[name], bool) and not isinstance(value, bool):
                raise ValueError(f"position_embedding_kwargs[{name!r}]={value!r} is neither True nor False.")
            continue
        scheme = config.position_embedding_type
        if name in _SIZES:
            hint = "It follows from the sizes in the config."
        elif name in _ELSEWHERE:
            hint = _ELSEWHERE[name]
        else:
            near = difflib.get_close_matches(name, accepted, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            hint += (
                f"It takes {', '.join(accepted)}."
                if accepted
                else "It takes none; leave position_embedding_kwargs out."
            )
        raise ValueError(f"position_embedding_kwargs[{name!r}]={value!r} is no argument of {scheme!r}. {hint}")


@contextlib.contextmanager
def independent_generator() -> Iterator[None]:
    """Draws inside don't disturb those outside: with one seed, all weights but the scheme's equal across schemes."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
        seed = int(torch.randint(2**62, (), device="cpu"))
        # torch.manual_seed seeds every device, also one that isn't forked here because it isn't in use yet.
        if cuda:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield
