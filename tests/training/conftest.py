import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from training_harness import order_files, rows, train, write_jsonl

from hf_posenc import cli
from hf_posenc.training.baseline import baseline_scores


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Data sets are cached by path: a test's files must not meet those of an earlier run.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
    # accelerate keeps its state for the life of a process; here each test stands for a process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


SCORES: dict[bytes, Any] = {}


def _remembered_scores(*arguments: Any) -> Any:
    key = pickle.dumps(arguments)
    if key not in SCORES:
        SCORES[key] = baseline_scores(*arguments)
    return copy.deepcopy(SCORES[key])


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes as long as a short training: the baselines of one data set are fitted once.

    The confusion matrix is drawn where it is looked at.
    """
    monkeypatch.setattr("hf_posenc.finetuning.classification.baseline_scores", _remembered_scores)
    if request.path.stem != "test_training_assessment":
        monkeypatch.setattr("hf_posenc.training.assessment.Assessment.draw", lambda *_: None)


@pytest.fixture
def order(tmp_path: Path) -> dict[str, str]:
    """See `order_files`."""
    return order_files(tmp_path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of sentences, to be read alone."""
    folder = tmp_path_factory.mktemp("classes")
    train(folder / "run", train_file=write_jsonl(folder / "train.jsonl", rows("train", 48)))
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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`hf-posenc` with these words in this process: exit code, output and errors."""

    def call(*words: Any, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hf-posenc", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call
