"""The tests that run a neighbour skip where it isn't installed; CI must have them all."""

import importlib.metadata
import os

import pytest
from packaging.requirements import Requirement


@pytest.mark.skipif("CI" not in os.environ, reason="only CI has to have every neighbour")
def test_ci_has_every_neighbour():
    named = [Requirement(line) for line in importlib.metadata.requires("hf-posenc") or ()]
    needed = [package for package in named if package.marker is None or package.marker.evaluate({"extra": "dev"})]
    assert {"peft", "setfit", "onnxruntime", "gradio"} <= {package.name for package in needed}
    for package in needed:
        assert package.specifier.contains(importlib.metadata.version(package.name), prereleases=True), package
