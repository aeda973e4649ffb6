from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState
from training_harness import order_files


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Data sets are cached by path: a test's files must not meet those of an earlier run.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    # accelerate keeps its state for the life of a process; here each test stands for a process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def _no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The confusion matrix takes as long to draw as a short training; where it is looked at, it is drawn."""
    if request.path.stem != "test_training_assessment":
        monkeypatch.setattr("hf_posenc.training.assessment.Assessment.draw", lambda *_: None)


@pytest.fixture
def order(tmp_path: Path) -> dict[str, str]:
    """See `order_files`."""
    return order_files(tmp_path)
