"""Where the tokens of a batch are: which are real, which sequence each belongs to, and what its position is.

Three layouts. *Input layout* (B, S, ...) is what the caller gave. *Token layout* is what embeddings, linear layers,
norms and heads work on. *Grid layout* is what attention with a mask works on. In a `Padded` batch all three are the
input's. An `Unpadded` batch has the T real tokens alone in token layout, (1, T, ...), and a row for each sequence in
grid layout, (n, L, ...): packed rows are split, so attention crosses no border.
"""

import functools
import itertools
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from .position_math import tracing, wide


@dataclass
class Batch:
    """The interface of both kinds: `unpad`, `pad`, `to_grid`, `from_grid`, `attention_mask`, `lengths`, `pool`, ..."""

    shape: tuple[int, int]
    """(B, S) of the input."""
    positions: Tensor
    """int64, token layout: 0-based inside each sequence, or the caller's position_ids."""
    is_first: Tensor
    """bool, token layout: the first token of each sequence."""
    num_sequences: int
    """N: sequences in the batch, empty rows included. More than B where rows are packed."""
    counted: bool
    """Whether positions are 0, 1, 2, ... within each sequence."""

    @property
    def packed(self) -> bool:
        """Whether some row holds several sequences."""
        return self.num_sequences > self.shape[0]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """All tensors on another device (accelerate calls this between devices)."""
        tensors = [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]
        return replace(self, **{name: getattr(self, name).to(*args, **kwargs) for name in tensors})


@dataclass
class Padded(Batch):
    """A padded batch: token layout and grid layout are the input's, (B, S, ...)."""

    mask: Tensor | None = None
    """bool (B, S): which places are real tokens. None: all."""
    sequence: Tensor | None = None
    """int64 (B, S), the sequence of each place. Set for packed rows; in a traced graph for any `position_ids`, since
    whether a row is packed depends on their values there."""

    unpadded = False
    block_mask = None

    @property
    def sizes(self) -> list[int]:
        """Places of each row."""
        return [self.shape[1]] * self.shape[0]

    @property
    def longest(self) -> int:
        """S: no sequence has more tokens. The true length would have to be read from the data."""
        return self.shape[1]

    def unpad(self, x: Tensor) -> Tensor:
        """Input layout -> token layout: nothing to do."""
        return x

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Token layout -> input layout, with `fill` at padding."""
        return x if self.mask is None else x.masked_fill(~self.mask.view(self.mask.shape + (1,) * (x.dim() - 2)), fill)

    def to_grid(self, x: Tensor) -> Tensor:
        """Token layout -> grid layout: nothing to do."""
        return x

    from_grid = to_grid

    @property
    def _rows_alike(self) -> bool:
        return self.mask is None and self.sequence is None

    def grid_positions(self) -> Tensor:
        """Positions in grid layout (B, S), or (1, S) where they are the same in every row."""
        return self.positions[:1] if self.counted and self._rows_alike else self.positions

    def grid_is_first(self) -> Tensor:
        """Which places of the grid hold a sequence's first token: bool (B, S), or (1, S) where rows are alike."""
        return self.is_first[:1] if self._rows_alike else self.is_first

    def owner(self) -> Tensor:
        """int64 (B, S): the sequence that each place belongs to, padding included."""
        if self.sequence is not None:
            return self.sequence
        return torch.arange(self.shape[0], device=self.positions.device).unsqueeze(-1).expand(self.shape)

    def sequences(self) -> Tensor:
        """int64 (B, S): the sequence of each token, -1 at padding."""
        return self.owner() if self.mask is None else self.owner().masked_fill(~self.mask, -1)

    grid_sequences = sequences

    def lengths(self) -> Tensor:
        """int64 (B, S): the largest position + 1 of the sequence that each token belongs to."""
        if self.sequence is None:  # positions at padding are no larger than those of tokens
            return (self.positions.amax(-1, keepdim=True) + 1).expand(self.shape)
        return _lengths(self.positions, self.sequence, self.shape[0] * (self.shape[1] + 1))[self.sequence]

    def attention_mask(self) -> Tensor | None:
        """bool, which keys each query attends to: (B, 1, 1, S), or (B, 1, S, S) for packed rows. None: all.

        A row without any token attends to all its padding, so that its softmax is finite.
        """
        if self.sequence is not None:
            same = self.sequence[:, :, None] == self.sequence[:, None, :]
            if self.mask is not None:
                same = same & (self.mask[:, None, :] | ~self.mask[:, :, None])
            return same[:, None]
        if self.mask is None:
            return None
        return (self.mask | ~self.mask.any(-1, keepdim=True))[:, None, None, :]

    def tokens(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The real tokens of tensors in token layout: (B, S, ...) -> (T, ...)."""
        flat = (t.flatten(0, 1) for t in tensors)
        return tuple(flat) if self.mask is None else tuple(t[self.mask.flatten()] for t in flat)

    def pool(self, x: Tensor, how: str) -> Tensor:
        """One vector per sequence: (B, S, D) -> (N, D). Padding never counts; an empty sequence gives 0.

        Args:
            x: hidden states in token layout.
            how: `mean`, `max` or `cls` (the first token of each sequence).
        """
        if self.packed:
            return _pool(self.num_sequences, how, *self.tokens(x, self.sequences(), self.is_first))
        if self.mask is None:
            if how == "cls":
                return x[:, 0]
            return x.amax(1) if how == "max" else x.to(wide(x)).mean(1).to(x.dtype)
        mask = self.mask.unsqueeze(-1)
        if how == "cls":
            first = self.mask.to(torch.int64).argmax(-1)
            row = torch.arange(x.shape[0], device=x.device)
            return x[row, first] * self.mask.any(-1, keepdim=True).to(x.dtype)
        if how == "max":
            lowest = torch.finfo(x.dtype).min
            return x.masked_fill(~mask, lowest).amax(1).masked_fill(~mask.any(1), 0.0)
        total = x.to(wide(x)).masked_fill(~mask, 0.0).sum(1)
        return (total / mask.sum(1).clamp(min=1)).to(x.dtype)


@dataclass
class Unpadded(Batch):
    """The real tokens alone, (1, T, ...), sequence after sequence. n of the N sequences hold a token."""

    index: Tensor
    """int64 (T,): place of each token in the flattened input."""
    sequence: Tensor
    """int64 (1, T): which of the N sequences each token belongs to."""
    counts: Tensor
    """int64 (n,): tokens in each sequence that holds one."""
    grid_index: Tensor
    """int64 (T,): place of each token in the flattened grid."""
    longest: int
    """Tokens in the longest sequence."""

    unpadded = True
    mask = None

    def unpad(self, x: Tensor) -> Tensor:
        """Input layout (B, S, ...) -> token layout (1, T, ...)."""
        return x.flatten(0, 1).index_select(0, self.index).unsqueeze(0)

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Token layout -> input layout, with `fill` at padding."""
        return _scatter(x[0], self.index, self.shape, fill)

    @property
    def _is_full(self) -> bool:
        """Whether all sequences are equally long: the grid then holds the tokens in order, without a gap."""
        return self.counts.shape[0] * self.longest == self.index.shape[0]

    @functools.cached_property
    def cu_seqlens(self) -> Tensor:
        """int32 (n + 1,): where each sequence starts, and where the last one ends."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Tokens of each sequence that holds one."""
        return self.counts.tolist()

    @functools.cached_property
    def block_mask(self) -> Any:
        """For flex_attention: tokens attend to their own sequence."""
        document, length = self.sequence[0], self.sequence.shape[1]

        def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return document[q] == document[k]

        return create_block_mask(same, None, None, length, length, device=document.device)

    def to_grid(self, x: Tensor, fill: float = 0) -> Tensor:
        """Token layout -> grid layout (n, L, ...), `fill` at empty places."""
        grid = (self.counts.shape[0], self.longest)
        return x.reshape(*grid, *x.shape[2:]) if self._is_full else _scatter(x[0], self.grid_index, grid, fill)

    def from_grid(self, x: Tensor) -> Tensor:
        """Grid layout (n, L, ...) -> token layout."""
        if self._is_full:
            return x.reshape(1, -1, *x.shape[2:])
        return x.flatten(0, 1).index_select(0, self.grid_index).unsqueeze(0)

    def grid_positions(self) -> Tensor:
        """Positions in grid layout (n, L), or (1, L) where they are the same in every row."""
        if self.counted:
            return torch.arange(self.longest, device=self.positions.device).unsqueeze(0)
        return self.to_grid(self.positions)

    def grid_is_first(self) -> Tensor:
        """Which places of the grid hold a sequence's first token: bool (1, L), for rows are alike."""
        return (torch.arange(self.longest, device=self.positions.device) == 0).unsqueeze(0)

    def sequences(self) -> Tensor:
        """int64 (1, T): the sequence of each token."""
        return self.sequence

    owner = sequences

    def grid_sequences(self) -> Tensor:
        """int64 (n, L): the sequence of each token, -1 at empty places."""
        return self.to_grid(self.sequence, -1)

    def lengths(self) -> Tensor:
        """int64 (1, T): the largest position + 1 of the sequence that each token belongs to."""
        return _lengths(self.positions, self.sequence, self.num_sequences)[self.sequence]

    def attention_mask(self) -> Tensor | None:
        """bool (n, 1, 1, L), which keys each query of a row attends to. None: all."""
        if self._is_full:
            return None
        return self.to_grid(torch.ones_like(self.sequence, dtype=torch.bool))[:, None, None, :]

    def tokens(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The real tokens of tensors in token layout: (1, T, ...) -> (T, ...)."""
        return tuple(t[0] for t in tensors)

    def pool(self, x: Tensor, how: str) -> Tensor:
        """One vector per sequence: (1, T, D) -> (N, D). An empty sequence gives 0. `how`: see `Padded.pool`."""
        return _pool(self.num_sequences, how, *self.tokens(x, self.sequence, self.is_first))


AnyBatch = Padded | Unpadded


def by_sequence(batch: AnyBatch, x: Tensor, fill: float = 0.0) -> Tensor:
    """Token layout -> (N, L, ...), one row per sequence; the input layout (B, S, ...) where rows aren't packed."""
    if not batch.packed:
        return batch.pad(x, fill)
    hidden, sequence = batch.tokens(x, batch.sequences())
    counts = torch.bincount(sequence, minlength=batch.num_sequences)
    offset = torch.arange(sequence.shape[0], device=x.device) - (counts.cumsum(0) - counts)[sequence]
    width = int(counts.max())
    return _scatter(hidden, sequence * width + offset, (batch.num_sequences, width), fill)


def _pool(count: int, how: str, x: Tensor, sequence: Tensor, is_first: Tensor) -> Tensor:
    """(T, D), (T,), (T,) -> (count, D), as `Padded.pool` says."""
    pooled = x.new_zeros(count, x.shape[-1])
    if how == "cls":
        return pooled.index_copy(0, sequence[is_first], x[is_first])
    if how == "max":
        return pooled.scatter_reduce(0, sequence.unsqueeze(-1).expand_as(x), x, "amax", include_self=False)
    total = pooled.to(wide(x)).index_add(0, sequence, x.to(wide(x)))
    tokens = torch.bincount(sequence, minlength=count).clamp(min=1)
    return (total / tokens.unsqueeze(-1)).to(x.dtype)


def _lengths(positions: Tensor, sequence: Tensor, count: int) -> Tensor:
    """The largest position + 1 of each sequence: int64 (count,)."""
    return positions.new_zeros(count).scatter_reduce(0, sequence.flatten(), positions.flatten() + 1, "amax")


def _scatter(x: Tensor, index: Tensor, shape: tuple[int, int], fill: float) -> Tensor:
    """(T, ...) -> (*shape, ...): the tokens at the places `index` of the flattened `shape`, `fill` elsewhere."""
    flat = x.new_full((shape[0] * shape[1], *x.shape[1:]), fill)
    return flat.index_copy(0, index, x).unflatten(0, shape)


def augment_positions(batch: AnyBatch, how: str, limit: int) -> AnyBatch:
    """The batch with each sequence's positions moved, at random but in order, within 0 .. limit - 1.

    One draw per sequence from torch's default generator, the same whether padding is computed on or not.

    Args:
        batch: its positions count from 0 in each sequence.
        how: `shift`, p + k, k uniform such that all positions stay below `limit`; or `random`, the p-th smallest of a
            uniform sample without replacement.
        limit: number of positions to choose from.

    Raises:
        ValueError: a sequence has more tokens than there are positions.
    """
    positions, device = batch.positions, batch.positions.device
    longest = batch.longest  # a traced graph knows only this, padding included
    if not tracing() and longest > limit:
        longest = int(positions.max()) + 1
    if longest > limit:
        raise ValueError(
            f"A training sequence has {longest} tokens, but position_augmentation={how!r} has "
            f"{limit} positions to choose from. Raise position_augmentation_length, or truncate to {limit} tokens."
        )
    sequence, count = batch.owner(), batch.num_sequences
    lengths = _lengths(positions, sequence, count)
    if how == "shift":
        room = limit - lengths + 1
        start = (torch.rand(count, device=device) * room).long()
        return replace(batch, positions=positions + start[sequence], counted=False)
    places = torch.arange(limit, device=device)
    # The argsort of noise is a random order: the first n places in it are a sample without replacement.
    order = torch.rand(count, limit, device=device).argsort(-1)
    sample = torch.where(order < lengths.unsqueeze(-1), places, limit).sort(-1).values
    return replace(batch, positions=sample[sequence, positions], counted=False)


def make_batch(
    batch: int,
    length: int,
    device: torch.device,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    unpad: bool = True,
) -> AnyBatch:
    """Finds the real tokens, the sequences and the positions of a batch.

    Positions are `position_ids` where given, else (attention_mask.cumsum(-1) - 1).clamp(min=0), or the place within the
    packed sequence, so that left padding, right padding and packing give the same result.

    Args:
        batch, length: B and S of the input.
        device: where the input is.
        attention_mask: (B, S), nonzero at real tokens. None: all are real.
        position_ids: (B, S), (1, S) or (S,). A row whose real tokens hold exactly several aranges from its smallest
            position, such as 0 1 2 0 1 or 2 3 4 2 3, is packed; any other order is that of one sequence.
        seq_idx: (B, S), the number of the sequence that each place belongs to, for packed rows.
        cu_seq_lens_q: (n + 1,), borders of the sequences of a batch of one row, as an alternative to `seq_idx`.
        unpad: compute on real tokens only, where there is padding or packing.

    Raises:
        ValueError: a shape or a value doesn't fit.
    """
    shape = (batch, length)
    mask = None
    if attention_mask is not None:
        way_out = "Give one number per token, as the tokenizer does: 1 for tokens, 0 for padding."
        mask = _fitting("attention_mask", attention_mask, shape, way_out) != 0
        if attention_mask.is_floating_point() and not tracing() and not bool((attention_mask >= 0).all()):
            least = float(attention_mask.min())  # a mask to add to logits, 0 at tokens, means the opposite
            raise ValueError(f"attention_mask holds {least}. {way_out}")
    position_ids = _check_positions(position_ids, shape)
    starts = _starts(shape, device, seq_idx, cu_seq_lens_q)
    segment: Tensor | None = None
    if starts is None and position_ids is not None:
        starts = _starts_in_positions(position_ids, mask)
        if tracing():  # whether a row is packed depends on data
            segment, starts = starts.cumsum(-1), None
        elif not bool(starts.any()):
            starts = None
    if mask is not None and not tracing() and bool(mask.all()):
        mask = None
    if starts is not None:
        found = _packed(shape, starts, mask, position_ids)
    else:
        found = _rows(shape, device, mask, position_ids, segment)
    if tracing() or not unpad or (mask is None and not found.packed):
        return found
    return _unpadded(found)


def _rows(
    shape: tuple[int, int],
    device: torch.device,
    mask: Tensor | None,
    position_ids: Tensor | None,
    segment: Tensor | None,
) -> Padded:
    """One sequence per row. In a traced graph rows may be packed: `segment` (B, S) counts their sequences from 1."""
    place = torch.arange(shape[1], device=device).expand(shape)
    if position_ids is not None:
        # Values at padding may be anything; 0 is in the range of every table.
        positions = position_ids if mask is None else position_ids.masked_fill(~mask, 0)
    else:
        positions = place if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    is_first = place == 0 if mask is None else mask & (mask.cumsum(-1) == 1)
    sequence = None
    if segment is not None:
        sequence = segment + torch.arange(shape[0], device=device).unsqueeze(-1) * (shape[1] + 1)
        is_first = is_first | (segment != segment.roll(1, -1)) & (segment > 1)
    return Padded(shape, positions, is_first, shape[0], position_ids is None, mask, sequence)


def _packed(shape: tuple[int, int], starts: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> Padded:
    """`starts` (B, S) is True where a new sequence starts; each row's first place starts one in any case."""
    starts = starts.clone()
    starts[:, 0] = True
    sequence = starts.flatten().cumsum(0).view(shape) - 1
    real = torch.ones_like(starts) if mask is None else mask
    # Number of real tokens before each place, since the start of its own sequence.
    seen = real.flatten().cumsum(0)
    before = torch.where(starts.flatten(), seen - real.flatten().long(), 0).cummax(0).values
    rank = (seen - before - 1).clamp(min=0).view(shape)
    positions = rank if position_ids is None else position_ids.masked_fill(~real, 0)
    is_first = real & (rank == 0)
    # A start at padding, such as at the end of a packed row, starts nothing. What counts as a sequence holds a token,
    # or is a row without any, which keeps its place in the output.
    holds = torch.zeros(int(sequence.max()) + 1, dtype=torch.bool, device=starts.device)
    holds[sequence[is_first]] = True
    holds[sequence[~real.any(-1), 0]] = True
    number = (holds.cumsum(0) - 1).clamp(min=0)
    counted = position_ids is None or bool((positions == rank)[real].all())
    found = Padded(shape, positions, is_first, int(holds.sum()), counted, mask, number[sequence])
    return found if found.packed else replace(found, sequence=None)


def _unpadded(padded: Padded) -> AnyBatch:
    (index,) = padded.tokens(torch.arange(padded.positions.numel(), device=padded.positions.device).view(padded.shape))
    if index.numel() == 0:  # attention over nothing is undefined; over masked padding it is defined, and gives 0
        return padded
    positions, is_first, sequence = padded.tokens(padded.positions, padded.is_first, padded.sequences())
    counts = torch.bincount(sequence, minlength=padded.num_sequences)
    longest = int(counts.max())
    rows = (counts > 0).cumsum(0) - 1  # sequences without a token get no row
    gaps = rows * longest - (counts.cumsum(0) - counts)  # empty places of the grid before each sequence
    return Unpadded(
        shape=padded.shape,
        positions=positions.unsqueeze(0),
        is_first=is_first.unsqueeze(0),
        num_sequences=padded.num_sequences,
        counted=padded.counted,
        index=index,
        sequence=sequence.unsqueeze(0),
        counts=counts[counts > 0],
        grid_index=torch.arange(index.shape[0], device=index.device) + gaps[sequence],
        longest=longest,
    )


def _fitting(name: str, given: Tensor, shape: tuple[int, int], way_out: str) -> Tensor:
    if tuple(given.shape) != shape:
        raise ValueError(f"{name} of shape {tuple(given.shape)} doesn't fit an input of shape {shape}. {way_out}")
    return given


def _check_positions(position_ids: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if position_ids is None:
        return None
    if position_ids.is_floating_point():
        raise ValueError(
            f"position_ids of {position_ids.dtype} can't be taken: positions are whole numbers. To train or test at "
            "positions between them, use 'rope' with rope_parameters={'rope_type': 'linear', 'factor': 2.0}."
        )
    if position_ids.dim() == 1:
        position_ids = position_ids.unsqueeze(0)
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, shape[0]) or position_ids.shape[1] != shape[1]:
        raise ValueError(
            f"position_ids of shape {tuple(position_ids.shape)} don't fit an input of shape {shape}. "
            "Give (B, S) or (1, S)."
        )
    return position_ids.to(torch.int64).expand(shape)


def _starts(
    shape: tuple[int, int], device: torch.device, seq_idx: Tensor | None, cu_seq_lens_q: Tensor | None
) -> Tensor | None:
    """bool (B, S), True where a sequence starts, from `seq_idx` or `cu_seq_lens_q`."""
    if seq_idx is not None:
        seq_idx = _fitting("seq_idx", seq_idx, shape, "Give (B, S).")
        starts = torch.ones(shape, dtype=torch.bool, device=device)
        starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
        return starts
    if cu_seq_lens_q is None:
        return None
    borders = cu_seq_lens_q.tolist() if cu_seq_lens_q.dim() == 1 else []
    rising = all(one < other for one, other in itertools.pairwise(borders))
    if shape[0] != 1 or len(borders) < 2 or (borders[0], borders[-1]) != (0, shape[1]) or not rising:
        raise ValueError(
            f"cu_seq_lens_q={cu_seq_lens_q.tolist()} doesn't cut an input of shape {shape} into sequences. It must "
            f"rise from 0 to {shape[1]}, for a batch of one row. For several rows, give seq_idx."
        )
    starts = torch.zeros(shape, dtype=torch.bool, device=device)
    starts[0, cu_seq_lens_q[:-1].to(device=device, dtype=torch.int64)] = True
    return starts


def _starts_in_positions(position_ids: Tensor, mask: Tensor | None) -> Tensor:
    """True where a sequence starts, if a row's real tokens are exactly several aranges from its smallest position."""
    real = torch.ones_like(position_ids, dtype=torch.bool) if mask is None else mask
    least = position_ids.masked_fill(~real, torch.iinfo(torch.int64).max).amin(-1, keepdim=True)
    # The position of the previous real token in the row: the last real place before this one.
    place = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    last = torch.where(real, place, -1).cummax(-1).values
    previous = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), -1)
    follows = (previous >= 0) & (position_ids == position_ids.gather(-1, previous.clamp(min=0)) + 1)
    starts = real & (position_ids == least)
    arange_rows = (starts | follows | ~real).all(-1)
    packed_rows = arange_rows & (starts.sum(-1) > 1)
    return starts & packed_rows.unsqueeze(-1)
