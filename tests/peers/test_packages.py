"""Parity with x-transformers and rotary-embedding-torch, which share no code with transformers or with us.

Not compared, for they are other definitions: x-transformers' dynamic position bias is a network of the distance with
SiLUs and natural logarithms (`mlp_bias`, after Swin V2, has ReLUs and base 2: see the comparison with transformers'
Swin V2); its xPos is causal; its T5 bias can be scaled by sqrt(d), which T5's isn't.
"""

import pytest
import torch
from common import assert_equal_with_gradients
from rotary_embedding_torch import RotaryEmbedding
from x_transformers import x_transformers

from hf_posenc import apply_rotary
from hf_posenc.model.scheme_table import CablePosition, RotaryPosition, SinusoidalPosition
from hf_posenc.model.unpadding import Tokens


def test_a_sinusoid_with_a_learned_scale_equals_x_transformers():
    """It has all sines before all cosines, and one number for alpha and s."""
    theirs = x_transformers.ScaledSinusoidalEmbedding(24)
    mine = SinusoidalPosition(hidden_size=24, learned_scale=True)
    with torch.no_grad():
        mine.alpha.weight.copy_(theirs.scale.view(1, 1))
    added = mine.encodings(torch.arange(7, 57))
    sines_first = torch.cat((added[:, ::2], added[:, 1::2]), -1)
    expected = theirs(torch.zeros(1, 50, 24), offset=7)
    torch.testing.assert_close(sines_first, expected, atol=1e-5, rtol=1e-5)
    target = torch.randn(expected.shape) / expected.numel() ** 0.5
    (got,) = torch.autograd.grad((sines_first * target).sum(), mine.alpha.weight)
    (wanted,) = torch.autograd.grad((expected * target).sum(), theirs.scale)
    torch.testing.assert_close(got.flatten(), wanted, atol=1e-5, rtol=1e-5)


SCALINGS = {  # ours, what positions are divided by, what the base is scaled with
    "plain": ({"rope_theta": 500.0}, 1.0, 1.0),
    "linear": ({"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}, 4.0, 1.0),
    # 40 positions where 20 were trained: s l/L - s + 1 = 2 x 2 - 1.
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 20, "rope_theta": 500.0},
        1.0,
        3.0,
    ),
}


@pytest.mark.parametrize("head_dim", [16, 24])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_interleaved_rope_equals_x_transformers_and_rotary_embedding_torch(scaling, head_dim):
    """Of 24 entries they turn the first 16, as `partial_rotary_factor` does."""
    parameters, divisor, rescale = SCALINGS[scaling]
    parameters = {**parameters, "partial_rotary_factor": 16 / head_dim}
    mine = RotaryPosition(head_dim=head_dim, rope_parameters=parameters, interleaved=True)
    q = torch.randn(2, 3, 40, head_dim, requires_grad=True)
    theirs = x_transformers.RotaryEmbedding(16, base=500.0, interpolation_factor=divisor, base_rescale_factor=rescale)
    expected = x_transformers.apply_rotary_pos_emb(q, theirs(torch.arange(40))[0])
    assert_equal_with_gradients(apply_rotary(q, scheme=mine), expected, q)
    theirs = RotaryEmbedding(16, theta=500.0, interpolate_factor=divisor, theta_rescale_factor=rescale)
    assert_equal_with_gradients(apply_rotary(q, scheme=mine), theirs.rotate_queries_or_keys(q), q)


def test_cable_equals_x_transformers_forgetting_bias_of_both_sides():
    """Its gates are log-sigmoids, which are -softplus of the opposite: what it adds, ours takes off."""
    theirs = x_transformers.DataDependentAlibi(12, 3, causal=False)
    mine = CablePosition(hidden_size=12, num_heads=3, num_layers=2)
    linear = theirs.to_forget_gates[0]
    with torch.no_grad():
        mine.shares[1].weight.copy_(-linear.weight)
        mine.shares[1].bias.copy_(-linear.bias)
    x = torch.randn(2, 30, 12, requires_grad=True)
    tokens = Tokens.from_positions(torch.arange(30).expand(2, 30), hidden_states=x)
    assert_equal_with_gradients(mine.layer_bias(x, x, tokens, 1), theirs(x), x, atol=1e-4)
