"""With hf_posenc installed and imported, its own classes load every checkpoint: no trust, no question."""

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from remote_code_harness import (
    ALL_HEADS,
    BATCH,
    HEADS,
    Checkpoints,
    assert_same_outputs,
    borrower,
    outputs,
    put_in_hub_cache,
)

import hf_posenc


@pytest.fixture
def no_remote_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to the user, or code that comes from a checkpoint, fails the test."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"asked the user, or ran code from a checkpoint: {args}")

    monkeypatch.setattr("builtins.input", refuse)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_in_module", refuse)


@pytest.mark.parametrize("options", [{}, {"trust_remote_code": True}, {"trust_remote_code": False}], ids=str)
@pytest.mark.usefixtures("no_remote_code")
@pytest.mark.parametrize(("scheme", "head"), ALL_HEADS)
def test_the_local_classes_load_a_folder(
    checkpoints: Checkpoints, scheme: str, head: str, options: dict[str, Any]
) -> None:
    model = getattr(transformers, HEADS[head]).from_pretrained(checkpoints.folder(scheme, head), **options)
    assert type(model) is getattr(hf_posenc, head)
    assert type(model.config) is hf_posenc.PosEncConfig
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected(scheme, head))


@pytest.mark.usefixtures("no_remote_code")
def test_the_local_classes_load_from_a_hub_cache(checkpoints: Checkpoints, tmp_path: Path) -> None:
    put_in_hub_cache(checkpoints.folder("t5"), tmp_path, "me/classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        "me/classifier", cache_dir=tmp_path / "hub", local_files_only=True
    )
    assert type(model) is hf_posenc.PosEncForSequenceClassification
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected("t5"))


@pytest.mark.usefixtures("no_remote_code")
def test_the_local_classes_load_what_borrows_its_code(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = borrower(checkpoints.folder("t5", "PosEncModel"), tmp_path / "borrower", "me/code")
    model = transformers.AutoModel.from_pretrained(folder)
    assert type(model) is hf_posenc.PosEncModel
    model.save_pretrained(tmp_path / "again")
    assert "me/code" not in (tmp_path / "again" / "config.json").read_text()
    assert (tmp_path / "again" / "modeling_posenc.py").exists()


def test_the_refusal_of_remote_code_is_real(no_remote_code: None, checkpoints: Checkpoints) -> None:
    # The control of this file: what `no_remote_code` watches is what a checkpoint's own code comes through.
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    folder = checkpoints.folder("t5", "PosEncModel")
    before = set(sys.modules)
    with pytest.raises(AssertionError, match="code from a checkpoint"):
        get_class_from_dynamic_module("modeling_posenc.PosEncModel", folder)
    assert not [name for name in set(sys.modules) - before if name.startswith("transformers_modules.")]
