"""`PositionScheme`: the protocol between the encoder and a positional scheme.

Axes: B sequences, S places in the longest one, T tokens, D hidden width, H heads, d = D/H, L layers.

Two layouts. *Token layout* holds real tokens only: (1, T, ...), or (B, S, ...) when the batch isn't unpadded; a scheme
treats all but the last axes as one. *Padded layout* is (B, S, ...), one row per sequence, as a bias needs it; the
encoder masks what a scheme returns for empty places, and passes a single row, (1, S), where all rows are alike.

Each hook gets `tokens`, a `Tokens` in the hook's own layout: `positions` (int64, 0-based in each sequence), `is_first`,
`sequence`, `lengths`, `input_ids`, `hidden_states`, and in padded layout `distances()`, p_j - p_i.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .position_math import outside_autocast, per_distinct_distance, require_probability
from .unpadding import Tokens


class PositionScheme(nn.Module):
    """Base class of all positional schemes. Subclass it and override only the hooks that the scheme uses.

    There is one scheme per model; its weights are `position.*` in the checkpoint. Its constructor takes, as
    keyword-only arguments, any of the sizes `hidden_size`, `head_dim`, `num_heads`, `num_layers`, `max_positions`,
    `token_rms` and `rope_parameters` (filled from the config by name), then its own arguments with defaults
    (`config.position_embedding_kwargs`). Weights live in `nn.Linear` / `nn.Embedding` children; there are no buffers:
    constants are recomputed in float32 from Python numbers, so that loading can't leave them uninitialised.
    """

    name: ClassVar[str]
    """What `config.position_embedding_type` calls the scheme."""

    shift_invariant: bool | None = None
    """Whether adding one number to all positions changes nothing. None: not declared, or it depends."""

    order_blind: bool = False
    """Whether the encoder is blind to word order on purpose. `check_position` tests both declarations."""

    max_length: int | None = None
    """Number of positions that the scheme has, or None if it takes any."""

    query_scale: float = 1.0
    """Factor on the query besides 1/sqrt(d): 1/sqrt(2) for schemes whose logits are a sum of two terms."""

    conversion_kwargs: ClassVar[dict[str, Any]] = {}
    """Arguments that suit pretrained weights better than the defaults; conversion to this scheme uses them."""

    learning_rate_factor: float = 1.0
    """Learning rate of the scheme's parameters as a multiple of the encoder's, see `hf_posenc.optimizer`: 1 for vectors
    that are added or go through a matrix, 10 for vectors that are multiplied with queries and for networks whose output
    is added to attention logits, 30 for numbers that are added themselves."""

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """Adds positions to embeddings, once, before the first layer. Token layout: (..., D) -> (..., D)."""
        return hidden_states

    def rotary(self, tokens: Tokens) -> Any:
        """Computes the state of `rotate`, float32, once per forward. Token layout: a tensor, or several in a tuple."""
        return None

    def rotate(self, q: Tensor, k: Tensor, state: Any, layer: int) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys in each layer. Token layout: q and k (..., H, d) -> the same, or both (..., H, r).

        Logits are divided by sqrt(d) whatever r is.
        """
        return q, k

    def bias(self, tokens: Tokens) -> Tensor | None:
        """Returns a bias on all layers' logits, once per forward. Padded layout: (1 or B, H or 1, S, S)."""
        return None

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """A bias on one layer's logits. Padded layout: q and k (B, H, S, d), unrotated and unscaled.

        `tokens.hidden_states` (B, S, D) is what q and k were projected from. Returns (1 or B, H or 1, S, S), already
        divided by sqrt(d).
        """
        return None

    def score_mod(self, tokens: Tokens, layer: int) -> Callable[..., Tensor] | None:
        """Returns the biases as a flex_attention `score_mod(score, b, h, q, k)`, without an (S, S) tensor.

        In token layout. `DistanceBias` has it. Flex attention computes entry by entry, so a bias that is a product of
        vectors (`relative_key`, `deberta`, `tupe`) or a network of two positions (`fire`) has none.
        """
        return None

    def init_weights(self, std: float) -> None:
        """Draws the scheme's initial weights. The model calls it last, with a separate random generator.

        Uses `transformers.initialization` functions (or `torch.nn.init`'s), which leave loaded weights alone.
        """

    def uses(self, hook: str) -> bool:
        """Whether the scheme overrides `hook`."""
        return getattr(type(self), hook) is not getattr(PositionScheme, hook)


class DistanceBias(PositionScheme):
    """A scheme whose bias is a function of head and distance: b_h(i, j) = f_h(p_j - p_i).

    Subclass it and write `of_distance`; `bias`, `layer_bias` and `score_mod` follow. The function runs once for each
    distinct distance: 2 S - 1 of S tokens, not S^2.
    """

    shift_invariant = True

    per_layer: bool = False
    """Whether each layer has a bias of its own. False: one for all, computed once per forward."""

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """f at each distance p_j - p_i: int64 (R,) -> (R, H or 1), floating-point. `layer` is 0 unless `per_layer`."""
        raise NotImplementedError

    def uses(self, hook: str) -> bool:
        """One bias for all layers, or one for each."""
        if hook in ("bias", "layer_bias"):
            return (hook == "layer_bias") == self.per_layer
        return super().uses(hook)

    def bias(self, tokens: Tokens) -> Tensor | None:
        """f(p_j - p_i): (1 or B, H, S, S); None if `per_layer`."""
        return None if self.per_layer else per_distinct_distance(self._function(0), tokens.positions)

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """The same for one layer; None unless `per_layer`."""
        return per_distinct_distance(self._function(layer), tokens.positions) if self.per_layer else None

    def score_mod(self, tokens: Tokens, layer: int) -> Callable[..., Tensor]:
        """The same, read entry by entry from a table of all distances in reach."""
        positions = tokens.positions
        reach = int(positions.max() - positions.min())
        table = self._function(layer)(torch.arange(-reach, reach + 1, device=positions.device))
        rows = positions.shape[0]

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = b if rows > 1 else b * 0
            head = h if table.shape[1] > 1 else h * 0
            return score + table[positions[row, k] - positions[row, q] + reach, head]

        return add

    def _function(self, layer: int) -> Callable[[Tensor], Tensor]:
        def function(distance: Tensor) -> Tensor:
            with outside_autocast(distance.device):
                values = self.of_distance(distance, layer if self.per_layer else 0)
            if values.dim() != 2:
                raise ValueError(
                    f"{type(self).__name__}.of_distance returns {tuple(values.shape)} for {len(distance)} distances. "
                    "Give (R, H), or (R, 1) for the same in all heads."
                )
            return values

        return function


class AddedPosition(PositionScheme):
    """A scheme that adds `encodings(positions)` to the embeddings: x'_i = x_i + e(p_i).

    Also a module for any encoder, on plain tensors: `scheme(x, start=7)`.

    Args:
        dropout (float): dropout on the sum, as in Vaswani et al. 2017.
        batch_first (bool): of the call on plain tensors: x is (B, S, D) or (S, D). False: (S, B, D) or (S, D).
    """

    shift_invariant = False

    linear_in: ClassVar[str | None] = None
    """The child in whose weights e is linear; conversion fits them: a table of positions (an `nn.Embedding` of
    `max_length` rows), a factor (an `nn.Embedding` of one number, 1 at the start), or the last `nn.Linear`, times
    `scale` if there is one."""

    fit_ridge: ClassVar[float] = 1e-6
    """Ridge of that least-squares fit, relative to the mean square of the layer's inputs."""

    def __init__(self, *, dropout: float = 0.0, batch_first: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(require_probability("dropout", dropout))
        self.batch_first = batch_first

    def encodings(self, positions: Tensor) -> Tensor:
        """Returns what is added at each position: int64 (...) -> (..., D)."""
        raise NotImplementedError

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """hidden_states + e(positions), in the dtype of the hidden states."""
        return self.dropout(hidden_states + self.encodings(tokens.positions).to(hidden_states.dtype))

    def forward(self, x: Tensor, positions: Tensor | None = None, *, start: int = 0) -> Tensor:
        """Adds positions to plain tensors.

        Args:
            x: embeddings (B, S, D) or (S, D); (S, B, D) with `batch_first=False`.
            positions: int64, (S,) or the shape of x without D. None: start, start + 1, ...
            start: first position, when `positions` isn't given.

        Returns:
            The shape and dtype of x.

        Raises:
            ValueError: a position is past the scheme's `max_length`, or negative.
        """
        sequence_first = x.dim() == 3 and not self.batch_first
        if sequence_first:
            x = x.transpose(0, 1)
            positions = positions.transpose(0, 1) if positions is not None and positions.dim() == 2 else positions
        if positions is not None and tuple(positions.shape) not in (x.shape[:-1], x.shape[-2:-1]):
            raise ValueError(
                f"positions of shape {tuple(positions.shape)} don't fit x of shape {tuple(x.shape)}. Give (S,), or the "
                "shape of x without D."
            )
        positions = plain_positions(self, x.shape[-2], positions, start, x.device).expand(x.shape[:-1])
        x = self.embed(x, Tokens.at(positions))
        return x.transpose(0, 1) if sequence_first else x


def plain_positions(
    scheme: PositionScheme, length: int, positions: Tensor | None, start: int, device: torch.device
) -> Tensor:
    """Positions for a scheme used on plain tensors: the given ones, checked, or start, start + 1, ..."""
    if positions is None:
        first, last = start, start + length - 1
        positions = torch.arange(start, start + length, device=device)
    elif scheme.max_length is None or positions.numel() == 0:
        return positions
    else:
        first, last = (int(value) for value in positions.aminmax())
    check_length(scheme, first, last)
    return positions


def check_length(scheme: PositionScheme, first: int, last: int) -> None:
    """Raises a ValueError before a kernel reads past the end of a table."""
    limit = scheme.max_length
    if limit is None or (first >= 0 and last < limit):
        return
    if first < 0:
        raise ValueError(
            f"position_embedding_type={scheme.name!r} has positions 0 to {limit - 1}, the input has {first}. "
            "Give position_ids that start at 0."
        )
    raise ValueError(
        f"position_embedding_type={scheme.name!r} has {limit} positions, the input has {last + 1}. "
        f"Truncate to {limit} tokens (truncation=True, max_length={limit}), or use a scheme without a table, such as "
        "'rope' or 'sinusoidal'."
    )
