"""However a checkpoint gets into memory, the numbers are those that were saved.

`from_pretrained` builds on the meta device and fills in what the file has. What the file doesn't have must come from
the code: a buffer that isn't saved, or a constant kept as a tensor, would be whatever was in memory before.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import hf_posenc
from tests.support.remote_code import (
    ALL_HEADS,
    BATCH,
    BUILTIN,
    HEAD,
    HEADS,
    PAIRS,
    Checkpoints,
    assert_same_outputs,
    outputs,
)

every_pair = pytest.mark.parametrize(("scheme", "head"), PAIRS)
every_head = pytest.mark.parametrize(("scheme", "head"), ALL_HEADS)


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, memory that nobody wrote to is NaN (or the largest integer), wherever PyTorch hands it out."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty_like(torch.zeros(8)).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def loaded(checkpoints: Checkpoints, scheme: str, head: str, **options: Any) -> Any:
    return getattr(transformers, HEADS[head]).from_pretrained(checkpoints.folder(scheme, head), **options)


@every_pair
def test_memory_that_nobody_wrote_to_is_never_read(checkpoints, scheme, head):
    with poisoned_memory():
        model = loaded(checkpoints, scheme, head)
        assert not list(model.buffers())
        assert not any(parameter.isnan().any() for parameter in model.parameters())
        actual = outputs(model, BATCH)
    assert_same_outputs(actual, checkpoints.expected(scheme, head))


@every_head
def test_weights_that_a_checkpoint_lacks_are_initialised(checkpoints, scheme, head):
    # A head on an encoder that was saved without one: what is new starts as in a new model, and nothing else changes.
    saved = load_file(checkpoints.folder(scheme, "PosEncModel") / "model.safetensors")
    with poisoned_memory():
        model = getattr(hf_posenc, head).from_pretrained(checkpoints.folder(scheme, "PosEncModel"))
    weights = model.state_dict()
    for name, weight in saved.items():
        torch.testing.assert_close(weights[name if head == "PosEncModel" else f"model.{name}"], weight, rtol=0, atol=0)
    for name, weight in weights.items():
        if not name.startswith("model.") and name not in saved:
            assert weight.isfinite().all()
            assert weight.abs().max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", BUILTIN)
def test_a_scheme_whose_weights_are_missing_starts_as_a_new_one(checkpoints, tmp_path, scheme):
    model = hf_posenc.PosEncModel.from_pretrained(checkpoints.folder(scheme))
    body = {name: weight for name, weight in model.state_dict().items() if not name.startswith("position.")}
    model.save_pretrained(tmp_path, state_dict=body)
    with poisoned_memory():
        again = hf_posenc.PosEncModel.from_pretrained(tmp_path)
    fresh = hf_posenc.PosEncModel(model.config).state_dict()
    for name, weight in again.state_dict().items():
        assert weight.isfinite().all(), name
        if name in body:
            assert torch.equal(weight, body[name]), name
        elif not fresh[name].any():
            assert not weight.any(), name
        elif weight.dim() > 1:
            assert 0 < weight.std() < 5, name


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "head"), [("deberta", HEAD), ("t5", "PosEncForMultipleChoice")])
def test_weights_left_on_disk_give_the_same_outputs(checkpoints, tmp_path, scheme, head):
    # Transformers wants something in memory: the last layer. All else is on disk, the scheme too.
    device_map = {"model": "disk", "classifier": "cpu"}
    model = loaded(checkpoints, scheme, head, device_map=device_map, offload_folder=tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    assert all(parameter.is_meta for parameter in model.base_model.position.parameters())
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected(scheme, head))
