"""Each kind of damage to a checkpoint is refused, or harmless, whichever command opens it; ours and other families'."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer

import hf_posenc
from hf_posenc import UserError
from hf_posenc.checkpoints.loading import HEAD_PREFIXES
from hf_posenc.checkpoints.opening import Checkpoint
from hf_posenc.cli import app
from hf_posenc.conversion.families import FAMILIES
from tests.support.common import word_tokenizer, write_csv
from tests.support.conversion import edit_weights, jina, tiny_source
from tests.support.training import train

WORDS = ["a", "good", "bad", "film", "number"]
ROWS = [{"text": f"a {word} film number {n}", "label": word} for n in range(20) for word in ("good", "bad")]
TEXTS, LABELS = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
QUERY = {
    "ours": "model.layers.0.attention.query.weight",
    "bert": "bert.encoder.layer.0.attention.self.query.weight",
}
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("data") / "rows.csv", ROWS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """A classifier of ours, and a BERT of transformers' own."""
    folder = tmp_path_factory.mktemp("whole")
    hf_posenc.fit(TEXTS, LABELS, max_steps=2, baselines=False, bf16=False).save(folder / "ours")
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    tiny_source(folder / "bert", "bert", "text-classification", vocab_size=len(WORDS) + 5, **labels)
    word_tokenizer(WORDS).save_pretrained(folder / "bert")
    return {name: folder / name for name in ("ours", "bert")}


def _text(name: str, change: Callable[[str], str]) -> Damage:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def _fields(name: str, **fields: Any) -> Damage:
    """Changes fields of a JSON file."""
    return _text(name, lambda text: json.dumps({**json.loads(text), **fields}))


def _notes(**notes: Any) -> Damage:
    return _fields("config.json", task_specific_params={"hf_posenc": notes})


def _weights(change: Callable[[dict[str, torch.Tensor], str], dict[str, torch.Tensor]]) -> Damage:
    """Changes the weights, given the name of a query's."""

    def damage(folder: Path) -> None:
        kind = "ours" if "posenc" in (folder / "config.json").read_text() else "bert"
        edit_weights(folder, lambda state: change(state, QUERY[kind]))

    return damage


def _index(text: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def _sharded(change: Callable[[dict[str, str]], object]) -> Damage:
    """An index beside its only shard, and a change of what it promises."""

    def damage(folder: Path) -> None:
        names = dict.fromkeys(load_file(folder / "model.safetensors"), "shard.safetensors")
        shutil.copy(folder / "model.safetensors", folder / "shard.safetensors")
        change(names)
        _index(json.dumps({"metadata": {}, "weight_map": names}))(folder)

    return damage


def _template(text: str, first: int) -> Damage:
    """What is put around a text, with this id for [CLS]."""

    def damage(folder: Path) -> None:
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = TemplateProcessing(text, None, [("[CLS]", first), ("[SEP]", 3)])
        backend.save(str(folder / "tokenizer.json"))
        names = ["input_ids", "token_type_ids", "attention_mask"]
        _fields("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", model_input_names=names)(folder)

    return damage


def _pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _large_id(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["good"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _other_ids(folder: Path) -> None:
    """A class of transformers that rebuilds the tokenizer and lowers letters, which the file doesn't."""
    normalizer = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
    _fields("tokenizer.json", normalizer={**normalizer, "lowercase": False})(folder)
    _fields("tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=True)(folder)


def _cut(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def _length(value: Any) -> Damage:
    return _fields("tokenizer_config.json", model_max_length=value)


WEIGHTS: dict[str, tuple[Damage, str]] = {
    "all int8": (
        _weights(lambda state, _: {name: (value * 10).to(torch.int8) for name, value in state.items()}),
        "is I8, and weights are F32",
    ),
    "one int32": (_weights(lambda state, query: {**state, query: state[query].int()}), "is I32, and weights are F32"),
    "missing": (
        _weights(lambda state, query: {name: value for name, value in state.items() if name != query}),
        r"lacks .*query\.weight",
    ),
    "another shape": (
        _weights(lambda state, query: {**state, query: state[query][:, 1:].contiguous()}),
        r"query\.weight'.*\(\d+, \d+\).*\(\d+, \d+\)",
    ),
    "surplus": (
        _weights(lambda state, query: {**state, query.replace(".0.", ".7."): state[query].clone()}),
        r"layers?\.7\.attention",
    ),
    "NaN": (_weights(lambda state, query: {**state, query: state[query] * torch.nan}), "isn't finite"),
    "cut": (_cut("model.safetensors"), "cut short"),
    "gone": (lambda folder: (folder / "model.safetensors").unlink(), r"holds no model\.safetensors"),
    "an index that names a file outside": (
        _index('{"weight_map": {"a": "../model.safetensors"}}'),
        "no safetensors file of this folder",
    ),
    "an index that is no object": (_index("[]"), "holds no JSON object"),
    "an index without a map": (_index('{"weight_map": []}'), "no weight_map"),
    "an index that promises a weight too many": (
        _sharded(lambda names: names.update({"model.more.weight": "shard.safetensors"})),
        "don't name the same weights: only one has 'model.more.weight'",
    ),
    "an index that lacks a weight": (_sharded(lambda names: names.popitem()), "don't name the same weights"),
    "a whole number of another name": (
        _weights(lambda state, _: {**state, "model.some_ids": torch.ones(2, dtype=torch.int8)}),
        "'model.some_ids' is I8",
    ),
    "a file of another name": (
        _fields("config.json", transformers_weights="other.safetensors"),
        "transformers_weights=",
    ),
    "a pickle alone": (_pickled, "allow.pickle"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge_and_unload"),
}
TOKENIZERS: dict[str, tuple[Damage, str]] = {
    "an id past the embeddings": (_large_id, "has token 5000, 'good'"),
    "an id of its template past the embeddings": (_template("[CLS] $A [SEP]", 99_999), "has token 99999"),
    "a token type past the embeddings": (_template("[CLS]:7 $A:7 [SEP]:7", 2), "gives token type 7"),
    "a file of another name": (
        _fields("tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.json"]),
        "fast_tokenizer_files",
    ),
    "a key twice": (
        _text("tokenizer_config.json", lambda text: text.replace("{", '{"pad_token": "a",', 1)),
        "holds 'pad_token' twice",
    ),
    "other ids": (_other_ids, r"gives other ids than its tokenizer\.json"),
    "no padding token": (_fields("tokenizer_config.json", pad_token=None), "no padding token"),
    "a length without end": (_length(math.inf), "model_max_length=inf"),
    "a length that is a text": (_length("many"), "model_max_length='many'"),
    "a length of nothing": (_length(0), "model_max_length=0"),
    "half a token": (_length(12.5), r"model_max_length=12\.5"),
    "cut": (_cut("tokenizer.json"), "tokenizer can't be read"),
}
CONFIGS: dict[str, tuple[Damage, str]] = {
    "null": (_text("config.json", lambda _: "null"), "holds no JSON object"),
    "deeply nested": (_text("config.json", lambda _: "[" * 200_000), r"config\.json can't be read"),
    "a key twice": (
        _text("config.json", lambda text: text.replace("{", '{"hidden_size": 32,', 1)),
        "holds 'hidden_size' twice",
    ),
    "two labels of one name": (_fields("config.json", id2label={"0": "good", "1": "good"}), "calls 2 labels 'good'"),
    "notes in a list": (_fields("config.json", task_specific_params={"hf_posenc": ["a"]}), r"params\.hf_posenc"),
    "a temperature that is a text": (_notes(temperature="hot"), 'temperature="hot"'),
    "a column that is a text": (_notes(text_columns="text"), 'text_columns="text"'),
    "a size of another type": (_fields("config.json", num_hidden_layers="two"), "num_hidden_layers"),
    "gone": (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
    **{
        f"{key} of no accepted value": (_fields("config.json", **{key: value}), message)
        for key, value, message in (
            ("return_dict", False, "return_dict=false"),
            ("task_specific_params", ["a"], r"task_specific_params=\[.a.\]"),
            ("_attn_implementation", "flash_attention_2", "flash_attention_2"),
            ("attn_implementation", "somebody/kernel", "somebody/kernel"),
            ("configuration_files", ["config.4.0.0.json"], "configuration_files="),
            ("output_attentions", True, "output_attentions=true"),
            ("quantization_config", {"quant_method": "fp8"}, "quantization_config="),
            ("auto_map", None, "auto_map=null, which doesn't name classes"),
            ("architectures", 5, "architectures=5"),
        )
    },
}
TABLES = {"weights": WEIGHTS, "tokenizer": TOKENIZERS, "config": CONFIGS}
DAMAGES = [(kind, name) for kind, table in TABLES.items() for name in table]
EACH = [("weights", "one int32"), ("config", "return_dict of no accepted value")]
"""The damages that each command is tried with, where time is short."""
COMMANDS: dict[str, list[Any]] = {
    "predict": ["predict", "MODEL", "a good film"],
    "evaluate": ["evaluate", "MODEL", "--data", "DATA"],
    "train": ["train", "--pretrained", "MODEL", "--data", "DATA", "--max-steps", 1, "--no-bf16", "-o", "out"],
    "convert": ["convert", "MODEL", "-o", "out"],
    "export to onnx": ["export", "MODEL", "--to", "onnx", "-o", "out"],
    "export to native": ["export", "MODEL", "--to", "native", "-o", "out"],
    "publish": ["publish", "MODEL", "--repo-id", "me/mine", "--dry-run"],
    "plot": ["plot", "MODEL", "-o", "out.png"],
    "compare": [
        *("compare", "--pretrained", "MODEL", "--data", "DATA", "--schemes", "rope,none", "--seeds", 1),
        *("--options", '{"max_steps": 1, "bf16": false}', "-o", "out"),
    ],
}
"""The words of each command that opens a checkpoint."""
OURS_ALONE = ("publish", "plot", "export to native")
"""Commands that refuse a BERT, whatever its state."""


@pytest.fixture
def said_of(data, tmp_path, monkeypatch, run) -> Callable[[str, Path], tuple[int, str]]:
    """Runs a command on a checkpoint: its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)

    def call(command: str, folder: Path) -> tuple[int, str]:
        code, _, said = run(*({"MODEL": folder, "DATA": data}.get(word, word) for word in COMMANDS[command]))
        return code, said

    return call


def test_every_command_with_a_checkpoint_is_in_the_table():
    named = {"checkpoint", "source", "pretrained"}
    commands = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    opening_one = {name for name, command in commands if named & {parameter.name for parameter in command.params}}
    assert opening_one == {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize(("kind", "name"), DAMAGES)
@pytest.mark.parametrize("source", ["ours", "bert"])
def test_a_damaged_checkpoint_is_refused(whole, tmp_path, source, kind, name):
    folder = Path(shutil.copytree(whole[source], tmp_path / source))
    damage, message = TABLES[kind][name]
    damage(folder)
    with pytest.raises(UserError, match=message) as refused:
        hf_posenc.load(folder)
    assert "weights_only" not in str(refused.value)
    assert "allow_pickle=False" not in str(refused.value)


def test_a_head_that_was_lost_is_not_replaced_by_a_random_one(whole, tmp_path, said_of):
    folder = shutil.copytree(whole["ours"], tmp_path / "lost")
    edit_weights(folder, lambda state: state.pop("classifier.out_proj.bias"))
    for command in ("predict", "train"):
        code, said = said_of(command, folder)
        assert (code, "lacks weights, which would be random: 'classifier.out_proj.bias" in said) == (2, True), said


def test_an_older_name_with_another_value_than_the_class_computes_with_is_refused(tmp_path):
    tiny_source(tmp_path, "eurobert", "text-classification")
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    _fields("config.json", clf_pooling="mean")(tmp_path)
    with pytest.raises(UserError, match="has clf_pooling='mean', an older name .* computes with classifier_pooling='b"):
        hf_posenc.load(tmp_path)


def _distances(state: dict[str, torch.Tensor]) -> None:
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    state[name] = torch.ones(79, 8)


@pytest.mark.parametrize(
    ("kind", "message"), [("jina", "is a JinaBERT v2"), ("relative_key", "such as 'bert.encoder.*")]
)
def test_what_transformers_has_no_class_for_is_sent_to_convert(tmp_path, kind, message):
    if kind == "jina":
        jina(tmp_path, "text-classification", architectures=["JinaBertForSequenceClassification"])
    else:
        tiny_source(tmp_path, "bert", "text-classification")
        edit_weights(tmp_path, _distances)
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"{message}.*ake it ours: `hf-posenc convert`"):
        hf_posenc.load(tmp_path)


@pytest.mark.parametrize("source", ["ours", "bert"])
def test_each_text_is_answered_as_alone_whichever_side_the_tokenizer_pads(whole, tmp_path, source):
    folder = Path(shutil.copytree(whole[source], tmp_path / source))
    _fields("tokenizer_config.json", padding_side="left")(folder)
    classifier = hf_posenc.load(folder)
    alone = classifier.predict_proba(["a"])
    np.testing.assert_allclose(classifier.predict_proba(["a", "a good film number 3"])[:1], alone, atol=1e-6)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("kind", "name"), [pytest.param(*row, marks=() if row in EACH else pytest.mark.slow) for row in DAMAGES]
)
def test_each_damage_is_refused_or_harmless_to_each_command(whole, tmp_path, said_of, command, kind, name):
    damage, message = TABLES[kind][name]
    for source in ("ours", "bert"):
        folder = Path(shutil.copytree(whole[source], tmp_path / source))
        damage(folder)
        code, said = said_of(command, folder)
        if command == "plot" and kind == "tokenizer" and source == "ours":
            assert code == 0, said
            continue
        assert code == 2, said
        assert not (tmp_path / "out").exists()
        assert len(re.findall("^Error: ", said, re.MULTILINE)) == 1
        if source == "ours" or command not in OURS_ALONE:
            assert re.search(message, said), said


def test_the_door_knows_the_heads_of_every_family():
    names = {name for family in FAMILIES.values() for head in family.heads.values() for name in head.values()}
    names |= {prefix for family in FAMILIES.values() for prefix in family.foreign}
    assert sorted(name for name in names if not f"{name}.".startswith(HEAD_PREFIXES)) == []


def test_a_new_model_has_a_row_for_the_largest_id_of_a_tokenizer_with_gaps(tmp_path):
    vocabulary = {**word_tokenizer(WORDS).get_vocab(), "film": 50}
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "tokenizer")
    fitted = hf_posenc.fit(TEXTS, LABELS, tokenizer=str(tmp_path / "tokenizer"), max_steps=1, baselines=False)
    assert fitted.model_.config.vocab_size == 51
    assert fitted.predict(["a good film"])


LINEAGES = {
    "base_model: me/encoder\nlicense: mit": {"base_model": "me/encoder", "license": "mit"},
    "base_model: ../runs/a": {},  # a folder of who wrote it
    "base_model: [me/a, me/b]\nlicense: other\nlicense_name: mine": {
        "base_model": ["me/a", "me/b"],
        "license": "other",
        "license_name": "mine",
    },
    "base_model: [me/a, ../runs/b]": {},
    "license: other\nlicense_link: https://a.b/c": {"license": "other", "license_link": "https://a.b/c"},
    "base_model: [": {},  # no YAML
    None: {},
}


@pytest.mark.parametrize("metadata", LINEAGES)
def test_a_folder_comes_from_where_its_card_says(metadata: str | None, tmp_path: Path):
    if metadata is not None:
        (tmp_path / "README.md").write_text(f"---\n{metadata}\n---\n")
    assert Checkpoint(str(tmp_path), tmp_path, {}).lineage == LINEAGES[metadata]
    base_model = {"base_model": "me/mine"}
    assert Checkpoint("me/mine", tmp_path, {}).lineage == LINEAGES[metadata] | base_model  # on the Hub


def test_a_licence_beside_a_card_is_linked_where_it_lies(tmp_path: Path):
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_link: LICENSE\n---\n")
    link = {"license_link": "https://huggingface.co/me/mine/blob/main/LICENSE"}
    assert Checkpoint("me/mine", tmp_path, {}).lineage == {"base_model": "me/mine", "license": "other"} | link
    assert Checkpoint(str(tmp_path), tmp_path, {}).lineage == {"license": "other"}


@pytest.fixture(scope="module")
def made(whole: dict[str, Path], data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders that were made of a BERT: converted, trained further, and exported."""
    here = tmp_path_factory.mktemp("made")
    source = shutil.copytree(whole["bert"], here / "source")
    (source / "README.md").write_text("---\nbase_model: me/encoder\nlicense: cc-by-nc-4.0\n---\n")
    hf_posenc.convert(source, here / "converted")
    train(here / "trained", data=str(data), pretrained=str(here / "converted"), max_steps=1)
    hf_posenc.export(here / "trained", here / "exported", to="native")
    return [here / name for name in ("converted", "trained", "exported")]


def test_base_model_and_licence_reach_the_cards_of_what_is_made_of_a_checkpoint(made: list[Path]):
    for folder in made:
        card = ModelCard.load(folder / "README.md").data
        assert (card.base_model, card.license) == ("me/encoder", "cc-by-nc-4.0")


def test_no_tokenizer_file_keeps_the_truncation_and_padding_of_a_call(made: list[Path]):
    for folder in made:
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert (folder.name, backend.truncation, backend.padding) == (folder.name, None, None)
