"""Batches against a plain-Python account of the same batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc.model.unpadding import Runs, locate_tokens

CPU = torch.device("cpu")


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
    tokens = locate_tokens(len(rows), length, CPU, attention_mask=mask, unpad=unpad, **packing)

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
    assert tokens.packed == any(len(row) > 1 for row in rows)
    assert tokens.positions_are_aranges or said_by == "position_ids"
    taken = tokens.unpad(values)
    by_hand = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0), "cls": lambda x: x[0]}
    for how, pool in by_hand.items():
        expected = torch.stack([pool(s) if len(s) else torch.zeros(3) for s in sequences])
        torch.testing.assert_close(tokens.pool(taken, how), expected)
    restored = tokens.pad(taken)
    torch.testing.assert_close(restored, values * mask[..., None])
    sizes = [size for row in rows for size in row for _ in range(size)]
    lengths = tokens.pad(tokens.lengths.unsqueeze(-1)).squeeze(-1)
    assert lengths[mask == 1].tolist() == sizes
    if unpad and mask.any() and (tokens.packed or not mask.all()):
        assert tokens.index is not None
        assert taken.shape[1] == mask.sum()
        assert tokens.positions[0].tolist() == [i for s in sequences for i in range(len(s))]
        padded = tokens.to_rows(taken)
        assert padded.shape[:2] == (len(sequences), max(map(len, sequences)))
        assert (tokens.counts.tolist(), tokens.longest) == ([len(s) for s in sequences], padded.shape[1])
        belongs = tokens.rows().sequence
        for row, s in zip(padded, sequences, strict=True):
            torch.testing.assert_close(row[: len(s)], s)
            assert (row[len(s) :] == 0).all()
        assert torch.equal(belongs >= 0, torch.arange(padded.shape[1]) < tokens.counts[:, None])
        assert (belongs[belongs >= 0].diff() >= 0).all()
        torch.testing.assert_close(tokens.from_rows(padded), taken)
        runs = Runs(tokens.counts)
        torch.testing.assert_close(runs.join(runs.split(taken)), taken)
        for part, (size, width), numbers, real in zip(
            runs.split(taken), runs.shapes, runs.rows, runs.masks(), strict=True
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
            assert torch.equal(tokens.rows().positions, rows_alike)
        assert torch.equal(tokens.rows().is_first, rows_alike == 0)
        allowed = tokens.attention_mask()
        lengths = torch.tensor([len(s) or tokens.longest for s in sequences])  # an empty row sees all of its padding
        if allowed is None:
            assert (lengths == lengths[0]).all()
        else:
            assert torch.equal(allowed[:, 0, 0].sum(-1), lengths)
    else:
        allowed = tokens.attention_mask()
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
    tokens = locate_tokens(1, 4, CPU, position_ids=torch.tensor([position_ids]))
    assert tokens.packed == packed
    assert tokens.num_sequences == (2 if packed else 1)
    assert tokens.positions.flatten().tolist() == position_ids


def test_one_row_of_odd_positions_does_not_unpack_the_others():
    tokens = locate_tokens(2, 4, CPU, position_ids=torch.tensor([[0, 1, 0, 1], [0, 2, 1, 3]]))
    assert tokens.num_sequences == 3
    assert tokens.sequence.flatten().tolist() == [0, 0, 1, 1, 2, 2, 2, 2]


def test_padding_between_packed_sequences_does_not_count():
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    tokens = locate_tokens(1, 6, CPU, attention_mask=mask, position_ids=torch.tensor([[0, 1, 9, 0, 1, 2]]))
    assert tokens.num_sequences == 2
    assert tokens.positions[0].tolist() == [0, 1, 0, 1, 2]


def test_left_padding_right_padding_and_no_padding_give_the_same_positions():
    for mask in ([1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]):
        mask = torch.tensor([mask])
        tokens = locate_tokens(1, mask.shape[1], CPU, attention_mask=mask)
        assert tokens.positions.flatten().tolist() == [0, 1, 2]
        padded = locate_tokens(1, mask.shape[1], CPU, attention_mask=mask, unpad=False)
        assert padded.positions[mask == 1].tolist() == [0, 1, 2]
        assert padded.is_first[mask == 1].tolist() == [True, False, False]


def test_a_batch_without_padding_is_left_as_it_is():
    tokens = locate_tokens(2, 3, CPU, attention_mask=torch.ones(2, 3))
    assert not tokens.index is not None
    assert tokens.attention_mask() is None
    x = torch.randn(2, 3, 4)
    assert tokens.unpad(x) is x
    assert tokens.pad(x) is x


def test_moving_to_a_device_moves_every_tensor():
    tokens = locate_tokens(2, 3, CPU, attention_mask=torch.tensor([[1, 1, 0], [1, 1, 1]]))
    moved = tokens.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6
    assert all(value.device.type == "meta" for value in tensors)
