"""`position_augmentation`: positions moved at random in training."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from hf_posenc import PosEncModel
from hf_posenc.model import unpadding
from tests.support.common import EVERY_HOOK, encoder, padded, tiny_config, tokens

IDS, MASK = padded([tokens(5), tokens(3, seed=2), tokens(9, seed=3)], extra=2)


@contextlib.contextmanager
def moved(model):
    """Fills a list with the positions that each batch's tokens are embedded at."""
    seen, embed = [], model.position.embed
    model.position.embed = lambda x, tokens: (seen.append(tokens.positions), embed(x, tokens))[1]
    yield seen
    model.position.embed = embed


def augmented(how: str, limit: int, seeds: int, unpad: bool = True) -> Iterator[list[list[int]]]:
    """The positions of each sequence, by seed."""
    fields = {"position_augmentation": how, "position_augmentation_length": limit, "unpad_inputs": unpad}
    model = encoder("learned", num_hidden_layers=1, **fields).train()
    for seed in range(seeds):
        torch.manual_seed(seed)
        with torch.no_grad(), moved(model) as seen:
            model(IDS, attention_mask=MASK)
        if unpad:
            yield [row.tolist() for row in seen[0][0].split(MASK.sum(-1).tolist())]
        else:
            yield [row[mask.bool()].tolist() for row, mask in zip(seen[0], MASK, strict=True)]


@pytest.mark.parametrize("unpad", [True, False])
def test_a_shift_moves_each_sequence_by_one_number_and_reaches_every_place(unpad):
    starts = [[], [], []]
    for sequences in augmented("shift", 12, 300, unpad):
        for n, positions in enumerate(sequences):
            assert positions == list(range(positions[0], positions[0] + len(positions)))
            starts[n].append(positions[0])
    # 5 tokens in 12 places start at 0 to 7, 3 at 0 to 9, 9 at 0 to 3; each start as often as any other.
    for drawn, room in zip(starts, (8, 10, 4), strict=True):
        assert set(drawn) == set(range(room))
        counts = torch.bincount(torch.tensor(drawn)).double()
        assert ((counts - 300 / room) ** 2 / (300 / room)).sum() < 30  # chi-square, at most 9 degrees of freedom


@pytest.mark.parametrize("unpad", [True, False])
def test_a_random_sample_is_in_order_without_repetition_and_uniform(unpad):
    counts = torch.zeros(12)
    for sequences in augmented("random", 12, 400, unpad):
        for n, positions in enumerate(sequences):
            assert positions == sorted(set(positions))
            assert len(positions) == (5, 3, 9)[n]
            assert positions[-1] < 12
            if n == 0:
                counts[positions] += 1
    # Every place is one of five in twelve: 167 times in 400, give or take 10.
    assert ((counts - 400 * 5 / 12).abs() < 45).all()


def test_a_sequence_as_long_as_the_range_keeps_its_positions():
    for how in ("shift", "random"):
        (sequences,) = augmented(how, 9, 1)
        assert sequences[2] == list(range(9))


@pytest.mark.parametrize("how", ["shift", "random"])
@pytest.mark.parametrize("scheme", EVERY_HOOK)
def test_padding_free_and_padded_training_agree(scheme, how):
    results = []
    for unpad in (True, False):
        model = encoder(scheme, position_augmentation=how, unpad_inputs=unpad).train()
        torch.manual_seed(5)
        results.append(model(IDS, attention_mask=MASK).last_hidden_state)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_packed_sequences_are_moved_each_by_its_own_number():
    model = encoder("learned", position_augmentation="shift").train()
    with moved(model) as seen:
        model(tokens(1, 9), position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))
    first, second = seen[0][0, :4], seen[0][0, 4:]
    assert first.diff().eq(1).all()
    assert second.diff().eq(1).all()
    assert first[0] != second[0]


@pytest.mark.parametrize("how", ["shift", "random"])
def test_it_changes_training_alone_and_leaves_given_positions_alone(how):
    model, plain = encoder("learned", position_augmentation=how), encoder("learned")
    torch.testing.assert_close(model(IDS, attention_mask=MASK)[0], plain(IDS, attention_mask=MASK)[0])
    model.train()
    for positions in (torch.tensor([[3, 1, 4, 2, 0]]), torch.arange(5)[None]):
        for mask in (None, torch.ones(1, 5)):
            given = {"position_ids": positions, "attention_mask": mask}
            torch.testing.assert_close(model(tokens(1, 5), **given)[0], plain(tokens(1, 5), **given)[0])
    given = {"position_ids": torch.arange(IDS.shape[1])[None], "attention_mask": MASK}
    torch.testing.assert_close(model(IDS, **given)[0], plain(IDS, **given)[0])
    state = torch.get_rng_state()
    draws = [model(tokens(1, 5))[0] for _ in range(2)]
    assert not torch.allclose(*draws)
    torch.set_rng_state(state)
    torch.testing.assert_close(model(tokens(1, 5))[0], draws[0])


def test_the_range_is_an_option_and_must_fit():
    config = tiny_config("rope", position_augmentation="random", position_augmentation_length=1000)
    model = PosEncModel(config).train()
    model(tokens(1, 500))
    with pytest.raises(ValueError, match=r"has 1001 tokens, but position_augmentation has 1000 positions"):
        model(tokens(1, 1001))
    model.eval()(tokens(1, 1001))
    with pytest.raises(ValueError, match="augmentation_length=65 is past the 64 positions of 'learned'. Make"):
        PosEncModel(tiny_config("learned+rope", position_augmentation="shift", position_augmentation_length=65))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["shift", "random"])
def test_a_compiled_model_refuses_rows_that_are_too_long(how):
    model = PosEncModel(tiny_config("rope", position_augmentation=how, position_augmentation_length=16)).train()
    compiled = torch.compile(model, backend="eager")
    assert compiled(tokens(2, 16))[0].isfinite().all()
    with pytest.raises(ValueError, match=r"has 17 tokens.*Raise position_augmentation_length"):
        compiled(tokens(2, 17))


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (
            {"seq_idx": torch.zeros(1, 12)},
            "compiled or exported model can't tell .* position_augmentation can't move each",
        ),
        ({}, "A row of the compiled model, with its padding, has 12 tokens, but position_augmentation has 8 positions"),
    ],
)
def test_a_compiled_model_says_what_it_can_not_count(monkeypatch, packing, message):
    monkeypatch.setattr(unpadding, "have_fixed_shapes", lambda *_: True)  # as in a graph
    model = encoder("learned", position_augmentation="shift", position_augmentation_length=8).train()
    with pytest.raises(ValueError, match=message):
        model(tokens(1, 12), attention_mask=torch.tensor([[1] * 6 + [0] * 6]), **packing)
