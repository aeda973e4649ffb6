"""`publish` and `hf-posenc publish`: what is sent, what isn't, and that it was loaded back."""

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import PhobertTokenizer

import hf_posenc
from hf_posenc import UserError, publish, register_scheme
from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.checkpoints.trainer_checkpoints import strange_files
from hf_posenc.hub import publishing
from tests.support.common import schemes_restored
from tests.support.hub_server import READER, WRITER, Hub, Repo
from tests.support.remote_code import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_scheme/recency.py"
HERE = "path/to/this/folder"
"""How a card names its own folder."""


@pytest.mark.slow
def test_a_checkpoint_is_published_and_loaded_back(hub, checkpoint, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    loading: list[dict[str, Any]] = []
    run = subprocess.run

    def kept(*words: Any, **options: Any) -> Any:
        loading.append(options["env"])
        return run(*words, **options)

    monkeypatch.setattr(subprocess, "run", kept)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine alone")
    (checkpoint / "results.json").write_text("{}")
    done = publish(checkpoint, "me/mine", token=WRITER)
    assert done.left_out == ("notes.txt", "training_args.bin")
    (environment,) = loading
    assert not {WRITER, "mine alone"} & set(environment.values())
    for home in ("HOME", "USERPROFILE", "HF_HOME"):  # where a token's file would be
        assert Path(environment[home]).is_relative_to(Path(environment["HF_HUB_CACHE"]).parent)
    files = hub.files("me/mine")
    assert set(files) == {*done.files, ".gitattributes"}
    assert {"README.md", "SHA256SUMS", "results.json", "tokenizer.json"} <= set(files)
    sent = hub.files("me/mine", done.revision)
    assert sent["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    for line in sent["SHA256SUMS"].decode().splitlines():
        sha256, name = line.split("  ")
        assert sha256 == hashlib.sha256(sent[name]).hexdigest(), name

    text = files["README.md"].decode()
    card = ModelCard(text)
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.tags == ["posenc", "learned", "custom_code"]
    assert card.data.verified_commit == done.revision
    pinned = f'("me/mine", revision="{done.revision}", trust_remote_code=True)'
    # The tokenizer, too: it reads the config, whose code transformers would else ask about.
    assert text.count(pinned) == 2
    assert f"loaded commit `{done.revision}`" in text
    assert "at most 64 tokens: its positions are a table" in text
    assert "It needs transformers 5.17 or later; for optimum" in text


def test_the_modules_of_a_sentence_transformer_are_published(hub, checkpoint, unverified):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    types = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in modules]
    written = {"modules.json": json.dumps(types), "sentence_bert_config.json": '{"max_seq_length": 9}'}
    written |= {"1_Pooling/config.json": '{"word_embedding_dimension": 32}'}
    (checkpoint / "1_Pooling").mkdir()
    for name, text in {**written, "1_Pooling/mine.txt": ""}.items():
        (checkpoint / name).write_text(text)
    done = publish(checkpoint, "me/mine", token=WRITER)
    files = hub.files("me/mine")
    assert {name: json.loads(files[name]) for name in written} == {n: json.loads(text) for n, text in written.items()}
    assert all(name in files["SHA256SUMS"].decode() for name in written)
    assert done.left_out == ("1_Pooling/mine.txt", "notes.txt", "training_args.bin")


def test_each_file_of_a_tokenizer_is_known_published_and_fetched(hub, tmp_path, unverified, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "words").write_text("".join(f"{word} 1\n" for word in "the cat t@@ h@@ e c@@ a@@ t".split()))
    (tmp_path / "codes").write_text("t h 3\nth e</w> 3\n\n")
    folder = tmp_path / "checkpoint-1"
    PhobertTokenizer(str(tmp_path / "words"), str(tmp_path / "codes")).save_pretrained(folder)
    assert strange_files(folder) == []  # a run deletes it at its end
    tiny_model("rope", "PosEncModel").save_pretrained(folder)
    publish(folder, "me/mine", token=WRITER)
    fetched, kept = (open_tokenizer(name) for name in ("me/mine", str(folder)))
    assert fetched.tokenize("the cat hat") == kept.tokenize("the cat hat")


def test_a_sentence_transformer_whose_modules_cannot_be_kept_is_refused(hub, checkpoint):
    (checkpoint / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_W", "type": "my_code.Whiten"}]'
    )
    with pytest.raises(UserError, match=r"my_code.Whiten.*it would answer otherwise.*Nothing was published"):
        publish(checkpoint, "me/mine", token=WRITER)


def test_a_repository_that_exists_is_not_taken_for_private(hub, checkpoint, unverified):
    publish(checkpoint, "me/open", token=WRITER)
    before = dict(hub.repos["me/open"].commits)
    with pytest.raises(UserError, match=r"private=True is for a repository that is made here, and me/open is public"):
        publish(checkpoint, "me/open", private=True, token=WRITER)
    assert hub.repos["me/open"].commits == before
    publish(checkpoint, "me/closed", private=True, token=WRITER)
    assert hub.repos["me/closed"].private
    publish(checkpoint, "me/closed", private=True, token=WRITER)


def test_no_other_file_of_the_folder_is_sent(hub, checkpoint, unverified):
    before = set(publish(checkpoint, "me/mine", token=WRITER).files)
    for name in KEPT_HERE:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("hf_secret")
    (checkpoint / "confusion_matrix.png").write_bytes(b"\x89PNG")
    (checkpoint / "conversion.json").write_text('{"trained_length": 32}')  # which a conversion of it reads
    done = publish(checkpoint, "me/mine", token=WRITER)
    assert set(done.files) - before == {"confusion_matrix.png", "conversion.json"}
    assert set(hub.files("me/mine")) == {*done.files, ".gitattributes"}
    assert set(done.left_out) == {"notes.txt", *(name.partition("/")[0] for name in KEPT_HERE)}


def test_a_scheme_of_its_authors_own_is_published_by_those_who_trust_it(hub, tmp_path, run):
    with schemes_restored():
        register_scheme(EXAMPLE, "learned+recency")
        tiny_model("learned+recency", "PosEncForMaskedLM").save_pretrained(tmp_path / "own")
    words = ("publish", tmp_path / "own", "--repo-id", "me/own", "--dry-run")
    code, _, err = run(*words, columns=300)
    assert code == 2
    assert (
        "a scheme of its author's own, or another version's. If you trust it, publish with --trust-remote-code" in err
    )
    code, out, err = run(*words, "--trust-remote-code", columns=300)
    assert code == 0, err
    assert "recency.py" in out


@pytest.mark.slow  # two processes; the function's own tests are quick
def test_the_command_publishes_a_users_own_scheme(hub, tmp_path, monkeypatch, run):
    folder = tmp_path / "own"
    with schemes_restored():
        register_scheme(EXAMPLE, "learned+recency")
        tiny_model("learned+recency", "PosEncForMaskedLM").save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    words = ("publish", folder, "--repo-id", "me/own", "--private", "--revision", "v1", "--trust-remote-code")
    code, out, err = run(*words, columns=300)
    assert code == 0, err
    assert "Published and verified: " in out
    assert WRITER not in out + err
    repo = hub.repos["me/own"]
    assert repo.private
    assert set(repo.commits[repo.refs["main"]]) == {".gitattributes"}
    text = hub.files("me/own", "v1")["README.md"].decode()
    assert "recency.py" in hub.files("me/own", "v1")
    assert "with the scheme `learned+recency`. Not all are those of the hf_posenc" in text
    assert ModelCard(text).data.pipeline_tag == "fill-mask"


def test_saving_with_a_push_sends_what_push_to_hub_sends(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # it is another test's Hub's
    with schemes_restored("recency"):
        register_scheme(EXAMPLE, "recency")
        model = tiny_model("recency", "PosEncForMaskedLM")
        model.push_to_hub("me/pushed")
        model.save_pretrained(tmp_path / "saved")  # so its code lies there already, and is sent all the same
        model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="me/saved")
    saved, pushed = (hub.files(repo) for repo in ("me/saved", "me/pushed"))
    assert {"scheme_table.py", "modeling_posenc.py", "recency.py", "model.safetensors"} <= saved.keys()
    for name in (saved.keys() | pushed.keys()) - {"README.md", ".gitattributes"}:
        assert saved[name] == pushed[name], name


def test_the_code_of_the_page_of_cards_loads_what_it_publishes(hub, unverified, checkpoint, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "model_cards/README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    checkpoint.rename(tmp_path / "runs" / "mine")
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    exec(code, made := {})
    assert type(made["classifier"]).__name__ == "PosEncForSequenceClassification"
    assert made["commit"] in hub.repos["me/mine"].commits
    assert f"`{made['commit']}`" in hub.files("me/mine")["README.md"].decode()
    assert any((tmp_path / "cache").rglob("model.safetensors"))


def test_another_licence_takes_the_place_of_the_cards_with_its_name_and_link(hub, checkpoint, unverified):
    metadata = "license: other\nlicense_name: open\nlicense_link: https://a.b"
    (checkpoint / "README.md").write_text(f"---\n{metadata}\n---\n# a\n")
    other = ("other", "open", "https://a.b")
    for given, fields in ((None, other), ("other", other), ("mit", ("mit", None, None))):
        publish(checkpoint, "me/mine", token=WRITER, license=given)
        data = ModelCard(hub.files("me/mine")["README.md"].decode()).data
        assert (data.license, data.license_name, data.license_link) == fields


def test_the_folders_own_card_is_kept_and_completed(hub, checkpoint, unverified):
    body = 'My words.\n\n## mine\n\n`pipeline("text-classification", "mine")`'
    loading = 'pipeline("text-classification", "{}", trust_remote_code=True)'
    card = f"---\nlicense: mit\nlanguage: en\n---\n# mine\n\n{body}\n{loading.format('path/to/this/folder')}\n"
    (checkpoint / "README.md").write_text(card)
    done = publish(checkpoint, "me/new", token=WRITER, language="de", dataset=["a/b", "c/d"])
    first = hub.files("me/new")["README.md"].decode()
    data = ModelCard(first).data
    assert (data.license, data.language, data.datasets) == ("mit", ["de"], ["a/b", "c/d"])
    pinned = loading.replace('"{}"', f'"me/new", revision="{done.revision}"')
    assert f"---\n# new\n\n{body}\n{pinned}\n" in first
    # As it comes from a clone: the generated part is replaced, not added to.
    (checkpoint / "README.md").write_text(first)
    again = publish(checkpoint, "me/new", token=WRITER)
    second = hub.files("me/new")["README.md"].decode()
    assert second.count("## Loading") == 1
    assert second.count(f'revision="{again.revision}"') == 3
    assert str(done.revision) not in second
    assert ModelCard(second).data.verified_commit == again.revision
    assert (checkpoint / "README.md").read_text() == first
    elsewhere = publish(checkpoint, "me/second", token=WRITER)
    third = hub.files("me/second")["README.md"].decode()
    assert f'pipeline("text-classification", "me/second", revision="{elsewhere.revision}"' in third
    assert "me/new" not in third


def test_a_dry_run_writes_the_card_and_lists_the_files(hub, checkpoint, run):
    code, out, err = run("publish", checkpoint, "--repo-id", "me/mine", "--dry-run", columns=1000)
    assert code == 0, err
    assert "Loading weights" not in err  # as a bar
    sent, stays, card = out.splitlines()
    assert sent.startswith("Would be sent: ")
    assert {"model.safetensors,", "SHA256SUMS,", "README.md"} <= set(sent.split())
    assert stays == "Would stay here: notes.txt, training_args.bin"
    assert card == f"The card: {checkpoint / 'README.hub.md'}"
    assert 'from_pretrained("me/mine", revision="' in (checkpoint / "README.hub.md").read_text()
    assert hub.requests == []
    assert run("publish", checkpoint, "--repo-id", "me/mine", "--dry-run")[0] == 0  # its own draft is replaced
    (checkpoint / "README.hub.md").write_text("mine")
    code, out, err = run("publish", checkpoint, "--repo-id", "me/mine", "--dry-run")
    assert code == 2
    assert "README.hub.md' is a file of yours, or was edited" in err
    assert (checkpoint / "README.hub.md").read_text() == "mine"


def test_a_pull_request_changes_nothing_else_and_may_go_to_somebody_elses_repository(hub, checkpoint, unverified):
    publish(checkpoint, "me/mine", token=WRITER)
    main = hub.files("me/mine")
    (checkpoint / "LICENSE").write_text("Apache-2.0")
    with pytest.raises(UserError, match=r"403.*Whether it arrived"):
        publish(checkpoint, "me/mine", token=READER)
    done = publish(checkpoint, "me/mine", create_pr=True, token=READER)
    assert done.url == f"{hub.url}/me/mine/discussions/1"
    assert hub.files("me/mine") == main
    asked = hub.files("me/mine", "refs/pr/1")
    assert asked["LICENSE"] == b"Apache-2.0"
    assert f"loaded commit `{done.revision}`" in asked["README.md"].decode()


def test_weights_of_an_earlier_upload_do_not_stay_beside_the_new_ones(hub, checkpoint, unverified):
    publish(checkpoint, "me/mine", token=WRITER)
    whole = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    hf_posenc.PosEncForSequenceClassification.from_pretrained(
        None, config=hf_posenc.PosEncConfig.from_pretrained(checkpoint), state_dict=whole
    ).save_pretrained(checkpoint, max_shard_size="40KB")
    done = publish(checkpoint, "me/mine", token=WRITER)
    assert "\nDeleted there, of an earlier upload: model.safetensors\n" in str(done)
    files = hub.files("me/mine")
    assert "model.safetensors" not in files
    assert "model.safetensors.index.json" in files
    assert sum(name.startswith("model-") for name in files) > 1


@pytest.mark.parametrize("head", ["PosEncModel", "PosEncForMultipleChoice", "PosEncForQuestionAnswering"])
def test_other_heads_and_a_checkpoint_without_a_tokenizer(hub, tmp_path, unverified, head):
    tiny_model("rope", head).to(torch.bfloat16).save_pretrained(tmp_path / "bare")
    done = publish(tmp_path / "bare", "me/bare", token=WRITER)
    assert "takes inputs of any length" in hub.files("me/bare")["README.md"].decode()
    assert "model.safetensors" in done.files


# ---- what the repository holds already ------------------------------------------------------------------------------


def theirs(hub: Hub, **files: str) -> Repo:
    """Somebody else's repository."""
    repo = hub.repos["you/theirs"] = Repo()
    repo.add("main", {name: text.encode() for name, text in files.items()}, "theirs")
    return repo


KEPT_HERE = (
    *(".env", "token", "training_args.bin", "optimizer.pt", "checkpoint-5/model.safetensors", "run.json"),
    *(
        "train.csv",
        "picture.png",
        "_files.json",
        "mine.py",
        "config.json.bak",
        "onnx/model.onnx",
        "model.fp16.safetensors",
    ),
)
"""Files that aren't sent."""
FOREIGN = (
    *("tok.py", "modeling_x.py", "module/module.py", "deep/er/setup.PY", "LICENSE.py", "a.md\n.py"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "spiece.model"),
    *("adapter_config.json", "generation_config.json", "modules.json", "model.fp16.safetensors.index.json"),
    *("model.fp16.safetensors", "adapter_model.bin", "training_args.bin", "weights.pkl", "tf_model.h5"),
    *("onnx/model.onnx", "openvino/openvino_model.xml"),
    *("chat_template.jinja", "additional_chat_templates/a.jinja", "Custom_Generate/a.txt"),
    *("Config.json", "MODEL.safetensors", "config.json.", "Vocab.txt", "Merges.txt"),  # the same names, on some disks
    *("..\\config.json", "folder\\..\\tok.py", "a/..\\..\\config.json", ".huggingface"),
)
HARMLESS = (
    *("README.md", ".gitattributes", "LICENSE", "figure.png", "notes.md", "notes.txt"),
    *("runs/events.out", "checkpoint-5/model.safetensors"),
)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_loader_may_read_or_run_is_foreign(name):
    sent = ["config.json", "model.safetensors"]
    publishing.refuse_unknown_files([*HARMLESS, *sent], sent)
    with pytest.raises(UserError, match=re.escape(f"with it: {name!r}. Give")):
        publishing.refuse_unknown_files([*HARMLESS, *sent, name], sent)


@pytest.mark.parametrize("create_pr", [False, True])
def test_files_that_would_be_loaded_beside_it_are_refused_before_anything_is_sent(hub, tmp_path, unverified, create_pr):
    tiny_model("rope", "PosEncModel").save_pretrained(tmp_path / "bare")
    code = '{"auto_map": {"AutoTokenizer": ["tok.Tok", null]}}'
    repo = theirs(hub, **{**dict.fromkeys(HARMLESS, ""), "tokenizer_config.json": code, "tok.py": "raise SystemExit"})
    before, token = dict(repo.commits), WRITER if create_pr else READER
    message = r"^you/theirs: .*'tok.py', 'tokenizer_config.json'\. .*hf repos delete-files.*Nothing was published\.$"
    with pytest.raises(UserError, match=message):
        publish(tmp_path / "bare", "you/theirs", create_pr=create_pr, token=token)
    assert repo.commits == before
    assert hub.made("PUT", "/put/") == []


def test_foreign_code_that_came_with_the_commit_is_never_loaded(hub, checkpoint, monkeypatch):
    real = publishing.HfApi.create_commit

    def late(self: Any, *args: Any, **kwargs: Any) -> Any:
        repo = hub.repos["me/mine"]
        repo.add("main", {**repo.commits[repo.refs["main"]], "tok.py": b""}, "somebody else's")
        return real(self, *args, **{**kwargs, "parent_commit": None})

    monkeypatch.setattr(publishing.HfApi, "create_commit", late)
    monkeypatch.setattr(publishing, "verify_upload", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(UserError, match=r"'tok.py'.*are there as commit [0-9a-f]{40}, but it isn't verified"):
        publish(checkpoint, "me/mine", token=WRITER)


def test_what_an_earlier_version_published_goes_and_the_rest_stays(hub, checkpoint, unverified):
    publish(checkpoint, "me/mine", token=WRITER)
    repo = hub.repos["me/mine"]
    files = dict(repo.commits[repo.refs["main"]])
    sums = files["SHA256SUMS"] + b"0  attention_of_old.py\n0  vocab.txt\n"
    older = dict.fromkeys(("attention_of_old.py", "vocab.txt", "modeling_posenc.py", "notes.md"), b"old")
    repo.add("main", {**files, **older, "SHA256SUMS": sums}, "an earlier version's")
    done = publish(checkpoint, "me/mine", token=WRITER)
    assert set(hub.files("me/mine")) == {*done.files, ".gitattributes", "notes.md"}
