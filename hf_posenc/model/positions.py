"""The table of schemes, and how one is built from a config."""

import contextlib
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from .position_base import PositionScheme
from .position_combined import CombinedPosition
from .position_math import did_you_mean
from .position_rope import complete_rope_parameters
from .scheme_code import collect_code, comes_along, load_classes, travelled_class

POSITIONS: dict[str, type[PositionScheme]] = {}
"""Every scheme by its name: what `config.position_embedding_type` accepts. `configuration_posenc` fills it."""

# What other models and papers call our schemes.
_OTHER_NAMES = {
    "absolute": "learned",
    "rotary": "rope",
    "roformer": "rope",
    "sin": "sinusoidal",
    "sine": "sinusoidal",
    "nope": "none",
    "relative_bias": "t5",
    "shaw": "relative_key",
    "disentangled": "deberta",
    "cpb": "mlp_bias",
}
# Schemes that aren't here, with the reason.
_REFUSED = {
    "xpos": "xPos (Sun et al. 2022, arXiv 2212.10554) decays with distance only under a causal mask; in an encoder "
    "half of all pairs would grow. The nearest are 'rope', and 'rope+alibi' for a decay on both sides.",
    "cope contextual": "CoPE (Golovneva et al. 2024, arXiv 2405.18719) counts gates between a query and an earlier "
    "key, so it is defined for causal attention alone. The nearest are 'relative_key_query' and 'deberta'.",
    "transformer_xl transformerxl transfo_xl": "Transformer-XL's positions (Dai et al. 2019, arXiv 1901.02860) serve a "
    "memory of earlier segments, which an encoder doesn't have. The nearest are 'deberta' and 'relative_key_query'.",
    "relative_value relative_key_value shaw_value": "The value side of Shaw et al. 2018 (arXiv 1803.02155) adds to "
    "what attention returns, which fused kernels can't do; the paper found no gain from it. Use 'relative_key'.",
}

# Constructor arguments that a config fills by name.
_SIZES = ("hidden_size", "head_dim", "num_heads", "num_layers", "max_positions", "token_rms", "rope_parameters")
# Constructor arguments for schemes on plain tensors alone, or with a place of their own in the config.
_ELSEWHERE = {
    "batch_first": "A model is batch-first; batch_first is for schemes used on plain tensors.",
    "rope_theta": "Give it as rope_parameters={'rope_theta': ...}.",
}
# Fields of a config that are completed with defaults.
_RESOLVED = ("position_embedding_kwargs", "rope_parameters")
GIVEN = "_given_arguments"
"""Where a config keeps, for each of these fields, what was given and what was resolved from it; under `checked`, the
values with which its schemes could last be built."""
_DECISIVE = (
    *("position_embedding_type", "position_embedding_kwargs", "rope_parameters", "hidden_size", "embedding_width"),
    *("num_attention_heads", "num_hidden_layers", "max_position_embeddings", "token_rms"),
    *("position_augmentation", "augmentation_length"),
)
# These start at the root mean square of the token embeddings unless the config says otherwise.
_TOKEN_SCALED = ("rms", "std")


def scheme_class(name: str) -> type[PositionScheme]:
    """The class of one scheme.

    Raises:
        ValueError: no scheme has this name; the message lists those that exist, or says why there is none.
    """
    if name in POSITIONS:
        return POSITIONS[name]
    for names, reason in _REFUSED.items():
        if name.lower().replace("-", "_") in names.split():
            raise ValueError(f"position_embedding_type={name!r}: {reason}")
    raise ValueError(
        f"position_embedding_type={name!r} is unknown. {did_you_mean(name, POSITIONS, _OTHER_NAMES.get(name))}"
        f"Choose one of {', '.join(POSITIONS)}, or several joined by '+'; one of your own after "
        "register_position (--scheme-file on the command line)."
    )


def scheme_names(position_embedding_type: str) -> list[str]:
    """The parts of `a+b`, in order.

    Raises:
        ValueError: the combination makes no sense.
    """
    names = position_embedding_type.split("+")
    if len(names) == 1:
        return names
    twice = [name for name in names if names.count(name) > 1]
    if "" in names:
        reason = "A part is missing. Write the names of two or more schemes with '+' between them."
    elif "none" in names:
        rest = "+".join(name for name in names if name != "none")
        reason = f"'none' adds nothing to another scheme. Use {rest or 'none'!r}."
    elif twice:
        reason = f"{twice[0]!r} stands there twice. Use {'+'.join(dict.fromkeys(names))!r}."
    else:
        return names
    raise ValueError(f"position_embedding_type={position_embedding_type!r} makes no sense. {reason}")


def scheme_classes(config: Any) -> dict[str, type[PositionScheme] | None]:
    """The classes of a config's schemes by name, in order; None for one whose code comes with the checkpoint.

    Raises:
        ValueError: a scheme doesn't exist, or the combination makes no sense.
    """
    names = scheme_names(config.position_embedding_type)
    theirs = [name for name in names if name not in POSITIONS and comes_along(config, name)]
    return {name: travelled_class(config, name) if name in theirs else scheme_class(name) for name in names}


def _loaded(config: Any) -> dict[str, type[PositionScheme]]:
    return {name: scheme for name, scheme in scheme_classes(config).items() if scheme is not None}


def own_code(config: Any) -> tuple[Any, dict[str, str]]:
    """The code that must be saved with the model: see `collect_code`.

    Raises:
        ValueError: the code of a scheme can't travel, or isn't loaded and not trusted.
    """
    load_classes(config, POSITIONS)
    return collect_code(_loaded(config), POSITIONS)


def own_arguments(scheme: type[PositionScheme]) -> dict[str, Any]:
    """What `position_embedding_kwargs` may hold for a scheme, with the defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(scheme.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in (*_SIZES, *_ELSEWHERE)
    }


def takes_rope_parameters(scheme: type[PositionScheme] | None) -> bool:
    """Whether the scheme takes `config.rope_parameters`; None, a scheme that isn't loaded yet, may take them."""
    return scheme is None or "rope_parameters" in inspect.signature(scheme.__init__).parameters


def given_arguments(config: Any) -> dict[str, dict[str, Any]]:
    """`position_embedding_kwargs` by scheme: those of a combination are keyed by its parts.

    Raises:
        ValueError: a key isn't a part, or its value isn't a dict.
    """
    names = scheme_names(config.position_embedding_type)
    given = dict(config.position_embedding_kwargs or {})
    if len(names) == 1:
        return {names[0]: given}
    for key, value in given.items():
        if key not in names or not isinstance(value, dict):
            raise ValueError(
                f"position_embedding_kwargs={{{key!r}: {value!r}}} doesn't fit {config.position_embedding_type!r}. The "
                f"arguments of a combination are given by scheme: {{{names[0]!r}: {{...}}, {names[1]!r}: {{...}}}}."
            )
    return {name: dict(given.get(name, {})) for name in names}


def resolve_position_config(config: Any) -> None:
    """Writes every argument of the config's schemes back into it, and checks them by building the schemes.

    Arguments that an earlier call wrote and nobody changed are resolved again, since a size or the scheme may have
    changed. Those of a scheme whose code isn't loaded yet stay as they are: they were resolved when it was saved.
    """
    if vars(config).get(GIVEN, {}).get("checked") == _decisive(config):
        return
    said = {}
    for field in _RESOLVED:
        value = getattr(config, field)
        before, resolved = vars(config).get(GIVEN, {}).get(field, (None, ...))
        said[field] = before if value == resolved else copy.deepcopy(value)
        setattr(config, field, copy.deepcopy(said[field]))
    classes = _loaded(config)
    given = given_arguments(config)
    for name, scheme in classes.items():
        accepted = own_arguments(scheme)
        scaled = {key: config.token_rms for key in _TOKEN_SCALED if key in accepted}
        defaults = {key: value for key, value in accepted.items() if value is not inspect.Parameter.empty}
        given[name] = {**defaults, **scaled, **given[name]}
        if takes_rope_parameters(scheme):
            complete = getattr(scheme, "complete_rope_parameters", complete_rope_parameters)
            config.rope_parameters = complete(config.rope_parameters, max_positions=config.max_position_embeddings)
    if config.rope_parameters is not None and not any(map(takes_rope_parameters, scheme_classes(config).values())):
        raise ValueError(
            f"rope_parameters={config.rope_parameters!r} has no effect on "
            f"position_embedding_type={config.position_embedding_type!r}. Leave it out, or set it to None."
        )
    for name, scheme in classes.items():
        with torch.device("meta"):
            part = _build(config, name, scheme, given[name])
        _check_augmentation(config, name, part.max_length)
        # The constructor resolves "None: as wide as ...". The config records its choice.
        chosen = {key: getattr(part, key, None) for key, value in given[name].items() if value is None}
        given[name] |= {key: value for key, value in chosen.items() if value is not None}
    config.position_embedding_kwargs = given if len(given) > 1 else next(iter(given.values()))
    resolved = {field: (value, copy.deepcopy(getattr(config, field))) for field, value in said.items()}
    vars(config)[GIVEN] = {**resolved, "checked": _decisive(config)}


def _check_augmentation(config: Any, name: str, limit: int | None) -> None:
    if config.position_augmentation != "none" and limit is not None and config.augmentation_length > limit:
        raise ValueError(
            f"position_augmentation_length={config.augmentation_length} is past the {limit} positions of {name!r}. "
            f"Make it {limit} or less, or raise max_position_embeddings."
        )


def _decisive(config: Any) -> str:
    """Every value that decides which schemes are built, and whether they can be: what to check again if it changes."""
    return repr((scheme_classes(config), [getattr(config, name) for name in _DECISIVE]))


def make_position(config: Any) -> PositionScheme:
    """Builds what a config names: one scheme, or several in one.

    Raises:
        ValueError: a scheme or one of its arguments doesn't exist, or an argument is out of range; or a scheme's code
            comes with the checkpoint and isn't trusted.
    """
    load_classes(config, POSITIONS)
    given = given_arguments(config)
    parts = {name: _build(config, name, scheme, given[name]) for name, scheme in _loaded(config).items()}
    return CombinedPosition(parts) if len(parts) > 1 else next(iter(parts.values()))


def _build(config: Any, name: str, scheme: type[PositionScheme], given: dict[str, Any]) -> PositionScheme:
    accepted = own_arguments(scheme)
    _check_given(name, given, accepted)
    sizes = {
        # Schemes that add to the embeddings are as wide as the embeddings.
        "hidden_size": config.embedding_width if overrides(scheme, "embed", "encodings") else config.hidden_size,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "max_positions": config.max_position_embeddings,
        "token_rms": config.token_rms,
        "rope_parameters": config.rope_parameters,
    }
    wanted = inspect.signature(scheme.__init__).parameters
    try:
        built = scheme(**{key: size for key, size in sizes.items() if key in wanted}, **given)
    except TypeError as error:
        raise ValueError(
            f"position_embedding_kwargs={given!r} doesn't fit {name!r}: {error}. "
            f"Its arguments and defaults are {accepted}; a config fills {', '.join(_SIZES)}."
        ) from error
    buffers = [buffer for buffer, _ in built.named_buffers()]
    if buffers:
        raise ValueError(
            f"{scheme.__name__} owns the buffer {buffers[0]!r}, which loading would leave uninitialised. Compute it "
            "from Python numbers in the hook that needs it."
        )
    return built


def overrides(scheme: type[PositionScheme], *methods: str) -> bool:
    """Whether the scheme overrides one of these methods, whichever copy of the protocol's file it inherits from."""
    own = [base for base in scheme.__mro__[:-1] if not base.__module__.endswith("position_base")]
    return any(method in vars(base) for base in own for method in methods)


def _check_given(scheme: str, given: dict[str, Any], accepted: dict[str, Any]) -> None:
    for name, value in given.items():
        if name in accepted:
            if isinstance(accepted[name], bool) and not isinstance(value, bool):
                raise ValueError(f"position_embedding_kwargs[{name!r}]={value!r} is neither True nor False.")
            continue
        if name in _SIZES:
            hint = "It follows from the sizes in the config."
        elif name in _ELSEWHERE:
            hint = _ELSEWHERE[name]
        else:
            takes = ", ".join(accepted) or "none; leave position_embedding_kwargs out"
            hint = f"{did_you_mean(name, accepted)}It takes {takes}."
            if theirs := [other for other, known in POSITIONS.items() if name in own_arguments(known)]:
                hint += (
                    f" {', '.join(theirs)} {'take' if len(theirs) > 1 else 'takes'} it: where the config was another "
                    "scheme's, set position_embedding_kwargs=None first."
                )
        raise ValueError(f"position_embedding_kwargs[{name!r}]={value!r} is no argument of {scheme!r}. {hint}")


@contextlib.contextmanager
def independent_generator() -> Iterator[None]:
    """Draws inside leave the random state outside unchanged: with one seed, only the scheme's weights differ."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
        seed = int(torch.randint(2**62, (), device="cpu"))
        # torch.manual_seed seeds every device, including those not forked here because they aren't in use yet.
        if cuda:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield
