"""The tests that run a neighbour skip where it isn't installed; CI must have them all."""

import importlib.metadata
import os

import pytest
from packaging.requirements import Requirement


@pytest.mark.skipif("CI" not in os.environ, reason="only CI has to have every neighbour")
def test_ci_has_every_neighbour() -> None:
    named = [Requirement(line) for line in importlib.metadata.requires("hf-posenc") or ()]
    needed = [one for one in named if one.marker is None or one.marker.evaluate({"extra": "dev"})]
    assert {"peft", "setfit", "onnxruntime", "gradio"} <= {one.name for one in needed}
    for one in needed:
        assert one.specifier.contains(importlib.metadata.version(one.name), prereleases=True), one
