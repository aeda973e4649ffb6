"""Several schemes combined: what `position_embedding_type="learned+t5"` builds."""

import functools
import math
import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from .scheme_base import PositionScheme
from .unpadding import Tokens


class CombinedPosition(PositionScheme):
    """Schemes in a row: embeddings and rotations are chained in order, biases add up, query scales multiply.

    `tupe+t5` is TUPE-R (Ke et al. 2020, arXiv 2006.15595): tokens, absolute positions and a relative bias in one sum,
    and the first token untied from both.
    Each part keeps its own weights, `position.<part>.*`, and its own cost; the smallest `max_length` applies.

    Args:
        parts (dict): the schemes by name, in order.

    Raises:
        ValueError: one of several that rotate queries and keys `rotates_alone`.
    """

    def __init__(self, parts: dict[str, PositionScheme]) -> None:
        super().__init__()
        self.names = tuple(parts)
        for name, part in parts.items():
            self.add_module(name, part)
        self.name = "+".join(parts)  # type: ignore[misc]
        turning = [name for name, part in parts.items() if part.uses("rotate")]
        alone = [name for name in turning if getattr(parts[name], "rotates_alone", False)]
        if alone and len(turning) > 1:
            raise ValueError(
                f"position_embedding_type={self.name!r}: {alone[0]!r} makes queries and keys anew, so no other may "
                f"rotate them. Keep one of {', '.join(turning)}."
            )
        lengths = [part.max_length for part in parts.values() if part.max_length is not None]
        self.max_length = min(lengths, default=None)
        self.query_scale = math.prod(part.query_scale for part in parts.values())
        seen = [part.shift_invariant for part in parts.values()]
        self.shift_invariant = False if False in seen else (None if None in seen else True)
        self.order_blind = all(part.order_blind for part in parts.values())

    @property
    def parts(self) -> dict[str, PositionScheme]:
        """The schemes by name, in order."""
        return {name: getattr(self, name) for name in self.names}

    def _using(self, hook: str) -> list[PositionScheme]:
        return [part for part in self.parts.values() if part.uses(hook)]

    def uses(self, hook: str) -> bool:
        """Tells whether a part overrides `hook`."""
        return len(self._using("rotate" if hook == "rotary" else hook)) > 0  # torch 2.11 can't trace bool(list)

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """Each part's in turn."""
        for part in self._using("embed"):
            hidden_states = part.embed(hidden_states, tokens)
        return hidden_states

    def rotary(self, tokens: Tokens) -> tuple[Any, ...]:
        """The parts' states."""
        return tuple(part.rotary(tokens) for part in self._using("rotate"))

    def rotate(self, q: Tensor, k: Tensor, state: tuple[Any, ...], layer: int) -> tuple[Tensor, Tensor]:
        """Each part's in turn."""
        width = q.shape[-1]
        for part, part_state in zip(self._using("rotate"), state, strict=True):
            q, k = part.rotate(q, k, part_state, layer)
        if q.shape[-1] != width and len(state) > 1:
            raise ValueError(
                f"position_embedding_type={self.name!r}: one of those that rotate queries and keys changes their "
                f"width, {width} to {q.shape[-1]}, and so makes them anew. Keep one of them."
            )
        return q, k

    def bias(self, tokens: Tokens) -> Tensor | None:
        """The sum of the parts' biases; TUPE then unties first tokens from all of it."""
        total = _sum(part.bias(tokens) for part in self._using("bias"))
        for part in self.parts.values():
            untie_first: Any = getattr(part, "untie_first", None)
            if total is not None and untie_first is not None:
                total = untie_first(total, tokens.is_first)
        return total

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """The sum of the parts'."""
        return _sum(part.layer_bias(q, k, tokens, layer) for part in self._using("layer_bias"))

    def windows(self, layer: int) -> list[tuple[slice, tuple[int, int]]] | None:
        """Those of the one part that has a bias."""
        biased = [part for part in self.parts.values() if part.uses("bias") or part.uses("layer_bias")]
        return biased[0].windows(layer) if len(biased) == 1 else None

    def init_weights(self, std: float) -> None:
        """Each part's in turn."""
        for part in self.parts.values():
            part.init_weights(std)


def _sum(biases: Iterable[Tensor | None]) -> Tensor | None:
    added = [bias for bias in biases if bias is not None]
    return functools.reduce(operator.add, added) if added else None
