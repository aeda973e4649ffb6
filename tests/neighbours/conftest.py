"""What a neighbour does to a checkpoint is read back by a process without hf_posenc."""

from pathlib import Path

import pytest
from remote_code_harness import tiny_model, tiny_tokenizer


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A folder with an encoder and its tokenizer."""
    tiny_model("learned", "PosEncModel").save_pretrained(tmp_path / "encoder")
    tiny_tokenizer().save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"
