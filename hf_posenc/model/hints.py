"""What helps people who write configurations: the nearest names. Nothing in a checkpoint imports it."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'Did you mean ...? ', for an error about an unknown name, with the nearest that is known; or ''."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}? " if near else ""


def unknown_scheme(name: str, known: Iterable[str]) -> ValueError:
    """The error about a name that no scheme has."""
    return ValueError(
        f"position_embedding_type={name!r} is unknown. {did_you_mean(name.lower(), known)}"
        f"Choose one of {', '.join(known)}, or several joined by '+'; one of your own after "
        "register_scheme (--scheme-file on the command line)."
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
