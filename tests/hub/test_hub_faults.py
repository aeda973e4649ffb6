"""What goes wrong: one clear message each, nothing half-published is called published, and a second run completes."""

import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import READER, STRANGER, WRITER, Hub
from remote_code_harness import tiny_model
from safetensors.torch import load, save_file
from transformers import AutoModelForSequenceClassification

from hf_posenc.errors import UserError
from hf_posenc.hub import collecting, publish, publishing


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits a second and more before it tries again; and nothing has to be drawn here."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    monkeypatch.setattr(collecting, "_draw", lambda *_: None)


def send(hub: Hub, folder: Path, **options: Any) -> Any:
    return publish(folder, "me/mine", **{"endpoint": hub.url, "token": WRITER, **options})


def nothing_is_published(hub: Hub) -> bool:
    return all(set(files) == {".gitattributes"} for repo in hub.repos.values() for files in repo.commits.values())


COMMIT, PUT = ("POST", "/commit/"), ("PUT", "/put/")
FAULTS: dict[str, tuple[Callable[[Hub], None], str]] = {
    "no such token": (
        lambda hub: hub.fail(
            "POST", "repos/create", 401, times=9, message="Invalid credentials in Authorization header"
        ),
        r"takes no such token \(Invalid credentials.*hf auth login",
    ),
    "no right to write": (
        lambda hub: hub.fail(*COMMIT, 403),
        r"may not write there \(made to fail\).*write permission",
    ),
    "conflict": (lambda hub: hub.fail(*COMMIT, 409), r"was changed meanwhile.*Run it again"),
    "stale parent": (lambda hub: hub.fail(*COMMIT, 412), r"was changed meanwhile.*Run it again"),
    "unavailable": (lambda hub: hub.fail(*COMMIT, 503), r"answered 503 \(made to fail\). Run it again"),
    "too many requests": (lambda hub: hub.fail(*COMMIT, 429, times=9), r"answered 429"),
    "cut at the commit": (lambda hub: hub.fail(*COMMIT), r"connection broke off: .*Run it again"),
    "cut at every upload": (lambda hub: hub.fail(*PUT, times=99), r"connection broke off: .*Run it again"),
    "storage down": (lambda hub: hub.fail(*PUT, 500, times=99), r"answered 500"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_the_commit_publishes_nothing_and_a_second_run_completes(
    hub: Hub, checkpoint: Path, unverified: None, fault: str
) -> None:
    break_it, message = FAULTS[fault]
    break_it(hub)
    with pytest.raises(UserError, match=rf"^me/mine: .*{message}.*Nothing was published\.$") as caught:
        send(hub, checkpoint)
    assert "\n" not in str(caught.value)
    assert WRITER not in str(caught.value)
    assert nothing_is_published(hub)
    sent = len(hub.made("PUT", "/put/"))
    hub.faults.clear()
    assert send(hub, checkpoint).changed
    assert "model.safetensors" in hub.files("me/mine")
    if fault in ("unavailable", "conflict", "stale parent"):
        assert len(hub.made("PUT", "/put/")) == sent, "the second run sent the weights again"


def lost(hub: Hub) -> None:
    """The next commit is made, and its answer lost."""
    hub.fail("POST", "/commit/", change=lambda _: b"")


def test_a_lost_answer_to_the_commit_says_what_is_there_and_a_second_run_completes(
    hub: Hub, checkpoint: Path, unverified: None
) -> None:
    lost(hub)
    with pytest.raises(
        UserError, match=r"^me/mine: .*may be there as commit ([0-9a-f]{40}), which isn't verified"
    ) as caught:
        send(hub, checkpoint)
    repo = hub.repos["me/mine"]
    assert repo.refs["main"] in str(caught.value)
    assert f"{hub.url}/me/mine/commits/main" in str(caught.value)
    assert send(hub, checkpoint).changed
    assert [title for _, title in repo.log.values()].count("Upload a PosEnc model") == 1


def test_a_lost_answer_says_where_to_look_if_the_hub_cannot_be_asked(
    hub: Hub, checkpoint: Path, unverified: None
) -> None:
    hub.fail("POST", "/commit/", change=lambda _: hub.fail("GET", "/api/models/", 500, times=9) or b"")
    with pytest.raises(UserError, match=r"Whether the commit was made isn't known: look at .*/me/mine/commits/main"):
        send(hub, checkpoint)
    hub.faults.clear()
    send(hub, checkpoint)
    (checkpoint / "LICENSE").write_text("Apache-2.0")
    lost(hub)
    with pytest.raises(UserError, match=r"Whether the pull request was opened isn't known: look at .*/discussions"):
        send(hub, checkpoint, create_pr=True)


def test_ctrl_c_after_the_commit_says_what_is_there(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "load_back", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"are there as commit [0-9a-f]{40}, but it isn't verified"):
        send(hub, checkpoint)


def test_an_upload_that_is_cut_once_is_tried_again_by_itself(hub: Hub, checkpoint: Path, unverified: None) -> None:
    hub.fail(*PUT)
    assert send(hub, checkpoint).changed
    assert hub.files("me/mine")["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()


def test_somebody_elses_commit_in_between_is_not_overwritten(
    hub: Hub, checkpoint: Path, unverified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(hub, checkpoint)
    (checkpoint / "LICENSE").write_text("Apache-2.0")
    real = publishing.HfApi.create_commit

    def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        repo = hub.repos["me/mine"]
        repo.add("main", dict(repo.commits[repo.refs["main"]]), "somebody else's")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(publishing.HfApi, "create_commit", late)
    with pytest.raises(UserError, match=r"was changed meanwhile \(A commit has happened since"):
        send(hub, checkpoint)


@pytest.mark.promise("Tokens", "An error never repeats a token")
@pytest.mark.parametrize("token", [STRANGER, READER])
def test_a_wrong_token_is_not_repeated_in_the_message(hub: Hub, checkpoint: Path, token: str) -> None:
    with pytest.raises(UserError, match="Nothing was published") as caught:
        send(hub, checkpoint, token=token)
    assert token not in str(caught.value)
    assert hub.repos == {}


def test_without_a_token_a_server_or_a_name_it_says_so(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"or there is none\. Set HF_TOKEN"):
        send(hub, checkpoint, token=None)
    with pytest.raises(UserError, match=r"connection broke off: Connect.*Run it again"):
        send(hub, checkpoint, endpoint="http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"isn't a name of a repository.*Give owner/name"):
        publish(checkpoint, "me/mi/ne", endpoint=hub.url, token=WRITER)
    with pytest.raises(UserError, match="exclude each other"):
        send(hub, checkpoint, create_pr=True, revision="v1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="Unset HF_HUB_OFFLINE"):
        send(hub, checkpoint)


def test_what_arrives_damaged_is_not_called_published(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    # One bit of the weights, on the way back: it loads, and silently gives other outputs.
    hub.fail("GET", "/get/", times=99, change=lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(
        UserError, match=r"model.safetensors isn't the file that was sent: its sha256 differs"
    ) as caught:
        send(hub, checkpoint)
    assert re.search(r"are there as commit [0-9a-f]{40}, but it isn't verified", str(caught.value))
    text = hub.files("me/mine")["README.md"].decode()
    assert "revision=" not in text
    assert "## Checked" not in text
    hub.faults.clear()
    monkeypatch.setattr(publishing, "load_back", lambda *_: None)
    assert send(hub, checkpoint).changed
    assert "## Checked" in hub.files("me/mine")["README.md"].decode()


def test_a_fault_at_the_card_says_that_the_model_is_there(hub: Hub, checkpoint: Path, unverified: None) -> None:
    send(hub, checkpoint)
    (checkpoint / "LICENSE").write_text("Apache-2.0")
    real = Hub.fail

    class Second:
        calls = 0

    def second_time(data: bytes) -> bytes:
        Second.calls += 1
        real(hub, "POST", "/commit/", 503)
        return data

    hub.fail("POST", "/commit/", change=second_time)
    with pytest.raises(
        UserError, match=r"answered 503.*Commit [0-9a-f]{40} was verified, but its card may not say so yet"
    ):
        send(hub, checkpoint)
    hub.faults.clear()
    assert Second.calls == 1
    done = send(hub, checkpoint)
    assert f'revision="{done.revision}"' in hub.files("me/mine")["README.md"].decode()


# ---- folders that aren't published ---------------------------------------------------------------------------------


def _header(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def _tensor(start: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


CORRUPTED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "huge header": lambda _: _header(b"{}", 1 << 60),
    "bad JSON": lambda _: _header(b'{"a": '),
    "overlapping": lambda _: (
        _header(json.dumps({"a": _tensor(0, 8, [2]), "b": _tensor(4, 12, [2])}).encode()) + b"\0" * 12
    ),
    "a pickle": lambda _: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x08evil.sys.",
}


@pytest.mark.parametrize("damage", CORRUPTED)
def test_damaged_weights_are_refused_before_and_at_loading(hub: Hub, checkpoint: Path, damage: str) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(CORRUPTED[damage](path.read_bytes()))
    with pytest.raises(UserError, match=r"mine': the weights are damaged: .*Save the model anew"):
        send(hub, checkpoint)
    assert hub.requests == []
    with pytest.raises(ValueError, match=r"The weights of .*mine' are damaged .*force_download=True"):
        AutoModelForSequenceClassification.from_pretrained(checkpoint)


def test_weights_of_another_shape_or_without_a_tensor_are_refused(hub: Hub, checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    tensors = load(path.read_bytes())
    name = "classifier.out_proj.weight"
    save_file({**tensors, name: tensors[name][:, :5].contiguous()}, path, {"format": "pt"})
    with pytest.raises(UserError, match="can't be loaded, so it isn't published"):
        send(hub, checkpoint)
    save_file({k: v for k, v in tensors.items() if k != name}, path, {"format": "pt"})
    with pytest.raises(UserError, match=r"don't fit the config.*missing \['classifier.out_proj.weight'\]"):
        send(hub, checkpoint)
    assert hub.requests == []


def _edit(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _outside(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))


def _shard_that_is_a_pickle(folder: Path) -> None:
    weights = load((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "weights.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "weights.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _with(number: float) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        weights = load((folder / "model.safetensors").read_bytes())
        weights["classifier.out_proj.bias"][0] = number
        weights["classifier.out_proj.weight"][0] = 3e38 if number == 3e38 else 0
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json. Give the folder of a checkpoint"),
    "half a config": (lambda f: (f / "config.json").write_text('{"model_type":'), "configuration can't be read"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "configuration can't be read"),
    "another model": (lambda f: _edit(f, model_type="bert"), "is a bert model, not a PosEnc one.*hf upload OWNER/NAME"),
    "only a pickle": (_pickled, "only pytorch_model.bin: pickles run code.*save_pretrained it"),
    "a path outside": (_outside, "names '../../etc/passwd', which is no safetensors file"),
    "a pickle for a shard": (_shard_that_is_a_pickle, "names 'weights.bin', which is no safetensors file"),
    "no code": (lambda f: _edit(f, auto_map={}), "no Auto class loads architectures="),
    "code elsewhere": (lambda f: _edit(f, auto_map={"AutoModel": "a/b--x.Y"}), "auto_map names 'a/b--x.Y', which"),
    "a strange module": (lambda f: _edit(f, auto_map={"AutoModel": "../x.Y"}), "auto_map names '../x.Y', which"),
    "a file of code lost": (lambda f: (f / "position_learned.py").unlink(), "lacks code: .*position_learned.py"),
    "changed code": (
        lambda f: (f / "position_learned.py").open("a").write("# mine\n"),
        "publish with trust_remote_code",
    ),
    "no such class": (lambda f: _edit(f, architectures=["Other"]), "no Auto class loads architectures='Other'"),
    "a wrong type": (lambda f: _edit(f, hidden_size="big"), "configuration can't be read: .*hidden_size"),
    "infinity": (_with(float("inf")), "classifier.out_proj.bias holds NaN or infinity, so it isn't published"),
    "NaN": (_with(float("nan")), "classifier.out_proj.bias holds NaN or infinity, so it isn't published"),
    "weights that overflow": (_with(3e38), "gives NaN or infinity.*so it isn't published"),
    "a broken card": (lambda f: (f / "README.md").write_text("---\na: [\n---\nx"), "has broken metadata"),
    "a link out of the folder": (lambda f: (f / "LICENSE").symlink_to("/etc/hostname"), "LICENSE' is a link out of"),
    "a map of numbers": (
        lambda f: _edit(f, auto_map={"AutoModel": 5}),
        "auto_map names 5, which isn't the model's code",
    ),
    "a list for a map": (lambda f: _edit(f, auto_map=["a"]), "its configuration can't be read: "),
    "no map": (lambda f: _edit(f, auto_map=None), "no Auto class loads architectures="),
    "one class": (
        lambda f: _edit(f, architectures="PosEncModel"),
        "no Auto class loads architectures='P'|Field 'architectures' with value 'PosEncModel'",  # of newer, older hubs
    ),
    "a tokenizer cut off": (
        lambda f: (f / "tokenizer.json").write_text('{"a"'),
        "tokenizer can't be loaded, so nothing",
    ),
    "a tokenizer with other ids": (
        lambda f: (f / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "BertTokenizer", "do_lower_case": false, "pad_token": "[PAD]"}'
        ),
        "nothing is published: The tokenizer gives other ids than its tokenizer.json",
    ),
    "a tokenizer with code": (
        lambda f: (f / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tok.Tok", null]}}'),
        "tokenizer has code of its own",
    ),
    "a tokenizer with code elsewhere": (
        lambda f: (f / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["a/b--tok.Tok", null]}}'),
        "tokenizer has code of its own",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_nobody_could_load_or_should_read_is_refused(hub: Hub, checkpoint: Path, case: str) -> None:
    spoil, message = REFUSED[case]
    spoil(checkpoint)
    with pytest.raises(UserError, match=message) as caught:
        send(hub, checkpoint)
    assert WRITER not in str(caught.value)
    assert not hub.repos or nothing_is_published(hub)


@pytest.mark.parametrize(
    "results",
    ['{"metrics": [1]}', '{"metrics": null, "summary": 3}', '{"metrics": {"eval_a": "x", "eval_b": 1}}', "[]"],
)
def test_results_that_say_nothing_are_not_quoted(hub: Hub, checkpoint: Path, unverified: None, results: str) -> None:
    (checkpoint / "results.json").write_text(results)
    (checkpoint / "README.md").unlink(missing_ok=True)
    (checkpoint / "a.png").mkdir()
    send(hub, checkpoint)
    card = hub.files("me/mine")["README.md"].decode()
    assert ("| eval_b | 1.0000 |" in card) == ("eval_b" in results)
    assert "eval_a" not in card


@pytest.mark.promise("Trust", "An index of shards can't name files outside its folder")
@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/etc/passwd", 5, None])
def test_an_index_that_leads_elsewhere_is_not_followed(tmp_path: Path, shard: Any) -> None:
    model = tiny_model("rope", "PosEncForSequenceClassification")
    model.save_pretrained(tmp_path / "other")
    model.save_pretrained(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), shard)}
    (tmp_path / "mine" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="isn't a file beside it|index.json' is damaged"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "mine")


@pytest.mark.promise("Trust", "A pickle is never loaded unless you ask for it")
def test_a_pickle_is_not_loaded_unless_asked_for(tmp_path: Path) -> None:
    model = tiny_model("rope", "PosEncForSequenceClassification")
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="model.safetensors"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, use_safetensors=False)
    assert torch.equal(loaded.classifier.out_proj.weight, model.classifier.out_proj.weight)


@pytest.mark.promise("Trust", "Changed code never runs without trust")
def test_changed_code_is_never_run_without_trust(hub: Hub, checkpoint: Path) -> None:
    with (checkpoint / "modeling_posenc.py").open("a") as file:
        file.write("import sys\nsys.modules['was_run'] = sys\n")
    with pytest.raises(UserError, match="publish with trust_remote_code"):
        send(hub, checkpoint)
    assert "was_run" not in sys.modules
