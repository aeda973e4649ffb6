"""Batches against a plain-Python account of the same batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc.model.unpadding import Rows, Runs, TokenLayout


@st.composite
def packed_batches(draw):
    """Rows of sequences with padding before, between no two, and after: what collators make."""
    rows = draw(st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=4))
    before = [draw(st.integers(0, 2)) for _ in rows]
    length = max(start + sum(row) for start, row in zip(before, rows, strict=True)) + draw(st.integers(0, 2))
    return rows, before, max(length, 1)


def arrange(rows, before, length):
    mask = torch.zeros(len(rows), length, dtype=torch.int64)
    positions = torch.zeros_like(mask)
    seq_idx = torch.zeros_like(mask)
    for r, row in enumerate(rows):
        place = before[r]
        for number, size in enumerate(row):
            cut = slice(place, place + size)
            mask[r, cut] = 1
            positions[r, cut] = torch.arange(size)
            seq_idx[r, cut] = number + 1
            place += size
    return mask, positions, seq_idx


@settings(max_examples=150, deadline=None)
@given(packed_batches(), st.booleans(), st.sampled_from(["position_ids", "seq_idx"]))
def test_packed_batches_number_place_and_pool_like_plain_python(batch, unpad, said_by):
    rows, before, length = batch
    mask, positions, seq_idx = arrange(rows, before, length)
    packing = {"position_ids": positions} if said_by == "position_ids" else {"seq_idx": seq_idx}
    layout = TokenLayout.from_batch(mask, mask, unpad=unpad, **packing)
    tokens, to_rows = layout.tokens, Rows(layout)
    allowed = to_rows.masks[0]

    values = torch.randn(len(rows), length, 3)
    sequences = []  # in order of rows; a row without tokens is one empty sequence
    for r, row in enumerate(rows):
        place = before[r]
        if not row:
            sequences.append(values[r, :0])
        for size in row:
            sequences.append(values[r, place : place + size])
            place += size

    assert tokens.num_sequences == len(sequences)
    assert layout.packed == any(len(row) > 1 for row in rows)
    assert tokens.positions_are_aranges or said_by == "position_ids"
    taken = layout.unpad(values)
    by_hand = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0), "cls": lambda x: x[0]}
    for how, pool in by_hand.items():
        expected = torch.stack([pool(s) if len(s) else torch.zeros(3) for s in sequences])
        torch.testing.assert_close(layout.pool(values, how), expected)
    restored = layout.pad(taken)
    torch.testing.assert_close(restored, values * mask[..., None])
    sizes = [size for row in rows for size in row for _ in range(size)]
    lengths = layout.pad(tokens.lengths.unsqueeze(-1)).squeeze(-1)
    assert lengths[mask == 1].tolist() == sizes
    if unpad and mask.any() and (layout.packed or not mask.all()):
        assert layout.index is not None
        assert taken.shape[1] == mask.sum()
        assert tokens.positions[0].tolist() == [i for s in sequences for i in range(len(s))]
        padded = to_rows.lay_out(taken)
        assert padded.shape[:2] == (len(sequences), max(map(len, sequences)))
        assert (layout.counts.tolist(), tokens.longest) == ([len(s) for s in sequences], padded.shape[1])
        belongs = to_rows.tokens().sequence
        for row, s in zip(padded, sequences, strict=True):
            torch.testing.assert_close(row[: len(s)], s)
            assert (row[len(s) :] == 0).all()
        assert torch.equal(belongs >= 0, torch.arange(padded.shape[1]) < layout.counts[:, None])
        assert (belongs[belongs >= 0].diff() >= 0).all()
        torch.testing.assert_close(to_rows.join(to_rows.split(taken)), taken)
        runs = Runs(layout.counts)
        torch.testing.assert_close(runs.join(runs.split(taken)), taken)
        for part, (size, width), numbers, real in zip(
            runs.split(taken), runs.shapes, runs.rows, runs.masks, strict=True
        ):
            assert part.shape[:2] == (size, width)
            assert width % 8 == 0 or width == tokens.longest
            for row, number in zip(part, numbers, strict=True):
                torch.testing.assert_close(row[: len(sequences[number])], sequences[number])
                assert width - 8 < len(sequences[number]) <= width
            lengths = torch.tensor([len(sequences[number]) for number in numbers])
            assert (lengths == width).all() if real is None else torch.equal(real[:, 0, 0].sum(-1), lengths)
        rows_alike = torch.arange(tokens.longest)[None]
        if tokens.positions_are_aranges:
            assert torch.equal(to_rows.tokens().positions, rows_alike)
        assert torch.equal(to_rows.tokens().is_first, rows_alike == 0)
        lengths = torch.tensor([len(s) or tokens.longest for s in sequences])  # an empty row sees all of its padding
        if allowed is None:
            assert (lengths == lengths[0]).all()
        else:
            assert torch.equal(allowed[:, 0, 0].sum(-1), lengths)
    else:
        if allowed is not None:
            allowed = allowed.expand(len(rows), 1, length, length)[:, 0]
            for r in range(len(rows)):
                for q in range(length):
                    if mask[r, q]:
                        same = (seq_idx[r] == seq_idx[r, q]) & (mask[r] == 1)
                        assert torch.equal(allowed[r, q], same)
                    assert allowed[r, q].any(), "a query that sees nothing gives NaN"


@pytest.mark.parametrize(
    ("position_ids", "packed"),
    [
        ([0, 1, 2, 3], False),
        ([0, 1, 0, 1], True),
        ([0, 1, 2, 0], True),
        ([0, 2, 1, 3], False),
        ([0, 3, 7, 9], False),
        ([5, 6, 7, 8], False),
        ([0, 1, 1, 2], False),
        ([0, 1, 5, 0], False),
        ([3, 0, 1, 2], False),
        ([2, 3, 4, 2], True),
        ([2, 3, 1, 2], False),
        ([2, 3, 3, 4], False),
    ],
)
def test_only_several_aranges_from_the_smallest_position_are_packed(position_ids, packed):
    layout = TokenLayout.from_batch(torch.ones(1, 4), position_ids=torch.tensor([position_ids]))
    tokens = layout.tokens
    assert layout.packed == packed
    assert tokens.num_sequences == (2 if packed else 1)
    assert tokens.positions.flatten().tolist() == position_ids


def test_one_row_of_odd_positions_does_not_unpack_the_others():
    tokens = TokenLayout.from_batch(torch.ones(2, 4), position_ids=torch.tensor([[0, 1, 0, 1], [0, 2, 1, 3]])).tokens
    assert tokens.num_sequences == 3
    assert tokens.sequence.flatten().tolist() == [0, 0, 1, 1, 2, 2, 2, 2]


def test_padding_between_packed_sequences_does_not_count():
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    tokens = TokenLayout.from_batch(mask, mask, torch.tensor([[0, 1, 9, 0, 1, 2]])).tokens
    assert tokens.num_sequences == 2
    assert tokens.positions[0].tolist() == [0, 1, 0, 1, 2]


def test_left_padding_right_padding_and_no_padding_give_the_same_positions():
    for mask in ([1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]):
        mask = torch.tensor([mask])
        tokens = TokenLayout.from_batch(mask, mask).tokens
        assert tokens.positions.flatten().tolist() == [0, 1, 2]
        padded = TokenLayout.from_batch(mask, mask, unpad=False).tokens
        assert padded.positions[mask == 1].tolist() == [0, 1, 2]
        assert padded.is_first[mask == 1].tolist() == [True, False, False]


def test_a_batch_without_padding_is_left_as_it_is():
    x = torch.randn(2, 3, 4)
    layout = TokenLayout.from_batch(x, torch.ones(2, 3))
    assert layout.index is None
    assert Rows(layout).masks == [None]
    assert layout.unpad(x) is x
    assert layout.pad(x) is x


def test_moving_to_a_device_moves_every_tensor():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    rows = Rows(TokenLayout.from_batch(mask, mask))
    tensors = [value for value in vars(rows.tokens().to("meta")).values() if isinstance(value, torch.Tensor)]
    moved = rows.to("meta")
    tensors += [
        moved.masks[0],
        *vars(moved).values(),
        *vars(moved.layout).values(),
        *vars(moved.layout.tokens).values(),
    ]
    tensors = [value for value in tensors if isinstance(value, torch.Tensor)]
    assert len(tensors) == 4 + 1 + 1 + 4 + 4
    assert all(value.device.type == "meta" for value in tensors)
    assert rows.index.device.type == "cpu"
