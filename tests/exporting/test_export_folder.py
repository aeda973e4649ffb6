"""What lies in an exported folder, who loads it, and what is refused without a trace."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoTokenizer
from typer.testing import CliRunner

from hf_posenc import UserError, cli, export, publish, register_scheme
from hf_posenc.inference.backends import open_backend
from tests.support.common import home_of, schemes_restored, tiny_classifier
from tests.support.exporting import LABELS, TEXTS, batch, checkpoint, expected, mean_vectors, tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A classifier with a table of 64 positions: (folder, model)."""
    folder = tmp_path_factory.mktemp("source") / "model"
    return folder, checkpoint(folder, "learned", **LABELS)


@pytest.fixture(scope="module")
def command(source, tmp_path_factory):
    """The command that exports it to ONNX over an older export: what it says, and the folder."""
    out = tmp_path_factory.mktemp("exported") / "out"
    bert = {"norm_position": "post", "classifier_pooling": "cls", "classifier_hidden_act": "tanh"}
    tiny_classifier(out.with_name("older"), ["a film"], ("b", "g"), **bert)
    export(out.with_name("older"), out, to="native")
    assert (out / "model.safetensors").exists()
    words = ["export", str(source[0]), "-o", str(out), "--to", "onnx", "--overwrite"]
    return CliRunner().invoke(cli.app, words), out


@pytest.fixture(scope="module")
def exported(command):
    """Its export to ONNX."""
    return command[1]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_folder_holds_the_graph_where_servers_look_and_no_code(exported):
    beside = {"config.json", "export.json", "README.md", "tokenizer.json", "tokenizer_config.json", "_files.json"}
    assert files(exported) == {*beside, "onnx/model.onnx", "onnx/model.onnx.data"}
    listed = json.loads((exported / "_files.json").read_text())["files"].keys()
    assert listed == files(exported) - {"_files.json"}
    config = json.loads((exported / "config.json").read_text())
    assert "auto_map" not in config
    assert config["architectures"] == ["PosEncForSequenceClassification"]
    assert config["max_position_embeddings"] == 64
    assert config["id2label"] == {str(number): name for number, name in LABELS["id2label"].items()}
    assert config["label2id"] == LABELS["label2id"]
    assert str(exported.parent) not in "".join(path.read_text() for path in exported.glob("*.*"))


@pytest.mark.slow
def test_its_card_is_whole_and_publish_says_how_it_is_uploaded(exported):
    data = ModelCard.load(exported / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("onnx", "text-classification")
    text = (exported / "README.md").read_text()
    assert "trust_remote_code" not in text
    assert 'hf_posenc.load("path/to/this/folder").predict' in text
    with pytest.raises(UserError, match=f"{exported}. is a bert model.*`hf upload OWNER/NAME FOLDER --exclude "):
        publish(exported, "me/mine")


@pytest.mark.slow
def test_the_onnx_file_holds_its_weights_and_nothing_of_this_machine(exported):
    import onnx

    path = exported / "onnx/model.onnx"
    graph = onnx.load(path, load_external_data=False).graph
    assert not any(tensor.external_data for tensor in graph.initializer)
    assert b".py" not in path.read_bytes()
    assert [item.name for item in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]  # no position_ids
    assert [item.name for item in graph.output] == ["logits"]
    for item in graph.input:  # any batch and length
        assert all(dim.dim_param and not dim.dim_value for dim in item.type.tensor_type.shape.dim)


@pytest.mark.slow
def test_transformers_exported_model_loads_it_without_remote_code(source, exported):
    from transformers.exporters import ExportedModel

    inputs = batch(2, 9)
    outputs = ExportedModel.from_pretrained(exported)(**{name: torch.from_numpy(a) for name, a in inputs.items()})
    np.testing.assert_allclose(outputs.logits.numpy(), expected(source[1], inputs)["logits"], atol=1e-5)
    assert AutoConfig.from_pretrained(exported).id2label == LABELS["id2label"]
    assert AutoTokenizer.from_pretrained(exported)(TEXTS)["input_ids"] == tokenizer()(TEXTS)["input_ids"]


@pytest.mark.slow
def test_past_the_table_there_is_an_error_and_no_garbage(source, exported):
    backend, inputs = open_backend(exported, "onnx"), batch(3, 64)
    np.testing.assert_allclose(backend.logits(inputs), expected(source[1], inputs)["logits"], atol=1e-5)
    with pytest.raises(UserError, match="65 tokens long, and the model's table of positions ends at 64"):
        backend.logits(batch(1, 65))


@pytest.mark.slow
def test_a_changed_a_cut_and_a_missing_file_are_named(exported, tmp_path):
    folder = tmp_path / "copy"
    for change in (
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"logits", b"ligots")),
        lambda path: path.unlink(),
    ):
        shutil.copytree(exported, folder)
        change(folder / "onnx/model.onnx")
        with pytest.raises(UserError, match="onnx/model.onnx isn't what was exported|has no onnx/model.onnx"):
            open_backend(folder, "onnx")
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_graph_that_is_none_is_named_without_a_manifest_too(exported, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match="model.onnx' can't be read.*The file is damaged"):
        open_backend(tmp_path, "onnx")
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    with pytest.raises(UserError, match="openvino_model.xml' can't be read.*The file is damaged"):
        open_backend(tmp_path, "openvino")


def test_an_operation_that_the_runtime_lacks_is_not_called_damage_alone(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    places = [helper.make_tensor_value_info(name, TensorProto.BOOL, [1]) for name in ("input_ids", "out")]
    node = helper.make_node("Where", ["input_ids"] * 3, ["out"])
    model = helper.make_model(helper.make_graph([node], "graph", places[:1], places[1:]), ir_version=10)
    model.opset_import[0].version = 18
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"NOT_IMPLEMENTED.* or a scheme of your own uses an operation that"):
        open_backend(tmp_path, "onnx")


@pytest.mark.slow
def test_a_graph_with_other_inputs_is_refused(exported, tmp_path):
    import onnx

    model = onnx.load(exported / "onnx/model.onnx")
    renamed = onnx.helper.make_node("Identity", ["position_ids"], ["token_type_ids"])
    model.graph.node.insert(0, renamed)
    model.graph.input[2].name = "position_ids"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(UserError, match="takes input_ids, attention_mask, position_ids; known are"):
        open_backend(tmp_path, "onnx")


def write_graph_of_width(folder: Path, name: str, numbers: int) -> None:
    """Writes a graph that answers each text with so many numbers."""
    import onnx
    import openvino
    from onnx import TensorProto, helper

    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["texts", "tokens"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["texts", numbers])
    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [1, numbers], [0.0] * numbers)
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["floats"], ["largest"], axes=[1]),
        helper.make_node("Add", ["largest", "zeros"], ["logits"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "graph", [ids], [logits], [zeros]), ir_version=10)
    model.opset_import[0].version = 13
    onnx.save(model, folder / "model.onnx")
    if name == "openvino":
        openvino.save_model(openvino.convert_model(folder / "model.onnx"), folder / "openvino_model.xml")


@pytest.mark.parametrize(("numbers", "labels"), [(1, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_graph_that_answers_other_than_a_number_for_each_label_is_refused(name, numbers, labels, tmp_path):
    config = {"architectures": ["BertForSequenceClassification"]}  # of two labels, as transformers leaves them out
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_graph_of_width(tmp_path, name, numbers)
    if labels == 3:
        assert open_backend(tmp_path, name).logits(batch(3, 5)).shape == (3, 2)
        (tmp_path / "config.json").write_text(json.dumps(config | LABELS))
    with pytest.raises(UserError, match=f"answers with {numbers} numbers, and .* config.json has {labels} labels"):
        open_backend(tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("onnx", {"bf16": True}, "computes the graph in float32: leave bf16 out"),
        ("openvino", {}, "has no openvino/openvino_model.xml. It holds one for onnx. Export .* to='openvino'"),
        ("tensorrt", {}, "backend='tensorrt' is unknown. Choose one of torch, onnx, openvino"),
    ],
)
def test_what_a_folder_or_a_runtime_cannot_do_is_said(exported, name, options, words):
    with pytest.raises(UserError, match=words):
        open_backend(exported, name, **options)


@pytest.mark.slow
def test_a_missing_package_comes_with_its_pip_line(source, exported, tmp_path, monkeypatch):
    find, names = importlib.util.find_spec, "onnx, onnxscript, onnxruntime"

    def without_onnx(name):
        return None if name.startswith("onnx") else find(name)

    monkeypatch.setattr("importlib.util.find_spec", without_onnx)
    with pytest.raises(UserError, match="pip install onnxruntime"):
        open_backend(exported, "onnx")
    with pytest.raises(UserError, match=f"to='onnx' needs {names}.*pip install {names.replace(',', '')}"):
        export(source[0], tmp_path / "out", to="onnx")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "transformers.exporters", None)
    with pytest.raises(UserError, match="pip install 'transformers>="):
        export(source[0], tmp_path / "out", to="openvino")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_differs_from_pytorch_is_not_kept(source, exported, tmp_path, monkeypatch):
    import onnx

    write_graph = home_of(export).write_graph

    def write_another(to, model, tokenizer, staging):
        shutil.copytree(exported, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_files.json"))
        graph = onnx.load(exported / "onnx/model.onnx")
        (bias,) = (tensor for tensor in graph.graph.initializer if tensor.name.endswith("classifier.out_proj.bias"))
        values = onnx.numpy_helper.to_array(bias).copy()
        values[0] += 1e-3  # of one label: the others answer alike
        bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
        onnx.save(graph, staging / "onnx/model.onnx")
        home_of(write_graph).record_files(staging, to)
        return []

    monkeypatch.setattr(home_of(export), "write_graph", write_another)
    with pytest.raises(UserError, match="differs from PyTorch by .*e-0[34].* nothing was kept"):
        export(source[0], tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())


INT8 = {"quantize": "int8"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "^to='tflite' is unknown. Choose one of native, onnx, openvino, bert, .*mpnet"),
        ({"epochs": 3}, "unexpected keyword argument 'epochs'"),
        ({"checkpoint": "./nothing"}, "^There is no folder"),
        ({"output": "source", "overwrite": True}, "is the source's own folder"),
        ({"checkpoint": "mute"}, r"has no tokenizer\. Save it into that folder"),
        ({"quantize": "int4"}, "^quantize='int4' is unknown. Give int8"),
        ({"evaluate": "data.csv"}, "^evaluate='data.csv' is for quantize='int8'. Give both"),
        ({**INT8, "evaluate": "nothing.csv"}, "^evaluate='nothing.csv': there is no such file"),
        ({**INT8, "calibrate": __file__}, "^calibrate='.*' is for openvino; onnx finds"),
        ({**INT8, "largest_drop": 0.1}, "^largest_drop=0.1 is for the score of evaluate. Give both, or leave it out"),
        ({**INT8, "largest_drop": 1.5}, "^largest_drop=1.5 is out of range. Give a number from 0 to 1"),
        ({**INT8, "largest_drop": float("nan")}, "^largest_drop=nan is out of range"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(source, tmp_path, monkeypatch, options, message):
    for name, ignored in (("source", ()), ("mute", ("tokenizer*",))):
        shutil.copytree(source[0], tmp_path / name, ignore=shutil.ignore_patterns(*ignored))
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, TypeError), match=message):
        export(**{"checkpoint": "source", "output": "out", "to": "onnx", **options})
    assert {path.name for path in tmp_path.iterdir()} == {"source", "mute"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("basic_ios::clear: iostream error"), "iostream error"),  # OpenVINO's
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(source, tmp_path, monkeypatch, error, reason):
    def full(*args):
        raise error

    monkeypatch.setattr(home_of(export), "write_graph", full)
    with pytest.raises(UserError, match=f"Writing to '.*out' failed: {reason}. Make room, or name another folder."):
        export(source[0], tmp_path / "out", to="openvino")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_exports_over_an_older_export_and_says_what_it_did(command):
    done, out = command
    assert done.exit_code == 0, done.output
    assert f"PosEncForSequenceClassification for onnx is in {out}" in done.stdout
    assert "at most 64 tokens" in done.stdout
    assert "differs from PyTorch by at most" in done.stdout
    assert done.stderr.count("...") == 3
    assert not (out / "model.safetensors").exists()


@pytest.mark.slow
def test_an_encoder_with_a_scheme_of_its_own_is_exported_for_sentence_transformers_where_it_may_run(tmp_path, run):
    from sentence_transformers.models import Pooling

    with schemes_restored("recency"):
        register_scheme(Path(__file__).parents[2] / "examples/own_scheme/recency.py", "recency")
        model = checkpoint(tmp_path / "model", "recency", "Model")
    words = ["export", tmp_path / "model", "-o", tmp_path / "out", "--to", "onnx"]
    for trust, wanted in (([], 2), (["--trust-remote-code"], 0)):
        code, out, err = run(*words, *trust)
        assert code == wanted, err
        assert ("trust_remote_code=True" in err) == bool(code)
    assert "mean of the token vectors" in out
    assert not list((tmp_path / "out").rglob("*.py"))
    inputs = dict(tokenizer()(TEXTS, padding=True, return_tensors="np"))
    states = open_backend(tmp_path / "out", "onnx").outputs(inputs)["last_hidden_state"]
    features = {
        "token_embeddings": torch.from_numpy(states),
        "attention_mask": torch.from_numpy(inputs["attention_mask"]),
    }
    pooled = Pooling.load(str(tmp_path / "out/1_Pooling"))(features)["sentence_embedding"]
    np.testing.assert_allclose(pooled.numpy(), mean_vectors(model), atol=1e-5)
