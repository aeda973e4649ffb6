from collections.abc import Callable
from typing import Any

import pytest
from accelerate.state import AcceleratorState, GradientState

from hf_posenc.comparison import run


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for the training tests: data sets are cached by path, and accelerate's state lasts as long as a process.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def draw_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What draws the scheme of a run, which takes longer than the run: nothing, unless a test puts it back."""
    draw = run._draw
    monkeypatch.setattr(run, "_draw", lambda *_: None)
    return draw
