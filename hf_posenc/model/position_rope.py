"""`rope`: rotary position embedding, queries and keys turned by an angle that grows with the position."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from .position_base import PositionScheme, plain_positions
from .position_math import (
    accumulation_dtype,
    have_fixed_shapes,
    is_transformed,
    per_distinct_position,
    require_positive,
    require_size,
)
from .unpadding import Tokens

logger = logging.get_logger(__name__)

_LENGTH = "original_max_position_embeddings"
# What each type takes beyond `rope_type`, `rope_theta` and `partial_rotary_factor`: keys that must be given, and
# keys with a default (None: derived, or left out).
ROPE_TYPES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "default": ((), {}),
    "linear": (("factor",), {}),
    "dynamic": (("factor",), {_LENGTH: None}),
    "yarn": (
        ("factor",),
        {
            **dict.fromkeys((_LENGTH, "attention_factor", "mscale", "mscale_all_dim")),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
        },
    ),
    "longrope": (("short_factor", "long_factor"), dict.fromkeys((_LENGTH, "factor", "attention_factor"))),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), {_LENGTH: None}),
    "proportional": ((), {"factor": 1.0}),
}
_COMMON = ("rope_type", "rope_theta", "partial_rotary_factor")
# What the error says of a number, its least and its most; the others may be any positive number.
_BOUNDS = {
    "rope_theta": ("; 10000 is usual", 0.0, math.inf),
    "partial_rotary_factor": (" up to 1", 0.0, 1.0),
    "factor": (" of at least 1: how many times the trained length inputs may be", 1.0, math.inf),
}


def complete_rope_parameters(
    given: dict[str, Any] | None, rope_theta: float = 10000.0, max_positions: int | None = None
) -> dict[str, Any]:
    """`rope_parameters` with its defaults filled in, checked: all that the angles depend on.

    Args:
        given: as in transformers v5; None as a value counts as not given, and `type` is `rope_type`'s old name.
        rope_theta: the base, when `given` doesn't say.
        max_positions: the trained length, `original_max_position_embeddings`, when `given` doesn't say.

    Raises:
        ValueError: an unknown `rope_type`, a key that it doesn't take or lacks, or a value out of range.
    """
    given = {key: value for key, value in (given or {}).items() if value is not None}
    old_name = given.pop("type", None)
    parameters = {"rope_type": old_name or "default", "rope_theta": rope_theta, **given}
    rope_type = parameters["rope_type"]
    if old_name not in (None, rope_type):
        raise ValueError(
            f"rope_parameters: rope_type={rope_type!r} and its old name, type={old_name!r}, differ. "
            "Give rope_type alone."
        )
    if not isinstance(rope_type, str) or rope_type not in ROPE_TYPES:
        raise ValueError(f"rope_parameters: rope_type={rope_type!r} is unknown. Choose one of {', '.join(ROPE_TYPES)}.")
    required, optional = ROPE_TYPES[rope_type]
    known = (*_COMMON, *required, *optional)
    if _LENGTH in parameters and _LENGTH not in known:  # transformers leaves it there when a scaling is taken off
        logger.warning_once(
            f"rope_parameters: {_LENGTH}={parameters.pop(_LENGTH)!r} has no effect with rope_type={rope_type!r}: "
            "left out."
        )
    if _LENGTH in known and max_positions is not None:
        parameters.setdefault(_LENGTH, max_positions)
    _check_keys(parameters, (*required, _LENGTH) if _LENGTH in optional else required, known)
    for key, value in parameters.items():
        _check_value(key, value)
    parameters |= {key: x for key, x in optional.items() if x is not None and key not in parameters}
    _check_together(parameters)
    if rope_type == "longrope" and "factor" not in parameters:
        trained = parameters[_LENGTH]
        parameters["factor"] = max(1.0, (max_positions or trained) / trained)
    return parameters


def _check_keys(parameters: dict[str, Any], required: tuple[str, ...], known: tuple[str, ...]) -> None:
    rope_type = parameters["rope_type"]
    for key in parameters:
        if key not in known:
            others = [name for name, (must, may) in ROPE_TYPES.items() if key in must or key in may]
            hint = f"That belongs to {', '.join(others)}. " if others else ""
            raise ValueError(
                f"rope_parameters has no {key!r} for rope_type={rope_type!r}. {hint}It takes {', '.join(known)}."
            )
    for key in required:
        if key not in parameters:
            length = "the length that the weights were trained with"
            raise ValueError(
                f"rope_parameters lacks {key!r}, which rope_type={rope_type!r} needs. "
                f"Give {length if key == _LENGTH else ', '.join(name for name in required if name != _LENGTH)}."
            )


def _check_value(key: str, value: Any) -> None:
    name = f"rope_parameters: {key}"
    if key == _LENGTH:
        require_size(name, value)
    elif key == "truncate":
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} is neither True nor False.")
    elif key in ("short_factor", "long_factor"):
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={value!r} is no list of numbers, one per pair.")
        for place, factor in enumerate(value):
            require_positive(f"{name}[{place}]", factor)
    elif key != "rope_type":
        require_positive(name, value, *_BOUNDS.get(key, ()))


def _check_together(parameters: dict[str, Any]) -> None:
    for less, more in (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor")):
        if less in parameters and not parameters[less] < parameters[more]:
            raise ValueError(
                f"rope_parameters: {less}={parameters[less]!r} must be less than {more}={parameters[more]!r}."
            )
    if ("mscale" in parameters) != ("mscale_all_dim" in parameters):
        raise ValueError("rope_parameters: mscale and mscale_all_dim act together. Give both or neither.")
    rope_type = parameters["rope_type"]
    key = {"yarn": "rope_theta", "longrope": _LENGTH}.get(rope_type)  # their logarithms divide
    if key is not None and parameters[key] <= 1:
        raise ValueError(
            f"rope_parameters: {key}={parameters[key]!r} is out of range for rope_type={rope_type!r}. It must be more "
            "than 1."
        )


class _FrequencySettings:
    """What transformers' frequency functions read of a config."""

    def __init__(self, head_dim: int, rope_parameters: dict[str, Any]) -> None:
        self.head_dim = self.hidden_size = head_dim
        self.num_attention_heads = 1
        self.rope_parameters = rope_parameters
        self.max_position_embeddings = rope_parameters.get(_LENGTH)

    def standardize_rope_params(self) -> None:
        """They are complete."""


def _partner(x: Tensor, interleaved: bool) -> Tensor:
    """The other entry of each entry's pair: (..., d) -> a new (..., d)."""
    if interleaved:
        return torch.stack((x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((second, first), -1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x cos + partner sin; sin has the signs."""
    if is_transformed(x) or is_transformed(sin):
        return x * cos + _partner(x, interleaved) * sin
    return _partner(x, interleaved).mul_(sin).addcmul_(x, cos)  # in place: time goes into memory, not into sums


def apply_rotary(
    x: Tensor,
    positions: Tensor | None = None,
    *,
    start: int = 0,
    rope_theta: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """Rotates a tensor by its positions: the whole of RoPE for those who have their own attention.

    Pair i of x is turned by the angle p / rope_theta^(2i/d).

    Args:
        x: queries or keys (S, d), (H, S, d) or (B, H, S, d).
        positions: (S,), or (B, S) for a batched x. None: start, start + 1, ...
        start: first position, when `positions` isn't given.
        rope_theta: base of the wavelengths.
        interleaved: see `RotaryPosition`.

    Returns:
        The shape and dtype of x; computed in float32.

    Raises:
        ValueError: d is odd, or positions don't fit x.
    """
    scheme = RotaryPosition(head_dim=x.shape[-1], rope_theta=rope_theta, interleaved=interleaved)
    return scheme.turn(x, *scheme.plain_angles(x, positions, start))


class RotaryPosition(PositionScheme):
    """Rotated queries and keys: q'_m = R(m) q_m, k'_n = R(n) k_n, so that q'_m . k'_n depends on n - m alone.

    R(p) turns pair i of a head's d entries by p f_i, f_i = theta^(-2i/d):
    (a, b) -> (a cos - b sin, a sin + b cos). Su et al. 2021 (RoFormer), arXiv 2104.09864.

    Pairs are (x_i, x_{i+d/2}) (*half-split*: GPT-NeoX, Llama, ModernBERT), or with `interleaved=True`
    (x_{2i}, x_{2i+1}) (RoFormer). The two aren't interchangeable between checkpoints.

    `rope_type` changes the frequencies for inputs longer than the trained length L
    (`original_max_position_embeddings`; in a model it defaults to `max_position_embeddings`), s being `factor`:

    - `linear`: f_i / s, positions interpolated. Chen et al. 2023, arXiv 2306.15595.
    - `dynamic`: theta grows with the length l of the sequence, theta (s max(l, L) / L - s + 1)^(d / (d-2)): up to L
      nothing changes. NTK-aware scaling, described in arXiv 2309.00071, section 3.3 and appendix A.1.
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
        rope_theta (float): theta, when `rope_parameters` doesn't say.
        interleaved (bool): which entries form a pair.

    Raises:
        ValueError: an argument is out of range, a key of `rope_parameters` is unknown or missing, or an odd number of
            entries would be turned: leaving the last one unpaired would break the relative property.
    """

    name = "rope"
    shift_invariant: bool | None = True

    def __init__(
        self,
        *,
        head_dim: int,
        max_positions: int | None = None,
        rope_parameters: dict[str, Any] | None = None,
        rope_theta: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.rope_parameters = complete_rope_parameters(rope_parameters, rope_theta, max_positions)
        self.rope_type = self.rope_parameters["rope_type"]
        self.rope_theta = float(self.rope_parameters["rope_theta"])
        factor = self.rope_parameters.get("partial_rotary_factor", 1.0)
        self.rotary_dim = head_dim if self.rope_type == "proportional" else int(head_dim * factor)
        if self.rotary_dim % 2 or self.rotary_dim < 2:
            raise ValueError(
                f"RoPE turns pairs, but {self.rotary_dim} of head_dim={head_dim} entries would be turned "
                f"(partial_rotary_factor={factor}), which is not a positive even number. Change hidden_size or "
                "num_attention_heads, or the factor."
            )
        if self.rope_type == "proportional" and int(factor * head_dim // 2) < 1:
            raise ValueError(
                f"rope_parameters: partial_rotary_factor={factor!r} turns none of the {head_dim // 2} pairs of "
                f"head_dim={head_dim}. Raise it."
            )
        if self.rope_type == "dynamic" and self.rotary_dim < 4:
            raise ValueError(f"rope_type='dynamic' needs at least 4 turned entries per head, not {self.rotary_dim}.")
        for key in ("short_factor", "long_factor"):
            if key in self.rope_parameters and len(self.rope_parameters[key]) != self.rotary_dim // 2:
                raise ValueError(
                    f"rope_parameters: {key} has {len(self.rope_parameters[key])} numbers. It must have one for each "
                    f"of the {self.rotary_dim // 2} pairs of head_dim={head_dim}."
                )
        self.head_dim = head_dim
        self.needs_lengths = self.rope_type in ("dynamic", "longrope")
        if self.needs_lengths:  # the length is that of the last position: a shift is a longer sequence
            self.shift_invariant = None
        self.interleaved = interleaved

    def frequencies(self, lengths: Tensor | None, device: torch.device) -> tuple[Tensor, float]:
        """f_i of sequences of these lengths, and what cos and sin are multiplied by.

        Args:
            lengths: int64 (...). None where `needs_lengths` is False.
            device: of the result.

        Returns:
            float32 (..., rotary_dim / 2), or (rotary_dim / 2,) where `needs_lengths` is False; and a number.
        """
        parameters, function = self.rope_parameters, ROPE_INIT_FUNCTIONS.get(self.rope_type)
        if function is None:  # transformers leaves `default` to each model: it is `linear` with a factor of 1
            parameters, function = {**parameters, "factor": 1.0}, ROPE_INIT_FUNCTIONS["linear"]
        settings: Any = _FrequencySettings(self.head_dim, parameters)
        # On the CPU, as transformers does, for powers differ between devices in their last digits.
        cpu = torch.device("cpu")
        if not self.needs_lengths:
            frequencies, factor = function(settings, cpu)
            return frequencies.to(device), factor
        assert lengths is not None
        if self.rope_type == "dynamic":
            return function(settings, device, seq_len=lengths.unsqueeze(-1))  # type: ignore[arg-type]
        trained = parameters[_LENGTH]
        (short, factor), (long, _) = (function(settings, cpu, seq_len=trained + more) for more in (0, 1))
        return torch.where(lengths.unsqueeze(-1) > trained, long.to(device), short.to(device)), factor

    def angles(self, positions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin of each pair's angle, times the type's `attention_factor`.

        Args:
            positions: int64 (...).
            lengths: int64 (...), the length of the sequence that each position belongs to. None: its row's largest
                position + 1.

        Returns:
            Two float32 (..., rotary_dim).
        """
        if not self.needs_lengths:
            frequencies, factor = self.frequencies(None, positions.device)
            cos, sin = per_distinct_position(lambda p: self._cos_sin(p, frequencies, factor), positions).chunk(2, -1)
            return cos, sin
        if lengths is None:
            lengths = (positions.amax(-1, keepdim=True) + 1).expand(positions.shape)
        if have_fixed_shapes(lengths):  # how many lengths there are has no static shape
            frequencies, factor = self.frequencies(lengths, positions.device)
        else:
            distinct, index = lengths.unique(return_inverse=True)
            frequencies, factor = self.frequencies(distinct, positions.device)
            frequencies = nn.functional.embedding(index, frequencies)
        cos, sin = self._cos_sin(positions, frequencies, factor).chunk(2, -1)
        return cos, sin

    def _cos_sin(self, positions: Tensor, frequencies: Tensor, factor: float) -> Tensor:
        angle = positions.to(torch.float32).unsqueeze(-1) * frequencies
        angle = angle.repeat_interleave(2, -1) if self.interleaved else torch.cat((angle, angle), -1)
        return torch.cat((angle.cos(), angle.sin()), -1) * factor

    def plain_angles(self, x: Tensor, positions: Tensor | None, start: int) -> tuple[Tensor, Tensor]:
        """`angles` that broadcast against plain queries or keys (S, d), (H, S, d) or (B, H, S, d).

        Raises:
            ValueError: positions don't fit x.
        """
        positions = plain_positions(self, x.shape[-2], positions, start, x.device)
        batched = positions.dim() == 2 and x.dim() == 4 and positions.shape[0] in (1, x.shape[0])
        if not (positions.dim() == 1 or batched) or positions.shape[-1] != x.shape[-2]:
            raise ValueError(
                f"positions of shape {tuple(positions.shape)} don't fit x of shape {tuple(x.shape)}. Give (S,) = "
                f"({x.shape[-2]},), or (B, S) for x of shape (B, H, S, d)."
            )
        return self.angles(positions[:, None] if batched else positions)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates x (..., d) by angles that broadcast against it, in float32, and gives x's dtype back."""
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        precise = turned.to(accumulation_dtype(turned))
        half = sin.shape[-1] // 2
        if self.interleaved:
            signed = torch.stack((-sin[..., ::2], sin[..., 1::2]), -1).flatten(-2)
        else:
            signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        turned = _rotate(precise, cos, signed, self.interleaved).to(x.dtype)
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    def rotary(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """cos and sin, with an axis for the heads: two float32 (..., 1, rotary_dim)."""
        cos, sin = self.angles(tokens.positions, tokens.lengths if self.needs_lengths else None)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Tensor, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        """q and k (..., H, d), rotated."""
        cos, sin = state
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    def forward(
        self, q: Tensor, k: Tensor, positions: Tensor | None = None, *, start: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates plain queries and keys (S, d), (H, S, d) or (B, H, S, d): see `apply_rotary`.

        Raises:
            ValueError: the heads aren't `head_dim` wide, or positions don't fit.
        """
        if {q.shape[-1], k.shape[-1]} != {self.head_dim}:
            raise ValueError(
                f"q and k have heads of {q.shape[-1]} and {k.shape[-1]} entries, this scheme has "
                f"head_dim={self.head_dim}. Build it with the head_dim of your attention."
            )
        return (
            self.turn(q, *self.plain_angles(q, positions, start)),
            self.turn(k, *self.plain_angles(k, positions, start)),
        )
