"""Batches against a plain-Python account of the same batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc import Tokens
from hf_posenc.model import unpadding
from tests.support.common import encoder, tokens


@st.composite
def packed_batches(draw):
    """unpadding.Rows of sequences with padding before, between no two, and after: what collators make."""
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
    layout = unpadding.TokenLayout.from_batch(mask, mask, unpad=unpad, **packing)
    tokens, to_rows = layout.tokens, unpadding.Rows(layout)
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
        runs = unpadding.Runs(layout.counts)
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


@settings(max_examples=100, deadline=None)
@given(packed_batches(), st.booleans(), st.booleans())
def test_in_order_gives_a_row_per_sequence_sorted_by_position_and_from_order_undoes_it(batch, unpad, ties):
    rows, before, length = batch
    mask, positions, seq_idx = arrange(rows, before, length)
    if ties:
        positions = torch.randint(-1, 3, positions.shape)
    layout = unpadding.TokenLayout.from_batch(mask, mask, positions if ties else None, seq_idx, unpad=unpad)
    x, padded = torch.randn(len(rows), length, 3), unpadding.Rows(layout)
    sequences = []  # those of each row, by its numbers; a row without tokens is one empty sequence
    for r, row in enumerate(rows):
        for number in range(max(len(row), 1)):
            own = ((seq_idx[r] == number + 1) & (mask[r] == 1)).nonzero()[:, 0].tolist()
            sequences.append(x[r, sorted(own, key=positions[r].tolist().__getitem__)])
    for seen, values, restore in (
        (layout.tokens, layout.unpad(x), layout.pad),
        (padded.tokens(), padded.lay_out(layout.unpad(x)), lambda y: layout.pad(padded.join([y]))),
    ):
        ordered = seen.in_order(values)
        assert ordered.shape == (len(sequences), seen.longest, 3)
        for row, sequence in zip(ordered, sequences, strict=True):
            assert torch.equal(row[: len(sequence)], sequence)
            assert not row[len(sequence) :].any()
        assert torch.equal(restore(seen.from_order(ordered)), x * mask[..., None])


def test_in_order_refuses_rows_that_may_be_packed_in_a_traced_graph():
    """Left padding is no obstacle, and neither is a hook that is called by hand."""
    model, ids, mask = encoder("cable"), tokens(2, 6), torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    traced = torch.export.export(model, (ids,), {"attention_mask": mask}).module()(ids, attention_mask=mask)
    torch.testing.assert_close(traced[0], model(ids, attention_mask=mask)[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(Exception, match=r"can't tell the sequences of packed rows apart, so tokens.in_order can't"):
        torch.export.export(model, (ids,), {"position_ids": torch.arange(6).expand(2, 6)})
    one, x = Tokens.from_positions(torch.tensor([2, 0, 1])), torch.randn(3, 2)
    assert torch.equal(one.in_order(x), x[[1, 2, 0]].unsqueeze(0))
    assert torch.equal(one.from_order(one.in_order(x)), x)


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
    layout = unpadding.TokenLayout.from_batch(torch.ones(1, 4), position_ids=torch.tensor([position_ids]))
    tokens = layout.tokens
    assert layout.packed == packed
    assert tokens.num_sequences == (2 if packed else 1)
    assert tokens.positions.flatten().tolist() == position_ids


def test_odd_positions_in_a_row_and_padding_in_between_change_no_other_sequence():
    odd = torch.tensor([[0, 1, 0, 1], [0, 2, 1, 3]])
    tokens = unpadding.TokenLayout.from_batch(torch.ones(2, 4), position_ids=odd).tokens
    assert (tokens.num_sequences, tokens.sequence.flatten().tolist()) == (3, [0, 0, 1, 1, 2, 2, 2, 2])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    tokens = unpadding.TokenLayout.from_batch(mask, mask, torch.tensor([[0, 1, 9, 0, 1, 2]])).tokens
    assert (tokens.num_sequences, tokens.positions[0].tolist()) == (2, [0, 1, 0, 1, 2])


def test_lengths_are_those_of_each_sequence():
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1]])
    seq_idx = torch.tensor([[1, 1, 1, 0, 2, 2, 0], [0] * 7, [0, 1, 1, 1, 1, 1, 1]])
    shifted = torch.tensor([[0, 1, 2, 99, 0, 1, 99], [99] * 7, [99, 5, 8, 6, 7, 9, 10]])
    for unpad in (True, False):
        batch = unpadding.TokenLayout.from_batch(mask, mask, seq_idx=seq_idx, unpad=unpad)
        lengths = batch.pad(batch.tokens.lengths.unsqueeze(-1)).squeeze(-1)
        assert lengths.tolist() == [[3, 3, 3, 0, 2, 2, 0], [0] * 7, [0] + [6] * 6]
        batch = unpadding.TokenLayout.from_batch(mask, mask, shifted, seq_idx, unpad=unpad)
        lengths = batch.pad(batch.tokens.lengths.unsqueeze(-1)).squeeze(-1)
        assert lengths.tolist() == [[3, 3, 3, 0, 2, 2, 0], [0] * 7, [0] + [11] * 6]
    batch = unpadding.TokenLayout.from_batch(mask[[0, 2]], mask[[0, 2]], unpad=False)
    assert (batch.tokens.lengths * mask[[0, 2]]).tolist() == [[5, 5, 5, 0, 5, 5, 0], [0] + [6] * 6]


FULL, SOME = [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]
MASKS = {
    "right": [FULL, SOME],
    "left": [SOME[::-1], FULL],
    "shorter": [SOME[::-1], SOME],
    "holes": [[0, 1, 0, 1, 1], [1, 0, 0, 0, 1]],
    "an_empty_row": [SOME, [0] * 5, FULL, [0] * 5],
    "none": [[0] * 5] * 2,
}


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_row_lengths_tell_what_the_facts_of_a_batch_with_one_sequence_in_each_row_do(mask, unpad):
    mask = torch.tensor(mask)
    counted = unpadding.TokenLayout.from_batch(mask, mask, unpad=unpad)
    general = unpadding.TokenLayout.from_batch(mask, mask, seq_idx=torch.zeros_like(mask), unpad=unpad)
    for values, others in ((vars(counted), vars(general)), (vars(counted.tokens), vars(general.tokens))):
        for name in values.keys() - {"tokens", "shortest"}:
            value, other = values[name], others[name]
            same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            assert same, (name, value, other)
    assert counted.shortest == mask.sum(-1).min()


def test_a_batch_without_padding_is_left_as_it_is():
    x = torch.randn(2, 3, 4)
    layout = unpadding.TokenLayout.from_batch(x, torch.ones(2, 3))
    assert layout.index is None
    assert unpadding.Rows(layout).masks == [None]
    assert layout.unpad(x) is x
    assert layout.pad(x) is x
