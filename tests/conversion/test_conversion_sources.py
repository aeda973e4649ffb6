"""Damaged, poisoned, foreign sources: one clear error, and nothing is left behind. What a conversion may replace."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load, load_file
from tokenizers import Tokenizer
from transformers import AlbertConfig

from hf_posenc import UserError, convert
from hf_posenc.checkpoints.keeper import is_model_file
from hf_posenc.data.columns import notes_of
from tests.support.conversion import WORDS, converted, edit, edit_weights, sentences, tiny_source, tiny_tokenizer
from tests.support.training import snapshot


@pytest.fixture
def source(tmp_path):
    tiny_source(tmp_path / "source", "bert", "fill-mask")
    return tmp_path / "source"


def refuses(source, match, tmp_path, **options):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match=match):
        convert(source, tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_foreign_architecture_is_refused_before_its_weights_are_read(tmp_path):
    AlbertConfig().save_pretrained(tmp_path / "foreign")
    torch.save({"x": torch.ones(1)}, tmp_path / "foreign/pytorch_model.bin")  # no use in allowing that
    can = "bert, roberta, xlm-roberta, camembert, distilbert, electra, roformer"
    refuses(tmp_path / "foreign", f"'albert' model, which can't be converted. These can: {can}", tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_dtype_of_the_weights_is_kept(dtype, source):
    reference = load((source / "model.safetensors").read_bytes())
    edit_weights(source, lambda state: state.update({key: value.to(dtype) for key, value in state.items()}))
    weight = convert(source, measure=False).model.model.layers[0].output.weight
    assert torch.equal(weight, reference["bert.encoder.layer.0.output.dense.weight"].to(dtype))


class _Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_a_pickle_is_read_only_when_asked_for_and_never_run(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    refuses(source, "a pickle, in which programs can hide", tmp_path)
    report = convert(source, allow_pickle=True).report
    assert report.exact.hidden_max < 1e-5
    with open(source / "pytorch_model.bin", "wb") as file:
        pickle.dump({"bert.embeddings.word_embeddings.weight": _Bomb()}, file)
    refuses(source, "pytorch_model.bin is damaged, or holds more than weights", tmp_path, allow_pickle=True)
    assert not (tmp_path / "exploded").exists()


def test_a_tokenizer_that_gives_other_ids_than_its_file_is_refused_and_shown(source, tmp_path):
    """Of a class that makes its own, which lowers letters; that the file's own cuts and pads doesn't count."""
    tiny_tokenizer(source)
    backend = Tokenizer.from_file(str(source / "tokenizer.json"))
    backend.enable_truncation(8)
    backend.enable_padding(length=8)
    backend.save(str(source / "tokenizer.json"))
    config = source / "tokenizer_config.json"
    fields = {**json.loads(config.read_text()), "do_lower_case": True}
    config.write_text(json.dumps({**fields, "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert convert(source, measure=False).report.tokenizer == ""
    config.write_text(json.dumps({**fields, "tokenizer_class": "BertTokenizer"}))
    wrong = (
        "gives other ids than its tokenizer.json for [0-9]+ of 200 texts: ['\"].*['\"] becomes, from token [0-9]+ on, "
        "(.*) instead of (.*)[.]"
    )
    refuses(source, f"{wrong}.*allow_other_tokens=True", tmp_path)
    report = convert(source, measure=False, allow_other_tokens=True).report
    given, expected = re.search(wrong, report.tokenizer).groups()
    assert given.split()[0] != expected.split()[0]
    assert report.tokenizer in repr(report)
    (source / "tokenizer.json").unlink()
    (source / "vocab.txt").write_text("".join(f"{token}\n" for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS)))
    config.write_text('{"tokenizer_class": "BertTokenizer"}')
    assert "is unchecked: there is no tokenizer.json. It has " in convert(source, measure=False).report.tokenizer


def test_what_is_not_carried_over_is_named(source):
    tiny_tokenizer(source)
    usual = convert(source, measure=False).report.notes
    of_tokens = json.loads((source / "tokenizer_config.json").read_text())
    changed = {**of_tokens, "auto_map": {"A": "b"}, "name_or_path": "x"}
    (source / "tokenizer_config.json").write_text(json.dumps(changed))
    (source / "generation_config.json").write_text('{"_from_model_config": true, "pad_token_id": 0, "num_beams": 4}')
    edit(source, finetuning_task="mnli", gradient_checkpointing=False, chunk_size_feed_forward=8)
    (source / "training.log").write_text("step 1")
    report = convert(source, measure=False).report
    assert report.notes == [
        *usual,
        "Of its config.json this isn't carried over: chunk_size_feed_forward=8, finetuning_task='mnli'.",
        "Of its tokenizer_config.json this isn't carried over: auto_map={'A': 'b'}.",
        "Of its generation_config.json this isn't carried over: num_beams=4.",
        "Files of the source that aren't copied: 1 (training.log).",
    ]


def test_an_activation_that_the_head_lacks_is_no_obstacle_to_the_encoder(tmp_path):
    tiny_source(tmp_path, "roberta", "fill-mask", hidden_act="relu")
    assert convert(tmp_path, head="feature-extraction").report.exact.hidden_max < 1e-5


def test_the_report_prints_as_lines_and_its_values_stay(source, tmp_path):
    report = convert(source, scheme="rope").report
    first, *lines = repr(report).splitlines()
    share, way = f"{100 * report.before.distance:.2g} %", "and healing on text of yours brings them nearer."
    assert first == f"Converted source from learned to rope: hidden states differ by {share} from the original, {way}"
    assert all(len(line) < 200 for line in lines)
    (swapped,) = (line for line in lines if "| swapped" in line)
    assert f"| {share} | {report.before.cosine:.3f} |" in swapped
    assert report.to_dict()["before"]["cosine"] == report.before.cosine
    assert repr(convert(source).report).startswith("Converted source, learned as it was: hidden states differ by at mo")


def test_the_card_names_the_source_by_its_place_on_the_hub_alone(source, tmp_path, monkeypatch):
    """With its licence, if it names one; a sentence-transformer stays one in its card."""
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    convert(source, tmp_path / "from-a-folder", measure=False)
    card = ModelCard.load(tmp_path / "from-a-folder" / "README.md")
    assert (card.data.base_model, card.data.license, card.data.library_name) == (None, "mit", "transformers")
    assert 'AutoModelForMaskedLM.from_pretrained("path/to/this/folder", trust_remote_code=True)' in card.text
    assert str(tmp_path) not in card.content

    pooling = [("", "Transformer"), ("1_Pooling", "Pooling")]
    types = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in pooling]
    (source / "modules.json").write_text(json.dumps(types))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 32}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(source))
    convert("me/encoder", tmp_path / "from-the-hub", scheme="rope", head="feature-extraction")
    card = ModelCard.load(tmp_path / "from-the-hub" / "README.md")
    assert (card.data.base_model, card.data.library_name) == ("me/encoder", "sentence-transformers")
    assert card.data.tags == ["sentence-transformers", "posenc", "rope", "custom_code"]
    assert 'SentenceTransformer("path/to/this/folder", trust_remote_code=True)' in card.text
    assert "| swapped |" in card.text


def test_the_command_line(source, tmp_path, run):
    tiny_tokenizer(source)
    scheme = ("--scheme", "t5", "--scheme-kwargs", '{"per_layer": false}')
    code, out, err = run("convert", source, "-o", tmp_path / "out", *scheme, "--max-position-embeddings", 64)
    assert code == 0, err
    assert out.startswith("Converted source from learned to t5: hidden states differ by ")
    assert "| swapped" in out
    assert "order kept" in out
    report = json.loads((tmp_path / "out/conversion.json").read_text())
    assert (report["to_scheme"], report["source"], report["max_position_embeddings"]) == ("t5", "source", 64)
    assert json.loads((tmp_path / "out/config.json").read_text())["position_embedding_kwargs"]["per_layer"] is False
    code, out, err = run("convert", source, "-o", tmp_path / "out")
    assert (code, err.count("Error:")) == (2, 1)
    code, out, err = run("convert", source, "-o", tmp_path / "other", "--rope-parameters", "{")
    assert (code, "--rope-parameters '{' is no JSON" in err) == (2, True)
    code, out, err = run("convert", source, "-o", tmp_path / "other", *scheme, "--bf16")
    assert (code, "--bf16 has no effect without text to heal with. Give --heal" in err) == (2, True)
    assert not (tmp_path / "other").exists()
    (tmp_path / "e.csv").write_text("body\nthe dog walks\nno cat\n")
    measured = ("--eval-texts", tmp_path / "e.csv", "--text-column", "body")
    code, out, err = run("convert", source, "-o", tmp_path / "measured", *scheme, *measured)
    assert (code, "measured on: 2 texts" in out) == (0, True), err
    assert run("convert", source, "-o", tmp_path / "exact")[0] == 0


@pytest.mark.slow
def test_the_commands_of_the_guide_work_as_written(tmp_path, run, monkeypatch):
    root = Path(__file__).parents[2]
    pages = ("README.md", "docs/long-inputs.md", "docs/pretrained-weights.md")
    guide = "".join((root / page).read_text() for page in pages).replace("\\\n", "")
    wanted = r"^hf-posenc ((?:convert|export minilm) .*|train .*xlmr-rope)$"
    commands = list(dict.fromkeys(re.findall(wanted, guide, flags=re.MULTILINE)))
    assert len(commands) == 9
    monkeypatch.chdir(tmp_path)
    for name, family in (
        ("sentence-transformers/all-MiniLM-L6-v2", "bert"),
        ("google-bert/bert-base-uncased", "bert"),
        ("FacebookAI/xlm-roberta-base", "xlm-roberta"),
    ):
        tiny_source(tmp_path / name, family)
        tiny_tokenizer(tmp_path / name)
    (tmp_path / "sentences.txt").write_text("".join(f"{text}\n" for text in sentences(60)))
    rows = [f"{text},{'ab'[row % 2]}\n" for row, text in enumerate(sentences(40, seed=1))]
    (tmp_path / "mine.csv").write_text("text,label\n" + "".join(rows))
    for command in commands:
        short = ["--max-steps", "2"] if "--heal" in command or command.startswith("train") else []
        code, _, err = run(*command.split(), *short)
        assert code == 0, f"{command}: {err}"
    assert {path.name for path in tmp_path.iterdir()} >= {"minilm-rope", "minilm-2048", "minilm-4096", "minilm-bert"}


def test_the_words_of_the_guide_are_what_was_measured():  # its tables: test_benchmark.py
    root = Path(__file__).parents[2]
    parts = json.loads((root / "model_cards/results/conversion.json").read_text())["parts"]
    guide = (root / "docs/explanation.md").read_text()
    assert parts["exact/agreement"]["exact"]["hidden_max"] <= 1e-5
    assert f"{parts['exact/agreement']['exact']['hidden_max']:.1e}".replace("e-06", "e-6") in guide
    left = {name: parts[f"heal/{name}/agreement"]["after"]["order_r2"] for name in ("alibi", "alibi+t5")}
    assert left["alibi+t5"] > left["alibi"]  # "more of the order of neighbours is left"


# ---- heads that are kept or made anew, and foreign keys --------------------------------------------------------------


def _last(model):
    return getattr(model.classifier, "out_proj", model.classifier)


def _classifier(model):
    name = "classifier.out_proj.weight"
    return name if name in model.state_dict() else "classifier.weight"


@pytest.mark.parametrize(
    ("family", "own", "task", "new"),
    [
        ("bert", "token-classification", "text-classification", ["classifier.dense", "classifier.out_proj"]),
        ("bert", "text-classification", "token-classification", ["classifier"]),
        ("bert", "text-classification", "multiple-choice", ["classifier.out_proj"]),
        ("bert", "multiple-choice", "text-classification", ["classifier.out_proj"]),
        ("distilbert", "multiple-choice", "text-classification", ["classifier.dense", "classifier.out_proj"]),
        ("roberta", "text-classification", "multiple-choice", ["classifier.dense", "classifier.out_proj"]),
        ("electra", "text-classification", "token-classification", ["classifier"]),
    ],
)
def test_the_classifier_of_another_task_is_dropped_and_the_new_one_is_listed(family, own, task, new, tmp_path):
    theirs = tiny_source(tmp_path, family, own)
    model, report = converted(tmp_path, head=task)
    assert report.keys.new == [f"{name}.{kind}" for name in new for kind in ("weight", "bias")]
    name = _classifier(theirs)
    assert report.keys.dropped[name] in ("another head", f"the head of {own}; this is {task}")
    assert name not in report.keys.used
    assert _last(model).weight.abs().max() < 0.2  # a random start, not the source's, which was perturbed
    assert report.exact.hidden_max < 1e-5
    assert report.exact.logits_max is None


REGRESSOR = {"problem_type": "regression", "label_mean": 7.0, "label_scale": 2.0}
NOTED = {"text_columns": ["title", "body"], "text_separator": " ", "label_column": "label", "temperature": 2.0}


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("token-classification", ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ("multiple-choice", ["LABEL_0", "LABEL_1"]),
        ("feature-extraction", ["LABEL_0", "LABEL_1"]),
        ("text-classification", ["no", "maybe", "yes"]),
    ],
)
def test_what_belongs_to_a_head_goes_with_it_and_stays_with_it(is_ours, task, labels, tmp_path):
    tiny_source(tmp_path / "source", "bert", "text-classification", problem_type="regression")
    folder = tmp_path / "source"
    if is_ours:
        convert(folder, tmp_path / "ours", measure=False)
        folder = tmp_path / "ours"
    params = json.loads((folder / "config.json").read_text()).get("task_specific_params") or {}
    edit(folder, task_specific_params={**params, "hf_posenc": NOTED}, **(REGRESSOR if is_ours else {}))
    model, report = converted(folder, tmp_path / "out", head=task, measure=False)
    config = type(model.config).from_pretrained(tmp_path / "out")
    is_kept = task == "text-classification"
    assert list(config.id2label.values()) == labels == list(config.label2id)
    assert config.problem_type == ("regression" if is_kept else None)
    assert (config.label_mean, config.label_scale) == ((7.0, 2.0) if is_ours and is_kept else (0.0, 1.0))
    assert notes_of(config) == (NOTED if is_kept else {})
    said = [note for note in report.notes if note.startswith("Of the source's head, which isn't kept")]
    assert len(said) == (is_ours or task == "token-classification") * (not is_kept)
    assert all("id2label" in note and "problem_type" in note for note in said)
    assert any("task_specific_params" in note for note in report.notes) == (not is_kept)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("task", ["multiple-choice", "text-classification", "token-classification"])
def test_a_classifier_without_architectures_is_what_it_is_asked_to_be(family, task, tmp_path):
    theirs = tiny_source(tmp_path, family, task)
    edit(tmp_path, architectures=None)
    model, report = converted(tmp_path, head=task, measure=False)
    assert (report.keys.new, report.keys.dropped) == ([], {})
    assert torch.equal(_last(model).weight, load_file(tmp_path / "model.safetensors")[_classifier(theirs)])


def test_the_known_keys_of_other_heads_are_dropped_with_their_reason(tmp_path):
    tiny_source(tmp_path, "roberta")
    heads = ("lm_head.bias", "lm_head.decoder.bias", "classifier.out_proj.weight", "qa_outputs.bias")
    foreign = {**dict.fromkeys(heads, "another head"), "pooler.dense.weight": "the pooler, which only classifiers use"}
    edit_weights(tmp_path, lambda state: {**state, **{name: torch.ones(2) for name in foreign}})
    report = convert(tmp_path, measure=False).report
    assert {name: report.keys.dropped[name] for name in foreign} == foreign


DATA_PARALLEL = [
    *((family, "fill-mask") for family in ("bert", "roberta", "electra", "nomic_bert", "gte", "jina_embeddings_v3")),
    ("distilbert", "text-classification"),
]


@pytest.mark.parametrize(("family", "task"), DATA_PARALLEL)
def test_keys_that_transformers_does_not_understand_are_measured_under_its_names(family, task, tmp_path):
    tiny_source(tmp_path, family, task)
    edit_weights(tmp_path, lambda state: {f"module.{key}": value for key, value in state.items()})
    report = convert(tmp_path).report
    assert report.exact.hidden_max < 1e-5
    assert report.exact.logits_max < 1e-5


# ---- what may be replaced; `test_keeper.py` has the rules of output folders ------------------------------------------


def test_a_folder_that_holds_the_source_is_never_replaced(source):
    (source.parent / "config.json").write_text("{}")
    for out in (source.parent, source):
        with pytest.raises(UserError, match=f"{out.name}' is the source's own folder, or holds it"):
            convert(source, out, overwrite=True)
    assert (source / "model.safetensors").is_file()


@pytest.mark.parametrize("failing", ["transformers.PreTrainedModel.save_pretrained", "os.replace"])
def test_a_conversion_replaces_what_one_wrote_and_leaves_it_where_it_fails(source, tmp_path, monkeypatch, failing):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    out, options = tmp_path / "out", {"scheme": "rope", "overwrite": True, "measure": False}
    convert(source, out, measure=False)
    (out / "notes.txt").write_text("mine")
    before = snapshot(out)
    assert all(is_model_file(out / name) for name in before.keys() - {"notes.txt"})
    with pytest.raises(UserError, match=r"out' already holds .*replace it \(overwrite=True\)"):
        convert(source, out, measure=False)
    with monkeypatch.context() as patch:
        patch.setattr(failing, full)
        for folder in (out, tmp_path / "new"):
            with pytest.raises(UserError, match="failed: No space left on device. Make room, or name another"):
                convert(source, folder, **options)
    assert snapshot(out) == before
    assert not (tmp_path / "new").exists()
    convert(source, out, **options)
    after = snapshot(out)
    assert after.keys() - before.keys() == {"position_rope.py", "scheme_rotated.py"}
    assert "position_learned.py" in before.keys() - after.keys()
    assert after["notes.txt"] == b"mine"
    assert json.loads(after["config.json"])["position_embedding_type"] == "rope"
