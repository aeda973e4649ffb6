"""What a conversion may replace, and what it must leave; `test_keeper.py` has the rules of output folders."""

import json
import os

import pytest
from conversion_harness import tiny_source, tiny_tokenizer

from hf_posenc.checkpoints.keeper import is_model_file
from hf_posenc.conversion import convert
from hf_posenc.errors import UserError


@pytest.fixture
def source(tmp_path):
    tiny_source(tmp_path / "runs" / "checkpoint-100")
    tiny_tokenizer(tmp_path / "runs" / "checkpoint-100")
    return tmp_path / "runs" / "checkpoint-100"


def test_a_folder_that_holds_the_source_is_never_replaced(source):
    (source.parent / "config.json").write_text("{}")
    for out in (source.parent, source):
        with pytest.raises(UserError, match=f"{out.name}' is the source's own folder, or holds it"):
            convert(source, out, overwrite=True)
    assert (source / "model.safetensors").is_file()


def test_what_a_conversion_wrote_is_listed_and_replaced_and_all_else_stays(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, measure=False)
    names = {path.name for path in out.iterdir()}
    assert all(is_model_file(out / name) for name in names)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"out' already holds .*replace it \(overwrite=True\)"):
        convert(source, out, measure=False)
    convert(source, out, overwrite=True, measure=False, scheme="rope")
    assert (out / "notes.txt").read_text() == "mine"
    assert {path.name for path in out.iterdir()} - names == {"notes.txt", "position_rope.py", "position_rotated.py"}
    assert not (out / "position_learned.py").exists()


def test_a_folder_without_permission_is_named_first(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match="can't be written to: no permission"):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize("failing", ["save_pretrained", "replace"])
def test_a_conversion_that_fails_leaves_the_model_before_it(source, tmp_path, monkeypatch, failing):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    convert(source, tmp_path / "out", measure=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    options = {"scheme": "rope", "overwrite": True, "measure": False}
    with monkeypatch.context() as patch:
        patch.setattr("transformers.PreTrainedModel.save_pretrained" if failing != "replace" else "os.replace", full)
        for out in ("out", "new"):
            with pytest.raises(UserError, match="failed: No space left on device. Make room, or name another"):
                convert(source, tmp_path / out, **options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert not (tmp_path / "new").exists()
    convert(source, tmp_path / "out", **options)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["position_embedding_type"] == "rope"
