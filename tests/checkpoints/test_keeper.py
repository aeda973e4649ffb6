"""Output folders: what may be replaced, who holds one, and moves that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kills import copied_before_each_operation
from training_harness import snapshot

from hf_posenc.checkpoints.keeper import HOLDER, LIST, LOCK, MARK, REPLACED, OutputFolder, is_model_file, output_folder
from hf_posenc.errors import Interrupted, UserError
from hf_posenc.files import WRITING, sha256

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


@pytest.mark.parametrize("name", [".writing/mine.txt", ".replaced-mine/mine.txt"])
def test_a_users_folder_with_a_name_like_the_keepers_own_is_never_deleted(tmp_path, name):
    write(tmp_path, {name: "mine"})
    with pytest.raises(UserError, match=f"holds {name.partition('/')[0]}, and no whole {LIST}"):
        save(tmp_path, NEW)
    assert texts(tmp_path) == {name: "mine"}
    save(tmp_path / "out", OLD)
    write(tmp_path / "out", {name: "mine"})
    with contextlib.suppress(UserError):
        save(tmp_path / "out", NEW, overwrite=True)
    assert (tmp_path / "out" / name).read_text() == "mine"


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_files_move_in_is_too_late(tmp_path, monkeypatch, presses):
    save(tmp_path, OLD)
    replace, moved = os.replace, []

    def pressed(*paths):
        moved.append(paths)
        if len(moved) > 2:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        replace(*paths)

    with output_folder(tmp_path, overwrite=True) as output, output.replaced() as new:
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


def test_an_output_without_a_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="The output folder has no name"):
        save("", NEW)


def test_the_list_names_what_was_written_with_its_sha256(tmp_path):
    save(tmp_path / "out", OLD)
    assert json.loads((tmp_path / "out" / LIST).read_text()) == {
        "files": {name: sha256(tmp_path / "out" / name) for name in OLD}
    }


def test_what_is_listed_and_unchanged_is_replaced_and_all_else_stays_where_it_lies(tmp_path):
    mine = {"notes.txt": "mine", "best.model": "mine", "my_config.json": "mine", "onnx/thesis.txt": "mine"}
    mine |= {"src/train.py": "mine", "data/config.json": "mine", "prompt.jinja": "mine"}
    save(tmp_path, OLD)
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
        *((name, "mine") for name in ("onnx/other.onnx", "openvino/openvino_model.xml", "onnx", "checkpoint-3/a")),
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
    save(tmp_path / "out", OLD)
    write(tmp_path, {"mine.txt": "mine"})
    listed = {"../mine.txt": sha256(tmp_path / "mine.txt"), str(tmp_path / "mine.txt"): sha256(tmp_path / "mine.txt")}
    old = json.loads((tmp_path / "out" / LIST).read_text())["files"]
    (tmp_path / "out" / LIST).write_text(json.dumps({"files": {**old, **listed}}))
    save(tmp_path / "out", NEW, overwrite=True)
    write(
        tmp_path / "out",
        {
            "notes.txt": "mine",
            f"{WRITING}/{MARK}": "",
            f"{WRITING}/{LIST}": json.dumps({"files": {"../notes.txt": "0"}}),
        },
    )
    with output_folder(tmp_path / "out", check=lambda _: None) as output:
        assert output.completed
    assert (tmp_path / "mine.txt").read_text() == (tmp_path / "out" / "notes.txt").read_text() == "mine"


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


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(UserError, match="'.*link' is a link that leads nowhere. Name a folder of your own"):
            save(path, NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    save(tmp_path / "link", OLD)
    save(tmp_path / "link", NEW, overwrite=True)
    assert texts(tmp_path / "target") == NEW
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


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


# ---- the lock -------------------------------------------------------------------------------------------------------


def test_who_comes_second_is_told_who_holds_the_folder_and_changes_nothing(tmp_path):
    with output_folder(tmp_path / "a" / "out") as output:
        (tmp_path / "a" / "out" / "half").touch()
        before = snapshot(tmp_path)
        with pytest.raises(UserError, match=rf"out' is in use: process {os.getpid()} on .+, since 20\d\d-.* writes in"):
            save(tmp_path / "a" / "out", NEW, overwrite=True)
        (output.path / HOLDER).write_text("")
        with pytest.raises(UserError, match="out' is in use: another process writes into it. Wait until"):
            save(tmp_path / "a" / "out", NEW, overwrite=True)
        (output.path / HOLDER).write_bytes(before[f"a/out/{HOLDER}"])
        assert snapshot(tmp_path) == before
        (tmp_path / "a" / "out" / "half").unlink()
    assert not list(tmp_path.iterdir())  # nothing was written: neither the folder nor those above it are left
    save(tmp_path / "a" / "out", NEW)
    assert texts(tmp_path / "a" / "out") == NEW


HOLD = """
import os, sys, time
from torch.utils.data import DataLoader
from hf_posenc.checkpoints.keeper import output_folder
with output_folder(sys.argv[1]):
    workers = iter(DataLoader(range(100), num_workers=2, collate_fn=lambda rows: time.sleep(60)))
    time.sleep(.5)
    print(*(worker.pid for worker in workers._workers), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_kill_frees_the_lock_though_workers_of_a_data_loader_live_on(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(number) for number in holder.stdout.readline().split()]
        with pytest.raises(UserError, match=f"in use: process {holder.pid} on"):
            save(tmp_path / "out", NEW)
    finally:
        holder.kill()
        holder.wait()
    assert len(workers) == 2
    assert all(Path(f"/proc/{worker}").exists() for worker in workers)
    save(tmp_path / "out", NEW)  # and the folder still counts as empty
    assert texts(tmp_path / "out") == NEW


# ---- moves ----------------------------------------------------------------------------------------------------------


def test_whichever_move_fails_the_folder_is_as_it_was(tmp_path, monkeypatch):
    replace = os.replace
    for failing in range(30):
        folder = tmp_path / str(failing)
        save(folder, OLD)
        write(folder, {"notes.txt": "mine", "onnx/notes.txt": "mine"})
        before, calls = snapshot(folder), []

        def fails_once(source, target, failing=failing, calls=calls):
            calls.append(Path(source).name)
            if len(calls) == failing + 1:
                raise KeyboardInterrupt
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fails_once)
            try:
                save(folder, NEW, overwrite=True)
            except KeyboardInterrupt:
                assert snapshot(folder) == before
            else:
                assert texts(folder) == {**NEW, "notes.txt": "mine", "onnx/notes.txt": "mine"}
                break
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    # A folder without config.json is no model: none is ever mixed. The list is written, leaves last, and comes last.
    left = ["config.json", "model.safetensors", "model.onnx", "tokenizer.json", LIST]
    assert [*calls[:2], *sorted(calls[2:5]), calls[5]] == [LIST, *left[:1], *sorted(left[1:4]), LIST]
    assert calls[-2:] == ["config.json", LIST]


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
        out, is_complete = copy / "out", (copy / "out" / WRITING / LIST).is_file()
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


def test_what_a_kill_left_counts_for_nothing_and_goes_with_the_next_success(tmp_path):
    write(tmp_path, {f"{WRITING}/{MARK}": "", f"{WRITING}/config.json": "half", LOCK: "", HOLDER: ""})
    write(tmp_path, {f"{REPLACED}a1b2c3d4/config.json": "old"})
    save(tmp_path, NEW)
    assert texts(tmp_path) == NEW


def test_names_of_files_that_loaders_read_are_known():
    for name in ("generation_config.json", "chat_template.jinja", "sentence_bert_config.json", "spiece.model"):
        assert is_model_file(Path(name))
    assert not is_model_file(Path("training.log"))


def test_the_main_process_alone_looks_and_writes(tmp_path):
    other = OutputFolder(tmp_path, is_main=False)
    with other.replaced() as new:
        other.write_json("run.json", {})
        assert new == tmp_path / WRITING
    assert not list(tmp_path.iterdir())
