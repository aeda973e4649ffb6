"""Parity with x-transformers and rotary-embedding-torch, which share no code with transformers or with us.

Not compared, for they are other definitions: x-transformers' dynamic position bias is a network of the distance with
SiLUs and natural logarithms (`mlp_bias`, after Swin V2, has ReLUs and base 2: see the comparison with transformers'
Swin V2); its xPos is causal; its T5 bias can be scaled by sqrt(d), which T5's isn't.
"""

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding
from x_transformers import x_transformers

from hf_posenc import AlibiPosition, RotaryPosition, SinusoidalPosition, T5Position, apply_rotary
from hf_posenc.model.unpadding import Tokens


def same_gradients(mine: torch.Tensor, theirs: torch.Tensor, leaves: list, their_leaves: list) -> None:
    """Values are equal, and the gradients of a random projection of them."""
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    target = torch.randn(mine.shape) / mine.numel() ** 0.5
    got = torch.autograd.grad((mine * target).sum(), leaves)
    wanted = torch.autograd.grad((theirs * target).sum(), their_leaves)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.flatten(), b.flatten(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 4, 8, 12, 20])
def test_alibi_equals_x_transformers(heads):
    """Its ALiBi is symmetric where it isn't masked; positions of several rows go through its own entrance."""
    theirs = x_transformers.AlibiPositionalBias(heads)
    mine = AlibiPosition(num_heads=heads, directional=False, learned=False)
    positions = torch.arange(30)[None]
    torch.testing.assert_close(mine.bias(Tokens.at(positions))[0], theirs(30, 30))
    rows = torch.tensor([[0, 1, 2, 3], [9, 4, 0, 40]])
    torch.testing.assert_close(mine.bias(Tokens.at(rows)), theirs.forward_custom_pos(rows.float()))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20)])
def test_t5_bias_equals_x_transformers(num_buckets, max_distance):
    theirs = x_transformers.RelativePositionBias(
        scale=1.0, causal=False, num_buckets=num_buckets, max_distance=max_distance, heads=4
    )
    mine = T5Position(num_heads=4, num_layers=1, num_buckets=num_buckets, max_distance=max_distance)
    mine.tables[0].load_state_dict(theirs.relative_attention_bias.state_dict())
    positions = torch.arange(200)[None]
    bias = mine.bias(Tokens.at(positions))[0]
    same_gradients(bias, theirs(200, 200), [mine.tables[0].weight], [theirs.relative_attention_bias.weight])


def test_a_sinusoid_with_a_learned_scale_equals_x_transformers():
    """It has all sines before all cosines, and one number for alpha and s."""
    theirs = x_transformers.ScaledSinusoidalEmbedding(24)
    mine = SinusoidalPosition(hidden_size=24, learned_scale=True)
    with torch.no_grad():
        mine.alpha.weight.copy_(theirs.scale.view(1, 1))
    added = mine.encodings(torch.arange(7, 57))
    sines_first = torch.cat((added[:, ::2], added[:, 1::2]), -1)
    expected = theirs(torch.zeros(1, 50, 24), offset=7)
    same_gradients(sines_first, expected, [mine.alpha.weight], [theirs.scale])


SCALINGS = {
    "plain": ({"rope_theta": 500.0}, {}),
    "linear": ({"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}, {"interpolation": 4.0}),
    # 40 positions where 20 were trained: s l/L - s + 1 = 2 x 2 - 1 is what the base is scaled with.
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 20, "rope_theta": 500.0},
        {"rescale": 3.0},
    ),
}


@pytest.mark.parametrize("head_dim", [16, 24])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_interleaved_rope_equals_x_transformers(scaling, head_dim):
    """Of 24 entries it turns the first 16, as `partial_rotary_factor` does."""
    parameters, given = SCALINGS[scaling]
    theirs = x_transformers.RotaryEmbedding(
        16,
        base=500.0,
        interpolation_factor=given.get("interpolation", 1.0),
        base_rescale_factor=given.get("rescale", 1.0),
    )
    mine = RotaryPosition(
        head_dim=head_dim, rope_parameters={**parameters, "partial_rotary_factor": 16 / head_dim}, interleaved=True
    )
    q = torch.randn(2, 3, 40, head_dim, requires_grad=True)
    turned = apply_rotary(q, scheme=mine)
    frequencies, _ = theirs(torch.arange(40))
    same_gradients(turned, x_transformers.apply_rotary_pos_emb(q, frequencies), [q], [q])


@pytest.mark.parametrize("head_dim", [16, 24])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_interleaved_rope_equals_rotary_embedding_torch(scaling, head_dim):
    parameters, given = SCALINGS[scaling]
    theirs = RotaryEmbedding(
        16,
        theta=500.0,
        interpolate_factor=given.get("interpolation", 1.0),
        theta_rescale_factor=given.get("rescale", 1.0),
    )
    mine = RotaryPosition(
        head_dim=head_dim, rope_parameters={**parameters, "partial_rotary_factor": 16 / head_dim}, interleaved=True
    )
    q = torch.randn(2, 3, 40, head_dim, requires_grad=True)
    turned = apply_rotary(q, scheme=mine)
    same_gradients(turned, theirs.rotate_queries_or_keys(q), [q], [q])


def test_rope_from_any_start_equals_rotary_embedding_torch():
    q = torch.randn(2, 3, 9, 16, requires_grad=True)
    theirs = RotaryEmbedding(16).rotate_queries_or_keys(q, offset=100)
    same_gradients(apply_rotary(q, start=100, interleaved=True), theirs, [q], [q])
