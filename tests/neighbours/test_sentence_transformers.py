"""sentence-transformers: loads an encoder by its remote code, pools, trains, saves, loads."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

import hf_posenc
from hf_posenc import convert
from tests.support.conversion import GTE, GTE_SIZES, NOMIC, NOMIC_SIZES, tiny_source
from tests.support.remote_code import TEXTS, code_of, tiny_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")


def load(folder: Path) -> "sentence_transformers.SentenceTransformer":
    model = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    model.max_seq_length = 32
    return model


def test_its_embeddings_are_the_mean_of_our_hidden_states_however_it_batches(encoder):
    model = load(encoder)
    tokenizer, ours = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            expected.append(ours(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0))
    for batch_size in (1, 2, 32):  # it sorts by length, and pads
        embeddings = model.encode(TEXTS, batch_size=batch_size, convert_to_tensor=True)
        torch.testing.assert_close(embeddings, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_it_trains_saves_and_loads(encoder, tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    try:
        from sentence_transformers.losses import MultipleNegativesRankingLoss
    except ImportError:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = load(encoder)
    before = model.encode(TEXTS, convert_to_tensor=True)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to="none"
    )
    data = Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]})
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    model.eval()
    after = model.encode(TEXTS, convert_to_tensor=True)
    assert not torch.allclose(before, after, atol=1e-4)
    model.save_pretrained(str(tmp_path / "saved"))
    torch.testing.assert_close(load(tmp_path / "saved").encode(TEXTS, convert_to_tensor=True), after)
    code = {path.name: path.read_text() for path in (tmp_path / "saved").glob("*.py")}
    assert code == code_of(model[0].auto_model.config)  # by which a stranger loads it, as in remote_code/


PLAIN = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
DENSE = [*PLAIN[:2], ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
LONG = [f"{text} {text} {text}" for text in TEXTS]


def other(folder: Path, modules: list[tuple[str, str]], family: str = "bert", **lengths: Any) -> Path:
    """A sentence-transformer of another family, with random weights, as the library of 2021 wrote it."""
    if family == "bert":
        bert(folder, BertModel)
    else:
        tiny_source(folder, family, **({"pad_token_id": 0, "type_vocab_size": 0} if family == "gte" else {}))
        tiny_tokenizer().save_pretrained(folder)
    types = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(types))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": False, **lengths}))
    prompts = {"prompts": {"query": "the old dog"}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if ("2_Dense", "Dense") in modules:
        (folder / "2_Dense").mkdir()
        sentence_transformers.sentence_transformer.modules.Dense(32, 7).save(str(folder / "2_Dense"))
    return folder


def embeddings(folder: Path, **options: Any) -> torch.Tensor:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", **options)
    return model.encode(LONG, convert_to_tensor=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["of 2021", "of today"])
@pytest.mark.parametrize("modules", [PLAIN, DENSE])
def test_a_converted_sentence_transformer_stays_one(modules, form, tmp_path):
    source = other(tmp_path / "source", modules, max_seq_length=9)
    if form == "of today":
        model = sentence_transformers.SentenceTransformer(str(source), device="cpu")
        model.save_pretrained(str(tmp_path / "today"))
        source = tmp_path / "today"
    report = convert(source, tmp_path / "out").report
    assert f"It stays a sentence-transformer: {', '.join(name for _, name in modules)}." in report.notes
    expected = embeddings(source)
    assert expected.shape == (3, 7 if modules == DENSE else 32)
    for options in ({}, {"trust_remote_code": True}):
        torch.testing.assert_close(embeddings(tmp_path / "out", **options), expected, atol=1e-5, rtol=0)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (model.max_seq_length, model.default_prompt_name) == (9, "query")
    hf_posenc.export(tmp_path / "out", tmp_path / "back", to="native")
    torch.testing.assert_close(embeddings(tmp_path / "back"), expected, atol=1e-5, rtol=0)
    convert(source, tmp_path / "out", overwrite=True, measure=False)
    convert(source, tmp_path / "long", max_position_embeddings=128, measure=False)
    assert sentence_transformers.SentenceTransformer(str(tmp_path / "long"), device="cpu").max_seq_length == 128


ORIGINALS = {
    "gte": {**GTE, **GTE_SIZES, "rope_scaling": None, "rope_theta": 160000},
    "nomic_bert": {**NOMIC, **NOMIC_SIZES},
}


@pytest.mark.parametrize("family", ["deberta-v2", "deberta", "gte", "nomic_bert"])
def test_so_does_one_of_another_family_and_one_for_code_of_its_own(family, tmp_path):
    source = other(tmp_path / "source", PLAIN, family, max_seq_length=9)
    expected = embeddings(source)
    if family in ORIGINALS:
        (source / "config.json").write_text(json.dumps(ORIGINALS[family]))
    convert(source, tmp_path / "out", measure=False)
    found = embeddings(tmp_path / "out", trust_remote_code=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("modules", "lost", "note"),
    [
        ([*PLAIN, ("3_LSTM", "LSTM")], None, "'3_LSTM' (sentence_transformers.models.LSTM) isn't kept, since only T"),
        (DENSE, "2_Dense/model.safetensors", "'2_Dense' (sentence_transformers.models.Dense) isn't kept, since its f"),
        ([("", "Transformer"), ("/", "Normalize")], None, "since it isn't where sentence-transformers puts it"),
    ],
)
def test_a_module_that_cannot_be_kept_is_named_and_none_is(modules, lost, note, tmp_path):
    source = other(tmp_path / "source", modules)
    if lost is not None:
        (source / lost).rename(source / "2_Dense" / "pytorch_model.bin")
    report = convert(source, tmp_path / "out", measure=False).report
    assert note in " ".join(report.notes)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & {"modules.json", "1_Pooling", "2_Dense", "sentence_bert_config.json"}


IDENTITY = "torch.nn.modules.linear.Identity"
ACTIVATIONS = {
    "of today": None,  # in a file beside it
    "of 4": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}},
    "of 2021": {"sbert_ce_default_activation_function": IDENTITY},
}
SIZES: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert(folder: Path, head: Any, **fields: Any) -> Path:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tiny_tokenizer()), max_position_embeddings=64, **SIZES, **fields)
    head(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("form", ACTIVATIONS)
def test_a_cross_encoder_scores_as_before_converted_and_exported(form, tmp_path):
    source = bert(tmp_path / "source", BertForSequenceClassification, num_labels=1)
    if (fields := ACTIVATIONS[form]) is None:
        made = sentence_transformers.CrossEncoder(str(source), activation_fn=torch.nn.Identity(), device="cpu")
        source = tmp_path / "today"
        made.save_pretrained(str(source))
    else:
        raw = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**raw, **fields}))
    convert(source, tmp_path / "out", measure=False)
    convert(tmp_path / "out", tmp_path / "rope", scheme="rope", measure=False)
    hf_posenc.export(tmp_path / "out", tmp_path / "native", to="native")
    hf_posenc.load(tmp_path / "out").save(tmp_path / "kept")
    assert (tmp_path / "kept" / "conversion.json").is_file()
    places = {"source": source, **{name: tmp_path / name for name in ("out", "native", "rope", "kept")}}
    models = {name: sentence_transformers.CrossEncoder(str(place), device="cpu") for name, place in places.items()}
    assert all(isinstance(model.activation_fn, torch.nn.Identity) for model in models.values())
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    scores = {name: model.predict(pairs, convert_to_tensor=True) for name, model in models.items()}
    for name in ("out", "native", "kept"):
        torch.testing.assert_close(scores[name], scores["source"], atol=1e-5, rtol=0)
    report = convert(source, tmp_path / "encoder", head="feature-extraction", measure=False).report
    assert not (tmp_path / "encoder" / "config_sentence_transformers.json").exists()
    assert not re.search("sentence_transformers|sbert_ce", (tmp_path / "encoder" / "config.json").read_text())
    assert form != "of today" or "its modules are made for sequence-classification" in report.notes[-1]


@pytest.mark.parametrize(("name", "head"), [("SparseEncoder", BertForMaskedLM), ("MultiVectorEncoder", BertModel)])
def test_splade_and_colbert_stay_what_they_are(name, head, tmp_path):
    if (kind := getattr(sentence_transformers, name, None)) is None:
        pytest.skip(f"this sentence-transformers has no {name}")
    kind(str(bert(tmp_path / "bert", head)), device="cpu").save_pretrained(str(tmp_path / "source"))
    convert(tmp_path / "source", tmp_path / "out", measure=False)
    hf_posenc.export(tmp_path / "out", tmp_path / "native", to="native")
    found = {}
    for place in ("source", "out", "native"):
        made = kind(str(tmp_path / place), device="cpu").encode(TEXTS)
        found[place] = made.to_dense() if head is BertForMaskedLM else torch.cat([torch.as_tensor(row) for row in made])
    for place in ("out", "native"):
        torch.testing.assert_close(found[place], found["source"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("attend", [True, False])
def test_a_colbert_whose_queries_are_expanded_stays_one_or_says_why_not(attend, tmp_path):
    if (kind := getattr(sentence_transformers, "MultiVectorEncoder", None)) is None:
        pytest.skip("this sentence-transformers has no MultiVectorEncoder")
    made = kind(str(bert(tmp_path / "bert", BertModel)), device="cpu")
    made[0].query_expansion = {"strategy": "fixed", "attend": attend, "length": 12, "token": "[UNK]"}
    made.save_pretrained(str(tmp_path / "source"))
    report = convert(tmp_path / "source", tmp_path / "out", measure=False).report
    assert (tmp_path / "out" / "modules.json").exists() == attend
    if attend:
        ours, theirs = (
            kind(str(tmp_path / place), device="cpu").encode_query(TEXTS[:2]) for place in ("out", "source")
        )
        for our, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(torch.as_tensor(our), torch.as_tensor(their), atol=1e-5, rtol=0)
    else:
        assert "nobody attends to" in report.notes[-1]


@pytest.mark.parametrize("content", ["{}", "[1]", "["])
def test_a_damaged_list_of_modules_is_named(content, tmp_path):
    source = other(tmp_path / "source", PLAIN)
    (source / "modules.json").write_text(content)
    with pytest.raises(ValueError, match="modules.json .*Copy .*anew"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_modules_come_from_the_hub_too(tmp_path, monkeypatch):
    source = other(tmp_path / "source", DENSE)
    (source / "onnx").mkdir()
    (source / "onnx" / "config.json").write_text("{}")

    def download(name: str, **options: Any) -> str:
        names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
        patterns = {kind: options[kind] for kind in ("allow_patterns", "ignore_patterns")}
        for path in filter_repo_objects(names, **patterns):
            (tmp_path / "cache" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, tmp_path / "cache" / path)
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    convert("somebody/theirs", tmp_path / "out", measure=False)
    torch.testing.assert_close(embeddings(tmp_path / "out"), embeddings(source), atol=1e-5, rtol=0)
    assert not (tmp_path / "cache" / "onnx").exists()
