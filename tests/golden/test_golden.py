"""Values that no refactoring may change: see the README beside this file."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.golden import golden

LOGITS, VALUES = load_file(golden.LOGITS), json.loads(golden.VALUES.read_text())


def assert_near(got: Any, expected: Any, tolerance: float) -> None:
    """Numbers within the tolerance, in the same lists and under the same names; all else equal."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        got, expected = list(got.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for mine, frozen in zip(got, expected, strict=True):
            assert_near(mine, frozen, tolerance)
    else:
        assert got == (pytest.approx(expected, abs=tolerance) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("head", golden.HEADS)
@pytest.mark.parametrize("scheme", golden.SCHEMES)
def test_logits_of_every_head_padded_on_either_side_and_packed(scheme, head):
    for layout in golden.LAYOUTS:
        if (layout, head) != ("packed", "MultipleChoice"):  # it refuses packed rows
            got = golden.logits(scheme, head, layout)
            torch.testing.assert_close(got, LOGITS[f"{scheme}/{head}"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("trained", 1e-3), ("evaluated", 1e-5), ("predicted", 1e-5), ("converted", 1e-5), ("compared", 1e-3)],
)
def test_what_a_command_computes(name, tolerance, tmp_path):
    got = getattr(golden, name)(tmp_path)
    assert_near(golden.as_frozen(got) if name == "predicted" else got, VALUES[name], tolerance)
