"""Builds the positional scheme that a config names."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from .scheme_base import PositionScheme
from .scheme_table import SCHEMES

FROM_CONFIG = ("hidden_size", "head_dim", "num_heads", "num_layers", "max_positions", "token_rms", "rope_parameters")
"""Constructor arguments that a config fills by name."""


def own_arguments(scheme: type[PositionScheme]) -> dict[str, Any]:
    """The keys that `position_embedding_kwargs` may hold for a scheme, with the defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(scheme.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in FROM_CONFIG
    }


def scheme_kwargs(config: Any) -> dict[str, dict[str, Any]]:
    """`position_embedding_kwargs` by scheme: those of a combination are keyed by its parts.

    Raises:
        ValueError: a key isn't a part, or its value isn't a dict.
    """
    names = config.position_embedding_type.split("+")
    kwargs = dict(config.position_embedding_kwargs or {})
    if len(names) == 1:
        return {names[0]: kwargs}
    for key, value in kwargs.items():
        if key not in names or not isinstance(value, dict):
            raise ValueError(
                f"position_embedding_kwargs={{{key!r}: {value!r}}} doesn't fit {config.position_embedding_type!r}. The "
                f"arguments of a combination are given by scheme: {{{names[0]!r}: {{...}}, {names[1]!r}: {{...}}}}."
            )
    return {name: dict(kwargs.get(name, {})) for name in names}


def rescaled(trained: Any, given: Any) -> Any:
    """The `rope_parameters` of a checkpoint that is loaded with others: a new scaling keeps the angles of training."""
    if given is not None and not isinstance(given, dict):
        return given
    of_angles = ("rope_theta", "partial_rotary_factor", "local_rope_theta", "global_attn_every_n_layers")
    kept = {key: value for key, value in (trained or {}).items() if key in of_angles}
    kept |= {key: value for key, value in (given or {}).items() if value is not None}
    return kept or None


def make_scheme(config: Any) -> PositionScheme:
    """Builds what a config names: one scheme, or several in one.

    Args:
        config: a `PosEncConfig`. All arguments that the scheme was built with, defaults too, are written back into it,
            so that a later change of a default can't alter an old checkpoint.

    Raises:
        ValueError: a scheme or one of its arguments doesn't exist, or an argument is out of range.
    """
    kwargs, whole = scheme_kwargs(config), config.position_embedding_type
    # The table is first: the config may be another checkpoint's, with another scheme of the same name.
    schemes = {name: SCHEMES.get(name) or config.support.find_scheme(config, name) for name in (*kwargs, whole)}
    parts = {name: _build(config, name, schemes[name], kwargs[name]) for name in kwargs}
    if len(parts) == 1:
        config.position_embedding_kwargs = next(iter(kwargs.values()))
        return next(iter(parts.values()))
    config.position_embedding_kwargs = kwargs
    return schemes[whole](parts)


def _build(config: Any, name: str, scheme: type[PositionScheme], kwargs: dict[str, Any]) -> PositionScheme:
    """Builds one scheme, and completes its arguments in `kwargs` and `config.rope_parameters`."""
    accepted = own_arguments(scheme)
    defaults = {key: value for key, value in accepted.items() if value is not inspect.Parameter.empty}
    scaled = {key: config.token_rms for key in accepted if key == getattr(scheme, "token_scaled", None)}
    kwargs.update({**defaults, **scaled, **kwargs})
    sizes = sizes_of(config, scheme)
    try:
        built = scheme(**sizes, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"position_embedding_kwargs={kwargs!r} doesn't fit {name!r}: {error}. "
            f"Its arguments and defaults are {accepted}; a config fills {', '.join(FROM_CONFIG)}."
        ) from error
    built.name = name  # type: ignore[misc]  # its class may have none, or the same class several
    config.support.check_built(config, built)
    # The constructor resolves "None: as wide as ..."; a weight, a child or a method of that name is no value.
    resolved = {key: getattr(built, key, None) for key, value in kwargs.items() if value is None}
    kwargs.update({key: value for key, value in resolved.items() if isinstance(value, (int, float, str, list, dict))})
    if "rope_parameters" in sizes:
        config.rope_parameters = getattr(built, "rope_parameters", config.rope_parameters)
    return built


def sizes_of(config: Any, scheme: type[PositionScheme]) -> dict[str, Any]:
    """The arguments of a constructor that a config fills."""
    # A stranger's scheme may inherit from another copy of the protocol's file, whose own `embed` adds nothing.
    adds = any("embed" in vars(base) for base in scheme.__mro__ if not base.__module__.endswith("scheme_base"))
    sizes = {
        "hidden_size": config.embedding_width if adds else config.hidden_size,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "max_positions": config.max_position_embeddings,
        "token_rms": config.token_rms,
        "rope_parameters": config.rope_parameters,
    }
    wanted = inspect.signature(scheme.__init__).parameters
    return {name: size for name, size in sizes.items() if name in wanted}


@contextlib.contextmanager
def independent_generator() -> Iterator[None]:
    """Draws inside leave the random state outside unchanged: with one seed, only the scheme's weights differ."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        seed = int(torch.randint(2**62, (), device="cpu"))
        # Not torch.manual_seed: it seeds every device, including those not forked here because they aren't in use yet.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
