"""Schemes written by a stranger from the docstrings alone: each does what its paper says, and passes every check."""

from dataclasses import replace

import bipe
import cable
import dual_triangle
import pope
import pytest
import torch

from hf_posenc import POSITION_CHECKS, Tokens, check_position
from hf_posenc.model.unpadding import locate_tokens

SEPARATOR = 75  # inside one of the texts of the checks
STRANGERS = {
    cable.Cable: {},
    pope.Pope: {},
    dual_triangle.DualTriangle: {},
    bipe.Bipe: {"separator_id": SEPARATOR},
}


@pytest.mark.parametrize("scheme", STRANGERS, ids=lambda scheme: scheme.__name__)
def test_a_strangers_scheme_passes_every_check(scheme):
    checks = [name for name in POSITION_CHECKS if name not in ("export", "remote_code")]
    check_position(scheme, kwargs=STRANGERS[scheme], checks=checks, raise_on_failure=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STRANGERS)
def test_a_strangers_scheme_can_be_exported(scheme):
    check_position(scheme, kwargs=STRANGERS[scheme], checks=["export"], raise_on_failure=True)


@pytest.mark.slow  # a clean process for each
def test_a_strangers_scheme_travels():
    check_position(cable.Cable, checks=["remote_code"], raise_on_failure=True)  # with an import of position_math


def packed_tokens(positions, sequence, **contents):
    """Tokens of one row that holds several sequences."""
    batch = locate_tokens(*positions.shape, positions.device, position_ids=positions, seq_idx=sequence, unpad=False)
    return replace(batch, **contents)


def test_cable_counts_the_gates_between_two_tokens_of_a_sequence():
    scheme = cable.Cable(hidden_size=8, num_heads=2, num_layers=1)
    q, x = torch.zeros(1, 2, 5, 4), torch.randn(1, 5, 8)
    positions, sequence = torch.tensor([[1, 0, 2, 0, 1]]), torch.tensor([[0, 0, 0, 1, 1]])
    bias = scheme.layer_bias(q, q, packed_tokens(positions, sequence, hidden=x), 0)
    gate = torch.nn.functional.softplus(scheme.gates[0](x))[0]
    torch.testing.assert_close(bias[0, :, 1, 2], -(gate[0] + gate[2]))
    torch.testing.assert_close(bias[0, :, 2, 1], -(gate[0] + gate[2]))
    torch.testing.assert_close(bias[0, :, 3, 4], -gate[4])


def test_pope_turns_twice_the_width_by_what_distances_say():
    scheme = pope.Pope(head_dim=4, num_heads=2, num_layers=1)
    q, k = torch.randn(2, 1, 5, 2, 4)
    products = []
    for start in (0, 7):
        state = scheme.rotary(Tokens.at(torch.arange(start, start + 5)[None]))
        turned_q, turned_k = scheme.rotate(q, k, state, 0)
        assert turned_q.shape == turned_k.shape == (1, 5, 2, 8)
        products.append(torch.einsum("bihd,bjhd->bhij", turned_q, turned_k))
    torch.testing.assert_close(*products, atol=1e-4, rtol=1e-4)
    magnitudes = torch.nn.functional.softplus(q[0, 2, 1]) * torch.nn.functional.softplus(k[0, 2, 1])
    phase = scheme.phases[0].weight[1]
    torch.testing.assert_close(products[0][0, 1, 2, 2], (magnitudes * phase.cos()).sum())


def test_the_triangles_leave_one_half_of_each_head_on_each_side():
    q, k = torch.randn(2, 1, 2, 3, 4)
    logits = q @ k.transpose(-1, -2) / 2
    positions = torch.tensor([[2, 0, 1]])
    logits = logits + dual_triangle.DualTriangle().layer_bias(q, k, Tokens.at(positions), 0)
    past, future = q[0, 0, 0, :2] @ k[0, 0, 1, :2] / 2, q[0, 0, 1, 2:] @ k[0, 0, 0, 2:] / 2
    torch.testing.assert_close(logits[0, 0, 0, 1], past)
    torch.testing.assert_close(logits[0, 0, 1, 0], future)
    torch.testing.assert_close(logits[0, 0, 1, 1], q[0, 0, 1] @ k[0, 0, 1] / 2)


def test_bipe_counts_within_and_between_segments_of_each_sequence():
    scheme = bipe.Bipe(hidden_size=8, num_heads=2, max_positions=6, separator_id=9)
    ids = torch.tensor([[5, 9, 5, 5, 9, 5, 5]])
    positions, sequence = torch.tensor([[3, 4, 5, 0, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    tokens = packed_tokens(positions, sequence, ids=ids)
    added = scheme.embed(torch.zeros(1, 7, 8), tokens)
    assert torch.equal(added, scheme.table(torch.tensor([[0, 1, 0, 0, 1, 0, 1]])))
    bias = scheme.bias(tokens)
    assert torch.equal(bias[0, 0, 3], bias[0, 0, 4])
    assert bias[0, 0, 4, 6] == bias[0, 0, 6, 3] == bias[0, 0, 0, 2] == -(2**-4)
    assert bias[0, 0, 0, 1] == bias[0, 1, 5, 6] == 0
