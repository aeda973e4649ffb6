"""What runs on a device keeps to what devices have: no float64 (Apple's GPUs), and nothing that grows with the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import encoder, padded, tokens
from torch.overrides import TorchFunctionMode
from training_harness import train
from transformers.trainer_pt_utils import EvalLoopContainer

from hf_posenc import POSITIONS
from hf_posenc.model.scheme_table import AUGMENTATIONS
from hf_posenc.model.unpadding import locate_tokens
from hf_posenc.training.arguments import RunArguments
from hf_posenc.training.losses import ClassificationLoss
from hf_posenc.training.masked_lm import token_sums, token_weighted_metrics
from hf_posenc.training.word_metrics import answers_and_losses

IDS, MASK = padded([tokens(5), tokens(3, seed=2), tokens(9, seed=3)], extra=2)


class NoFloat64(TorchFunctionMode):
    """As an Apple GPU: float64 is refused."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError(f"{func}: this device has no float64")
        return result


def test_the_guard_refuses_float64() -> None:
    with NoFloat64(), pytest.raises(TypeError, match="no float64"):
        torch.zeros(2).double()


@pytest.mark.parametrize("reduce", [answers_and_losses, token_sums])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_tokens_are_reduced_without_float64(reduce: Any, dtype: torch.dtype) -> None:
    labels = torch.tensor([[1, 2, -100], [0, -100, -100]])
    with NoFloat64():
        reduced = reduce(torch.randn(2, 3, 4).to(dtype), labels)
    assert reduced.dtype == torch.float32
    assert reduced.shape == ((2, 3, 2) if reduce is answers_and_losses else (2, 3))


def test_sums_over_many_examples_are_float64() -> None:
    """A million float32 numbers of one size, added in float32, miss the fifth digit or more."""
    sums = np.tile(np.array([0.1, 1.0, 0.0], dtype=np.float32), (2**20, 1))
    metrics = token_weighted_metrics(type("P", (), {"predictions": sums}))  # type: ignore[arg-type]
    assert metrics["nll"] == pytest.approx(float(np.float32(0.1)), rel=1e-9)


@pytest.mark.parametrize("how", ["shift", "random"])
def test_positions_are_drawn_without_float64(how: str) -> None:
    with NoFloat64():
        AUGMENTATIONS[how](locate_tokens(*IDS.shape, IDS.device, attention_mask=MASK), 4000)


@pytest.mark.parametrize("scheme", POSITIONS)
def test_a_step_of_training_needs_no_float64(scheme: str) -> None:
    model = encoder(scheme).train()
    with NoFloat64():
        model(IDS, attention_mask=MASK).last_hidden_state.sum().backward()


def test_the_answers_of_an_evaluation_go_to_the_cpu_as_it_goes_on(
    order: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    move = EvalLoopContainer.to_cpu_and_numpy

    def count(self: EvalLoopContainer) -> None:
        if isinstance(self.tensors, torch.Tensor):
            moved.append(len(self.tensors))
        move(self)

    monkeypatch.setattr(EvalLoopContainer, "to_cpu_and_numpy", count)
    result = train(tmp_path / "run", **order, do_train=True, do_eval=True, max_steps=1, per_device_eval_batch_size=1)
    assert max(moved) == RunArguments(output_dir=str(tmp_path)).eval_accumulation_steps == 64
    assert len(result.metrics) > 3


PROBLEMS = {
    "single_label_classification": lambda n: torch.randint(0, 5, (n,)),
    "multi_label_classification": lambda n: torch.randint(0, 2, (n, 5)).float(),
    "regression": lambda n: torch.randn(n) * 3 + 1000,
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_loss_of_training_needs_no_float64(problem: str) -> None:
    logits = torch.randn(50, 1 if problem == "regression" else 5, requires_grad=True)
    with NoFloat64():
        ClassificationLoss(problem)((logits,), PROBLEMS[problem](50)).backward()
