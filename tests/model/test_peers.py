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
    ElectraModel,
    RoFormerModel,
    Swinv2Config,
    T5Config,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posenc import PosEncConfig, PosEncForMaskedLM, PosEncForSequenceClassification, PosEncModel
from hf_posenc.model.position_alibi import alibi_slopes
from hf_posenc.model.position_deberta import DebertaPosition
from hf_posenc.model.position_mlp_bias import MLPBiasPosition
from hf_posenc.model.position_t5 import T5Position
from hf_posenc.model.unpadding import Tokens

IDS, MASK = padded([tokens(n, seed=n) for n in (20, 7, 13)])
BODY = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
EMBEDDINGS = {
    "embeddings.position_embeddings": "position.embedding",
    "embeddings.LayerNorm": "embeddings.norm",
    "embeddings_project": "embeddings.projection",
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
        for theirs, mine in EMBEDDINGS.items():
            key = key.replace(theirs, mine)
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
    config = PosEncConfig(**BODY, position_embedding_type="learned", norm_position="post", unpad_inputs=unpad)
    ours = PosEncModel(config).eval()
    ours.load_state_dict(bert_to_posenc(bert.state_dict()))
    ids, mask = padded([tokens(n, seed=n) for n in (20, 7, 1, 13)], side)
    types = (torch.arange(20) > 5).long().expand_as(ids)
    # BERT counts padding on the left as positions; given the same positions it must agree.
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    theirs = bert(ids, attention_mask=mask, token_type_ids=types, position_ids=position_ids, output_hidden_states=True)
    mine = ours(ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
    mine, theirs = ([state[mask == 1] for state in out.hidden_states] for out in (mine, theirs))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [
        (ElectraModel, {"embedding_size": 20}, {"embedding_size": 20, "position_embedding_type": "learned"}),
        (
            RoFormerModel,
            {"embedding_size": 32, "rotary_value": False},
            {"position_embedding_type": "rope", "position_embedding_kwargs": {"interleaved": True}},
        ),
    ],
)
def test_projected_embeddings_equal_electras_and_interleaved_rope_equals_roformers(kind, theirs, ours):
    peer = perturb(kind(kind.config_class(**BODY, **theirs)), 0.1).eval()
    if kind is RoFormerModel:  # its table of sines isn't a weight: it is made anew after the perturbation of everything
        peer.encoder.embed_positions.weight.data = peer.encoder.embed_positions.create_weight()
    model = PosEncModel(PosEncConfig(**BODY, **ours, norm_position="post")).eval()
    state = {k: v for k, v in peer.state_dict().items() if "embed_positions" not in k and "pooler" not in k}
    model.load_state_dict(bert_to_posenc(state))
    mine, expected = (each(IDS, attention_mask=MASK).last_hidden_state for each in (model, peer))
    torch.testing.assert_close(mine[MASK == 1], expected[MASK == 1], atol=1e-5, rtol=1e-5)


def with_head(ours, state: dict[str, torch.Tensor], head: dict[str, str]):
    """Our model with the weights of a BERT with a head, whose layers are named on the right of `head`."""
    encoder = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.") and "pooler" not in k}
    kinds = ("weight", "bias")
    own = {f"{mine}.{kind}": state[f"{theirs}.{kind}"] for mine, theirs in head.items() for kind in kinds}
    ours.load_state_dict(bert_to_posenc(encoder, "model.") | own)
    return ours


CLS = {"norm_position": "post", "classifier_pooling": "cls", "classifier_hidden_act": "tanh", "num_labels": 3}
CLS_HEAD = {"classifier.dense": "bert.pooler.dense", "classifier.out_proj": "classifier"}


def test_classifier_with_cls_pooling_and_tanh_equals_transformers_bert():
    bert = perturb(BertForSequenceClassification(BertConfig(**BODY, num_labels=3)), 0.1).eval()
    ours = PosEncForSequenceClassification(PosEncConfig(**BODY, **CLS, position_embedding_type="learned")).eval()
    with_head(ours, bert.state_dict(), CLS_HEAD)
    labels = torch.tensor([0, 2, 1])
    mine, theirs = (model(IDS, attention_mask=MASK, labels=labels) for model in (ours, bert))
    torch.testing.assert_close((mine.logits, mine.loss), (theirs.logits, theirs.loss), atol=1e-5, rtol=1e-5)


def test_masked_lm_equals_transformers_bert_in_logits_loss_and_gradients():
    bert = perturb(BertForMaskedLM(BertConfig(**BODY)), 0.1).eval()
    ours = PosEncForMaskedLM(PosEncConfig(**BODY, position_embedding_type="learned", norm_position="post")).eval()
    head = {
        "lm_head.dense": "transform.dense",
        "lm_head.layer_norm": "transform.LayerNorm",
        "lm_head.decoder": "decoder",
    }
    with_head(ours, bert.state_dict(), {mine: f"cls.predictions.{theirs}" for mine, theirs in head.items()})
    labels = torch.where((IDS % 3 == 0) & (MASK == 1), IDS, -100)
    mine, theirs = (model(IDS, attention_mask=MASK, labels=labels) for model in (ours, bert))
    torch.testing.assert_close(mine.logits[MASK == 1], theirs.logits[MASK == 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.loss, theirs.loss, atol=1e-5, rtol=1e-5)
    mine.loss.backward()
    theirs.loss.backward()
    got, expected = ours.model.position.embedding, bert.bert.embeddings.position_embeddings
    torch.testing.assert_close(got.weight.grad, expected.weight.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 256)])
def test_t5_bias_equals_transformers_t5(num_buckets, max_distance):
    sizes = {"relative_attention_num_buckets": num_buckets, "relative_attention_max_distance": max_distance}
    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=False, **sizes)
    theirs = T5Attention(config, has_relative_attention_bias=True)
    mine = T5Position(num_heads=4, num_layers=3, num_buckets=num_buckets, max_distance=max_distance)
    mine.tables[0].load_state_dict(theirs.relative_attention_bias.state_dict())
    positions = torch.arange(600)[None]
    torch.testing.assert_close(mine.bias(Tokens.from_positions(positions)), theirs.compute_bias(600, 600))


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
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_relative_positions": 5}
    config = DebertaConfig(**sizes, relative_attention=True, pos_att_type=kinds)
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
    relative = build_relative_position(q, k)
    # DeBERTa has divided q by the scale already when it adds the content to position term.
    scale = (8 * (1 + len(kinds))) ** 0.5
    expected = theirs.disentangled_att_bias(q / scale, k, relative, mine.embedding.weight, 1 + len(kinds))
    got = mine.layer_bias(q, k, Tokens.from_positions(torch.arange(12)[None]), 0)
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
    sizes = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 12, "hidden_dropout_prob": 0.0}
    config = PosEncConfig(**sizes, **CLS, position_embedding_type=kind, unpad_inputs=unpad)
    absolute = "bert.embeddings.position_embeddings.weight"
    weights = {name: weight for name, weight in part["weight"].items() if name != absolute}
    ours = with_head(PosEncForSequenceClassification(config), weights, CLS_HEAD)

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
    got = mine.bias(Tokens.from_positions(positions[None]))[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    target = torch.randn(expected.shape)
    (got * target).sum().backward()
    (expected * target).sum().backward()
    got = [weight.grad for weight in (mine.up.weight, mine.up.bias, mine.down.weight)]
    expected = [-network[0].weight.grad[:, 1:], network[0].bias.grad, network[2].weight.grad]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
