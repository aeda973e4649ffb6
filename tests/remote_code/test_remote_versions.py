"""Configurations that other versions wrote, and folders that hold nothing but a configuration."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import transformers
from remote_code_harness import (
    BATCH,
    SCHEMES,
    Checkpoints,
    Report,
    assert_same_outputs,
    outputs,
    run_clean,
    tiny_config,
)

import hf_posenc

HEAD = "PosEncForSequenceClassification"

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def changed(checkpoints: Checkpoints, scheme: str, folder: Path, **values: object) -> Path:
    """A copy of a checkpoint whose config.json says something else."""
    shutil.copytree(checkpoints.folder(scheme, HEAD), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


@every_scheme
def test_unknown_keys_of_a_file_only_warn(
    checkpoints: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    # `hidden_sise` is refused in direct construction; a file may come from a version that has it.
    folder = changed(checkpoints, scheme, tmp_path / "checkpoint", hidden_sise=7, of_the_future={"a": 1})
    with caplog.at_level(logging.WARNING):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    warned = [record.getMessage() for record in caplog.records if "hidden_sise" in record.getMessage()]
    assert warned
    assert "'of_the_future'" in warned[0]
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected[scheme, HEAD, "float32"])
    # What wasn't understood isn't lost.
    model.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["of_the_future"] == {"a": 1}
    with pytest.raises(ValueError, match="hidden_size"):
        hf_posenc.PosEncConfig(hidden_sise=7)


def test_a_stranger_is_warned_of_unknown_keys_too(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = changed(checkpoints, SCHEMES[-1], tmp_path / "checkpoint", hidden_sise=7, posenc_version="9999.1.0")
    options = {"trust_remote_code": True}
    auto_class = "AutoModelForSequenceClassification"
    job = {"kind": "model", "id": "changed", "auto_class": auto_class, "load": str(folder), "options": options}
    stranger = run_clean([job], tmp_path / "work", tmp_path / "home")
    assert any("hidden_sise" in line for line in stranger.said("changed")["warnings"])
    assert_same_outputs(stranger.outputs("changed"), checkpoints.expected[SCHEMES[-1], HEAD, "float32"])


@pytest.mark.parametrize(("version", "warns"), [("9999.1.0", True), (hf_posenc.__version__, False), ("0.0.1", False)])
def test_local_classes_older_than_the_checkpoint_warn(
    checkpoints: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, warns: bool
) -> None:
    folder = changed(checkpoints, SCHEMES[-1], tmp_path / "checkpoint", posenc_version=version)
    with caplog.at_level(logging.WARNING):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert any(version in record.getMessage() for record in caplog.records) is warns
    assert type(model) is hf_posenc.PosEncForSequenceClassification
    # Saved by this code, it is this code's.
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["posenc_version"] == hf_posenc.__version__


@every_scheme
def test_a_configuration_alone_reaches_a_stranger(first_stranger: Report, scheme: str) -> None:
    said = first_stranger.said(f"{scheme}/config")
    assert said["module"].startswith("transformers_modules.")
    mine = json.loads(tiny_config(scheme).to_json_string(use_diff=False))
    theirs = {name: said["config"].get(name) for name in mine}
    # What a model's checkpoint says beyond its configuration.
    for name in ("architectures", "dtype", "_name_or_path", "transformers_version"):
        mine.pop(name, None)
        theirs.pop(name, None)
    assert theirs == mine


@every_scheme
def test_a_stranger_builds_a_new_model_from_a_configuration_alone(first_stranger: Report, scheme: str) -> None:
    assert first_stranger.said(f"{scheme}/from_config")["class"] == "PosEncForMaskedLM"
    logits = first_stranger.outputs(f"{scheme}/from_config")["logits"]
    assert logits.isfinite().all()
    assert logits.shape == (*BATCH["input_ids"].shape, 100)
