"""Fixtures of the remote-code tests: checkpoints saved once."""

from pathlib import Path

import pytest
from torch import Tensor

from tests.support.remote_code import BATCH, HEAD, OWN, Checkpoints, outputs, own_schemes, tiny_model


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Tensor]]]:
    """Checkpoints of schemes of a user's own, with what their author got."""
    root = tmp_path_factory.mktemp("own")
    checkpoints = {}
    with own_schemes(tmp_path_factory.mktemp("author")):
        for name, scheme in OWN.items():
            model = tiny_model(scheme, HEAD)
            model.save_pretrained(root / name)
            checkpoints[name] = root / name, outputs(model, BATCH)
    return checkpoints
