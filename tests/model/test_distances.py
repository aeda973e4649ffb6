"""Functions of distance, computed once for each distance and gathered."""

import pytest
import torch

from hf_posenc import DistanceBias, Tokens
from hf_posenc.model import unpadding
from tests.support.common import assert_equal_with_gradients, encoder, tokens


class OfDistance(DistanceBias):
    """A bias by a function, which notes how many distances it was asked for, and in which layer."""

    def __init__(self, function, per_layer=False):
        super().__init__()
        self.function, self.per_layer, self.asked, self.layers = function, per_layer, [], []

    def of_distance(self, distance, layer):
        assert not torch.is_autocast_enabled("cpu")
        self.asked.append(len(distance))
        self.layers.append(layer)
        return self.function(distance)


@pytest.mark.parametrize("positions", [torch.arange(6)[None], torch.arange(3, 9)[None], torch.zeros(1, 1).long()])
def test_consecutive_positions_gather_by_distance_like_any_others(positions):
    tokens = Tokens.from_positions(positions)
    reach = int(positions.max() - positions.min())
    assert tokens.max_distance == reach
    table = torch.randn(2 * reach + 1, 3, requires_grad=True)
    expected = table[tokens.distances() + reach].permute(0, 3, 1, 2)
    got = OfDistance(lambda distance: table[distance + reach]).bias(tokens)
    assert_equal_with_gradients(got, expected, table)


@pytest.mark.parametrize(
    ("batch", "unpad"),
    [
        ({"attention_mask": torch.tensor([[1, 0, 1, 1, 0, 1]])}, False),  # a single row, with padding within
        ({"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1]])}, False),
        ({"position_ids": torch.tensor([[5, 6, 5, 5, 6, 7]])}, True),  # sequences that don't start at 0
        ({"position_ids": torch.tensor([[5, 6, 5, 5, 6, 7]])}, False),
    ],
)
def test_distances_are_those_of_the_tokens_wherever_they_stand(batch, unpad):
    tokens = unpadding.Rows(unpadding.TokenLayout.from_batch(torch.ones(1, 6), **batch, unpad=unpad)).tokens()
    got = OfDistance(lambda distance: distance[:, None].double()).bias(tokens)
    expected = tokens.distances()[:, None].expand(len(tokens.sequence), 1, -1, -1)
    real = (tokens.sequence >= 0)[:, None]
    pairs = real[..., None] & real[..., None, :] & (tokens.sequence[:, None, :, None] == tokens.sequence[:, None, None])
    assert torch.equal(got.expand(expected.shape)[pairs], expected[pairs].double())

    least, most = tokens.position_range
    assert least <= tokens.positions.min()
    assert tokens.positions.max() <= most


@pytest.mark.parametrize("scheme", ["alibi", "t5", "window"])
def test_positions_of_packed_rows_may_all_be_negative(scheme):
    model, ids, places = encoder(scheme), tokens(1, 9), torch.tensor([[-9, -8, -7, -6, -5, -4, -3, -9, -8]])
    packed = model(ids, seq_idx=torch.tensor([[0] * 7 + [1] * 2]), position_ids=places).last_hidden_state
    for part in (slice(7), slice(7, 9)):
        alone = model(ids[:, part], position_ids=places[:, part]).last_hidden_state
        torch.testing.assert_close(packed[:, part], alone, atol=1e-5, rtol=1e-5)


def test_distances_between_far_positions_are_as_many_as_there_are_pairs():
    positions = torch.tensor([[0, 7, 3_000_000, 16_000_000], [5, 4, 3, 2]])
    scheme = OfDistance(lambda distance: torch.stack((distance, -2 * distance), -1).float())
    bias = scheme.bias(Tokens.from_positions(positions))
    distance = (positions[:, None, :] - positions[:, :, None]).float()
    assert torch.equal(bias, torch.stack((distance, -2 * distance), 1))
    assert scheme.asked[0] <= distance.numel()
    scheme.bias(Tokens.from_positions(positions[1:]))
    assert scheme.asked[1] == 7


@pytest.mark.parametrize("per_layer", [False, True])
def test_a_function_of_distance_is_a_bias_of_all_layers_or_of_each(per_layer):
    scheme = OfDistance(lambda distance: distance[:, None].float(), per_layer)
    tokens, nothing = Tokens.from_positions(torch.arange(3)[None]), torch.zeros(1)
    with torch.autocast("cpu", torch.bfloat16):  # the encoder calls `layer_bias` inside it
        shared, own = scheme.bias(tokens), scheme.layer_bias(nothing, nothing, tokens, 1)
    assert ((shared is None), (own is None)) == (per_layer, not per_layer)
    assert (scheme.uses("bias"), scheme.uses("layer_bias")) == (not per_layer, per_layer)
    assert scheme.layers == [int(per_layer)]
    assert torch.equal(own if per_layer else shared, tokens.distances()[:, None].float())  # of all heads
