from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState
from training_harness import rows, write_jsonl


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Data sets are cached by path: a test's files must not meet those of an earlier run.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    # accelerate keeps its state for the life of a process; here each test stands for a process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def order(tmp_path: Path) -> dict[str, str]:
    """A slice of the package data as files: 160 training, 64 validation and 64 test sentences."""
    return {
        f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows(split, count))
        for split, count in (("train", 160), ("validation", 64), ("test", 64))
    }
