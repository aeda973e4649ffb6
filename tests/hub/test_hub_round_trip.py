"""Published in one process, loaded in another that can't import hf_posenc, over HTTP."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hub_server import WRITER, Hub, no_token_lies_in
from huggingface_hub import ModelCard
from remote_code_harness import TEXTS, Report, assert_same_outputs, run_clean
from safetensors.torch import load_file

pytestmark = pytest.mark.slow  # two processes; one checkpoint makes the trip in test_hub_publish.py

ROOT = Path(__file__).parents[2]
AUTO = "AutoModelForSequenceClassification"
NAMES = ("rope", "own", "combined")
TRUSTED: dict[str, Any] = {"trust_remote_code": True}


@dataclass
class World:
    hub: Hub
    folder: Path
    commits: dict[str, Any]
    printed: str
    """What the author's process printed."""
    first: Report

    def expected(self, name: str) -> dict[str, Any]:
        return load_file(self.folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    place = tmp_path_factory.mktemp("world")
    folder, home = place / "author", place / "home"
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
    with Hub().running() as hub:
        author = {
            **clean,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/remote_code"))),
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": WRITER,
            "HF_HOME": str(place / "author_home"),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, str(Path(__file__).with_name("author_process.py")), str(folder)]
        done = subprocess.run(words, env=author, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert hub.problems == []
        commits = json.loads((folder / "commits.json").read_text())

        jobs: list[dict[str, Any]] = []

        def load(name: str, repo: str, **options: Any) -> None:
            options = {**TRUSTED, **options}
            jobs.append({"kind": "model", "id": name, "auto_class": AUTO, "load": repo, "options": options})

        job = {"kind": "pipeline", "task": "text-classification", "texts": TEXTS}
        for name in NAMES:
            for push in (1, 2):
                load(f"{name}-{push}", f"me/{name}", revision=commits[f"{name}-{push}"])
        load("own", "me/own")
        jobs.append({**job, "id": "trained pipeline", "load": "me/trained"})
        jobs.append({"kind": "config", "id": "config", "load": "me/config", "auto_class": AUTO})
        online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        first = run_clean(jobs, place / "first", home, environment=online)
        assert hub.problems == []
    return World(hub, folder, commits, done.stdout + done.stderr, first)


@pytest.mark.parametrize("push", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_gets_the_authors_outputs_of_the_commit_that_is_pinned(world: World, name: str, push: int) -> None:
    job = f"{name}-{push}"
    assert world.first.hidden == "import of hf_posenc halted; None in sys.modules"
    assert_same_outputs(world.first.outputs(job), world.expected(job))
    module = world.first.answer(job)["module"]
    assert module.startswith("transformers_modules.")
    assert world.commits[job] in module


def test_the_newest_is_loaded_where_nothing_is_pinned(world: World) -> None:
    assert_same_outputs(world.first.outputs("own"), world.expected("own-2"))


def test_saving_with_a_push_sends_what_push_to_hub_sends(world: World) -> None:
    saved, pushed = (world.hub.files(repo) for repo in ("me/saved", "me/pushed"))
    assert {"scheme_table.py", "modeling_posenc.py", "position_t5.py", "model.safetensors"} <= saved.keys()
    for name in (saved.keys() | pushed.keys()) - {"README.md", ".gitattributes"}:
        assert saved[name] == pushed[name], name


def test_a_configuration_alone_is_published_with_its_schemes_code(world: World) -> None:
    assert world.first.answer("config")["class"] == "PosEncForSequenceClassification"
    for repo in ("me/config", "me/config-2"):
        code = {"configuration_posenc.py", "modeling_posenc.py", "scheme_table.py", "recency.py"}
        assert {"config.json", *code} <= set(world.hub.files(repo))


def test_what_training_wrote_is_published_with_its_card_and_code(world: World) -> None:
    text = world.hub.files("me/trained")["README.md"].decode()
    card = ModelCard(text)
    assert "A PosEnc encoder whose positional scheme is `alibi`" in text
    assert 'pipeline("text-classification", "me/trained", trust_remote_code=True)' in text
    assert {r.metric_type for r in card.data.eval_results} >= {"accuracy", "macro_f1"}
    assert "custom_code" in card.data.tags
    assert "More Information Needed" not in text
    files = world.hub.files("me/trained")
    assert {"modeling_posenc.py", "position_alibi.py", "tokenizer.json", "results.json"} <= set(files)
    assert "_trained_on.npy" not in files  # hashes of the training texts
    answer = world.first.answer("trained pipeline")
    assert answer["module"].startswith("transformers_modules.")
    assert {entry["label"] for entry in answer["found"]} <= {"0", "1"}


def test_no_token_is_published_or_printed(world: World) -> None:  # the storage itself refuses one
    no_token_lies_in(world.hub)
    assert WRITER not in world.printed
