"""Fixtures of the tests of training and of fine-tuning."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

from tests.support.common import write_jsonl
from tests.support.training import order_files, rows, train


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Data sets are cached by path: a test's files must not meet those of an earlier run.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    # accelerate keeps its state for the life of a process; here each test stands for a process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    torch.use_deterministic_algorithms(False)  # which a run with full_determinism leaves on


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The confusion matrix, which takes as long as a short training, is drawn where it is looked at."""
    if request.path.stem != "test_training_assessment":
        monkeypatch.setattr("hf_posenc.training.report.TrainingReport.draw", lambda report, _: report)


@pytest.fixture
def order(tmp_path: Path) -> dict[str, str]:
    """See `order_files`."""
    return order_files(tmp_path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of sentences, to be read alone."""
    folder = tmp_path_factory.mktemp("classes")
    train(folder / "run", data=write_jsonl(folder / "train.jsonl", rows("train", 48)))
    return folder / "run"


@pytest.fixture
def computed_in() -> Iterator[list[torch.dtype]]:
    """The precisions of all linear layers' results since it was cleared."""
    kinds: list[torch.dtype] = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, result: kinds.append(result.dtype) if isinstance(module, torch.nn.Linear) else None
    )
    yield kinds
    hook.remove()
