"""What a conversion can't keep exactly is refused by name, where it can be by config.json alone, and leaves nothing."""

import json
import shutil

import pytest
import torch

from hf_posenc import UserError, convert
from tests.support.conversion import (
    GTE,
    GTE_SIZES,
    NOMIC,
    NOMIC_OLD,
    NOMIC_SIZES,
    edit,
    edit_weights,
    jina,
    tiny_source,
    tiny_tokenizer,
)

PUBLISHED = {"gte": {**GTE, **GTE_SIZES}, "nomic": {**NOMIC, **NOMIC_SIZES}}
UNLIKE_OURS = dict.fromkeys(("prenorm", "use_rms_norm", "rotary_emb_interleaved", "causal", "parallel_block"), True)
UNLIKE_OURS |= {"moe_every_n_layers": 2, "rotary_emb_scale_base": 512.0, "rotary_scaling_factor": 2}
NEW_TO_OURS = dict.fromkeys(UNLIKE_OURS)
OLDER = "an older name .* computes with"
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LATE = {"architectures": ["EuroBertForSequenceClassification"], "classifier_pooling": "late"}


def local_rope(**parameters):
    return {"rope_parameters": {"sliding_attention": parameters}}


def layers(*kinds):
    return {"layer_types": [f"{kind}_attention" for kind in kinds]}


# a family, or the configuration of a published checkpoint; changes of its config.json; and why it is refused
FIELDS = [
    ("bert", {"is_decoder": True}, "is a bert model with is_decoder=True, which PosEnc's body can't express"),
    ("bert", {"model_type": "new", "layer_norm_type": "rms_norm"}, "layer_norm_type='rms_norm', which can't be conv"),
    ("bert", {"model_type": "new", "position_embedding_type": "absolute"}, "has position_embedding_type='absolute'"),
    ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads="),
    ("bert", {"position_embedding_type": "spiral"}, "position_embedding_type='spiral'"),
    ("bert", {"architectures": ["BertForNextSentencePrediction"]}, "head PosEnc doesn't have.*feature-extraction"),
    ("bert", {"architectures": [None]}, r"has architectures=\[null\], which is no list of names"),
    ("bert", {"architectures": "BertModel"}, 'has architectures="BertModel", which is no list of names'),
    ("bert", {"hidden_size": "wide"}, "no bert configuration"),
    ("bert", {"id2label": ["a", "b"]}, "config.json is no bert configuration"),
    ("bert", {"model_type": None}, "has no model_type"),
    ("bert", {"model_type": ["bert"]}, r"is a \['bert'\] model, which can't be converted"),
    ("mpnet", {"pad_token_id": 0}, "pad_token_id=0"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets=16"),
    ("jina_embeddings_v3", {"rope_parameters": DYNAMIC}, "dynamic"),
    ("roberta", {"pad_token_id": None}, "pad_token_id=None, and a roberta model needs one"),
    # DeBERTas
    ("deberta-v2", {"conv_kernel_size": 3}, "is a deberta-v2 model with conv_kernel_size=3, which PosEnc's body can't"),
    ("deberta", {"talking_head": True}, "talking_head=True, which PosEnc's body can't express"),
    ("deberta-v2", {"embedding_size": 16}, "has embedding_size=16"),
    ("deberta-v2", {"relative_attention": False}, "has relative_attention=False. PosEnc can express"),
    ("deberta", {"pos_att_type": "c2p|p2p"}, r"has pos_att_type=\['c2p', 'p2p'\]"),
    ("deberta", {"share_att_key": True}, r"deberta.share_att_key=True \(deberta has False\)"),
    ("deberta-v2", {"norm_rel_ebd": "layer_norm|scale"}, r"has norm_rel_ebd='layer_norm\|scale'"),
    ("deberta-v2", {"pooler_hidden_size": 16}, "has pooler_hidden_size=16"),
    (
        "deberta for text-classification",
        {"pooler_hidden_act": "tanh"},
        "has pooler_hidden_act='tanh'.*encoder alone: head='feature-extraction'",
    ),
    ("deberta-v2", {"attention_head_size": 16}, "has attention_head_size=16, and PosEnc's heads are"),
    ("deberta-v2", {"position_buckets": 256}, "position_buckets=256 is out of range.* from 2 to 76"),
    # ESM and EuroBERT
    ("esm", {"is_folding_model": True}, "is an esm model with is_folding_model=True, which PosEnc's body"),
    ("esm", {"position_embedding_type": "relative_key"}, "has position_embedding_type='relative_key'. PosEnc can"),
    ("esm", {"position_embedding_type": None}, "has position_embedding_type=None. PosEnc can"),
    ("esm", {"mask_token_id": None}, "has mask_token_id=None"),
    ("esm", {"pad_token_id": None}, "has pad_token_id=None, and an esm model needs one"),
    ("esm", {"hidden_act": "relu"}, r"has hidden_act='relu' \(esm has 'gelu'\)"),
    (
        "esm",
        {"position_embedding_type": "absolute", "pad_token_id": None},
        "has pad_token_id=None, and an esm model needs one",
    ),
    ("eurobert", {"num_key_value_heads": 2}, "has num_key_value_heads=2: several of its 4 heads share a key"),
    ("eurobert", {"attention_bias": True}, "is a eurobert model with attention_bias=True"),
    ("eurobert", LATE, "has classifier_pooling='late', a mean of the tokens' scores.*feature-extraction"),
    (
        "eurobert",
        {"classifier_pooling": "late", "clf_pooling": "bos"},
        f"has clf_pooling='bos', {OLDER} classifier_pooling='la",
    ),
    # ModernBERT
    ("modernbert", layers(*["sliding"] * 4), "has layer_types=.*a global layer and then the same number"),
    ("modernbert", layers(*["full"] * 4), "has layer_types=.*a global layer and then the same number"),
    ("modernbert", layers("full", "sliding", "full", "full"), "has layer_types="),
    ("modernbert", local_rope(rope_type="linear", factor=2.0, rope_theta=9.0), "has rope_para.*whose RoPE isn't scal"),
    ("modernbert", local_rope(rope_type="default", rope_theta=None), "has rope_para.* local layers with a theta"),
    ("modernbert", {"local_attention": 1}, "has local_attention=1. .*windows of a token or more"),
    ("modernbert", {"attention_bias": True}, "is a modernbert model with attention_bias=True"),
    ("modernbert", {"mlp_bias": True}, "is a modernbert model with mlp_bias=True"),
    ("modernbert", {"classifier_activation": "silu"}, "has a masked-LM head with silu"),
    ("roberta for fill-mask", {"hidden_act": "relu"}, "masked-LM head with gelu"),
    # GTE and Nomic, as files of transformers have them and as those of their own code do
    ("nomic_bert", {"head_dim": 16}, r"head_dim=16, and PosEnc's heads are .* = 32 / 4 wide"),
    (
        "nomic_bert",
        {**NOMIC_OLD, "rotary_emb_base": 10000},
        f"has rotary_emb_base=10000, {OLDER} rope_theta=1000.0.*Delete .* give rope_parameters the rope_theta",
    ),
    (
        "nomic_bert",
        {**NOMIC_OLD, "n_embd": 64},
        f"has n_embd=64, {OLDER} hidden_size=32.*Delete n_embd there, and give the ",
    ),
    ("nomic_bert", {**NOMIC_OLD, "activation_function": "geglu"}, f"function='geglu', {OLDER} hidden_act='silu'"),
    ("nomic_bert", {**NOMIC_OLD, "rotary_emb_fraction": 0.5}, f"n=0.5, {OLDER} partial_rotary_factor=1.0"),
    *(
        (
            "nomic_bert",
            {**NOMIC_OLD, **NEW_TO_OURS, name: value},
            f"is a nomic_bert model with {name}={value}, which .*body can't express",
        )
        for name, value in UNLIKE_OURS.items()
    ),
    ({name: value for name, value in PUBLISHED["nomic"].items() if name != "prenorm"}, {}, "prenorm="),
    (PUBLISHED["nomic"], {"rotary_scaling_factor": 2}, "rotary_scaling_factor="),
    (PUBLISHED["nomic"], {"use_rms_norm": True}, "use_rms_norm="),
    (PUBLISHED["nomic"], {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction=|partial_rotary_factor=0"),
    ("gte", {"logn_attention_scale": True}, "is a gte model with logn_attention_scale=True"),
    *(
        (PUBLISHED["gte"], {"rope_scaling": scaling}, "has rope_scaling=")
        for scaling in (
            *({"type": "ntk", "factor": 2.0, "mixed_b": 0.6}, {"type": "linear", "factor": 2.0}),
            *({"type": "ntk"}, {"type": "ntk", "factor": "2"}, "ntk"),
        )
    ),
    (PUBLISHED["gte"], {"hidden_size": "wide"}, "has hidden_size='wide', which can't be converted"),
    (PUBLISHED["gte"], {"num_attention_heads": 0}, "has num_attention_heads=0, which can't be converted"),
]


@pytest.mark.parametrize(("source", "changes", "match"), FIELDS)
def test_a_config_that_the_body_cannot_express_is_refused_before_weights_are_read(source, changes, match, tmp_path):
    folder = tmp_path / "source"
    if isinstance(source, str):
        family, _, task = source.partition(" for ")
        layers = {"num_hidden_layers": 4} if family == "modernbert" else {}
        tiny_source(folder, family, task or ("fill-mask" if layers else "feature-extraction"), **layers)
        edit(folder, **changes)
    else:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**source, **changes}))
    (folder / "model.safetensors").write_bytes(b"not read")
    with pytest.raises(UserError, match=match):
        convert(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def without(part):
    return lambda state: {name: value for name, value in state.items() if part not in name}


def renamed(old, new):
    return lambda state: {name.replace(old, new): value for name, value in state.items()}


NORM = "bert.embeddings.LayerNorm."
LABELS = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
CLASSES, MASKED = "bert for text-classification", "bert for fill-mask"
# a family and a task; a change of the weights, or of config.json that no longer fits them; and why it is refused
WEIGHTS = [
    (MASKED, lambda state: {**state, f"{NORM}gamma": state[f"{NORM}weight"] + 1}, "twice, under two names"),
    (CLASSES, without("classifier.weight"), "lacks 'classifier.weight', which its config.json asks for"),
    ("modernbert", without("attn.Wqkv"), "lacks .*key.* which its config.json asks for"),
    ("deberta", without("self.in_proj"), "lacks .*key.* which its config.json asks for"),
    (MASKED, {"hidden_size": 36}, "has shape .* its config.json says"),
    (MASKED, {"num_hidden_layers": 3}, "lacks 'encoder.layer.2"),
    (MASKED, {"num_hidden_layers": 3, "auto_map": {"AutoModel": "a/b--c.D"}}, "code of its own.*jina-embeddings-v3-hf"),
    (MASKED, {"num_hidden_layers": 1}, "holds 'encoder.layer.1.*would lose something"),
    (CLASSES, LABELS, r"'classifier.weight' has shape \(3, 32\), its config.json says \(2, 32"),
    # keys that only begin like known ones
    *(
        (family, lambda state, name=name: {**state, name: torch.ones(2)}, f"'{known}', which a {family} model")
        for family, names in {
            "bert": (
                *("classifier.adapter.weight", "bert.pooler.extra.weight", "cls.predictions.secret"),
                *("bert.secret.weight", "bert.embeddings.position_ids_extra", "qa_outputs.dense.weight"),
                "pre_classifier.weight",
            ),
            "distilbert": ("vocab_other.weight",),
            "roberta": ("lm_head.adapter.weight",),
        }.items()
        for name in names
        for known in (name.removeprefix("bert."),)
    ),
    ("jina", renamed("mlp.gated_layers", "mlp.up_gated_layer"), "holds 'encoder.layer.0.mlp.up_gated_l.*norms on quer"),
    ("jina", renamed("layer.1.mlp.wo", "layer.1.mlp.ow"), "lacks 'encoder.layer.1.mlp.wo.bias'"),
    ("jina", renamed("pooler.dense", "pooler.sparse"), "'pooler.sparse.bias', 'pooler.sparse.weight', which a bert m"),
    ("jina", {"feed_forward_type": "original"}, "has feed_forward_type='original'"),
]


@pytest.mark.parametrize(("source", "change", "match"), WEIGHTS)
def test_weights_and_a_config_that_do_not_belong_together_are_refused(source, change, match, tmp_path):
    family, _, task = source.partition(" for ")
    if family == "jina":
        jina(tmp_path / "source")
    else:
        tiny_source(tmp_path / "source", family, task or "feature-extraction")
    if callable(change):
        edit_weights(tmp_path / "source", change)
    else:
        edit(tmp_path / "source", **change)
    for head in (None, *filter(None, [task])):
        with pytest.raises(UserError, match=match):
            convert(tmp_path / "source", tmp_path / "out", head=head)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


LINEAR, LONGER = {"rope_type": "linear", "factor": 2.0}, {"max_position_embeddings": 80}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"head": "telepathy"}, "head='telepathy' is unknown"),
        ({"scheme": "spiral"}, "scheme='spiral' is unknown"),
        ({"scheme": "alibi", "scheme_kwargs": {"slope": 1}}, "no argument of 'alibi'"),
        ({"max_position_embeddings": 1}, "max_position_embeddings=1 is out of range. Give a whole number from 3"),
        ({"extension": "tile"}, "has no effect: max_position_embeddings=40"),
        ({"extension": "yarn", **LONGER}, "'yarn' isn't one for 'learned'. Choose one of tile, interpolate"),
        ({"extension": "yarn", "scheme": "lspe", **LONGER}, "'yarn' isn't one for 'lspe'. Leave it"),
        ({"extension": "yarn", "scheme": "rope", "rope_parameters": LINEAR, **LONGER}, "both scale"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options, match, tmp_path):
    tiny_source(tmp_path / "source")
    tiny_tokenizer(tmp_path / "source")
    with pytest.raises(UserError, match=match):
        convert(tmp_path / "source", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_report_whose_trained_length_is_no_number_is_refused(tmp_path):
    tiny_source(tmp_path)
    (tmp_path / "conversion.json").write_text('{"trained_length": "x"}')
    with pytest.raises(UserError, match="conversion.json has trained_length='x', which is no number. Copy the check"):
        convert(tmp_path, measure=False)


def test_files_that_are_missing_or_hold_no_weights_are_named(tmp_path):
    whole = tiny_source(tmp_path / "whole")
    whole.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    lost = sorted((tmp_path / "shards").glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(UserError, match=f"{lost.name}. is damaged or cut short .No such file"):
        convert(tmp_path / "shards")
    bare = shutil.copytree(tmp_path / "whole", tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    for is_asked in (False, True):
        with pytest.raises(UserError, match=r"holds no model\.safetensors") as caught:
            convert(bare, allow_pickle=is_asked)
        assert ("allow_pickle=True" in str(caught.value)) is not is_asked
    for content in ([torch.ones(2)], torch.ones(2), {0: torch.ones(2)}, "text", None):
        torch.save(content, bare / "pytorch_model.bin")
        with pytest.raises(UserError, match=r"pytorch_model\.bin is damaged, or holds more than weights"):
            convert(bare, allow_pickle=True)
