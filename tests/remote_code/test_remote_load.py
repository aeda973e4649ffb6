"""Somebody without hf_posenc loads a checkpoint with trust_remote_code=True and gets the numbers of its author."""

import json
from pathlib import Path

import pytest
import torch
from remote_code_harness import (
    CODE,
    DTYPES,
    HEADS,
    PAIRS,
    SCHEMES,
    TEXTS,
    Checkpoints,
    Report,
    assert_same_outputs,
    tiny_tokenizer,
)

import hf_posenc
from hf_posenc.model.configuration_posenc import AUTO_MAP

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_pair = pytest.mark.parametrize(("scheme", "head"), PAIRS)
every_source = pytest.mark.parametrize("source", ["folder", "hub"])


def test_strangers_have_no_hf_posenc(first_stranger: Report, second_stranger: Report) -> None:
    for stranger in (first_stranger, second_stranger):
        assert stranger.hidden == "No module named 'hf_posenc'"


def test_a_stranger_is_asked_for_trust(first_stranger: Report) -> None:
    # The control of all that follows: the code does come from the folder.
    assert "trust_remote_code=True" in first_stranger.jobs["no trust"]["message"]


def test_every_model_class_is_tested() -> None:
    public = {name for name in hf_posenc.__all__ if name == "PosEncModel" or name.startswith("PosEncFor")}
    assert public == set(HEADS)
    assert {auto: name.rpartition(".")[2] for auto, name in AUTO_MAP.items()} == {
        "AutoConfig": "PosEncConfig",
        **{auto: head for head, auto in HEADS.items()},
    }


@every_scheme
def test_the_numbers_tell_schemes_apart(checkpoints: Checkpoints, scheme: str) -> None:
    # Were they alike, equal logits below would prove little.
    mine = checkpoints.expected[scheme, "PosEncModel", "float32"]["encoder"]
    for other in SCHEMES:
        if other != scheme:
            theirs = checkpoints.expected[other, "PosEncModel", "float32"]["encoder"]
            assert (mine - theirs).abs().max() > 0.1


@every_source
@every_pair
def test_a_stranger_gets_the_same_outputs(
    checkpoints: Checkpoints, first_stranger: Report, scheme: str, head: str, source: str
) -> None:
    said = first_stranger.said(f"{scheme}/{head}/{source}")
    assert said["class"] == head
    assert said["module"].startswith("transformers_modules.")
    assert said["missing"] == said["unexpected"] == []
    assert not said["training"]
    expected = checkpoints.expected[scheme, head, "float32"]
    assert_same_outputs(first_stranger.outputs(f"{scheme}/{head}/{source}"), expected)


@every_source
@every_pair
def test_what_a_stranger_saves_again_loads_without_the_original(
    checkpoints: Checkpoints, second_stranger: Report, scheme: str, head: str, source: str
) -> None:
    said = second_stranger.said(f"{scheme}/{head}/{source}")
    assert said["class"] == head
    assert said["module"].startswith("transformers_modules.")
    assert said["missing"] == said["unexpected"] == []
    expected = checkpoints.expected[scheme, head, "float32"]
    assert_same_outputs(second_stranger.outputs(f"{scheme}/{head}/{source}"), expected)


@every_scheme
def test_what_borrows_its_code_has_its_own_when_saved_again(
    checkpoints: Checkpoints, strangers: tuple[Report, Report], scheme: str
) -> None:
    # The second stranger has no access to the repository that the code came from.
    for stranger in strangers:
        assert stranger.said(f"{scheme}/borrower")["module"].startswith("transformers_modules.")
        expected = checkpoints.expected[scheme, "PosEncModel", "float32"]
        assert_same_outputs(stranger.outputs(f"{scheme}/borrower"), expected)


@every_source
@every_pair
def test_every_saved_folder_is_complete(
    checkpoints: Checkpoints, strangers: tuple[Report, Report], scheme: str, head: str, source: str
) -> None:
    code = {path.name: path.read_bytes() for path in CODE.glob("*.py") if path.name != "__init__.py"}
    folders = [checkpoints.folder(scheme, head)]
    folders += [Path(stranger.said(f"{scheme}/{head}/{source}")["saved"]) for stranger in strangers]
    for folder in folders:
        assert {path.name: path.read_bytes() for path in folder.glob("*.py")} == code
        # Nothing in it points to where it came from.
        assert json.loads((folder / "config.json").read_text())["auto_map"] == AUTO_MAP


@pytest.mark.parametrize("dtype", DTYPES)
@every_pair
def test_a_stranger_gets_the_same_outputs_in_half_precision(
    checkpoints: Checkpoints, first_stranger: Report, scheme: str, head: str, dtype: str
) -> None:
    job = f"{scheme}/{head}/{dtype}"
    assert first_stranger.said(job)["dtypes"] == [f"torch.{dtype}"]
    assert_same_outputs(first_stranger.outputs(job), checkpoints.expected[scheme, head, dtype])


@every_pair
def test_every_auto_class_loads_every_checkpoint(
    checkpoints: Checkpoints, first_stranger: Report, scheme: str, head: str
) -> None:
    expected = checkpoints.expected[scheme, head, "float32"]["encoder"]
    for wanted, auto_class in HEADS.items():
        said = first_stranger.said(f"{scheme}/{head}/{auto_class}")
        assert said["class"] == wanted
        assert not any(name.startswith("model.") for name in said["missing"])
        encoder = first_stranger.outputs(f"{scheme}/{head}/{auto_class}")["encoder"]
        torch.testing.assert_close(encoder, expected, rtol=0, atol=1e-6)


@every_pair
def test_a_stranger_gets_the_tokenizer_too(
    checkpoints: Checkpoints, first_stranger: Report, scheme: str, head: str
) -> None:
    tokenizer = tiny_tokenizer()
    said = first_stranger.said(f"{scheme}/{head}/tokenizer")
    mine = tokenizer(TEXTS, padding=True)
    assert said["input_ids"] == mine["input_ids"]
    assert said["attention_mask"] == mine["attention_mask"]
    config = json.loads((checkpoints.folder(scheme, head) / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id
