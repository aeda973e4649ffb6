from typing import Any

import pytest
from accelerate.state import AcceleratorState, GradientState

from tests.support.comparison import done_run


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for the training tests: data sets are cached by path, and accelerate's state lasts as long as a process.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Exception], list[str]]:
    """Runs that take no time; those of a scheme in the dictionary end in its error, and the list names them all."""
    broken: dict[str, Exception] = {}
    made: list[str] = []

    def pretend(data: Any, run: Any, *_: Any) -> list[dict[str, Any]]:
        made.append(run.name)
        if run.scheme in broken:
            raise broken[run.scheme]
        return done_run(data.plan, run)

    monkeypatch.setattr("hf_posenc.comparison.engine.run_one", pretend)
    monkeypatch.setattr(
        "hf_posenc.comparison.executor.measure_baselines",
        lambda *_: {"rows": [], "seconds": 1.0, "texts": 64, "cut": 3, "said": ["No baseline on words: no word."]},
    )
    return broken, made
