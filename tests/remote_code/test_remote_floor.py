"""Under a transformers that is too old, the user reads one ImportError that says which one is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from remote_code_harness import CODE, Checkpoints, clean_environment, model_job, run_clean

from hf_posenc.model.configuration_posenc import MINIMUM_TRANSFORMERS

TOO_OLD = "5.2.0"

IMPORT_LOCALLY = """
import importlib.metadata, json, sys, traceback
real = importlib.metadata.version
importlib.metadata.version = lambda name: sys.argv[2] if name == "transformers" else real(name)
sys.path.insert(0, sys.argv[1])
try:
    import hf_posenc
    from hf_posenc import PosEncConfig
    said = {"imported": hf_posenc.__file__}
except BaseException as error:
    chained = repr(error.__cause__ or error.__context__)
    said = {"error": type(error).__name__, "message": str(error), "chained": chained}
print("SAID" + json.dumps(said))
"""


def assert_names_the_floor(answer: dict[str, str]) -> None:
    assert answer.get("error") == "ImportError", answer
    assert answer["chained"] == "None", "the user reads about one error, not two"
    for part in (
        f"transformers>={MINIMUM_TRANSFORMERS} is required",
        TOO_OLD,
        f'pip install -U "transformers>={MINIMUM_TRANSFORMERS}"',
    ):
        assert part in answer["message"]


def test_importing_names_the_floor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_LOCALLY, str(CODE.parent.parent), TOO_OLD],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert_names_the_floor(json.loads(done.stdout.partition("SAID")[2]))


@pytest.mark.slow  # two processes
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
