"""What goes wrong: one clear message each, nothing half-published is called published, and a second run completes."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_posenc import UserError, publish
from hf_posenc.hub import publishing
from tests.support.conversion import edit, edit_weights
from tests.support.hub_server import READER, STRANGER, WRITER, Hub


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits a second and more before it tries again."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)


def send(folder: Path, **options: Any) -> Any:
    return publish(folder, "me/mine", **{"token": WRITER, **options})


def nothing_is_published(hub: Hub) -> bool:
    return all(set(files) == {".gitattributes"} for repo in hub.repos.values() for files in repo.commits.values())


UNKNOWN = r"Whether it arrived isn't known: look at .*/me/mine/commits/main before you try again\.$"
FAULTS: dict[str, tuple[Callable[[Hub], None], str]] = {
    "the server fails": (lambda hub: hub.fail("POST", "/commit/", 503), rf"^me/mine: HfHubHTTPError: .*503.*{UNKNOWN}"),
    "every upload is cut": (lambda hub: hub.fail("PUT", "/put/", times=99), rf"^me/mine: .*{UNKNOWN}"),
    "somebody else's commit": (lambda hub: hub.fail("POST", "/commit/", 412, message="has changed"), UNKNOWN),
    "no repository is made": (
        lambda hub: hub.fail("POST", "/repos/create", 503, times=99),
        r"Nothing was published\.$",
    ),
    "the answer is lost": (lambda hub: hub.fail("POST", "/commit/", change=lambda _: b""), UNKNOWN),
    "the card fails": (
        lambda hub: hub.fail("POST", "/commit/", change=lambda data: hub.fail("POST", "/commit/", 503) or data),
        r"Commit [0-9a-f]{40} was verified, but its card may not say so yet\.$",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_interrupted_publish_says_what_is_there_and_a_second_run_completes(hub, checkpoint, unverified, fault):
    break_it, message = FAULTS[fault]
    break_it(hub)
    with pytest.raises(UserError, match=message) as caught:
        send(checkpoint)
    assert "\n" not in str(caught.value)
    assert WRITER not in str(caught.value)
    assert "Nothing" not in str(caught.value) or nothing_is_published(hub)
    hub.faults.clear()
    done = send(checkpoint)
    assert hub.files("me/mine")["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert f'revision="{done.revision}"' in hub.files("me/mine")["README.md"].decode()


def test_a_pull_request_whose_answer_is_lost_may_be_there(hub, checkpoint, unverified):
    send(checkpoint)
    with pytest.raises(UserError, match=r"holds these files already.*Nothing was published"):
        send(checkpoint, create_pr=True)
    (checkpoint / "LICENSE").write_text("Apache-2.0")
    hub.fail("POST", "/commit/", change=lambda _: b"")
    with pytest.raises(UserError, match=r"Whether it arrived isn't known: look at .*/me/mine/discussions"):
        send(checkpoint, create_pr=True)


def test_ctrl_c_says_what_is_there(hub, checkpoint, monkeypatch):
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(publishing.HfApi, "upload_folder", interrupted)
        with pytest.raises(KeyboardInterrupt, match="^me/mine: Whether it arrived isn't known"):
            send(checkpoint)
    monkeypatch.setattr(publishing, "verify_upload", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"are there as commit [0-9a-f]{40}, but it isn't verified"):
        send(checkpoint)


@pytest.mark.parametrize("token", [STRANGER, READER])
def test_a_wrong_token_is_not_repeated_in_the_message(hub, checkpoint, token):
    hub.fail("POST", "/repos/create", 401, message=f"{token} isn't known")
    with pytest.raises(UserError, match=r"401.*hf_\.\.\. isn't known.*Nothing was published") as caught:
        send(checkpoint, token=token)
    assert token not in str(caught.value)
    with pytest.raises(UserError, match=r"40[13].*Nothing was published"):
        send(checkpoint, token=token)
    assert hub.repos == {}


def test_without_a_token_or_with_options_that_contradict_nothing_is_published(hub, checkpoint):
    with pytest.raises(UserError, match=r"401.*Nothing was published"):
        send(checkpoint, token=None)
    with pytest.raises(UserError, match="exclude each other"):
        send(checkpoint, create_pr=True, revision="v1")
    for private in (True, False):
        with pytest.raises(UserError, match=f"private={private} is for a repository that is made here, and create_pr"):
            send(checkpoint, create_pr=True, private=private)
    with pytest.raises(UserError, match="repo_id='a/b/c' is no name of a repository. Give owner/name"):
        publish(checkpoint, "a/b/c", dry_run=True)


def test_what_arrives_damaged_is_not_called_published(hub, checkpoint):
    # One bit of the weights, on the way back: it loads, and silently gives other outputs.
    hub.fail("GET", "/get/", times=99, change=lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    message = r"model.safetensors isn't the file that was sent: .* as commit [0-9a-f]{40}, but it isn't verified"
    with pytest.raises(UserError, match=message):
        send(checkpoint)
    assert "README.md" not in hub.files("me/mine")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("output", lambda output: output[:, :2], "with the same files and input it gives another output"),
        ("output", lambda output: output.bfloat16(), "with the same files and input it gives another output"),
        ("output", lambda output: output + 0.01, "with the same files and input it gives another output"),
        ("token_ids", lambda rows: [row[::-1] for row in rows], "the tokenizer reads '.*' differently"),
    ],
)
def test_every_difference_from_what_was_sent_is_named_and_the_loading_process_knows_no_secret(
    hub, checkpoint, monkeypatch, name, change, message
):
    def loaded(*_: Any, texts: list[str], inputs: Any, environment: dict[str, str], options: Any) -> SimpleNamespace:
        """What a process that loads the commit would answer, in this one; and one answer is another."""
        assert "secret" not in environment.values()
        assert not any(name.startswith("PYTHON") for name in environment)
        model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
        ids = AutoTokenizer.from_pretrained(checkpoint)(texts)["input_ids"]
        answer = SimpleNamespace(output=model(**inputs).logits.detach(), token_ids=ids)
        setattr(answer, name, change(getattr(answer, name)))
        return answer

    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PYTHONPATH", "PYTHONSTARTUP", "MY_PASSWORD"):
        monkeypatch.setenv(variable, "secret")
    monkeypatch.setattr(publishing, "load_isolated", loaded)
    with pytest.raises(UserError, match=f"loading it back failed: {message}"):
        send(checkpoint)


def test_a_loading_process_that_takes_too_long_is_given_up(hub, checkpoint, monkeypatch):
    monkeypatch.setattr(publishing, "load_isolated", functools.partial(publishing.load_isolated, timeout=0.01))
    with pytest.raises(UserError, match=r"took more than 0\.01 s"):
        send(checkpoint)


# ---- folders that aren't published ---------------------------------------------------------------------------------


def _overflowing(weights: dict[str, torch.Tensor]) -> None:
    weights["classifier.out_proj.bias"][0] = 3e38
    weights["classifier.out_proj.weight"][0] = 3e38


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda f: f.rename(f.with_name("moved")), "mine' is no folder here. Give that of a checkpoint"),
    "another model": (lambda f: edit(f, model_type="bert"), "is a bert model, not a PosEnc one.*hf upload OWNER/NAME"),
    "no code": (lambda f: edit(f, auto_map={}), "config.json has no auto_map, by which"),
    "code elsewhere": (lambda f: edit(f, auto_map={"AutoModel": "a/b--x.Y"}), "auto_map names 'a/b--x.Y', which"),
    "a file of code lost": (lambda f: (f / "position_learned.py").unlink(), "FileNotFoundError: .*position_learned.py"),
    "changed code": (
        lambda f: (f / "modeling_posenc.py").open("a").write("import sys\nsys.modules['was_run'] = sys\n"),
        "publish with trust_remote_code",
    ),
    "no such class": (lambda f: edit(f, architectures=["Other"]), "holds Other, which has no known head"),
    "weights that overflow": (lambda f: edit_weights(f, _overflowing), "Its output holds NaN or infinity"),
    "a broken card": (lambda f: (f / "README.md").write_text("---\na: [\n---\nx"), "has broken metadata"),
    "a link out of the folder": (lambda f: (f / "LICENSE").symlink_to("/etc/hostname"), "LICENSE' is a link out of"),
    "a tokenizer with code": (
        lambda f: (f / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tok.Tok", null]}}'),
        "tokenizer has code of its own",
    ),
}
"""What `publish` alone looks at; damaged checkpoints are in checkpoints/test_door.py."""


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_nobody_could_load_or_should_read_is_refused(hub, checkpoint, case):
    spoil, message = REFUSED[case]
    spoil(checkpoint)
    with pytest.raises(UserError, match=message) as caught:
        send(checkpoint)
    assert WRITER not in str(caught.value)
    assert "was_run" not in sys.modules
    assert not hub.repos or nothing_is_published(hub)
