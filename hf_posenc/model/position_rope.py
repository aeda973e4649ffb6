"""`rope`: rotary position embedding, queries and keys turned by an angle that grows with the position."""

from typing import Any, cast

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .scheme_math import Check, constant, have_fixed_shapes, one_of, positive, require, tracing, whole
from .scheme_rotated import RotatedPosition
from .unpadding import Tokens

_LENGTH = "original_max_position_embeddings"
# What each type takes beyond `ROPE_COMMON`: keys it needs, keys with a default, and those that are derived or left out.
ROPE_TYPES: dict[str, tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]] = {
    "default": ((), {}, ()),
    "linear": (("factor",), {}, ()),
    "dynamic": (("factor", _LENGTH), {}, ()),
    "yarn": (
        ("factor", _LENGTH),
        {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
        ("attention_factor", "mscale", "mscale_all_dim"),
    ),
    "longrope": (("short_factor", "long_factor", _LENGTH), {}, ("factor", "attention_factor")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _LENGTH), {}, ()),
    "proportional": ((), {"factor": 1.0}, ()),
}
_FACTORS: Check = (
    lambda value: isinstance(value, (list, tuple)) and all(map(positive()[0], value)),
    "is no list of positive numbers, one per pair.",
)
_CHECKS: dict[str, Check] = {
    "rope_type": one_of(*ROPE_TYPES),
    "rope_theta": positive(" above 1; 10000 is usual", least=1 + 1e-6),
    "partial_rotary_factor": positive(" up to 1", most=1.0),
    "factor": positive(" of at least 1: how many times the trained length inputs may be", least=1.0),
    "truncate": (lambda value: isinstance(value, bool), "is neither True nor False."),
    **dict.fromkeys(("short_factor", "long_factor"), _FACTORS),
    "global_attn_every_n_layers": whole(least=2),
    _LENGTH: whole(least=2),
}
"""The others may be any positive number."""
PLAIN_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
_LOCAL = ("local_rope_theta", "global_attn_every_n_layers")
ROPE_COMMON = ("rope_type", "rope_theta", "partial_rotary_factor", *_LOCAL)


def complete_rope_parameters(wanted: dict[str, Any] | None, max_positions: int | None = None) -> dict[str, Any]:
    """`rope_parameters` with its defaults filled in, checked: all that the angles depend on.

    Args:
        wanted: as in transformers v5; None as a value counts as not given.
        max_positions: the trained length, `original_max_position_embeddings`, when they don't say.

    Raises:
        ValueError: an unknown `rope_type`, a key that it doesn't take or lacks, or a value out of range.
    """
    given = {key: value for key, value in (wanted or {}).items() if value is not None}
    rope_type = require("rope_parameters: rope_type", given.get("rope_type", "default"), _CHECKS["rope_type"])
    required, defaults, _ = ROPE_TYPES[rope_type]
    length = {_LENGTH: max_positions} if _LENGTH in required and max_positions is not None else {}
    parameters = {**PLAIN_ROPE, **defaults, **length, **given}
    _check_rope(parameters, *ROPE_TYPES[rope_type])
    trained: Any = parameters.get(_LENGTH)
    if rope_type == "longrope":
        parameters.setdefault("factor", max(1.0, (max_positions or trained) / trained))
    if rope_type == "dynamic":  # which is all that transformers reads of it
        parameters[_LENGTH] = min(trained, max_positions or trained)
    return parameters


def _check_rope(parameters: dict[str, Any], required: tuple[str, ...], *optional: Any) -> None:
    takes = [*ROPE_COMMON, _LENGTH, *(key for keys in optional for key in keys)]
    for key in sorted((parameters.keys() ^ {*required}) - ({*takes} - {*required})):
        what = f"{'has no' if key in parameters else 'lacks'} {key!r} for rope_type={parameters['rope_type']!r}"
        needs = ", ".join(required) or "nothing"
        raise ValueError(f"rope_parameters {what}, which needs {needs} and takes {', '.join(takes)}.")
    for key, value in parameters.items():
        require(f"rope_parameters: {key}", value, _CHECKS.get(key, positive()))
    for low, high in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
        if low in parameters and not parameters[low] < parameters[high]:
            raise ValueError(f"rope_parameters: {low}={parameters[low]} must be less than {high}={parameters[high]}.")
    for first, other in (("mscale", "mscale_all_dim"), _LOCAL):
        if (first in parameters) != (other in parameters):
            raise ValueError(f"rope_parameters: {first} and {other} act together. Give both or neither.")


class RotaryPosition(RotatedPosition):
    """Rotated queries and keys: q'_m = R(m) q_m, k'_n = R(n) k_n, so that q'_m . k'_n depends on n - m alone.

    R(p) turns pair i of a head's d entries by p f_i, f_i = theta^(-2i/d):
    (a, b) -> (a cos - b sin, a sin + b cos). Su et al. 2021 (RoFormer), arXiv 2104.09864.

    Pairs are (x_i, x_{i+d/2}) (*half-split*: GPT-NeoX, Llama, ModernBERT), or with `interleaved=True`
    (x_{2i}, x_{2i+1}) (RoFormer). The two aren't interchangeable between checkpoints.

    `rope_type` changes the frequencies for inputs longer than the trained length L
    (`original_max_position_embeddings`; in a model it defaults to `max_position_embeddings`), s being `factor`:

    - `linear`: f_i / s, positions interpolated. Chen et al. 2023, arXiv 2306.15595.
    - `dynamic`: theta grows with the length l of the sequence, theta (s max(l, L) / L - s + 1)^(d / (d-2)): up to L,
      `max_position_embeddings` at most, nothing changes. NTK-aware scaling, arXiv 2309.00071, sections 3.3 and A.1.
    - `yarn`: pairs that turn more than `beta_fast` times within L keep f_i, those that turn less than `beta_slow` times
      get f_i / s, between them a mixture linear in i (as the authors' code has it; the paper's ramp is linear in the
      number of turns). cos and sin are multiplied by `attention_factor`, 0.1 ln(s) + 1 if not given (with `mscale` and
      `mscale_all_dim`: the ratio of two such). Peng et al. 2023, arXiv 2309.00071.
    - `longrope`: f_i / `short_factor`[i] for sequences up to L, f_i / `long_factor`[i] for longer ones; cos and sin are
      multiplied by `attention_factor`, sqrt(1 + ln(s) / ln(L)) if not given. Ding et al. 2024, arXiv 2402.13753.
    - `llama3`: wavelengths above L / `low_freq_factor` get f_i / s, those below L / `high_freq_factor` keep f_i,
      between them a mixture linear in L / wavelength. The scaling of Llama 3.1, arXiv 2407.21783.
    - `proportional`: pairs span the whole head, and only the fastest turn, the share `partial_rotary_factor` of them
      (p-RoPE). Barbero et al. 2024, arXiv 2410.06205.

    With `local_rope_theta` and `global_attn_every_n_layers`, n, all layers but 0, n, 2n, ... have that theta, unscaled,
    as ModernBERT's, beside `window`. Warner et al. 2024, arXiv 2412.13663.

    The frequencies are transformers' own (`ROPE_INIT_FUNCTIONS`), with one difference: there `dynamic` and `longrope`
    follow the longest sequence of the batch, here each sequence follows its own length, largest position + 1, and
    never its neighbours.

    Costs two multiply-adds per entry of q and k in each layer; no weights; takes any length. Angles, their sines and
    the rotation are float32 whatever the model's dtype.

    Args:
        head_dim (int): d.
        max_positions (int, optional): L, where `rope_parameters` doesn't say.
        rope_parameters (dict, optional): as in transformers v5: `rope_type`, `rope_theta`, `partial_rotary_factor`
            (the share of each head that is turned) and the type's own keys. Filled from `config.rope_parameters`.
        interleaved (bool): which entries form a pair.

    Raises:
        ValueError: an argument is out of range, a key of `rope_parameters` is unknown or missing, or an odd number of
            entries would be turned: leaving the last one unpaired would break the relative property.
    """

    name = "rope"
    shift_invariant: bool | None = True
    # Besides sizes and `rope_parameters`, what transformers' functions of the frequencies read of a config:
    num_attention_heads = 1
    standardize_rope_params: Any = staticmethod(dict)

    def __init__(
        self,
        *,
        head_dim: int,
        max_positions: int | None = None,
        rope_parameters: dict[str, Any] | None = None,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.rope_parameters = complete_rope_parameters(rope_parameters, max_positions)
        self.rope_type = self.rope_parameters["rope_type"]
        factor = self.rope_parameters.get("partial_rotary_factor", 1.0)
        share = int(head_dim * factor)
        self.rotary_dim = head_dim if self.rope_type == "proportional" else share
        least = 4 if self.rope_type == "dynamic" else 2
        if self.rotary_dim % 2 or share < least:
            raise ValueError(
                f"RoPE turns pairs, but {share} of head_dim={head_dim} entries would be turned "
                f"(partial_rotary_factor={factor}), which is no even number from {least}. Change hidden_size or "
                "num_attention_heads, or the factor."
            )
        for key in ("short_factor", "long_factor"):
            if key in self.rope_parameters and len(self.rope_parameters[key]) != self.rotary_dim // 2:
                raise ValueError(
                    f"rope_parameters: {key} has {len(self.rope_parameters[key])} numbers. It must have one for each "
                    f"of the {self.rotary_dim // 2} pairs of head_dim={head_dim}."
                )
        self.head_dim = self.hidden_size = head_dim
        self.max_position_embeddings = self.rope_parameters.get(_LENGTH)
        self.needs_lengths = self.rope_type in ("dynamic", "longrope")
        self.shift_invariant = None if self.needs_lengths else True  # a shifted sequence counts as a longer one
        self.interleaved = interleaved
        local, self.every = (self.rope_parameters.get(key, 1) for key in _LOCAL)
        theta = {"rope_theta": local, "partial_rotary_factor": 1.0 if self.rope_type == "proportional" else factor}
        local_arguments: dict[str, Any] = {"head_dim": head_dim, "rope_parameters": theta, "interleaved": interleaved}
        self.local = RotaryPosition(**local_arguments) if _LOCAL[0] in self.rope_parameters else None
        self._cached_frequencies: dict[int | None, tuple[float, ...]] = {}
        with torch.device("cpu"):
            self.attention_factor = self._compute(torch.device("cpu"), self.rope_parameters.get(_LENGTH))[1]

    def angles(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """p f_i: int64 (...) -> float32 (..., rotary_dim / 2); `lengths` (...), of sequences, if `needs_lengths`."""
        if lengths is None or not self.needs_lengths:
            frequencies = self._fixed(positions.device)
        elif self.rope_type == "dynamic" and (have_fixed_shapes(lengths) or lengths.is_cuda):
            frequencies = self._compute(positions.device, lengths.unsqueeze(-1))[0]
        elif self.rope_type == "dynamic":  # of one length, as transformers computes it
            distinct, index = lengths.unique(return_inverse=True)
            frequencies = self._compute(positions.device, distinct.unsqueeze(-1))[0][index]
        else:
            trained = self.rope_parameters[_LENGTH]
            short, long = (self._fixed(positions.device, trained + more) for more in (0, 1))
            frequencies = torch.where(lengths.unsqueeze(-1) > trained, long, short)
        return positions.to(torch.float32).unsqueeze(-1) * frequencies

    def _compute(self, device: torch.device, length: Any = None) -> tuple[Tensor, float]:
        """f_i of sequences of this length, or lengths (..., 1), and the factor on cos and sin."""
        if self.rope_type == "default":  # which transformers leaves to each model
            power = torch.arange(0, self.rotary_dim, 2, device=device, dtype=torch.float32) / self.rotary_dim
            return 1.0 / self.rope_parameters["rope_theta"] ** power, 1.0
        return ROPE_INIT_FUNCTIONS[self.rope_type](cast(Any, self), device, seq_len=length)

    def _fixed(self, device: torch.device, length: int | None = None) -> Tensor:
        """Frequencies that depend on no tensor: computed once, on the CPU, as powers differ in their last digits."""
        if tracing():  # in a graph for a GPU everything must happen there
            return self._compute(device, length)[0]
        if length not in self._cached_frequencies:
            with torch.device("cpu"):
                self._cached_frequencies[length] = tuple(self._compute(torch.device("cpu"), length)[0].tolist())
        return constant(self._cached_frequencies[length], device)

    def rotary(self, tokens: Tokens) -> tuple[Any, ...]:
        """The state of `rotate`, see `RotatedPosition`; with local layers that of the others, and theirs."""
        if self.needs_lengths:
            state: Any = self.cos_sin(tokens.positions, tokens.lengths).unsqueeze(-2).chunk(2, -1)
        else:
            state = super().rotary(tokens)
        return state if self.local is None else (state, self.local.rotary(tokens))

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Any, ...], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated."""
        if self.local is not None and layer % self.every:
            return self.local.rotate(q, k, state[1], layer)
        return super().rotate(q, k, state if self.local is None else state[0], layer)
