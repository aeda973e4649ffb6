"""What a conversion may replace, and what it must leave."""

import os

import pytest
from conversion_harness import tiny_source, tiny_tokenizer

from hf_posenc.conversion import convert
from hf_posenc.conversion.output import check_free, whole_folder


@pytest.fixture
def source(tmp_path):
    tiny_source(tmp_path / "runs" / "checkpoint-100")
    tiny_tokenizer(tmp_path / "runs" / "checkpoint-100")
    return tmp_path / "runs" / "checkpoint-100"


def test_a_folder_that_holds_the_source_is_never_replaced(source):
    (source.parent / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="runs', is SOURCE's folder, or holds it"):
        convert(source, source.parent, overwrite=True)
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


def test_places_that_cannot_be_are_named_first(tmp_path, monkeypatch):
    (tmp_path / "file.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"file.txt' is a file, so there can be no '.*out'"):
        check_free(tmp_path / "file.txt" / "out", overwrite=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", tmp_path):
        with pytest.raises(ValueError, match="holds the folder that you are in"):
            check_free(out, overwrite=True)


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for text in ("first", "second"):
        with whole_folder(tmp_path / "link") as folder:
            (folder / "config.json").write_text(text)
        assert (tmp_path / "target" / "config.json").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_kill_between_the_last_two_steps_loses_nothing(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with whole_folder(out) as folder:
        (folder / "config.json").write_text("old")
    replace, calls = os.replace, []

    def killed(before, after):
        calls.append(before)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(before, after)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt), whole_folder(out) as folder:
            (folder / "config.json").write_text("new")
    assert not out.exists()
    with pytest.raises(RuntimeError), whole_folder(out):  # fails, and yet the old one is back
        raise RuntimeError
    assert (out / "config.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
