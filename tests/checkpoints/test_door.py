"""Each kind of damage to a checkpoint is refused, or harmless, whichever command opens it; ours and other families'."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from common import word_tokenizer, write_csv
from conversion_harness import edit_weights, tiny_source
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer

import hf_posenc
from hf_posenc.checkpoints import loading
from hf_posenc.cli.application import app
from hf_posenc.conversion.families import FAMILIES
from hf_posenc.errors import UserError

WORDS = ["a", "good", "bad", "film", "number"]
ROWS = [{"text": f"a {word} film number {n}", "label": word} for n in range(20) for word in ("good", "bad")]
QUERY = {
    "ours": "model.layers.0.attention.query.weight",
    "bert": "bert.encoder.layer.0.attention.self.query.weight",
}
LAST = {"ours": "classifier.out_proj.bias", "bert": "classifier.bias"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("data") / "rows.csv", ROWS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data) -> dict[str, Path]:
    """A classifier of ours, and a BERT of transformers' own."""
    folder = tmp_path_factory.mktemp("whole")
    hf_posenc.fit(
        [row["text"] for row in ROWS], [row["label"] for row in ROWS], max_steps=2, baselines=False, bf16=False
    ).save(folder / "ours")
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    tiny_source(folder / "bert", "bert", "text-classification", vocab_size=len(WORDS) + 5, **labels)
    word_tokenizer(WORDS).save_pretrained(folder / "bert")
    return {name: folder / name for name in ("ours", "bert")}


def _fields(name: str, **fields: Any) -> Callable[[Path], None]:
    """Changes fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _text(name: str, text: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text((folder / name).read_text()))


def _weights(change: Callable[[dict[str, torch.Tensor], str, str], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    """Changes the weights, given the names of a query's and of the classifier's bias."""

    def damage(folder: Path) -> None:
        kind = "ours" if "posenc" in (folder / "config.json").read_text() else "bert"
        edit_weights(folder, lambda state: change(state, QUERY[kind], LAST[kind]))

    return damage


def _cast(dtype: torch.dtype) -> Callable[[Path], None]:
    return _weights(lambda state, query, _: {**state, query: state[query].to(dtype)})


def _all_int8(state: dict, *_: str) -> dict:
    return {name: (value * 10).to(torch.int8) for name, value in state.items()}


def _moved_out(folder: Path) -> None:
    outside = folder.parent / f"outside-{folder.name}"
    outside.mkdir()
    names = load_file(folder / "model.safetensors").keys()
    (folder / "model.safetensors").rename(outside / "model.safetensors")
    where = dict.fromkeys(names, f"../{outside.name}/model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _index(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def _sharded(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    """An index beside its only shard, and a change of what it promises."""

    def damage(folder: Path) -> None:
        shard = "model-00001-of-00001.safetensors"
        names = dict.fromkeys(load_file(folder / "model.safetensors"), shard)
        (folder / "model.safetensors").rename(folder / shard)
        change(names)
        index = {"metadata": {}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def _other_weights(folder: Path) -> None:
    save_file(_all_int8(load_file(folder / "model.safetensors")), folder / "other.safetensors", {"format": "pt"})
    _fields("config.json", transformers_weights="other.safetensors")(folder)


def _other_config(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.4.0.0.json").write_text(json.dumps({**raw, "attn_implementation": "somebody/kernel"}))
    _fields("config.json", configuration_files=["config.4.0.0.json"])(folder)


def _template(text: str, first: int) -> Callable[[Path], None]:
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


def _vocabulary(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        change(tokenizer)
        path.write_text(json.dumps(tokenizer))

    return damage


def _other_ids(folder: Path) -> None:
    """A class of transformers that rebuilds the tokenizer and lowers letters, which the file doesn't."""
    _vocabulary(lambda tokenizer: tokenizer["normalizer"].update(lowercase=False))(folder)
    _fields("tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=True)(folder)


def _twice(text: str) -> str:
    return text.replace("{", '{"hidden_size": 32,', 1)


NOTES = "task_specific_params"
WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "all int8": (_weights(_all_int8), "is I8, and weights are F32"),
    "one int32": (_cast(torch.int32), "is I32, and weights are F32"),
    "float8": (_cast(torch.float8_e4m3fn), "is F8_E4M3, and weights are F32"),
    "complex": (_cast(torch.complex64), "is C64, and weights are F32"),
    "missing": (
        _weights(lambda state, query, _: {name: value for name, value in state.items() if name != query}),
        r"lacks .*query\.weight",
    ),
    "another shape": (
        _weights(lambda state, query, _: {**state, query: state[query][:, 1:].contiguous()}),
        r"query\.weight'.*\(\d+, \d+\).*\(\d+, \d+\)",
    ),
    "surplus": (
        _weights(lambda state, query, _: {**state, query.replace(".0.", ".7."): state[query].clone()}),
        r"layers?\.7\.attention",
    ),
    "NaN": (_weights(lambda state, query, _: {**state, query: state[query] * torch.nan}), "isn't finite"),
    "cut": (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]), "cut short"),
    "gone": (lambda f: (f / "model.safetensors").unlink(), r"holds no model\.safetensors"),
    "an index that names a file outside": (_moved_out, "no safetensors file of this folder"),
    "an index that is no object": (_index("[]"), "holds no JSON object"),
    "an index without a map": (_index("{}"), "no weight_map"),
    "an index with a list for a map": (_index('{"weight_map": []}'), "no weight_map"),
    "an index that promises a weight too many": (
        _sharded(lambda names: names.update({"model.more.weight": "model-00001-of-00001.safetensors"})),
        "don't name the same weights: only one has 'model.more.weight'",
    ),
    "an index that lacks a weight": (_sharded(lambda names: names.popitem()), "don't name the same weights"),
    "a whole number of another name": (
        _weights(lambda state, *_: {**state, "model.some_ids": torch.ones(2, dtype=torch.int8)}),
        "'model.some_ids' is I8",
    ),
    "a file of another name": (_other_weights, "transformers_weights="),
    "a pickle alone": (_pickled, "allow.pickle"),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "merge_and_unload"),
}
TOKENIZERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an id past the embeddings": (
        _vocabulary(lambda tokenizer: tokenizer["model"]["vocab"].update(good=5000)),
        "has token 5000, 'good'",
    ),
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
    "a length without end": (_fields("tokenizer_config.json", model_max_length=math.inf), "model_max_length=inf"),
    "other ids": (_other_ids, r"gives other ids than its tokenizer\.json"),
    "no padding token": (_fields("tokenizer_config.json", pad_token=None), "no padding token"),
    "a length that is a text": (_fields("tokenizer_config.json", model_max_length="many"), "model_max_length='many'"),
    "a length of nothing": (_fields("tokenizer_config.json", model_max_length=0), "model_max_length=0"),
    "half a token": (_fields("tokenizer_config.json", model_max_length=12.5), r"model_max_length=12\.5"),
    "cut": (_text("tokenizer.json", lambda text: text[:-9]), "tokenizer can't be read"),
}
CONFIGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "null": (_text("config.json", lambda _: "null"), "holds no JSON object"),
    "cut": (_text("config.json", lambda text: text[:-9]), r"config\.json can't be read"),
    "deeply nested": (_text("config.json", lambda _: "[" * 200_000), r"config\.json can't be read"),
    "a key twice": (_text("config.json", _twice), "holds 'hidden_size' twice"),
    "answers without names": (_fields("config.json", return_dict=False), "return_dict=false"),
    "two labels of one name": (_fields("config.json", id2label={"0": "good", "1": "good"}), "calls 2 labels 'good'"),
    "parameters of a task in a list": (_fields("config.json", **{NOTES: ["a"]}), r"task_specific_params=\[.a.\]"),
    "notes in a list": (_fields("config.json", **{NOTES: {"hf_posenc": ["a"]}}), r"task_specific_params\.hf_posenc"),
    "a temperature that is a text": (
        _fields("config.json", **{NOTES: {"hf_posenc": {"temperature": "hot"}}}),
        'temperature="hot"',
    ),
    "flash attention": (_fields("config.json", _attn_implementation="flash_attention_2"), "flash_attention_2"),
    "a kernel of the Hub": (_fields("config.json", attn_implementation="somebody/kernel"), "somebody/kernel"),
    "a file of another name": (_other_config, "configuration_files="),
    "attention that is shown": (_fields("config.json", output_attentions=True), "output_attentions=true"),
    "quantised": (_fields("config.json", quantization_config={"quant_method": "fp8"}), "quantization_config="),
    "code without classes": (_fields("config.json", auto_map=None), "auto_map=null, which doesn't name classes"),
    "no class of a model": (_fields("config.json", architectures=5), "architectures=5"),
    "a size of another type": (_fields("config.json", num_hidden_layers="two"), "num_hidden_layers"),
    "gone": (lambda f: (f / "config.json").unlink(), r"no config\.json"),
}
DAMAGES = [
    (kind, name)
    for kind in ("weights", "tokenizer", "config")
    for name in {"weights": WEIGHTS, "tokenizer": TOKENIZERS, "config": CONFIGS}[kind]
]
TABLES = {"weights": WEIGHTS, "tokenizer": TOKENIZERS, "config": CONFIGS}


@pytest.fixture
def damaged(whole, tmp_path) -> Callable[..., tuple[Path, str]]:
    """A damaged copy of one of the two, and what is said of it."""

    def make(source: str, kind: str, name: str) -> tuple[Path, str]:
        folder = Path(shutil.copytree(whole[source], tmp_path / source))
        damage, message = TABLES[kind][name]
        damage(folder)
        return folder, message

    return make


COMMANDS: dict[str, Callable[[Path, str], list[str]]] = {
    "predict": lambda folder, data: ["predict", folder, "a good film"],
    "evaluate": lambda folder, data: ["evaluate", folder, "--data", data],
    "train": lambda folder, data: [
        "train",
        "--pretrained",
        folder,
        "--data",
        data,
        "--max-steps",
        1,
        "--no-bf16",
        "-o",
    ],
    "convert": lambda folder, data: ["convert", folder, "-o"],
    "export to onnx": lambda folder, data: ["export", folder, "--to", "onnx", "-o"],
    "export to native": lambda folder, data: ["export", folder, "--to", "native", "-o"],
    "publish": lambda folder, data: ["publish", folder, "--repo-id", "me/mine", "--dry-run"],
    "plot": lambda folder, data: ["plot", folder, "-o"],
    "compare": lambda folder, data: [
        *("compare", "--pretrained", folder, "--data", data, "--schemes", "rope,none", "--seeds", 1),
        *("--options", '{"max_steps": 1, "bf16": false}', "-o"),
    ],
}
"""The words of each command that opens a checkpoint, without the output at their end."""
NO_TOKENIZER = ("plot",)
OURS_ALONE = ("publish", "plot", "export to native")
"""Commands that refuse a BERT, whatever its state."""


def words_of(command: str, folder: Path, data: str, tmp_path: Path) -> list[Any]:
    words = COMMANDS[command](folder, data)
    return [*words, tmp_path / ("out.png" if command == "plot" else "out")] if words[-1] == "-o" else words


def test_every_command_with_a_checkpoint_is_in_the_table():
    named = {"checkpoint", "source", "pretrained"}
    commands = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    opening_one = {name for name, command in commands if named & {parameter.name for parameter in command.params}}
    assert opening_one == {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize(("kind", "name"), DAMAGES)
@pytest.mark.parametrize("source", ["ours", "bert"])
def test_a_damaged_checkpoint_is_refused(damaged, source, kind, name):
    folder, message = damaged(source, kind, name)
    with pytest.raises(UserError, match=message) as refused:
        hf_posenc.load(folder)
    assert "weights_only" not in str(refused.value)
    assert "allow_pickle=False" not in str(refused.value)


def test_a_head_that_was_lost_is_not_replaced_by_a_random_one(whole, data, tmp_path, run):
    folder = shutil.copytree(whole["ours"], tmp_path / "lost")
    edit_weights(folder, lambda state: state.pop(LAST["ours"]))
    for command in ("predict", "train"):
        code, _, said = run(*words_of(command, folder, data, tmp_path))
        assert (code, f"lacks weights, which would be random: '{LAST['ours']}" in said) == (2, True), said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("kind", "name"), [("weights", "one int32"), ("config", "answers without names")])
def test_each_command_goes_through_the_door(damaged, data, tmp_path, run, command, kind, name):
    folder, message = damaged("ours", kind, name)
    code, _, said = run(*words_of(command, folder, data, tmp_path))
    assert code == 2, said
    assert message.partition(",")[0] in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # all damages, commands and models
@pytest.mark.parametrize(("kind", "name"), DAMAGES)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_damage_is_refused_or_harmless_to_each_command(damaged, data, tmp_path, run, command, kind, name):
    for source in ("ours", "bert"):
        folder, message = damaged(source, kind, name)
        code, _, said = run(*words_of(command, folder, data, tmp_path))
        if command in NO_TOKENIZER and kind == "tokenizer" and source == "ours":
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
    assert sorted(name for name in names if not f"{name}.".startswith(loading.HEAD_PREFIXES)) == []


def test_a_new_model_has_a_row_for_the_largest_id_of_a_tokenizer_with_gaps(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    vocabulary = {**tokenizer.get_vocab(), "film": 50}
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path / "tokenizer")
    texts, labels = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
    fitted = hf_posenc.fit(texts, labels, tokenizer=str(tmp_path / "tokenizer"), max_steps=1, baselines=False)
    assert fitted.model_.config.vocab_size == 51
    assert fitted.predict(["a good film"])
