"""Pushed and loaded over HTTP, here and in a process that can't import hf_posenc."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from common import schemes_restored
from hub_server import WRITER, Hub
from huggingface_hub import ModelCard
from remote_code_harness import (
    BATCH,
    EXAMPLE,
    HEAD,
    HEADS,
    TEXTS,
    assert_same_outputs,
    model_job,
    outputs,
    run_clean,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)

from hf_posenc import PosEncConfig, publish, register_scheme
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.options import Options
from model_cards.make_cards import FOLDER

CODE = {"configuration_posenc.py", "modeling_posenc.py", "scheme_table.py", "recency.py"}


@pytest.fixture(autouse=True)
def _author(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One who may write, and has a scheme of their own."""
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # it is another test's Hub's
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    with schemes_restored("recency"):
        register_scheme(EXAMPLE, "recency")
        yield


def test_saving_with_a_push_sends_what_push_to_hub_sends(hub: Hub, tmp_path: Path) -> None:
    model = tiny_model("t5", HEAD)
    model.push_to_hub("me/pushed")
    model.save_pretrained(tmp_path / "saved")  # so its code lies there already, and is sent all the same
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="me/saved")
    saved, pushed = (hub.files(repo) for repo in ("me/saved", "me/pushed"))
    assert {"scheme_table.py", "modeling_posenc.py", "position_t5.py", "model.safetensors"} <= saved.keys()
    for name in (saved.keys() | pushed.keys()) - {"README.md", ".gitattributes"}:
        assert saved[name] == pushed[name], name


def test_the_code_of_the_page_of_cards_loads_what_it_publishes(
    hub: Hub, unverified: None, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    checkpoint.rename(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    exec(code, made := {})
    assert type(made["classifier"]).__name__ == "PosEncForSequenceClassification"
    assert made["tokenizer"].vocab_size == tiny_tokenizer().vocab_size
    assert made["commit"] in hub.repos["me/mine"].commits
    assert f"`{made['commit']}`" in hub.files("me/mine")["README.md"].decode()
    assert any((tmp_path / "cache").rglob("model.safetensors"))


def train_and_publish(folder: Path) -> None:
    """The project's training; that what it wrote loads back, the stranger sees to."""
    lines = [json.dumps({"text": text, "label": str(number % 2)}) for number, text in enumerate(TEXTS * 8)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    data = {"data": str(folder / "train.jsonl"), "validation": str(folder / "train.jsonl")}
    fine_tune(Options(output=str(folder / "trained"), **data, scheme="alibi", max_steps=2, device="cpu", set=sizes))
    publish(folder / "trained", "me/trained")


@pytest.mark.slow  # a process; one checkpoint makes the trip in test_hub_publish.py
def test_a_stranger_gets_what_the_author_pushed(hub: Hub, unverified: None, tmp_path: Path, capsys: Any) -> None:
    jobs: list[dict[str, Any]] = []
    expected, commits = {}, {}
    for name, scheme in {"own": "recency", "combined": "learned+recency"}.items():
        model = tiny_model(scheme, HEAD)
        tiny_tokenizer().push_to_hub(f"me/{name}")
        for push in (f"{name}-1", f"{name}-2"):
            with torch.no_grad():
                model.classifier.out_proj.weight.add_(1)
            expected[push] = outputs(model, BATCH)
            commits[push] = model.push_to_hub(f"me/{name}").oid
            jobs.append(model_job(push, f"me/{name}", revision=commits[push]))
    expected["newest"] = expected["own-2"]
    jobs.append(model_job("newest", "me/own"))
    tiny_config("recency").save_pretrained(tmp_path / "config", push_to_hub=True, repo_id="me/config")
    PosEncConfig.from_pretrained(tmp_path / "config").push_to_hub("me/config-2")
    jobs.append({"kind": "config", "id": "config", "load": "me/config", "auto_class": HEADS[HEAD]})
    train_and_publish(tmp_path)
    task = "text-classification"
    jobs.append({"kind": "pipeline", "id": "trained", "task": task, "texts": TEXTS, "load": "me/trained"})
    online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    stranger = run_clean(jobs, tmp_path / "stranger", tmp_path / "home", environment=online)
    assert stranger.hidden == "import of hf_posenc halted; None in sys.modules"
    for job, theirs in expected.items():
        assert_same_outputs(stranger.outputs(job), theirs)
        module = stranger.answer(job)["module"]
        assert module.startswith("transformers_modules.")
        assert commits.get(job, "") in module
    assert stranger.answer("config")["class"] == HEAD
    assert all({"config.json", *CODE} <= set(hub.files(repo)) for repo in ("me/config", "me/config-2"))
    assert {entry["label"] for entry in stranger.answer("trained")["found"]} <= {"0", "1"}
    assert WRITER not in "".join(capsys.readouterr())
    text, files = hub.files("me/trained")["README.md"].decode(), set(hub.files("me/trained"))
    card = ModelCard(text)
    assert "A PosEnc encoder whose positional scheme is `alibi`" in text
    assert re.search(
        r'pipeline\("text-classification", "me/trained", revision="\w{40}", trust_remote_code=True\)', text
    )
    assert {(r.metric_type, r.metric_name) for r in card.data.eval_results} >= {("f1", "macro F1")}
    assert "custom_code" in card.data.tags
    assert "More Information Needed" not in text
    assert {"modeling_posenc.py", "position_alibi.py", "tokenizer.json", "results.json"} <= files
    assert "_trained_on.npy" not in files  # hashes of the training texts
