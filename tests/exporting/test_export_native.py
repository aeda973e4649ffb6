"""A checkpoint as a model of transformers' own: the same numbers where hf_posenc isn't installed."""

import json
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
from hf_posenc.checkpoints.loading import load_any
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.conversion import families
from hf_posenc.conversion.families import FAMILIES
from hf_posenc.data.columns import Columns, remember_columns, remembered_columns
from hf_posenc.exporting import run
from hf_posenc.exporting.native import to_native, write
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.model import modeling_posenc
from hf_posenc.options import Options
from hf_posenc.tasks import TASKS, auto_class
from tests.support.common import others_slow, padded, perturb, tiny_config
from tests.support.conversion import sentences, tiny_source, tiny_tokenizer

CLASSIFIERS = [name for name in FAMILIES if "text-classification" in FAMILIES[name].heads]
PER_TOKEN = ("feature-extraction", "fill-mask", "token-classification", "question-answering")
ROWS = [torch.randint(5, 101, (n,), generator=torch.Generator().manual_seed(n)) for n in (20, 7, 1, 33)]
EVERY_HEAD = [("bert", "learned"), ("jina_embeddings_v3", "rope"), ("mpnet", "learned+t5")]
CASES = [
    (name, scheme, task)
    for name, family in FAMILIES.items()
    if name in CONFIG_MAPPING  # the lowest transformers has no gte
    for scheme in FAMILIES[name].schemes
    for task in ("feature-extraction", *family.heads)
    if task in ("fill-mask", "text-classification") or (name, scheme) in EVERY_HEAD
]
"""Every class, and of some every head; all of them go back and forth in test_conversion_exact.py."""
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
VARIANTS = [variant for variant in VARIANTS if variant[0] in CONFIG_MAPPING]
"""What else the encoder may be; as a masked language model, which holds the most."""
EVERY = [(*case, {}) for case in CASES] + [(name, scheme, "fill-mask", more) for name, scheme, more in VARIANTS]


def posenc(name: str, scheme: str, task: str, **fields):
    """A tiny random PosEnc model that a class can hold."""
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    types = {} if FAMILIES[name].token_types else {"type_vocab_size": 0}
    fields = {**FAMILIES[name].usual_fields(scheme), **types, **fields}
    if "pad_token_id" in FAMILIES[name].schemes[scheme] or FAMILIES[name].needs_padding:
        fields.setdefault("pad_token_id", 1)
    if task in ("text-classification", "token-classification"):
        fields = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, **fields}
    torch.manual_seed(0)
    model = getattr(modeling_posenc, f"PosEnc{TASKS[task]}")(tiny_config(**fields))
    perturb(model)
    if name == "deberta":  # whose keys have no bias
        for key, value in model.state_dict().items():
            value.mul_(not re.search(r"(key|keys\.\d)\.bias$", key))
    return model.eval()


def inputs(name: str, task: str, config) -> list[dict]:
    """Batches of several lengths: one text, padded on the right, and on the left where the class can take that."""
    ids, mask = padded(ROWS)
    ids = ids.masked_fill(mask == 0, config.pad_token_id or 0)
    batches = [{"input_ids": ROWS[0][None], "attention_mask": torch.ones(1, 20, dtype=torch.int64)}]
    batches.append({"input_ids": ids, "attention_mask": mask})
    if FAMILIES[name].token_types and config.type_vocab_size > 1:
        batches.append({**batches[1], "token_type_ids": (torch.arange(33) > 4).long() * mask})
    if task in PER_TOKEN:
        order = mask.argsort(dim=1, stable=True)
        left = {"input_ids": ids.gather(1, order), "attention_mask": mask.gather(1, order)}
        if not FAMILIES[name].counts_tokens:
            left["position_ids"] = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
        batches.append(left)
    if task == "multiple-choice":
        return [{key: torch.stack((value, value.flip(0)), 1) for key, value in batch.items()} for batch in batches]
    return batches


def answers_of(model, batches: list[dict]) -> list[dict]:
    names = ("last_hidden_state", "logits", "start_logits", "end_logits")
    with torch.no_grad():
        outputs = [model(**batch) for batch in batches]
    return [{name: output[name] for name in names if name in output} for output in outputs]


def assert_same(answers: list[dict], expected: list[dict], batches: list[dict]) -> None:
    assert len(answers) == len(expected) == len(batches) > 1
    for output, wanted, batch in zip(answers, expected, batches, strict=True):
        assert output.keys() == wanted.keys()
        mask = batch["attention_mask"].bool()
        for name, value in wanted.items():
            real = mask if value.shape[:2] == mask.shape and mask.dim() == 2 else ...
            torch.testing.assert_close(output[name][real], value[real], atol=1e-5, rtol=1e-5)


def answers(case: dict) -> dict:
    """What the Auto class of transformers answers to a folder, with its class and what its tokenizer makes of texts."""
    cls = getattr(transformers, case["auto_class"])
    model, loading = cls.from_pretrained(case["folder"], dtype=torch.float32, output_loading_info=True)
    assert not type(model).__module__.startswith(("hf_posenc", "transformers_modules"))
    assert not {name for names in loading.values() for name in names if "pooler" not in name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["folder"])
    outputs, ids = answers_of(model.eval(), case["batches"]), tokenizer(case["texts"])["input_ids"]
    return {
        "class": type(model).__name__,
        "outputs": outputs,
        "ids": ids,
        "padding_side": tokenizer.padding_side,
    }


def case_of(folder: Path, task: str, batches: list[dict]) -> dict:
    return {"folder": str(folder), "auto_class": auto_class(task), "batches": batches, "texts": sentences(3)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Every class, written and loaded by transformers' own: the answers, those expected, and the case."""
    folder = tmp_path_factory.mktemp("native")
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    cases, expected = [], []
    for number, (name, scheme, task, more) in enumerate(EVERY):
        model = posenc(name, scheme, task, **more)
        (folder / str(number)).mkdir()
        write(model, tokenizer, folder / str(number), like=name)
        batches = inputs(name, task, model.config)
        cases.append(case_of(folder / str(number), task, batches))
        expected.append(answers_of(model, [{k: v for k, v in b.items() if k != "position_ids"} for b in batches]))
    results = map(answers, cases)
    return {repr(case): outputs for case, *outputs in zip(EVERY, results, expected, cases, strict=True)}


@pytest.mark.parametrize(("name", "scheme", "task", "more"), EVERY)
def test_transformers_own_class_computes_the_same(name, scheme, task, more, exported, tmp_path):
    result, expected, case = exported[repr((name, scheme, task, more))]
    assert result["class"] == FAMILIES[name].model_class(task).__name__
    assert_same(result["outputs"], expected, case["batches"])
    assert result["ids"] == tiny_tokenizer(tmp_path)(case["texts"])["input_ids"]
    files = {path.name for path in Path(case["folder"]).iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert "auto_map" not in json.loads(Path(case["folder"], "config.json").read_text())


def test_the_first_class_that_fits_is_chosen():
    models = {
        "bert": posenc("bert", "learned", "text-classification"),
        "distilbert": posenc("distilbert", "learned", "text-classification"),
        "electra": posenc("electra", "learned", "feature-extraction", embedding_size=20),
        "roformer": posenc("roformer", "rope", "fill-mask"),
        "jina_embeddings_v3": posenc("jina_embeddings_v3", "rope", "fill-mask"),
        "nomic_bert": posenc("nomic_bert", "rope", "fill-mask"),
        "gte": posenc("gte", "rope", "fill-mask"),
        "mpnet": posenc("mpnet", "learned+t5", "question-answering"),
    }
    assert {name: to_native(model)[0].config.model_type for name, model in models.items()} == {n: n for n in models}


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
        (("mpnet", "t5", "multiple-choice"), {"type_vocab_size": 2}, None, "type_vocab_size=2 .*pairs of texts"),
    ],
)
def test_what_no_class_can_hold_is_refused_with_each_value(start, fields, asked, match):
    model = posenc(*start, **fields)
    with pytest.raises(UserError, match=match):
        to_native(model, asked)


def saved(folder: Path, name: str, scheme: str, task: str, *, dtype=torch.float32, shards="5GB", **fields):
    """A checkpoint with a tokenizer in a folder; returns its model in float32, as the folder holds it."""
    model = posenc(name, scheme, task, vocab_size=60, **fields).to(dtype)
    model.save_pretrained(folder, max_shard_size=shards)
    tiny_tokenizer(folder)
    return model.float()


def check_export(folder: Path, model, task: str, **options) -> tuple[hf_posenc.ExportReport, dict]:
    """Exports a folder and compares what transformers' class answers; returns the report and the answer."""
    report = hf_posenc.export(folder, folder.with_name("out"), to="native", **options)
    ids = {"input_ids": torch.arange(5, 25).view(2, 10), "attention_mask": torch.ones(2, 10, dtype=torch.int64)}
    batches = [ids, {name: value[:1] for name, value in ids.items()}]
    result = answers(case_of(folder.with_name("out"), task, batches))
    assert_same(result["outputs"], answers_of(model, batches), batches)
    return report, result


@pytest.mark.parametrize(
    "name", others_slow(["jina_embeddings_v3", "gte", "mpnet"], "bert", "nomic_bert", "roformer", "esm")
)
def test_half_precision_and_shards_stay_exact(name, tmp_path):
    # MPNet's t5: its table takes token 1, [UNK] in these texts, for padding.
    scheme = "rope" if name == "esm" else list(FAMILIES[name].schemes)[-1]
    types = 0 if name == "esm" else 1
    model = saved(
        tmp_path / "in", name, scheme, "fill-mask", dtype=torch.bfloat16, shards="20KB", type_vocab_size=types
    )
    assert (tmp_path / "in/model.safetensors.index.json").is_file()
    report, _ = check_export(tmp_path / "in", model, "fill-mask")
    assert report.largest_difference <= 1e-5
    stored = load_file(tmp_path / "out/model.safetensors")
    assert {stored.pop(key).dtype for key in [*stored] if "inv_freq" in key} <= {torch.float32}
    dtypes = {tensor.dtype for tensor in stored.values()}
    rounded = name in ("roformer", "mpnet")  # a table of sines, and a sum
    assert dtypes == {torch.float32 if rounded else torch.bfloat16}
    assert any("Written in float32" in note for note in report.notes) == rounded
    assert report.max_length == (None if name in ("jina_embeddings_v3", "nomic_bert", "gte", "esm") else 64)


@pytest.mark.parametrize("name", sorted({*CLASSIFIERS} - {"roberta", "xlm-roberta", "camembert", "electra"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_layer_of_a_regression_holds_the_units_of_its_data(name, dtype, tmp_path):
    scheme = next(iter(FAMILIES[name].schemes))
    units = {"problem_type": "regression", "label_mean": 2005.0, "label_scale": 10.0}
    model = posenc(name, scheme, "text-classification", **units, id2label={0: "year"}, layer_norm_eps=1e-12).to(dtype)
    native, _ = to_native(model)
    assert native.config.problem_type == "regression"
    native.save_pretrained(tmp_path)
    native = type(native).from_pretrained(tmp_path).eval()
    ids = torch.arange(5, 25).view(2, 10)
    torch.testing.assert_close(native(ids).logits, model.float()(ids).logits, atol=1e-3, rtol=0)


def test_labels_dropouts_and_the_problem_come_along():
    fields = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    fields |= {"problem_type": "multi_label_classification"}
    for name, where in (("jina_embeddings_v3", "classifier_dropout"), ("mpnet", None)):
        model = posenc(name, next(iter(FAMILIES[name].schemes)), "text-classification", **fields)
        native, notes = to_native(model, name)
        assert native.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
        assert native.config.label2id == {"no": 0, "maybe": 1, "yes": 2}
        assert native.config.problem_type == "multi_label_classification"
        assert (native.config.hidden_dropout_prob, native.config.attention_probs_dropout_prob) == (0.2, 0.3)
        if where is None:
            assert any("hidden_dropout_prob=0.2 where classifier_dropout=0.4 acts here" in n for n in notes)
        else:
            assert getattr(native.config, where) == 0.4


def test_the_columns_that_were_trained_on_come_along():
    model = posenc("bert", "learned", "text-classification")
    columns = Columns(("title", "body"), ("grade",), " ")
    remember_columns(model.config, columns)
    assert remembered_columns(to_native(model)[0].config) == columns


@pytest.mark.slow
def test_a_tokenizer_that_pads_on_the_left_is_written_to_pad_on_the_right(tmp_path):
    model = saved(tmp_path / "in", "mpnet", "t5", "text-classification")
    tiny_tokenizer(tmp_path / "in", padding_side="left", model_max_length=1000)
    report, result = check_export(tmp_path / "in", model, "text-classification")
    assert result["padding_side"] == "right"
    assert [note for note in report.notes if "pads on the right now" in note]
    assert [note for note in report.notes if "cut to 64 tokens" in note]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 64
    assert report.max_length == 64


def test_an_encoder_of_pairs_keeps_its_types_or_is_refused(tmp_path):
    model = posenc("mpnet", "t5", "text-classification", type_vocab_size=2)
    _, notes = to_native(model)
    assert notes[0].endswith("Pairs of texts, whose second has type 1, aren't the same.")
    remember_columns(model.config, Columns(("premise", "hypothesis")))
    with pytest.raises(UserError, match="type_vocab_size=2 .*pairs of texts have two"):
        to_native(model)


def test_the_whole_export_says_what_it_did_and_leaves_nothing_where_it_fails(tmp_path, monkeypatch):
    model = saved(tmp_path / "in", "bert", "learned", "feature-extraction")
    report, _ = check_export(tmp_path / "in", model, "feature-extraction")
    assert report.architecture == "BertModel"
    assert report.largest_difference <= 1e-5
    assert "no pooler" in report.notes[0]
    assert not list((tmp_path / "out").glob("*.py"))
    data = ModelCard.load(tmp_path / "out/README.md").data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "feature-extraction")
    with pytest.raises(UserError, match="is a bert model.*hf upload OWNER/NAME"):
        hf_posenc.publish(tmp_path / "out", "me/mine")
    assert load_any(open_checkpoint(tmp_path / "out")).pooler is None  # not one with random weights
    tiny_source(tmp_path / "stock", "bert", "fill-mask")
    tiny_tokenizer(tmp_path / "stock")
    with pytest.raises(UserError, match=r"is a bert model of transformers' own already"):
        hf_posenc.export(tmp_path / "stock", tmp_path / "again", to="native")
    monkeypatch.setattr(run, "LARGEST", 1e-9)
    with pytest.raises(UserError, match="differs from PyTorch by .*, so nothing was kept"):
        hf_posenc.export(tmp_path / "in", tmp_path / "again", to="roberta")
    assert not (tmp_path / "again").exists()


def test_a_class_without_a_pooler_of_its_own_needs_no_note():
    for name, notes in (("jina_embeddings_v3", 1), ("nomic_bert", 0), ("gte", 0)):
        assert len(to_native(posenc(name, "rope", "feature-extraction"), name)[1]) == notes


def test_a_transformers_without_the_class_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setattr(families, "CONFIG_MAPPING", {})
    with pytest.raises(UserError, match=r"has no jina_embeddings_v3\. Update it: pip install -U transformers"):
        to_native(posenc("jina_embeddings_v3", "rope", "fill-mask"))


@pytest.fixture
def training(tmp_path):
    """Options of a training of two steps."""
    rows = "".join(f"{text},{'ab'[row % 2]}\n" for row, text in enumerate(sentences(16)))
    (tmp_path / "mine.csv").write_text(f"text,label\n{rows}")
    values = {"data": str(tmp_path / "mine.csv"), "validation_share": 0, "max_steps": 2, "device": "cpu"}
    return {**values, "output": str(tmp_path / "run")}


def test_a_model_trained_with_the_values_of_a_class_is_exported_to_it(training, tmp_path):
    fields = {"classifier_pooling": "cls", "norm_position": "post", "classifier_hidden_act": "tanh"}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    fine_tune(Options.of(scheme="rope", set={**fields, **sizes}, **training), baselines=False)
    report = hf_posenc.export(tmp_path / "run", tmp_path / "out", to="native")
    assert report.architecture == "JinaEmbeddingsV3ForSequenceClassification"
    assert report.largest_difference <= 1e-5
    assert report.notes == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlm-roberta", "mpnet", "deberta"])
def test_fine_tuned_weights_go_back_to_their_class(name, training, tmp_path):
    tiny_source(tmp_path / name, name)
    words = tiny_tokenizer(tmp_path / name).get_vocab()
    if transformers.AutoConfig.from_pretrained(tmp_path / name).pad_token_id == 1:
        transformers.BertTokenizer(vocab={**words, "[UNK]": 0, "[PAD]": 1}).save_pretrained(tmp_path / name)
    fine_tune(Options.of(pretrained=str(tmp_path / name), **training), baselines=False)
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
