"""What a neighbour does to a checkpoint is read back by a process without hf_posenc."""

from pathlib import Path

import pytest

from tests.support.remote_code import save_tiny


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A folder with an encoder and its tokenizer."""
    return save_tiny(tmp_path / "encoder", "learned", "PosEncModel")


def pytest_configure(config: pytest.Config) -> None:
    """Takes the marks of transformers' own tests."""
    names = ("accelerate_tests", "torch_compile_test", *(f"flash_attn{part}_test" for part in ("", "_3", "_4")))
    for name in (*names, *(f"is_{kind}_test" for kind in ("training", "pipeline", "staging", "agent"))):
        config.addinivalue_line("markers", f"{name}: of transformers")
