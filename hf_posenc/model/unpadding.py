"""Where the tokens of a batch are: which are real, which sequence each belongs to, and what its position is.

Three layouts. *Input layout* (B, S, ...) is what the caller gave. *Token layout* is what embeddings, linear layers,
norms and heads work on: the input's, or where the batch is unpadded its T real tokens alone, (1, T, ...). *Padded
layout* is what attention with a mask works on, a row for each sequence: the input's, or (n, L, ...) where packed rows
are split, so that attention crosses no border.

A scheme's hooks read a `Tokens`, in the hook's own layout; the encoder keeps a `TokenLayout`.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .scheme_math import accumulation_dtype, have_fixed_shapes, tracing


class Movable:
    """Holds tensors that move together, those in lists, in tuples and in other such objects too."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Copies it to another device (accelerate calls this between devices)."""
        moved = copy.copy(self)
        vars(moved).update({name: _to_device(value, *args, **kwargs) for name, value in vars(self).items()})
        return moved


def _to_device(value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_to_device(item, *args, **kwargs) for item in value)
    return value.to(*args, **kwargs) if isinstance(value, (Tensor, Movable)) else value


@dataclass
class Tokens(Movable):
    """The tokens of a batch, as a scheme's hooks see them.

    Axes: B sequences, S places, D hidden width; (...) is (B, S), or (1, T) where the batch is unpadded, or (1, S) for
    what is the same in every row of padded layout. A hook reads `positions`, `is_first`, `sequence`, `lengths`,
    `input_ids`, `hidden_states`, `projections`, `max_distance` and `distances()`, and calls `in_order`, `from_order`
    and `map_positions`; the rest is the encoder's.

    Attributes:
        positions: int64 (...): 0-based in each sequence, or the caller's `position_ids`; 0 at padding.
        sequence: int64 (...): which sequence each token belongs to, counted over the batch; -1 at padding.
        num_sequences: N, empty rows included. More than B where rows are packed; 0 where nobody can tell.
        longest: no sequence has more tokens than this.
        positions_are_aranges: positions are 0, 1, 2, ... within each sequence.
        position_range: no position is smaller or larger. None: nobody can tell, as in a traced graph.
        may_be_packed: rows may hold several sequences: in a traced graph, where `position_ids` are given.
        has_rows: False for the tokens of an unpadded batch, (1, T).
        projections: in `layer_bias` the layer's own linear layers that make q and k of hidden states; None elsewhere.
    """

    positions: Tensor
    _rank: Tensor  # int64 (...): each token's place in its sequence, in the order of the input; -1 at padding
    sequence: Tensor
    num_sequences: int
    longest: int
    positions_are_aranges: bool
    position_range: tuple[int, int] | None = None
    may_be_packed: bool = False
    has_rows: bool = True
    projections: tuple[nn.Module, nn.Module] | None = None
    _ids: Tensor | None = None  # `input_ids` in token layout
    _hidden: Tensor | None = None  # `hidden_states` in token layout
    _rows: "Rows | None" = None  # in padded layout, what lays them out

    @classmethod
    def from_positions(cls, positions: Tensor, input_ids: Any = None, hidden_states: Any = None) -> "Tokens":
        """Tokens at these positions, a sequence in each row: to call a hook outside a model.

        Args:
            positions: int64 (B, S), (1, S) for the same in all rows, or (S,) of one sequence; 0-based in each.
            input_ids: int64 (B, S). None: `inputs_embeds` were given.
            hidden_states: what q and k are projected from, (B, S, D).
        """
        *rows, length = positions.shape if hidden_states is None else hidden_states.shape[:-1]
        rank = torch.arange(length, device=positions.device).expand_as(positions)
        sequence = torch.arange(math.prod(rows), device=positions.device).view(*rows, 1).expand(*rows, length)
        tokens = cls(positions, rank, sequence, math.prod(rows), length, False, _ids=input_ids, _hidden=hidden_states)
        if not have_fixed_shapes(positions) and positions.numel():
            tokens.positions_are_aranges = bool((positions == rank).all())
            tokens.position_range = int(positions.min()), int(positions.max())
        return tokens

    @property
    def is_first(self) -> Tensor:
        """bool (...): the first token of each sequence, whatever its position is."""
        return self._rank == 0

    @property
    def lengths(self) -> Tensor:
        """int64 (...): the largest position + 1 of the sequence that each token belongs to."""
        positions = self.positions.expand_as(self.sequence).masked_fill(self.sequence < 0, 0)
        if tracing() and self.has_rows and not self.may_be_packed:  # OpenVINO has no `scatter_reduce`
            return positions.amax(-1, keepdim=True).expand_as(positions) + 1
        count = positions.numel() if self.may_be_packed else self.num_sequences  # a traced graph leaves gaps
        return last_positions(positions, self.sequence, count)[self.sequence.clamp(min=0)] + 1

    @property
    def input_ids(self) -> Tensor | None:
        """int64 (...): the token ids; None where the caller gave `inputs_embeds`."""
        return self._laid_out(self._ids)

    @property
    def hidden_states(self) -> Tensor | None:
        """(..., D): in `layer_bias` what q and k were projected from, in `rotary` and `bias` what layer 0 gets."""
        return self._laid_out(self._hidden)

    def _laid_out(self, x: Tensor | None) -> Tensor | None:
        return x if x is None or self._rows is None else self._rows.lay_out(x)

    def distances(self) -> Tensor:
        """p_j - p_i of query i and key j, int64 (1 or B, S, S). In padded layout: for `bias` and `layer_bias`.

        Raises:
            ValueError: the tokens aren't in rows, as another hook of an unpadded batch sees them.
        """
        if not self.has_rows:
            raise ValueError("tokens.distances() is for bias and layer_bias: other hooks see tokens without rows.")
        return self.positions[:, None, :] - self.positions[:, :, None]

    @property
    def max_distance(self) -> int | None:
        """The largest distance of two positions, or more. None: nobody can tell, as in a traced graph."""
        return None if self.position_range is None or tracing() else self.position_range[1] - self.position_range[0]

    def map_positions(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """`function(positions)`, once for each position where they are counted: (...) -> (..., D)."""
        if not self.positions_are_aranges:
            return function(self.positions)
        places = torch.arange(max(self.longest, 1), device=self.positions.device)
        return nn.functional.embedding(self.positions, function(places))

    def in_order(self, x: Tensor) -> Tensor:
        """Lays sequences out in rows, sorted by position: (..., D) -> (N, L, D). For what runs over a sequence.

        Tokens of equal position keep the order of the input; a row is zero after its sequence's end, and L is at least
        the longest one's length.

        Raises:
            ValueError: rows may be packed in a traced graph, which can't count their sequences.
        """
        x = x.expand(*self.sequence.shape, x.shape[-1]).reshape(-1, x.shape[-1])
        rows = x.new_zeros(self.num_sequences * self.longest + 1, x.shape[-1])  # the last one is padding's
        return rows.index_copy(0, self._places(), x)[:-1].view(self.num_sequences, self.longest, x.shape[-1])

    def from_order(self, y: Tensor) -> Tensor:
        """Undoes `in_order`: (N, L, D) -> (..., D), zero at padding."""
        rows = nn.functional.pad(y.flatten(0, 1), (0, 0, 0, 1))
        return rows.index_select(0, self._places()).view(*self.sequence.shape, y.shape[-1])

    def _places(self) -> Tensor:
        """Each token's place in the flattened rows of `in_order`: int64 (n,)."""
        if self.may_be_packed and self.position_range is None:
            raise ValueError(
                "A compiled or exported model can't tell the sequences of packed rows apart, so tokens.in_order can't "
                "lay them out. Leave position_ids, seq_idx and cu_seq_lens_q out, or call the model uncompiled."
            )
        sequence, rank = self.sequence.flatten(), self.positions.expand_as(self.sequence).flatten()
        if not self.positions_are_aranges:
            order = rank.argsort(stable=True)
            order = order[sequence[order].argsort(stable=True)]
            ordered = sequence[order]
            index = torch.arange(order.shape[0], device=order.device) - torch.searchsorted(ordered, ordered)
            rank = torch.empty_like(order).index_copy(0, order, index)
        return (sequence * self.longest + rank).masked_fill(sequence < 0, self.num_sequences * self.longest)


@dataclass
class TokenLayout(Movable):
    """Where the tokens of a batch are, and how what belongs to them goes from one layout into another."""

    shape: tuple[int, int]
    """(B, S) of the input layout."""
    tokens: Tokens
    """In token layout."""
    mask: Tensor | None = None
    """bool (B, S): which places hold a token. None: all."""
    counts: Tensor | None = None
    """int64 (N,): tokens of each sequence; None in a traced graph."""
    num_tokens: int = 0
    """T: tokens of a batch with padding or packing."""
    shortest: int = 0
    """No sequence has fewer tokens than this. 0 where nobody can tell."""
    index: Tensor | None = None
    """int64 (T,) in an unpadded batch: place of each token in the flattened input."""

    @classmethod
    def from_batch(
        cls,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        *,
        max_length: int | None = None,
        unpad: bool = True,
    ) -> "TokenLayout":
        """Finds the real tokens, the sequences and the positions of a batch.

        Positions are `position_ids` where given, else (attention_mask.cumsum(-1) - 1).clamp(min=0), or the place within
        the packed sequence, so that left padding, right padding and packing give the same result.

        Args:
            x: token ids (B, S), or embeddings (B, S, E).
            attention_mask, position_ids, seq_idx, cu_seq_lens_q: as in `PosEncModel.forward`.
            max_length: the longest sequence between the borders, if it is known: `max_length_q` there.
            unpad: compute on real tokens only, where there is padding or packing.

        Raises:
            ValueError: a shape or a value doesn't fit.
        """
        batch, length = shape = (x.shape[0], x.shape[1])
        fixed = have_fixed_shapes(attention_mask, position_ids, seq_idx, cu_seq_lens_q)
        mask = None if attention_mask is None else _check_mask(attention_mask, shape, fixed)
        position_ids = _check_positions(position_ids, shape)
        borders: Any = cu_seq_lens_q
        alone = attention_mask is None and position_ids is None  # else the host waits for these anyway
        trusted = alone and borders is not None and max_length is not None and borders.is_cuda
        if borders is not None:
            seq_idx = _sequences_from_borders(borders, shape, x.device, check=not (fixed or trusted))
        starts = None
        if seq_idx is not None:
            seq_idx = check_shape("seq_idx", seq_idx, shape, "Give (B, S).")
            starts = torch.ones(shape, dtype=torch.bool, device=x.device)
            starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
        elif position_ids is not None:
            starts = _starts_in_positions(position_ids, mask)
        tokens = _assign_sequences(x, starts, mask, position_ids)
        tokens._ids = None if x.dim() > 2 else x
        layout = cls(shape, tokens, mask)
        if fixed:
            tokens.num_sequences = batch if seq_idx is None else 0  # a traced graph can't count them
            return layout._clear_padding()
        if starts is None and mask is None:
            tokens.position_range, layout.counts = (0, length - 1), torch.full((batch,), length, device=x.device)
            layout.shortest = length
        elif starts is None:
            layout._read_row_lengths()
        elif trusted and max_length is not None:
            tokens.num_sequences, tokens.longest = borders.shape[0] - 1, max_length
            tokens.may_be_packed, tokens.position_range = tokens.num_sequences > 1, (0, max_length - 1)
            layout.counts, layout.num_tokens = borders.diff().to(torch.int64), length
        else:
            layout._clear_padding()._read_batch_facts(position_ids is not None)
        if unpad and (layout.mask is not None or layout.packed):
            layout = layout.without_padding()
        return layout._clear_padding() if layout.index is None and starts is None else layout

    def _clear_padding(self) -> "TokenLayout":
        """Gives padding the numbers that `Tokens` promises."""
        tokens = self.tokens
        if self.mask is not None:
            tokens.positions = tokens.positions.masked_fill(~self.mask, 0)
            tokens.sequence, tokens._rank = (x.masked_fill(~self.mask, -1) for x in (tokens.sequence, tokens._rank))
        return self

    def _read_row_lengths(self) -> None:
        """Sets what the lengths of rows tell, each with a sequence of counted positions. One transfer to the host."""
        self.counts = self.tokens._rank[:, -1] + 1
        lengths = self.counts.tolist()
        self.shortest, self.tokens.longest, self.num_tokens = min(lengths), max(lengths), sum(lengths)
        self.tokens.position_range = (0, max(self.tokens.longest - 1, 0))
        self.mask = None if self.shortest == self.shape[1] else self.mask

    def _read_batch_facts(self, from_caller: bool) -> None:
        """Sets what only the numbers in a batch tell. One transfer to the host for all.

        Sequences are numbered without gaps: those that hold a token, and rows without any, which keep their place in
        the output. Positions that the caller gave count as counted only in packed rows: others may be any numbers.
        """
        tokens, mask, rows = self.tokens, self.mask, self.shape[0]
        sequence = tokens.sequence
        slots = sequence.numel() if tokens.may_be_packed else rows
        held = sequence.new_zeros(slots + 1)  # the last one is padding's
        held = held.index_add(0, sequence.flatten() % (slots + 1), held.new_ones(sequence.numel()))[:-1]
        exists = held > 0
        if mask is not None:
            exists.view(rows, -1)[:, 0] |= ~mask.any(-1)
        same, bounds = (tokens.positions == tokens._rank.clamp(min=0)).all(), tokens.positions.aminmax()
        facts = (same, exists.sum(), held.sum(), held.max(), *bounds)
        are_aranges, count, real, longest, least, most = torch.stack([fact.long() for fact in facts]).tolist()
        if tokens.may_be_packed:
            number = (exists.cumsum(0) - 1)[sequence]
            tokens.sequence = number if mask is None else number.masked_fill(~mask, -1)
            held = held[exists.nonzero_static(size=count).squeeze(1)]
        tokens.num_sequences, tokens.longest, tokens.position_range = count, longest, (least, most)
        tokens.may_be_packed = self.packed
        tokens.positions_are_aranges = bool(are_aranges) and (self.packed or not from_caller)
        self.counts, self.num_tokens, self.mask = held, real, None if real == sequence.numel() else mask

    @property
    def packed(self) -> bool:
        """True where some row holds several sequences."""
        return self.tokens.num_sequences > self.shape[0]

    def without_padding(self) -> "TokenLayout":
        """The real tokens alone, unless there is none."""
        tokens = self.tokens
        if self.index is not None or tokens.longest == 0:  # attention is undefined over nothing, and 0 over padding
            return self
        index = torch.arange(tokens.sequence.numel(), device=tokens.sequence.device)
        if self.mask is not None:
            index = self.mask.flatten().nonzero_static(size=self.num_tokens).squeeze(1)
        layout = replace(self, index=index)
        rank = layout.unpad(tokens._rank)
        positions = rank if tokens.positions is tokens._rank else layout.unpad(tokens.positions)
        sequence = layout.unpad(tokens.sequence) if self.packed else (index // self.shape[1]).unsqueeze(0)
        ids = None if tokens._ids is None else layout.unpad(tokens._ids)
        layout.tokens = replace(tokens, positions=positions, _rank=rank, sequence=sequence, _ids=ids)
        layout.tokens.may_be_packed, layout.tokens.has_rows = False, False
        return layout

    # ---- between layouts

    def unpad(self, x: Tensor) -> Tensor:
        """Input layout -> token layout."""
        return x if self.index is None else x.flatten(0, 1).index_select(0, self.index).unsqueeze(0)

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Token layout -> input layout, with `fill` at padding."""
        return self._fill(x, fill) if self.index is None else _scatter(x[0], self.index, self.shape, fill)

    def _fill(self, x: Tensor, fill: float) -> Tensor:
        return x if self.mask is None else x.masked_fill(~self.mask.view(self.mask.shape + (1,) * (x.dim() - 2)), fill)

    def by_sequence(self, x: Tensor, fill: float | None = 0.0) -> Tensor:
        """Input layout -> (N, L, ...), a row per sequence, with `fill` (None: any) where empty; L is S unless packed.

        Raises:
            ValueError: a traced graph can't count the sequences.
        """
        if not self.tokens.num_sequences:
            raise ValueError(
                "A compiled or exported model can't count the sequences of packed rows, so it can't give an answer for "
                "each. Leave seq_idx and cu_seq_lens_q out, with one sequence per row, or call the model uncompiled."
            )
        if not self.packed:
            return x if fill is None else self._fill(x, fill)
        layout = self.without_padding()
        return Rows(layout).lay_out(layout.unpad(x), fill or 0.0)

    def pool(self, x: Tensor, pooling: str) -> Tensor:
        """One vector per sequence: input layout (B, S, D) -> (N, D). Padding never counts; an empty sequence gives 0.

        Args:
            x: hidden states.
            pooling: `mean`, `max` or `cls` (the first token of each sequence).
        """
        # Numbers: older exporters to ONNX have neither sums nor choices of truth values.
        mask = torch.ones_like(x[..., 0], dtype=torch.int64) if self.mask is None else self.mask.long()
        real = self.by_sequence(mask, None)  # 0 at padding already
        x = self.by_sequence(x, {"max": torch.finfo(x.dtype).min, "mean": 0.0}.get(pooling))
        if pooling == "cls":
            pooled = x[torch.arange(x.shape[0], device=x.device), real.argmax(-1)]
        elif pooling == "max":
            pooled = x.amax(1)
        else:
            total = x.sum(1, dtype=accumulation_dtype(x))
            pooled = (total / real.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)
        return pooled if self.shortest else pooled.masked_fill(~real.any(1, keepdim=True), 0.0)

    def cu_seqlens(self) -> Tensor:
        """int32 (N + 1,) of an unpadded batch: where each sequence starts, and where the last one ends."""
        assert self.counts is not None
        return nn.functional.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)


class Rows(Movable):
    """Padded layout, a row for each sequence: attention in a single run, where `Runs` has several."""

    def __init__(self, layout: TokenLayout) -> None:
        tokens, mask = layout.tokens, layout.mask
        self.layout, self.shape = layout, (tokens.num_sequences, tokens.longest)
        self.index: Tensor | None = None  # int64 (T,) in an unpadded batch: place of each token in the flattened rows
        if layout.index is not None and layout.counts is not None:
            self.index = (tokens.sequence * tokens.longest + tokens._rank)[0]
            place = torch.arange(tokens.longest, device=self.index.device)
            mask = place < layout.counts.unsqueeze(-1)
        self.masks: list[Tensor | None] = [mask]
        """bool: which keys each query attends to, (B, 1, 1, S), or (B, 1, S, S) with borders. None: all."""
        if tokens.may_be_packed:
            self.masks = [tokens.sequence[:, None, :, None] == tokens.sequence[:, None, None, :]]
        elif mask is not None:  # padding attends to padding, so that every softmax is finite
            self.masks = [(mask | ~mask.any(-1, keepdim=True))[:, None, None, :]]

    def tokens(self) -> Tokens:
        """The tokens in padded layout. What is the same in every row has one row."""
        tokens = self.layout.tokens
        rows = replace(tokens, _rows=self, has_rows=True)
        if self.index is not None:
            place = torch.arange(tokens.longest, device=self.index.device).unsqueeze(0)
            rows.positions = place if tokens.positions_are_aranges else self.lay_out(tokens.positions)
            rows._rank, rows.sequence = place, self.lay_out(tokens.sequence, -1)
            if tokens.position_range is not None:  # empty places have position 0
                rows.position_range = (min(tokens.position_range[0], 0), max(tokens.position_range[1], 0))
        elif self.masks[0] is None:
            rows.positions = tokens.positions[:1] if tokens.positions_are_aranges else tokens.positions
            rows._rank = tokens._rank[:1]
        return rows

    def lay_out(self, x: Tensor, fill: float = 0) -> Tensor:
        """Token layout -> padded layout, with `fill` at empty places of an unpadded batch."""
        return x if self.index is None else _scatter(x[0], self.index, self.shape, fill)

    def pick(self, bias: Tensor) -> list[Tensor]:
        """The bias of each run: the whole."""
        return [bias]

    def split(self, x: Tensor) -> list[Tensor]:
        """Token layout -> the rows of each run: all."""
        return [self.lay_out(x)]

    def join(self, parts: list[Tensor]) -> Tensor:
        """Undoes `split`."""
        return parts[0] if self.index is None else parts[0].flatten(0, 1).index_select(0, self.index).unsqueeze(0)


class Runs(Movable):
    """Sequences of like lengths together, those of a run padded to one length: a multiple of 8, or the longest's.

    On a CPU attention over a few runs is faster than over a padded batch, and than over one sequence after the other.

    Args:
        counts: int64 (N,), tokens of each sequence, T in all.
    """

    step = 8

    def __init__(self, counts: Tensor) -> None:
        padded = (-(-counts // self.step) * self.step).clamp(max=counts.max())
        rows = padded.argsort(stable=True)[int((counts == 0).sum()) :]
        padded, lengths, starts = padded[rows], counts[rows], (counts.cumsum(0) - counts)[rows]
        row = torch.arange(len(rows), device=counts.device).repeat_interleave(padded)
        places = torch.arange(len(row), device=counts.device)
        offset = places - (padded.cumsum(0) - padded)[row]
        real = offset < lengths[row]
        widths, sizes = padded.unique_consecutive(return_counts=True)
        self.shapes: list[tuple[int, int]] = list(zip(sizes.tolist(), widths.tolist(), strict=True))
        """(m, w) of each run: m sequences, each padded to w places."""
        self.rows = rows.split(sizes.tolist())
        """int64 (m,) of each run: the sequences that it holds."""
        self.masks: list[Tensor | None] = [
            None if part.all() else part.view(-1, 1, 1, width) for part, (_, width) in self._zip(real)
        ]
        """bool (m, 1, 1, w) of each run, which places hold a token. None: all."""
        self._token_at = starts[row] + torch.minimum(offset, lengths[row] - 1)  # padding repeats the last token
        self._place_of = torch.empty_like(self._token_at[: int(counts.sum())])
        self._place_of[self._token_at[real]] = places[real]

    def pick(self, bias: Tensor) -> list[Tensor]:
        """(1 or n, H, L, L) -> (1 or m, H, w, w) of each run."""
        rows = [bias] * len(self.shapes) if bias.shape[0] == 1 else [bias.index_select(0, rows) for rows in self.rows]
        return [run_bias[:, :, :width, :width] for run_bias, (_, width) in zip(rows, self.shapes, strict=True)]

    def split(self, x: Tensor) -> list[Tensor]:
        """Token layout (1, T, ...) -> (m, w, ...) of each run."""
        return [part.unflatten(0, shape) for part, shape in self._zip(x[0].index_select(0, self._token_at))]

    def join(self, parts: list[Tensor]) -> Tensor:
        """Undoes `split`."""
        return torch.cat([part.flatten(0, 1) for part in parts]).index_select(0, self._place_of).unsqueeze(0)

    def _zip(self, x: Tensor) -> Iterable[tuple[Tensor, tuple[int, int]]]:
        return zip(x.split([size * width for size, width in self.shapes]), self.shapes, strict=True)


def last_positions(positions: Tensor, sequence: Tensor, count: int) -> Tensor:
    """The largest position of each sequence: int64 (count,). Positions at padding are 0."""
    return positions.new_zeros(count).scatter_reduce(0, sequence.flatten().clamp(min=0), positions.flatten(), "amax")


def _scatter(x: Tensor, index: Tensor, shape: tuple[int, int], fill: float) -> Tensor:
    """(T, ...) -> (*shape, ...): the tokens at the places `index` of the flattened `shape`, `fill` elsewhere."""
    flat = x.new_full((shape[0] * shape[1], *x.shape[1:]), fill)
    return flat.index_copy_(0, index, x).unflatten(0, shape)


def _assign_sequences(x: Tensor, starts: Tensor | None, mask: Tensor | None, position_ids: Tensor | None) -> Tokens:
    """The tokens: a sequence per row, or where `starts` is True another one; padding isn't cleared.

    With `starts` sequences are numbered with gaps: row times S, plus how many started in the row before.
    """
    shape = (x.shape[0], x.shape[1])
    row = torch.arange(shape[0], device=x.device).unsqueeze(-1)
    sequence = row.expand(shape)
    rank = torch.arange(shape[1], device=x.device).expand(shape) if mask is None else mask.long().cumsum(-1) - 1
    if starts is not None:
        is_start = starts | (torch.arange(shape[1], device=x.device) == 0)
        before = torch.where(starts, rank if mask is None else rank + 1 - mask.long(), 0).cummax(-1)[0]
        sequence, rank = row * shape[1] + is_start.cumsum(-1) - 1, rank - before
    positions = rank if position_ids is None else position_ids
    return Tokens(positions, rank, sequence, *shape, position_ids is None, may_be_packed=starts is not None)


def check_input(input_ids: Any, inputs_embeds: Any, width: int) -> Tensor:
    """The one of token ids (B, S) and embeddings (B, S, `width`) that was given, if its shape fits."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Give exactly one of input_ids (B, S) and inputs_embeds (B, S, D).")
    x = inputs_embeds if input_ids is None else input_ids
    name, axes = ("input_ids", ()) if inputs_embeds is None else ("inputs_embeds", (width,))
    if not isinstance(x, Tensor) or x.dim() < 2 or tuple(x.shape[2:]) != axes:
        fault = f"has shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"is a {type(x).__name__}"
        raise ValueError(
            f"{name} {fault}; give {f'(B, S, {width})' if axes else '(B, S)'}. For one text: "
            "tensor.unsqueeze(0). For lists: return_tensors='pt' in the tokenizer's call."
        )
    if not tracing() and 0 in x.shape[:2]:
        way_out = "Leave empty batches out. A text without a token may be a row of padding."
        raise ValueError(f"The input of shape {tuple(x.shape)} holds no token. {way_out}")
    return x


def _check_mask(attention_mask: Tensor, shape: tuple[int, int], fixed: bool) -> Tensor:
    way_out = "Give one number per token, as the tokenizer does: 1 for tokens, 0 for padding."
    mask = check_shape("attention_mask", attention_mask, shape, way_out) != 0
    if attention_mask.is_floating_point() and not fixed and not bool((attention_mask >= 0).all()):
        least = float(attention_mask.min())  # a mask to add to logits, 0 at tokens, means the opposite
        raise ValueError(f"attention_mask holds {least}. {way_out}")
    return mask


def check_shape(name: str, x: Any, shape: tuple[int, ...], way_out: str) -> Tensor:
    """The tensor, if it has this shape."""
    given = tuple(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
    if given != shape:
        raise ValueError(f"{name} must be a tensor of shape {shape}, not {given}. {way_out}")
    return x


def _check_positions(position_ids: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
    if position_ids is None:
        return None
    if isinstance(position_ids, Tensor) and tuple(position_ids.shape) in ((shape[1],), (1, shape[1])):
        position_ids = position_ids.expand(shape)
    check_shape("position_ids", position_ids, shape, "Give (B, S) or (1, S).")
    if position_ids.is_floating_point():
        raise ValueError(
            f"position_ids of {position_ids.dtype} can't be taken: positions are whole numbers. To train or test at "
            "positions between them, use 'rope' with rope_parameters={'rope_type': 'linear', 'factor': 2.0}."
        )
    return position_ids.to(torch.int64, copy=True)


def _sequences_from_borders(borders: Tensor, shape: tuple[int, int], device: torch.device, check: bool) -> Tensor:
    """The sequence that each place belongs to, from the borders: int64 (1, S)."""
    if check:
        places = borders.tolist() if borders.dim() == 1 else []
        rising = all(start < end for start, end in itertools.pairwise(places))
        if shape[0] != 1 or len(places) < 2 or (places[0], places[-1]) != (0, shape[1]) or not rising:
            raise ValueError(
                f"cu_seq_lens_q={borders.tolist()} doesn't cut an input of shape {shape} into sequences. It must "
                f"rise from 0 to {shape[1]}, for a batch of one row. For several rows, give seq_idx."
            )
    lengths = borders.to(device).diff()
    return torch.repeat_interleave(lengths, output_size=shape[1]).unsqueeze(0)


def _starts_in_positions(position_ids: Tensor, mask: Tensor | None) -> Tensor:
    """True where a sequence starts, if a row's real tokens are exactly several aranges from its smallest position."""
    real = torch.ones_like(position_ids, dtype=torch.bool) if mask is None else mask
    least = position_ids.masked_fill(~real, torch.iinfo(torch.int64).max).amin(-1, keepdim=True)
    starts = real & (position_ids == least)
    rank = real.cumsum(-1) - 1
    since_start = rank - torch.where(starts, rank, 0).cummax(-1)[0]
    is_arange = ((position_ids - least == since_start) | ~real).all(-1, keepdim=True)
    return starts & is_arange & (starts.sum(-1, keepdim=True) > 1)
