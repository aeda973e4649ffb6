"""Output folders: what may be replaced, who holds one, and moves that are killed."""

import contextlib
import hashlib
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_posenc import Interrupted, UserError
from hf_posenc.checkpoints.keeper import output_folder
from tests.support.kills import copied_before_each_operation
from tests.support.training import snapshot

LIST, LOCK, WAITING = "_files.json", ".posenc.lock", ".posenc.writing"
OLD = {"config.json": "old", "model.safetensors": "old", "onnx/model.onnx": "old", "tokenizer.json": "same"}
NEW = {"config.json": "new", "model.safetensors": "new", "1_Pooling/config.json": "new", "tokenizer.json": "same"}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def save(folder: Path, files: dict[str, str], **options) -> None:
    with output_folder(folder, **options) as output, output.replaced() as new:
        write(new, files)


def texts(folder: Path) -> dict[str, str]:
    """All files but the list, which must be of those that are ours."""
    return {name: content.decode() for name, content in snapshot(folder).items() if name != LIST}


# ---- what may be replaced -------------------------------------------------------------------------------------------


def test_what_is_listed_and_unchanged_is_replaced_and_all_else_stays_where_it_lies(tmp_path):
    names = ("notes.txt", "best.model", "my_config.json", "onnx/thesis.txt", "src/train.py", "data/config.json")
    mine = dict.fromkeys((*names, "prompt.jinja", ".writing/mine.txt"), "mine")
    save(tmp_path, OLD)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in OLD.items()}
    assert json.loads((tmp_path / LIST).read_text()) == {"files": digests}
    write(tmp_path, mine)
    save(tmp_path, NEW, overwrite=True)
    assert texts(tmp_path) == {**NEW, **mine}
    (tmp_path / "onnx" / "thesis.txt").unlink()
    save(tmp_path, {"config.json": "third"}, overwrite=True)
    assert not (tmp_path / "1_Pooling").exists()  # no empty folder is left of ours


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "mine") for name in ("handler.py", "README.md", "results.json", "pytorch_model.bin", "vocab.txt")),
        *((name, "mine") for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json")),
        *((name, "mine") for name in ("adapter_config.json", "modules.json", "1_Pooling/config.json")),
        *((name, "mine") for name in ("generation_config.json", "chat_template.jinja", "sentence_bert_config.json")),
        *(
            (name, "mine")
            for name in ("spiece.model", "onnx/other.onnx", "openvino/openvino_model.xml", "onnx", "checkpoint-3/a")
        ),
        ("config.json", "edited"),
        ("tokenizer.json", "link"),
    ],
)
def test_a_file_that_would_be_replaced_or_read_and_is_not_ours_is_named(tmp_path, name, text):
    """And it stays, whatever is given: no message recommends what is then refused."""
    save(tmp_path / "out", {key: value for key, value in OLD.items() if not key.startswith(f"{name}/")})
    path = tmp_path / "out" / name
    if text == "link":
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    else:
        write(tmp_path / "out", {name: text})
    before = snapshot(tmp_path)
    for overwrite in (False, True):
        named = name.partition("/")[0] if name.startswith("checkpoint") else name
        with pytest.raises(UserError, match=f"out' holds {named}, which hf-posenc didn't write, or which was edited"):
            save(tmp_path / "out", NEW, overwrite=overwrite)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("there", [{"config.json": '{"app": "mine"}'}, {"notes.txt": "mine"}, OLD, {LIST: "{"}])
def test_without_a_list_nothing_is_replaced_whatever_it_looks_like(tmp_path, there):
    write(tmp_path, there)
    before = snapshot(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(
            UserError, match="no whole _files.json that says that hf-posenc wrote it. Empty it, or name a new"
        ):
            save(tmp_path, {"new.txt": "new"}, overwrite=overwrite)
    assert snapshot(tmp_path) == before


def test_a_list_that_names_files_outside_the_folder_lets_none_be_moved(tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    save(out, OLD)
    write(tmp_path, {"mine.txt": "mine", "out/notes.txt": "mine"})
    digest = hashlib.sha256(b"mine").hexdigest()
    old = json.loads((out / LIST).read_text())["files"]
    (out / LIST).write_text(json.dumps({"files": {**old, "../mine.txt": digest, str(mine): digest}}))
    save(out, NEW, overwrite=True)
    write(out, {f"{WAITING}/{LIST}": json.dumps({"files": {"../notes.txt": "0"}})})
    with output_folder(out, check=lambda _: None) as output:
        assert not output.completed
    assert mine.read_text() == (out / "notes.txt").read_text() == "mine"
    assert texts(out).items() >= NEW.items()


def test_a_file_that_came_while_the_new_ones_were_made_is_named_and_stays_and_they_wait(tmp_path):
    def save_meanwhile() -> None:
        with output_folder(tmp_path) as output, output.replaced() as new:
            write(new, NEW)
            write(tmp_path, {"config.json": "mine"})

    with pytest.raises(UserError, match=r"has got config.json, which hf-posenc didn't write"):
        save_meanwhile()
    assert (tmp_path / "config.json").read_text() == "mine"
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="have all been moved in now"):
        save_meanwhile()
    assert texts(tmp_path) == NEW


@pytest.mark.parametrize("target", ["nowhere", "link", "target"])
def test_a_link_stays_one_and_its_target_is_written_or_it_is_refused(tmp_path, target):
    (tmp_path / "target").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    if target == "target":
        save(link, OLD)
        save(link, NEW, overwrite=True)
        assert texts(tmp_path / "target") == NEW
    for path in (link, link / "below") if target != "target" else ():
        with pytest.raises(UserError, match="'.*link' is a link that leads nowhere. Name a folder of your own"):
            save(path, NEW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_an_output_without_a_name_or_without_permission_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="The output folder has no name"):
        save("", NEW)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match="can't be written to: no permission"):
        save(tmp_path / "out", NEW)


def test_a_further_file_is_put_on_the_list_and_a_users_is_refused(tmp_path):
    save(tmp_path, OLD)
    for text in ("first", "second"):
        with output_folder(tmp_path, check=lambda _: None) as output:
            output.add("README.hub.md", text)
        assert texts(tmp_path) == {**OLD, "README.hub.md": text}
    write(tmp_path, {"README.hub.md": "mine"})
    with output_folder(tmp_path, check=lambda _: None) as output, pytest.raises(UserError, match="a file of yours, or"):
        output.add("README.hub.md", "third")
    assert texts(tmp_path) == {**OLD, "README.hub.md": "mine"}


def test_who_comes_second_is_refused_and_changes_nothing(tmp_path):
    folder = tmp_path / "a" / "out"
    with output_folder(folder):
        (folder / "half").touch()
        before = snapshot(tmp_path)
        with pytest.raises(UserError, match="out' is in use: another process writes into it. Wait until"):
            save(folder, NEW, overwrite=True)
        assert snapshot(tmp_path) == before
        (folder / "half").unlink()
    assert not list(tmp_path.iterdir())  # nothing was written: neither the folder nor those above it are left
    save(folder, NEW)
    assert texts(folder) == NEW


def test_the_main_process_alone_looks_and_writes(tmp_path):
    other: Any = SimpleNamespace(is_main_process=False, num_processes=1)
    with output_folder(tmp_path / "out", process=other) as output, output.replaced() as new:
        output.write_json("run.json", {})
        assert new == tmp_path / "out" / WAITING
    assert not list(tmp_path.iterdir())


# ---- moves ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_files_move_in_is_too_late(tmp_path, monkeypatch):
    save(tmp_path, OLD)
    replace, moved = os.replace, []

    def pressed(*paths):
        moved.append(paths)
        signal.raise_signal(signal.SIGINT)
        replace(*paths)

    with contextlib.suppress(KeyboardInterrupt), output_folder(tmp_path, overwrite=True) as out, out.replaced() as new:
        write(new, NEW)
        monkeypatch.setattr("os.replace", pressed)
    assert len(moved) > 4
    assert texts(tmp_path) == NEW


def test_ctrl_c_after_the_move_says_that_the_files_are_there(tmp_path):
    def interrupted() -> None:
        with output_folder(tmp_path) as output:
            with output.replaced() as new:
                write(new, NEW)
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="the new files are complete, and in"):
        interrupted()
    assert texts(tmp_path) == NEW


def test_what_is_in_the_way_is_seen_before_anything_leaves(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "extra").write_text("a user's")
    before = snapshot(tmp_path)
    with (
        pytest.raises(
            UserError, match="In '.*extra' no file can be written or removed, so what was there is as it was"
        ),
        output_folder(tmp_path, overwrite=True) as output,
        output.replaced() as new,
    ):
        write(new, {**NEW, "extra/code.py": "x"})
    assert before.items() <= snapshot(tmp_path).items()
    (tmp_path / "extra").unlink()
    with output_folder(tmp_path, overwrite=True):
        assert texts(tmp_path).items() >= {**NEW, "extra/code.py": "x"}.items()


def test_a_move_that_fails_is_finished_by_the_next_look(tmp_path, monkeypatch):
    save(tmp_path, OLD)
    replace = os.replace

    def fails(source, target):
        if Path(source).name == "config.json":
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fails)
        with pytest.raises(UserError, match=f"Permission denied. .* and wait in {WAITING}"):
            save(tmp_path, NEW, overwrite=True)
    with pytest.raises(UserError, match="have all been moved in now"):
        save(tmp_path, NEW)
    assert texts(tmp_path) == NEW


@pytest.mark.parametrize("old", [{}, OLD], ids=["new", "replaced"])
def test_wherever_it_is_killed_the_same_command_goes_on_and_what_was_complete_is_kept(tmp_path, old):
    folder, mine = tmp_path / "work" / "out", {"notes.txt": "mine"} if old else {}
    if old:
        save(folder, old)
        write(folder, mine)
    (tmp_path / "work").mkdir(exist_ok=True)
    with copied_before_each_operation(tmp_path / "work", tmp_path / "copies") as copies:
        save(folder, NEW, overwrite=bool(old))
    completed = []
    for copy in copies:
        out, is_complete = copy / "out", (copy / "out" / WAITING / LIST).is_file()
        if (out / "config.json").is_file():  # a folder without it is no model: none is ever mixed
            kinds = {(out / name).read_text() for name in ("config.json", "model.safetensors")}
            assert len(kinds) == 1
        with output_folder(out, check=lambda _: None) as output:
            completed.append(output.completed)
            assert output.completed == is_complete
        if is_complete:
            assert texts(out) == {**NEW, **mine}
        is_there = not old and (out / LIST).is_file()
        with (
            pytest.raises(UserError, match="already holds 1_Pooling, _files.json")
            if is_there
            else contextlib.nullcontext()
        ):
            save(out, NEW, overwrite=bool(old))
        assert texts(out) == {**NEW, **mine}
    assert sum(completed) >= len(NEW) + len(old)
    assert completed.count(False) > len(NEW)


@pytest.mark.parametrize("text", ["", "{", '{"files": {}}', json.dumps({"files": {"config.json": "another digest"}})])
def test_new_files_that_a_crash_damaged_do_not_replace_what_is_whole(tmp_path, text):
    save(tmp_path, OLD)
    write(tmp_path, {f"{WAITING}/config.json": "half", f"{WAITING}/{LIST}": text})
    with output_folder(tmp_path, overwrite=True) as output:
        assert not output.completed
        assert texts(tmp_path).items() >= OLD.items()
    save(tmp_path, NEW, overwrite=True)
    assert texts(tmp_path) == NEW


def test_what_a_kill_left_counts_for_nothing_and_goes_with_the_next_success(tmp_path):
    write(tmp_path, {f"{WAITING}/config.json": "half", LOCK: ""})
    save(tmp_path, NEW)
    assert texts(tmp_path) == NEW
