"""What runs on a device keeps to what devices have: no float64 (Apple's GPUs), and nothing that grows with the data."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers.trainer_pt_utils import EvalLoopContainer

from hf_posenc import SCHEMES
from hf_posenc.model.scheme_table import AUGMENTATIONS
from hf_posenc.model.unpadding import TokenLayout
from hf_posenc.training.metrics import ClassificationLoss
from tests.support.common import encoder, padded, tokens
from tests.support.training import train

IDS, MASK = padded([tokens(5), tokens(3, seed=2), tokens(9, seed=3)], extra=2)


class NoFloat64(TorchFunctionMode):
    """As an Apple GPU: float64 is refused."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError(f"{func}: this device has no float64")
        return result


PROBLEMS = {
    "single_label_classification": (5, torch.randint(0, 5, (50,))),
    "multi_label_classification": (5, torch.randint(0, 2, (50, 5)).float()),
    "regression": (1, torch.randn(50) * 3 + 1000),
}


def test_positions_are_drawn_and_the_loss_is_computed_without_float64() -> None:
    with NoFloat64(), pytest.raises(TypeError, match="no float64"):
        torch.zeros(2).double()
    for augmentation in AUGMENTATIONS.values():
        with NoFloat64():
            augmentation(TokenLayout.from_batch(IDS, MASK).tokens, 4000)
    for problem, (classes, labels) in PROBLEMS.items():
        logits = torch.randn(50, classes, requires_grad=True)
        with NoFloat64():
            ClassificationLoss(problem)((logits,), labels).backward()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_of_training_needs_no_float64(scheme: str) -> None:
    model = encoder(scheme).train()
    with NoFloat64():
        model(IDS, attention_mask=MASK).last_hidden_state.sum().backward()


def test_the_answers_of_an_evaluation_go_to_the_cpu_as_it_goes_on(order, tmp_path, monkeypatch):
    moved = []
    move = EvalLoopContainer.to_cpu_and_numpy

    def count(self: EvalLoopContainer) -> None:
        if isinstance(self.tensors, torch.Tensor):
            moved.append(len(self.tensors))
        move(self)

    monkeypatch.setattr(EvalLoopContainer, "to_cpu_and_numpy", count)
    result = train(tmp_path / "run", **order, max_steps=1, per_device_eval_batch_size=1)
    assert max(moved) == 64
    assert len(result.report.metrics) > 3
