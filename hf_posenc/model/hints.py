"""What helps people who write configurations: other libraries' names, and why a scheme isn't there.

Doesn't travel: nothing in a checkpoint imports it. Its dictionaries are literals: `schemes/names.py` reads them without
importing PyTorch.
"""

import difflib
from collections.abc import Iterable

# What other models and papers call our schemes.
OTHER_SCHEMES = {
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
    "longformer": "window",
    "local": "window",
    "local_attention": "window",
    "sliding_window": "window",
    "modernbert": "rope+window",
    "dta": "dual_triangle",
    "causal": "dual_triangle",
}
# Schemes that aren't here, with the reason.
REFUSED_SCHEMES = {
    "xpos": "xPos (Sun et al. 2022, arXiv 2212.10554) decays with distance only under a causal mask; in an encoder "
    "half of all pairs would grow. The nearest are 'rope', and 'rope+alibi' for a decay on both sides.",
    "cope contextual": "CoPE (Golovneva et al. 2024, arXiv 2405.18719) counts gates between a query and an earlier "
    "key, so it is defined for causal attention alone. The nearest are 'relative_key_query' and 'deberta'.",
    "transformer_xl transformerxl transfo_xl": "Transformer-XL's positions (Dai et al. 2019, arXiv 1901.02860) serve a "
    "memory of earlier segments, which an encoder doesn't have. The nearest are 'deberta' and 'relative_key_query'.",
    "relative_value relative_key_value shaw_value": "The value side of Shaw et al. 2018 (arXiv 1803.02155) adds to "
    "what attention returns, which fused kernels can't do; the paper found no gain from it. Use 'relative_key'.",
    "grape": "GRAPE (arXiv 2512.07805) turns queries and keys by exp(p L), L a learned skew-symmetric matrix. That is "
    "RoPE with learned frequencies in a basis that the query and key weights can hold; of its additive form, ALiBi is "
    "a case. The nearest are 'rope', 'alibi', and 'rope+alibi' for both.",
    "drope": "DroPE (arXiv 2512.12167) drops RoPE after training, which a decoder can: its causal mask tells order. In "
    "an encoder 'dual_triangle' does, from the start. For longer inputs give 'rope' a rope_type that scales, such as "
    "yarn.",
    "bipe": "BiPE (He et al. 2024, arXiv 2401.16421) counts within and between segments, and which tokens end one only "
    "your tokenizer knows. Register it as a scheme of your own, see docs/own-scheme.md; the nearest is 'cable'.",
}
# Arguments of a scheme's constructor that a config gives in another place, or not at all.
ARGUMENTS_ELSEWHERE = {
    "rope_theta": "Give it as rope_parameters={'rope_theta': ...}.",
    "local_rope_theta": "Give it as rope_parameters={'local_rope_theta': ..., 'global_attn_every_n_layers': ...}.",
}


def did_you_mean(word: str, known: Iterable[str], other_name: str | None = None, cutoff: float = 0.6) -> str:
    """'Did you mean ...? ', for an error about an unknown name: `other_name`, or the nearest that is known; or ''."""
    meant = other_name or next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)
    return f"Did you mean {meant!r}? " if meant else ""


def unknown_scheme(name: str, known: Iterable[str]) -> ValueError:
    """The error about a name that no scheme has: why there is none, or those that there are."""
    for names, reason in REFUSED_SCHEMES.items():
        if name.lower().replace("-", "_") in names.split():
            return ValueError(f"position_embedding_type={name!r}: {reason}")
    meant = did_you_mean(name.lower(), known, OTHER_SCHEMES.get(name.lower()))
    return ValueError(
        f"position_embedding_type={name!r} is unknown. {meant}"
        f"Choose one of {', '.join(known)}, or several joined by '+'; one of your own after "
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
