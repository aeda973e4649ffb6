"""What a neighbour does to a checkpoint is read back by a process without hf_posenc."""

from pathlib import Path

import pytest
from remote_code_harness import save_tiny


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A folder with an encoder and its tokenizer."""
    return save_tiny(tmp_path / "encoder", "learned", "PosEncModel")
