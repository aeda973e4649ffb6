"""A checkpoint as a model of transformers' own: the same numbers where hf_posenc isn't installed."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING

import hf_posenc
from hf_posenc import UserError
from hf_posenc.conversion.families import FAMILIES
from hf_posenc.data.columns import notes_of
from hf_posenc.tasks import TASKS
from tests.support.common import home_of, others_slow, perturb, tiny_config
from tests.support.conversion import assert_same, sentences, tiny_source, tiny_tokenizer

CLASSIFIERS = [name for name in FAMILIES if "text-classification" in FAMILIES[name].heads]
CASES = [
    (name, scheme, task, {}, name)
    for name, family in FAMILIES.items()
    if name in CONFIG_MAPPING  # the lowest transformers has no gte
    for scheme in FAMILIES[name].schemes
    for task in ("feature-extraction", *family.heads)
    if task == "fill-mask" or (name, scheme) == ("mpnet", "learned+t5")
]
"""Every class, and of one every head; all of them go back and forth in test_conversion_exact.py."""
ROPE = {"original_max_position_embeddings": 16, "factor": 4.0}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS = [
    ("jina_embeddings_v3", "rope", {"rope_parameters": {"rope_theta": 160000.0}}),
    ("jina_embeddings_v3", "rope", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    ("jina_embeddings_v3", "rope", {"rope_parameters": {"rope_type": "proportional", "factor": 3.0}}),
    ("jina_embeddings_v3", "rope", {"rope_parameters": {"rope_type": "yarn", **ROPE}}),
    ("jina_embeddings_v3", "rope", {"rope_parameters": {"rope_type": "llama3", **BANDS, **ROPE}}),
    ("nomic_bert", "rope", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000.0, **ROPE}}),
    ("nomic_bert", "rope", {"type_vocab_size": 0, "hidden_act": "silu", "hidden_dropout_prob": 0}),
    ("gte", "rope", {"type_vocab_size": 0, "tie_word_embeddings": False}),
    ("nomic_bert", "rope", {"tie_word_embeddings": False, "classifier_dropout": 0}),
    ("bert", "learned", {"type_vocab_size": 0}),
    ("jina_embeddings_v3", "rope", {"type_vocab_size": 0}),
    ("jina_embeddings_v3", "rope", {"tie_word_embeddings": False}),
    ("mpnet", "t5", {"type_vocab_size": 1}),
    ("mpnet", "t5", {"type_vocab_size": 2}),
    ("mpnet", "t5", {"pad_token_id": 7}),
    ("bert", "learned", {"pad_token_id": None}),
    ("electra", "learned", {"embedding_size": 20}),
    ("roformer", "rope", {"embedding_size": 20}),
    ("roformer", "rope", {"max_position_embeddings": 1000}),
]
VARIANTS = [(name, scheme, "fill-mask", more, name) for name, scheme, more in VARIANTS if name in CONFIG_MAPPING]
"""What else the encoder may be; as a masked language model, which holds the most."""
FIRST = [
    ("bert", "learned", "text-classification", {}, "native"),
    ("distilbert", "learned", "text-classification", {}, "native"),
    ("electra", "learned", "feature-extraction", {"embedding_size": 20}, "native"),
    *((name, "rope", "fill-mask", {}, "native") for name in ("roformer", "jina_embeddings_v3", "nomic_bert", "gte")),
    ("mpnet", "learned+t5", "question-answering", {}, "native"),
]
"""Those that are chosen, where none is named: the first class that fits."""


def saved(folder: Path, name: str, scheme: str, task: str, *, dtype=torch.float32, shards="5GB", **fields):
    """A tiny random PosEnc checkpoint that a class can hold, with a tokenizer; returns its model in float32."""
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    types = {} if FAMILIES[name].token_types else {"type_vocab_size": 0}
    fields = {**FAMILIES[name].usual_fields(scheme), **types, **fields}
    if "pad_token_id" in FAMILIES[name].schemes[scheme] or FAMILIES[name].needs_padding:
        fields.setdefault("pad_token_id", 1)
    if task in ("text-classification", "token-classification"):
        fields = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, **fields}
    torch.manual_seed(0)
    model = perturb(getattr(hf_posenc, f"PosEnc{TASKS[task]}")(tiny_config(**fields))).to(dtype)
    if name == "deberta":  # whose keys have no bias
        for key, value in model.state_dict().items():
            value.mul_(not re.search(r"(key|keys\.\d)\.bias$", key))
    model.save_pretrained(folder, max_shard_size=shards)
    write_tokenizer(folder, model.config.pad_token_id)
    return model.float().eval()


def write_tokenizer(folder: Path, pad_token_id: int | None) -> None:
    """Whose padding is the model's: RoBERTa and its like take no other token 1."""
    words = tiny_tokenizer(folder).get_vocab()
    if pad_token_id == 1:
        transformers.BertTokenizer(vocab={**words, "[UNK]": 0, "[PAD]": 1}).save_pretrained(folder)


def exported(folder: Path, task: str, to: str = "native"):
    """The report of an export into a folder beside, and what the Auto class of transformers loads of it."""
    out = folder.with_name("out")
    report = hf_posenc.export(folder, out, to=to)
    auto = getattr(transformers, f"AutoModel{TASKS[task].removeprefix('Model')}")
    theirs, loading = auto.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not type(theirs).__module__.startswith(("hf_posenc", "transformers_modules"))
    assert type(theirs).__name__ == report.architecture
    assert not {name for names in loading.values() for name in names if "pooler" not in name}
    return report, theirs.eval()


QUICK = [*CASES[::5], *VARIANTS[::3], *FIRST]


@pytest.mark.parametrize(("name", "scheme", "task", "more", "to"), others_slow([*CASES, *VARIANTS], *QUICK))
def test_transformers_own_class_computes_the_same(name, scheme, task, more, to, tmp_path):
    model = saved(tmp_path / "in", name, scheme, task, **more)
    report, theirs = exported(tmp_path / "in", task, to)
    assert report.architecture == FAMILIES[name].model_class(task).__name__
    assert_same(model, theirs, task, model.config.pad_token_id or 0)
    texts = sentences(3)
    tokenizers = [transformers.AutoTokenizer.from_pretrained(tmp_path / folder) for folder in ("in", "out")]
    assert tokenizers[0](texts)["input_ids"] == tokenizers[1](texts)["input_ids"]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= files
    assert not [file for file in files if file.endswith(".py")]
    assert "auto_map" not in json.loads((tmp_path / "out/config.json").read_text())


BERT, BERT_LM = (("bert", "learned", task) for task in ("text-classification", "fill-mask"))
JINA, JINA_LM = (("jina_embeddings_v3", "rope", task) for task in ("multiple-choice", "fill-mask"))
NOMIC_LM, GTE_LM = (("nomic_bert", "rope", "fill-mask"), ("gte", "rope", "fill-mask"))
ROFORMER_LM = ("roformer", "rope", "fill-mask")
ALIBI = {"position_embedding_type": "alibi", "position_embedding_kwargs": None}
UNBIASED, BUCKETS = {"attention_bias": False, "mlp_bias": False}, {"num_buckets": 16}
SMALL_EPS = {"position_embedding_kwargs": {"norm_eps": 1e-3}}
ESM_LM = ("esm", "rope", "fill-mask")
TWO_LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 1.0}
TWO_LISTS |= {"attention_factor": 1.0, "original_max_position_embeddings": 16}
SCALED = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "factor": 4.0}
SCALED |= {"original_max_position_embeddings": 16}
MPNET_LM, MPNET_2_LM = (("mpnet", scheme, "fill-mask") for scheme in ("t5", "learned+t5"))


@pytest.mark.parametrize(
    ("start", "fields", "asked", "match"),
    [
        (BERT_LM, ALIBI, None, "^position_embedding_type='alibi': no class .* to='onnx' takes every scheme"),
        (
            BERT_LM,
            {"norm_position": "pre"},
            None,
            r"^norm_position='pre' \(bert has 'post'\): .*trained with set={'norm_position': 'post'} can be\.",
        ),
        (BERT_LM, {"scale_embeddings": True}, "bert", r"scale_embeddings=True \(bert has False\)"),
        (BERT_LM, {"position_embedding_kwargs": {"dropout": 0.1}}, "bert", r"learned\.dropout=0\.1 \(bert has 0\.0\)"),
        (
            BERT,
            {"classifier_pooling": "mean", "classifier_hidden_act": None, "norm_position": "pre"},
            None,
            r"norm_position='pre' .*; classifier_pooling='mean' \(bert has 'cls'\); classifier_hidden_act=None",
        ),
        (BERT, {}, "distilbert", r"type_vocab_size=2 \(distilbert has 0\)"),
        (BERT, {}, "electra", r"'tanh' \(electra has 'gelu'\)"),
        (BERT_LM, {"pad_token_id": None}, "roberta", r"pad_token_id=None \(roberta needs one"),
        (BERT_LM, {"embedding_size": 20}, "bert", r"embedding_size=20 \(bert has None\)"),
        (JINA_LM, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, None, "rope_type='dynamic'"),
        (JINA_LM, {"rope_parameters": {"partial_rotary_factor": 0.5}}, None, "partial_rotary_factor=0.5"),
        (JINA, {}, "jina_embeddings_v3", "a head for multiple-choice .*has fill-mask, "),
        (ROFORMER_LM, {"rope_parameters": {"rope_theta": 2.0}}, None, r"rope_theta=2\.0 \(roformer has 10000\.0\)"),
        (
            BERT_LM,
            {"mlp_gated": True},
            None,
            r"^mlp_gated=True \(bert has False\): this can't be exported to bert\. A .*'mlp_gated': False} ",
        ),
        (BERT_LM, UNBIASED, "bert", r"attention_bias=False \(bert has True\); mlp_bias=False \(bert has True\)"),
        (NOMIC_LM, {}, "bert", r"position_embedding_type='rope' .*; mlp_gated=True "),
        (NOMIC_LM, {"attention_bias": True}, None, r"attention_bias=True \(nomic_bert has False\)"),
        (GTE_LM, {"mlp_bias": False}, "gte", r"mlp_bias=False \(gte has True\)"),
        (NOMIC_LM, {"pad_token_id": None}, None, r"pad_token_id=None \(nomic_bert needs one\)"),
        (MPNET_LM, {"position_embedding_kwargs": {"per_layer": True}}, None, r"t5\.per_layer=True"),
        (MPNET_2_LM, {"position_embedding_kwargs": {"t5": BUCKETS}}, None, r"t5\.num_buckets=16 \(mpnet has 32"),
        (MPNET_2_LM, {"pad_token_id": 0}, None, r"pad_token_id=0 \(mpnet has 1\)"),
        (
            ("deberta-v2", "deberta", "fill-mask"),
            SMALL_EPS,
            None,
            r"deberta.norm_eps=0.001 \(deberta-v2 has None or 1e-12",
        ),
        (ESM_LM, {"rope_parameters": TWO_LISTS}, None, r"rope_parameters\.short_factor=\[1\.0, .*\(esm has \[2\.0"),
        (ESM_LM, {"rope_parameters": SCALED}, None, r"rope_parameters\.factor=4\.0 \(esm has 1\.0"),
        (("mpnet", "t5", "multiple-choice"), {"type_vocab_size": 2}, None, "type_vocab_size=2 .*pairs of texts"),
    ],
)
def test_what_no_class_can_hold_is_refused_with_each_value(start, fields, asked, match, tmp_path):
    saved(tmp_path / "in", *start, **fields)
    with pytest.raises(UserError, match=match):
        hf_posenc.export(tmp_path / "in", tmp_path / "out", to=asked or "native")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", others_slow(["jina_embeddings_v3", "gte", "mpnet"], "bert", "nomic_bert", "roformer", "esm")
)
def test_half_precision_and_shards_stay_exact(name, tmp_path):
    scheme = "rope" if name == "esm" else list(FAMILIES[name].schemes)[-1]
    types = 0 if name == "esm" else 1
    halves = {"dtype": torch.bfloat16, "shards": "20KB", "type_vocab_size": types}
    model = saved(tmp_path / "in", name, scheme, "fill-mask", **halves)
    assert (tmp_path / "in/model.safetensors.index.json").is_file()
    report, theirs = exported(tmp_path / "in", "fill-mask")
    assert_same(model, theirs, "fill-mask", model.config.pad_token_id or 0)
    stored = load_file(tmp_path / "out/model.safetensors")
    assert {stored.pop(key).dtype for key in [*stored] if "inv_freq" in key} <= {torch.float32}
    dtypes = {tensor.dtype for tensor in stored.values()}
    rounded = name in ("roformer", "mpnet")  # a table of sines, and a sum
    assert dtypes == {torch.float32 if rounded else torch.bfloat16}
    assert any("Written in float32" in note for note in report.notes) == rounded
    assert report.max_length == (None if name in ("jina_embeddings_v3", "nomic_bert", "gte", "esm") else 64)


UNITS = {"problem_type": "regression", "label_mean": 2005.0, "label_scale": 10.0}


@pytest.mark.parametrize("name", sorted({*CLASSIFIERS} - {"roberta", "xlm-roberta", "camembert", "electra"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_layer_of_a_regression_holds_the_units_of_its_data(name, dtype, tmp_path):
    scheme = next(iter(FAMILIES[name].schemes))
    fields = {**UNITS, "id2label": {0: "year"}, "layer_norm_eps": 1e-12}
    model = saved(tmp_path / "in", name, scheme, "text-classification", dtype=dtype, **fields)
    _, theirs = exported(tmp_path / "in", "text-classification", name)
    assert (theirs.config.problem_type, theirs.config.label_scale) == ("regression", 10.0)
    ids = torch.arange(5, 25).view(2, 10)
    torch.testing.assert_close(theirs(ids).logits, model(ids).logits, atol=1e-3, rtol=0)


def test_scores_of_choices_have_no_units(tmp_path):
    model = saved(tmp_path / "in", "bert", "learned", "multiple-choice", dtype=torch.bfloat16, **UNITS)
    report, theirs = exported(tmp_path / "in", "multiple-choice")
    assert_same(model, theirs, "multiple-choice", 0)
    assert not any("float32" in note for note in report.notes)


@pytest.mark.parametrize("name", ["jina_embeddings_v3", "mpnet"])
def test_labels_dropouts_and_the_problem_come_along(name, tmp_path):
    fields = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    fields |= {"problem_type": "multi_label_classification"}
    saved(tmp_path / "in", name, next(iter(FAMILIES[name].schemes)), "text-classification", **fields)
    report, theirs = exported(tmp_path / "in", "text-classification", name)
    assert theirs.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    assert theirs.config.label2id == {"no": 0, "maybe": 1, "yes": 2}
    assert theirs.config.problem_type == "multi_label_classification"
    assert (theirs.config.hidden_dropout_prob, theirs.config.attention_probs_dropout_prob) == (0.2, 0.3)
    if name == "mpnet":
        lost = "hidden_dropout_prob=0.2 where classifier_dropout=0.4 acts here"
        assert any(lost in note for note in report.notes)
    else:
        assert theirs.config.classifier_dropout == 0.4


@pytest.mark.slow
def test_a_tokenizer_that_pads_on_the_left_is_written_to_pad_on_the_right(tmp_path):
    model = saved(tmp_path / "in", "mpnet", "t5", "text-classification")
    tiny_tokenizer(tmp_path / "in", padding_side="left", model_max_length=1000)
    report, theirs = exported(tmp_path / "in", "text-classification")
    assert_same(model, theirs, "text-classification", model.config.pad_token_id or 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("right", 64)
    assert [note for note in report.notes if "pads on the right now" in note]
    assert [note for note in report.notes if "cut to 64 tokens" in note]
    assert report.max_length == 64


def test_the_whole_export_says_what_it_did_and_leaves_nothing_where_it_fails(tmp_path, monkeypatch):
    saved(tmp_path / "in", "bert", "learned", "feature-extraction")
    (tmp_path / "in/_trained_on.npy").write_bytes(b"hashes of private texts")
    report, _ = exported(tmp_path / "in", "feature-extraction")
    assert report.architecture == "BertModel"
    assert report.largest_difference <= 1e-5
    assert "no pooler" in report.notes[0]
    data = ModelCard.load(tmp_path / "out/README.md").data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "feature-extraction")
    with pytest.raises(UserError, match="is a bert model.*hf upload OWNER/NAME") as refused:
        hf_posenc.publish(tmp_path / "out", "me/mine")
    left_out = {*re.findall(r"--exclude ([\w.]+\w)", str(refused.value))}
    assert left_out == {name for name in os.listdir(tmp_path / "out") if name.startswith("_")} != set()
    with pytest.raises(UserError, match=r"is a bert model of transformers' own already"):
        hf_posenc.export(tmp_path / "out", tmp_path / "again", to="native")
    monkeypatch.setattr(home_of(hf_posenc.export), "LARGEST", 1e-9)
    with pytest.raises(UserError, match="differs from PyTorch by .*, so nothing was kept"):
        hf_posenc.export(tmp_path / "in", tmp_path / "again", to="roberta")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("name", "notes"), [("jina_embeddings_v3", 1), ("nomic_bert", 0), ("gte", 0)])
def test_a_class_without_a_pooler_of_its_own_needs_no_note(name, notes, tmp_path):
    saved(tmp_path / "in", name, "rope", "feature-extraction")
    said = hf_posenc.export(tmp_path / "in", tmp_path / "out", to=name).notes
    assert len([note for note in said if "pooler" in note]) == notes


def test_a_transformers_without_the_class_is_told_in_a_sentence(monkeypatch, tmp_path):
    saved(tmp_path / "in", "jina_embeddings_v3", "rope", "fill-mask")
    monkeypatch.delitem(CONFIG_MAPPING._mapping, "jina_embeddings_v3")
    with pytest.raises(UserError, match=r"has no jina_embeddings_v3\. Update it: pip install -U transformers"):
        hf_posenc.export(tmp_path / "in", tmp_path / "out", to="jina_embeddings_v3")


@pytest.fixture
def train(tmp_path):
    """Trains two steps, into `run`."""
    rows = "".join(f"{text},{text},{'ab'[row % 2]}\n" for row, text in enumerate(sentences(16)))
    (tmp_path / "mine.csv").write_text(f"title,body,grade\n{rows}")
    quick = {"validation_share": 0, "max_steps": 2, "device": "cpu", "baselines": False, "label_column": "grade"}

    def call(**options):
        return hf_posenc.train(tmp_path / "mine.csv", tmp_path / "run", **{"text_column": "body", **quick, **options})

    return call


def test_a_model_trained_with_the_values_of_a_class_is_exported_to_it_with_its_columns(train, tmp_path):
    fields = {"classifier_pooling": "cls", "norm_position": "post", "classifier_hidden_act": "tanh"}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    train(scheme="rope", set={**fields, **sizes}, text_column="title,body", join=" ")
    hf_posenc.convert(tmp_path / "run", tmp_path / "converted", scheme="t5")
    report = hf_posenc.export(tmp_path / "run", tmp_path / "out", to="native")
    assert report.architecture == "JinaEmbeddingsV3ForSequenceClassification"
    assert report.largest_difference <= 1e-5
    assert report.notes == []
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("run", "out")]
    remembered, written = (config["task_specific_params"]["hf_posenc"] for config in configs)
    assert "title" in str(remembered)
    assert written == remembered
    back = hf_posenc.convert(tmp_path / "out", tmp_path / "back")
    assert notes_of(back.model.config) == remembered
    assert not [note for note in back.report.notes if "carried over" in note]
    for folder in ("run", "converted", "out", "back"):  # each was trained on them
        with pytest.warns(UserWarning, match="16 of 16 test texts also in the training data"):
            hf_posenc.evaluate(tmp_path / folder, tmp_path / "mine.csv", device="cpu")


def test_an_encoder_of_pairs_keeps_its_types_or_is_refused(train, tmp_path):
    saved(tmp_path / "in", "mpnet", "t5", "text-classification", type_vocab_size=2)
    report, _ = exported(tmp_path / "in", "text-classification")
    assert report.notes[0].endswith("Pairs of texts, whose second has type 1, aren't the same.")
    train(pretrained=tmp_path / "in", text_column="title,body")
    with pytest.raises(UserError, match="type_vocab_size=2 .*pairs of texts have two"):
        hf_posenc.export(tmp_path / "run", tmp_path / "again", to="native")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlm-roberta", "mpnet", "deberta"])
def test_fine_tuned_weights_go_back_to_their_class(name, train, tmp_path):
    tiny_source(tmp_path / name, name)
    write_tokenizer(tmp_path / name, transformers.AutoConfig.from_pretrained(tmp_path / name).pad_token_id)
    train(pretrained=tmp_path / name)
    report = hf_posenc.export(tmp_path / "run", tmp_path / "out", to="native")
    goes_to = "deberta-v2" if name == "deberta" else name  # whose keys have learned biases by now
    assert report.architecture == FAMILIES[goes_to].model_class("text-classification").__name__
    assert report.largest_difference <= 1e-5


def test_a_trained_masked_lm_of_a_modernbert_goes_back(tmp_path):
    tiny_source(tmp_path / "in", "modernbert", "fill-mask")
    tiny_tokenizer(tmp_path / "in")
    model = hf_posenc.convert(tmp_path / "in", tmp_path / "ours").model
    loss = model.train()(torch.arange(5, 15)[None], labels=torch.arange(5, 15)[None]).loss
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.save_pretrained(tmp_path / "ours")
    report = hf_posenc.export(tmp_path / "ours", tmp_path / "out", to="native")
    assert (report.architecture, report.largest_difference <= 1e-5) == ("ModernBertForMaskedLM", True)
