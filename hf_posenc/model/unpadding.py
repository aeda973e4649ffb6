"""Tokens without padding: which tokens are real, which sequence each belongs to, and moving between the layouts.

Three layouts. *Input layout* (B, S, ...) is what the caller gave. *Token layout* is what embeddings, linear layers,
norms and heads work on. *Grid layout* (n, L, ...) has one row per sequence, as attention needs it. Unpadded, token
layout is (1, T, ...), the T real tokens alone, and the grid has a row for each sequence that has a token, so that
packed rows are split and no attention crosses a border. Padded, all three are the input layout.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .position_math import tracing, wide


@dataclass
class Layout:
    """Where each token of a batch is. Made by `make_layout`; see the module for the three layouts."""

    shape: tuple[int, int]
    """(B, S) of the input."""
    positions: Tensor
    """int64, token layout: 0-based inside each sequence, or the caller's position_ids."""
    is_first: Tensor
    """bool, token layout: the first token of each sequence."""
    mask: Tensor | None
    """bool (B, S): which places of the input are real tokens. None: all."""
    num_sequences: int
    """N: sequences in the batch, empty rows included. Equals B unless rows are packed."""
    packed: bool
    """Whether some row holds several sequences."""
    counted: bool
    """Whether positions are simply 0, 1, 2, ... within each sequence."""
    longest: int
    """Tokens in the longest sequence (its upper bound, S, when nothing had to be read from the device)."""
    sequence: Tensor | None = None
    """int64, token layout: which of the N sequences each token belongs to. None: its row."""
    token_index: Tensor | None = None
    """int64 (T,): place of each real token in the flattened input. None: not unpadded."""
    grid_index: Tensor | None = None
    """int64 (T,): place of each real token in the flattened grid."""
    grid_shape: tuple[int, int] = (0, 0)
    """(n, L) of the grid."""
    counts: Tensor | None = None
    """int64 (n,): tokens in each row of the grid, unpadded."""
    segment: Tensor | None = None
    """int64 (B, S), traced graphs only: the sequence of each place in its row, for whether a row is packed is data."""

    @property
    def unpadded(self) -> bool:
        """Whether token layout holds real tokens only."""
        return self.token_index is not None

    def to(self, *args: Any, **kwargs: Any) -> "Layout":
        """All tensors on another device (accelerate calls this between devices)."""
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: value.to(*args, **kwargs) for name, value in tensors.items()})

    def take(self, x: Tensor) -> Tensor:
        """Input layout (B, S, ...) -> token layout."""
        if self.token_index is None:
            return x
        return x.flatten(0, 1).index_select(0, self.token_index).unsqueeze(0)

    def put_back(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Token layout -> input layout, with `fill` at padding."""
        if self.token_index is None:
            if self.mask is None:
                return x
            return x.masked_fill(~self.mask.view(self.mask.shape + (1,) * (x.dim() - 2)), fill)
        batch, length = self.shape
        return _scatter(x[0], self.token_index, batch * length, fill).unflatten(0, (batch, length))

    def to_grid(self, x: Tensor) -> Tensor:
        """Token layout -> grid layout (n, L, ...), zero at empty places."""
        if self.grid_index is None:
            return x
        rows, length = self.grid_shape
        if rows * length == x.shape[1]:  # all sequences are equally long: the grid is full and in order
            return x.reshape(rows, length, *x.shape[2:])
        return _scatter(x[0], self.grid_index, rows * length, 0).unflatten(0, (rows, length))

    def from_grid(self, x: Tensor) -> Tensor:
        """Grid layout (n, L, ...) -> token layout."""
        if self.grid_index is None:
            return x
        if x.shape[0] * x.shape[1] == self.grid_index.shape[0]:
            return x.reshape(1, -1, *x.shape[2:])
        return x.flatten(0, 1).index_select(0, self.grid_index).unsqueeze(0)

    def grid_positions(self) -> Tensor:
        """Positions in grid layout, (n, L), or (1, L) where they are the same in every row."""
        if self.counted and self.unpadded:
            return torch.arange(self.grid_shape[1], device=self.positions.device).unsqueeze(0)
        if self.counted and self.mask is None and not self.packed:
            return self.positions[:1]
        return self.to_grid(self.positions)

    def grid_is_first(self) -> Tensor:
        """Which places of the grid hold a sequence's first token: bool (n, L), or (1, L) where rows are alike."""
        if self.unpadded:
            return (torch.arange(self.grid_shape[1], device=self.positions.device) == 0).unsqueeze(0)
        return self.is_first if self.mask is not None or self.packed else self.is_first[:1]

    def lengths(self) -> Tensor:
        """int64, token layout: the largest position + 1 of the sequence that each token belongs to."""
        positions = self.positions
        if self.mask is not None and not self.unpadded:
            positions = positions.masked_fill(~self.mask, 0)
        if self.sequence is not None:
            index, size = self.sequence.view(1, -1), self.num_sequences
        elif self.segment is not None:  # segments of a row are numbered from 0 or 1, and there are at most S
            index, size = self.segment, self.shape[1] + 1
        else:
            return (positions.amax(-1, keepdim=True) + 1).expand(positions.shape)
        largest = positions.new_zeros(index.shape[0], size).scatter_reduce(
            1, index, positions.reshape(index.shape), "amax"
        )
        return (largest.gather(1, index) + 1).view(positions.shape)

    def attention_mask(self) -> Tensor | None:
        """bool, what each query may see: (n, 1, 1, L), or (B, 1, S, S) for packed rows kept padded. None: everything.

        A row without any token sees all its padding instead of nothing, so that its softmax is finite.
        """
        if self.grid_index is not None:
            rows, length = self.grid_shape
            if rows * length == self.grid_index.shape[0]:
                return None
            return _scatter(torch.ones_like(self.grid_index, dtype=torch.bool), self.grid_index, rows * length, 0).view(
                rows, 1, 1, length
            )
        segment = self.sequence if self.packed else self.segment
        if self.mask is None and segment is None:
            return None
        if segment is None:
            mask = self.mask
            assert mask is not None
            return (mask | ~mask.any(-1, keepdim=True))[:, None, None, :]
        same = segment[:, :, None] == segment[:, None, :]
        if self.mask is not None:
            same = same & (self.mask[:, None, :] | ~self.mask[:, :, None])
        return same[:, None]

    def pool(self, x: Tensor, how: str) -> Tensor:
        """One vector per sequence: token layout (..., D) -> (N, D). Padding never counts; an empty sequence gives 0.

        Args:
            x: hidden states in token layout.
            how: `mean`, `max` or `cls` (the first token of each sequence).
        """
        if self.sequence is None:
            return self._pool_rows(x, how)
        hidden, sequence, is_first = x.flatten(0, 1), self.sequence.flatten(), self.is_first.flatten()
        if not self.unpadded and self.mask is not None:
            real = self.mask.flatten()
            hidden, sequence, is_first = hidden[real], sequence[real], is_first[real]
        pooled = hidden.new_zeros(self.num_sequences, hidden.shape[-1])
        if how == "cls":
            return pooled.index_copy(0, sequence[is_first], hidden[is_first])
        if how == "max":
            index = sequence.unsqueeze(-1).expand_as(hidden)
            return pooled.scatter_reduce(0, index, hidden, "amax", include_self=False)
        total = pooled.to(wide(x)).index_add(0, sequence, hidden.to(wide(x)))
        count = torch.bincount(sequence, minlength=self.num_sequences).clamp(min=1)
        return (total / count.unsqueeze(-1)).to(x.dtype)

    def by_sequence(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Token layout -> (N, S', ...), one row per sequence; the input layout where rows aren't packed."""
        if not self.packed:
            return self.put_back(x, fill)
        assert self.sequence is not None
        hidden, sequence, is_first = x.flatten(0, 1), self.sequence.flatten(), self.is_first.flatten()
        if not self.unpadded and self.mask is not None:
            real = self.mask.flatten()
            hidden, sequence, is_first = hidden[real], sequence[real], is_first[real]
        counts = torch.bincount(sequence, minlength=self.num_sequences)
        offset = torch.arange(sequence.shape[0], device=x.device) - (counts.cumsum(0) - counts)[sequence]
        width = int(counts.max())
        return _scatter(hidden, sequence * width + offset, self.num_sequences * width, fill).unflatten(0, (-1, width))

    def _pool_rows(self, x: Tensor, how: str) -> Tensor:
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


def augment_positions(layout: Layout, how: str, limit: int) -> Layout:
    """The layout with each sequence's positions moved, at random but in order, within 0 .. limit - 1.

    One draw per sequence from torch's default generator, the same whether padding is computed on or not.

    Args:
        layout: a batch whose positions count from 0 in each sequence.
        how: `shift`, p + k, k uniform such that all positions stay below `limit`; or `random`, the p-th smallest of a
            uniform sample without replacement.
        limit: number of positions to choose from.

    Raises:
        ValueError: a sequence has more tokens than there are positions.
    """
    positions, device = layout.positions, layout.positions.device
    longest = layout.longest  # all that a traced graph knows, padding included
    if not tracing() and longest > limit:
        longest = int(positions.max()) + 1
    if longest > limit:
        raise ValueError(
            f"A training sequence has {longest} tokens, but position_augmentation={how!r} has "
            f"{limit} positions to choose from. Raise position_augmentation_length, or truncate to {limit} tokens."
        )
    if layout.sequence is None:
        sequence = torch.arange(layout.shape[0], device=device).unsqueeze(-1).expand_as(positions)
    else:
        sequence = layout.sequence
    lengths = positions.new_zeros(layout.num_sequences).scatter_reduce(
        0, sequence.flatten(), positions.flatten() + 1, "amax"
    )
    if how == "shift":
        room = limit - lengths + 1
        start = (torch.rand(layout.num_sequences, device=device, dtype=torch.float64) * room).long()
        return replace(layout, positions=positions + start[sequence], counted=False)
    places = torch.arange(limit, device=device)
    # The argsort of noise is a random order: the first n places in it are a sample without replacement.
    order = torch.rand(layout.num_sequences, limit, device=device).argsort(-1)
    sample = torch.where(order < lengths.unsqueeze(-1), places, limit).sort(-1).values
    return replace(layout, positions=sample[sequence, positions], counted=False)


def make_layout(
    batch: int,
    length: int,
    device: torch.device,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    unpad: bool = True,
) -> Layout:
    """Finds the real tokens, the sequences and the positions of a batch.

    Positions are `position_ids` where given, else (attention_mask.cumsum(-1) - 1).clamp(min=0), or the place within the
    packed sequence, so that left padding, right padding and packing give the same result.

    Args:
        batch, length: B and S of the input.
        device: where the input is.
        attention_mask: (B, S), nonzero at real tokens. None: all are real.
        position_ids: (B, S), (1, S) or (S,). A row whose real tokens hold exactly 0 1 2 .. 0 1 2 .. (several aranges
            from 0) is packed; any other order is taken as plain positions of one sequence.
        seq_idx: (B, S), the number of the sequence that each place belongs to: says outright that rows are packed.
        cu_seq_lens_q: (n + 1,), borders of the sequences of a batch of one row: the same.
        unpad: compute on real tokens only, where there is padding or packing.

    Raises:
        ValueError: a shape or a value doesn't fit.
    """
    shape = (batch, length)
    static = tracing()
    mask = _check_mask(attention_mask, shape)
    position_ids = _check_positions(position_ids, shape)
    borders = _borders(shape, device, seq_idx, cu_seq_lens_q)
    segment = None
    if borders is None and position_ids is not None:
        borders = _borders_from_positions(position_ids, mask)
        if static:
            segment, borders = borders.cumsum(-1), None
        elif not bool(borders.any()):
            borders = None
    if mask is not None and not static and bool(mask.all()):
        mask = None

    if borders is None:
        if position_ids is not None:
            # What stands at padding is never read, and may be anything: keep it inside any table.
            positions = position_ids if mask is None else position_ids.masked_fill(~mask, 0)
        elif mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        else:
            positions = torch.arange(length, device=device).expand(shape)
        if mask is not None:
            is_first = mask & (mask.cumsum(-1) == 1)
        else:
            is_first = (torch.arange(length, device=device) == 0).expand(shape)
        if segment is not None:
            is_first = is_first | (segment != segment.roll(1, -1)) & (segment > 1)
        layout = Layout(shape, positions, is_first, mask, batch, False, position_ids is None, length, segment=segment)
    else:
        layout = _packed_layout(shape, borders, mask, position_ids)
    if static or not unpad or (mask is None and not layout.packed):
        return layout
    return _unpad(layout)


def _packed_layout(shape: tuple[int, int], borders: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> Layout:
    """`borders` (B, S) is True where a new sequence starts; each row's first place starts one in any case."""
    starts = borders.clone()
    starts[:, 0] = True
    sequence = starts.flatten().cumsum(0).view(shape) - 1
    real = torch.ones_like(starts) if mask is None else mask
    # Number of real tokens before each place, since the start of its own sequence.
    seen = real.flatten().cumsum(0)
    before = torch.where(starts.flatten(), seen - real.flatten().long(), 0).cummax(0).values
    rank = (seen - before - 1).clamp(min=0).view(shape)
    positions = rank if position_ids is None else position_ids.masked_fill(~real, 0)
    is_first = real & (rank == 0)
    # A border at padding (the end of a packed row, say) starts nothing: only sequences with a token are numbered, and
    # a row without any, so that it keeps a place in the output.
    holds = torch.zeros(int(sequence.max()) + 1, dtype=torch.bool, device=starts.device)
    holds[sequence[is_first]] = True
    empty_row = ~real.any(-1)
    holds[sequence[empty_row, 0]] = True
    number = (holds.cumsum(0) - 1).clamp(min=0)
    packed = bool(holds.sum() > shape[0])
    counted = position_ids is None or bool((positions == rank)[real].all())
    return Layout(
        shape, positions, is_first, mask, int(holds.sum()), packed, counted, shape[1], sequence=number[sequence]
    )


def _unpad(layout: Layout) -> Layout:
    batch, length = layout.shape
    device = layout.positions.device
    if layout.mask is not None:
        token_index = layout.mask.flatten().nonzero().squeeze(-1)
        if token_index.numel() == 0:  # attention over nothing isn't defined; over masked padding it is, and gives 0
            return layout
    else:
        token_index = torch.arange(batch * length, device=device)
    if layout.sequence is not None:
        sequence = layout.sequence.flatten().index_select(0, token_index)
    else:
        sequence = token_index // max(length, 1)
    counts = torch.bincount(sequence, minlength=layout.num_sequences)
    ends = counts.cumsum(0)
    longest = int(counts.max())
    row = (counts > 0).cumsum(0) - 1  # sequences without a token get no row
    offset = torch.arange(token_index.shape[0], device=device) - (ends - counts).index_select(0, sequence)
    rows = int(row[-1]) + 1
    return Layout(
        shape=layout.shape,
        positions=layout.positions.flatten().index_select(0, token_index).unsqueeze(0),
        is_first=layout.is_first.flatten().index_select(0, token_index).unsqueeze(0),
        mask=layout.mask,
        num_sequences=layout.num_sequences,
        packed=layout.packed,
        counted=layout.counted,
        longest=longest,
        sequence=sequence.unsqueeze(0),
        token_index=token_index,
        grid_index=row.index_select(0, sequence) * longest + offset,
        grid_shape=(rows, longest),
        counts=counts[counts > 0],
    )


def _check_mask(attention_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if attention_mask is None:
        return None
    if tuple(attention_mask.shape) != shape:
        raise ValueError(
            f"attention_mask of shape {tuple(attention_mask.shape)} doesn't fit an input of shape {shape}. "
            "Give one number per token, as the tokenizer does: 1 for tokens, 0 for padding."
        )
    return attention_mask != 0


def _check_positions(position_ids: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if position_ids is None:
        return None
    if position_ids.dim() == 1:
        position_ids = position_ids.unsqueeze(0)
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, shape[0]) or position_ids.shape[1] != shape[1]:
        raise ValueError(
            f"position_ids of shape {tuple(position_ids.shape)} don't fit an input of shape {shape}. "
            "Give (B, S) or (1, S)."
        )
    return position_ids.to(torch.int64).expand(shape)


def _borders(
    shape: tuple[int, int], device: torch.device, seq_idx: Tensor | None, cu_seq_lens_q: Tensor | None
) -> Tensor | None:
    """bool (B, S), True where a sequence starts, from what the caller said outright."""
    if seq_idx is not None:
        if tuple(seq_idx.shape) != shape:
            raise ValueError(
                f"seq_idx of shape {tuple(seq_idx.shape)} doesn't fit an input of shape {shape}. Give (B, S)."
            )
        borders = torch.ones(shape, dtype=torch.bool, device=device)
        borders[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
        return borders
    if cu_seq_lens_q is None:
        return None
    lengths = cu_seq_lens_q.diff() if cu_seq_lens_q.dim() == 1 else None
    if (
        shape[0] != 1
        or lengths is None
        or lengths.numel() == 0
        or int(cu_seq_lens_q[0]) != 0
        or int(cu_seq_lens_q[-1]) != shape[1]
        or bool((lengths <= 0).any())
    ):
        raise ValueError(
            f"cu_seq_lens_q={cu_seq_lens_q.tolist()} doesn't cut an input of shape {shape} into sequences. It must "
            f"rise from 0 to {shape[1]}, for a batch of one row. For several rows, give seq_idx."
        )
    borders = torch.zeros(shape, dtype=torch.bool, device=device)
    borders[0, cu_seq_lens_q[:-1].to(device=device, dtype=torch.int64)] = True
    return borders


def _borders_from_positions(position_ids: Tensor, mask: Tensor | None) -> Tensor:
    """True where a sequence starts, if some row's real tokens are exactly several aranges from 0."""
    real = torch.ones_like(position_ids, dtype=torch.bool) if mask is None else mask
    # The position of the previous real token in the row: the last real place before this one.
    place = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    last = torch.where(real, place, -1).cummax(-1).values
    previous = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), -1)
    step_from = torch.where(previous >= 0, position_ids.gather(-1, previous.clamp(min=0)), -1)
    starts = real & (position_ids == 0)
    continues = real & (position_ids == step_from + 1) & (position_ids > 0)
    arange_rows = (starts | continues | ~real).all(-1)
    packed_rows = arange_rows & (starts.sum(-1) > 1)
    return starts & packed_rows.unsqueeze(-1)


def _scatter(x: Tensor, index: Tensor, size: int, fill: float) -> Tensor:
    """Rows of x (T, ...) at places `index` of a new (size, ...) tensor, `fill` elsewhere."""
    return x.new_full((size, *x.shape[1:]), fill).index_copy(0, index, x)
