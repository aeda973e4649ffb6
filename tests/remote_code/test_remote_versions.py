"""Configurations that other versions wrote."""

import json
import logging
from pathlib import Path

import pytest
import transformers
from remote_code_harness import BATCH, Checkpoints, assert_same_outputs, changed, outputs

import hf_posenc


def test_unknown_keys_of_a_file_only_warn(
    checkpoints: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # `hidden_sise` is refused in direct construction; a file may come from a version that has it.
    folder = changed(checkpoints.folder("t5"), tmp_path / "checkpoint", hidden_sise=7, of_the_future={"a": 1})
    with caplog.at_level(logging.WARNING):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    warned = [record.getMessage() for record in caplog.records if "hidden_sise" in record.getMessage()]
    assert warned
    assert "'of_the_future'" in warned[0]
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected("t5"))
    # What wasn't understood isn't lost.
    model.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["of_the_future"] == {"a": 1}
    with pytest.raises(ValueError, match="hidden_size"):
        hf_posenc.PosEncConfig(hidden_sise=7)


@pytest.mark.parametrize(("version", "warns"), [("9999.1.0", True), (hf_posenc.__version__, False), ("0.0.1", False)])
def test_local_classes_older_than_the_checkpoint_warn(
    checkpoints: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, warns: bool
) -> None:
    folder = changed(checkpoints.folder("t5"), tmp_path / "checkpoint", posenc_version=version)
    with caplog.at_level(logging.WARNING):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert any(version in record.getMessage() for record in caplog.records) is warns
    assert type(model) is hf_posenc.PosEncForSequenceClassification
    # Saved by this code, it is this code's.
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["posenc_version"] == hf_posenc.__version__
