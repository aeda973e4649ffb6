"""What a process has once is as it was after a fit, a load, a conversion or an export; threads wait for each other."""

import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers.utils import logging as bars

import hf_posenc
from hf_posenc import UserError
from hf_posenc.quiet import without_prints
from tests.support.training import SIZES, rows

ROWS = rows("train", 48)
TEXTS, LABELS = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
OPTIONS: dict[str, Any] = {"device": "cpu", "max_steps": 3, "batch_size": 16, "bf16": False}


def fit(seed: int = 42, **more: Any) -> Any:
    return hf_posenc.fit(TEXTS, LABELS, **OPTIONS, seed=seed, set={**SIZES, **more})


def state() -> list[Any]:
    """All that a process has once and these functions touch."""
    loggers = [logging.getLogger(name) for name in ("hf_posenc", "transformers", "datasets", "accelerate", "root")]
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return [
        *(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        *(torch.get_default_dtype(), deterministic, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        *(dict(os.environ), sys.stdout, sys.stderr, logging.root.manager.disable, [one.level for one in loggers]),
        *(bars.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()),
    ]


def failing(checkpoint: Path, out: Path) -> None:
    with pytest.raises(UserError, match="of one class"):
        hf_posenc.fit(TEXTS, ["x"] * len(TEXTS), set={"full_determinism": True})


def compare(out: Path) -> None:
    plan = {"train_examples": 64, "train_length": 32, "options": OPTIONS}
    assert hf_posenc.compare("halves", plan=plan, schemes="none", seeds=1, output=out).failed == {}


DOORS: dict[str, Callable[[Path, Path], Any]] = {
    "fit": lambda checkpoint, out: fit(),
    "fit, deterministic": lambda checkpoint, out: fit(full_determinism=True),
    "fit, refused": failing,
    "load": lambda checkpoint, out: hf_posenc.load(checkpoint),
    "convert": lambda checkpoint, out: hf_posenc.convert(checkpoint, out, scheme="t5"),
    "compare": lambda checkpoint, out: compare(out),
    "export": lambda checkpoint, out: hf_posenc.export(checkpoint, out, to="onnx"),
}


@pytest.mark.filterwarnings("ignore")  # of models that are hardly trained
@pytest.mark.parametrize("door", [*[*DOORS][:-1], pytest.param("export", marks=pytest.mark.slow)])
def test_a_process_is_afterwards_as_it_was(door: str, checkpoint: Path, tmp_path: Path) -> None:
    fit()  # what a process sets once when it begins, such as the state of accelerate
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(12345)
    before = state()
    DOORS[door](checkpoint, tmp_path / "out")
    assert state() == before


@pytest.mark.filterwarnings("ignore")
def test_threads_get_what_they_get_one_after_the_other(checkpoint: Path) -> None:
    def one(seed: int) -> np.ndarray:
        fitted = fit(seed, full_determinism=seed == 3)
        np.testing.assert_array_equal(hf_posenc.load(checkpoint).predict_proba(TEXTS), expected_of_checkpoint)
        return fitted.predict_proba(TEXTS)

    expected_of_checkpoint = hf_posenc.load(checkpoint).predict_proba(TEXTS)
    alone = [one(seed) for seed in range(4)]
    before = state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(4)))
    assert state() == before
    np.testing.assert_array_equal(together, alone)
    assert not np.allclose(alone[0], alone[1])


def test_a_thread_prints_on_while_another_drops_its_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with without_prints():
        print("dropped")
        thread = threading.Thread(target=print, args=("kept",))
        thread.start()
        thread.join()
    print("after")
    assert capsys.readouterr().out == "kept\nafter\n"
