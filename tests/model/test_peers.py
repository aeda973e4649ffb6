"""Parity with encoders that we didn't write, given the same weights; tests/peers/ holds more of it."""

from pathlib import Path

import pytest
import torch
from common import padded, perturb, tokens
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DebertaConfig,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    RoFormerConfig,
    RoFormerModel,
    Swinv2Config,
    T5Config,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position
from transformers.models.modernbert import modeling_modernbert
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posenc import (
    PosEncConfig,
    PosEncForMaskedLM,
    PosEncForSequenceClassification,
    PosEncModel,
    apply_rotary,
)
from hf_posenc.model.position_alibi import alibi_slopes
from hf_posenc.model.position_deberta import DebertaPosition
from hf_posenc.model.position_mlp_bias import MLPBiasPosition
from hf_posenc.model.position_t5 import T5Position, t5_bucket
from hf_posenc.model.unpadding import Tokens

BODY = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
LAYER = {
    "attention.self.distance_embedding": None,  # of the scheme, not of the layer
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "output_norm",
}


def bert_to_posenc(state: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """A BERT (or ELECTRA) encoder's weights under our names."""
    renamed = {}
    for key, value in state.items():
        if "position_ids" in key or "token_type_ids" in key:
            continue
        key = key.replace("embeddings.position_embeddings", "position.embedding").replace("LayerNorm", "LayerNorm")
        key = key.replace("embeddings.LayerNorm", "embeddings.norm").replace(
            "embeddings_project", "embeddings.projection"
        )
        if key.startswith("encoder.layer."):
            index, rest = key.removeprefix("encoder.layer.").split(".", 1)
            name, kind = rest.rsplit(".", 1)
            key = f"layers.{index}.{LAYER[name]}.{kind}" if LAYER[name] else f"position.tables.{index}.{kind}"
        renamed[prefix + key] = value
    return renamed


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("unpad", [True, False])
def test_learned_post_norm_equals_transformers_bert(unpad, side):
    bert = perturb(BertModel(BertConfig(**BODY), add_pooling_layer=False), 0.1).eval()
    ours = PosEncModel(
        PosEncConfig(**BODY, position_embedding_type="learned", norm_position="post", unpad_inputs=unpad)
    ).eval()
    ours.load_state_dict(bert_to_posenc(bert.state_dict()))
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 1, 13)], side)
    types = (torch.arange(20) > 5).long().expand_as(ids)
    # BERT counts padding on the left as positions; given the same positions it must agree.
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    theirs = bert(ids, attention_mask=mask, token_type_ids=types, position_ids=position_ids, output_hidden_states=True)
    mine = ours(ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
    assert len(theirs.hidden_states) == len(mine.hidden_states)
    for a, b in zip(mine.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(a[mask == 1], b[mask == 1], atol=1e-5, rtol=1e-5)


def test_classifier_with_cls_pooling_and_tanh_equals_transformers_bert():
    bert = perturb(BertForSequenceClassification(BertConfig(**BODY, num_labels=3)), 0.1).eval()
    config = PosEncConfig(
        **BODY,
        num_labels=3,
        position_embedding_type="learned",
        norm_position="post",
        classifier_pooling="cls",
        classifier_hidden_act="tanh",
    )
    ours = PosEncForSequenceClassification(config).eval()
    state = bert.state_dict()
    encoder = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.") and "pooler" not in k}
    head = {"dense.weight": "bert.pooler.dense.weight", "dense.bias": "bert.pooler.dense.bias"}
    head |= {name: name for name in ("classifier.weight", "classifier.bias")}
    ours.load_state_dict(bert_to_posenc(encoder, "model.") | {mine: state[theirs] for mine, theirs in head.items()})
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 13)])
    labels = torch.tensor([0, 2, 1])
    mine, theirs = (model(ids, attention_mask=mask, labels=labels) for model in (ours, bert))
    torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.loss, theirs.loss, atol=1e-5, rtol=1e-5)


def test_masked_lm_equals_transformers_bert_in_logits_loss_and_gradients():
    bert = perturb(BertForMaskedLM(BertConfig(**BODY)), 0.1).eval()
    ours = PosEncForMaskedLM(PosEncConfig(**BODY, position_embedding_type="learned", norm_position="post")).eval()
    state = bert.state_dict()
    encoder = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.")}
    head = {
        "dense": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "decoder": "cls.predictions.decoder",
    }
    ours.load_state_dict(
        bert_to_posenc(encoder, "model.")
        | {f"{mine}.{kind}": state[f"{theirs}.{kind}"] for mine, theirs in head.items() for kind in ("weight", "bias")}
    )
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 13)])
    labels = torch.where((ids % 3 == 0) & (mask == 1), ids, -100)
    mine, theirs = (model(ids, attention_mask=mask, labels=labels) for model in (ours, bert))
    torch.testing.assert_close(mine.logits[mask == 1], theirs.logits[mask == 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.loss, theirs.loss, atol=1e-5, rtol=1e-5)
    mine.loss.backward()
    theirs.loss.backward()
    torch.testing.assert_close(
        ours.model.position.embedding.weight.grad,
        bert.bert.embeddings.position_embeddings.weight.grad,
        atol=1e-5,
        rtol=1e-4,
    )


def test_projected_embeddings_equal_transformers_electra():
    electra = perturb(ElectraModel(ElectraConfig(**BODY, embedding_size=20)), 0.1).eval()
    config = PosEncConfig(**BODY, embedding_size=20, position_embedding_type="learned", norm_position="post")
    ours = PosEncModel(config).eval()
    ours.load_state_dict(bert_to_posenc(electra.state_dict()))
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 13)])
    mine, theirs = (model(ids, attention_mask=mask).last_hidden_state for model in (ours, electra))
    torch.testing.assert_close(mine[mask == 1], theirs[mask == 1], atol=1e-5, rtol=1e-5)


def test_interleaved_rope_equals_transformers_roformer():
    table = RoFormerSinusoidalPositionalEmbedding(64, 16)
    table.weight.data = table.create_weight()
    x = torch.randn(2, 3, 40, 16)
    sinusoidal = table(torch.Size((2, 40)))[None, None]
    theirs, _ = RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal, x, x)
    torch.testing.assert_close(apply_rotary(x, interleaved=True), theirs, atol=1e-5, rtol=1e-5)
    assert (apply_rotary(x) - theirs).abs().max() > 0.1


def test_the_encoder_with_interleaved_rope_equals_transformers_roformer():
    roformer = perturb(RoFormerModel(RoFormerConfig(**BODY, embedding_size=32, rotary_value=False)), 0.1).eval()
    # RoFormer's table of sines isn't a weight: it is made anew here after the perturbation of everything.
    roformer.encoder.embed_positions.weight.data = roformer.encoder.embed_positions.create_weight()
    config = PosEncConfig(
        **BODY,
        position_embedding_type="rope",
        position_embedding_kwargs={"interleaved": True},
        norm_position="post",
    )
    ours = PosEncModel(config).eval()
    state = {k: v for k, v in roformer.state_dict().items() if "embed_positions" not in k and "pooler" not in k}
    ours.load_state_dict(bert_to_posenc(state))
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 13)])
    mine, theirs = (model(ids, attention_mask=mask).last_hidden_state for model in (ours, roformer))
    torch.testing.assert_close(mine[mask == 1], theirs[mask == 1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("theta", [10000.0, 160000.0])
def test_half_split_rope_equals_transformers_modernbert(theta):
    config = ModernBertConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
    )
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 9, 100, 511, 7, 7]])
    q, k = torch.randn(2, 4, 6, 16), torch.randn(2, 4, 6, 16)
    cos, sin = modeling_modernbert.ModernBertRotaryEmbedding(config)(q, positions, "full_attention")
    theirs_q, theirs_k = modeling_modernbert.apply_rotary_pos_emb(q, k, cos, sin)
    mine_q, mine_k = (apply_rotary(x, positions, rope_theta=theta) for x in (q, k))
    torch.testing.assert_close(mine_q, theirs_q, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(mine_k, theirs_k, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 256)])
def test_t5_buckets_equal_transformers_t5(num_buckets, max_distance):
    distance = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(distance, True, num_buckets, max_distance)
    assert torch.equal(t5_bucket(distance, num_buckets, max_distance), theirs)


def test_t5_bias_equals_transformers_t5():
    theirs = T5Attention(T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=False), has_relative_attention_bias=True)
    mine = T5Position(num_heads=4, num_layers=3)
    mine.tables[0].load_state_dict(theirs.relative_attention_bias.state_dict())
    positions = torch.arange(200)[None]
    torch.testing.assert_close(mine.bias(Tokens.at(positions)), theirs.compute_bias(200, 200))


def test_alibi_slopes_of_12_heads_are_the_published_ones():
    """Those of 8 heads, 1/2 to 1/256, then every other one of 16 heads: 2^-0.5, 2^-1.5, ... (the paper's footnote)."""
    published = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    published += [0.70710678, 0.35355339, 0.17677670, 0.08838835]
    assert alibi_slopes(12) == pytest.approx(published, abs=1e-8)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 12, 16, 20, 25])
def test_alibi_slopes_equal_transformers_bloom(heads):
    """BLOOM's slopes, read off its causal helper: (H, 1, S) of slope x position."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).view(heads, 2)[:, 1]
    # BLOOM goes on from the finer slopes in order, and so has every other one of them.
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("terms", ["c2p", "p2c", "both"])
def test_disentangled_bias_equals_transformers_deberta(terms):
    kinds = {"c2p": ["c2p"], "p2c": ["p2c"], "both": ["c2p", "p2c"]}[terms]
    config = DebertaConfig(
        hidden_size=32,
        num_attention_heads=4,
        relative_attention=True,
        max_relative_positions=5,
        pos_att_type=kinds,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    theirs = perturb(DisentangledSelfAttention(config)).eval()
    mine = DebertaPosition(hidden_size=32, num_heads=4, num_layers=1, terms=terms, max_distance=5)
    with torch.no_grad():
        mine.embedding.weight.normal_()
        if mine.keys is not None:  # DeBERTa's key projection has no bias
            mine.keys[0].weight.copy_(theirs.pos_proj.weight)
            mine.keys[0].bias.zero_()
        if mine.queries is not None:
            mine.queries[0].load_state_dict(theirs.pos_q_proj.state_dict())
    q, k = torch.randn(2, 4, 12, 8), torch.randn(2, 4, 12, 8)
    relative = build_relative_position(q, k) if terms else None
    # DeBERTa has divided q by the scale already when it adds the content to position term.
    scale = (8 * (1 + len(kinds))) ** 0.5
    expected = theirs.disentangled_att_bias(q / scale, k, relative, mine.embedding.weight, 1 + len(kinds))
    got = mine.layer_bias(q, k, Tokens.at(torch.arange(12)[None]), 0)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_keys_equal_the_bert_of_transformers_4(kind, unpad, side):
    """Golden numbers, made by tests/peers/make_bert_golden.py: transformers 5 has no such BERT."""
    golden = load_file(Path(__file__).parents[1] / "peers" / f"bert_{kind}.safetensors")
    part = {
        name: {k.removeprefix(f"{name}."): v for k, v in golden.items() if k.startswith(f"{name}.")}
        for name in ("weight", "input", "output", "gradient")
    }
    config = PosEncConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        num_labels=3,
        hidden_dropout_prob=0.0,
        position_embedding_type=kind,
        norm_position="post",
        classifier_pooling="cls",
        classifier_hidden_act="tanh",
        unpad_inputs=unpad,
    )
    ours = PosEncForSequenceClassification(config)
    names = {"bert.pooler.dense": "dense", "classifier": "classifier"}
    encoder = {k.removeprefix("bert."): v for k, v in part["weight"].items() if k.startswith("bert.")}
    encoder = {k: v for k, v in encoder.items() if not k.startswith(("pooler", "embeddings.position_embeddings"))}
    head = {f"{b}.{kind}": part["weight"][f"{a}.{kind}"] for a, b in names.items() for kind in ("weight", "bias")}
    ours.load_state_dict(bert_to_posenc(encoder, "model.") | head)

    ids, mask, types = (part["input"][name] for name in ("ids", "mask", "types"))
    real = mask == 1
    if side == "left":  # only distances count, so the other side of padding changes nothing
        shift = mask.shape[1] - mask.sum(-1)
        place = (torch.arange(mask.shape[1]) - shift[:, None]) % mask.shape[1]
        ids, mask, types = (t.gather(1, place) for t in (ids, mask, types))
    out = ours(
        ids, attention_mask=mask, token_type_ids=types, labels=part["input"]["labels"], output_hidden_states=True
    )
    torch.testing.assert_close(out.logits, part["output"]["logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.loss, part["output"]["loss"], atol=1e-5, rtol=1e-5)
    assert len(out.hidden_states) == 3
    for layer, state in enumerate(out.hidden_states):
        expected = part["output"][f"hidden.{layer}"]
        torch.testing.assert_close(state[mask == 1], expected[real], atol=1e-5, rtol=1e-5)
    out.loss.backward()
    gradients = {k.removeprefix("bert."): v for k, v in part["gradient"].items()}
    assert sum("distance_embedding" in name for name in gradients) == 2
    for name, expected in bert_to_posenc(gradients, "model.").items():
        got = ours.get_parameter(name).grad
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
    got = mine.bias(Tokens.at(positions[None]))[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    target = torch.randn(expected.shape)
    (got * target).sum().backward()
    (expected * target).sum().backward()
    torch.testing.assert_close(mine.up.weight.grad, -network[0].weight.grad[:, 1:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.up.bias.grad, network[0].bias.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.down.weight.grad, network[2].weight.grad, atol=1e-4, rtol=1e-4)
