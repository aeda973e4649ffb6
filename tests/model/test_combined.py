"""`a+b`: several schemes in one config value."""

import pytest
import torch

import hf_posenc
from hf_posenc import SCHEMES, PosEncModel, PositionScheme, make_scheme
from hf_posenc.model import unpadding
from tests.support.common import encoder, tiny_config, tokens


def test_parts_keep_their_weights_under_their_names_and_their_arguments_apart():
    config = tiny_config("learned+t5", position_embedding_kwargs={"t5": {"num_buckets": 8}})
    weights = {name: weight.shape for name, weight in PosEncModel(config).position.named_parameters()}
    expected = {"num_buckets": 8, "max_distance": 128, "per_layer": False, "initial_std": 1.0}
    assert config.position_embedding_kwargs["t5"] == expected
    assert config.position_embedding_kwargs["learned"]["std"] == config.token_rms
    assert weights == {"learned.embedding.weight": (64, 32), "t5.tables.0.weight": (8, 4)}


@pytest.mark.parametrize("scheme", ["tupe+t5", "t5+tupe", "alibi+tupe"])
def test_tupe_unties_first_tokens_from_the_other_parts_too(scheme):
    position = make_scheme(tiny_config(scheme))
    with torch.no_grad():
        for weight in position.parameters():
            weight.copy_(torch.randn(weight.shape))
    places, number = torch.arange(6)[None], torch.tensor([[0, 0, 0, 1, 1, 1]])
    packed = unpadding.TokenLayout.from_batch(places, position_ids=places, seq_idx=number, unpad=False)
    tokens = unpadding.Rows(packed).tokens()
    bias = position.bias(tokens)[0]
    row, column = position.tupe.first.weight[..., None]
    for place in (0, 3):
        assert torch.equal(bias[:, place], row.expand(-1, 6))
        assert torch.equal(bias[:, [1, 2, 4, 5], place], column.expand(-1, 4))
    total = sum(part.bias(tokens) for part in position.parts.values())[0]
    torch.testing.assert_close(bias[:, 1:3, 4:], total[:, 1:3, 4:])


def test_the_shortest_part_limits_the_length(monkeypatch):
    assert encoder("rope+t5").position.max_length is None
    short = {"max_length": 5, "embed": lambda self, x, tokens: x}
    monkeypatch.setitem(SCHEMES, "short", type("Short", (PositionScheme,), short))
    assert encoder("learned+short+rope").position.max_length == 5
    model = encoder("sinusoidal+learned+alibi", max_position_embeddings=16)
    model(tokens(1, 16))
    with pytest.raises(ValueError, match=r"'sinusoidal\+learned\+alibi' has positions 0 to 15, the input has 0 to 16"):
        model(tokens(1, 17))


class Doubled(PositionScheme):
    """Makes queries and keys twice as wide."""

    def rotate(self, q, k, state, layer):
        return torch.cat((q, q), -1), torch.cat((k, k), -1)


@pytest.mark.parametrize("scheme", ["pope+rope", "alibi+rope+pope"])
def test_a_part_that_rotates_alone_is_refused_beside_another_when_a_model_is_built(scheme):
    with pytest.raises(
        ValueError, match=r"'pope' makes queries and keys anew, so no other .*Keep one of (\w+), (\w+)\."
    ):
        PosEncModel(tiny_config(scheme))


@pytest.mark.parametrize("scheme", ["doubled+rope", "rope+doubled"])
def test_a_part_that_changes_the_width_of_queries_rotates_alone(scheme, monkeypatch):
    monkeypatch.setitem(hf_posenc.SCHEMES, "doubled", Doubled)
    with pytest.raises(ValueError, match="changes their width, 8 to 16, .* Keep one of them"):
        encoder(scheme)(tokens(1, 5))
    encoder("doubled+t5")(tokens(1, 5))


def test_a_rotation_without_a_state_combines_with_a_scheme_without_rotation(monkeypatch):
    class Flip(PositionScheme):
        name = "flip"

        def rotate(self, q, k, state, layer):
            assert state is None
            return q.flip(-1), k

    monkeypatch.setitem(SCHEMES, "flip", Flip)
    together, alone = (encoder(name)(tokens(2, 5)).last_hidden_state for name in ("flip+learned", "learned"))
    assert (together - alone).abs().max() > 1e-3
