"""What a conversion may replace, and what it must leave."""

import os

import pytest
from conversion_harness import tiny_source, tiny_tokenizer

from hf_posenc import files
from hf_posenc.checkpoints.output import check_free, model_written
from hf_posenc.conversion import convert


@pytest.fixture
def source(tmp_path):
    tiny_source(tmp_path / "runs" / "checkpoint-100")
    tiny_tokenizer(tmp_path / "runs" / "checkpoint-100")
    return tmp_path / "runs" / "checkpoint-100"


def test_a_folder_that_holds_the_source_is_never_replaced(source):
    (source.parent / "config.json").write_text("{}")
    for out in (source.parent, source):
        with pytest.raises(ValueError, match=f"{out.name}', is SOURCE's folder, or holds it"):
            convert(source, out, overwrite=True)
    assert (source / "model.safetensors").is_file()


def test_what_is_no_part_of_a_model_is_never_deleted(source, tmp_path):
    convert(source, tmp_path / "out", measure=False)
    convert(source, tmp_path / "out", overwrite=True, measure=False)  # a model alone is replaced
    for name in ("notes.txt", "checkpoint-3"):
        other = tmp_path / "out" / name
        other.write_text("mine") if name.endswith("txt") else other.mkdir()
        with pytest.raises(ValueError, match=f"holds more than a model: {name}. It isn't replaced"):
            convert(source, tmp_path / "out", overwrite=True)
        assert other.exists()
        other.unlink() if other.is_file() else other.rmdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("long")
    with pytest.raises(ValueError, match="holds no model, so it isn't replaced"):
        convert(source, tmp_path / "mine", overwrite=True)


def test_a_config_leaves_first_and_comes_last_so_that_half_a_model_is_none(tmp_path, monkeypatch):
    moved = []
    move = files._move
    monkeypatch.setattr(files, "_move", lambda source, *rest: moved.append(source.name) or move(source, *rest))
    for _ in range(2):
        moved.clear()
        with model_written(tmp_path / "out") as folder:
            for name in ("config.json", "model.safetensors", "vocab.txt"):
                (folder / name).write_text("{}")
    assert moved == ["config.json", "model.safetensors", "vocab.txt", "model.safetensors", "vocab.txt", "config.json"]


def test_a_folder_without_permission_is_named_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="can't be written to: no permission"):
        check_free(tmp_path / "out", overwrite=False)


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for text in ("first", "second"):
        with model_written(tmp_path / "link") as folder:
            (folder / "config.json").write_text(text)
        assert (tmp_path / "target" / "config.json").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


@pytest.mark.parametrize("failing", ["save_pretrained", "replace"])
def test_a_conversion_that_fails_leaves_the_model_before_it(source, tmp_path, monkeypatch, failing):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    convert(source, tmp_path / "out", measure=False)
    (tmp_path / "out" / "model-00001-of-00002.safetensors").write_text("of a model, too")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    options = {"position_embedding_type": "rope", "overwrite": True, "measure": False}
    with monkeypatch.context() as patch:
        patch.setattr("transformers.PreTrainedModel.save_pretrained" if failing != "replace" else "os.replace", full)
        for out in ("out", "new"):
            with pytest.raises(ValueError, match="failed: No space left on device. Make room, or name another"):
                convert(source, tmp_path / out, **options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert not (tmp_path / "new").exists()
    convert(source, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "model-00001-of-00002.safetensors").exists()


def test_what_a_kill_left_is_not_in_the_way(source, tmp_path):
    for name in (".writing", ".replaced-x"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="isn't empty.*--overwrite"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", measure=False, overwrite=True)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
