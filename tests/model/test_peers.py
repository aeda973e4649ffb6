"""Parity with encoders that we didn't write, given the same weights; tests/peers/ holds more, conversion/ DeBERTa's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, Swinv2Config, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers import x_transformers

from hf_posenc import AlibiPosition, CablePosition, MLPBiasPosition, T5Position, Tokens, convert
from tests.support.common import assert_equal_with_gradients, perturb
from tests.support.conversion import edit


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 256)])
def test_t5_bias_equals_transformers_t5(num_buckets, max_distance):
    sizes = {"relative_attention_num_buckets": num_buckets, "relative_attention_max_distance": max_distance}
    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=False, **sizes)
    theirs = T5Attention(config, has_relative_attention_bias=True)
    mine = T5Position(num_heads=4, num_layers=3, num_buckets=num_buckets, max_distance=max_distance)
    mine.tables[0].load_state_dict(theirs.relative_attention_bias.state_dict())
    positions = torch.arange(600)[None]
    torch.testing.assert_close(mine.bias(Tokens.from_positions(positions)), theirs.compute_bias(600, 600))


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16, 20, 25])
def test_alibi_slopes_equal_transformers_bloom(heads):
    """BLOOM's slopes, read off its causal helper: (H, 1, S) of slope x position."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).view(heads, 2)[:, 1]
    # BLOOM goes on from the finer slopes in order, and so has every other one of them.
    torch.testing.assert_close(torch.tensor(AlibiPosition(num_heads=heads).slopes[0]), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_keys_equal_the_bert_of_transformers_4(kind, unpad, side, tmp_path):
    """Golden numbers, made by tests/peers/make_bert_golden.py: transformers 5 has no such BERT."""
    golden = load_file(Path(__file__).parents[1] / "peers" / f"bert_{kind}.safetensors")
    part = {
        name: {k.removeprefix(f"{name}."): v for k, v in golden.items() if k.startswith(f"{name}.")}
        for name in ("weight", "input", "output", "gradient")
    }
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 12, "num_labels": 3}
    BertConfig(**sizes, architectures=["BertForSequenceClassification"]).save_pretrained(tmp_path)
    edit(tmp_path, position_embedding_type=kind)
    save_file(part["weight"], tmp_path / "model.safetensors", {"format": "pt"})
    ours = convert(tmp_path, measure=False).model.eval()
    ours.config.unpad_inputs = unpad

    ids, mask, types = (part["input"][name] for name in ("ids", "mask", "types"))
    real = mask == 1
    if side == "left":  # only distances count, so the other side of padding changes nothing
        shift = mask.shape[1] - mask.sum(-1)
        place = (torch.arange(mask.shape[1]) - shift[:, None]) % mask.shape[1]
        ids, mask, types = (t.gather(1, place) for t in (ids, mask, types))
    batch = {"attention_mask": mask, "token_type_ids": types, "labels": part["input"]["labels"]}
    out = ours(ids, **batch, output_hidden_states=True)
    expected = part["output"]["logits"], part["output"]["loss"]
    torch.testing.assert_close((out.logits, out.loss), expected, atol=1e-5, rtol=1e-5)
    for layer, state in enumerate(out.hidden_states):
        expected = part["output"][f"hidden.{layer}"]
        torch.testing.assert_close(state[mask == 1], expected[real], atol=1e-5, rtol=1e-5)
    out.loss.backward()
    assert len(out.hidden_states) == 3
    assert len(part["gradient"]) == 4
    for name, expected in part["gradient"].items():
        *_, layer, _, _, weight, _ = name.split(".")  # bert.encoder.layer.0.attention.self.query.weight
        of_scheme = weight == "distance_embedding"
        mine = f"model.position.tables.{layer}" if of_scheme else f"model.layers.{layer}.attention.{weight}"
        got = ours.get_submodule(mine).weight.grad
        assert got.abs().max() > 1e-3
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_mlp_bias_equals_transformers_swin_v2_before_its_sigmoid():
    """A window of 9 makes Swin's log2(1 + 8 x / (9 - 1)) / log2(8) our log2(1 + x) / log2(1 + 7).

    Swin goes on with 16 sigmoid(...), has no bias in the last layer and a second axis, which stands still here; its
    distances are query minus key, ours key minus query.
    """
    theirs = perturb(Swinv2SelfAttention(Swinv2Config(), dim=16, num_heads=4, window_size=9))
    network, table = theirs.continuous_position_bias_mlp, theirs.relative_coords_table
    mine = MLPBiasPosition(num_heads=4, intermediate_size=512, reference_distance=7)
    with torch.no_grad():
        mine.up.weight.copy_(-network[0].weight[:, 1:])
        mine.up.bias.copy_(network[0].bias)
        mine.down.weight.copy_(network[2].weight)
        mine.down.bias.zero_()
    line = network(table[0, 8])  # rows 0 apart, columns -8 to 8 apart
    positions = torch.arange(9)
    expected = line[positions[:, None] - positions + 8].permute(2, 0, 1)
    got = mine.bias(Tokens.from_positions(positions[None]))[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    target = torch.randn(expected.shape)
    (got * target).sum().backward()
    (expected * target).sum().backward()
    got = [weight.grad for weight in (mine.up.weight, mine.up.bias, mine.down.weight)]
    expected = [-network[0].weight.grad[:, 1:], network[0].bias.grad, network[2].weight.grad]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


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
