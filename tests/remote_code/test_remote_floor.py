"""Under a transformers that is too old, the user reads one ImportError that says which one is needed."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest
from remote_code_harness import Checkpoints, model_job, run_clean

from hf_posenc.model.configuration_posenc import MINIMUM_TRANSFORMERS

TOO_OLD = "5.2.0"


def assert_names_the_floor(answer: dict[str, str]) -> None:
    assert answer.get("error") == "ImportError", answer
    assert answer["chained"] == "None", "the user reads about one error, not two"
    for part in (
        f"transformers>={MINIMUM_TRANSFORMERS} is required",
        TOO_OLD,
        f'pip install -U "transformers>={MINIMUM_TRANSFORMERS}"',
    ):
        assert part in answer["message"]


def test_importing_names_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    old = {"transformers": TOO_OLD}
    monkeypatch.setattr("importlib.metadata.version", lambda name: old.get(name) or real(name))
    monkeypatch.delitem(sys.modules, "hf_posenc.model.configuration_posenc")
    with pytest.raises(ImportError) as refused:
        importlib.import_module("hf_posenc.model.configuration_posenc")
    chained = repr(refused.value.__cause__ or refused.value.__context__)
    assert_names_the_floor({"error": refused.type.__name__, "message": str(refused.value), "chained": chained})


@pytest.mark.slow  # a process
def test_loading_by_remote_code_names_the_floor(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = str(checkpoints.folder("t5"))
    jobs = [
        {"kind": "config", "id": "config", "load": folder},
        model_job("model", folder, "AutoModel"),
        {"kind": "pipeline", "id": "pipeline", "task": "text-classification", "load": folder, "texts": ["cat"]},
    ]
    old = run_clean(jobs, tmp_path / "old", tmp_path / "old_home", pretend_transformers_is=TOO_OLD)
    for job in jobs:
        assert_names_the_floor(old.jobs[job["id"]])
