"""`PositionScheme`: the protocol between the encoder and a positional scheme.

Axes: B sequences, S places in the longest one, T tokens, D hidden width, H heads, d = D/H, L layers.

Two layouts. *Token layout* holds real tokens only: (1, T, ...), or (B, S, ...) when the batch isn't unpadded; a scheme
treats all but the last axes as one. *Padded layout* is (B, S, ...), one row per sequence, as a bias needs it; the
encoder masks what a scheme returns for empty places, and passes a single row, (1, S), where all rows are alike. Each
hook gets `tokens`, a `Tokens` in its own layout.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .scheme_math import tracing
from .unpadding import Tokens


class PositionScheme(nn.Module):
    """Base class of all positional schemes. Subclass it and override only the hooks that the scheme uses.

    There is one scheme per model; its weights are `position.*` in the checkpoint. Its constructor takes, as
    keyword-only arguments, any of the sizes `hidden_size`, `head_dim`, `num_heads`, `num_layers`, `max_positions`,
    `token_rms` and `rope_parameters` (filled from the config by name), then its own arguments with defaults
    (`config.position_embedding_kwargs`). Weights live in `nn.Linear` / `nn.Embedding` children; there are no buffers:
    constants are recomputed in float32 from Python numbers, so that loading can't leave them uninitialised.

    Attributes:
        name: what `config.position_embedding_type` calls the scheme.
        shift_invariant: adding one number to all positions changes nothing. None: not declared, or it depends.
        order_blind: the encoder is blind to word order on purpose. `check_scheme` tests both declarations.
        max_length: the number of positions that the scheme has. None: it takes any.
        query_scale: a factor on the query besides 1/sqrt(d): 1/sqrt(2) for schemes whose logits are a sum of two terms.
        position_rate: the learning rate of the scheme's parameters as a multiple of the encoder's, see
            `hf_posenc.optimizer`: 1 for vectors that are added or go through a matrix, 10 for vectors that are
            multiplied with queries and for networks whose output is added to attention logits, 30 for numbers that are
            added themselves.
    """

    name: ClassVar[str]
    shift_invariant: bool | None = None
    order_blind: bool = False
    max_length: int | None = None
    query_scale: float = 1.0
    position_rate: float = 1.0

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Adds positions, (S,) or (B, S), to embeddings, (S, D) or (B, S, D): x + e(p). None: 0, 1, 2, ...

        Raises:
            ValueError: the scheme adds nothing to embeddings, positions don't fit x, or one is past `max_length`.
        """
        if not self.uses("embed"):
            calls = {"rotate": "apply_rotary", "bias": "its bias", "layer_bias": "its layer_bias"}
            ways_out = " and ".join(call for hook, call in calls.items() if self.uses(hook))
            raise ValueError(f"{type(self).__name__} adds nothing to embeddings. Call {ways_out}.")
        return self.embed(x, tokens_at(self, x.shape[:-1], positions, x.device))

    def embed(self, hidden_states: Tensor, tokens: Tokens) -> Tensor:
        """Adds positions to embeddings, once, before the first layer. Token layout: (..., D) -> (..., D)."""
        return hidden_states

    def rotary(self, tokens: Tokens) -> Any:
        """Computes the state of `rotate`, float32, once per forward. Token layout: a tensor, or several in a tuple."""
        return None

    def rotate(self, q: Tensor, k: Tensor, state: Any, layer: int) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys in each layer. Token layout: q and k (..., H, d) -> the same, or both (..., H, r).

        Logits are divided by sqrt(d) whatever r is, and multiplied by all schemes' `query_scale`.
        """
        return q, k

    def bias(self, tokens: Tokens) -> Tensor | None:
        """Returns a bias on all layers' logits, once per forward. Padded layout: (1 or B, H or 1, S, S)."""
        return None

    def layer_bias(self, q: Tensor, k: Tensor, tokens: Tokens, layer: int) -> Tensor | None:
        """A bias on one layer's logits. Padded layout: q and k (B, H, S, d), unrotated and unscaled.

        `tokens.hidden_states` (B, S, D) is what q and k were projected from, by `tokens.projections`. Returns (1 or B,
        H or 1, S, S), already divided by sqrt(d).
        """
        return None

    def windows(self, layer: int) -> list[tuple[slice, tuple[int, int]]] | None:
        """The bias of a layer as windows: heads, and how many tokens they see to the left and right, -1 for all.

        For kernels that have them, where positions count from 0. None: the bias is more than that, or there is none.
        """
        return None

    def init_weights(self, std: float) -> None:
        """Draws the scheme's initial weights. The model calls it last, with a separate random generator.

        Uses `transformers.initialization` functions (or `torch.nn.init`'s), which leave loaded weights alone.
        """

    def uses(self, hook: str) -> bool:
        """Tells whether the scheme overrides `hook`."""
        return getattr(type(self), hook) is not getattr(PositionScheme, hook)


def check_length(scheme: PositionScheme, first: int, last: int) -> None:
    """Raises a ValueError before a kernel reads past the end of a table."""
    limit = scheme.max_length
    if limit is not None and (first < 0 or last >= limit):
        raise ValueError(
            f"position_embedding_type={scheme.name!r} has positions 0 to {limit - 1}, the input has {first} to {last}. "
            f"Truncate to {limit} tokens (truncation=True, max_length={limit}), give position_ids that start at 0, or "
            "use a scheme without a table, such as 'rope' or 'sinusoidal'."
        )


def tokens_at(scheme: PositionScheme, shape: tuple[int, ...], positions: Tensor | None, device: torch.device) -> Tokens:
    """Tokens (S,) or (B, S) at these positions, which are checked; None: at 0, 1, 2, ..."""
    positions = torch.arange(shape[-1], device=device) if positions is None else positions
    if positions.shape not in (shape, shape[-1:]):
        raise ValueError(f"positions of shape {(*positions.shape,)} don't fit x. Give {(*shape,)} or {(*shape[-1:],)}.")
    if scheme.max_length is not None and positions.numel() and not tracing():
        check_length(scheme, *map(int, positions.aminmax()))
    return Tokens.from_positions(positions.expand(shape))
